"""Which columns of tables are times, values, covariates and names of series. `tables/dates.py` has the rules for
times."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmu.clock import plain
from plmu.errors import DataError
from plmu.timeseries.reporting import shortened
from plmu.timeseries.tables import Table
from plmu.timeseries.tables.cells import MONTH, looks_like_date
from plmu.timeseries.tables.date_words import plain as plain_words
from plmu.timeseries.tables.dates import joined_name, surely_digits

if TYPE_CHECKING:
    from plmu.timeseries.series import SeriesConfig

TIME_NAMES = frozenset(
    ("time", "date", "datetime", "timestamp", "ts", "t", "year", "month", "day", "ds", "epoch", "unix", "zeit", "datum")
)
_MORE_NAMES = ("yearmonth", "yearweek", "week", "quarter", "yyyymm", "zeitstempel", "fecha", "dt", "datetimeutc")
# Columns that count parts of a day or week: they do not tell series apart.
_PARTS = frozenset(
    (
        "hour",
        "hr",
        "minute",
        "period",
        "interval",
        "slot",
        "quarter",
        "month",
        "week",
        "day",
        "weekday",
        "dayofweek",
        "dow",
    )
)
NAMED_ID = "unique_id"  # what forecasting libraries call the column that names series
_HEAD = 1000  # values
_FEW = 0.02  # share of rows that may still have the same time and name of a series
_ROWS, _TRIED = 10, 8  # fewest rows of a series where several columns name it, and most columns that are combined
Numbers = NDArray[np.float64]
# Least `_completeness` of the series that columns name; with less, a column describes rows and does not name series.
_COMPLETE = 0.5
LARGEST = 1e15  # absolute value up to which sums of squares are finite in float32
_COMPLETE_BY_INTEGERS = 0.75  # the same where integers name them, which may be measurements; of all times


@dataclass(frozen=True)
class Columns:
    """What the columns of a table are."""

    time: str | None
    values: tuple[str, ...]
    id: str | None
    notes: tuple[str, ...] = ()
    covariates: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # all columns of the file, in its order

    @property
    def read(self) -> tuple[str, ...]:
        """Columns of numbers: values, then covariates."""
        return (*self.values, *self.covariates)


def find_columns(tables: list[Table], config: SeriesConfig) -> Columns:
    """The columns that the configuration names, or else those detected in the first table.

    Adds columns that consist of several others (a date and a time of day; several ids) to the first table.

    Raises:
        DataError: a column is not there or named twice, or no column can be forecast.
    """
    table, notes = tables[0], []
    names = tuple(table.names)
    dated = [name for name in table.names if looks_like_date(name)] or _named_times(table.names)
    if 2 * len(dated) > len(table.names) and not config.values:
        raise DataError(
            f"{table.path} has a column for each time ({', '.join(map(repr, dated[:2]))} …): write a row for each time,"
            " and a column for each series"
        )
    values, covariates = _listed(config.values, table), _listed(config.covariates, table)
    ids = _listed(() if config.id is None else (config.id,), table)
    for name in (config.time, *ids, *values, *covariates):
        if name:
            table.kind(name)  # raises unless there is such a column
    if len(set(values)) < len(values):
        raise DataError(f"--data.values names a column twice: {', '.join(values)}")
    if len(set(covariates)) < len(covariates):
        raise DataError(f"--data.covariates names a column twice: {', '.join(covariates)}")
    for option, others in (("values", values), ("time", (config.time,)), ("id", ids)):
        for name in covariates:
            if name in others:
                raise DataError(
                    f"--data.covariates and --data.{option} both name the column {name!r}: it is one of them"
                )
    chosen = {*values, *covariates}
    parts = table.join_times() if config.time is None else ()
    if chosen & set(parts):
        parts = ()
    if parts:
        notes.append(f"time: columns {', '.join(map(repr, parts))} are a time together")
    time = joined_name(parts) if parts else config.time or (None if config.time == "" else _time(table, config, chosen))
    if config.id is None and time is None:
        _check_single(table, chosen)
    if config.id is None:
        ids = _ids(table, time, {time, *chosen, *parts}, config)
        if ids:
            of = f"column{'s' * (len(ids) > 1)} {', '.join(map(repr, ids))}"
            why = "" if ids == (NAMED_ID,) else ", since times repeat"
            notes.append(f"series: named by {of}{why} (--data.id changes it)")
    series = (ids[0] if len(ids) == 1 else table.join_names(ids)) if ids else None
    if not values:
        free = [name for name in table.names if name not in (time, series, *ids, *covariates, *parts)]
        numbers = [name for name in free if table.kind(name) == "number"]
        text = [name for name in free if name not in numbers]
        arrays = {name: table.numbers(name, config.bad) for name in numbers}
        empty = [name for name in numbers if _same(arrays[name]) and np.isnan(arrays[name]).all()]
        counted = [name for name in numbers if name not in empty and _counts(arrays[name])]
        if len(counted) + len(empty) == len(numbers) or time is None:
            counted = counted if time is None and len(counted) + len(empty) < len(numbers) else []
        constant = [name for name in numbers if name not in empty and _same(arrays[name])]
        if len(constant) + len(empty) + len(counted) >= len(numbers):
            constant = []  # there is nothing else to forecast
        for unused, why in ((text, "no numbers"), (empty, "empty"), (constant, "constant"), (counted, "counts rows")):
            if unused:
                notes.append(f"left out, {why}: {_few(unused)}")
        values = tuple(name for name in numbers if name not in {*empty, *constant, *counted})
    if not values:
        raise DataError(f"{table.path} has no column of numbers to forecast: it has {_few(table.names)}")
    notes.append(f"values: {_few(values)}")
    if covariates:
        notes.append(f"covariates, known ahead: {_few(covariates)}")
    if time is None:
        notes.append("time: no column found; rows are taken as equally far apart")
    return Columns(time, values, series, tuple(notes), covariates, names)


def names_series(table: Table, config: SeriesConfig) -> bool:
    """Whether columns of a table would be taken as names of series (`find_columns`).

    Raises:
        DataError: a choice is needed.
    """
    parts = table.join_times()
    time = joined_name(parts) if parts else _time(table, config, set())
    return bool(_ids(table, time, {time, *parts}, config))


def _named_times(names: list[str]) -> list[str]:
    """The columns that are called like the months of a year, or like years that follow one another."""
    months = [name for name in names if re.fullmatch(MONTH, plain_words(name).strip()[:3]) and name.strip().isalpha()]
    years = [name for name in names if re.fullmatch("(1[89]|20)[0-9]{2}", name)]
    following = len(years) > 2 and all(int(b) - int(a) == 1 for a, b in pairwise(years))
    return months if len(months) == 12 else years if following else []


def _listed(names: tuple[str, ...], table: Table) -> tuple[str, ...]:
    """Names of columns, each on its own; "shop,item" is two unless a column is called so."""
    split = ([name] if name in table.names else [part.strip() for part in name.split(",")] for name in names)
    return tuple(part for parts in split for part in parts if part)


def _few(names: Any) -> str:
    return ", ".join(map(shortened, list(names)[:8])) + (f" … ({len(names)})" if len(names) > 8 else "")


def _time(table: Table, config: SeriesConfig, chosen: set[str]) -> str | None:
    """The column of times, by the rules in `tables/dates.py`; None if there is none.

    Raises:
        DataError: a column is meant as times and cannot be read.
    """
    free = [name for name in table.names if name not in _listed((config.id or "",), table) and name not in chosen]
    named = [name for name in free if _is_named_time(name)]
    dates = [name for name in free if table.kind(name) == "time"]
    if dates:
        first = next((name for name in dates if name in named), dates[0])
        return next((name for name in dates if name != first and _is_finer(table, name, first, config)), first)
    several = len(free) + len(chosen) > 1
    numbers = {name: _quiet(table, name) for name in free if table.kind(name) == "number" and several}
    for name in sorted(numbers, key=lambda name: name not in named):
        if surely_digits(numbers[name]):
            return name
    for name in named:
        if name in numbers and not np.isnan(numbers[name]).any() and len(np.unique(numbers[name])) > 1:
            return name
    for name in free:
        if cell := table.unread_time(name, name in named):
            raise DataError(
                f"{cell} looks like a time and is not understood. Write times as 2024-01-31 or 2024-01-31 10:00+01:00,"
                ' name another column with --data.time, or give --data.time "" to take rows as equally far apart'
            )
    return None


def _is_named_time(name: str) -> bool:
    return "".join(letter for letter in name.lower() if letter not in " _-/.") in {*TIME_NAMES, *_MORE_NAMES}


def _quiet(table: Table, name: str) -> Numbers:
    """A column as numbers, text as missing, without adding notes."""
    notes = list(table.notes)
    values = table.numbers(name, "missing")
    table.notes[:] = notes
    return values


def _is_finer(table: Table, name: str, other: str, config: SeriesConfig) -> bool:
    """Whether a column of dates has the days of another, which has days alone, and times of day."""
    notes = list(table.notes)
    try:
        times, days = (table.times(column, config.day_first, "missing") for column in (name, other))
    except DataError:
        return False
    finally:
        table.notes[:] = notes
    return bool(
        (days == days.astype("datetime64[D]")).all() and (times.astype("datetime64[D]") == days).all()
    ) and bool((times != days).any())


def _check_single(table: Table, chosen: set[str]) -> None:
    """Raise DataError if a table without times seems to have several series, one below the other."""
    for name in table.names:
        is_id = table.kind(name) == "text" or name.strip().lower().endswith("id")
        stacked = table.kind(name) == "number" and in_equal_blocks(_quiet(table, name))
        if name in chosen or not (is_id or stacked):
            continue
        codes, labels = table.codes(name)
        if stacked or (1 < len(labels) <= table.rows / _ROWS and int((np.diff(codes) != 0).sum()) == len(labels) - 1):
            raise DataError(
                f"{table.path}: column {name!r} seems to name {len(labels):,} series, one below the other, and there is"
                f' no column of times. Give --data.id {name}, or --data.id "" if all rows are a single series'
            )


def in_equal_blocks(values: NDArray[Any]) -> bool:
    """Whether different integers stand one below the other, each in as many rows, as names of series do."""
    if not len(values) or not np.isfinite(values).all() or not _integers(values):
        return False
    begins = np.flatnonzero(np.diff(values, prepend=np.nan))
    sizes = np.diff(begins, append=len(values))
    return len(begins) > 1 and len(np.unique(values)) == len(begins) and sizes.min() == sizes.max() >= _ROWS


def _counts(values: np.ndarray[Any, np.dtype[np.float64]]) -> bool:
    """Whether values number the rows: 0, 1, 2 … or 1, 2, 3 …"""
    return len(values) > 2 and values[0] in (0.0, 1.0) and bool((np.diff(values) == 1).all())


def _same(values: np.ndarray[Any, np.dtype[np.float64]]) -> bool:
    """Whether all values that are not missing are equal."""
    for part in (values[:_HEAD], values):  # most columns vary within their first values
        least, most = np.fmin.reduce(part), np.fmax.reduce(part)
        if least != most and not np.isnan(least):
            return False
    return True


def _ids(table: Table, time: str | None, taken: set[str | None], config: SeriesConfig) -> tuple[str, ...]:
    """The column, or the two or three columns together, that tell rows of the same time apart; empty if hardly any time
    repeats, or no columns do so. A column called unique_id names series in any case, unless it numbers rows."""
    if time is None:
        return ()
    times = table.times(time, config.day_first, config.bad)
    rows = len(times)
    free = [name for name in table.names if name not in taken and table.kind(name) != "time"]
    increasing = bool((times[1:] > times[:-1]).all())
    if increasing and NAMED_ID not in free:
        return ()
    _, place = np.unique(times, return_inverse=True)
    numbers = {name for name in free if table.kind(name) == "number"}
    if NAMED_ID in free and (config.values or numbers - {NAMED_ID}):
        codes, labels = table.codes(NAMED_ID)
        repeats = rows - len(np.unique(place * len(labels) + codes))
        if len(labels) <= rows / 2 and repeats <= _FEW * rows:
            return (NAMED_ID,)
    repeated = rows - (int(place.max()) + 1)
    if increasing or repeated <= max(_FEW * rows, 1):
        return ()
    sparse: tuple[str, ...] = ()
    for names in _candidates(table, free, rows):
        if not config.values and numbers <= {*names}:
            continue  # nothing would be left to forecast
        joined = np.zeros(rows, dtype=np.int64)
        for name in names:
            codes, labels = table.codes(name)
            joined = joined * len(labels) + codes
        series, joined = np.unique(joined, return_inverse=True)
        most = rows / (2 if len(names) == 1 else _ROWS)
        if 1 < len(series) <= most and rows - len(np.unique(place * len(series) + joined)) <= _FEW * rows:
            worded = any(table.kind(name) == "text" for name in names)
            complete = _completeness(plain(times), joined) >= _COMPLETE
            if complete and (worded or _completeness(place, joined, 1) >= _COMPLETE_BY_INTEGERS):
                return names
            sparse = sparse or names
    if 2 * repeated > rows and config.duplicates == "mean":
        others = [name for name in table.names if name != time and table.kind(name) == "time"]
        other = f", or another column of times with --data.time, such as {others[0]!r}" if others else ""
        such = f", such as {','.join(sparse)!r}" if sparse else ""
        raise DataError(
            f"{table.path}: {repeated:,} of {rows:,} rows repeat a time in column {time!r}. Name the columns that tell"
            f' series apart with --data.id{such}{other}; or give --data.id "" to average rows of the same time'
        )
    return ()


def _completeness(times: NDArray[Any], series: NDArray[np.int64], step: float | None = None) -> float:
    """The share of steps between the first and last rows of series that have a row; a step is by default the median
    distance of rows in each series."""
    order = np.lexsort((times, series))
    times, series = times[order], series[order]
    starts = np.flatnonzero(np.append(True, series[1:] != series[:-1]))
    steps = 0.0
    for rows in np.split(times, starts[1:]):
        apart = np.diff(rows)
        apart = apart[apart > 0]
        steps += 1 + (float(apart.sum() / (step or np.median(apart))) if len(apart) else 0.0)
    return len(times) / steps


def _candidates(table: Table, free: list[str], rows: int) -> Iterator[tuple[str, ...]]:
    """Columns that may name series, likeliest first: each column of text; combinations of up to three columns of text
    or of few different integers; last any column of integers, since these are more likely measurements."""
    text = [name for name in free if table.kind(name) == "text"]
    yield from ((name,) for name in text)
    numbers = [name for name in free if name not in text and name.strip().lower() not in _PARTS]
    integers = [name for name in numbers if _integers(_quiet(table, name))]
    few = [name for name in (*text, *integers) if 1 < len(table.codes(name)[1]) <= rows / _ROWS][:_TRIED]
    for count in (1, 2, 3):
        yield from combinations(few, count)
    yield from ((name,) for name in integers)


def _integers(values: np.ndarray[Any, np.dtype[np.float64]]) -> bool:
    return bool((values == np.floor(values))[~np.isnan(values)].all())
