"""Stepping sessions together: waiting requests are collected, run as one batch, written to the journal and answered."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress

import plmu
from plmu.runs.anomalies import Anomalies
from plmu.runs.forecasts import Forecasts
from plmu.serve import recovery
from plmu.serve.access import digest
from plmu.serve.chunks import CLOSE, OPEN, RESET, SAMPLES
from plmu.serve.journal import Journal
from plmu.serve.limits import BadMessage, Limits
from plmu.serve.messages import Message
from plmu.serve.metrics import Metrics
from plmu.serve.work import Request, Session, Work

SYNC = 1.0  # seconds between writes of the journal to the disk
BUDGET = 0.02  # seconds of a batch: clients with few samples need not wait for those with many
PAUSE = 8  # between batches, in times of the last batch's duration
CHECK = -1  # a request that passes through a batch and does nothing
CHECK_SECONDS = 5.0  # most that a batch may be away in a server that works

log = logging.getLogger("plmu.serve")  # to standard error, unless the program has set up logging


class Batcher:
    """All sessions of a server. Call `start` and `stop` in the event loop of its clients.

    While the journal cannot be written, each request is answered with an error and undone. After any other fault the
    server has failed: all requests are answered with an error, and `on_failure` is called, which ends the process.
    """

    def __init__(
        self,
        sessions: plmu.Sessions,
        limits: Limits,
        metrics: Metrics,
        code: str = "f",
        journal: Journal | None = None,
        tick: float = 0.01,
        forecasts: Forecasts | Anomalies | None = None,
    ) -> None:
        self.sessions, self.limits, self.metrics, self.journal, self.tick = sessions, limits, metrics, journal, tick
        self.work = Work(sessions, limits, metrics, code, forecasts)
        self.by_name = self.work.by_name
        self.failed: str | None = None  # why the server has stopped working
        self.trouble: str | None = None  # why nothing can be stored at present
        self.on_failure: Callable[[], None] = lambda: None
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._saving: asyncio.Task[None] | None = None
        self._stopping = False
        if journal is not None:
            recovery.restore(self.work, journal)
            journal.begin(recovery.take(self.work))

    # ---------------------------------------------------------------- in the event loop

    async def start(self) -> None:
        """Begin to carry out requests."""
        self._loop = asyncio.get_running_loop()
        self._tasks = [asyncio.create_task(task()) for task in (self._run, self._housekeeping)]

    async def stop(self) -> None:
        """Finish the waiting requests and save the states."""
        self._stopping = True
        self._wake.set()
        await self._tasks[0]
        self._tasks[1].cancel()
        if self._saving is not None:
            await self._saving
        if self.journal is not None:
            try:
                self._save_last(self.journal)
            except Exception as error:
                self._fail(error)
            self.journal.close()

    def _save_last(self, journal: Journal) -> None:
        if self.failed is not None:
            return
        try:
            self._snapshot()()
        except OSError as error:
            log.warning("plmu: no last snapshot could be written, the journal has all: %s", error)
            journal.sync()

    async def open(self, name: str | None, secret: str | None = None) -> tuple[Session, str | None]:
        """Open a session.

        Args:
            name: of the session, which may be new; None for a new one.
            secret: of the session; None if the client has none.

        Returns:
            The session, and the secret that was made if it is new and the client has none.

        Raises:
            BadMessage: there are too many sessions, or it is another client's.
        """
        made = None if secret else secrets.token_urlsafe(16)
        request = Request(OPEN, name or secrets.token_urlsafe(16), owner=digest(secret or made or ""))
        await self._do(request)
        assert request.session is not None
        return request.session, made if request.created else None

    async def close(self, session: Session, idle: bool = False) -> None:
        """End a session, with `idle` only if it is still idle."""
        await self._do(Request(CLOSE, session.name, idle=idle))

    async def check(self) -> str | None:
        """What is wrong with the server; None if a request has just passed through a batch, and can be stored."""
        try:
            await asyncio.wait_for(self._do(Request(CHECK, "")), CHECK_SECONDS)
        except BadMessage as error:
            return str(error)
        except TimeoutError:
            return f"no batch was finished in {CHECK_SECONDS:g} s"
        return self.trouble

    async def handle(self, session: Session, message: Message) -> Request:
        """Carry out a message, in a batch with others. BadMessage: it comes too soon, or the session has ended."""
        session.used = time.monotonic()
        if message.count and (wait := session.rate.take(message.count)):
            limit = f"more than {session.rate.rate:g} samples a second"
            raise BadMessage(f"{limit}: send this again in {wait:.3f} s", 429)
        kind = RESET if message.reset else CLOSE if message.close else SAMPLES
        request = Request(kind, session.name, message)
        await self._do(request)
        return request

    async def _do(self, request: Request) -> None:
        if self.failed is not None or self._stopping:
            raise BadMessage(self.failed or "the server is stopping", 503)
        request.future = self._loop.create_future()
        self._waiting.append(request)
        self._wake.set()
        await request.future
        if request.error is not None and not request.outputs:
            raise request.error

    async def _run(self) -> None:
        try:
            await self._run_batches()
        except Exception as error:
            self._fail(error)

    async def _run_batches(self) -> None:
        last, took = 0.0, 0.0
        while not self._stopping or self._waiting:
            await self._wake.wait()
            self._wake.clear()
            # Under load, wait a little so that batches are larger.
            pause = last + min(self.tick, PAUSE * took) - time.monotonic()
            if pause > 0 and not self._stopping:
                await asyncio.sleep(pause)
            requests, self._waiting = self._waiting, []
            if not requests:
                continue
            self._running = requests
            last = time.monotonic()
            remaining = self._batch(requests)
            took = time.monotonic() - last
            self.metrics.step.add(took)
            unfinished = set(map(id, remaining))
            _answer([request for request in requests if id(request) not in unfinished])
            self._running = []
            if remaining:
                self._waiting = [*remaining, *self._waiting]
                self._wake.set()
            if self.journal is not None and self.journal.is_due() and (self._saving is None or self._saving.done()):
                self._begin_saving()
            await asyncio.sleep(0)

    def _begin_saving(self) -> None:
        """Begin a new journal, and write the snapshot of its start in a thread."""
        try:
            write = self._snapshot()
        except OSError as error:  # such as too many open files
            log.warning("plmu: no new journal could be begun, the present one goes on: %s", error)
        else:
            self._saving = asyncio.create_task(self._save(write))

    async def _save(self, write: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(write)
        except OSError as error:
            log.warning("plmu: no snapshot could be written, the one before and the journals stay: %s", error)
        except Exception as error:
            self._fail(error)

    async def _housekeeping(self) -> None:
        """End idle sessions, and flush the journal to the disk."""
        try:
            while True:
                await asyncio.sleep(min(SYNC, self.limits.idle / 4))
                if self.journal is not None and self.journal.unsynced:
                    await asyncio.to_thread(self.journal.sync)
                now = time.monotonic()
                for session in [session for session in self.by_name.values() if now - session.used > self.limits.idle]:
                    if session.leave is not None:
                        session.leave(4408, f"idle for more than {self.limits.idle:g} s")
                    with suppress(BadMessage):  # the next round tries again
                        await self.close(session, idle=True)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Note a fault after which the server cannot go on, and answer all requests with it."""
        if self.failed is None:
            self.failed = f"the server has failed: {type(error).__name__}: {error}"
            log.error("plmu: %s", self.failed, exc_info=error)
        requests, self._running, self._waiting = [*self._running, *self._waiting], [], []
        for request in requests:
            request.outputs, request.error = [], BadMessage(self.failed, 503)
        _answer(requests)
        self.on_failure()

    # ---------------------------------------------------------------- one batch

    def _batch(self, requests: list[Request]) -> list[Request]:
        """Carry out requests and write them to the journal. Returns those that are not finished in time.

        A fault of one request is its error. If the journal cannot be written, all have an error and nothing has
        changed. After any other exception the server has failed.
        """
        remaining: list[Request] = []
        work = [request for request in requests if request.kind != CHECK]
        try:
            remaining = self._carry_out(work) if self.journal is None else self._carry_out_and_store(work, self.journal)
        except Exception as error:
            self._running = requests
            self._fail(error)
        self.metrics.ticks += 1
        self.metrics.sessions = len(self.by_name)
        return remaining

    def _carry_out(self, requests: list[Request], records: bytearray | None = None) -> list[Request]:
        return self.work.carry_out(requests, bytearray() if records is None else records, time.monotonic() + BUDGET)

    def _carry_out_and_store(self, requests: list[Request], journal: Journal) -> list[Request]:
        undo, records = self.work.remember(requests), bytearray()
        try:
            if not journal.is_usable():
                log.warning(
                    "plmu: the states in %s are gone: a snapshot of all sessions begins them anew", journal.folder
                )
                journal.begin(recovery.take(self.work))
            remaining = self._carry_out(requests, records)
            if records or self.trouble is not None:
                self.metrics.journal_bytes += journal.append(bytes(records))
        except OSError as error:
            undo()
            trouble = f"the states cannot be stored: {error.strerror or error}"
            if self.trouble is None:
                log.error("plmu: %s. Until they can be, messages are answered with an error", trouble)
            self.trouble = trouble
            for request in requests:
                request.error = BadMessage(f"{trouble}. This message was not taken: send it again later", 507)
            return []
        if self.trouble is not None:
            log.warning("plmu: the states are stored again")
            self.trouble = None
        return remaining

    def _snapshot(self) -> Callable[[], None]:
        """Begin a new journal. Returns a function that writes the snapshot of its start, for any thread."""
        assert self.journal is not None
        return self.journal.save(recovery.take(self.work))


def _answer(requests: list[Request]) -> None:
    """Wake those who wait for these requests."""
    for request in requests:
        if request.future is not None and not request.future.done():
            request.future.set_result(None)
