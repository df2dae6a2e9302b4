"""Sessions that continue after a restart: the last snapshot, then the journal."""

from __future__ import annotations

from plmu.errors import RunError
from plmu.serve.chunks import OPEN, SAMPLES, Damage, Record
from plmu.serve.journal import Journal
from plmu.serve.messages import Message
from plmu.serve.snapshots import Snapshot, answers_as_tensors, answers_from_tensors
from plmu.serve.work import Request, Work

MAX_ROWS = 2**20  # of a snapshot


def take(work: Work) -> Snapshot:
    """A snapshot of all sessions."""
    sessions = list(work.by_name.values())
    rows = [session.row for session in sessions]
    answers = answers_as_tensors([session.last for session in sessions], work.sessions.outputs)
    work.metrics.snapshots += 1
    tensors = work.sessions.tensors(rows) | answers
    return Snapshot(list(work.by_name), rows, [session.owner for session in sessions], tensors, work.sessions.width)


def restore(work: Work, journal: Journal) -> None:
    """Restore the sessions of a journal's snapshot and run the journal again.

    Raises:
        RunError: they cannot be restored, or some of it is damaged. The message says what can be saved.
    """
    snapshot = journal.snapshot()
    names: dict[int, str] = {}
    try:
        if snapshot is not None:
            last = answers_from_tensors(snapshot.tensors)
            if any(not 0 <= row < MAX_ROWS for row in snapshot.rows):
                raise ValueError(f"its rows are not from 0 to {MAX_ROWS - 1}")
            for row in snapshot.rows:
                work.sessions.add(row)
            work.sessions.fill(snapshot.rows, snapshot.tensors)
            sessions = zip(snapshot.names, snapshot.rows, snapshot.owners, last, strict=True)
            for name, row, owner, outputs in sessions:
                session = work.new_session(name, row, owner)
                session.steps, session.last = work.sessions.steps(row), outputs
                names[row] = name
        for chunk in journal.chunks(snapshot):
            _repeat(work, [_request(record, names) for record in chunk])
    except Damage as damage:
        count, steps = len(work.by_name), sum(session.steps for session in work.by_name.values())
        saved = f"What is before it can be read: {count} session{'s' * (count != 1)}, {steps} samples in all"
        raise RunError(f"{damage}. {journal.advice(saved)}") from None
    except (KeyError, RuntimeError, ValueError) as error:
        raise RunError(f"the states in {journal.folder} cannot be restored: {error}") from None
    work.metrics.samples, work.metrics.sessions = 0, len(work.by_name)


def _repeat(work: Work, requests: list[Request]) -> None:
    """Repeat the requests of a journal in order, samples of different sessions together."""
    together: dict[str, Request] = {}
    for request in [*requests, None]:
        if request is None or request.kind != SAMPLES or request.name in together:
            work.carry_out(list(together.values()), bytearray())
            together = {}
        if request is not None and request.kind == SAMPLES:
            together[request.name] = request
        elif request is not None:
            work.carry_out([request], bytearray())
    wrong = next((request.error for request in requests if request.error is not None), None)
    if wrong is not None:
        raise ValueError(str(wrong))


def _request(record: Record, names: dict[int, str]) -> Request:
    if record.kind == OPEN:
        names[record.row] = record.name
    message = Message(record.samples, record.count) if record.samples is not None else None
    if record.step is not None:
        message = Message(start=record.step)
    return Request(record.kind, names[record.row], message, row=record.row, owner=record.owner)
