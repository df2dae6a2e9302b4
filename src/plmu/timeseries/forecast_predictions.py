"""`plmu predict` of a run of forecast: the steps after the last row of each series of a file, as text. Parquet files
that are not held are forecast in blocks of series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from plmu.data.table_files import table_files
from plmu.errors import DataError, RunError
from plmu.runs.experiment import Predictions
from plmu.timeseries import forecast_files, series
from plmu.timeseries.forecast_plots import plot_ahead
from plmu.timeseries.forecast_tables import time_column
from plmu.timeseries.forecaster import Forecaster
from plmu.timeseries.large_files import LargeFiles
from plmu.timeseries.series import Piece, SeriesConfig, SeriesData
from plmu.timeseries.series_notes import counted
from plmu.timeseries.split import Settings

Columns = Mapping[str, list[str]]


def predict(
    folder: Path, config: SeriesConfig, file: Path, future: Path | None = None, horizon: int | None = None
) -> Predictions:
    """The forecasts of a run for a file; arguments as of `Experiment.predict`."""
    forecaster = Forecaster.from_run(folder)
    try:
        settings = replace(forecaster.settings_, horizon=forecaster.fitted_.checked_horizon(horizon))
    except ValueError as error:
        raise RunError(f"--{error}") from None
    if future is not None and not settings.covariates:
        raise RunError(f"--data.future is for covariates, and {folder} was trained without: give --data.file alone")
    config = replace(config, file=file)
    large = None if future is not None else _large(file, config, settings)
    if large is not None:
        return _in_blocks(forecaster, config, settings, large)
    data = series.load(replace(config, most_rows=0), settings.like, future)
    last = _last(data)
    for piece in last:
        _check_ahead(piece, settings, file, future)
    part = _forecast(forecaster, settings, data, last, named=len({piece.name for piece in last}) > 1)
    if short := forecaster.fitted_.short(last):
        data.notes.append(forecaster.fitted_.less_certain(short))
    return Predictions(dict(part.columns), data.notes, part.numbers, part.draw)


@dataclass(frozen=True)
class _Part:
    """Forecasts of some series."""

    columns: Columns
    numbers: tuple[str, ...]  # the columns of numbers
    draw: Any


def _last(data: SeriesData) -> list[Piece]:
    """Of each series its last piece."""
    return list({piece.name: piece for piece in data.pieces}.values())


def _forecast(forecaster: Forecaster, settings: Settings, data: SeriesData, last: list[Piece], named: bool) -> _Part:
    """The forecasts after these pieces; if `named`, or trained on named series, with the names of series."""
    levels = forecaster.levels_
    frame = forecaster.predict(data, level=levels or None, horizon=settings.horizon)
    data.notes += [note for note in getattr(forecaster, "notes_", []) if note not in data.notes]  # of intervals
    time, ahead = time_column(settings), np.arange(1, settings.horizon + 1)
    counted_from = 1 if settings.clock.kind == "rows" else 0  # rows are counted from 1
    columns: dict[str, list[str]] = {}
    numbers: list[str] = []
    if named or settings.id is not None:
        columns[settings.id or "series"] = [piece.name for piece in last for _ in ahead]
    columns[time] = [
        stamp for piece in last for stamp in settings.clock.times(piece.last + ahead + counted_from, piece.offset)
    ]
    for channel, name in enumerate(settings.values):
        origins = np.array([piece.values[0, channel] for piece in last])
        titles = {name: name}
        for level in levels:
            titles |= {f"{name} {word} {level:g}": f"{name}-{word[:2]}-{level:g}" for word in ("low", "high")}
        for title, column in titles.items():
            columns[title] = forecast_files.as_text(frame[column].to_numpy().reshape(len(last), -1), origins)
            numbers.append(title)
    draw = partial(plot_ahead, data=data, settings=settings, frame=frame, levels=levels)
    return _Part(columns, tuple(numbers), draw)


def _large(file: Path, config: SeriesConfig, settings: Settings) -> LargeFiles | None:
    """The files, with their series, if they have more rows than are held, and several series."""
    files = table_files(file)
    large, columns = LargeFiles.of(files, config.most_rows), settings.like[0]
    if large is None:
        return None
    head = large.head()
    head.join_again(columns.time, columns.id)
    if columns.id not in head.names:
        columns = replace(columns, id=None)
    if columns.id is None and len(files) == 1:
        return None
    large.find(head, columns)
    return large


def _in_blocks(forecaster: Forecaster, config: SeriesConfig, settings: Settings, large: LargeFiles) -> Predictions:
    """Forecasts of which a block of series is held at a time; the notes are complete after the last."""
    assert config.file is not None
    rows = f"{large.rows:,} rows of {sum(map(len, large.indices)):,} series, forecast in blocks"
    notes = [f"{config.file.name}: {rows}"]
    blocks = _blocks(forecaster, config, settings, large, notes)
    first = next(blocks, None)
    if first is None:
        raise DataError(f"{config.file} has no row with a value in {', '.join(map(repr, settings.values))}")
    following = (part.columns for part in blocks)
    return Predictions(dict(first.columns), notes, first.numbers, first.draw, following)


def _blocks(
    forecaster: Forecaster, config: SeriesConfig, settings: Settings, large: LargeFiles, notes: list[str]
) -> Iterator[_Part]:
    """The forecasts of each block; in the end notes on all of them."""
    counts: Counter[str] = Counter()
    rows = short = 0
    for table in large.blocks():
        data = series.load(config, settings.like, block=table)
        counts, rows = counts + data.counts, rows + data.rows
        last = _last(data)
        for piece in last:
            _check_ahead(piece, settings, table.path, None)
        short += forecaster.fitted_.short(last)
        if last:
            yield _forecast(forecaster, settings, data, last, named=True)
    notes += counted(counts, rows, config, scored=False)
    if short:
        notes.append(forecaster.fitted_.less_certain(short))


def _check_ahead(piece: Piece, settings: Settings, file: Path, future: Path | None) -> None:
    """Raise unless the covariates of a series are known as far as it is forecast."""
    if piece.covariates is None:
        return
    missing = np.isnan(piece.covariates[len(piece) :][: settings.horizon])
    for name, absent in zip(settings.covariates, missing.T, strict=True):
        count = int(absent.argmax()) if absent.any() else len(absent)
        if count < settings.horizon:
            last = np.array([piece.start + len(piece) - (0 if settings.clock.kind == "rows" else 1)])
            after = f"{'row ' if settings.clock.kind == 'rows' else ''}{settings.clock.times(last, piece.offset)[0]}"
            of = f" of series {piece.name!r}" if piece.name else ""
            values = ", ".join(settings.values[:4])
            how = "" if future else f": add rows in which {values} may be empty, or give another file as --data.future"
            raise DataError(
                f"{future or file}, column {name!r}: {settings.horizon} values are needed after {after}, the last row"
                f"{of}, and there {'is' if count == 1 else 'are'} {count}{how}"
            )
