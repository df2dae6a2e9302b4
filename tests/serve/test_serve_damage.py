"""Damaged states: a changed bit, and a chunk that is missing, repeated or elsewhere, are refused; the rest is saved."""

import shutil
import struct
import zlib
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from program import refused
from test_serve import saved
from test_serve_states import batcher, do, some_work

from plmu.errors import RunError
from plmu.modelfiles.files import reading, write
from plmu.serve.batching import Batcher
from plmu.serve.chunks import CHECK, DIGEST, HEAD, HEAD_SIZE, HEADER_SIZE, OPEN, SAMPLES
from plmu.serve.journal import JOURNAL, SNAPSHOT

Sessions = dict[str, tuple[int, int, list[list[float]]]]


def sessions(server: Batcher) -> Sessions:
    return {name: (session.row, session.steps, session.last) for name, session in server.by_name.items()}


@cache
def example() -> tuple[Path, Path, Sessions, torch.Tensor]:
    """A run, the states of its server, the sessions in them, and their memory."""
    folder = Path(mkdtemp())
    run = saved(folder / "run")
    server = batcher(run, folder / "states")
    some_work(server)
    assert server.journal is not None
    server.journal.close()
    return run, folder / "states", sessions(server), memory(server)


def memory(server: Batcher) -> torch.Tensor:
    return server.sessions.tensors(sorted(session.row for session in server.by_name.values()))["state.0"]


def files(states: Path, pattern: Any = JOURNAL) -> list[Path]:
    return sorted(path for path in states.iterdir() if pattern.fullmatch(path.name))


def chunks_of(content: bytes) -> list[bytes]:
    """The header of a journal, then its chunks."""
    parts, place = [content[:HEADER_SIZE]], HEADER_SIZE
    while place < len(content):
        size = HEAD_SIZE + HEAD.unpack_from(content, place)[0]
        parts.append(content[place : place + size])
        place += size
    return parts


def restored(run: Path, states: Path, **options: bool) -> tuple[Sessions, torch.Tensor]:
    server = batcher(run, states, **options)
    assert server.journal is not None
    server.journal.close()
    return sessions(server), memory(server)


@settings(max_examples=40, deadline=None)
@given(draw=st.data())
def test_changed_states_are_the_answered_ones_or_are_refused(draw: Any) -> None:
    run, states, acknowledged, bits = example()
    with_damage = Path(mkdtemp()) / "states"
    shutil.copytree(states, with_damage)
    path = draw.draw(st.sampled_from([*files(with_damage)[-1:], *files(with_damage, SNAPSHOT)[-1:]]))
    content = path.read_bytes()
    kind = "flip" if path.suffix == ".plmu" else draw.draw(st.sampled_from(["flip", "repeat", "remove", "swap"]))
    if kind == "flip":
        place, bit = draw.draw(st.integers(0, len(content) - 1)), draw.draw(st.integers(0, 7))
        changed = content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
    else:
        parts = chunks_of(content)
        first, second = sorted(draw.draw(st.lists(st.integers(1, len(parts) - 1), min_size=2, max_size=2, unique=True)))
        if kind == "repeat":
            parts.insert(second, parts[first])
        elif kind == "remove":  # not the last: it might not have been written
            del parts[first]
        else:
            parts[first], parts[second] = parts[second], parts[first]
        changed = b"".join(parts)
    path.write_bytes(changed)
    before = {file.name: file.read_bytes() for file in with_damage.iterdir() if "-" in file.name}
    refusal, after, memory_after = "", acknowledged, bits
    try:
        after, memory_after = restored(run, with_damage)
    except RunError as error:
        refusal = str(error)
    assert after == acknowledged
    assert torch.equal(memory_after, bits)
    if refusal:
        assert path.name in refusal
        assert {file.name: file.read_bytes() for file in with_damage.iterdir() if "-" in file.name} == before
    shutil.rmtree(with_damage.parent)


def test_the_end_of_the_journal_before_is_needed_too(tmp_path: Path) -> None:
    """A journal that lost its last chunk is no torn one if another goes on from it."""
    run = saved(tmp_path / "run")
    server = batcher(run, tmp_path / "states")
    do(server, (OPEN, "a"), (SAMPLES, "a", [0.1]))
    do(server, (SAMPLES, "a", [0.2]))
    server._snapshot()  # the snapshot of the second journal was not written
    do(server, (SAMPLES, "a", [0.3]))
    assert server.journal is not None
    server.journal.close()
    first, second = files(tmp_path / "states")
    whole = first.read_bytes()
    first.write_bytes(b"".join(chunks_of(whole)[:-1]))
    refusal = rf"{second.name} is damaged at byte 0: it begins at chunk 2 .* 1 session, 1 samples in all"
    with pytest.raises(RunError, match=refusal):
        batcher(run, tmp_path / "states")
    first.unlink()
    with pytest.raises(RunError, match=f"{second.name} is damaged at byte 0"):
        batcher(run, tmp_path / "states")
    second.unlink()
    with pytest.raises(RunError, match=r"the journal after sessions-00000001\.plmu is missing"):
        batcher(run, tmp_path / "states")
    first.write_bytes(whole)
    assert restored(run, tmp_path / "states")[0]["a"][1] == 2


