"""One run a folder: a second one is refused and told whose it is; a killed one leaves neither lock nor files."""

import errno
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from program import raising

from plmu.errors import RunError
from plmu.runs.folder import adding_path, clear, write_figure, write_json, write_text
from plmu.runs.lock import locked
from plmu.runs.runner import _Log
from plmu.training.checkpoints import Checkpoints


def holder_file(path):
    return path.with_name(f"{path.name}.holder")


HOLD = """
import sys, time
from pathlib import Path
from plmu.runs.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_holder_is_refused_and_told_who_the_first_is(tmp_path):
    path = tmp_path / ".lock"
    with locked(path):
        with pytest.raises(RunError) as raised, locked(path):
            pytest.fail("held twice")
        said = f"{tmp_path} is in use by process {os.getpid()} on {socket.gethostname()}: wait until it has finished"
        assert str(raised.value).startswith(said)
    with locked(path):  # free again
        pass
    assert path.is_file()
    assert not holder_file(path).exists()


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    path = tmp_path / ".lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RunError, match=f"in use by process {process.pid} on "), locked(path):
            pytest.fail("held twice")
        process.send_signal(signal.SIGKILL)
    assert str(process.pid) in holder_file(path).read_text()  # what the killed one wrote
    with locked(path):
        assert str(os.getpid()) in holder_file(path).read_text()


def test_one_may_wait_for_it(tmp_path):
    path = tmp_path / ".lock"
    shortly = [sys.executable, "-c", HOLD.replace("60", "0.5"), str(path)]
    with subprocess.Popen(shortly, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with locked(path, wait=True):
            assert str(os.getpid()) in holder_file(path).read_text()
    assert process.returncode == 0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"process": "x", "host": "h"}', '{"process": 3}'])
def test_a_holder_that_says_nothing_is_another_process(content, tmp_path):
    path = tmp_path / ".lock"
    with locked(path):
        holder_file(path).write_text(content)
        with pytest.raises(RunError, match="in use by another process"), locked(path):
            pytest.fail("held twice")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_files_cannot_be_locked_it_is_said(number, tmp_path, monkeypatch):
    def unsupported(file, operation):
        raise OSError(number, "not here")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    said = r"cannot be locked here \(not here\): start no second run in"
    with pytest.warns(UserWarning, match=said) as warned, locked(tmp_path / ".lock"):
        assert str(os.getpid()) in holder_file(tmp_path / ".lock").read_text()
    assert warned[0].filename == __file__, "where it is held"
    number = errno.EIO
    with pytest.raises(OSError, match="not here"), locked(tmp_path / ".lock"):
        pytest.fail("held")


@contextmanager
def _no_space():
    """No file of this process may grow, as on a full disk; the error names no file."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


def _write_lock(path):
    with locked(path.with_name(".lock")):
        pytest.fail("held")


@pytest.mark.parametrize(
    ("name", "write"),
    [
        (".lock.holder", _write_lock),
        ("config.json", lambda path: write_json(path, {"a": 1})),
        ("metrics.jsonl", lambda path: _Log(path.parent, False).add({"epoch": 1})),
        ("metrics.jsonl", lambda path: _Log(path.parent, False).finish([{"epoch": 1}])),
    ],
)
def test_a_full_disk_is_told_with_the_file(name, write, tmp_path):
    with _no_space(), pytest.raises(OSError, match="File too large") as raised:
        write(tmp_path / name)
    assert raised.value.filename == str(tmp_path / name)


def test_other_errors_stay_as_they_are(tmp_path):
    for error in (OSError("in words"), OSError(errno.ENOSPC, "full", "another")):
        with pytest.raises(OSError) as raised, adding_path(tmp_path):  # noqa: PT011
            raise error
        assert raised.value is error


def test_only_temporary_files_are_cleared(tmp_path):
    for name in (".step-00000001.ckpt.4711.1.tmp", ".a.tmp", "mine.tmp", ".lock", "config.json"):
        (tmp_path / name).write_text("")
    clear(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "config.json", "mine.tmp"]


def test_what_somebody_else_has_just_removed_is_no_error(tmp_path, monkeypatch):
    unlink = Path.unlink

    def late(path, missing_ok=False):
        os.unlink(path)
        unlink(path, missing_ok=missing_ok)

    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, {})
    (tmp_path / ".a.tmp").write_text("")
    monkeypatch.setattr(Path, "unlink", late)
    clear(tmp_path)
    monkeypatch.setattr("plmu.training.checkpoints.replacing", lambda path: nullcontext(path))
    checkpoints.save(3, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002.ckpt", "step-00000003.ckpt"]


def test_text_and_figures_are_replaced_in_one_step(tmp_path: Path) -> None:
    for name, write in (
        ("symbols.json", lambda path: write_text(path, "abc\ud800")),
        ("plot.png", lambda path: write_figure(path, SimpleNamespace(savefig=raising(ValueError("no"))))),
    ):
        (tmp_path / name).write_text("old")
        with pytest.raises(ValueError, match=r"surrogates|no"):
            write(tmp_path / name)
        assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "old")]
        (tmp_path / name).unlink()


def test_temporary_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    for name in (".model.plmu.12.34.tmp", ".tmpAb3dE9", "model.plmu", ".lock", ".tmp"):
        (tmp_path / name).touch()
    clear(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"model.plmu", ".lock", ".tmp"}
