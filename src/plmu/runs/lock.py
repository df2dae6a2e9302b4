"""The lock of a folder: one program writes to it at a time, and a second one is told which."""

from __future__ import annotations

import errno
import json
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from plmu.errors import RunError
from plmu.runs.folder import read_json, write_text

UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # by the file system


@contextmanager
def locked(path: Path, wait: bool = False) -> Iterator[None]:
    """Hold the lock of this file, which is made if need be.

    The lock is the operating system's: it ends with the process, however that ends. The file stays. A file system
    without locks gives a warning.

    Args:
        path: the lock file. While it is locked, `PATH.holder` beside it names the process.
        wait: whether to wait for another holder.

    Raises:
        RunError: another process holds it, which the message names.
    """
    lock = FileLock(path, timeout=-1 if wait else 0, fallback_to_soft=False)
    holder = path.with_name(f"{path.name}.holder")
    try:
        lock.acquire()
    except Timeout:
        raise RunError(
            f"{path.parent} is in use by {_described(holder)}: wait until it has finished, stop it, or choose another"
            " --name"
        ) from None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        warnings.warn(
            f"{path} cannot be locked here ({error.strerror}): start no second run in {path.parent}", stacklevel=3
        )
    try:
        write_text(holder, json.dumps({"process": os.getpid(), "host": socket.gethostname()}))
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _described(holder: Path) -> str:
    """The holder in words; it may not have written its name yet."""
    try:
        content = read_json(holder)
        return f"process {int(content['process'])} on {content['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
