"""Samples from lines of text: comma-separated numbers, with or without a header, or JSON."""

from __future__ import annotations

import csv
import json
from typing import Any

ABSENT = frozenset(("", "nan", "na", "n/a", "null", "none"))  # fields that stand for a missing number
DELIMITERS = (",", ";", "\t", " ")


class NumberLines:
    """Reads samples of so many numbers, one a line.

    A line is numbers with commas, semicolons, tabs or spaces between them; or JSON: a number, a list, or an object with
    one number for each name. Before the first sample there may be one line of names. An empty field, NaN or null is a
    missing number.
    """

    def __init__(self, features: int) -> None:
        self.features = features
        self.names: list[str] | None = None  # of the header, or of the first object
        self.begun = False

    def read(self, line: str) -> list[float] | None:
        """The sample of a line, NaN where a number is missing; None for the header. ValueError: what is wrong."""
        text = line.strip()
        found = self._json(text) if text[:1] in ("[", "{") else self._fields(line.strip("\r\n"))
        if found is None:
            return None
        if len(found) != self.features:
            raise ValueError(f"expected {self.features} number{'s' * (self.features != 1)}, got {len(found)}")
        self.begun = True
        return found

    def _fields(self, line: str) -> list[float] | None:
        delimiter = next((one for one in DELIMITERS if one in line.strip(" ")), ",")
        try:
            rows = csv.reader([line], delimiter=delimiter, strict=True)
            fields = line.split() if delimiter == " " else next(rows, [])
        except csv.Error as error:
            raise ValueError(f"its quotes are wrong: {error}") from None
        words = [field.strip() for field in fields]
        if not self.begun and self.names is None and not any(_is_number(one) for one in words) and any(words):
            if len(words) != self.features:
                raise ValueError(f"the header names {len(words)} columns, the model takes {self.features}")
            self.names = words
            return None
        return [_number(word, place) for place, word in enumerate(words, 1)]

    def _json(self, text: str) -> list[float]:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is not JSON: {error}") from None
        if isinstance(found, dict):
            if self.names is None:
                self.names = list(found)
            if set(found) != set(self.names):
                raise ValueError(f"expected the names {', '.join(self.names)}; got {', '.join(found)[:200]}")
            found = [found[name] for name in self.names]
        return [_value(one, place) for place, one in enumerate(found, 1)]


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
