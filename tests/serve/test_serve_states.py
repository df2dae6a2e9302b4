"""States of a server that survive it: journal, snapshots, and what a killed server leaves."""

import asyncio
import json
import shutil
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from test_serve import saved, serving, socket
from torch import nn

import plmu
from benchmarks import serving as script
from plmu.errors import RunError
from plmu.runs.deployed import load
from plmu.serve.batching import Batcher
from plmu.serve.chunks import CLOSE, HEADER_SIZE, OPEN, RESET, SAMPLES
from plmu.serve.journal import Journal
from plmu.serve.limits import Limits
from plmu.serve.messages import Message
from plmu.serve.metrics import Metrics
from plmu.serve.snapshots import Snapshot
from plmu.serve.work import Request

WIDTH = 4


def batcher(run: Path, states: Path, **options: bool) -> Batcher:
    frozen = load(run).frozen
    journal = Journal(states, frozen.fingerprint, "f", 1, **options)
    try:
        return Batcher(plmu.Sessions(frozen, WIDTH), Limits(), Metrics(), "f", journal)
    except RunError:
        journal.close()
        raise


def do(server: Batcher, *requests: tuple[int, str] | tuple[int, str, list[float]], owner: str = "") -> list[Request]:
    """These requests as one batch."""
    messages = [Message(array("f", r[2]), len(r[2])) if len(r) > 2 else None for r in requests]
    made = [Request(r[0], r[1], message, owner=owner) for r, message in zip(requests, messages, strict=True)]
    assert server._batch(made) == []
    return made


def some_work(server: Batcher, rounds: int = 6) -> list[list[list[float]]]:
    """Sessions come, step, are reset and go; all outputs."""
    outputs = []
    names = ["a", "b", "c", "d", "e", "f"]
    do(server, *((OPEN, name) for name in names))
    for number in range(rounds):
        steps = [(SAMPLES, name, [0.1 * number, 0.3]) for name in names[number % 3 :]]
        outputs += [request.outputs for request in do(server, *steps)]
        if number == 2:
            do(server, (CLOSE, "b"), (OPEN, "g"), (SAMPLES, "g", [1.0]), (RESET, "c"))
            do(server, (OPEN, "b"))
        if number == 3:
            assert server.journal is not None
            server._snapshot()()
    return outputs


def test_what_a_killed_server_leaves_is_all_that_it_had(tmp_path: Path) -> None:
    """At any moment, also while a snapshot is being written; and from then on the bits are the same."""
    run = saved(tmp_path / "run")
    for rounds, pending in ((1, False), (3, False), (6, False), (6, True)):
        first = batcher(run, tmp_path / "states")
        some_work(first, rounds)
        if pending:  # a new journal has begun, and its snapshot is not there yet
            first._snapshot()
            do(first, (SAMPLES, "a", [0.7, 0.9]))
        shutil.copytree(tmp_path / "states", tmp_path / "left")
        second = batcher(run, tmp_path / "left")
        assert {session.name: (session.row, session.steps, session.last) for session in first.by_name.values()} == {
            session.name: (session.row, session.steps, session.last) for session in second.by_name.values()
        }
        rows = sorted(session.row for session in first.by_name.values())
        before, after = first.sessions.tensors(rows), second.sessions.tensors(rows)
        assert all(torch.equal(before[name], after[name]) for name in before)
        step = (SAMPLES, "a", [0.5, -0.5])
        assert do(first, step)[0].outputs == do(second, step)[0].outputs
        for server, folder in ((first, "states"), (second, "left")):
            assert server.journal is not None
            server.journal.close()
            shutil.rmtree(tmp_path / folder)


def test_requests_of_one_session_are_restored_in_their_order(tmp_path: Path) -> None:
    """Also those that came together, as one chunk of the journal: a reset forgets the samples before it alone."""
    run = saved(tmp_path / "run")
    server = batcher(run, tmp_path / "states")
    do(server, (OPEN, "a"), (SAMPLES, "a", [0.5, -1.0]), (RESET, "a"), (SAMPLES, "a", [0.25]))
    do(server, (OPEN, "b"), (SAMPLES, "b", [2.0]), (CLOSE, "b"))
    assert server.journal is not None
    server.journal.close()
    again = batcher(run, tmp_path / "states")
    assert again.journal is not None
    again.journal.close()
    assert list(again.by_name) == ["a"]
    session = again.by_name["a"]
    assert (session.steps, session.last) == (1, server.by_name["a"].last)
    expected = plmu.Stream(plmu.load(run / "model.plmu")).push([0.25])
    torch.testing.assert_close(torch.tensor(session.last), expected[None])


