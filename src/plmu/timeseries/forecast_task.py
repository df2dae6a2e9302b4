"""Series as a task: how they are split, what is proposed for them, how models are fitted to them and scored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from plmu.errors import DataError
from plmu.nn import LookbackForecast
from plmu.runs.experiment import Config
from plmu.timeseries import series
from plmu.timeseries.choosing import standard_deviation
from plmu.timeseries.effects import LAGS
from plmu.timeseries.windows import Windows
from plmu.timeseries.forecast_files import Settings
from plmu.timeseries.forecast_models import LSTM_TRAINING, ClosedModel, LSTMModel, WindowLSTM, equal_size
from plmu.timeseries.forecaster import Forecaster
from plmu.timeseries.scores import (
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
from plmu.timeseries.season import has_years, period
from plmu.timeseries.series import SeriesConfig, SeriesData
from plmu.training.loop import Trainer
from plmu.training.processes import Processes
from plmu.training.task import Batch, Task

METRIC = "mse"
HORIZON, LOOKBACK = 24, 336
SCORED = 100_000  # windows over all columns, up to which every one is scored
KEPT = 2**22  # errors that are held to find intervals
FEW, FOLDS = 30, 4  # horizons in the validation rows, below which intervals come from so many other fits, too
LEAST = 50  # windows, below which errors on the training rows count, too
VALIDATED = 0.2  # share of the rows to choose by, of fits for intervals and backtests, and of the final refit
_SMALLEST = 1e-15  # standard deviation of which squares are still numbers in float32
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
    lstm: bool = False
    """Also train an LSTM of equal size, for the table. Takes minutes rather than seconds."""
    refit: bool = False
    """After the test, fit the model that is saved on all rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(steps < 1 for steps in self.horizon):
            raise ValueError(f"horizon must be at least 1, got {', '.join(map(str, self.horizon))}")
        if not all(0 < level < 1 for level in self.intervals):
            raise ValueError(f"intervals must lie between 0 and 1, got {', '.join(map(str, self.intervals))}")
        if self.refit and type(self.model) is not ClosedModel:
            raise ValueError("refit is for --model closed: the other models are saved as they were tested")
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
    tested_intervals: Intervals | None = None

    @cached_property
    def known(self) -> tuple[SeriesData, ForecastConfig[Any], Windows, Settings]:
        assert self.series is not None
        assert self.config is not None
        assert self.windows is not None
        assert self.settings is not None
        return self.series, self.config, self.windows, self.settings

    @property
    def length(self) -> int:
        """Rows of a window, of which the seasonal baseline and the lags of covariates may need more than the model."""
        _, config, _, settings = self.known
        lags = getattr(config.model, "lags", None) or max(LAGS)
        return max(settings.lookback + (lags - 1 if settings.covariates else 0), settings.season)

    def origins(self, kind: str, limit: int | None = None) -> Tensor:
        """Of the windows of "train", "valid" or "test"."""
        data, _, windows, settings = self.known
        ends = [(0, a, b, len(one)) for (a, b), one in zip(self.cuts, data.pieces, strict=True)]
        place = ("train", "valid", "test").index(kind)
        rows = [(one[place], one[place + 1]) for one in ends]
        return windows.origins(rows, settings.lookback, settings.horizon, limit, settings.season)

    @cached_property
    def baselines(self) -> dict[str, Method]:
        """Last value, seasonal last value, a linear map of the window, and an LSTM if asked for."""
        data, config, _, settings = self.known
        found: dict[str, Method] = {"last value": last_value(settings.horizon)}
        if settings.season:
            found["seasonal last value"] = seasonal_value(settings.horizon, settings.season)
        linear = WindowLinear(len(self.scale), settings.horizon, settings.lookback)
        parts: tuple[list[Tensor], list[Tensor]] = ([], [])
        for one, (a, b) in zip(data.pieces, self.cuts, strict=True):
            rows = torch.from_numpy((one.values - one.values[0]).T.astype(np.float32))
            parts[0].append(rows[:, :a])
            parts[1].append(rows[:, max(0, a - settings.lookback) : b])
        linear.fit(*parts, self.scale)
        found["linear"] = linear
        if settings.covariates and isinstance(config.model, ClosedModel):
            found["without covariates"] = model_method(fitted(self, config.model, covariates=False).model)
        if config.lstm:
            found["LSTM"] = model_method(trained_lstm(self))
        return found

    def intervals(self, model: nn.Module) -> Intervals:
        """Of a model's forecasts, from its errors on the validation rows. Where these are few, models that were fitted
        to fewer rows give errors on the rows that follow; where even these are, errors on the training rows count."""
        data, config, windows, settings = self.known
        several = len({one.name for one in data.pieces}) > 1
        limit = max(200, KEPT // (settings.horizon * len(self.scale)))
        found = Intervals(tuple(sorted(config.intervals)), several, settings.lookback, self.smallest_change)
        forecasts = [(model_method(model), self.origins("valid", limit))]
        if len(self.valid[0]) < FEW * settings.horizon and isinstance(model, LookbackForecast):
            forecasts += self.rolled
        if sum(len(origins) for _, origins in forecasts) < LEAST:
            forecasts.append((model_method(model), self.origins("train", limit)))
        return fill_intervals(found, forecasts, windows, self.length, settings.horizon)

    @property
    def smallest_change(self) -> Tensor:
        """(channels,): below which the changes in a window count as none: a thousandth of the smallest series'
        standard deviation in the training rows."""
        past: dict[str, list[Any]] = {}
        for one, (a, _) in zip(self.known[0].pieces, self.cuts, strict=True):
            past.setdefault(one.name, []).append(one.values[:a])
        spreads = np.array([np.concatenate(rows).std(axis=0) for rows in past.values() if sum(map(len, rows)) > 1])
        varying = np.where(spreads > 1e-9 * self.scale.numpy(), spreads, np.inf).min(axis=0)
        return 1e-3 * torch.tensor(np.where(np.isfinite(varying), varying, self.scale.numpy()), dtype=torch.float32)

    @cached_property
    def rolled(self) -> list[tuple[Method, Tensor]]:
        """Models fitted to the first rows before the validation rows, and the origins that follow those rows."""
        rows = [a for a, _ in self.cuts]
        most = max(rows) // (4 * self.known[3].horizon)  # a fold has two horizons
        model = self.known[1].model
        model = model if isinstance(model, ClosedModel) else ClosedModel()
        folds = rolling(self, model, rows, max(1, min(FOLDS, most)))
        return [(model_method(one.model), origins) for one, origins, _ in folds]

    def scores(self, model: nn.Module, split: Batch) -> dict[str, float]:
        """Errors over the windows of a split; on the test rows beside those of the baselines."""
        _, config, windows, settings = self.known
        tested = torch.equal(split[0].cpu(), self.test[0])
        methods = {"model": model_method(model), **(self.baselines if tested else {})}
        intervals = self.intervals(model) if tested else None
        errors, inside = score(methods, windows, split[0].cpu(), self.length, settings.horizon, self.scale, intervals)
        own = errors["model"]
        found = {"mse": own.mse, "mae": own.mae}
        if len(config.horizon) > 1:
            found |= {f"mse_{steps}": own.until(steps) for steps in sorted(set(config.horizon))}
        if tested:
            self.errors, self.coverage, self.tested_intervals = errors, inside, intervals
            levels = sorted(config.intervals)
            found |= {f"in_{100 * p:g}_%_interval": share for p, share in zip(levels, inside, strict=True)}
            found |= {f"{name}_mse".replace(" ", "_"): one.mse for name, one in errors.items() if name != "model"}
        return found


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
        more = f"at least {needed:,}"
        if needed <= longest:  # of several series this one may begin or end when others do not
            more = f"more, of which {horizon + 4:,} come before the validation rows (now {room + horizon:,}),"
        raise DataError(
            f"{config.data.file} has {longest:,} consecutive row{'s' * (longest > 1)}, too few to forecast {horizon}"
            f" step{'s' * (horizon > 1)} ahead: give {more}{fewer}{_done(data)}"
        )
    series_rows: dict[str, list[Any]] = {}
    for one, rows in zip(data.pieces, past, strict=True):
        series_rows.setdefault(one.name, []).append(rows)
    # Series may be at different levels, of which the difference is no measure of an error.
    together = [np.concatenate(rows) for rows in series_rows.values() if sum(map(len, rows))]
    mean = sum(rows.sum(axis=0) for rows in together) / sum(map(len, together))
    squares = sum(((rows - rows.mean(axis=0)) ** 2).sum(axis=0) for rows in together)
    spread = np.sqrt(squares / sum(map(len, together)))
    scale = np.where(spread > 1e-12 * np.maximum(np.abs(mean), 1e-300), spread, 1.0)
    for name, one in zip(data.columns.values, scale.tolist(), strict=True):
        if one < _SMALLEST:
            raise DataError(
                f"column {name!r} of {config.data.file} varies by {one:.1g}, too little to compute with: multiply it"
            )
    season = config.model.season
    if season is None:
        own = [(one - one.mean(axis=0)) / scale for one in past if len(one)]
        season = period([torch.tensor(one.T, dtype=torch.float32) for one in own])
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
        data.columns.time,
        data.columns.values,
        data.columns.id,
        data.clock,
        horizon,
        lookback,
        order,
        theta,
        season,
        data.columns.covariates,
    )
    course = len(series_rows) == 1 and has_years(max(map(len, past)), data.clock.calendar)
    told = settings.told(course and getattr(config.model, "calendar", False))
    nothing = (torch.zeros(0, dtype=torch.long),)
    task = ForecastTask(
        nothing,
        nothing,
        nothing,
        loss=lambda model, batch: _loss(task, model, batch),
        metric=METRIC,
        higher_is_better=False,
        score=lambda model, split: task.scores(model, split),
        notes={"data": f"own data: {data.rows:,} rows", "settings": told},
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
            f" --data.{kind}{_done(data)}"
        )
    task.messages = [*data.notes, told]
    return task


