"""Series from files and frames as tables: rows at equal steps, without gaps, and their split by time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plmu.clock import NEAR, Clock, Steps, plain
from plmu.data.files import DataConfig
from plmu.errors import DataError, in_one_line
from plmu.timeseries.clock import find_clock
from plmu.timeseries.columns import Columns
from plmu.timeseries.long_frames import LongFrame, library_of
from plmu.timeseries.public_holidays import country_of, with_holidays
from plmu.timeseries.reader_options import configured
from plmu.timeseries.series_notes import counted, ended, note_clock, note_other_rate
from plmu.timeseries.source_rows import read_rows
from plmu.timeseries.table_rows import Numbers as Numbers
from plmu.timeseries.table_rows import RawSeries, rows_of, without_late
from plmu.timeseries.tables import Table
from plmu.training.processes import ALONE, Processes

_OFF = 0.05  # share of times off the grid, above which rows without values may be what is off
_REGULAR = 0.9  # share of rows at equal distances, above which those that a step lacks are missing
_BROKEN = 0.1  # share of rows before a long gap, above which the times cannot be meant as a grid


@dataclass
class SeriesConfig(DataConfig):
    """Which series, and how gaps are treated."""

    file: Path | None = None
    """CSV, Parquet, NumPy, JSON or Excel file of yours, or a folder of them with a series each."""
    time: str | None = None
    """Column of times, "" for none. Default: detected. Without one, rows are equally far apart."""
    values: tuple[str, ...] = ()
    """Columns to forecast. Default: all columns of numbers that vary."""
    covariates: tuple[str, ...] = ()
    """Columns that are known ahead, such as holidays or planned prices: they help to forecast, and are not forecast."""
    holidays: str | None = None
    """Country whose public holidays are a covariate, such as DE or, for a part of it, DE-BY: built from the dates, if
    the package holidays is installed. Default: none."""
    id: str | None = None
    """Column that names the series of a row, where a file holds several; or columns, with commas; "" for a single
    series. Default: detected where times repeat."""
    step: str | None = None
    """Time between rows, such as 15min, 1h, 1d or 1mo. Where rows are closer, those of one step are averaged, or what
    --data.duplicates says. Default: detected."""
    missing: Literal["hold", "linear", "split", "raise"] = "hold"
    """Gaps: hold the last value, join both ends linearly (uses future values), split the series there, or raise."""
    longest_gap: int = 48
    """Longest gap, in steps, that is filled; at longer ones a series is split."""
    irregular: Literal["grid", "rows", "raise"] = "grid"
    """Times off the grid: move them to the nearest step, take rows as equally far apart, or raise."""
    duplicates: Literal["mean", "sum", "first", "last", "raise"] = "mean"
    """Rows with the same time, or of the same step: their mean, their sum (of covariates the mean), the first, the
    last, or raise."""
    bad: Literal["raise", "missing"] = "raise"
    """Text in a column of numbers, or text in the column of times that is not a time: raise, or take it as missing."""
    absent: tuple[float, ...] = ()
    """Numbers that stand for a missing value, such as -999."""
    day_first: bool | None = None
    """Whether 2/1/2024 is the second of January. Default: detected."""
    header: bool | None = None
    """Whether the first line of a CSV file names the columns. Default: detected."""
    most_rows: int = 5_000_000
    """Rows of Parquet files that are held. Where there are more, series that are evenly spread over the files are
    fitted and tested, and all can be forecast. 0 for no limit."""
    valid: float = 0.1
    """Share of the rows, just before the test rows, on which settings are chosen and intervals measured."""
    test: float = 0.2
    """Share of the rows at the end to test on."""

    def __post_init__(self) -> None:
        for name in ("valid", "test"):
            if not 0 < getattr(self, name) < 0.5:
                raise ValueError(f"data.{name} must be a share between 0 and 0.5, got {getattr(self, name)}")
        if self.longest_gap < 0:
            raise ValueError(f"data.longest_gap must be at least 0, got {self.longest_gap}")
        if self.most_rows < 0:
            raise ValueError(f"data.most_rows must be at least 0, got {self.most_rows}")

    @property
    def filling(self) -> str:
        """What is done with missing values, in words."""
        return "joined linearly" if self.missing == "linear" else "filled with the last value"


Key = tuple[str, int]  # of a series: its name, and the number of the array that it is of


@dataclass(frozen=True)
class Piece:
    """Rows of one series at consecutive steps, gaps filled. A series that is split at long gaps has several pieces."""

    name: str  # of the series
    start: int  # the clock's step of the first row
    values: Numbers  # (time, channels), without NaN
    measured: NDArray[np.bool_]  # (time, channels): False where a gap was filled
    offset: float = 0.0  # how much later than the clock's its times are, in steps
    covariates: Numbers | None = None  # (time and steps ahead, covariates); NaN where a value ahead is missing
    source: int = 0  # the number of the array or frame that it is of

    def __len__(self) -> int:
        return len(self.values)

    @property
    def key(self) -> Key:
        """Of the series."""
        return self.name, self.source

    @property
    def last(self) -> int:
        """The clock's step of the last row."""
        return self.start + len(self) - 1

    def until(self, end: int) -> Piece:
        """The piece cut to its first `end` rows, without covariates ahead."""
        covariates = None if self.covariates is None else self.covariates[:end]
        return replace(self, values=self.values[:end], measured=self.measured[:end], covariates=covariates)

    def since(self, first: int) -> Piece:
        """The piece without its first rows."""
        covariates = None if self.covariates is None else self.covariates[first:]
        values, measured = self.values[first:], self.measured[first:]
        return replace(self, start=self.start + first, values=values, measured=measured, covariates=covariates)

    def ahead(self, horizon: int) -> Piece:
        """The piece with covariates for at most `horizon` steps ahead."""
        if self.covariates is None or len(self.covariates) <= len(self) + horizon:
            return self
        return replace(self, covariates=self.covariates[: len(self) + horizon])


