"""A folder that one program writes to at a time, without what killed ones left behind."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from plmu.errors import RunError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # by the file system
BEYOND = 1 << 30  # the byte that Windows locks: the others stay readable


@contextmanager
def held(path: Path, wait: bool = False) -> Iterator[None]:
    """Hold the lock of this file, which is made if need be, or raise RunError that names its holder; or wait for it.

    The lock is the operating system's: it ends with the process, however that ends. The file stays.
    """
    with open(path, "a+", encoding="utf-8") as file:
        try:
            _lock(file, wait)
        except BlockingIOError:
            raise RunError(
                f"{path.parent} is in use by {_holder(path)}: wait until it has finished, stop it, or choose another"
                " --name"
            ) from None
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            warnings.warn(
                f"{path} cannot be locked here ({error.strerror}): start no second run in {path.parent}", stacklevel=3
            )
        with naming(path):
            file.truncate(0)
            os.write(file.fileno(), json.dumps({"process": os.getpid(), "host": socket.gethostname()}).encode())
        try:
            yield
        finally:
            file.truncate(0)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name this file in errors of writing to it: the system's, as that of a full disk, do not."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def clear(folder: Path) -> None:
    """Remove the temporary files of writers that were killed. The caller holds the folder's lock."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def _lock(file: IO[str], wait: bool) -> None:
    """Raises BlockingIOError if another process holds it."""
    if sys.platform == "win32":
        while True:  # Windows waits for ten seconds at most
            file.seek(BEYOND)
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
                return
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EDEADLK):
                    raise
                if not wait:
                    raise BlockingIOError(errno.EAGAIN, "locked") from None
    else:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _holder(path: Path) -> str:
    """Who holds the lock, in words; the file is empty for a moment when it has just been taken."""
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {int(holder['process'])} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