def _done(data: SeriesData) -> str:
    """What was done with rows, for an error that says that they are too few."""
    told = [note for note in data.notes if note.startswith(("times:", "gaps:", "left out:"))]
    return f" ({'; '.join(told)})" if told else ""


def fitted(
    task: ForecastTask,
    model: ClosedModel,
    everything: bool = False,
    until: list[int] | None = None,
    covariates: bool = True,
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
        covariates=[len(settings.values) + place for place in range(len(settings.covariates) if covariates else 0)],
        lags=model.lags,
        calendar=settings.clock.calendar if model.calendar else "none",
    )
    ends = until or [len(one) if everything else b for one, (_, b) in zip(data.pieces, task.cuts, strict=True)]
    first = [a for a, _ in task.cuts]
    if everything or until:
        first = series.first_rows(data, ends, 1 - VALIDATED)
    rows, kept, starts, names = [], [], [], []
    for one, begin, end in zip(data.pieces, first, ends, strict=True):
        if end < 1:
            continue
        own = end - min(begin, end)
        known = one.covariates if covariates else None
        rows.append(one.values[:end] if known is None else np.concatenate([one.values[:end], known[:end]], axis=1))
        kept.append(own if own >= settings.horizon else 0)
        starts.append(one.start)
        names.append(one.name)
    return found.fit(rows, starts=starts, validation_rows=kept, names=names)


