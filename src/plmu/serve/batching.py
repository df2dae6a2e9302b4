"""Stepping sessions together: waiting requests are collected, run as one batch, written to the journal and answered."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable

import plmu
from plmu.serve import recovery
from plmu.serve.journal import CLOSE, OPEN, RESET, SAMPLES, Journal
from plmu.serve.limits import BadMessage, Limits
from plmu.serve.messages import Message
from plmu.serve.metrics import Metrics
from plmu.serve.work import Request, Session, Work

SYNC = 1.0  # seconds between writes of the journal to the disk
BUDGET = 0.02  # seconds of a batch: clients with few samples need not wait for those with many
PAUSE = 8  # between batches, in times of the last batch's duration


class Batcher:
    """All sessions of a server. Call `start` and `stop` in the event loop of its clients."""

    def __init__(
        self,
        sessions: plmu.Sessions,
        limits: Limits,
        metrics: Metrics,
        code: str = "f",
        journal: Journal | None = None,
        tick: float = 0.01,
    ) -> None:
        self.sessions, self.limits, self.metrics, self.journal, self.tick = sessions, limits, metrics, journal, tick
        self.work = Work(sessions, limits, metrics, code)
        self.by_name = self.work.by_name
        self.failed: str | None = None  # why the server has stopped working
        self._waiting: list[Request] = []
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._saving: asyncio.Task[None] | None = None
        self._stopping = False
        if journal is not None:
            recovery.restore(self.work, journal)
            self._snapshot()()

    # ---------------------------------------------------------------- in the event loop

    async def start(self) -> None:
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
            if self.failed is None:
                self._snapshot()()
            self.journal.close()

    async def open(self, name: str | None) -> Session:
        """The session of this name, which may be new; BadMessage if there are too many."""
        request = Request(OPEN, name or secrets.token_urlsafe(16))
        await self._do(request)
        assert request.session is not None
        return request.session

    async def close(self, session: Session, idle: bool = False) -> None:
        await self._do(Request(CLOSE, session.name, idle=idle))

    async def handle(self, session: Session, message: Message) -> Request:
        """Carry out a message, in a batch with others. BadMessage: it comes too soon, or the session has ended."""
        session.used = time.monotonic()
        if message.count:
            session.rate.take(message.count)
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
            last = time.monotonic()
            remaining = self._batch(requests)
            took = time.monotonic() - last
            self.metrics.step.add(took)
            unfinished = set(map(id, remaining))
            for request in requests:
                if request.future is not None and not request.future.done() and id(request) not in unfinished:
                    request.future.set_result(None)
            if remaining:
                self._waiting = [*remaining, *self._waiting]
                self._wake.set()
            if self.journal is not None and self.journal.is_due() and (self._saving is None or self._saving.done()):
                self._saving = asyncio.create_task(asyncio.to_thread(self._snapshot()))
            await asyncio.sleep(0)

    async def _housekeeping(self) -> None:
        """End idle sessions, and flush the journal to the disk."""
        while True:
            await asyncio.sleep(min(SYNC, self.limits.idle / 4))
            if self.journal is not None and self.journal.dirty:
                await asyncio.to_thread(self.journal.sync)
            now = time.monotonic()
            for session in [session for session in self.by_name.values() if now - session.used > self.limits.idle]:
                if session.leave is not None:
                    session.leave(4408, f"idle for more than {self.limits.idle:g} s")
                if self.failed is None and not self._stopping:
                    await self.close(session, idle=True)

    # ---------------------------------------------------------------- one batch

    def _batch(self, requests: list[Request]) -> list[Request]:
        """Carry out requests and write them to the journal. Returns those that are not finished in time.

        A fault of one request is its error; after an exception the server has failed.
        """
        remaining: list[Request] = []
        try:
            records = bytearray()
            remaining = self.work.carry_out(requests, records, time.monotonic() + BUDGET)
            if self.journal is not None and records:
                self.metrics.journal_bytes += self.journal.append(bytes(records))
        except Exception as error:
            self.failed = f"the server has failed: {type(error).__name__}: {error}"
            for request in requests:
                request.outputs, request.error = [], BadMessage(self.failed, 503)
        self.metrics.ticks += 1
        self.metrics.sessions = len(self.by_name)
        return remaining

    def _snapshot(self) -> Callable[[], None]:
        """Begin a new journal. Returns a function that writes the snapshot of its start, for any thread."""
        assert self.journal is not None
        return self.journal.save(recovery.take(self.work))
