"""The files of a run of forecast: series.json says what the model reads, intervals.json how far measured values were
from forecasts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from plmu.errors import RunError
from plmu.modelfiles.files import load as load_model
from plmu.modelfiles.files import save
from plmu.nn.forecast import LookbackForecast
from plmu.runs.folder import INTERVALS_FILE, MODEL_FILE, SERIES_FILE, read_json, write_json
from plmu.runs.outputs import Outputs
from plmu.runs.outputs import write as write_outputs
from plmu.timeseries.clock import Clock
from plmu.timeseries.intervals import Intervals
from plmu.timeseries.predictions import at_phase
from plmu.timeseries.series import Numbers
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


def read_run(folder: Path) -> tuple[LookbackForecast, Settings, Intervals]:
    """The model of a run, what it reads and forecasts, and the intervals of its test."""
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
    return model, settings, Intervals(levels, relative, settings.lookback, floor, low, high)


def as_text(values: Numbers, levels: Numbers) -> list[str]:
    """Values (series, horizon) with nine digits, and with more where they differ little from the level (series,)."""
    changes = np.maximum(np.abs(values - levels[:, None]).max(axis=1), 1e-300)
    ratios = np.clip(np.abs(values).max(axis=1) / changes, 1.0, 1e15)
    digits = np.minimum(9 + np.floor(np.log10(ratios)), 15).astype(int).tolist()
    return [f"{value:.{count}g}" for row, count in zip(values.tolist(), digits, strict=True) for value in row]
