"""Replacing a file: links, permissions and long names are kept, and what killed processes left is cleared."""

import errno
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import plmu
from plmu.modelfiles import atomic
from plmu.modelfiles.atomic import replacing

GONE = int(subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True).stdout)


def put(path: Path, text: str = "new") -> None:
    with replacing(path) as temporary:
        temporary.write_text(text)


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o660, 0o400])
def test_an_old_file_keeps_its_permissions(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(mode)
    put(path)
    assert path.stat().st_mode & 0o7777 == mode
    assert path.read_text() == "new"


def test_a_mode_is_that_of_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for old in (False, True):
        if old:
            path.chmod(0o644)
        with replacing(path, 0o600) as temporary:
            assert temporary.stat().st_mode & 0o777 == 0o600
        assert path.stat().st_mode & 0o777 == 0o600


def test_the_folder_is_flushed_after_the_new_name(tmp_path: Path, monkeypatch) -> None:
    path, folder = tmp_path / "file", tmp_path.stat().st_ino
    names: list[list[str]] = []
    fault = 0

    def fsync(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == folder:
            names.append(sorted(os.listdir(tmp_path)))
            if fault:
                raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(os, "fsync", fsync)
    put(path)
    assert names == [["file"]]
    fault = errno.EINVAL  # of a file system that cannot flush folders
    put(path, "newer")
    assert path.read_text() == "newer"
    fault = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        put(path)


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link, second = tmp_path / "there" / "file", tmp_path / "link", tmp_path / "second"
    link.symlink_to(Path("there") / "file")
    second.symlink_to(link)
    for text in ("new", "newer"):  # at first the target is not there
        put(second, text)
        assert link.is_symlink()
        assert second.is_symlink()
        assert target.read_text() == text
    assert sorted(os.listdir(tmp_path)) == ["link", "second", "there"]
    assert os.listdir(target.parent) == ["file"]


@pytest.mark.parametrize("name", ["a" * 240, "a" * 255, "é" * 127, "a" * 200, "a" * 201])
def test_long_names(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    put(path, "old")
    with pytest.raises(FileNotFoundError), replacing(path) as temporary:
        temporary.unlink()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == [name]


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"cannot write .*pipe: it is not a regular file"):
        put(tmp_path / "pipe")
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_killed_write_is_cleared_by_the_next(tmp_path: Path) -> None:
    program = """
import os, signal, sys
import plmu
from plmu.modelfiles import atomic
from plmu.modelfiles.atomic import replacing
writing = [replacing(path) for path in sys.argv[1:]]
for one in writing:
    one.__enter__().write_text("half")
os.kill(os.getpid(), signal.SIGKILL)
"""
    names = ["model.plmu", "a[1]*?.plmu", "a" * 240]
    for name in names:
        (tmp_path / name).write_text("old")
    paths = [str(tmp_path / name) for name in names]
    assert subprocess.run([sys.executable, "-c", program, *paths], timeout=120).returncode == -9
    for left, name in zip((6, 5, 4), names, strict=True):
        assert len(os.listdir(tmp_path)) == left
        assert (tmp_path / name).read_text() == "old"
        put(tmp_path / name)
        assert (tmp_path / name).read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_what_may_belong_to_others_is_left(tmp_path: Path) -> None:
    alive = os.getppid()
    kept = [
        f".model.{alive}.1.tmp",  # of a process that runs
        f".other.{GONE}.1.tmp",  # of other files
        f".model.plmu.{GONE}.1.tmp",
        f"model.{GONE}.1.tmp",
        f".model.{GONE}.tmp",
        f".model.{GONE}.1.tmp.gz",
        f".model.x{GONE}.1.tmp",
        f".model.{1 << 70}.1.tmp",  # no number of a process
    ]
    cleared = [f".model.{GONE}.1.tmp", f".model.{os.getpid()}.1.tmp"]  # the second of an earlier process
    for name in (*kept, *cleared):
        (tmp_path / name).touch()
    put(tmp_path / "model")
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "model"])


def test_a_locked_file_is_left(tmp_path: Path) -> None:
    """As that of a process on another machine is, whose number says nothing here."""
    import fcntl

    other = tmp_path / f".model.{GONE}.1.tmp"
    with open(other, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        put(tmp_path / "model")
        assert other.exists()
    put(tmp_path / "model")
    assert not other.exists()


def test_a_file_is_locked_while_it_is_written(tmp_path: Path) -> None:
    import fcntl

    with replacing(tmp_path / "model") as temporary:
        temporary.write_text("new")
        with open(temporary) as opened, pytest.raises(BlockingIOError):
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_threads_write_one_file_at_once(tmp_path: Path) -> None:
    path, failures = tmp_path / "model", []
    together = threading.Barrier(4)

    def work(text: str) -> None:
        try:
            for _ in range(20):
                with replacing(path) as temporary:
                    temporary.write_text(text)
                    together.wait(timeout=60)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(str(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert path.read_text() in "0123"
    assert os.listdir(tmp_path) == ["model"]


def test_a_model_is_written_into_the_locked_file_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed writer leaves is one file with the number of its process, which the next writer removes."""
    states = []

    def flush(_: int) -> None:
        (name,) = os.listdir(path.parent)
        named = re.fullmatch(r"\.model\.plmu\.\d+\.\d+\.tmp", name) is not None
        states.append((named, atomic._is_locked(path.parent / name)))

    monkeypatch.setattr(atomic.os, "fsync", flush)
    monkeypatch.setattr(atomic, "flush_folder", lambda _: None)
    plmu.save(plmu.ParallelLMU(1, 2, order=2, theta=3.0), path)
    assert states == [(True, True)]
