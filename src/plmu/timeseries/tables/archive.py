"""Files of the UCR and UEA archives: .ts of sktime and aeon, and .arff of Weka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmu.data.files import unreadable
from plmu.errors import DataError

SUFFIXES = (".ts", ".arff")


def read(path: Path) -> Iterator[tuple[NDArray[np.float64], str | None]]:
    """Each series (time, channels), with NaN where a value is missing, and its label.

    Raises:
        DataError: names the line that cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").removeprefix("\ufeff").splitlines()
    except OSError as error:
        raise unreadable(error, path) from None
    labelled, in_data, several = True, False, False
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line or line[0] in "#%":
            continue
        if not in_data:
            word, *rest = line.lower().split()
            if word == "@classlabel":
                labelled = bool(rest) and rest[0] == "true"
            if word == "@timestamps" and rest and rest[0] == "true":
                raise DataError(f"{path}, line {number}: series with time stamps are not read: write them as a table")
            several = several or (word == "@attribute" and "relational" in rest)
            in_data = word == "@data"
            continue
        if several:
            raise DataError(f"{path} has several channels: give the archive's .ts file")
        if path.suffix.lower() == ".arff":
            values, _, name = line.rpartition(",")
            yield np.array([_numbers(values, path, number)]).T, name.strip(" '\"")
            continue
        channels = line.split(":")
        label = channels.pop().strip() if labelled else None
        rows = [_numbers(channel, path, number) for channel in channels]
        steps = max(map(len, rows), default=0)
        padded = [row + [np.nan] * (steps - len(row)) for row in rows]
        yield np.array(padded, dtype=np.float64).reshape(len(rows), steps).T, label
    if not in_data:
        raise DataError(f"{path} has no line @data: it is not a file of the UCR archive")


def _numbers(text: str, path: Path, number: int) -> list[Any]:
    cells = [cell.strip() for cell in text.split(",")]
    try:
        return [np.nan if cell in ("?", "", "NaN", "nan") else float(cell) for cell in cells]
    except ValueError:
        wrong = next(place for place, cell in enumerate(cells) if not _is_number(cell))
        raise DataError(f"{path}, line {number}, value {wrong + 1}: {cells[wrong][:40]!r} is not a number") from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell in ("?", "")
    return True
