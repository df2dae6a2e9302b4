"""Detecting which columns of a table are times, values and names of series. `tables/dates.py` has the rules for
times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from plmu.errors import DataError
from plmu.timeseries.plotting import shortened
from plmu.timeseries.tables import Table
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


@dataclass(frozen=True)
class Columns:
    """What the columns of a table are."""

    time: str | None
    values: tuple[str, ...]
    id: str | None
    notes: tuple[str, ...] = ()
    covariates: tuple[str, ...] = ()

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
        for names, why in ((text, "no numbers"), (empty, "empty"), (constant, "constant"), (counted, "counts rows")):
            if names:
                notes.append(f"left out, {why}: {_few(names)}")
        values = tuple(name for name in numbers if name not in {*empty, *constant, *counted})
    if not values:
        raise DataError(f"{table.path} has no column of numbers to forecast: it has {_few(table.names)}")
    notes.append(f"values: {_few(values)}")
    if covariates:
        notes.append(f"covariates, known ahead: {_few(covariates)}")
    if time is None:
        notes.append("time: no column found; rows are taken as equally far apart")
    return Columns(time, values, series, tuple(notes), covariates)


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
