"""The rows of series as they are in tables, in the order of time, before they are put on a clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmu.clock import NO_ZONE
from plmu.data.table_files import stem
from plmu.errors import DataError
from plmu.timeseries.columns import LARGEST, Columns
from plmu.timeseries.tables import Table

if TYPE_CHECKING:
    from plmu.timeseries.series import SeriesConfig

Numbers = NDArray[np.float64]
_MARKS = (-99.0, -999.0, -9999.0, -99999.0, 999.0, 9999.0, 99999.0, 999999.0, -99.9, -999.9, -9999.9)


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
        zone: minutes east of Greenwich, in which times that have a time zone are returned; None refuses them.

    Raises:
        DataError: a value is too large to compute with, or times have a time zone and `zone` is None.
    """
    numbers = {name: table.numbers(name, config.bad) for name in columns.read}
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
        if table.zone(columns.time) is not None:
            if zone is None:
                raise DataError(f"{table.path}, column {columns.time!r}: {NO_ZONE}")
            times = times + np.timedelta64(zone, "m")
    name = stem(table.path) if several else ""
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


def read_future(tables: list[Table], columns: Columns, config: SeriesConfig, zone: int | None) -> dict[str, RawSeries]:
    """The rows of --data.future, by the name of their series; under "" if it does not name series, for all."""
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


def without_late(columns: Columns, raw: list[RawSeries]) -> tuple[Columns, list[RawSeries], list[str]]:
    """Leave out columns of values that begin so late that more is lost with them than without.

    A series begins where all its columns have begun, so a late column costs the earlier rows of all others.

    Args:
        columns: of the tables.
        raw: the series.

    Returns:
        The columns and series without the late ones, and notes.
    """
    width = len(columns.values)
    rows = np.array([rows_of(series.values[:, :width]) for series in raw])
    absent = [np.isnan(series.values[:count, :width]) for series, count in zip(raw, rows, strict=True)]
    begins = [
        np.where(column.all(axis=0), len(column), column.argmin(axis=0)) if len(column) else None for column in absent
    ]
    late = np.stack([begin for begin in begins if begin is not None]) if rows.any() else np.zeros((1, width), np.int64)
    order = np.argsort(late.sum(axis=0), kind="stable")
    remaining = rows.sum() - np.maximum.accumulate(late[:, order], axis=1).sum(axis=0)
    values = np.arange(1, width + 1) * remaining
    count = width - int(values[::-1].argmax())
    if count == width:
        return columns, raw, []
    chosen, dropped = sorted(order[:count].tolist()), sorted(order[count:].tolist())
    shown = ", ".join(f"{columns.values[place]!r} {late[:, place].sum():,} rows" for place in dropped[:4])
    ellipsis = ", …" if len(dropped) > 4 else ""
    note = (
        f"left out, since they begin late or are not in all series: {shown}{ellipsis} after the others. Name columns"
        " with --data.values to forecast them from there on"
    )
    places = [*chosen, *range(width, width + len(columns.covariates))]
    raw = [replace(series, values=series.values[:, places]) for series in raw]
    return replace(columns, values=tuple(columns.values[place] for place in chosen)), raw, [note]
