"""Sessions of a server, stepped together: what waits is collected, run as one batch, written down and answered."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

import plmu
from plmu.serve.journal import (
    CLOSE,
    OPEN,
    RESET,
    SAMPLES,
    Journal,
    Record,
    Snapshot,
    answers_as_tensors,
    answers_from_tensors,
    packed,
)
from plmu.serve.limits import BadMessage, Limits, Rate
from plmu.serve.messages import Message
from plmu.serve.metrics import Metrics
from plmu.training.errors import RunError

SYNC = 1.0  # seconds between writes of the journal to the disk
BUDGET = 0.02  # seconds after which those with few samples need not wait for those with many,
MOST = 2**20  # rows that a saved state may ask for
SHARE = 4  # times as long as a batch has taken, the next one waits
STEPS = 16  # once so many samples of each are done


@dataclass
class Session:
    """One client's stream: a row of the batch."""

    name: str
    row: int
    rate: Rate
    steps: int = 0
    last: list[list[float]] = field(default_factory=list)  # outputs of the last message
    used: float = field(default_factory=time.monotonic)
    leave: Callable[[int, str], None] | None = None  # tells its connection to close, with a code and a reason


@dataclass(eq=False)
class Request:
    """Something that a session is to do. It is done when `future` is."""

    kind: int
    name: str
    message: Message | None = None
    session: Session | None = None
    row: int | None = None  # of OPEN in a journal
    idle: bool = False  # of CLOSE: only if it is idle still
    outputs: list[list[float]] = field(default_factory=list)
    error: BadMessage | None = None
    future: asyncio.Future[None] | None = None

    @property
    def samples(self) -> int:
        return 0 if self.message is None else self.message.count


