"""Scoring the saved model of a run of forecast, for `plmu evaluate`: on the test rows of its file, or on another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from plmu.errors import DataError, RunError
from plmu.nn.covariates import CovariateForecast
from plmu.runs.folder import INTERVALS_FILE, SERIES_FILE
from plmu.runs.intervals import Intervals
from plmu.timeseries import series
from plmu.timeseries.forecast_files import read_run, read_scale
from plmu.timeseries.predictions import ForecastModel, found_start
from plmu.timeseries.scores import (
    Scores,
    first_rows_to_score,
    last_value,
    model_method,
    score,
    seasonal_value,
)
from plmu.timeseries.series import SeriesConfig
from plmu.timeseries.series_scores import SeriesUnits
from plmu.timeseries.split import Split
from plmu.timeseries.windows import Method


def read_tested(folder: Path, split: Split, refitted: bool) -> tuple[ForecastModel, Intervals]:
    """The saved model and its intervals, to be scored on the test rows of the data that it was trained on.

    Args:
        folder: of the run.
        split: that data.
        refitted: whether the saved model is fitted to all rows.

    Raises:
        RunError: a file is missing or damaged, or the model was fitted to the test rows.
    """
    if refitted:
        raise RunError(
            f"the model in {folder} was fitted to all rows after its test (--refit): {folder / 'result.json'} has the"
            " scores of that test. Score it on rows that it has not seen: give --other-data --data.file FILE"
        )
    model, settings, intervals = read_run(folder)
    if settings != split.settings:
        raise RunError(f"{folder / SERIES_FILE} is not of this data: copy the folder of the run again")
    return model, intervals


def score_other_file(folder: Path, config: SeriesConfig, horizons: Sequence[int]) -> tuple[dict[str, float], list[str]]:
    """Scores of the saved model over every window of a file, beside the last value and the seasonal last value.

    Args:
        folder: of the run.
        config: the file and how to read it.
        horizons: numbers of steps, each of which has a score if there are several.

    Returns:
        Scores by name, as in result.json and in the same units, and notes about the file.

    Raises:
        DataError: the file is at fault, or too short for a window and its horizon.
        RunError: a file of the run is missing or damaged.
    """
    model, settings, intervals = read_run(folder)
    scale = read_scale(folder)
    if scale is None:
        raise RunError(
            f"{folder / INTERVALS_FILE} lacks the unit of scores, which this version of plmu writes: train it again"
        )
    data = series.load(config, settings.like)
    if settings.clock.kind == "rows":
        pieces = [replace(piece, start=found_start(model, piece)) for piece in data.pieces]
        data = replace(data, pieces=pieces)
    lags = model.lags if isinstance(model, CovariateForecast) else None
    first = first_rows_to_score(model, settings, data.pieces)
    split = Split(data, settings, list(zip(first, first, strict=True)), [0] * len(data.pieces), scale, lags)
    origins = split.scored("test")
    if not len(origins):
        raise DataError(
            f"{config.file} has no window of {settings.least} rows and the {settings.horizon} that follow: give at"
            f" least {settings.least + settings.horizon} consecutive rows of a series"
        )
    methods: dict[str, Method] = {"model": model_method(model), "last value": last_value(settings.horizon)}
    if settings.season:
        methods["seasonal last value"] = seasonal_value(settings.horizon, settings.season)
    units = SeriesUnits.of(data.pieces, [len(piece) for piece in data.pieces], settings.season)
    scores = score(methods, split, origins, intervals, split.windows, units)
    return named(scores, horizons), [*data.notes, f"scored: {scores.windows:,} windows"]


def named(scores: Scores, horizons: Sequence[int]) -> dict[str, float]:
    """Scores as they stand in result.json: those of the model first.

    Args:
        scores: of the model and the baselines.
        horizons: numbers of steps, each of which has a score if there are several.
    """
    errors = scores.errors["model"]
    results = {"mse": errors.mse, "mae": errors.mae, **errors.averages()}
    if len(horizons) > 1:
        results |= {f"mse_{steps}": errors.until(steps) for steps in sorted(set(horizons))}
    shares = zip(scores.levels, scores.coverage, strict=True)
    results |= {f"in_{100 * level:g}_%_interval": share for level, share in shares}
    others = {name: sums for name, sums in scores.errors.items() if name != "model"}
    return results | {
        f"{name}_{kind}".replace(" ", "_"): value
        for name, sums in others.items()
        for kind, value in {"mse": sums.mse, **sums.averages()}.items()
    }