def last_pieces(pieces: Sequence[Piece]) -> dict[Key, Piece]:
    """The last piece of each series."""
    return {piece.key: piece for piece in pieces}


@dataclass
class SeriesData:
    """Series on one clock, and what was done to put them there."""

    columns: Columns
    clock: Clock
    pieces: list[Piece]
    notes: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # rows that were changed, by kind of change (`_counted`)
    other: bool = False  # whether columns and clock are those of the data that a model was trained on
    config: SeriesConfig | None = None  # the file and how it was read; None for arrays and wide frames
    frame: LongFrame | None = None  # that it was read from instead of a file
    processes: Processes = ALONE  # which all have these series, and share the work
    after: Mapping[str, Piece] = field(default_factory=dict)  # earlier rows of series by name, which these rows follow

    @property
    def rows(self) -> int:
        """The number of rows of all pieces, filled gaps included."""
        return sum(map(len, self.pieces))

    def until(self, ends: Sequence[int]) -> SeriesData:
        """The first rows of each piece, as many as `ends` says. Pieces without any row are left out."""
        pieces = [piece.until(end) for piece, end in zip(self.pieces, ends, strict=True) if end > 0]
        return replace(self, pieces=pieces)


def read_series(source: Any, **options: Any) -> SeriesData:
    """The series of a file, a folder or a data frame, as `plmu train forecast` reads them.

    >>> data = plmu.timeseries.read_series("load.csv", time="when", values=["load"], missing="linear")
    >>> forecaster = plmu.Forecaster(horizon=24).fit(data)
    >>> data = plmu.timeseries.read_series(frame, id="store", longest_gap=7)  # a row for each day of each store

    Args:
        source: CSV, Parquet, NumPy, JSON or Excel file, or a folder of them with a series each; or a frame of pandas or
            polars, which is read as a file with its content is.
        options: `time`, `values`, `covariates`, `holidays`, `id`, `step`, `missing`, `longest_gap`, `irregular`,
            `duplicates`, `bad`, `absent`, `day_first`, `header` and `most_rows`, which `plmu train forecast --help`
            describes as
            --data.NAME.

    Returns:
        The series; `notes` says what was done with gaps, duplicates and odd dates.

    Raises:
        TypeError: there is no such option.
        ValueError: an option has a value that it cannot have.
        DataError: there is no file, or something in it is at fault.
    """
    if library_of(source) is None:
        return load(configured(SeriesConfig, source, options, "read_series"))
    config = configured(SeriesConfig, "X", options, "read_series")
    return load(config, frame=LongFrame.of(source, (config.time, config.id)))


