"""From tables to the rows of series: which columns are times, values and names of series; and their rows in the order
of time, before they are put on a clock. `tables/dates.py` has the rules for times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmu.errors import DataError
from plmu.timeseries.reporting import shortened
from plmu.timeseries.tables import Table, read_tables
from plmu.timeseries.tables.cells import looks_like_date
from plmu.timeseries.tables.dates import joined_name

if TYPE_CHECKING:
    from plmu.timeseries.series import SeriesConfig

TIME_NAMES = frozenset(
    ("time", "date", "datetime", "timestamp", "ts", "t", "year", "month", "day", "ds", "epoch", "unix", "zeit", "datum")
)
_HEAD = 1000  # values
_FEW = 0.02  # share of rows that may still have the same time and name of a series
_ROWS, _TRIED = 10, 8  # fewest rows of a series where several columns name it, and most columns that are combined
Numbers = NDArray[np.float64]
_MARKS = (-99.0, -999.0, -9999.0, -99999.0, 999.0, 9999.0, 99999.0, 999999.0, -99.9, -999.9, -9999.9)
LARGEST = 1e15  # absolute value up to which sums of squares are finite in float32


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
    dated = [name for name in table.names if looks_like_date(name)]
    if 2 * len(dated) > len(table.names) and not config.values:
        raise DataError(
            f"{table.path} has a column for each time ({', '.join(map(repr, dated[:2]))} …): write a row for each time,"
            " and a column for each series"
        )
    values, covariates = _listed(config.values, table), _listed(config.covariates, table)
    ids = _listed(() if config.id is None else (config.id,), table)
    for name in (config.time, *ids, *values, *covariates):
        if name is not None:
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
    time = joined_name(parts) if parts else config.time or _time(table, config, chosen)
    if config.id is None:
        ids = _ids(table, time, {time, *chosen, *parts}, config)
        if ids:
            of = f"column{'s' * (len(ids) > 1)} {', '.join(map(repr, ids))}"
            notes.append(f"series: named by {of}, since times repeat (--data.id changes it)")
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


def _listed(names: tuple[str, ...], table: Table) -> tuple[str, ...]:
    """Names of columns, each on its own; "shop,item" is two unless a column is called so."""
    split = ([name] if name in table.names else [part.strip() for part in name.split(",")] for name in names)
    return tuple(part for parts in split for part in parts if part)


def _few(names: Any) -> str:
    return ", ".join(map(shortened, list(names)[:8])) + (f" … ({len(names)})" if len(names) > 8 else "")


def _time(table: Table, config: SeriesConfig, chosen: set[str]) -> str | None:
    """The first column of dates, preferably one named as in `TIME_NAMES`; else the first column of numbers so named, if
    none is missing and not all are equal."""
    free = [name for name in table.names if name not in _listed((config.id or "",), table) and name not in chosen]
    dates = [name for name in free if table.kind(name) == "time"]
    if dates:
        named = [name for name in dates if name.strip().lower() in TIME_NAMES]
        return (named or dates)[0]
    for name in free:
        if table.kind(name) == "number" and name.strip().lower() in TIME_NAMES and len(free) + len(chosen) > 1:
            numbers = table.numbers(name, config.bad)
            if not np.isnan(numbers).any() and len(np.unique(numbers)) > 1:
                return name
    return None


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
    repeats, or no columns do so."""
    if time is None:
        return ()
    times = table.times(time, config.day_first, config.bad)
    rows = len(times)
    if bool((times[1:] > times[:-1]).all()):
        return ()
    _, place = np.unique(times, return_inverse=True)
    if rows - (int(place.max()) + 1) <= max(_FEW * rows, 1):
        return ()
    free = [name for name in table.names if name not in taken and table.kind(name) != "time"]
    for names in _candidates(table, free, rows):
        joined = np.zeros(rows, dtype=np.int64)
        for name in names:
            codes, labels = table.codes(name)
            joined = joined * len(labels) + codes
        series, joined = np.unique(joined, return_inverse=True)
        most = rows / (2 if len(names) == 1 else _ROWS)
        if 1 < len(series) <= most and rows - len(np.unique(place * len(series) + joined)) <= _FEW * rows:
            return names
    return ()


def _candidates(table: Table, free: list[str], rows: int) -> Iterator[tuple[str, ...]]:
    """Columns that may name series, likeliest first: each column of text; combinations of up to three columns of text
    or of few different integers; last any column, since numbers are more likely measurements."""
    text = [name for name in free if table.kind(name) == "text"]
    yield from ((name,) for name in text)
    integers = [name for name in free if name not in text and _integers(table.numbers(name, "missing"))]
    few = [name for name in (*text, *integers) if 1 < len(table.codes(name)[1]) <= rows / _ROWS][:_TRIED]
    for count in (1, 2, 3):
        yield from combinations(few, count)
    yield from ((name,) for name in free)


def _integers(values: np.ndarray[Any, np.dtype[np.float64]]) -> bool:
    return bool((values == np.floor(values))[~np.isnan(values)].all())


@dataclass
class RawSeries:
    """The rows of one series as they are in the file, in the order of time."""

    name: str
    times: NDArray[Any] | None
    values: Numbers  # (rows, values and covariates)


