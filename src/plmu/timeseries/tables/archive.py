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
    labelled, begun, several = True, False, False
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line or line[0] in "#%":
            continue
        if not begun:
            word, *rest = line.lower().split()
            if word == "@classlabel":
                labelled = bool(rest) and rest[0] == "true"
            if word == "@timestamps" and rest and rest[0] == "true":
                raise DataError(f"{path}, line {number}: series with time stamps are not read: write them as a table")
            several = several or (word == "@attribute" and "relational" in rest)
            begun = word == "@data"
            continue
        if several:
            raise DataError(f"{path} has several channels: give the archive's .ts file")
        if path.suffix.lower() == ".arff":
            values, _, label = line.rpartition(",")
            yield np.array([_numbers(values, path, number)]).T, label.strip(" '\"")
            continue
        channels = line.split(":")
        own = channels.pop().strip() if labelled else None
        found = [_numbers(one, path, number) for one in channels]
        steps = max(map(len, found), default=0)
        padded = [one + [np.nan] * (steps - len(one)) for one in found]
        yield np.array(padded, dtype=np.float64).reshape(len(found), steps).T, own
    if not begun:
        raise DataError(f"{path} has no line @data: it is not a file of the UCR archive")


def _numbers(text: str, path: Path, number: int) -> list[Any]:
    cells = [one.strip() for one in text.split(",")]
    try:
        return [np.nan if one in ("?", "", "NaN", "nan") else float(one) for one in cells]
    except ValueError:
        wrong = next(place for place, one in enumerate(cells) if not _is_number(one))
        raise DataError(f"{path}, line {number}, value {wrong + 1}: {cells[wrong][:40]!r} is not a number") from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell in ("?", "")
    return True
