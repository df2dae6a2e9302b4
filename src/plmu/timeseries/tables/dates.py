"""Dates and times in the forms in which people write them."""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmu.timeseries.tables.missing import filled

if TYPE_CHECKING:
    import polars as pl

_YEAR_FIRST = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d")
_POINTS = ("%d.%m.%Y", "%d.%m.%y")
_DAY_FIRST = ("%d/%m/%Y", "%d-%m-%Y", "%d/%m/%y", "%d-%m-%y")
_MONTH_FIRST = ("%m/%d/%Y", "%m-%d-%Y", "%m/%d/%y", "%m-%d-%y")
_WORDS = ("%d %B %Y", "%d-%B-%Y", "%d. %B %Y", "%B %d, %Y", "%B %d %Y", "%d-%B-%y", "%a %B %d %Y", "%a, %d %B %Y")
_MONTHS = ("%Y-%m", "%Y/%m", "%B %Y", "%m/%Y", "%B-%y", "%B-%Y", "%B/%y", "%B/%Y")  # of which the first day is meant
_QUARTERS = "quarter="  # 2024Q1, 2024-Q1, Q1 2024 or Q1/2024, of which the first day is meant, too
_WEEKS = "week="  # 2024-W05 or 2024W05, of which Monday is meant
_QUARTER = r"(?i)^(?:(?P<first>\d{4})[-\s]?Q(?P<a>[1-4])|Q(?P<b>[1-4])[-/\s]?(?P<second>\d{4}))$"
_NAMES = r"(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[A-Za-z]{0,6}"  # of months
_CLOCKS = (" %H:%M:%S", "T%H:%M:%S", " %H:%M", "T%H:%M", " %H:%M:%S%.f", "T%H:%M:%S%.f")
_TIMES = ("", *_CLOCKS, " %I:%M:%S %p", " %I:%M %p", ", %H:%M")
_ZONES = ("%#z", "Z", " %#z", " UTC")
_DATE = re.compile(
    r"""\s*(
    \d{4}[-/.]\d{1,2}([-/.]\d{1,2})? | \d{4}(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01]) (?=$|T|\s)
    | \d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}) | \d{1,2}/\d{4}
    | (\w{3},?\s+)?\d{1,2}[-.\s]\s?NAME[-\s,]+\d{2,4} | (\w{3},?\s+)?NAME\.?\s+(\d{1,2},?\s+)?\d{4}
    | NAME[-/](\d{4}|\d{2}) | \d{4}[-\s]?[Qq][1-4] | [Qq][1-4][-/\s]?\d{4} | \d{4}-?W\d{2}
    )([T\s,]\s*\d{1,2}(:\d{2}){0,2}([.,]\d+)?\s*([AaPp][Mm])?\s*(Z|UTC|[+-]\d{2}(:?\d{2})?)?)?\s*""".replace(
        "NAME", _NAMES
    ),
    re.VERBOSE,
)
_NUMBER_LIKE = re.compile(r"\s*\d{8}\s*|\s*\d{4}\.\d{1,2}\s*")  # which a number may be too
_COMPARED, _HEAD = 10_000, 64  # cells that are looked at
_ZONE = r"\d:\d{2}[\d.,:]*\s*(Z|UTC|[+-]\d{2}(?::?\d{2})?)\s*$"  # databases write +02
_MIDNIGHT = r"(\d[T\s]\s*)24:00(?::00)?"
_PARTS = r"^\s*(\d{1,2})[/-](\d{1,2})[/-]\d{2,4}"


def looks_like_date(cell: str) -> bool:
    """Whether a cell is a date or a time stamp, and not a number."""
    return bool(_DATE.fullmatch(cell)) and not _NUMBER_LIKE.fullmatch(cell)


class MixedOrderError(ValueError):
    """Days and months come in both orders; `rows` are the numbers of two cells that contradict each other."""

    def __init__(self, rows: tuple[int, int]) -> None:
        super().__init__("days and months come in both orders")
        self.rows = rows


def parse(column: pl.Series, day_first: bool | None = None) -> tuple[pl.Series, pl.Series, list[str]]:
    """Time stamps of text cells, null where one is missing; the rows of cells that are no dates; and what was found.

    Args:
        column: text.
        day_first: whether 2/1/2024 is the second of January; None finds out.
    """
    import polars as pl

    formats = [f"{date}{time}" for date, time in product(_YEAR_FIRST + _POINTS, _TIMES)]
    usual = _most(column, formats)  # most files have one format, which leaves nothing to ask
    none = pl.Series(column.name, [None], dtype=pl.Datetime("us")).new_from_index(0, len(column))
    found = none if usual is None else _one(column, usual)
    left = found.is_null().arg_true()
    used = [usual] if usual else []
    notes: list[str] = []
    if len(left):
        cells = filled(column.gather(left))
        if cells.str.contains(_MIDNIGHT).any():  # the end of a day is the beginning of the next
            midnight = column.str.contains(_MIDNIGHT).fill_null(False)
            made, wrong, told = parse(column.str.replace(_MIDNIGHT, "${1}00:00"), day_first)
            return made.zip_with(~midnight, made.dt.offset_by("1d")), wrong, told
        if day_first is None:
            try:
                day_first, notes = _order(cells)
            except MixedOrderError as error:
                raise MixedOrderError((int(left[error.rows[0]]), int(left[error.rows[1]]))) from None
        order = _DAY_FIRST + _MONTH_FIRST if day_first is None else (_DAY_FIRST if day_first else _MONTH_FIRST)
        formats += [f"{date}{time}" for date, time in product(order + _WORDS, _TIMES)]
        formats += [f"{date}{time}{zone}" for date, time, zone in product(_YEAR_FIRST[:2], _CLOCKS, _ZONES)]
        formats += [*(f"{month}=" for month in _MONTHS), _QUARTERS, _WEEKS]
        left, cells = left.filter(cells.is_not_null()), cells.drop_nulls()
        first = _most(cells, formats)
        for form in [first, *formats] if first else []:
            made = _one(cells, form)
            good = made.is_not_null()
            if good.any():
                used.append(form)
                found = found.scatter(left.filter(good), made.filter(good))
                left, cells = left.filter(~good), cells.filter(~good)
            if not len(left):
                break
    dates = {re.split(r"[ T,]*%[HI]|=", form)[0] for form in used}
    if len(dates) > 1:
        notes.append(f"dates in {len(dates)} formats")
    if any(form.endswith(_ZONES) for form in used):
        zones = column.str.extract(_ZONE).drop_nulls().unique()
        notes.append("time zones converted to UTC" if len(zones) > 1 else f"times in time zone {zones[0]}")
    return found, left, notes