def load(
    config: SeriesConfig,
    like: tuple[Columns, Clock] | None = None,
    future: Path | LongFrame | None = None,
    frame: LongFrame | None = None,
    processes: Processes = ALONE,
    block: Table | None = None,
    after: Mapping[str, Piece] | None = None,
) -> SeriesData:
    """The series of the configuration's file, or of a frame; of Parquet files with more rows than `config.most_rows`,
    some of them.

    Args:
        config: the file and how to read it.
        like: columns and clock of the data that a model was trained on, to read other data alike.
        future: a file or frame with the covariates of the steps after the last values.
        frame: read instead of the file, whose name stands for it in messages.
        processes: which read a part of the files each, where there are as many.
        block: read instead of the file: rows of some of its series.
        after: earlier rows of series by name, which those of the file follow.

    Raises:
        DataError: there is no file, or something in it is at fault.
    """
    country = config.holidays
    if like is not None and (country := country_of(like[0].covariates)) is not None:
        like = (replace(like[0], covariates=like[0].covariates[:-1]), like[1])
    source = read_rows(config, like, future, frame, processes, block)
    config, columns, raw, notes = source.config, source.columns, source.series, source.notes
    late: list[str] = []
    if like is None and not config.values:
        columns, raw, late = without_late(columns, raw)
    notes += [*columns.notes, *late, *(ended(columns, raw, config) if like is None else [])]
    times = [series.times for series in raw if series.times is not None and len(series.times)]
    if like is not None:
        clock = like[1]
        note_other_rate(clock, times, notes)
    else:
        clock = Clock()
        if times and config.irregular != "rows":
            clock, raw, times = _clock_of(times, raw, config)
        if columns.time is not None and clock.kind != "rows":
            clock = replace(clock, day_first=source.day_first, zone=source.zone)
    data = SeriesData(columns, clock, [], notes, other=like is not None, config=config, processes=processes)
    data.frame, data.after = source.frame, after or {}
    for series in raw:
        data.pieces += pieces_of(series, config, data)
    if clock.kind != "rows":
        data.clock = clock if like is not None else clock.with_jitter(times)
        note_clock(data, times, config)
    data.notes += counted(data.counts, data.rows, config, scored=like is None)
    if not data.pieces and block is None:
        raise DataError(f"{config.file} has no row with a value in {', '.join(map(repr, columns.values))}")
    if len({series.name for series in raw}) > 1:
        by = f"column {columns.id!r}" if columns.id else "file"
        data.notes.append(f"series: {len({series.name for series in raw}):,}, by {by}")
    data.notes[:] = map(in_one_line, data.notes)
    return data if country is None else with_holidays(data, country)


def _clock_of(
    times: list[NDArray[Any]], raw: list[RawSeries], config: SeriesConfig
) -> tuple[Clock, list[RawSeries], list[NDArray[Any]]]:
    """The clock of the times; or, where these are off its grid, that of the rows that have values, and these alone: a
    table of months may have empty rows for events."""
    clock = find_clock(times, config.step)
    measured = [~np.isnan(series.values).all(axis=1) for series in raw]
    if config.step is None and any(clock.off_grid(stamps) > _OFF for stamps in times):
        filled = [
            replace(series, times=None if series.times is None else series.times[rows], values=series.values[rows])
            for series, rows in zip(raw, measured, strict=True)
        ]
        few = [series.times for series in filled if series.times is not None and len(series.times)]
        other = find_clock(few)
        if few and max(map(other.off_grid, few)) <= _OFF:
            return other, filled, few
    return clock, raw, times


