"""A server whose disk is full, whose files are gone, or whose code fails: every message is answered, nothing that was
acknowledged is lost, and what cannot be healed ends the process."""

import asyncio
import errno
import gc
import json
import os
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_serve import MINE, ask, saved, serving, socket
from test_serve_states import batcher, do

from plmu.errors import RunError
from plmu.serve import Options, batching, serve
from plmu.serve.batching import Batcher
from plmu.serve.chunks import CLOSE, OPEN, RESET, SAMPLES
from plmu.serve.limits import BadMessage


class Disk:
    """Lets writing or flushing fail, of files in one folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = str(folder)
        self.full = self.broken = self.descriptors_gone = False
        write, fsync, opening = os.write, os.fsync, os.open

        def writing(file: int, content: Any) -> int:
            if self.full and self.has(file):
                write(file, bytes(content)[:7])  # a part still fits
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(file, content)

        def flushing(file: int) -> None:
            if self.broken and self.has(file):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            fsync(file)

        def opened(path: Any, flags: int, *rest: Any, **more: Any) -> int:
            if self.descriptors_gone and str(path).startswith(self.folder):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
            return opening(path, flags, *rest, **more)

        monkeypatch.setattr(os, "write", writing)
        monkeypatch.setattr(os, "fsync", flushing)
        monkeypatch.setattr(os, "open", opened)

    def has(self, file: int) -> bool:
        return os.readlink(f"/proc/self/fd/{file}").startswith(self.folder)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path / "states", monkeypatch)


def test_a_full_disk_changes_nothing_and_is_healed(tmp_path: Path, disk: Disk) -> None:
    """Sessions that are new, stepped, reset, ended, or replaced in their row are as before, to the bit."""
    run = saved(tmp_path / "run")
    server, other = batcher(run, tmp_path / "states"), batcher(run, tmp_path / "other")
    for each in (server, other):
        do(each, *((OPEN, name) for name in "abcd"), *((SAMPLES, name, [0.1, 0.7]) for name in "abc"))
    before = {name: (session, session.steps, session.last) for name, session in server.by_name.items()}
    tensors = server.sessions.tensors([0, 1, 2, 3])
    samples = server.metrics.samples
    disk.full = True
    work = [(SAMPLES, "a", [0.2, 0.3]), (RESET, "b"), (CLOSE, "c"), (OPEN, "e"), (SAMPLES, "e", [0.4]), (CLOSE, "a")]
    for _ in range(2):
        for request in do(server, *work):  # type: ignore[arg-type]
            assert request.error is not None
            assert request.error.status == 507
            assert "No space left on device. This message was not taken: send it again later" in str(request.error)
            assert request.outputs == []
        assert {name: (session, session.steps, session.last) for name, session in server.by_name.items()} == before
        after = server.sessions.tensors([0, 1, 2, 3])
        assert all(torch.equal(after[name], tensors[name]) for name in tensors)
    assert server.metrics.samples == samples
    disk.full = False
    results = [[request.outputs for request in do(each, *work)] for each in (server, other)]  # type: ignore[arg-type]
    assert results[0] == results[1]
    assert (server.trouble, server.failed) == (None, None)
    for each in (server, other):
        assert each.journal is not None
        each.journal.close()
    again = batcher(run, tmp_path / "states")
    assert {name: session.steps for name, session in again.by_name.items()} == {"b": 0, "d": 0, "e": 1}


def test_a_long_message_keeps_what_was_stored(tmp_path: Path, disk: Disk, monkeypatch) -> None:
    monkeypatch.setattr(batching, "BUDGET", -1.0)  # 16 samples of a message in a batch
    with serving(saved(tmp_path / "run"), states=tmp_path / "states") as client, socket(client) as connection:
        connection.receive_json()
        journal = client.server.batcher.journal  # type: ignore[attr-defined]
        append = journal.append

        def once(records: bytes) -> int:
            size: int = append(records)
            disk.full = True
            return size

        monkeypatch.setattr(journal, "append", once)
        answer = ask(connection, {"samples": [0.5] * 40})
        assert (answer["status"], answer["step"], len(answer["outputs"])) == (507, 16, 16)
        disk.full = False


def test_every_message_is_answered_while_the_disk_is_full(tmp_path: Path, disk: Disk, caplog) -> None:
    run, states = saved(tmp_path / "run"), tmp_path / "states"
    with serving(run, states=states) as client, serving(run) as other, socket(client, "?session=a") as connection:
        connection.receive_json()
        wanted = [other.post("/step", json={"session": "a", "sample": 0.5}).json()["output"] for _ in range(3)]
        assert ask(connection, {"sample": 0.5})["output"] == wanted[0]
        disk.full = True
        for message in ({"sample": 0.5}, {"reset": True}, {"close": True}):
            answer = ask(connection, {**message, "id": 7})
            assert (answer["id"], answer["status"], answer["step"]) == (7, 507, 1)
        assert client.post("/step", json={"session": "new", "sample": 0.5}).status_code == 507
        assert client.delete("/sessions/a").status_code == 507
        health = client.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "the states cannot be stored: No space left on device"
        disk.full = False
        assert client.get("/health").json() == {"status": "ok", "sessions": 1}
        assert ask(connection, {"sample": 0.5}) == {"step": 2, "output": wanted[1]}
        disk.full = True
    messages = [record.getMessage() for record in caplog.records]
    assert sum("Until they can be, messages are answered with an error" in message for message in messages) == 1
    assert any("no last snapshot could be written, the journal has all" in message for message in messages)
    disk.full = False
    with serving(run, states=states) as client:
        assert client.post("/step", json={"session": "a", "sample": 0.5}).json()["output"] == wanted[2]


def test_without_descriptors_the_present_journal_goes_on(tmp_path: Path, disk: Disk, caplog) -> None:
    run, states = saved(tmp_path / "run"), tmp_path / "states"
    with serving(run, states=states) as client:
        journal = client.server.batcher.journal  # type: ignore[attr-defined]
        disk.descriptors_gone, journal.due = True, 0.0
        for step in (1, 2):
            answer = client.post("/step", json={"session": "a", "sample": 0.5}).json()
            assert answer["step"] == step
        assert client.get("/health").status_code == 200
        assert (journal.number, journal.due > 0) == (1, True)
        disk.descriptors_gone, journal.due = False, 0.0
        assert client.post("/step", json={"session": "a", "sample": 0.5}).json()["step"] == 3
        assert journal.number == 2
    assert "no new journal could be begun, the present one goes on" in caplog.text


def test_a_snapshot_that_cannot_be_written_is_no_end(tmp_path: Path, monkeypatch, caplog) -> None:
    run, states = saved(tmp_path / "run"), tmp_path / "states"
    with serving(run, states=states) as client:

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr("plmu.serve.journal.write_snapshot", full)
            batcher_, journal = client.server.batcher, client.server.batcher.journal  # type: ignore[attr-defined]
            for step in (1, 2, 3):
                journal.due = 0.0
                assert client.post("/step", json={"session": "a", "sample": 0.5}).json()["step"] == step
                _until(lambda: batcher_._saving is not None and batcher_._saving.done())
        shutil.copytree(states, tmp_path / "left")
        assert client.get("/health").status_code == 200
    assert caplog.text.count("no snapshot could be written, the one before and the journals stay") == 3
    assert batcher(run, tmp_path / "left").by_name["a"].steps == 3


def _until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it did not happen")


@pytest.mark.parametrize("remove", ["folder", "journal"])
def test_states_that_are_removed_begin_again_with_all_sessions(tmp_path: Path, remove: str, disk: Disk) -> None:
    run, states = saved(tmp_path / "run"), tmp_path / "states"
    server = batcher(run, states)
    do(server, (OPEN, "a"), (OPEN, "b"), (SAMPLES, "a", [0.1]))
    if remove == "folder":
        shutil.rmtree(states)
    else:
        next(states.glob("journal-*")).unlink()
    disk.descriptors_gone = True
    assert [request.error.status for request in do(server, (SAMPLES, "a", [0.2])) if request.error] == [507]
    disk.descriptors_gone = False
    assert [request.error for request in do(server, (SAMPLES, "a", [0.2]))] == [None]
    with pytest.raises(RunError, match="in use by another server"):
        batcher(run, states)
    assert server.journal is not None
    server.journal.close()
    again = batcher(run, states)
    assert {name: session.steps for name, session in again.by_name.items()} == {"a": 2, "b": 0}


@pytest.mark.parametrize("place", ["carry_out", "step"])
def test_a_fault_answers_all_who_wait_and_ends_the_server(tmp_path: Path, monkeypatch, caplog, place: str) -> None:
    server = batcher(saved(tmp_path / "run"), tmp_path / "states")
    ended: list[bool] = []
    server.on_failure = lambda: ended.append(True)

    def fault(*_: Any) -> None:
        raise ZeroDivisionError("of the test")

    async def talk() -> list[Any]:
        await server.start()
        await server.open("a")
        monkeypatch.setattr(
            server.work if place == "carry_out" else server.metrics.step,
            *(("carry_out", fault) if place == "carry_out" else ("add", fault)),
        )
        waiting = asyncio.gather(*(server.open(name) for name in "abc"), return_exceptions=True)
        answers: list[Any] = await asyncio.wait_for(waiting, 20)
        answers.append(await server.check())
        await asyncio.wait_for(server.stop(), 20)
        return answers

    *answers, health = asyncio.run(talk())
    expected = "the server has failed: ZeroDivisionError: of the test"
    assert [(type(answer), str(answer), answer.status) for answer in answers] == [(BadMessage, expected, 503)] * 3
    assert (health, server.failed, bool(ended)) == (expected, expected, True)
    assert "Traceback" in caplog.text


def test_health_is_a_pass_through_a_batch(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(batching, "CHECK_SECONDS", 0.05)
    server = batcher(saved(tmp_path / "run"), tmp_path / "states")

    async def talk() -> list[str | None]:
        await server.start()
        healthy = await server.check()
        server._tasks[0].cancel()
        return [healthy, await server.check()]

    assert asyncio.run(talk()) == [None, "no batch was finished in 0.05 s"]


@pytest.fixture
def collected() -> Iterator[None]:
    """The garbage collector as it was before a server set it up."""
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def served(run: Path, options: Options, client: Callable[[str], None]) -> None:
    """Serve in this thread while `client` talks to the address in another."""
    faults: list[BaseException] = []

    def talk(address: str) -> None:
        try:
            client(address)
        except BaseException as error:
            faults.append(error)
            os.kill(os.getpid(), signal.SIGTERM)

    threads: list[threading.Thread] = []

    def ready(address: str) -> None:
        threads.append(threading.Thread(target=talk, args=(address,)))
        threads[0].start()

    try:
        serve(run, options, ready)
    finally:
        threads[0].join()
        assert not faults


def post(address: str, sample: float) -> int:
    content = json.dumps({"session": "a", "sample": sample}).encode()
    request = urllib.request.Request(f"{address}/step", content, MINE)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.usefixtures("collected")
def test_an_error_of_fsync_ends_the_process_and_is_not_acknowledged(tmp_path: Path, disk: Disk) -> None:
    run, states = saved(tmp_path / "run"), tmp_path / "states"

    def talk(address: str) -> None:
        assert post(address, 0.5) == 200
        disk.broken = True
        assert post(address, 0.5) == 503

    with pytest.raises(RunError, match="StorageLost: journal 1 was not flushed to the disk: Input/output error"):
        served(run, Options(port=0, states=states, fsync=True), talk)
    disk.broken = False
    assert batcher(run, states).by_name["a"].steps >= 1


@pytest.mark.usefixtures("collected")
def test_sigterm_is_obeyed_while_the_disk_is_full(tmp_path: Path, disk: Disk) -> None:
    run, states = saved(tmp_path / "run"), tmp_path / "states"

    def talk(address: str) -> None:
        assert post(address, 0.5) == 200
        disk.full = True
        assert post(address, 0.5) == 507
        os.kill(os.getpid(), signal.SIGTERM)

    before = time.monotonic()
    served(run, Options(port=0, states=states), talk)
    assert time.monotonic() - before < 20
    disk.full = False
    assert batcher(run, states).by_name["a"].steps == 1


def test_the_journal_is_flushed_once_a_second_or_at_once(tmp_path: Path, monkeypatch) -> None:
    run = saved(tmp_path / "run")
    server, each_time = batcher(run, tmp_path / "states"), batcher(run, tmp_path / "other", fsync=True)
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)

    def flushes(server: Batcher) -> list[bool]:
        assert server.journal is not None
        del flushed[:]
        do(server, (OPEN, "a"))
        unsynced = server.journal.unsynced
        return [server.journal.file in flushed, unsynced]

    assert (flushes(server), flushes(each_time)) == ([False, True], [True, False])


def test_the_name_of_a_new_journal_is_flushed_once(tmp_path: Path, monkeypatch) -> None:
    server = batcher(saved(tmp_path / "run"), tmp_path / "states", fsync=True)
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    journal = server.journal
    assert journal is not None
    for kind, expected in ((OPEN, [journal.file, journal._descriptor]), (RESET, [journal.file])):
        del flushed[:]
        do(server, (kind, "a"))
        assert flushed == expected
