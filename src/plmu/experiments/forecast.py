"""Forecasts of series of your own (--data.file): the next steps of each column, from the Delay Network's state over a
look-back window, fitted in closed form in seconds.

Models: `closed` is fitted by ridge regression. `gradient` starts from it and is trained further. `lstm` is the
baseline. Settings that you do not give are found on the validation rows, which come before the test rows.

Scores: errors over every window of the test rows, in units of each column's standard deviation in the training rows,
beside the baselines last value, seasonal last value and a linear map of the same window; and how often the measured
value was in the prediction interval. The run's folder has plots of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from plmu.data import series
from plmu.data.files import DataError
from plmu.data.series import SeriesConfig, SeriesData
from plmu.estimators.forecaster import Forecaster
from plmu.estimators.season import period
from plmu.experiments import forecast_report
from plmu.experiments.base import Config, Experiment, Predictions
from plmu.experiments.forecast_models import ClosedModel, GradientModel, LSTMModel, WindowLSTM, equal_size
from plmu.experiments.forecast_run import Settings, predict, write_model
from plmu.experiments.forecast_scores import (
    Errors,
    Intervals,
    Method,
    WindowLinear,
    fill_intervals,
    last_value,
    model_method,
    score,
    seasonal_value,
)
from plmu.experiments.forecast_windows import Windows
from plmu.nn.forecast import LookbackForecast
from plmu.training.config import TrainingConfig
from plmu.training.task import Batch, Task

HORIZON, LOOKBACK = 24, 336
SCORED = 100_000  # windows over all columns, up to which every one is scored
KEPT = 2**22  # errors that are held to find intervals
FEW, FOLDS = 30, 4  # horizons in the validation rows, below which intervals come from so many other fits, too
VALIDATED = 0.2  # share of the rows to choose by, of fits for intervals and backtests, and of the final refit
TRAINED = 50_000  # windows that are trained on by gradients

ModelConfig = TypeVar("ModelConfig")


@dataclass
class ForecastConfig(Config[ModelConfig]):
    """Forecasts of series of your own."""

    data: SeriesConfig = field(default_factory=SeriesConfig)
    horizon: tuple[int, ...] = ()
    """Steps ahead. Of several the model forecasts the largest, and each has a score. Default: 24, or fewer."""
    intervals: tuple[float, ...] = (0.8, 0.95)
    """Levels of the prediction intervals."""
    backtest: int = 0
    """Rolling backtest: fit so many times, each time on more rows, and test on those that follow."""
    refit: bool = False
    """After the test, fit the model that is saved on all rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(steps < 1 for steps in self.horizon):
            raise ValueError(f"horizon must be at least 1, got {', '.join(map(str, self.horizon))}")
        if not all(0 < level < 1 for level in self.intervals):
            raise ValueError(f"intervals must lie between 0 and 1, got {', '.join(map(str, self.intervals))}")
        if not 0 <= self.backtest <= 100:
            raise ValueError(f"backtest must be between 0 and 100, got {self.backtest}")