def test_a_chunk_that_was_cut_short_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = saved(tmp_path / "run")
    server = batcher(run, tmp_path / "states")
    do(server, (OPEN, "a"), (SAMPLES, "a", [0.1]))
    do(server, (SAMPLES, "a", [0.1]))
    assert server.journal is not None
    server.journal.close()
    (log,) = (tmp_path / "states").glob("journal-*.log")
    content = log.read_bytes()
    for cut, steps in ((1, 1), (20, 1), (len(content) - HEADER_SIZE - 1, 0)):
        shutil.copytree(tmp_path / "states", tmp_path / "cut")
        (tmp_path / "cut" / log.name).write_bytes(content[:-cut])
        again = batcher(run, tmp_path / "cut")
        assert (again.by_name["a"].steps if again.by_name else 0) == steps
        assert "were not written whole and are left out" in capsys.readouterr().err
        assert again.journal is not None
        again.journal.close()
        shutil.rmtree(tmp_path / "cut")


def test_states_that_cannot_be_taken_are_refused(tmp_path: Path) -> None:
    run, states = saved(tmp_path / "run"), tmp_path / "states"
    server = batcher(run, states)
    do(server, (OPEN, "a"), (SAMPLES, "a", [0.1]))
    with pytest.raises(RunError, match="in use by another server"):
        batcher(run, states)
    assert server.journal is not None
    server.journal.close()
    with pytest.raises(RunError, match="has the states of another model"):
        batcher(saved(tmp_path / "other", out=2), states)
    (snapshot,) = states.glob("sessions-*.plmu")
    snapshot.write_bytes(snapshot.read_bytes()[:-3])
    with pytest.raises(RunError, match="is damaged"):
        batcher(run, states)
    journal = Journal(tmp_path / "wide", "", "f", 1)
    for width in (1, 4096, 0, 4097, 10**9, True, "4"):
        journal.save(Snapshot([], [], [], {"answers": torch.zeros(0, 1)}, width=width))()  # type: ignore[arg-type]
        if width in (1, 4096) and type(width) is int:
            snapshot = journal.snapshot()
            assert snapshot is not None
            assert snapshot.width == width
        else:
            with pytest.raises(RunError, match=f"is damaged: its width is {width!r}"):
                journal.snapshot()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write to"):
        batcher(run, tmp_path / "file")


def test_a_server_that_stops_keeps_its_sessions(tmp_path: Path) -> None:
    run, states = saved(tmp_path / "run"), tmp_path / "states"
    with serving(run, states=states, width=WIDTH) as client:
        answer = client.post("/step", json={"session": "mine", "samples": [0.1, 0.2]}).json()
    with serving(run, states=states, width=2 * WIDTH) as client:  # the width stays
        assert client.server.batcher.sessions.width == WIDTH  # type: ignore[attr-defined]
        with socket(client, "?session=mine") as connection:
            assert connection.receive_json() == {"session": "mine", "step": 2, "last": answer["outputs"]}
    assert len(list(states.glob("*-*"))) == 4  # the last two snapshots and their journals


def test_large_answers_and_no_sessions_are_kept(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", out=7)
    server = batcher(run, tmp_path / "states")
    assert server.journal is not None
    server._snapshot()()
    do(server, (OPEN, "a"), (OPEN, "b"), (SAMPLES, "b", [0.1] * 30))
    server._snapshot()()
    server.journal.close()
    again = batcher(run, tmp_path / "states")
    assert [len(again.by_name[name].last) for name in ("a", "b")] == [0, 30]


def test_a_process_killed_under_load(tmp_path: Path) -> None:
    """The short form of what `python -m benchmarks.serving` measures; see there."""
    run = script.save_model(tmp_path / "run")
    counts: dict[str, Any] = asyncio.run(script.killed(run, tmp_path / "states", sessions=12, kills=1, seconds=0.6))
    assert counts["outputs_compared"] > 100
    for name in ("outputs_with_other_bits", "wrong_answers", "lost_samples"):
        assert counts[name] == 0, json.dumps(counts)


def test_models_in_double_precision_and_of_tokens_are_kept(tmp_path: Path) -> None:
    double = plmu.ParallelLMU(1, 2, order=3, theta=5.0).double()
    tokens = plmu.Sequential(nn.Embedding(5, 3), plmu.ParallelLMU(3, 2, order=3, theta=5.0))
    for number, (model, code, samples) in enumerate([(double, "d", [0.1, 0.7]), (tokens, "q", [4, 2])]):
        frozen = plmu.FrozenModel(model)
        states = tmp_path / str(number)
        journal = Journal(states, frozen.fingerprint, code, 1)
        server = Batcher(plmu.Sessions(frozen, WIDTH), Limits(), Metrics(), code, journal)
        message = Message(array(code, samples), 2)
        server._batch([Request(OPEN, "a"), Request(SAMPLES, "a", message)])
        journal.close()
        again = Batcher(
            plmu.Sessions(frozen, WIDTH), Limits(), Metrics(), code, Journal(states, frozen.fingerprint, code, 1)
        )
        row = again.by_name["a"].row
        before, after = server.sessions.tensors([row]), again.sessions.tensors([row])
        assert all(torch.equal(before[name], after[name]) for name in before)
