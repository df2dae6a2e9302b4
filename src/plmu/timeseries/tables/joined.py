"""Times spread over several columns: a date and a time of day; or year, month, day and hour."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from plmu.timeseries.tables.missing import is_missing

if TYPE_CHECKING:
    import polars as pl

_UNITS = ("year", "month", "day", "hour", "minute")
_CLOCK = re.compile(r"\s*\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?\s*([AaPp][Mm])?\s*")
_HEAD = 200  # cells that are examined


def time_parts(columns: dict[str, pl.Series], dates: Sequence[str]) -> tuple[str, ...]:
    """Names of the columns that together are a time; empty if there are none.

    Args:
        columns: the columns by name.
        dates: names of the columns of dates.
    """
    import polars as pl

    def cells(name: str) -> list[str]:
        head = columns[name].drop_nulls().head(_HEAD).to_list() if columns[name].dtype == pl.String else []
        return [cell for cell in head if not is_missing(cell)]

    if dates:
        clocks = [name for name in columns if cells(name) and all(map(_CLOCK.fullmatch, cells(name)))]
        complete = any(":" in cell for name in dates for cell in cells(name)) or columns[dates[0]].dtype != pl.String
        return () if complete or len(dates) != 1 or len(clocks) != 1 else (dates[0], clocks[0])
    by_unit = {name.strip().lower(): name for name in columns if columns[name].dtype == pl.Float64}
    parts = []
    for unit in _UNITS:
        if unit not in by_unit or not _is_within(columns[by_unit[unit]], unit):
            break
        parts.append(by_unit[unit])
    return tuple(parts) if len(parts) > 1 else ()


def joined(columns: Sequence[pl.Series]) -> pl.Series:
    """The text of times whose parts are in these columns; null where a part is missing."""
    import polars as pl

    if columns[0].dtype == pl.String:
        return columns[0] + " " + columns[1]
    year, month, *rest = (column.fill_nan(None).cast(pl.Int64).cast(pl.String) for column in columns)
    times = year + "-" + month
    for separator, column in zip("- :", rest, strict=False):
        times = times + separator + column
    return times + ":00" if len(rest) == 2 else times


def joined_name(names: Sequence[str]) -> str:
    """The name of the column of times made of these columns."""
    return " ".join(names)


def split_time(name: str, fields: Mapping[str, str]) -> str | None:
    """The time of a row, where it is spread over several columns.

    Args:
        name: of the joined column of times.
        fields: of the row, by column.

    Returns:
        The text of the time; None if a part is missing.
    """
    import polars as pl

    parts = _joined_names(name, fields)
    if len(parts) < 2:
        return None
    numeric = all(re.fullmatch(r"\s*\d+(\.0*)?\s*", fields[part]) for part in parts)
    times = joined([pl.Series([float(fields[part]) if numeric else fields[part]]) for part in parts])
    return str(times[0])


def _joined_names(name: str, candidates: Iterable[str]) -> list[str]:
    """The candidates of which a joined name consists; empty if it cannot be split into them."""
    for candidate in candidates:
        if name == candidate:
            return [candidate]
        if name.startswith(f"{candidate} ") and (rest := _joined_names(name[len(candidate) + 1 :], candidates)):
            return [candidate, *rest]
    return []


def _is_within(column: pl.Series, unit: str) -> bool:
    """Whether all values of a column are integers in the range of a unit of time."""
    low, high = {"year": (1000, 2999), "month": (1, 12), "day": (1, 31), "hour": (0, 23), "minute": (0, 59)}[unit]
    values = column.fill_nan(None).drop_nulls()
    return len(values) > 0 and bool(values.is_between(low, high).all()) and bool((values == values.round(0)).all())