@dataclass
class ForecastTask(Task):
    """Series, where they are split, and what was proposed for them."""

    series: SeriesData | None = None
    config: ForecastConfig[Any] | None = None
    cuts: list[tuple[int, int]] = field(default_factory=list)
    windows: Windows | None = None
    scale: Tensor = field(default_factory=lambda: torch.zeros(0))  # (channels,)
    settings: Settings | None = None
    forecaster: Forecaster | None = None
    errors: dict[str, Errors] = field(default_factory=dict)  # of the last test
    coverage: list[float] = field(default_factory=list)

    @cached_property
    def known(self) -> tuple[SeriesData, ForecastConfig[Any], Windows, Settings]:
        assert self.series is not None
        assert self.config is not None
        assert self.windows is not None
        assert self.settings is not None
        return self.series, self.config, self.windows, self.settings

    @property
    def length(self) -> int:
        """Rows of a window, of which the seasonal baseline may need more than the model."""
        return max(self.known[3].lookback, self.known[3].season)

    def origins(self, kind: str, limit: int | None = None) -> Tensor:
        """Of the windows of "train", "valid" or "test"."""
        data, _, windows, settings = self.known
        ends = [(0, a, b, len(one)) for (a, b), one in zip(self.cuts, data.pieces, strict=True)]
        place = ("train", "valid", "test").index(kind)
        rows = [(one[place], one[place + 1]) for one in ends]
        return windows.origins(rows, settings.lookback, settings.horizon, limit, settings.season)

    @cached_property
    def baselines(self) -> dict[str, Method]:
        """Last value, seasonal last value, and a linear map of the window."""
        data, _, _, settings = self.known
        found: dict[str, Method] = {"last value": last_value(settings.horizon)}
        if settings.season:
            found["seasonal last value"] = seasonal_value(settings.horizon, settings.season)
        linear = WindowLinear(len(self.scale), settings.horizon, settings.lookback)
        parts: tuple[list[Tensor], list[Tensor]] = ([], [])
        for one, (a, b) in zip(data.pieces, self.cuts, strict=True):
            parts[0].append(torch.from_numpy(one.values[:a].T.astype(np.float32)))
            parts[1].append(torch.from_numpy(one.values[max(0, a - settings.lookback) : b].T.astype(np.float32)))
        linear.fit(*parts, self.scale)
        found["linear"] = linear
        return found

    def intervals(self, model: nn.Module) -> Intervals:
        """Of a model's forecasts, from its errors on the validation rows. Where these are few, models that were fitted
        to fewer rows give errors on the rows that follow."""
        data, config, windows, settings = self.known
        several = len({one.name for one in data.pieces}) > 1
        limit = max(200, KEPT // (settings.horizon * len(self.scale)))
        found = Intervals(tuple(sorted(config.intervals)), several, 1e-3 * self.scale)
        forecasts = [(model_method(model), self.origins("valid", limit))]
        if len(self.valid[0]) < FEW * settings.horizon and isinstance(model, LookbackForecast):
            forecasts += self.rolled
        return fill_intervals(found, forecasts, windows, self.length, settings.horizon)

    @cached_property
    def rolled(self) -> list[tuple[Method, Tensor]]:
        """Models fitted to the first rows before the validation rows, and the origins that follow those rows."""
        folds = rolling(self, ClosedModel(), [a for a, _ in self.cuts], FOLDS)
        return [(model_method(one.model), origins) for one, origins, _ in folds]

    def scores(self, model: nn.Module, split: Batch) -> dict[str, float]:
        """Errors over the windows of a split; on the test rows beside those of the baselines."""
        _, config, windows, settings = self.known
        tested = torch.equal(split[0].cpu(), self.test[0])
        methods = {"model": model_method(model), **(self.baselines if tested else {})}
        intervals = self.intervals(model) if tested and config.intervals else None
        errors, inside = score(methods, windows, split[0].cpu(), self.length, settings.horizon, self.scale, intervals)
        own = errors["model"]
        found = {"mse": own.mse, "mae": own.mae}
        if len(config.horizon) > 1:
            found |= {f"mse_{steps}": own.until(steps) for steps in sorted(set(config.horizon))}
        if tested:
            self.errors, self.coverage = errors, inside
            if intervals is not None:
                found |= {
                    f"in_{100 * p:g}_%_interval": share for p, share in zip(intervals.levels, inside, strict=True)
                }
            found |= {f"{name}_mse".replace(" ", "_"): one.mse for name, one in errors.items() if name != "model"}
        return found


class Forecast(Experiment):
    name = "forecast"
    metric = "mse"
    paper: ClassVar[dict[str, float]] = {}
    models = ("closed", "gradient", "lstm")
    streamable = ("closed", "gradient")
    own_data = True

    def closed_form(self, model: str) -> bool:
        return model == "closed"

    def run_name(self, model: str, config: Config[Any]) -> str:
        return self.name_of_file(model, config.data.file if isinstance(config.data, SeriesConfig) else None)

    def defaults(self, model: str) -> Config[Any]:
        trained = TrainingConfig(epochs=20, batch_size=64, learning_rate=1e-3, schedule="cosine")
        choices: dict[str, tuple[Any, TrainingConfig]] = {
            "closed": (ClosedModel(), TrainingConfig(epochs=1)),
            "gradient": (GradientModel(), trained),
            "lstm": (LSTMModel(), TrainingConfig(epochs=10, batch_size=64, learning_rate=3e-3, schedule="cosine")),
        }
        chosen, how = choices[self.check(model)]
        return ForecastConfig(chosen, how)

    def task(self, config: Config[Any]) -> Task:
        assert isinstance(config, ForecastConfig)
        return prepare(config)

    def build(self, config: Config[Any], task: Task) -> nn.Module:
        assert isinstance(task, ForecastTask)
        assert isinstance(config, ForecastConfig)
        _, _, _, settings = task.known
        if isinstance(config.model, LSTMModel):
            ours = settings.horizon * (settings.order or LOOKBACK)
            hidden = config.model.hidden or equal_size(ours, settings.horizon)
            return WindowLSTM(hidden, settings.horizon, settings.lookback)
        task.forecaster = fitted(task, config.model)
        return task.forecaster.model

    def companions(self, task: Task) -> dict[str, str]:
        assert isinstance(task, ForecastTask)
        return {"series.json": json.dumps(task.known[3].described(), indent=1, ensure_ascii=False) + "\n"}

    def write_more(self, folder: Path, config: Config[Any], task: Task, network: nn.Module) -> list[str]:
        assert isinstance(task, ForecastTask)
        assert isinstance(config, ForecastConfig)
        intervals = task.intervals(network)
        folds = backtest(task, config) if config.backtest else []
        lines = forecast_report.write(folder, task, network, intervals, folds)
        if isinstance(network, LookbackForecast):
            final = network
            if config.refit:
                final = fitted(task, config.model, everything=True).model
                lines.append("the saved model is fitted to all rows, test rows included")
            write_model(folder, task.known[0], task.known[3], final, intervals)
            lines.append(f"next: plmu predict {folder} --data.file {task.known[1].data.file}")
        return lines

    def predict(self, folder: Path, config: Config[Any], file: Path) -> Predictions:
        assert isinstance(config.data, SeriesConfig)
        return predict(folder, config.data, file)


def prepare(config: ForecastConfig[Any]) -> ForecastTask:
    """Read the data, split it, and propose what the configuration leaves open."""
    data = series.load(config.data)
    longest = max(map(len, data.pieces))
    horizon = max(config.horizon, default=min(HORIZON, max(1, longest // 10)))
    cuts = series.cuts(data, config.data)
    past = [one.values[:a] for one, (a, _) in zip(data.pieces, cuts, strict=True)]
    room = max(map(len, past)) - horizon
    if room < 4:
        needed = math.ceil((horizon + 4) / (1 - config.data.valid - config.data.test))
        fewer = " or a smaller --horizon" if horizon > 1 else ""
        raise DataError(
            f"{config.data.file} has {longest:,} consecutive row{'s' * (longest > 1)}, too few to forecast {horizon}"
            f" step{'s' * (horizon > 1)} ahead: give at least {needed:,}{fewer}"
        )
    everything = np.concatenate(past)
    mean, spread = everything.mean(axis=0), everything.std(axis=0)
    scale = np.where(spread > 1e-12 * np.maximum(np.abs(mean), 1e-300), spread, 1.0)
    season = config.model.season
    if season is None:
        season = period([torch.tensor(((one - mean) / scale).T, dtype=torch.float32) for one in past])
    given = config.model.lookback
    if given is not None and given > room:
        raise DataError(f"--model.lookback must be at most {room} for so many training rows, got {given}")
    lookback = given or max(1, min(max(LOOKBACK, 2 * season), room // 2))
    season = season if season < room else 0
    if given is None:  # windows must fit into the rows to validate and to test on, too
        for spans in (cuts, [(two, len(one)) for (_, two), one in zip(cuts, data.pieces, strict=True)]):
            fitting = [max(first, (end - horizon) // 2) for first, end in spans if end - first >= horizon]
            lookback = max(1, min([lookback, *([max(fitting)] if fitting else [])]))
    order = getattr(config.model, "order", None) or min(96, max(lookback // 2, min(lookback, 8)))
    theta = float(getattr(config.model, "theta", None) or lookback)
    settings = Settings(
        data.columns.time, data.columns.values, data.columns.id, data.clock, horizon, lookback, order, theta, season
    )
    nothing = (torch.zeros(0, dtype=torch.long),)
    task = ForecastTask(
        nothing,
        nothing,
        nothing,
        loss=lambda model, batch: _loss(task, model, batch),
        metric=Forecast.metric,
        higher_is_better=False,
        score=lambda model, split: task.scores(model, split),
        notes={"data": f"own data: {data.rows:,} rows", "settings": settings.told()},
        series=data,
        config=config,
        cuts=cuts,
        windows=Windows.of(data.pieces),
        scale=torch.tensor(scale, dtype=torch.float32),
        settings=settings,
    )
    limit = max(1000, SCORED // len(scale))
    task.train = (task.origins("train", TRAINED),)
    task.valid, task.test = (task.origins("valid", limit),), (task.origins("test", limit),)
    if not len(task.test[0]) or not len(task.valid[0]):
        kind, share = ("test", config.data.test) if not len(task.test[0]) else ("valid", config.data.valid)
        raise DataError(
            f"{config.data.file}: the {kind} rows, {100 * share:g} % of {data.rows:,}, hold no window of"
            f" {lookback} steps and its horizon of {horizon}: give more rows, a smaller --horizon or a larger"
            f" --data.{kind}"
        )
    task.messages = [*data.notes, settings.told()]
    return task


def fitted(
    task: ForecastTask, model: ClosedModel, everything: bool = False, until: list[int] | None = None
) -> Forecaster:
    """A forecaster fitted to the rows before the test rows; to all rows; or to the first rows of each series."""
    data, _, _, settings = task.known
    found = Forecaster(
        settings.horizon,
        lookback=settings.lookback,
        order=settings.order,
        theta=settings.theta,
        season=settings.season,
        individual=model.individual,
        strength=model.strength,
        refit=everything,
    )
    ends = until or [len(one) if everything else b for one, (_, b) in zip(data.pieces, task.cuts, strict=True)]
    first = [a for a, _ in task.cuts]
    if everything or until:
        first = [round((1 - VALIDATED) * end) for end in ends]
    rows, kept, starts = [], [], []
    for one, begin, end in zip(data.pieces, first, ends, strict=True):
        if end < 1:
            continue
        own = end - min(begin, end)
        rows.append(one.values[:end])
        kept.append(own if own >= settings.horizon else 0)
        starts.append(one.start)
    return found.fit(rows, starts=starts, validation_rows=kept)


def rolling(
    task: ForecastTask, model: ClosedModel, rows: list[int], folds: int
) -> Iterator[tuple[Forecaster, Tensor, int]]:
    """Forecasters fitted to a half and more of these first rows of each series, the origins that follow the rows of
    each, and how many rows it was fitted to."""
    _, _, windows, settings = task.known
    shares = np.linspace(0.5, 1.0, folds + 1)
    for share, following in pairwise(shares):
        ends, after = ([round(one * count) for count in rows] for one in (share, following))
        spans = list(zip(ends, after, strict=True))
        origins = windows.origins(spans, settings.lookback, settings.horizon, SCORED // 10, settings.season)
        if len(origins) and (1 - VALIDATED) * max(ends) - settings.horizon > settings.lookback + 1:
            yield fitted(task, model, until=ends), origins, sum(ends)


def backtest(task: ForecastTask, config: ForecastConfig[Any]) -> list[dict[str, Any]]:
    """Errors of models that were fitted to more and more rows, each on the rows that follow."""
    data, _, windows, settings = task.known
    model = config.model if isinstance(config.model, ClosedModel) else ClosedModel()
    found = []
    for one, origins, rows in rolling(task, model, [len(piece) for piece in data.pieces], config.backtest):
        methods = {"model": model_method(one.model), "last value": last_value(settings.horizon)}
        errors, _ = score(methods, windows, origins, task.length, settings.horizon, task.scale)
        scores = {f"{name}_mse".replace(" ", "_"): error.mse for name, error in errors.items()}
        found.append({"rows": rows, "windows": len(origins), **scores})
    return found


def _loss(task: ForecastTask, model: nn.Module, batch: Batch) -> Tensor:
    """Mean squared error of the batch's windows, in units of the columns' standard deviations."""
    _, _, windows, settings = task.known
    one = windows.take(batch[0].cpu(), settings.lookback, settings.horizon)
    error = (model_method(model)(one.windows, one.steps) - one.future) / task.scale[:, None]
    if one.measured is not None:
        error = torch.where(one.measured, error, 0.0)
    return error.square().mean()
