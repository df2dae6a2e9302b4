"""Reading dates and times in the formats people use, also spread over several columns.

How the column of times of a table is found, in this order:

1. A column has dates if the file stores dates (Parquet, NumPy), or if more than half of its first cells look like dates
   (`cells.looks_like_date`). 20240131 and 2024.05 do not: they are more likely numbers (`Table.kind`).
2. A single column of dates and a single column of times of day are joined; without any dates, columns of numbers called
   year, month, day … are (`time_parts`).
3. Of several columns of dates, one with a name such as "time" (`columns.TIME_NAMES`) comes first, else the leftmost.
4. Without any, it is the first column of numbers with such a name, if none is missing and not all are equal
   (`columns._time`). Its numbers are dates if all of them are like 20240131 (`from_digits`), else plain numbers.

Tables of labelled series go by names alone (`labelled_columns.TIMES`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmu.timeseries.tables.cells import present, without_marks

if TYPE_CHECKING:
    import polars as pl

_YEAR_FIRST = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d")
_POINTS = ("%d.%m.%Y", "%d.%m.%y")
_DAY_FIRST = ("%d/%m/%Y", "%d-%m-%Y", "%d/%m/%y", "%d-%m-%y")
_MONTH_FIRST = ("%m/%d/%Y", "%m-%d-%Y", "%m/%d/%y", "%m-%d-%y")
_WORDS = ("%d %B %Y", "%d-%B-%Y", "%d. %B %Y", "%B %d, %Y", "%B %d %Y", "%d-%B-%y", "%a %B %d %Y", "%a, %d %B %Y")
_MONTHS = ("%Y-%m", "%Y/%m", "%B %Y", "%m/%Y", "%B-%y", "%B-%Y", "%B/%y", "%B/%Y")  # read as their first day
_QUARTERS = "quarter="  # 2024Q1, 2024-Q1, Q1 2024 or Q1/2024, read as their first day
_WEEKS = "week="  # 2024-W05 or 2024W05, read as their Monday
_QUARTER = r"(?i)^(?:(?P<first>\d{4})[-\s]?Q(?P<a>[1-4])|Q(?P<b>[1-4])[-/\s]?(?P<second>\d{4}))$"
_CLOCKS = (" %H:%M:%S", "T%H:%M:%S", " %H:%M", "T%H:%M", " %H:%M:%S%.f", "T%H:%M:%S%.f")
_TIMES = ("", *_CLOCKS, " %I:%M:%S %p", " %I:%M %p", ", %H:%M")
_ZONES = ("%#z", "Z", " %#z", " UTC")
_COMPARED, _HEAD = 10_000, 64  # cells that are examined
_ZONE = r"\d:\d{2}[\d.,:]*\s*(Z|UTC|[+-]\d{2}(?::?\d{2})?)\s*$"  # databases write +02
_MIDNIGHT = r"(\d[T\s]\s*)24:00(?::00)?"
_PARTS = r"^\s*(\d{1,2})[/-](\d{1,2})[/-]\d{2,4}"
_UNITS = ("year", "month", "day", "hour", "minute")
_TIME_OF_DAY = re.compile(r"\s*\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?\s*([AaPp][Mm])?\s*")
_EXAMINED = 200  # cells that are examined for parts of times


class MixedOrderError(ValueError):
    """Some dates have the day first, others the month; `rows` are two rows that contradict each other."""

    def __init__(self, rows: tuple[int, int]) -> None:
        super().__init__("days and months come in both orders")
        self.rows = rows


def parse(column: pl.Series, day_first: bool | None = None) -> tuple[pl.Series, pl.Series, list[str]]:
    """The times in a column of text.

    Args:
        column: cells of text.
        day_first: whether 2/1/2024 is the second of January; None detects it.

    Returns:
        The times, null where one is missing; the rows of cells that are not times; and notes on what was detected.

    Raises:
        MixedOrderError: some dates have the day first, others the month.
    """
    import polars as pl

    formats = [f"{date}{time}" for date, time in product(_YEAR_FIRST + _POINTS, _TIMES)]
    usual = _most_frequent(column, formats)  # most files have one of these formats, which are unambiguous
    no_times = pl.Series(column.name, [None], dtype=pl.Datetime("us")).new_from_index(0, len(column))
    times = no_times if usual is None else _read_format(column, usual)
    unread = times.is_null().arg_true()
    used = [usual] if usual else []
    notes: list[str] = []
    if len(unread):
        cells = without_marks(column.gather(unread))
        if cells.str.contains(_MIDNIGHT).any():  # the end of a day is the beginning of the next
            midnight = column.str.contains(_MIDNIGHT).fill_null(False)
            times, wrong, notes = parse(column.str.replace(_MIDNIGHT, "${1}00:00"), day_first)
            return times.zip_with(~midnight, times.dt.offset_by("1d")), wrong, notes
        if day_first is None:
            try:
                day_first, notes = _detect_order(cells)
            except MixedOrderError as error:
                raise MixedOrderError((int(unread[error.rows[0]]), int(unread[error.rows[1]]))) from None
        ambiguous = _DAY_FIRST + _MONTH_FIRST if day_first is None else (_DAY_FIRST if day_first else _MONTH_FIRST)
        formats += [f"{date}{time}" for date, time in product(ambiguous + _WORDS, _TIMES)]
        formats += [f"{date}{time}{zone}" for date, time, zone in product(_YEAR_FIRST[:2], _CLOCKS, _ZONES)]
        formats += [*(f"{month}=" for month in _MONTHS), _QUARTERS, _WEEKS]
        unread, cells = unread.filter(cells.is_not_null()), cells.drop_nulls()
        first = _most_frequent(cells, formats)
        for form in [first, *formats] if first else []:
            parsed = _read_format(cells, form)
            success = parsed.is_not_null()
            if success.any():
                used.append(form)
                times = times.scatter(unread.filter(success), parsed.filter(success))
                unread, cells = unread.filter(~success), cells.filter(~success)
            if not len(unread):
                break
    date_formats = {re.split(r"[ T,]*%[HI]|=", form)[0] for form in used}
    if len(date_formats) > 1:
        notes.append(f"dates in {len(date_formats)} formats")
    if any(form.endswith(_ZONES) for form in used):
        zones = column.str.extract(_ZONE).drop_nulls().unique()
        notes.append("time zones converted to UTC" if len(zones) > 1 else f"times in time zone {zones[0]}")
    return times, unread, notes


def zone(column: pl.Series) -> int | None:
    """The time zone of a column of text in minutes east of Greenwich: 0 if cells differ, None without any.

    `parse` returns such times in UTC.
    """
    if not column.head(_COMPARED).str.contains(_ZONE).any():
        return None
    zones = column.str.extract(_ZONE).drop_nulls().unique()
    return _minutes(zones[0]) if len(zones) == 1 else 0


def _minutes(zone: str) -> int:
    """The minutes east of Greenwich of "Z", "UTC", "+02", "+0200" or "+02:00"."""
    if zone in ("Z", "UTC"):
        return 0
    digits = zone[1:].replace(":", "")
    return (1 if zone[0] == "+" else -1) * (60 * int(digits[:2]) + int(digits[2:] or 0))


def order(column: pl.Series) -> bool | None:
    """Whether dates such as 31/1/2024 in a column have the day first; None if it has none, or both orders."""
    if not column.head(_COMPARED).str.contains(_PARTS).any():
        return None
    try:
        return _detect_order(without_marks(column))[0]
    except MixedOrderError:
        return None


def from_digits(values: NDArray[np.float64]) -> NDArray[Any] | None:
    """Dates written as numbers such as 20240131; None if one of the numbers is not a date."""
    present = ~np.isnan(values)
    numbers = values[present]
    if not len(numbers) or numbers.min() < 1e7 or numbers.max() >= 3e7 or (numbers != np.floor(numbers)).any():
        return None
    digits = numbers.astype(np.int64)
    year, month, day = digits // 10_000, digits // 100 % 100, digits % 100
    if not ((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all():
        return None
    months = (12 * (year - 1970) + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (day - 1)
    if (days.astype("datetime64[M]") != months).any():
        return None
    dates = np.full(len(values), np.datetime64("NaT"), dtype="datetime64[us]")
    dates[present] = days
    return dates


def _most_frequent(column: pl.Series, formats: list[str]) -> str | None:
    """The format of most of the first cells; None if none of them has one of these formats."""
    head = column.drop_nulls().head(_HEAD)
    hits = {form: int(_read_format(head, form).is_not_null().sum()) for form in formats} if len(head) else {}
    best = max(hits, key=hits.__getitem__, default="")
    return best if hits.get(best) else None


def _read_format(cells: pl.Series, form: str) -> pl.Series:
    """The times of cells in one format; null for other cells, and for years outside 1000 to 2999."""
    if form == _QUARTERS:
        cells, form = _first_days(cells), "%Y-%m-%d"
    elif form == _WEEKS:
        cells, form = cells.str.replace("W", "-W").str.replace("--W", "-W") + "-1", "%G-W%V-%u"
    elif form.endswith("="):  # a month
        cells, form = cells + " 1", f"{form[:-1]} %d"
    if form.endswith("UTC"):
        cells, form = cells.str.strip_suffix("UTC") + "Z", f"{form[:-4]} %#z"
    elif form.endswith("Z"):
        form = f"{form[:-1]}%#z"
    zoned = form.endswith("%#z")
    zone = "UTC" if zoned else None
    times = cells.str.to_datetime(form, strict=False, time_unit="us", time_zone=zone, cache=False)
    if zoned:
        times = times.dt.replace_time_zone(None)
    year = times.dt.year()
    return times.set((year < 1000) | (year > 2999), None) if len(times) else times


def _first_days(cells: pl.Series) -> pl.Series:
    """The first days of quarters as text; null for other cells."""
    import polars as pl

    parts = cells.str.extract_groups(_QUARTER).struct.unnest()
    year, quarter = parts["first"].fill_null(parts["second"]), parts["a"].fill_null(parts["b"])
    months = (3 * quarter.cast(pl.Int64, strict=False) - 2).cast(pl.String).str.zfill(2)
    return year + "-" + months + "-01"


def _detect_order(cells: pl.Series) -> tuple[bool | None, list[str]]:
    """Whether dates have the day before the month, None if no date depends on it; and notes."""
    import polars as pl

    parts = cells.str.extract_groups(_PARTS).struct.unnest()
    if parts.width < 2 or parts.to_series(0).null_count() == len(parts):
        return None, []
    first, second = (parts.to_series(i).cast(pl.Int64, strict=False) for i in (0, 1))
    day, month = (first > 12).fill_null(False), (second > 12).fill_null(False)
    if day.any() and month.any():
        raise MixedOrderError((int(day.arg_true()[0]), int(month.arg_true()[0])))
    if day.any() or month.any():
        return bool(day.any()), []
    # Both orders are possible: take the one in which the dates ascend, or else the one with fewer different intervals.
    disorder = []
    for day_first in (False, True):
        steps = parse(cells.head(_COMPARED), day_first)[0].drop_nulls().diff().drop_nulls()
        disorder.append((int((steps < timedelta(0)).sum()), steps.n_unique()))
    if disorder[0] != disorder[1]:
        day_first = disorder[1] < disorder[0]
        return day_first, [f"{'day/month' if day_first else 'month/day'}/year: so the dates are in order"]
    return False, ["taken for month/day/year, which the dates do not tell: --data.day-first changes it"]


def time_parts(columns: dict[str, pl.Series], dates: Sequence[str]) -> tuple[str, ...]:
    """Names of the columns that together are a time: a date and a time of day, or at least year and month; empty if
    there are none.

    Args:
        columns: the columns by name.
        dates: names of the columns of dates.
    """
    import polars as pl

    def cells(name: str) -> list[str]:
        head = columns[name].drop_nulls().head(_EXAMINED).to_list() if columns[name].dtype == pl.String else []
        return present(head)

    if dates:
        clocks = [name for name in columns if cells(name) and all(map(_TIME_OF_DAY.fullmatch, cells(name)))]
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
    """The time of a row, where it is spread over the columns that `joined` joins.

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