def pieces_of(series: RawSeries, config: SeriesConfig, data: SeriesData) -> list[Piece]:
    """A series on the clock, with gaps filled, split at long ones; adds what was changed to `data.counts`. Where it
    follows earlier rows (`data.after`), a gap between them is filled, too.

    Raises:
        ValueError: too many gaps of a data frame are long, or its rows do not follow the earlier ones.
        DataError: times are numbers where the clock has dates, or the reverse; or too many gaps are long.
    """
    last = rows_of(series.values[:, : len(data.columns.values)])  # later rows have covariates alone
    if not last:
        return []
    end = max(last, rows_of(series.values))
    before = data.after.get(series.name)
    values, offset = series.values[:end], 0.0
    if series.times is None or data.clock.kind == "rows":
        steps: Steps = np.arange(end) + (0 if before is None else before.last + 1)
    else:
        if series.times.dtype.kind != ("f" if data.clock.kind == "numbers" else "M"):
            kinds = ("numbers", "dates") if series.times.dtype.kind == "f" else ("dates", "numbers")
            raise DataError(
                f"column {data.columns.time!r} of {config.file} has {kinds[0]}, and the model was trained on {kinds[1]}"
            )
        offset = data.clock.offset(series.times[:last]) if before is None else before.offset
        steps = data.clock.steps(series.times[:end], offset)
        if before is not None:
            check_follows(series, before, steps, config, data)
        count = len(steps)
        steps, values = _merged(series.name, steps, values, config, data)
        if len(steps) < count and config.duplicates == "sum":
            sums = values[:, : len(data.columns.values)]
            data.counts["incomplete"] += _blank_incomplete(series.times[:last], steps, sums, data.clock)
    if before is not None:
        steps, values = np.append(before.last, steps), np.concatenate([last_row(before), values])
    longest = 0 if config.missing == "split" else config.longest_gap
    breaks = np.flatnonzero(np.diff(steps) > longest + 1) + 1
    if len(breaks) > max(_BROKEN * len(steps), 10) and config.missing != "split":
        fault = (
            f"the times are {data.clock.spacing} apart at the median, yet {len(breaks):,} of {len(steps):,} are more"
            f" than {longest} such steps apart: "
        )
        if data.config is None:
            raise ValueError(f"{config.file}: {fault}give rows at equal steps, or arrays, whose rows are consecutive")
        other = "" if data.other else ", --data.step or --data.irregular rows"
        raise DataError(f"{fault}give --data.longest-gap{other}")
    pieces = []
    for rows in np.split(np.arange(len(steps)), breaks) if len(breaks) else [slice(None)]:
        pieces += _filled(series.name, steps[rows], values[rows], config, data)
    data.counts["split"] += len(breaks)
    if before is not None:
        pieces = [pieces[0].since(1), *pieces[1:]] if len(pieces[0]) > 1 else pieces[1:]
    return [replace(piece, offset=offset) for piece in pieces]


def last_row(piece: Piece) -> Numbers:
    """The last row with values, and its covariates: (1, columns)."""
    parts = [piece.values[-1:]]
    if piece.covariates is not None:
        parts.append(piece.covariates[len(piece) - 1 : len(piece)])
    return np.concatenate(parts, axis=1)


def check_follows(series: RawSeries, before: Piece, steps: Steps, config: SeriesConfig, data: SeriesData) -> None:
    """Raise unless the rows of a series are later than these earlier ones."""
    if steps[0] > before.last:
        return
    times = data.clock.times(np.array([steps[0], before.last]), before.offset)
    of = f"series {series.name!r}" if data.columns.id is not None else str(config.file)
    fault = f"{of} has a row at {times[0]}, and rows up to {times[1]} were learned: give later rows alone"
    raise ValueError(fault) if data.config is None else DataError(fault)


def _merged(name: str, steps: Steps, values: Numbers, config: SeriesConfig, data: SeriesData) -> tuple[Steps, Numbers]:
    """One row per step: rows of the same step are averaged, or one is chosen, or DataError, by `config.duplicates`."""
    again = np.diff(steps) == 0
    if not again.any():
        return steps, values
    if config.duplicates == "raise":
        when = data.clock.times(steps[1:][again][:1])[0]
        of = f" of series {name!r}" if name else ""
        raise DataError(
            f"{config.file}: several rows{of} have the time {when}: choose --data.duplicates mean, sum, first or last"
        )
    starts = np.flatnonzero(np.append(True, ~again))
    data.counts["merged"] += int(again.sum())
    if config.duplicates == "first":
        return steps[starts], values[starts]
    if config.duplicates == "last":
        return steps[starts], values[np.append(starts[1:], len(steps)) - 1]
    measured = ~np.isnan(values)
    totals = np.add.reduceat(np.where(measured, values, 0.0), starts, axis=0)
    counts = np.add.reduceat(measured.astype(np.int64), starts, axis=0)
    means = np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)
    if config.duplicates == "sum":
        channels = len(data.columns.values)
        sums = np.where(counts > 0, totals, np.nan)[:, :channels]
        means = np.concatenate([sums, means[:, channels:]], axis=1)
    return steps[starts], means


