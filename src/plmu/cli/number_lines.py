"""Samples from lines of text: comma-separated numbers, with or without a header, or JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from typing import Any

from plmu.timeseries.tables.cells import FLAGS, is_missing
from plmu.timeseries.tables.layout import unique_names
from plmu.timeseries.tables.table import SEPARATOR

DELIMITERS = (",", ";", "\t", " ")


class NumberLines:
    """Reads samples of a fixed size, one per line.

    A line is numbers with commas, semicolons, tabs or spaces between them; or JSON: a number, a list, or an object with
    one number for each name. Before the first sample there may be one line of names. null, and every field that marks a
    missing number in a file (`tables.cells.MISSING`), is a missing number. Where fields are separated by semicolons or
    tabs, numbers may have decimal commas.

    Args:
        features: number of numbers in a sample.
        columns: their names in the user's file, if it has any: a header or an object may then have others beside them.
        time: the name of the optional column of times; without a header the time may be the first field.
        series: the name of the optional column of names of series; it needs a header, objects, or `header`.
        header: all columns of the user's file, in its order: lines with as many fields are lines of it.
        meaning: what a sample holds, in words, for error messages.
    """

    def __init__(
        self,
        features: int,
        columns: Sequence[str] = (),
        time: str = "",
        series: str = "",
        header: Sequence[str] = (),
        meaning: str = "",
    ) -> None:
        self.features, self.columns, self.time, self.series = features, list(columns), time, series
        self.file = list(header) if set(columns) <= set(header) and len(header) != features else []
        self.meaning = f": {meaning}" if meaning else ""
        self.names: list[str] | None = None  # of the header, or of the first object
        self.started = False  # whether a line after which no header may come was read
        self.sample_time: str | None = None  # of the last sample, if its line had one
        self.sample_series: str | None = None  # of the last sample, if its line had one

    def read(self, line: str) -> list[float] | None:
        """The sample of a line, NaN where a number is missing; None for the header.

        Raises:
            ValueError: says what is wrong with the line.
        """
        text = line.strip()
        self.sample_time = self.sample_series = None
        sample = self._json(text) if text[:1] in ("[", "{") else self._fields(line.strip("\r\n"))
        if sample is None:
            return None
        if len(sample) != self.features:
            expected = f"expected {self.features} number{'s' * (self.features != 1)}"
            expected += f", or the {len(self.file)} fields of a line of the file" if self.file else ""
            raise ValueError(f"{expected}, got {len(sample)}{self.meaning}")
        self.started = True
        return sample

    def _fields(self, line: str) -> list[float] | None:
        """The sample of a line of separated fields; None for a header, whose names are remembered."""
        first = (";", "\t") if self.columns else ()
        delimiter = next((mark for mark in (*first, *DELIMITERS) if mark in line.strip(" ")), ",")
        try:
            rows = csv.reader([line], delimiter=delimiter, strict=True)
            fields = line.split() if delimiter == " " else next(rows, [])
        except csv.Error as error:
            raise ValueError(f"its quotes are wrong: {error}") from None
        words = [field.strip() for field in fields]
        if self.columns and delimiter in (";", "\t"):  # decimal commas
            words = [word.replace(",", ".") if _is_number(word.replace(",", ".", 1)) else word for word in words]
        if not self.started and self._is_header(words):
            words = list(unique_names(words)) if self.columns else words
            self._check_header(words)
            self.names, self.started = words, True
            return None
        places: Sequence[int] = range(len(words))
        names = self.names or (self.file if len(words) == len(self.file) else None)
        if self.columns and names is not None:
            if len(words) != len(names):
                raise ValueError(f"expected {len(names)} fields as in the header, got {len(words)}")
            self._remember(dict(zip(names[::-1], words[::-1], strict=True)))
            places = [names.index(name) for name in self.columns]
        elif self.time and len(words) == self.features + 1:
            self.sample_time, places = words[0], places[1:]
        return [self._number(words[place], place + 1) for place in places]

    def take_header(self, names: list[str]) -> None:
        """Read the lines as if these names had come before; the same names may come again as the first line."""
        if self.columns:
            self._check_header(names)
        self.names = names

    def _is_header(self, words: list[str]) -> bool:
        """Whether the first line names columns: it has the model's, or no field that may be a number."""
        if self.columns and set(self.columns) <= set(unique_names(words)):
            return True
        if self.names is not None and not self.columns:
            return words == self.names
        return not any(_is_number(word) or (self.columns and word.lower() in FLAGS) for word in words)

    def _number(self, word: str, place: int) -> float:
        """The number in a field, NaN for a missing one; `place` counts from 1, for the error."""
        if is_missing(word):
            return float("nan")
        try:
            return float(FLAGS.get(word.lower(), word) if self.columns else word)
        except ValueError:
            raise ValueError(f"{word[:60]!r}, in column {place}, is not a number") from None

    def _check_header(self, words: list[str]) -> None:
        """Raise ValueError unless a header has the model's columns, or, where these have no names, as many columns."""
        if self.columns:
            absent = [name for name in self.columns if name not in words]
            if absent:
                few = ", ".join(absent[:8]) + ("…" if len(absent) > 8 else "")
                reads = self.meaning or f": the model reads {', '.join(self.columns)[:200]}"
                raise ValueError(f"the header has no {few[:200]}{reads}")
        elif len(words) != self.features:
            raise ValueError(f"the header names {len(words)} columns, the model takes {self.features}")

    def _remember(self, fields: dict[str, Any]) -> None:
        """Remember the time and the series of a sample, if its fields have them."""
        if self.time in fields:
            self.sample_time = str(fields[self.time])
        elif " " in self.time:  # its parts are in several fields
            from plmu.timeseries.tables.dates import split_time

            self.sample_time = split_time(self.time, {name: str(value) for name, value in fields.items()})
        parts = [self.series] if self.series in fields else self.series.split(SEPARATOR)
        if all(part in fields for part in parts):
            self.sample_series = SEPARATOR.join(str(fields[part]) for part in parts)

    def _json(self, text: str) -> list[float]:
        """The sample of a JSON list or object; remembers an object's time and series."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is not JSON: {error}") from None
        if isinstance(content, dict) and self.columns:
            absent = [name for name in self.columns if name not in content]
            if absent:
                raise ValueError(f"it has no {', '.join(absent[:8])[:200]}{self.meaning}")
            self._remember(content)
            content = [content[name] for name in self.columns]
        elif isinstance(content, dict):
            if self.names is None:
                self.names = list(content)
            if set(content) != set(self.names):
                raise ValueError(f"expected the names {', '.join(self.names)}; got {', '.join(content)[:200]}")
            content = [content[name] for name in self.names]
        return [_value(value, place) for place, value in enumerate(content, 1)]


def _is_number(word: str) -> bool:
    """Whether a field is a number or stands for a missing one."""
    try:
        float(word)
    except ValueError:
        return is_missing(word)
    return True


def _value(value: Any, place: int) -> float:
    """A number of JSON; null, and text that marks a missing number in files, is a missing one."""
    if value is None or (isinstance(value, str) and is_missing(value)):
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{str(value)[:60]!r}, in place {place}, is not a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"the number in place {place} is too large") from None