def test_what_a_refusal_advises_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = saved(tmp_path / "run")
    states = tmp_path / "states"
    server = batcher(run, states)
    do(server, (OPEN, "a"), (OPEN, "b"), (SAMPLES, "a", [0.1]))
    wanted = sessions(server)
    do(server, (SAMPLES, "b", [0.2]))
    do(server, (SAMPLES, "b", [0.3]))
    assert server.journal is not None
    server.journal.close()
    (journal,) = files(states)
    content = journal.read_bytes()
    parts = chunks_of(content)
    place = len(parts[0]) + len(parts[1])
    journal.write_bytes(content[: place + HEAD_SIZE] + b"\xff" + content[place + HEAD_SIZE + 1 :])
    message = refused(["serve", str(run), "--states", str(states)], capsys)
    assert f"{journal} is damaged at byte {place}: the checksum of chunk 1 is wrong" in message
    assert "What is before it can be read: 2 sessions, 1 samples in all. To go on from that, add --recover" in message
    assert f"To begin without states, move {states} away" in message
    assert restored(run, states, recover=True)[0] == wanted
    assert f"{journal} is left out: the checksum of chunk 1 is wrong at byte {place}" in capsys.readouterr().err
    assert journal.with_name(f"{journal.name}.damaged").read_bytes() != content
    assert restored(run, states)[0] == wanted  # from now on without the option
    states.rename(tmp_path / "away")
    assert restored(run, states)[0] == {}


def test_a_damaged_snapshot_is_replaced_by_the_one_before(tmp_path: Path) -> None:
    run, states, acknowledged, bits = example()
    copy = tmp_path / "states"
    shutil.copytree(states, copy)
    before, last = files(copy, SNAPSHOT)
    last.write_bytes(last.read_bytes()[:-1] + b"\x77")
    advice = f"{last.name} is damaged: its checksum is wrong. {before.name} and the journals after it can be read"
    with pytest.raises(RunError, match=advice):
        batcher(run, copy)
    after, memory_after = restored(run, copy, recover=True)
    assert after == acknowledged
    assert torch.equal(memory_after, bits)
    assert last.with_name(f"{last.name}.damaged").is_file()
    for path in files(copy, SNAPSHOT):
        path.write_bytes(b"nothing")
    with pytest.raises(RunError, match="The journals can be read from the first one on"):
        batcher(run, copy)
    shutil.copytree(copy, tmp_path / "all")
    assert restored(run, tmp_path / "all", recover=True)[0] == acknowledged
    files(copy)[0].unlink()
    with pytest.raises(RunError, match="There is no older snapshot: no session can be saved"):
        batcher(run, copy)
    assert restored(run, copy, recover=True)[0] == {}
    assert restored(run, copy)[0] == {}


def as_version_1(states: Path) -> None:
    """Make the states of the last snapshot and its journal those of version 1."""
    *others, snapshot = files(states, SNAPSHOT)
    *other_journals, journal = files(states)
    for path in (*others, *other_journals):
        path.unlink()
    with reading(snapshot, ("sessions",)) as file:
        tensors, description = file.tensors(list(file.shapes), "cpu"), file.description
    write(snapshot, tensors, {name: description[name] for name in ("kind", "fingerprint", "width", "names", "rows")})
    snapshot.chmod(0o644)
    records = [chunk[HEAD.size + CHECK + DIGEST :] for chunk in chunks_of(journal.read_bytes())[1:]]
    journal.write_bytes(b"".join(struct.pack("<II", len(part), zlib.crc32(part)) + part for part in records))


def test_states_of_the_version_before_go_on(tmp_path: Path) -> None:
    run, states, acknowledged, bits = example()
    copy = tmp_path / "states"
    shutil.copytree(states, copy)
    as_version_1(copy)
    (journal,) = files(copy)
    content = journal.read_bytes()
    journal.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    with pytest.raises(RunError, match=f"{journal.name} is damaged at byte"):
        batcher(run, copy)
    journal.write_bytes(content + b"\x30\0\0\0\0")  # with a chunk that was cut short
    after, memory_after = restored(run, copy)
    assert after == acknowledged
    assert torch.equal(memory_after, bits)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (*files(copy), *files(copy, SNAPSHOT)))
    after, memory_after = restored(run, copy)  # now of this version
    assert after == acknowledged
    assert torch.equal(memory_after, bits)


def test_states_are_for_the_owner_alone(tmp_path: Path) -> None:
    server = batcher(saved(tmp_path / "run"), tmp_path / "some" / "states")
    some_work(server)
    states = tmp_path / "some" / "states"
    assert states.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in (*files(states), *files(states, SNAPSHOT))}
    assert len(modes) == 4
    assert set(modes.values()) == {0o600}
