"""Reading dates and times in the formats people use, also spread over several columns.

How the column of times of a table is found, in this order:

1. A column has dates if the file stores dates (Parquet, NumPy), or if more than half of its first cells look like dates
   (`cells.looks_like_date`). 20240131 and 2024.05 do not: they are more likely numbers (`Table.kind`).
2. A single column of dates and a single column of times of day, or of numbers called hour, are joined; without any
   dates, columns of numbers called year, month, day … are (`time_parts`).
3. Of several columns of dates, one with a name such as "time" (`columns.TIME_NAMES`) comes first, else the leftmost;
   but not one with days alone where another has the same days and times of day (`columns._time`).
4. Without any, it is the first column of numbers like 20240131, or of months like 2024.01 or 1.2024, or else the first
   with such a name, if none is missing and not all are equal. Its numbers are dates if all are like 20240131
   (`from_digits`) or months (`from_decimals`), else plain numbers.
5. Without any, a column of text that looks like times, or that has years that rise, is an error.

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
from plmu.timeseries.tables.date_words import ZONES, plain_column

if TYPE_CHECKING:
    import polars as pl

_YEAR_FIRST = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d")
_POINTS = ("%d.%m.%Y", "%d.%m.%y")
_DAY_FIRST = ("%d/%m/%Y", "%d-%m-%Y", "%d/%m/%y", "%d-%m-%y")
_MONTH_FIRST = ("%m/%d/%Y", "%m-%d-%Y", "%m/%d/%y", "%m-%d-%y")
_WORDS = ("%d %B %Y", "%d-%B-%Y", "%d. %B %Y", "%B %d, %Y", "%B %d %Y", "%B-%d-%Y", "%d-%B-%y")
# Months are read as their first day.
_MONTHS = (
    "%Y-%m",
    "%Y/%m",
    "%B %Y",
    "%m/%Y",
    "%m.%Y",
    "%B-%y",
    "%B-%Y",
    "%B/%y",
    "%B/%Y",
    "%Y %B",
    "%Y-%B",
    "%Y/%B",
    "%Y%B",
)
_WEEKS = "week="  # 2024-W05, 2024 W05 or 2024W05, read as their Monday
_WEEK_DAYS = "%G-W%V-%u"  # 2024-W05-3, a Wednesday
_YEAR_DAYS = "%Y-%j"  # 2024-031, the 31st day of the year
# Parts of a year, read as their first day: 2024Q1, 2024-Q1, Q1 2024 or Q1/2024; 2024M01; 2024H1 or 2024S1.
_PERIODS = {"Q": (4, 3), "M": (12, 1), "[HS]": (2, 6)}  # how many there are in a year, and months of each
_CLOCKS = (" %H:%M:%S", "T%H:%M:%S", " %H:%M", "T%H:%M", " %H:%M:%S%.f", "T%H:%M:%S%.f")
_TIMES = ("", *_CLOCKS, " %I:%M:%S %p", " %I:%M %p", ", %H:%M")
_ZONES = ("%#z", "Z", " %#z", " UTC")
_COMPARED, _HEAD = 10_000, 64  # cells that are examined
_ZONE = rf"\d:\d{{2}}[\d.,:]*\s*({'|'.join(ZONES)}|[+-]\d{{2}}(?::?\d{{2}})?)\s*$"  # databases write +02
_MIDNIGHT = r"(\d[T\s]\s*)24:00(?::00)?"
_PARTS = r"^\s*(\d{1,2})[/-](\d{1,2})[/-]\d{2,4}"
_HOURS = ("hour", "hours", "hr", "heure", "stunde", "hora", "uur")
_HHMM = "hhmm"  # a column of times of day such as 930, which is 9:30
_RANGES = {"year": (1000, 2999), "quarter": (1, 4), "month": (1, 12), "week": (1, 53), "day": (1, 31)}
_RANGES |= {"hour": (0, 24), "minute": (0, 59)}
_UNITS = ("year", "month", "day", "hour", "minute")
_TIME_OF_DAY = re.compile(r"\s*\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?\s*([AaPp][Mm])?\s*")
_DIGITS, _FEWEST = (6, 8, 10, 12, 14), 3  # digits of a date that is a number; dates that make a column of them
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
        if not (words := plain_column(cells)).equals(cells):
            return parse(column.clone().scatter(unread, words), day_first)
        if day_first is None:
            try:
                day_first, notes = _detect_order(cells)
            except MixedOrderError as error:
                raise MixedOrderError((int(unread[error.rows[0]]), int(unread[error.rows[1]]))) from None
        ambiguous = _DAY_FIRST + _MONTH_FIRST if day_first is None else (_DAY_FIRST if day_first else _MONTH_FIRST)
        formats += [f"{date}{time}" for date, time in product(ambiguous + _WORDS, _TIMES)]
        zoned = _YEAR_FIRST[:2] + _POINTS + ambiguous
        formats += [f"{date}{time}{zone}" for date, time, zone in product(zoned, _CLOCKS, _ZONES)]
        formats += [
            *(f"{month}=" for month in _MONTHS),
            *(f"{letter}=" for letter in _PERIODS),
            _WEEKS,
            _WEEK_DAYS,
            _YEAR_DAYS,
        ]
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
    """The minutes east of Greenwich of "Z", "CET", "+02", "+0200" or "+02:00"."""
    if zone in ZONES:
        return ZONES[zone]
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
    """Dates written as numbers: 202401, 20240131, and with hours, minutes and seconds 2024013123, 202401312359 and
    20240131235959; None unless all numbers are dates with equally many digits."""
    present = ~np.isnan(values)
    numbers = values[present]
    if not len(numbers) or numbers.min() < 1e5 or numbers.max() >= 3e13 or (numbers != np.floor(numbers)).any():
        return None
    digits = numbers.astype(np.int64)
    count = len(str(digits.min()))
    if count not in _DIGITS or len(str(digits.max())) != count:
        return None
    first, last = (1000, 2999) if count == 8 else (1900, 2099)
    digits = digits * 10 ** (14 - count) + (10**6 if count == 6 else 0)  # a month is its first day
    month, day, hour, minute, second = (digits // 10**place % 100 for place in (8, 6, 4, 2, 0))
    year = digits // 10**10
    bounds = ((year, first, last), (month, 1, 12), (day, 1, 31), (hour, 0, 23), (minute, 0, 59), (second, 0, 59))
    if any(part.min() < low or part.max() > high for part, low, high in bounds):
        return None
    months = (12 * (year - 1970) + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (day - 1)
    if (days.astype("datetime64[M]") != months).any():
        return None
    dates = np.full(len(values), np.datetime64("NaT"), dtype="datetime64[us]")
    seconds = (3600 * hour + 60 * minute + second).astype("timedelta64[s]")
    dates[present] = days.astype("datetime64[us]") + seconds
    return dates


def surely_digits(values: NDArray[np.float64]) -> bool:
    """Whether numbers are dates such as 20240131, or months such as 2024.01, though nothing else says so: none is
    missing, not all are equal, and months such as 202401 follow one another at equal distances."""
    if len(values) < _FEWEST or np.isnan(values).any():
        return False
    if (dates := from_digits(values)) is None:
        return from_decimals(values) is not None
    different = np.unique(dates)
    if values[0] >= 1e6:
        return len(different) > 1
    months = np.diff(different.astype("datetime64[M]").astype(np.int64))
    return len(different) >= _FEWEST and bool((months == months[0]).all())


def _most_frequent(column: pl.Series, formats: list[str]) -> str | None:
    """The format of most of the first cells; None if none of them has one of these formats."""
    head = column.drop_nulls().head(_HEAD)
    hits = {form: int(_read_format(head, form).is_not_null().sum()) for form in formats} if len(head) else {}
    best = max(hits, key=hits.__getitem__, default="")
    return best if hits.get(best) else None


def _read_format(cells: pl.Series, form: str) -> pl.Series:
    """The times of cells in one format; null for other cells, and for years outside 1000 to 2999."""
    if (letter := form.removesuffix("=")) in _PERIODS:
        cells, form = _first_days(cells, letter), "%Y-%m-%d"
    elif form == _WEEKS:
        cells, form = cells.str.replace(r"(?i)^(\d{4})[-\s]?W(\d{1,2})$", "${1}-W${2}") + "-1", "%G-W%V-%u"
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


def _first_days(cells: pl.Series, letter: str) -> pl.Series:
    """The first days of quarters, months or halves of a year as text; null for other cells."""
    import polars as pl

    count, months = _PERIODS[letter]
    year_first, number_first = rf"(?i)^(\d{{4}})[-\s]?{letter}(\d{{1,2}})$", rf"(?i)^{letter}(\d)[-/\s]?(\d{{4}})$"
    year = cells.str.extract(year_first, 1).fill_null(cells.str.extract(number_first, 2))
    number = cells.str.extract(year_first, 2).fill_null(cells.str.extract(number_first, 1)).cast(pl.Int64, strict=False)
    number = number.set(((number < 1) | (number > count)).fill_null(False), None)
    return year + "-" + (months * number - months + 1).cast(pl.String).str.zfill(2) + "-01"


def _detect_order(cells: pl.Series) -> tuple[bool | None, list[str]]:
    """Whether dates have the day before the month, None if no date depends on it; and notes."""
    import polars as pl

    parts = cells.str.extract_groups(_PARTS).struct.unnest()
    if parts.width < 2 or parts.to_series(0).null_count() == len(parts):
        return None, []
    first, second = (parts.to_series(i).cast(pl.Int64, strict=False) for i in (0, 1))
    day, month = (first > 12).fill_null(False), (second > 12).fill_null(False)
    day, month = day & ~month, month & ~day
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
        if not clocks:
            named = (*_HOURS, "time", _HHMM)
            hours = (name for name in columns if name.strip().lower() in named and columns[name].dtype == pl.Float64)
            clocks = [name for name in hours if _has_hours(columns[name])]
        complete = any(":" in cell for name in dates for cell in cells(name))
        stored = columns[dates[0]]
        if stored.dtype != pl.String:
            complete = bool((stored.dt.truncate("1d") != stored).any())
        return () if complete or len(dates) != 1 or len(clocks) != 1 else (dates[0], clocks[0])
    by_unit = {name.strip().lower(): name for name in columns if columns[name].dtype == pl.Float64}
    for unit in ("quarter", "week"):  # 2024 and 1 are 2024Q1
        if {"year", unit} <= by_unit.keys() and not {"month", "day"} & by_unit.keys():
            pair = by_unit["year"], by_unit[unit]
            return pair if _is_within(columns[pair[0]], "year") and _is_within(columns[pair[1]], unit) else ()
    parts = []
    for unit in _UNITS:
        if unit not in by_unit or not _is_within(columns[by_unit[unit]], unit):
            break
        parts.append(by_unit[unit])
    return tuple(parts) if len(parts) > 1 else ()


def joined(columns: Sequence[pl.Series]) -> pl.Series:
    """The text of times whose parts are in these columns; null where a part is missing."""
    import polars as pl

    if columns[0].dtype != pl.Float64:
        day, clock = columns
        day = day if day.dtype == pl.String else day.dt.to_string("%Y-%m-%d")
        if clock.dtype == pl.Float64:
            digits = clock.fill_nan(None).cast(pl.Int64).cast(pl.String)
            minutes = (clock > _RANGES["hour"][1]) | (clock.name.strip().lower() == _HHMM)
            four = digits.str.zfill(4)
            clock = (digits.str.zfill(2) + ":00").zip_with(~minutes, four.str.head(2) + ":" + four.str.tail(2))
        return day + " " + clock
    year, month, *rest = (column.fill_nan(None).cast(pl.Int64).cast(pl.String) for column in columns)
    if (letter := {"quarter": "Q", "week": "W"}.get(columns[1].name.strip().lower())) is not None:
        return year + letter + month
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
    first, *rest = (bool(re.fullmatch(r"\s*\d+(\.0*)?\s*", fields[part])) for part in parts)
    kinds = [first and all(rest), *rest]
    pairs = zip(parts, kinds, strict=True)
    times = joined([pl.Series(part, [float(fields[part]) if numeric else fields[part]]) for part, numeric in pairs])
    return str(times[0])


def _joined_names(name: str, candidates: Iterable[str]) -> list[str]:
    """The candidates of which a joined name consists; empty if it cannot be split into them."""
    for candidate in candidates:
        if name == candidate:
            return [candidate]
        if name.startswith(f"{candidate} ") and (rest := _joined_names(name[len(candidate) + 1 :], candidates)):
            return [candidate, *rest]
    return []


def from_decimals(values: NDArray[np.float64]) -> NDArray[Any] | None:
    """Months written as numbers, 2024.01 or 1.2024, of which 2024.1 is October; None unless all are such numbers, of
    several years, and most are equally far apart."""
    numbers = values[~np.isnan(values)]
    if not len(numbers) or numbers.min() < 1 or numbers.max() >= 3000:
        return None
    whole = np.floor(numbers)
    for places in (2, 4):
        decimals = (numbers - whole) * 10**places
        rest = np.rint(decimals)
        year, month = (whole, rest) if places == 2 else (rest, whole)
        if (np.abs(decimals - rest) > 1e-6).any() or year.min() < 1800 or year.max() > 2199:
            continue
        if month.min() < 1 or month.max() > 12 or year.min() == year.max():
            continue
        months = (12 * (year - 1970) + month - 1).astype(np.int64)
        apart = np.diff(np.unique(months))
        typical = int(np.median(apart))
        if len(apart) + 1 >= _FEWEST and typical < 12 and 2 * int((apart == typical).sum()) > len(apart):
            dates = np.full(len(values), np.datetime64("NaT"), dtype="datetime64[us]")
            dates[~np.isnan(values)] = months.astype("datetime64[M]").astype("datetime64[us]")
            return dates
    return None


def _has_hours(column: pl.Series) -> bool:
    """Whether numbers are hours, 0 to 24, or times such as 930, which is 9:30; and not all are equal."""
    values = column.fill_nan(None).drop_nulls()
    if column.n_unique() < 2:
        return False
    name = column.name.strip().lower()
    if name in _HOURS and _is_within(column, "hour"):
        return True
    clock = (values == values.floor()) & values.is_between(0, 2400) & (values % 100 < 60)
    return bool(clock.all()) and (name == _HHMM or bool((values > _RANGES["hour"][1]).any()))


def _is_within(column: pl.Series, unit: str) -> bool:
    """Whether all values of a column are integers in the range of a unit of time."""
    low, high = _RANGES[unit]
    values = column.fill_nan(None).drop_nulls()
    return len(values) > 0 and bool(values.is_between(low, high).all()) and bool((values == values.round(0)).all())
