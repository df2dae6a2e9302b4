"""The sessions of a server and their requests, which are carried out together, samples as batches."""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import plmu
from plmu.runs.anomalies import Anomalies
from plmu.runs.forecasts import Forecasts
from plmu.serve.chunks import CLOSE, OPEN, SAMPLES, START, packed, packed_open
from plmu.serve.limits import BadMessage, Limits, Rate
from plmu.serve.messages import Message
from plmu.serve.metrics import Metrics

SECRET_HINT = "send its secret as the header Session-Secret, or as ?secret=SECRET"
STEPS = 16  # samples of a session in one batch


@dataclass(slots=True)
class Session:
    """One client's stream: a row of the batch."""

    name: str
    row: int
    rate: Rate
    steps: int = 0
    last: list[list[float]] = field(default_factory=list)  # outputs of the last message
    used: float = field(default_factory=time.monotonic)
    owner: str = ""  # the digest of its secret; of version 1 none, and any client may use it
    leave: Callable[[int, str], None] | None = None  # tells its connection to close, with a code and a reason

    def belongs(self, owner: str) -> bool:
        """Whether the session is that of a client whose secret has this digest."""
        return not self.owner or hmac.compare_digest(self.owner, owner)


@dataclass(eq=False, slots=True)
class Request:
    """A request to a session. It is done when `future` is."""

    kind: int
    name: str
    message: Message | None = None
    session: Session | None = None
    row: int | None = None  # of an OPEN that a journal repeats
    idle: bool = False  # of CLOSE: only if the session is still idle
    owner: str = ""  # of OPEN: the digest of the secret
    created: bool = False  # whether OPEN has made the session
    outputs: list[list[float]] = field(default_factory=list)
    error: BadMessage | None = None
    assumed: str | None = None  # what is said of the time of the session's first sample, where none was given
    forecast: dict[str, Any] = field(default_factory=dict)  # what is said of the last output of a forecast
    future: asyncio.Future[None] | None = None


@dataclass(eq=False, slots=True)
class Samples:
    """The samples of a request that are still to run."""

    request: Request
    session: Session
    message: Message
    first: int  # the number of outputs that the request had before
    remaining: int  # samples; none after an error


