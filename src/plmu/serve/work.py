"""What the sessions of a server do: requests are carried out together, their samples as batches."""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

import plmu
from plmu.serve.journal import CLOSE, OPEN, SAMPLES, packed
from plmu.serve.limits import BadMessage, Limits, Rate
from plmu.serve.messages import Message
from plmu.serve.metrics import Metrics

STEPS = 16  # samples of each session that are run at once


@dataclass(slots=True)
class Session:
    """One client's stream: a row of the batch."""

    name: str
    row: int
    rate: Rate
    steps: int = 0
    last: list[list[float]] = field(default_factory=list)  # outputs of the last message
    used: float = field(default_factory=time.monotonic)
    leave: Callable[[int, str], None] | None = None  # tells its connection to close, with a code and a reason


@dataclass(eq=False, slots=True)
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


@dataclass(eq=False, slots=True)
class Samples:
    """The samples of a request that are not run yet."""

    request: Request
    session: Session
    message: Message
    first: int  # outputs that it had before
    left: int  # samples; none after an error


class Work:
    """All sessions of a server, by name, and how they carry out requests."""

    def __init__(self, sessions: plmu.Sessions, limits: Limits, metrics: Metrics, code: str) -> None:
        self.sessions, self.limits, self.metrics = sessions, limits, metrics
        self.code, self.features = code, sessions.features or 1
        self.by_name: dict[str, Session] = {}
        wide = {"q": torch.int64, "d": torch.float64}.get(code, torch.float32)
        tokens, place = sessions.frozen.takes_tokens, sessions.frozen.place
        self._read_as, self._run_as = wide, wide if tokens or place is None else place.dtype
        self._shape = () if tokens else (self.features,)  # of a sample

    def carry_out(self, requests: list[Request], records: bytearray, until: float = math.inf) -> list[Request]:
        """In rounds, in each of which a session has one request.

        Args:
            requests: what is to be done, in this order.
            records: what was done is added here, for a journal.
            until: the time after which no more samples begin.

        Returns:
            What is not done at that time.
        """
        while requests:
            now: dict[str, Request] = {}
            later = [request for request in requests if now.setdefault(request.name, request) is not request]
            running = []
            for request in now.values():
                session = self.by_name.get(request.name)
                if request.kind == SAMPLES and session is not None:
                    assert request.message is not None
                    request.session = session
                    done = len(request.outputs)
                    running.append(Samples(request, session, request.message, done, request.message.count - done))
                else:
                    self._control(request, session, records)
            if running:
                self._run(running, until)
            left = []
            for one in running:
                self._count(one, records)
                if one.left:
                    left.append(one.request)
            if left:
                return [*left, *later]
            requests = later
        return []

    def _control(self, request: Request, session: Session | None, records: bytearray) -> None:
        """A request without samples, or of a session that is gone."""
        if request.kind == OPEN:
            if session is None:
                if len(self.by_name) >= self.limits.sessions:
                    reason = f"there are {self.limits.sessions} sessions already: try again later"
                    request.error = BadMessage(reason, 503)
                    return
                session = Session(request.name, self.sessions.add(request.row), Rate(self.limits))
                self.by_name[request.name] = session
                name = request.name.encode()
                records += packed(OPEN, session.row, len(name), name)
            session.used = time.monotonic()
            request.session = session
        elif session is None:
            request.error = BadMessage(f"there is no session {request.name}: it was closed, or idle for too long", 404)
        elif request.kind == CLOSE:
            if request.idle and time.monotonic() - session.used <= self.limits.idle:
                return
            self.metrics.expired += request.idle
            self.sessions.drop(session.row)
            del self.by_name[request.name]
            records += packed(CLOSE, session.row)
        else:
            self.sessions.reset(session.row)
            session.steps, session.last = 0, []
            records += packed(request.kind, session.row)

    def _run(self, running: list[Samples], until: float) -> None:
        """The samples that all of them have as one batch, then those that some have more, and so on."""
        done = 0
        while running and (done < STEPS or time.monotonic() < until):
            span = min(STEPS, min(one.left for one in running))
            flat = array(self.code)
            for one in running:
                start = len(one.request.outputs) * self.features
                flat += one.message.samples[start : start + span * self.features]
            x = torch.frombuffer(flat, dtype=self._read_as).to(self._run_as).view(len(running), span, *self._shape)
            outputs, taken = self.sessions.run([one.session.row for one in running], x)
            done += span
            for one, found, count in zip(running, outputs.tolist(), taken.tolist(), strict=True):
                if count == span:
                    one.request.outputs += found
                    one.left -= span
                else:
                    one.left = 0
                    one.request.outputs += found[:count]
                    reason = f"sample {len(one.request.outputs)} would make the state infinite: it was not taken"
                    one.request.error = BadMessage(reason, 422)
            running = [one for one in running if one.left]

    def _count(self, one: Samples, records: bytearray) -> None:
        """Write down what was run."""
        first, last = one.first, len(one.request.outputs)
        if last > first:
            own = one.message.samples[first * self.features : last * self.features]
            records += packed(SAMPLES, one.session.row, last - first, own.tobytes())
            one.session.steps += last - first
            one.session.last = one.request.outputs
            self.metrics.samples += last - first
