"""Times that are spread over several columns: a date and a time of day; or year, month, day and hour."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from plmu.timeseries.tables.missing import is_missing

if TYPE_CHECKING:
    import polars as pl

_UNITS = ("year", "month", "day", "hour", "minute")
_CLOCK = re.compile(r"\s*\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?\s*([AaPp][Mm])?\s*")
_HEAD = 200  # cells that are looked at


def time_parts(columns: dict[str, pl.Series], dates: Sequence[str]) -> tuple[str, ...]:
    """Names of the columns that are a time together; none if there are no such columns.

    Args:
        columns: by name.
        dates: those that have dates.
    """
    import polars as pl

    def cells(name: str) -> list[str]:
        head = columns[name].drop_nulls().head(_HEAD).to_list() if columns[name].dtype == pl.String else []
        return [cell for cell in head if not is_missing(cell)]

    if dates:
        clocks = [name for name in columns if cells(name) and all(map(_CLOCK.fullmatch, cells(name)))]
        whole = any(":" in cell for name in dates for cell in cells(name)) or columns[dates[0]].dtype != pl.String
        return () if whole or len(dates) != 1 or len(clocks) != 1 else (dates[0], clocks[0])
    named = {name.strip().lower(): name for name in columns if columns[name].dtype == pl.Float64}
    found = []
    for unit in _UNITS:
        if unit not in named or not _within(columns[named[unit]], unit):
            break
        found.append(named[unit])
    return tuple(found) if len(found) > 1 else ()


def joined(columns: Sequence[pl.Series]) -> pl.Series:
    """The text of times whose parts are in these columns; null where one is missing."""
    import polars as pl

    if columns[0].dtype == pl.String:
        return columns[0] + " " + columns[1]
    year, month, *rest = (one.fill_nan(None).cast(pl.Int64).cast(pl.String) for one in columns)
    found = year + "-" + month
    for between, one in zip("- :", rest, strict=False):
        found = found + between + one
    return found + ":00" if len(rest) == 2 else found


def joined_name(names: Sequence[str]) -> str:
    """What the column of the whole time is called."""
    return " ".join(names)


def split_time(name: str, words: Mapping[str, str]) -> str | None:
    """The time of one row whose fields `words` have its parts, by the name of the whole; None if a part is missing."""
    import polars as pl

    parts = _split(name, words)
    if len(parts) < 2:
        return None
    whole = all(re.fullmatch(r"\s*\d+(\.0*)?\s*", words[part]) for part in parts)
    column = joined([pl.Series([float(words[part]) if whole else words[part]]) for part in parts])
    return str(column[0])


def _split(name: str, names: Iterable[str]) -> list[str]:
    """The names that are joined in this one."""
    for one in names:
        if name == one:
            return [one]
        if name.startswith(f"{one} ") and (rest := _split(name[len(one) + 1 :], names)):
            return [one, *rest]
    return []


def _within(column: pl.Series, unit: str) -> bool:
    low, high = {"year": (1000, 2999), "month": (1, 12), "day": (1, 31), "hour": (0, 23), "minute": (0, 59)}[unit]
    known = column.fill_nan(None).drop_nulls()
    return len(known) > 0 and bool(known.is_between(low, high).all()) and bool((known == known.round(0)).all())
