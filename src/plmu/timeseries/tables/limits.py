"""How large a table may become in memory. Files state sizes that they need not hold, so these are checked first."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from plmu.errors import DataError

VARIABLE = "PLMU_TABLE_GIB"
_FREE, _RATIO = 2**30, 50  # bytes that any file may become, and bytes for each byte of the file
_COLUMN, CELL = 1000, 8  # bytes that a column and a cell take


def largest(path: Path) -> int:
    """The number of bytes that the table of a file may take in memory.

    Raises:
        DataError: the environment variable is no number.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return max(_FREE, _RATIO * path.stat().st_size)
    try:
        limit = float(text) * 2**30
        if not 0 < limit < 2**63:
            raise ValueError
    except ValueError:
        raise DataError(f"{VARIABLE} must be a number of GiB above 0, got {text[:40]!r}") from None
    return int(limit)


def check(path: Path, sizes: Iterable[tuple[int, int]]) -> None:
    """Raise DataError if columns take more memory than a file may.

    Args:
        path: the file.
        sizes: the numbers of rows and of columns, of each array or of the table.
    """
    sizes = list(sizes)
    check_bytes(path, sum(columns * (_COLUMN + CELL * rows) for rows, columns in sizes), sizes)


def check_bytes(path: Path, count: int, sizes: Iterable[tuple[int, int]] = ()) -> None:
    """Raise DataError if `count` bytes are more than a file may take; `sizes` are rows and columns for the message."""
    limit = largest(path)
    if count > limit:
        of = "".join(f", of {rows:,} rows and {columns:,} columns," for rows, columns in list(sizes)[:1])
        raise DataError(
            f"{path} has {path.stat().st_size:,} bytes, and the table in it{of} would take {count / 2**30:,.1f} GiB of"
            f" memory or more: {limit / 2**30:,.1f} GiB are read at most. If it is right, set the environment variable"
            f" {VARIABLE}={count // 2**30 + 1}"
        )
