"""Replacing a file in one step: a full disk, an error or a killed process leaves the old one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LONGEST = 200  # bytes of a name: a temporary name adds to it, and may have 255


@contextmanager
def replacing(path: str | os.PathLike[str], mode: int | None = None) -> Iterator[Path]:
    """A temporary file beside `path` to write to, which takes its name at the end; on an error the old file stays.

    A symbolic link is followed. Temporary files of writes to the same `path` whose process was killed are removed.
    File and folder are flushed to the disk: after a power failure `path` is the old file or the new one.

    Args:
        path: the file.
        mode: its permissions; None for those of the old file, or of any new one.
    """
    target = Path(os.path.realpath(path))
    reason = None
    if target.is_dir():
        reason = "it is a folder"
    elif not target.parent.is_dir():
        reason = f"there is no folder {target.parent}"
    elif target.exists() and not target.is_file():
        reason = "it is not a regular file"
    if reason is not None:
        raise FileNotFoundError(f"cannot write {path}: {reason}")
    name = target.name
    if len(os.fsencode(name)) > _LONGEST:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    _clear_abandoned(target.parent, name)
    # current_thread() rather than get_ident(): it makes the thread known to threading.enumerate().
    temporary = target.parent / f".{name}.{os.getpid()}.{threading.current_thread().ident}.tmp"
    try:
        temporary.touch(0o666 if mode is None else mode)
        if mode is None:  # a new file has the mode that the umask gave the temporary one
            mode = stat.S_IMODE((target if target.exists() else temporary).stat().st_mode)
        with _locked(temporary):
            yield temporary
            with open(temporary, "rb+") as written:
                os.fsync(written.fileno())
            os.chmod(temporary, mode)
            with opened_folder(target.parent) as folder:
                os.replace(temporary, target)
                flush_folder(folder)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def opened_folder(folder: str | os.PathLike[str]) -> Iterator[int | None]:
    """The descriptor of a folder; None on Windows, where folders cannot be opened."""
    if os.name == "nt":
        yield None
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def flush_folder(folder: int | None) -> None:
    """Flush the names of a folder's files to the disk, where the system can. `folder` is of `opened_folder`."""
    if folder is None:
        return
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot flush a folder
            raise


def _clear_abandoned(folder: Path, name: str) -> None:
    """Remove temporary files of earlier writes whose process is gone."""
    if fcntl is None:
        return
    pattern = re.compile(rf"\.{re.escape(name)}\.(\d+)\.(\d+)\.tmp")
    for entry in os.listdir(folder):
        match = pattern.fullmatch(entry)
        if match and not _runs(int(match[1]), int(match[2])) and not _is_locked(folder / entry):
            (folder / entry).unlink(missing_ok=True)


def _runs(process: int, thread: int) -> bool:
    """Whether the writer of a temporary file still runs."""
    if process == os.getpid():  # by its threads, since an earlier process may have had the same number
        return thread in {running.ident for running in threading.enumerate()}
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # it belongs to another user
        return True
    return True


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold a lock on the file: process numbers do not show writers on other machines that share the folder."""
    if fcntl is None:
        yield
        return
    with open(file, "rb") as opened:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _is_locked(file: Path) -> bool:
    """Whether a writer, perhaps on another machine, holds a lock on the file."""
    try:
        with open(file, "rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