def zone(column: pl.Series) -> int | None:
    """The time zone that all cells with one have, in minutes east of Greenwich; 0 where they differ, None without any.
    `parse` gives such cells in UTC."""
    if not column.head(_COMPARED).str.contains(_ZONE).any():
        return None
    found = column.str.extract(_ZONE).drop_nulls().unique()
    return _minutes(found[0]) if len(found) == 1 else 0


def _minutes(zone: str) -> int:
    if zone in ("Z", "UTC"):
        return 0
    digits = zone[1:].replace(":", "")
    return (1 if zone[0] == "+" else -1) * (60 * int(digits[:2]) + int(digits[2:] or 0))


def order(column: pl.Series) -> bool | None:
    """Whether the dates of a column are written with the day first; None where none is written so that it matters."""
    if not column.head(_COMPARED).str.contains(_PARTS).any():
        return None
    try:
        return _order(filled(column))[0]
    except MixedOrderError:
        return None


def from_digits(values: NDArray[np.float64]) -> NDArray[Any] | None:
    """Dates of numbers such as 20240131; None if one of them is no such number."""
    known = values[~np.isnan(values)]
    if not len(known) or known.min() < 1e7 or known.max() >= 3e7 or (known != np.floor(known)).any():
        return None
    digits = known.astype(np.int64)
    year, month, day = digits // 10_000, digits // 100 % 100, digits % 100
    if not ((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all():
        return None
    months = (12 * (year - 1970) + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (day - 1)
    if (days.astype("datetime64[M]") != months).any():
        return None
    found = np.full(len(values), np.datetime64("NaT"), dtype="datetime64[us]")
    found[~np.isnan(values)] = days
    return found


def _most(column: pl.Series, formats: list[str]) -> str | None:
    """The format of most of the first cells; None if they have none of these, or there are no cells."""
    head = column.drop_nulls().head(_HEAD)
    hits = {form: int(_one(head, form).is_not_null().sum()) for form in formats} if len(head) else {}
    best = max(hits, key=hits.__getitem__, default="")
    return best if hits.get(best) else None


def _one(cells: pl.Series, form: str) -> pl.Series:
    """Cells of this one format; null for others, and for years that are none."""
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
    made = cells.str.to_datetime(form, strict=False, time_unit="us", time_zone=zone, cache=False)
    if zoned:
        made = made.dt.replace_time_zone(None)
    year = made.dt.year()
    return made.set((year < 1000) | (year > 2999), None) if len(made) else made


def _first_days(cells: pl.Series) -> pl.Series:
    """Of quarters; null for other cells."""
    import polars as pl

    parts = cells.str.extract_groups(_QUARTER).struct.unnest()
    year, quarter = parts["first"].fill_null(parts["second"]), parts["a"].fill_null(parts["b"])
    months = (3 * quarter.cast(pl.Int64, strict=False) - 2).cast(pl.String).str.zfill(2)
    return year + "-" + months + "-01"


def _order(cells: pl.Series) -> tuple[bool | None, list[str]]:
    """Whether days come before months, where that is a question."""
    import polars as pl

    parts = cells.str.extract_groups(_PARTS).struct.unnest()
    if parts.width < 2 or parts.to_series(0).null_count() == len(parts):
        return None, []
    first, second = (parts.to_series(place).cast(pl.Int64, strict=False) for place in (0, 1))
    day, month = (first > 12).fill_null(False), (second > 12).fill_null(False)
    if day.any() and month.any():
        raise MixedOrderError((int(day.arg_true()[0]), int(month.arg_true()[0])))
    if day.any() or month.any():
        return bool(day.any()), []
    # Neither: the order in which the dates rise, or else are more regular.
    rough = []
    for one in (False, True):
        steps = parse(cells.head(_COMPARED), one)[0].drop_nulls().diff().drop_nulls()
        rough.append((int((steps < timedelta(0)).sum()), steps.n_unique()))
    if rough[0] != rough[1]:
        return rough[1] < rough[0], [
            f"{'day/month' if rough[1] < rough[0] else 'month/day'}/year: so the dates are in order"
        ]
    return False, ["taken for month/day/year, which the dates do not tell: --data.day-first changes it"]
