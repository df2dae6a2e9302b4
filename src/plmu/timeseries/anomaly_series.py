"""Series to watch for anomalies: read as those of forecasts are, but values that are missing stay missing; and labels,
which are read apart, so that nothing is fitted to them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plmu.clock import Clock, Steps
from plmu.data.files import DataConfig
from plmu.errors import DataError
from plmu.runs.anomalies import samples_of_gap
from plmu.timeseries import series
from plmu.timeseries.columns import Columns
from plmu.timeseries.frames import Form, as_list, data_of, is_list_of_series
from plmu.timeseries.long_frames import LongFrame, library_of
from plmu.timeseries.reader_options import configured
from plmu.timeseries.series import Numbers, Piece, SeriesConfig, SeriesData

LABELS = frozenset(("label", "anomaly", "is_anomaly", "outlier", "is_outlier"))  # names of columns of labels
Labels = set[tuple[str, int]]  # names of series and the clock's steps, at which there are anomalies


@dataclass(frozen=True)
class Settings:
    """What a fitted detector reads, and how."""

    time: str | None
    values: tuple[str, ...]
    id: str | None
    clock: Clock
    season: int
    threshold: float
    label: str | None = None  # the column of labels, if there was one

    @property
    def like(self) -> tuple[Columns, Clock]:
        """Columns and clock, to read other data alike."""
        return Columns(self.time, self.values, self.id), self.clock


@dataclass(frozen=True)
class Learned:
    """What was learned from a series."""

    samples: int  # that the model took
    following: int  # the clock's step after the last
    digest: str  # of these samples
    state: Any  # of the model, of one sequence


@dataclass
class AnomalyConfig(DataConfig):
    """Which series, and how they are read."""

    file: Path | None = None
    """CSV, Parquet, NumPy, JSON or Excel file of yours, or a folder of them with a series each."""
    time: str | None = None
    """Column of times, "" for none. Default: detected. Without one, rows are equally far apart."""
    values: tuple[str, ...] = ()
    """Columns to watch. Default: all columns of numbers that vary."""
    label: str | None = None
    """Column that is 1 or true at anomalies: precision and recall are reported, and nothing is fitted to it. "" for
    none. Default: a column of 0 and 1 that is called label, anomaly, is_anomaly, outlier or is_outlier."""
    id: str | None = None
    """Column that names the series of a row, where a file holds several; or columns, with commas; "" for a single
    series. Default: detected where times repeat."""
    step: str | None = None
    """Time between rows, such as 15min, 1h, 1d or 1mo. Where rows are closer, those of one step are averaged, or what
    --data.duplicates says. Default: detected."""
    longest_gap: int = 48
    """Longest gap, in steps, within a series; at longer ones it is split, and goes on with what was learned."""
    irregular: Literal["grid", "rows", "raise"] = "grid"
    """Times off the grid: move them to the nearest step, take rows as equally far apart, or raise."""
    duplicates: Literal["mean", "sum", "first", "last", "raise"] = "mean"
    """Rows with the same time, or of the same step: their mean, their sum, the first, the last, or raise."""
    bad: Literal["raise", "missing"] = "raise"
    """Text in a column of numbers, or text in the column of times that is not a time: raise, or take it as missing."""
    absent: tuple[float, ...] = ()
    """Numbers that stand for a missing value, such as -999."""
    day_first: bool | None = None
    """Whether 2/1/2024 is the second of January. Default: detected."""
    header: bool | None = None
    """Whether the first line of a CSV file names the columns. Default: detected."""

    def __post_init__(self) -> None:
        if self.longest_gap < 0:
            raise ValueError(f"data.longest_gap must be at least 0, got {self.longest_gap}")

    def reading(self) -> SeriesConfig:
        """The same options for the reader of series."""
        shared = {field.name for field in fields(SeriesConfig)} & {field.name for field in fields(self)}
        return _Unfilled(**{name: getattr(self, name) for name in shared}, most_rows=0)


@dataclass
class _Unfilled(SeriesConfig):
    """How series are read whose gaps stay."""

    @property
    def filling(self) -> str:
        return "they stay missing"


@dataclass(frozen=True)
class Watched:
    """A series as the model takes it: the rows of all its pieces, and missing samples in the gaps between them."""

    name: str
    values: Numbers  # (samples, channels), NaN where nothing was measured
    rows: NDArray[np.int64]  # the samples that are steps of the series: all but those of long gaps
    steps: Steps  # the clock's step of each of these
    pieces: Sequence[Piece]
    source: int = 0  # the number of the array or frame that it is of

    @property
    def following(self) -> int:
        """The clock's step after the last."""
        return int(self.steps[-1]) + 1

    def digest(self, samples: int) -> str:
        """A hash of the first samples, and where the series begins."""
        content = np.where(np.isnan(self.values[:samples]), np.nan, self.values[:samples])
        content = np.ascontiguousarray(content, dtype="<f8") + 0.0  # there is one zero
        return hashlib.sha256(f"{self.steps[0]} {content.shape}".encode() + content.tobytes()).hexdigest()


