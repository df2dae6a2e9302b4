"""Reading files of the UCR and UEA archives: .ts of sktime and aeon, and .arff of Weka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plmu.data.files import unreadable
from plmu.errors import DataError
from plmu.timeseries.tables.cells import is_missing

SUFFIXES = (".ts", ".arff")


def read(path: Path) -> Iterator[tuple[NDArray[np.float64], str | None]]:
    """Each series (time, channels), NaN where a value is missing, and its label.

    Args:
        path: a .ts or .arff file.

    Raises:
        DataError: names the line that cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").removeprefix("\ufeff").splitlines()
    except OSError as error:
        raise unreadable(error, path) from None
    has_labels, in_data, relational = True, False, False
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line or line[0] in "#%":
            continue
        if not in_data:
            keyword, *rest = line.lower().split()
            if keyword == "@classlabel":
                has_labels = bool(rest) and rest[0] == "true"
            if keyword == "@timestamps" and rest and rest[0] == "true":
                raise DataError(f"{path}, line {number}: series with time stamps are not read: write them as a table")
            relational = relational or (keyword == "@attribute" and "relational" in rest)
            in_data = keyword == "@data"
        elif relational:
            raise DataError(f"{path} has several channels: give the archive's .ts file")
        elif path.suffix.lower() == ".arff":
            values, _, label = line.rpartition(",")
            yield np.array([_numbers(values, path, number)]).T, label.strip(" '\"")
        else:
            fields = line.split(":")
            label_field = fields.pop().strip() if has_labels else None
            channels = [_numbers(field, path, number) for field in fields]
            steps = max(map(len, channels), default=0)
            padded = [channel + [np.nan] * (steps - len(channel)) for channel in channels]
            yield np.array(padded, dtype=np.float64).reshape(len(channels), steps).T, label_field
    if not in_data:
        raise DataError(f"{path} has no line @data: it is not a file of the UCR archive")


def _numbers(text: str, path: Path, line: int) -> list[float]:
    """Numbers with commas between them, NaN for missing ones."""
    numbers = []
    for column, cell in enumerate(map(str.strip, text.split(",")), 1):
        try:
            numbers.append(np.nan if is_missing(cell) else float(cell))
        except ValueError:
            raise DataError(f"{path}, line {line}, value {column}: {cell[:40]!r} is not a number") from None
    return numbers