class Batcher:
    """All sessions of a server. `start` and `stop` it in the event loop whose clients it answers."""

    def __init__(
        self,
        sessions: plmu.Sessions,
        limits: Limits,
        metrics: Metrics,
        code: str = "f",
        journal: Journal | None = None,
        tick: float = 0.02,
    ) -> None:
        self.sessions, self.limits, self.metrics, self.journal, self.tick = sessions, limits, metrics, journal, tick
        self.code, self.features = code, sessions.features or 1
        self.by_name: dict[str, Session] = {}
        self.failed: str | None = None  # why nothing can be done any more
        self._waiting: list[Request] = []
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._saving: asyncio.Task[None] | None = None
        self._stopping = False
        if journal is not None:
            self._restore(journal)

    # ---------------------------------------------------------------- in the event loop

    async def start(self) -> None:
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
        request.future = asyncio.get_running_loop().create_future()
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
            left = self._carry_out(requests, records, time.monotonic() + BUDGET)
            if self.journal is not None and records:
                self.metrics.journal_bytes += self.journal.append(bytes(records))
        except Exception as error:
            self.failed = f"the server has failed: {type(error).__name__}: {error}"
            for request in requests:
                request.outputs, request.error = [], BadMessage(self.failed, 503)
        self.metrics.ticks += 1
        self.metrics.sessions = len(self.by_name)
        return left

    def _carry_out(self, requests: list[Request], records: bytearray, until: float = math.inf) -> list[Request]:
        """In rounds, in each of which a session has one request. Returns what is not done at this time."""
        while requests:
            now: dict[str, Request] = {}
            later = []
            for request in requests:
                if request.name in now:
                    later.append(request)
                else:
                    now[request.name] = request
            running = [one for one in now.values() if not self._control(one, records)]
            begun = [len(one.outputs) for one in running]
            if running:
                self._step(running, until)
            for one, first in zip(running, begun, strict=True):
                assert one.session is not None
                assert one.message is not None
                last = len(one.outputs)
                if last > first:
                    own = one.message.samples[first * self.features : last * self.features].tobytes()
                    records += packed(SAMPLES, one.session.row, last - first, own)
                    one.session.steps += last - first
                    one.session.last = one.outputs
                    self.metrics.samples += last - first
            left = [one for one in running if one.error is None and len(one.outputs) < one.samples]
            if left:
                return [*left, *later]
            requests = later
        return []

    def _control(self, request: Request, records: bytearray) -> bool:
        """Whether a request is done, since it has no samples or its session is gone."""
        session = request.session = self.by_name.get(request.name)
        if request.kind == OPEN:
            if session is None:
                if len(self.by_name) >= self.limits.sessions:
                    request.error = BadMessage(
                        f"there are {self.limits.sessions} sessions already: try again later", 503
                    )
                    return True
                session = Session(request.name, self.sessions.add(request.row), Rate(self.limits))
                request.session = self.by_name[request.name] = session
                name = request.name.encode()
                records += packed(OPEN, session.row, len(name), name)
            session.used = time.monotonic()
            return True
        if session is None:
            request.error = BadMessage(f"there is no session {request.name}: it was closed, or idle for too long", 404)
            return True
        if request.kind == SAMPLES:
            return False
        if request.kind == CLOSE:
            if request.idle and time.monotonic() - session.used <= self.limits.idle:
                return True
            self.metrics.expired += request.idle
            self.sessions.drop(session.row)
            del self.by_name[request.name]
        else:
            self.sessions.reset(session.row)
            session.steps, session.last = 0, []
        records += packed(request.kind, session.row)
        return True

    def _step(self, running: list[Request], until: float) -> None:
        """The samples of these requests: the next of each as one batch, then the one after it, and so on."""
        size, tokens = self.features, self.sessions.frozen.takes_tokens
        wide = {"q": torch.int64, "d": torch.float64}.get(self.code, torch.float32)
        place = self.sessions.frozen.place
        dtype = wide if tokens or place is None else place.dtype
        done = 0
        while running and (done < STEPS or time.monotonic() < until):
            span = min(STEPS, *(one.samples - len(one.outputs) for one in running))  # samples that all of them have
            flat = array(self.code)
            for one in running:
                step = len(one.outputs)
                flat += one.message.samples[step * size : (step + span) * size]  # type: ignore[union-attr]
            rows = [one.session.row for one in running]  # type: ignore[union-attr]
            x = torch.frombuffer(flat, dtype=wide).to(dtype).view(len(rows), span, *([] if tokens else [size]))
            outputs = []
            for step in range(span):
                out, fine = self.sessions.step(rows, x[:, step])
                outputs.append(out)
                if not bool(fine.all()):
                    break
            done += len(outputs)
            for one, found, taken in zip(running, torch.stack(outputs, 1).tolist(), fine.tolist(), strict=True):
                one.outputs += found if taken else found[:-1]
                if not taken:
                    reason = f"sample {len(one.outputs)} would make the state infinite: it was not taken"
                    one.error = BadMessage(reason, 422)
            running = [one for one in running if one.error is None and len(one.outputs) < one.samples]

    def _snapshot(self) -> Callable[[], None]:
        """Begin a new journal. What is returned writes the snapshot before it, in any thread."""
        assert self.journal is not None
        some = list(self.by_name.values())
        rows = [one.row for one in some]
        tensors = self.sessions.tensors(rows) | answers_as_tensors([one.last for one in some], self.sessions.outputs)
        self.metrics.snapshots += 1
        return self.journal.save(Snapshot([one.name for one in some], rows, tensors, self.sessions.width))

    def _restore(self, journal: Journal) -> None:
        """Take over the states of the server before, and run its journal again."""
        snapshot = journal.snapshot()
        names: dict[int, str] = {}
        try:
            if snapshot is not None:
                last = answers_from_tensors(snapshot.tensors)
                if any(not 0 <= row < MOST for row in snapshot.rows):
                    raise ValueError(f"its rows are not from 0 to {MOST - 1}")
                for row in snapshot.rows:
                    self.sessions.add(row)
                self.sessions.fill(snapshot.rows, snapshot.tensors)
                for name, row, outputs in zip(snapshot.names, snapshot.rows, last, strict=True):
                    steps = self.sessions.steps(row)
                    self.by_name[name] = Session(name, row, Rate(self.limits), steps, outputs)
                    names[row] = name
            for chunk in journal.chunks():
                self._repeat([self._request(record, names) for record in chunk])
        except (KeyError, RuntimeError, ValueError) as error:
            raise RunError(f"the states in {journal.folder} cannot be restored: {error}") from None
        self.metrics.samples, self.metrics.sessions = 0, len(self.by_name)
        self._snapshot()()

    def _repeat(self, requests: list[Request]) -> None:
        """Do again what a journal says, in its order, samples of different sessions together."""
        together: dict[str, Request] = {}
        for request in [*requests, None]:
            if request is None or request.kind != SAMPLES or request.name in together:
                self._carry_out(list(together.values()), bytearray())
                together = {}
            if request is not None and request.kind == SAMPLES:
                together[request.name] = request
            elif request is not None:
                self._carry_out([request], bytearray())
        wrong = next((one.error for one in requests if one.error is not None), None)
        if wrong is not None:
            raise ValueError(str(wrong))

    def _request(self, record: Record, names: dict[int, str]) -> Request:
        if record.kind == OPEN:
            names[record.row] = record.name
        message = Message(record.samples, record.count) if record.samples is not None else None
        return Request(record.kind, names[record.row], message, row=record.row)
