"""Sessions of a server, stepped together: what waits is collected, run as one batch, written down and answered."""

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
BUDGET = 0.02  # seconds of a batch, after which those with few samples need not wait for those with many
SHARE = 8  # times as long as a batch has taken, the next one waits


class Batcher:
    """All sessions of a server. `start` and `stop` it in the event loop whose clients it answers."""

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
        self.failed: str | None = None  # why nothing can be done any more
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
        self._tasks = [asyncio.create_task(one()) for one in (self._run, self._housekeeping)]

    async def stop(self) -> None:
        """Finish what waits, and save the states."""
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
        """The session of this name, which may be new. BadMessage: there are too many."""
        request = Request(OPEN, name or secrets.token_urlsafe(16))
        await self._do(request)
        assert request.session is not None
        return request.session

    async def close(self, session: Session, idle: bool = False) -> None:
        await self._do(Request(CLOSE, session.name, idle=idle))

    async def handle(self, session: Session, message: Message) -> Request:
        """Do what a message asks, with all others that wait. BadMessage: it comes too fast, or the session is gone."""
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
            # Under load more is collected, so that batches take a part of the time and are answered in time.
            pause = last + min(self.tick, SHARE * took) - time.monotonic()
            if pause > 0 and not self._stopping:
                await asyncio.sleep(pause)
            some, self._waiting = self._waiting, []
            if not some:
                continue
            last = time.monotonic()
            left = self._batch(some)
            took = time.monotonic() - last
            self.metrics.step.add(took)
            unfinished = set(map(id, left))
            for request in some:
                if request.future is not None and not request.future.done() and id(request) not in unfinished:
                    request.future.set_result(None)
            if left:
                self._waiting = [*left, *self._waiting]
                self._wake.set()
            if self.journal is not None and self.journal.is_due() and (self._saving is None or self._saving.done()):
                self._saving = asyncio.create_task(asyncio.to_thread(self._snapshot()))
            await asyncio.sleep(0)

    async def _housekeeping(self) -> None:
        """End idle sessions, and let the journal reach the disk."""
        while True:
            await asyncio.sleep(min(SYNC, self.limits.idle / 4))
            if self.journal is not None and self.journal.dirty:
                await asyncio.to_thread(self.journal.sync)
            now = time.monotonic()
            for session in [one for one in self.by_name.values() if now - one.used > self.limits.idle]:
                if session.leave is not None:
                    session.leave(4408, f"idle for more than {self.limits.idle:g} s")
                if self.failed is None and not self._stopping:
                    await self.close(session, idle=True)

    # ---------------------------------------------------------------- one batch

    def _batch(self, requests: list[Request]) -> list[Request]:
        """Do all of this, and write it down; what is left, if it takes too long.

        What can go wrong for one is that request's error; for all of them, the server has failed.
        """
        left: list[Request] = []
        try:
            records = bytearray()
            left = self.work.carry_out(requests, records, time.monotonic() + BUDGET)
            if self.journal is not None and records:
                self.metrics.journal_bytes += self.journal.append(bytes(records))
        except Exception as error:
            self.failed = f"the server has failed: {type(error).__name__}: {error}"
            for request in requests:
                request.outputs, request.error = [], BadMessage(self.failed, 503)
        self.metrics.ticks += 1
        self.metrics.sessions = len(self.by_name)
        return left

    def _snapshot(self) -> Callable[[], None]:
        """Begin a new journal. What is returned writes the snapshot before it, in any thread."""
        assert self.journal is not None
        return self.journal.save(recovery.taken(self.work))