def raw_series(
    table: Table, columns: Columns, config: SeriesConfig, several: bool, zone: int | None
) -> list[RawSeries]:
    """The series of one file, in the order of time; the table's notes say what was changed.

    Args:
        table: the file.
        columns: its columns of times, values, covariates and names of series.
        config: how to read them.
        several: whether there are other files, so that series are named by their file, too.
        zone: minutes east of Greenwich, in which times that have a time zone are returned.

    Raises:
        DataError: a value is too large to compute with.
    """
    numbers = {name: table.numbers(name, config.bad, name in columns.covariates) for name in columns.read}
    values = np.stack(list(numbers.values()), axis=1)
    if config.absent:
        marked = np.isin(values, config.absent)
        values[marked] = np.nan
        table.notes.append(
            f"{int(marked.sum()):,} values taken as missing: {', '.join(f'{x:g}' for x in config.absent)}"
        )
    for name, column in zip(numbers, values.T, strict=True):
        table.notes += _marks(name, column)
    if np.fmax.reduce(values, axis=None) > LARGEST or np.fmin.reduce(values, axis=None) < -LARGEST:
        large = np.flatnonzero((np.abs(values) > LARGEST).any(axis=1))
        place = int((np.abs(values[large[0]]) > LARGEST).argmax())
        fault = f"{values[large[0], place]:g} is too large to compute with: divide the column"
        raise DataError(f"{table.place(int(large[0]), columns.read[place])}: {fault}")
    times = None
    if columns.time is not None:
        times = table.times(columns.time, config.day_first, config.bad)
        if zone and table.zone(columns.time) is not None:
            times = times + np.timedelta64(zone, "m")
    name = table.path.stem if several else ""
    if columns.id is None:
        return [_sorted(table, name, times, values)]
    codes, labels = table.codes(columns.id)
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(1, len(labels) + 1))
    return [
        _sorted(table, f"{name}/{label}" if name else label, None if times is None else times[rows], values[rows])
        for label, rows in zip(labels, np.split(order, ends[:-1]), strict=True)
    ]


def _marks(name: str, values: Numbers) -> list[str]:
    """Notes on numbers such as -999 that may stand for missing values: they repeat, and are far from all others."""
    notes = []
    for mark in _MARKS:
        same = values == mark
        if np.count_nonzero(same) < 2:
            continue
        others = values[~same & ~np.isnan(values)]
        low, high = (others.min(), others.max()) if len(others) else (mark, mark)
        if max(low - mark, mark - high) > high - low > 0:
            notes.append(
                f"column {name!r}: {mark:g} comes {int(same.sum()):,} times and is far from all others: if it stands"
                f" for a missing value, give --data.absent {mark:g}"
            )
    return notes


def _sorted(table: Table, name: str, times: NDArray[Any] | None, values: Numbers) -> RawSeries:
    """A series in the order of time, without rows that have no time, and notes of both."""
    if times is None:
        return RawSeries(name, None, values)
    absent = np.isnat(times) if np.issubdtype(times.dtype, np.datetime64) else np.isnan(times)
    if absent.any():
        table.notes.append(f"times: {int(absent.sum()):,} rows without one left out")
        times, values = times[~absent], values[~absent]
    if len(times) > 1 and (times[1:] < times[:-1]).any():
        order = np.argsort(times, kind="stable")
        times, values = times[order], values[order]
        table.notes.append("times: rows put into the order of time")
    return RawSeries(name, times, values)


def rows_of(values: Numbers) -> int:
    """The number of rows up to the last one with a value."""
    measured = np.asarray(~np.isnan(values).all(axis=1))
    return len(measured) - int(measured[::-1].argmax()) if measured.any() else 0


def read_future(path: Path, columns: Columns, config: SeriesConfig, zone: int | None) -> dict[str, RawSeries]:
    """The rows of --data.future, by the name of their series; under "" if the file does not name series, for all."""
    tables = read_tables(path, config.header)
    for table in tables:
        table.join_again(columns.time, columns.id)
    alone = len(tables) == 1 and columns.id not in tables[0].names
    plain = replace(columns, values=(), id=None if alone else columns.id)
    plans = [plan for table in tables for plan in raw_series(table, plain, config, len(tables) > 1, zone)]
    return {plan.name: plan for plan in plans}


def with_future(series: RawSeries, future: dict[str, RawSeries]) -> RawSeries:
    """A series followed by the later rows of `future`, which have covariates alone, instead of its own such rows."""
    ahead = future.get(series.name, future.get(""))
    if ahead is None:
        return series
    channels = series.values.shape[1] - ahead.values.shape[1]
    last = rows_of(series.values[:, :channels])
    if not last:
        return series
    times, values = None, ahead.values
    if series.times is not None and ahead.times is not None:
        if series.times.dtype != ahead.times.dtype:
            raise DataError("the times of --data.future are not written as those of --data.file")
        later = ahead.times > series.times[last - 1]
        times, values = np.concatenate([series.times[:last], ahead.times[later]]), values[later]
    empty = np.full((len(values), channels), np.nan)
    return RawSeries(
        series.name, times, np.concatenate([series.values[:last], np.concatenate([empty, values], axis=1)])
    )