class Work:
    """All sessions of a server by name, and what carries out their requests."""

    def __init__(
        self,
        sessions: plmu.Sessions,
        limits: Limits,
        metrics: Metrics,
        code: str,
        forecasts: Forecasts | Anomalies | None = None,
    ) -> None:
        self.sessions, self.limits, self.metrics, self.forecasts = sessions, limits, metrics, forecasts
        self.code, self.features = code, sessions.features or 1
        self.by_name: dict[str, Session] = {}
        wide = {"q": torch.int64, "d": torch.float64}.get(code, torch.float32)
        tokens, place = sessions.frozen.takes_tokens, sessions.frozen.place
        self._read_as, self._run_as = wide, wide if tokens or place is None else place.dtype
        self._shape = () if tokens else (self.features,)  # of a sample

    def carry_out(self, requests: list[Request], records: bytearray, until: float = math.inf) -> list[Request]:
        """Carry out requests in rounds, with one request of each session a round.

        Args:
            requests: in the order in which they came.
            records: a record of each request is added here, for a journal.
            until: the time after which no batch begins.

        Returns:
            The requests that are not finished at that time.
        """
        while requests:
            first: dict[str, Request] = {}
            later = [request for request in requests if first.setdefault(request.name, request) is not request]
            running = []
            for request in first.values():
                session = self.by_name.get(request.name)
                if request.kind == SAMPLES and session is not None:
                    assert request.message is not None
                    request.session = session
                    if self.forecasts is not None and not self._begin(request, session, self.forecasts, records):
                        continue
                    done = len(request.outputs)
                    running.append(Samples(request, session, request.message, done, request.message.count - done))
                else:
                    self._control(request, session, records)
            if running:
                self._run(running, until)
            for samples in running:
                self._record(samples, records)
            unfinished = [samples.request for samples in running if samples.remaining]
            if unfinished:
                return [*unfinished, *later]
            requests = later
        return []

    def remember(self, requests: list[Request]) -> Callable[[], None]:
        """Remember the sessions of these requests.

        Args:
            requests: those that `carry_out` is about to carry out.

        Returns:
            A function that undoes what they did since.
        """
        names = dict.fromkeys(request.name for request in requests)
        sessions = [session for name in names if (session := self.by_name.get(name)) is not None]
        rows = [session.row for session in sessions]
        tensors = self.sessions.tensors(rows)
        before = [(session.steps, session.last) for session in sessions]
        done = [len(request.outputs) for request in requests]
        samples, expired = self.metrics.samples, self.metrics.expired

        def undo() -> None:
            for name in names:
                if name in self.by_name:
                    self.sessions.drop(self.by_name.pop(name).row)
            for session, (steps, last) in zip(sessions, before, strict=True):
                self.sessions.add(session.row)
                self.by_name[session.name] = session
                session.steps, session.last = steps, last
            self.sessions.fill(rows, tensors)
            for request, count in zip(requests, done, strict=True):
                del request.outputs[count:]
            self.metrics.samples, self.metrics.expired = samples, expired

        return undo

    def next_step(self, session: Session) -> int | None:
        """The clock's step of the next sample of a session of a forecast; None if the session has not begun."""
        assert self.forecasts is not None
        return self.forecasts.next_step(self.sessions.state(session.row))

    def _begin(self, request: Request, session: Session, forecasts: Forecasts | Anomalies, records: bytearray) -> bool:
        """Start a session at the time of its first message, or compare the time of a later message with the step that
        comes next. Returns whether the message's samples can be taken."""
        message, step = request.message, self.next_step(session)
        assert message is not None
        if step is None or (not session.steps and message.start not in (None, step)):
            step = forecasts.first_step if message.start is None else message.start
            if message.start is None:
                request.assumed = forecasts.assumption(step)
            self._start(session, step)
            records += packed(START, session.row, step=step)
        elif message.start not in (None, step) and not request.outputs:
            request.error = BadMessage(
                f"the next sample of this session is at {forecasts.time_of(step)}, not at"
                f" {forecasts.time_of(message.start or 0)}: send the samples between, or null with --missing hold; or"
                ' {"reset": true} first',
                409,
            )
            return False
        return True

    def _start(self, session: Session, step: int) -> None:
        """Reset a session, so that its first sample is at this step."""
        assert self.forecasts is not None
        if isinstance(self.forecasts, Anomalies):  # a session that is called like a series goes on after it
            self.sessions.reset(session.row, self.forecasts.state_at(step, session.name))
        else:
            self.sessions.reset(session.row, self.forecasts.state_at(step))

    def new_session(self, name: str, row: int, owner: str) -> Session:
        """Make a session, in a row of the batch that has been added."""
        session = self.by_name[name] = Session(name, row, Rate(self.limits.rate, self.limits.burst), owner=owner)
        return session

    def _control(self, request: Request, session: Session | None, records: bytearray) -> None:
        """Carry out a request without samples, or answer that its session has ended."""
        if request.kind == OPEN:
            if session is None:
                if len(self.by_name) >= self.limits.sessions:
                    reason = f"there are {self.limits.sessions} sessions already: try again later"
                    request.error = BadMessage(reason, 503)
                    return
                session = self.new_session(request.name, self.sessions.add(request.row), request.owner)
                request.created = True
                records += packed_open(session.row, session.name, session.owner)
            elif not session.belongs(request.owner):
                request.error = BadMessage(f"the session {session.name} is another client's: {SECRET_HINT}", 403)
                return
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
        elif request.kind == START:
            assert request.message is not None
            assert request.message.start is not None
            self._start(session, request.message.start)
        else:
            self.sessions.reset(session.row)
            session.steps, session.last = 0, []
            records += packed(request.kind, session.row)

    def _run(self, running: list[Samples], until: float) -> None:
        """Run as many samples as all sessions have as one batch, then the rest of those that have more, and so on."""
        done = 0
        while running and (done < STEPS or time.monotonic() < until):
            span = min(STEPS, min(samples.remaining for samples in running))
            flat = array(self.code)
            for samples in running:
                start = len(samples.request.outputs) * self.features
                flat += samples.message.samples[start : start + span * self.features]
            x = torch.frombuffer(flat, dtype=self._read_as).to(self._run_as).view(len(running), span, *self._shape)
            outputs, taken = self.sessions.run([samples.session.row for samples in running], x)
            done += span
            for samples, rows, count in zip(running, outputs.tolist(), taken.tolist(), strict=True):
                request = samples.request
                request.outputs += rows[:count]
                samples.remaining -= span
                if count < span:
                    samples.remaining = 0
                    reason = f"sample {len(request.outputs)} would make the state infinite: it was not taken"
                    request.error = BadMessage(reason, 422)
            running = [samples for samples in running if samples.remaining]

    def _record(self, samples: Samples, records: bytearray) -> None:
        """Record the samples that have run."""
        session, first, last = samples.session, samples.first, len(samples.request.outputs)
        if last > first:
            content = samples.message.samples[first * self.features : last * self.features].tobytes()
            records += packed(SAMPLES, session.row, last - first, content)
            session.steps += last - first
            session.last = samples.request.outputs
            if self.forecasts is not None and samples.request.future is not None:
                state = self.sessions.state(session.row)
                number = self.forecasts.next_step(state)
                assert number is not None
                samples.request.forecast = self.forecasts.answer(session.last[-1], number - 1, state, session.steps)
            self.metrics.samples += last - first
