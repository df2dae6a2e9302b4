"""Samples from lines of text: comma-separated numbers, with or without a header, or JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from typing import Any

ABSENT = frozenset(("", "nan", "na", "n/a", "null", "none"))  # fields that stand for a missing number
DELIMITERS = (",", ";", "\t", " ")


class NumberLines:
    """Reads samples of so many numbers, one a line.

    A line is numbers with commas, semicolons, tabs or spaces between them; or JSON: a number, a list, or an object with
    one number for each name. Before the first sample there may be one line of names. An empty field, NaN or null is a
    missing number. Where fields are separated by semicolons or tabs, numbers may have decimal commas.

    Args:
        features: how many numbers a sample has.
        columns: their names in the user's file, if known: a header or an object may then have others beside them.
        time: the name of the column of times, which may come along, before the numbers if there is no header.
        series: the name of the column that names series, which may come along where columns have names.
        meaning: what a sample holds, in words, for lines of other numbers or names.
    """

    def __init__(
        self, features: int, columns: Sequence[str] = (), time: str = "", series: str = "", meaning: str = ""
    ) -> None:
        self.features, self.columns, self.time, self.series = features, list(columns), time, series
        self.meaning = f": {meaning}" if meaning else ""
        self.names: list[str] | None = None  # of the header, or of the first object
        self.begun = False
        self.when: str | None = None  # the time of the last sample, if it came along
        self.of: str | None = None  # the series of the last sample, if its name came along

    def read(self, line: str) -> list[float] | None:
        """The sample of a line, NaN where a number is missing; None for the header. ValueError: what is wrong."""
        text = line.strip()
        found = self._json(text) if text[:1] in ("[", "{") else self._fields(line.strip("\r\n"))
        if found is None:
            return None
        if len(found) != self.features:
            expected = f"expected {self.features} number{'s' * (self.features != 1)}, got {len(found)}"
            raise ValueError(expected + self.meaning)
        self.begun = True
        return found

    def _fields(self, line: str) -> list[float] | None:
        first = (";", "\t") if self.columns else ()
        delimiter = next((one for one in (*first, *DELIMITERS) if one in line.strip(" ")), ",")
        try:
            rows = csv.reader([line], delimiter=delimiter, strict=True)
            fields = line.split() if delimiter == " " else next(rows, [])
        except csv.Error as error:
            raise ValueError(f"its quotes are wrong: {error}") from None
        words = [field.strip() for field in fields]
        commas = bool(self.columns) and delimiter in (";", "\t")
        words = [one.replace(",", ".") if commas and _is_number(one.replace(",", ".", 1)) else one for one in words]
        header = not self.begun and self.names is None and not any(_is_number(one) for one in words) and any(words)
        if header and not (self.time and words[1:] and len(words) == self.features + 1 and _all_absent(words[1:])):
            self._check_header(words)
            self.names = words
            return None
        places: Sequence[int] = range(len(words))
        if self.columns and self.names is not None:
            if len(words) != len(self.names):
                raise ValueError(f"expected {len(self.names)} fields as in the header, got {len(words)}")
            places, words = self._picked(words)
        elif self.time and len(words) == self.features + 1:
            self.when, words, places = words[0], words[1:], range(1, len(words))
        return [_number(word, place + 1) for place, word in zip(places, words, strict=True)]

    def _check_header(self, words: list[str]) -> None:
        if self.columns:
            absent = [name for name in self.columns if name not in words]
            if absent:
                few = ", ".join(absent[:8]) + ("…" if len(absent) > 8 else "")
                reads = self.meaning or f": the model reads {', '.join(self.columns)[:200]}"
                raise ValueError(f"the header has no {few[:200]}{reads}")
        elif len(words) != self.features:
            raise ValueError(f"the header names {len(words)} columns, the model takes {self.features}")

    def _picked(self, words: list[str]) -> tuple[list[int], list[str]]:
        """The fields of the model's columns, and where they are."""
        assert self.names is not None
        places = [self.names.index(name) for name in self.columns]
        if self.time in self.names:
            self.when = words[self.names.index(self.time)]
        elif " " in self.time:
            self.when = _joined_time(self.time, dict(zip(self.names, words, strict=True)))
        if self.series in self.names:
            self.of = words[self.names.index(self.series)]
        return places, [words[place] for place in places]

    def _json(self, text: str) -> list[float]:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is not JSON: {error}") from None
        if isinstance(found, dict) and self.columns:
            absent = [name for name in self.columns if name not in found]
            if absent:
                raise ValueError(f"it has no {', '.join(absent[:8])[:200]}{self.meaning}")
            if self.time in found:
                self.when = str(found[self.time])
            elif " " in self.time:
                self.when = _joined_time(self.time, {name: str(one) for name, one in found.items()})
            if self.series in found:
                self.of = str(found[self.series])
            found = [found[name] for name in self.columns]
        elif isinstance(found, dict):
            if self.names is None:
                self.names = list(found)
            if set(found) != set(self.names):
                raise ValueError(f"expected the names {', '.join(self.names)}; got {', '.join(found)[:200]}")
            found = [found[name] for name in self.names]
        return [_value(one, place) for place, one in enumerate(found, 1)]


def _joined_time(name: str, words: dict[str, str]) -> str | None:
    """A time whose parts are in several fields."""
    from plmu.timeseries.tables.dates import split_time

    return split_time(name, words)


def _all_absent(words: list[str]) -> bool:
    return all(word.lower() in ABSENT for word in words)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return word.lower() in ABSENT
    return True


def _number(word: str, place: int) -> float:
    if word.lower() in ABSENT:
        return float("nan")
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"{word[:60]!r}, in column {place}, is not a number") from None


def _value(given: Any, place: int) -> float:
    """A number of JSON; null is a missing one."""
    if given is None:
        return float("nan")
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise ValueError(f"{str(given)[:60]!r}, in place {place}, is not a number")
    try:
        return float(given)
    except OverflowError:
        raise ValueError(f"the number in place {place} is too large") from None