def lstm_of(task: ForecastTask, model: LSTMModel) -> WindowLSTM:
    """Untrained; by default with as many parameters as our model."""
    data, _, _, settings = task.known
    scale, count = None, len(settings.covariates)
    if count:
        pairs = zip(data.pieces, task.cuts, strict=True)
        known = [one.covariates[:end] for one, (end, _) in pairs if one.covariates is not None]
        scale = torch.tensor(standard_deviation(np.concatenate(known)), dtype=torch.float32)
    hidden = model.hidden or equal_size(settings.horizon * settings.order, settings.horizon, count)
    return WindowLSTM(hidden, settings.horizon, settings.lookback, scale)


def trained_lstm(task: ForecastTask) -> nn.Module:
    """The LSTM of `--model lstm`, trained as there, on one CPU process."""
    _, config, windows, settings = task.known
    torch.manual_seed(config.seed)

    def mse(model: nn.Module, split: Batch) -> dict[str, float]:
        methods = {"model": model_method(model)}
        errors, _ = score(methods, windows, split[0], task.length, settings.horizon, task.scale)
        return {METRIC: errors["model"].mse}

    # The test rows are for `scores`: here the validation rows stand for them.
    plain = Task(task.train, task.valid, task.valid, task.loss, METRIC, higher_is_better=False, score=mse)
    network = lstm_of(task, LSTMModel())
    how = replace(LSTM_TRAINING)
    with torch.enable_grad():
        Trainer(plain, network, how, Processes(0, 1, torch.device("cpu")), config.seed).run()
    return network.eval()


def rolling(
    task: ForecastTask, model: ClosedModel, rows: list[int], folds: int
) -> Iterator[tuple[Forecaster, Tensor, int]]:
    """Forecasters fitted to a half and more of these first rows of each series, the origins that follow the rows of
    each, and how many rows it was fitted to."""
    data, _, windows, settings = task.known
    shares = np.linspace(0.5, 1.0, folds + 1)
    for share, following in pairwise(shares):
        ends, after = (series.first_rows(data, rows, one) for one in (share, following))
        spans = list(zip(ends, after, strict=True))
        origins = windows.origins(spans, settings.lookback, settings.horizon, SCORED // 10, settings.season)
        past = max(series.first_rows(data, ends, 1 - VALIDATED))
        if len(origins) and past - settings.horizon > settings.lookback:
            yield fitted(task, model, until=ends), origins, sum(ends)


def _loss(task: ForecastTask, model: nn.Module, batch: Batch) -> Tensor:
    """Mean squared error of the batch's windows, in units of the columns' standard deviations."""
    _, _, windows, settings = task.known
    one = windows.take(batch[0].cpu(), task.length, settings.horizon)
    error = (model_method(model)(one) - one.future) / task.scale[:, None]
    if one.measured is not None:
        error = torch.where(one.measured, error, 0.0)
    return error.square().mean()