@dataclass
class Recording:
    """Series that were read, and the labels of their steps."""

    data: SeriesData
    label: str | None = None  # the column of labels
    labels: Labels | None = None
    form: Form | None = None  # of arrays, and of frames of a list
    several: bool = False  # whether they are a list

    def watched(self, season: int) -> list[Watched]:
        """The series as a model with this season takes them."""
        named: dict[tuple[str, int], list[Piece]] = {}
        for piece in self.data.pieces:
            named.setdefault((piece.name, piece.source), []).append(piece)
        return [_watched(pieces, season) for pieces in named.values()]


def _watched(pieces: Sequence[Piece], season: int) -> Watched:
    parts: list[Numbers] = []
    rows: list[NDArray[np.int64]] = []
    steps: list[Steps] = []
    samples = 0
    for number, piece in enumerate(pieces):
        if number:
            count = samples_of_gap(piece.start - pieces[number - 1].last - 1, season)
            parts.append(np.full((count, piece.values.shape[1]), np.nan))
            samples += count
        parts.append(np.where(piece.measured, piece.values, np.nan))
        rows.append(samples + np.arange(len(piece)))
        steps.append(piece.start + np.arange(len(piece)))
        samples += len(piece)
    first = pieces[0]
    return Watched(first.name, np.concatenate(parts), np.concatenate(rows), np.concatenate(steps), pieces, first.source)


def read(X: Any, like: tuple[Columns, Clock] | None = None, label: str | None = None, **options: Any) -> Recording:
    """The series of a file, a frame, an array or a list of these.

    Args:
        X: as in `plmu.AnomalyDetector.fit`.
        like: columns and clock of the series that a model was fitted to, to read others alike.
        label: the column of labels of a file or a frame; with `like` it need not be there.
        options: of `AnomalyConfig`, for a file or a frame.

    Raises:
        ValueError: X is an array with infinite or too large values, or of another shape.
        DataError: the file, or the frame, is at fault.
    """
    if isinstance(X, SeriesData):
        return Recording(X)
    is_path, optional = isinstance(X, str | os.PathLike), None
    if is_path or library_of(X) is not None:
        if like is None:
            options["label"] = label
        else:
            optional = label
        config = configured(AnomalyConfig, Path(X) if is_path else "X", options, "fit")
        names = (config.time, config.id) if like is None else (like[0].time, like[0].id)
        return load(config, like, None if is_path else LongFrame.of(X, names), optional)
    if options or (label and like is None):
        name = "label" if label else next(iter(options))
        raise ValueError(f"{name} is for data frames and files: X must be one of them")
    tables, several = as_list(X, "X", missing=True), is_list_of_series(X)
    if like is None:
        return Recording(data_of(tables, (), None), form=tables[0].form, several=several)
    columns, clock = like
    if tables[0].values.shape[1] != len(columns.values):
        raise ValueError(
            f"X has {tables[0].values.shape[1]} channels, and the detector was fitted to {len(columns.values)}:"
            f" {', '.join(columns.values)}"
        )
    data = SeriesData(columns, clock, [], other=True)
    for place, table in enumerate(tables):
        data.pieces += table.on(clock).pieces(place, data, f"X[{place}]" if several else "X")
    return Recording(data, form=tables[0].form, several=several)


def load(
    config: AnomalyConfig,
    like: tuple[Columns, Clock] | None = None,
    frame: LongFrame | None = None,
    optional: str | None = None,
) -> Recording:
    """The series of the configuration's file, or of a frame, and their labels, if it has any.

    Args:
        config: the file and how to read it.
        like: columns and clock of the series that a model was fitted to, to read others alike.
        frame: read instead of the file.
        optional: a column of labels that need not be there.

    Raises:
        DataError: there is no file, or something in it is at fault.
    """
    reading = config.reading()
    data = series.load(reading, like, frame=frame)
    names = (config.label,) if config.label is not None else (optional or "",) if like else data.columns.names
    name, truth = "", None
    for name in names:
        if name and (config.label or like is not None or name.strip().lower() in LABELS):
            truth = _truth(name, data, reading, frame, needed=bool(config.label))
        if truth is not None:
            break
    if truth is None:
        return Recording(data)
    if name in data.columns.values and like is None:
        others = tuple(column for column in data.columns.values if column != name)
        if not others:
            raise DataError(f"{config.file}: beside the labels, {name!r}, there is no column of numbers that varies")
        data = series.load(replace(reading, values=others), frame=frame)
    data.notes.append(f"labels: column {name!r}, to which nothing is fitted")
    labels = {
        (piece.name, piece.start + row)
        for piece in truth.pieces
        for row in np.flatnonzero(piece.measured[:, 0] & (piece.values[:, 0] > 0)).tolist()
    }
    return Recording(data, name, labels)


def _truth(
    name: str, data: SeriesData, reading: SeriesConfig, frame: LongFrame | None, needed: bool
) -> SeriesData | None:
    """The column of labels, on the clock of the series; None where it is not there, or has other values than 0 and 1.

    Raises:
        DataError: it is needed, and not there.
    """
    columns = replace(data.columns, values=(name,), covariates=())
    try:
        truth = series.load(replace(reading, values=(name,)), (columns, data.clock), frame=frame)
    except DataError:
        if needed:
            raise
        return None
    is_one = all(bool(np.isin(piece.values, (0.0, 1.0)).all()) for piece in truth.pieces)
    return truth if needed or is_one else None
