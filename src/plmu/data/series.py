"""Series of one's own: from tables to rows at equal steps, without gaps, and their split by time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plmu.data.clock import DAY, Clock, Steps, find_clock
from plmu.data.columns import Columns, find_columns
from plmu.data.files import DataConfig, DataError
from plmu.data.tables import Table, read_tables

Numbers = NDArray[np.float64]
_NOTES = 20  # of further files
_LARGEST = 1e15  # values of which sums of squares are still numbers in float32
_BROKEN = 0.1  # share of long gaps, above which the times cannot be meant as a grid


@dataclass
class SeriesConfig(DataConfig):
    """Which series, and how gaps are treated."""

    file: Path | None = None
    """CSV, Parquet or NumPy file of yours, or a folder of them with a series each."""
    time: str | None = None
    """Column of times. Default: found. Without one rows are equally far apart."""
    values: tuple[str, ...] = ()
    """Columns to forecast. Default: all columns of numbers that vary."""
    id: str | None = None
    """Column that names the series of a row, where a file holds several. Default: found where times repeat."""
    step: str | None = None
    """Time between rows, such as 15min, 1h, 1d or 1mo; rows of one step are averaged. Default: found."""
    missing: Literal["hold", "linear", "split", "raise"] = "hold"
    """Gaps: hold the last value, join both ends linearly (which looks ahead), split the series there, or raise."""
    longest_gap: int = 48
    """Steps; at longer gaps a series is split."""
    irregular: Literal["grid", "rows", "raise"] = "grid"
    """Times off the grid: move them to the nearest step, take rows as equally far apart, or raise."""
    duplicates: Literal["mean", "first", "last", "raise"] = "mean"
    """Rows with the same time: their mean, the first, the last, or raise."""
    bad: Literal["raise", "missing"] = "raise"
    """Text in a column of numbers: raise, or take it as missing."""
    day_first: bool | None = None
    """Whether 2/1/2024 is the second of January. Default: found."""
    header: bool | None = None
    """Whether the first line of a CSV file names the columns. Default: found."""
    valid: float = 0.1
    """Share of the rows, before the test rows, to choose settings and intervals by."""
    test: float = 0.2
    """Share of the rows at the end to test on."""

    def __post_init__(self) -> None:
        for name in ("valid", "test"):
            if not 0 < getattr(self, name) < 0.5:
                raise ValueError(f"data.{name} must be a share between 0 and 0.5, got {getattr(self, name)}")
        if self.longest_gap < 0:
            raise ValueError(f"data.longest_gap must be at least 0, got {self.longest_gap}")


@dataclass(frozen=True)
class Piece:
    """Rows of one series at consecutive steps."""

    name: str  # of the series
    start: int  # the step of its first row
    values: Numbers  # (time, channels), without NaN
    measured: NDArray[np.bool_]  # (time, channels): False where a gap was filled
    offset: float = 0.0  # of its times after those of the clock, in steps

    def __len__(self) -> int:
        return len(self.values)


@dataclass
class SeriesData:
    """Series on one clock, and what was found and done."""

    columns: Columns
    clock: Clock
    pieces: list[Piece]
    notes: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # of rows that were changed

    @property
    def rows(self) -> int:
        return sum(map(len, self.pieces))


def load(config: SeriesConfig, known: tuple[Columns, Clock] | None = None) -> SeriesData:
    """The series of the configuration's file.

    Args:
        config: the file and how to read it.
        known: columns and clock of the data that a model was trained on, to read other data alike.

    Raises:
        DataError: there is no file, or something in it is at fault.
    """
    if config.file is None:
        raise DataError("give your data as --data.file: a CSV, Parquet or NumPy file, or a folder of them")
    tables = read_tables(config.file, config.header)
    columns = known[0] if known is not None else find_columns(tables, config)
    if known is not None and config.day_first is None:
        config = replace(config, day_first=known[1].day_first)  # a few dates may not tell
    raw = [one for table in tables for one in _raw(table, columns, config, len(tables) > 1)]
    notes = list(dict.fromkeys(tables[0].notes))
    if len(tables) > 1:
        notes.append(f"{len(tables)} files, each a series named by its file")
    notes += [f"{table.path.name}: {note}" for table in tables[1:] for note in dict.fromkeys(table.notes[1:])][:_NOTES]
    notes += columns.notes
    times = [one.times for one in raw if one.times is not None and len(one.times)]
    if known is not None:
        clock = known[1]
        _note_other_rate(clock, times, notes)
    else:
        clock = find_clock(times, config.step) if times and config.irregular != "rows" else Clock()
        if columns.time is not None and clock.kind != "rows":
            told = tables[0].day_first(columns.time) if config.day_first is None else config.day_first
            clock = replace(clock, day_first=told)
    data = SeriesData(columns, clock, [], notes)
    for one in raw:
        data.pieces += _pieces(one, config, data)
    if clock.kind != "rows":
        _note_clock(data, times, config)
    data.notes += _counted(data.counts, data.rows, config)
    if not data.pieces:
        raise DataError(f"{config.file} has no row with a value in {', '.join(map(repr, columns.values))}")
    if len({one.name for one in raw}) > 1:
        by = f"column {columns.id!r}" if columns.id else "file"
        data.notes.append(f"series: {len({one.name for one in raw}):,}, by {by}")
    return data


@dataclass
class _Raw:
    """The rows of one series as they are in the file, in the order of time."""

    name: str
    times: NDArray[Any] | None
    values: Numbers


def _raw(table: Table, columns: Columns, config: SeriesConfig, several: bool) -> list[_Raw]:
    values = np.stack([table.numbers(name, config.bad) for name in columns.values], axis=1)
    if np.fmax.reduce(values, axis=None) > _LARGEST or np.fmin.reduce(values, axis=None) < -_LARGEST:
        large = np.flatnonzero((np.abs(values) > _LARGEST).any(axis=1))
        place = int((np.abs(values[large[0]]) > _LARGEST).argmax())
        fault = f"{values[large[0], place]:g} is too large to compute with: divide the column"
        raise DataError(f"{table.place(int(large[0]), columns.values[place])}: {fault}")
    times = None if columns.time is None else table.times(columns.time, config.day_first)
    name = table.path.stem if several else ""
    if columns.id is None:
        return [_sorted(table, name, times, values)]
    codes, labels = table.codes(columns.id)
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(1, len(labels) + 1))
    found = []
    for label, rows in zip(labels, np.split(order, ends[:-1]), strict=True):
        own = f"{name}/{label}" if name else label
        found.append(_sorted(table, own, None if times is None else times[rows], values[rows]))
    return found


def _sorted(table: Table, name: str, times: NDArray[Any] | None, values: Numbers) -> _Raw:
    """Without rows that have no time, in the order of time."""
    if times is None:
        return _Raw(name, None, values)
    absent = np.isnat(times) if np.issubdtype(times.dtype, np.datetime64) else np.isnan(times)
    if absent.any():
        table.notes.append(f"times: {int(absent.sum()):,} rows without one left out")
        times, values = times[~absent], values[~absent]
    if len(times) > 1 and (times[1:] < times[:-1]).any():
        order = np.argsort(times, kind="stable")
        times, values = times[order], values[order]
        table.notes.append("times: rows put into the order of time")
    return _Raw(name, times, values)


def _pieces(one: _Raw, config: SeriesConfig, data: SeriesData) -> list[Piece]:
    """A series on the clock, split at long gaps."""
    known = np.asarray(~np.isnan(one.values).all(axis=1))
    if not known.any():
        return []
    last = len(known) - int(known[::-1].argmax())  # what comes after the last value is to be forecast
    values, offset = one.values[:last], 0.0
    if one.times is None or data.clock.kind == "rows":
        steps: Steps = np.arange(last)
    else:
        if one.times.dtype.kind != ("f" if data.clock.kind == "numbers" else "M"):
            raise DataError(f"the times of {config.file} are not written as those that the model was trained on")
        offset = data.clock.offset(one.times[:last])
        steps = data.clock.steps(one.times[:last], offset)
        steps, values = _merged(steps, values, config, data)
    longest = 0 if config.missing == "split" else config.longest_gap
    breaks = np.flatnonzero(np.diff(steps) > longest + 1) + 1
    if len(breaks) > max(_BROKEN * len(steps), 10) and config.missing != "split":
        raise DataError(
            f"the times are {data.clock.told} apart at the median, yet {len(breaks):,} of {len(steps):,} are more than"
            f" {longest} such steps apart: give --data.step, --data.longest-gap or --data.irregular rows"
        )
    found = []
    for rows in np.split(np.arange(len(steps)), breaks) if len(breaks) else [slice(None)]:
        found += _filled(one.name, steps[rows], values[rows], config, data)
    data.counts["split"] += len(breaks)
    return [replace(piece, offset=offset) for piece in found]


def _merged(steps: Steps, values: Numbers, config: SeriesConfig, data: SeriesData) -> tuple[Steps, Numbers]:
    """One row a step."""
    again = np.diff(steps) == 0
    if not again.any():
        return steps, values
    if config.duplicates == "raise":
        when = data.clock.times(steps[1:][again][:1])[0]
        raise DataError(
            f"{config.file}: several rows have the time {when}: choose --data.duplicates mean, first or last"
        )
    starts = np.flatnonzero(np.append(True, ~again))
    data.counts["merged"] += int(again.sum())
    if config.duplicates == "first":
        return steps[starts], values[starts]
    if config.duplicates == "last":
        return steps[starts], values[np.append(starts[1:], len(steps)) - 1]
    seen = ~np.isnan(values)
    totals = np.add.reduceat(np.where(seen, values, 0.0), starts, axis=0)
    counts = np.add.reduceat(seen.astype(np.int64), starts, axis=0)
    return steps[starts], np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)


def _filled(name: str, steps: Steps, values: Numbers, config: SeriesConfig, data: SeriesData) -> list[Piece]:
    """Rows at all steps from the first at which every column has had a value."""
    begun = (~np.isnan(values)).argmax(axis=0)
    empty = np.isnan(values).all(axis=0)
    if empty.any():
        data.counts["empty"] += len(steps)
        return []
    first = int(begun.max())
    data.counts["before"] += first
    steps, values = steps[first:], values[first:]
    if len(steps) == int(steps[-1] - steps[0]) + 1 and not np.isnan(values).any():
        return [Piece(name, int(steps[0]), values, np.ones(values.shape, bool))]
    grid = np.full((int(steps[-1] - steps[0]) + 1, values.shape[1]), np.nan)
    grid[steps - steps[0]] = values
    measured = ~np.isnan(grid)
    absent_rows = int((~measured.all(axis=1)).sum())
    if config.missing == "raise":
        row = int((~measured.all(axis=1)).argmax())
        column = data.columns.values[int((~measured[row]).argmax())]
        when = data.clock.times(steps[:1] + row)[0]
        raise DataError(
            f"{config.file}, column {column!r}: no value at {when}: choose --data.missing hold, linear or split"
        )
    if config.missing == "split":
        whole = measured.all(axis=1)
        bounds = np.flatnonzero(np.diff(np.concatenate([[False], whole, [False]]).astype(np.int8)))
        data.counts["gaps"] += absent_rows
        return [
            Piece(name, int(steps[0]) + int(a), grid[a:b], measured[a:b])
            for a, b in zip(bounds[::2], bounds[1::2], strict=True)
        ]
    at = np.arange(len(grid))
    for held, seen in zip(grid.T, measured.T, strict=True):
        if config.missing == "linear":
            held[:] = np.interp(at, at[seen], held[seen])
        else:
            held[:] = held[np.maximum.accumulate(np.where(seen, at, 0))]
    data.counts["filled"] += absent_rows
    return [Piece(name, int(steps[0]), grid, measured)]


def _note_other_rate(clock: Clock, times: Sequence[NDArray[Any]], notes: list[str]) -> None:
    """Say that rows are not as far apart as those of training, which is no fault but seldom meant."""
    several = [one for one in times if len(one) > 2]
    if not several or clock.kind == "rows" or (several[0].dtype.kind == "f") != (clock.kind == "numbers"):
        return
    own = find_clock(several)
    usual = {"months": 30.4 * DAY, "weekdays": float(DAY)}
    ratio = own.step * usual.get(own.kind, 1.0) / (clock.step * usual.get(clock.kind, 1.0))
    if not 0.6 < ratio < 1.6:
        notes.append(f"times: rows are {own.told} apart, those of the model's training {clock.told}")


def _note_clock(data: SeriesData, times: Sequence[NDArray[Any]], config: SeriesConfig) -> None:
    clock = data.clock
    off = float(np.mean([clock.off_grid(one) for one in times])) if times else 0.0
    if off > 0:
        if config.irregular == "raise" and off > 0.001:
            raise DataError(
                f"{config.file}: {100 * off:.1f} % of the times are not on a grid of {clock.told}: choose"
                " --data.irregular grid or rows, or give --data.step"
            )
        data.notes.append(f"times: {max(100 * off, 0.1):.1f} % are off the grid and moved to the nearest step")
    if data.pieces:
        first = min(data.pieces, key=lambda one: one.start + one.offset)
        last = max(data.pieces, key=lambda one: one.start + len(one) + one.offset)
        ends = clock.times(np.array([first.start, last.start + len(last) - 1]), first.offset)
        data.notes.append(f"time: column {data.columns.time!r}, every {clock.told} from {ends[0]} to {ends[1]}")


def _counted(counts: Counter[str], rows: int, config: SeriesConfig) -> list[str]:
    """What was done with gaps and duplicates, in words."""
    how = "joined linearly" if config.missing == "linear" else "filled with the last value"
    merged = "averaged" if config.duplicates == "mean" else f"the {config.duplicates} is taken"
    longest = 0 if config.missing == "split" else config.longest_gap
    words = {
        "merged": "times: {} rows fall on the step of another; " + merged,
        "filled": f"gaps: {{}} of {rows:,} steps lack a value; {how}, and not scored",
        "gaps": "gaps: {} steps lack a value; the series are split there",
        "split": f"gaps: {{}} of more than {longest} steps; the series are split there",
        "before": "left out: {} rows before each column has its first value",
        "empty": "left out: {} rows of series that lack a column",
    }
    return [text.format(f"{counts[name]:,}") for name, text in words.items() if counts[name]]


def cuts(data: SeriesData, config: SeriesConfig) -> list[tuple[int, int]]:
    """For each piece how many of its rows come before the validation rows, and before the test rows.

    All series are cut at the same two times, so that no model has seen the future of any. Without times, each series
    is cut at the same shares of its rows.
    """
    rows = [len(one) for one in data.pieces]
    ends = (first_rows(data, rows, share) for share in (1 - config.valid - config.test, 1 - config.test))
    return list(zip(*ends, strict=True))


def first_rows(data: SeriesData, rows: Sequence[int], share: float) -> list[int]:
    """How many rows of each piece come before the time before which this share of all rows comes.

    Args:
        data: the series.
        rows: how many rows of each piece count.
        share: of them. Without times it is that of each piece.
    """
    if data.clock.kind == "rows":
        return [round(share * count) for count in rows]
    starts, lengths = np.array([one.start for one in data.pieces]), np.array(rows)
    low, high = int(starts.min()), int((starts + lengths).max())
    while low < high:
        middle = (low + high) // 2
        if np.clip(middle - starts, 0, lengths).sum() < share * lengths.sum() - 1e-6:
            low = middle + 1
        else:
            high = middle
    found: list[int] = np.clip(low - starts, 0, lengths).tolist()
    return found
