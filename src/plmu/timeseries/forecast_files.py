"""The files of a run of forecast: series.json says what the model reads, intervals.json how far measured values were
from forecasts; and what `plmu predict` writes of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch

from plmu.errors import DataError, RunError
from plmu.modelfiles.files import load as load_model
from plmu.modelfiles.files import save
from plmu.nn.forecast import LookbackForecast
from plmu.runs.experiment import Predictions
from plmu.runs.folder import INTERVALS_FILE, MODEL_FILE, SERIES_FILE, read_json, write_json
from plmu.runs.outputs import Outputs
from plmu.runs.outputs import write as write_outputs
from plmu.timeseries import series
from plmu.timeseries.clock import Clock
from plmu.timeseries.forecaster import Forecaster
from plmu.timeseries.intervals import Intervals
from plmu.timeseries.predictions import at_phase, time_column
from plmu.timeseries.series import Numbers, Piece, SeriesConfig
from plmu.timeseries.split import Settings, Split


def write_model(folder: Path, split: Split, model: LookbackForecast, intervals: Intervals) -> None:
    """Save the model, whose streams begin at the step after the last row, and what its numbers mean."""
    settings = split.settings
    save(at_phase(model.cpu(), max(piece.start + len(piece) for piece in split.data.pieces)), folder / MODEL_FILE)
    columns = settings.values if settings.covariates else ()
    outputs = Outputs(inputs=settings.inputs, time=settings.time or "", horizon=settings.horizon, columns=columns)
    write_outputs(folder, outputs)
    content = {
        "levels": intervals.levels,
        "relative": intervals.relative,
        "floor": intervals.floor.tolist(),
        "low": intervals.low.tolist(),
        "high": intervals.high.tolist(),
    }
    write_json(folder / INTERVALS_FILE, content)


def read_settings(folder: Path) -> Settings:
    """The content of series.json."""
    try:
        content = dict(read_json(folder / SERIES_FILE))
        clock = Clock(**content.pop("clock"))
        tuples = {name: tuple(content.get(name, ())) for name in ("values", "covariates")}  # old runs lack covariates
        return Settings(**{**content, **tuples}, clock=clock)
    except (OSError, ValueError, KeyError, TypeError) as error:
        kind = type(error).__name__
        raise RunError(f"{folder / SERIES_FILE} is missing or damaged ({kind}): copy it again") from None


def read_forecaster(folder: Path) -> Forecaster:
    """The estimator of a run, with the intervals of its test."""
    settings = read_settings(folder)
    try:
        content = read_json(folder / INTERVALS_FILE)
        floor, low, high = (torch.tensor(content[name]) for name in ("floor", "low", "high"))
        levels, relative = tuple(content["levels"]), bool(content["relative"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        kind = type(error).__name__
        raise RunError(f"{folder / INTERVALS_FILE} is missing or damaged ({kind}): copy it again") from None
    model = load_model(folder / MODEL_FILE)
    if not isinstance(model, LookbackForecast):
        raise RunError(f"{folder / MODEL_FILE} is not a model of forecast")
    return Forecaster.restored(model, settings, Intervals(levels, relative, settings.lookback, floor, low, high))


def predict(folder: Path, config: SeriesConfig, file: Path, future: Path | None = None) -> Predictions:
    """The steps after the last row of each series of a file, with their times and intervals, as text."""
    settings, forecaster = read_settings(folder), read_forecaster(folder)
    if future is not None and not settings.covariates:
        raise RunError(f"--data.future is for covariates, and {folder} was trained without: give --data.file alone")
    data = series.load(dataclasses.replace(config, file=file), settings.like, future)
    last = list({piece.name: piece for piece in data.pieces}.values())  # of each series its last piece
    for piece in last:
        _check_ahead(piece, settings, file, future)
    levels = forecaster.levels_
    frame = forecaster.predict(data, level=levels or None)
    time, ahead = time_column(settings), np.arange(1, settings.horizon + 1)
    counted = 1 if settings.clock.kind == "rows" else 0  # rows are counted from 1
    columns: dict[str, list[str]] = {}
    if frame.columns[0] != time:
        columns[frame.columns[0]] = frame[frame.columns[0]].to_list()
    columns[time] = [
        stamp for piece in last for stamp in settings.clock.times(piece.last + ahead + counted, piece.offset)
    ]
    for channel, name in enumerate(settings.values):
        origins = np.array([piece.values[0, channel] for piece in last])
        titles = {name: name}
        for level in levels:
            titles |= {f"{name} {word} {level:g}": f"{name}-{word[:2]}-{level:g}" for word in ("low", "high")}
        for title, column in titles.items():
            columns[title] = as_text(frame[column].to_numpy().reshape(len(last), -1), origins)
    short = sum(len(piece) < settings.lookback for piece in last)
    if short:
        data.notes.append(f"{short:,} series shorter than the look-back of {settings.lookback} steps: less certain")
    return Predictions(dict(columns), data.notes)


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


def as_text(values: Numbers, levels: Numbers) -> list[str]:
    """Values (series, horizon) with nine digits, and with more where they differ little from the level (series,)."""
    changes = np.maximum(np.abs(values - levels[:, None]).max(axis=1), 1e-300)
    ratios = np.clip(np.abs(values).max(axis=1) / changes, 1.0, 1e15)
    digits = np.minimum(9 + np.floor(np.log10(ratios)), 15).astype(int).tolist()
    return [f"{value:.{count}g}" for row, count in zip(values.tolist(), digits, strict=True) for value in row]