def _blank_incomplete(times: NDArray[Any], steps: Steps, sums: Numbers, clock: Clock) -> int:
    """Make the sums (steps, channels) of the first and the last step NaN where rows at equal distances do not cover the
    step. Returns the number of these steps.

    Args:
        times: of all rows with values, sorted.
        steps: the clock's step of each sum; later ones have covariates alone.
        sums: of the values of each step.
        clock: of the steps.
    """
    stamps = plain(times)
    apart = np.diff(stamps)
    usual = float(np.median(apart)) if len(apart) else 0.0
    if usual <= 0 or (np.abs(apart - usual) < NEAR * usual).mean() < _REGULAR:
        return 0
    last = int(clock.steps(times[-1:])[0])
    begin, end = clock.begins(np.array([steps[0], last + 1]))
    late, early = stamps[0] - begin > (1 - NEAR) * usual, end - stamps[-1] > (1 + NEAR) * usual
    few = ((steps == steps[0]) & late) | ((steps == last) & early)
    sums[few] = np.nan
    return int(few.sum())


def _filled(name: str, steps: Steps, values: Numbers, config: SeriesConfig, data: SeriesData) -> list[Piece]:
    """Pieces with a row at every step, from the row by which every column has had a value, gaps filled by
    `config.missing`: one piece, several where gaps split it, or none if a column is empty.

    Args:
        name: of the series.
        steps: the clock's step of each row, (rows,), increasing.
        values: values and covariates, (rows, columns), NaN where missing; the last rows may have covariates alone.
        config: how gaps are filled.
        data: its columns and clock; its `counts` are updated.
    """
    channels = len(data.columns.values)
    last = rows_of(values[:, :channels])
    first = int((~np.isnan(values)).argmax(axis=0).max())
    if np.isnan(values).all(axis=0).any() or first >= last:
        data.counts["empty"] += last
        return []
    data.counts["before"] += first
    latest = np.where(np.isnan(values[: first + 1]), 0, np.arange(first + 1)[:, None]).max(axis=0)
    held = values[latest, np.arange(values.shape[1])]  # the last values up to the first row
    steps, values, last = steps[first:], values[first:], last - first
    rows = int(steps[last - 1] - steps[0]) + 1  # up to the last value; covariates may go on
    if len(steps) == int(steps[-1] - steps[0]) + 1 and not np.isnan(values).any():
        return [_piece(name, int(steps[0]), values, np.ones(values.shape, bool), rows, channels)]
    grid = np.full((int(steps[-1] - steps[0]) + 1, values.shape[1]), np.nan)
    grid[steps - steps[0]] = values
    measured = ~np.isnan(grid)
    whole = measured[:rows].all(axis=1)
    if config.missing == "raise" and not whole.all():
        row = int((~whole).argmax())
        column = data.columns.read[int((~measured[row]).argmax())]
        when = data.clock.times(steps[:1] + row)[0]
        raise DataError(
            f"{config.file}, column {column!r}: no value at {when}: choose --data.missing hold, linear or split"
        )
    if config.missing == "split":
        bounds = np.flatnonzero(np.diff(np.concatenate([[False], whole, [False]]).astype(np.int8)))
        data.counts["gaps"] += int((~whole).sum())
        ends = [len(grid) if b == rows else b for b in bounds[1::2]]
        return [
            _piece(name, int(steps[0]) + int(a), grid[a:end], measured[a:end], int(b - a), channels)
            for a, b, end in zip(bounds[::2], bounds[1::2], ends, strict=True)
        ]
    at = np.arange(len(grid))
    before = grid.copy() if channels < grid.shape[1] else None
    grid[0] = held
    for filled, present in zip(grid.T, measured.T, strict=True):
        end = max(rows, len(present) - int(present[::-1].argmax()))  # missing covariates at the end stay missing
        if config.missing == "linear":
            held_or_present = present | (at == 0)
            filled[:end] = np.interp(at[:end], at[held_or_present], filled[held_or_present])
        else:
            filled[:end] = filled[np.maximum.accumulate(np.where(present, at, 0))][:end]
    data.counts["filled"] += int((~measured[:rows, :channels].all(axis=1)).sum())
    if before is not None:
        data.counts["covariates"] += int((np.isnan(before) & ~np.isnan(grid))[:, channels:].any(axis=1).sum())
    return [_piece(name, int(steps[0]), grid, measured, rows, channels)]


def _piece(name: str, start: int, grid: Numbers, measured: NDArray[np.bool_], rows: int, channels: int) -> Piece:
    """A piece from values and covariates together, (time and steps ahead, columns), of whose rows the first `rows` have
    values."""
    covariates = grid[:, channels:] if grid.shape[1] > channels else None
    return Piece(name, start, grid[:rows, :channels], measured[:rows, :channels], covariates=covariates)
