"""How good forecasts are: errors of a model and of the baselines by step ahead, and how often prediction intervals
held."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from plmu.errors import DataError
from plmu.folded.adaptive import RATES
from plmu.folded.pooled import Member
from plmu.nn.covariates import CovariateForecast
from plmu.nn.forecast import LookbackForecast
from plmu.nn.pooled import PooledForecast
from plmu.runs.intervals import Intervals
from plmu.timeseries.pooled_members import STEPS, Classical
from plmu.timeseries.pooled_windows import read
from plmu.timeseries.series import Piece
from plmu.timeseries.series_scores import SeriesErrors, SeriesUnits
from plmu.timeseries.split import Settings, Split
from plmu.timeseries.window_linear import WindowLinear
from plmu.timeseries.windows import BLOCK, Examples, Method, Windows
from plmu.training.processes import Processes

_THETA = 2_000  # windows by which the rate of Theta is chosen


@dataclass
class Errors:
    """Sums over windows, for each channel and step ahead."""

    squares: Tensor  # (channels, horizon), in units of each channel's scale
    absolute: Tensor
    count: Tensor
    series: SeriesErrors | None = None  # of each, where there are several

    def total(self, processes: Processes) -> None:
        """Add up those of all processes."""
        series = () if self.series is None else (self.series.absolute, self.series.symmetric, self.series.count)
        for value in (self.squares, self.absolute, self.count, *series):
            processes.total(value)

    @property
    def mse(self) -> float:
        return float(self.squares.sum() / self.count.sum())

    @property
    def mae(self) -> float:
        return float(self.absolute.sum() / self.count.sum())

    def averages(self) -> dict[str, float]:
        """The scores that are averages over series: "mase" and "smape" where there are several, and they are known."""
        if self.series is None:
            return {}
        scores = {"mase": self.series.mase, "smape": self.series.smape}
        return {name: value for name, value in scores.items() if math.isfinite(value)}

    def by_step(self) -> list[float]:
        """The mean squared error of each step ahead."""
        means: list[float] = (self.squares.sum(0) / self.count.sum(0).clamp(min=1)).tolist()
        return means

    def by_channel(self, scale: Tensor) -> list[float]:
        """The mean absolute error of each channel, in its own units; NaN where nothing was measured."""
        means: list[float] = (scale * self.absolute.sum(1) / self.count.sum(1)).tolist()
        return means

    def until(self, horizon: int) -> float:
        """The mean squared error of the first steps ahead."""
        return float(self.squares[:, :horizon].sum() / self.count[:, :horizon].sum())


@dataclass
class Scores:
    """Errors of each method over the same windows, the first of which is the model."""

    errors: dict[str, Errors]
    windows: int
    levels: tuple[float, ...] = ()
    coverage: list[float] = field(default_factory=list)  # of each level: the share of values within the interval


def model_method(model: nn.Module) -> Method:
    """A model's forecasts from windows and covariates; a LookbackForecast also takes the season's phase, and a
    PooledForecast the level and the number of rows."""

    def forecast(examples: Examples) -> Tensor:
        device = next(model.parameters()).device
        windows = examples.windows.to(device)
        if isinstance(model, PooledForecast):
            level, rows = examples.level.to(device)[..., None], examples.rows.to(device)
            forecasts = read(model, windows[..., -model.window :] + level, rows.clamp(max=model.window))
            return (model.bounded(forecasts) - level).to(examples.windows)
        if not isinstance(model, LookbackForecast):
            covariates = () if examples.covariates is None else (examples.covariates.to(device),)
            ahead: Tensor = model(windows, *covariates).to(examples.windows.device)
            return ahead
        windows, phase = windows[..., -model.lookback :], examples.steps.to(device) % max(model.season, 1)
        if isinstance(model, CovariateForecast):
            assert examples.covariates is not None
            steps = model.lags - 1 + model.lookback + model.horizon
            effect = model.effect(examples.covariates[..., -steps:].to(device))
            ahead = model.forecast(windows, phase, effect)
        else:
            ahead = model.read(windows, phase)
        return model.bounded(ahead, examples.level.to(ahead)).to(examples.windows.device)

    return forecast


def last_value(horizon: int) -> Method:
    return lambda examples: examples.windows[..., -1:].expand(-1, -1, horizon)


def seasonal_value(horizon: int, season: int) -> Method:
    """The value of one season before, or of several where the horizon is longer."""
    back = torch.arange(horizon) % season - season
    return lambda examples: examples.windows[..., back + examples.windows.shape[-1]]


def baselines(split: Split) -> dict[str, Method]:
    """Last value, seasonal last value, and a linear map of the window."""
    settings = split.settings
    methods: dict[str, Method] = {"last value": last_value(settings.horizon)}
    if settings.season:
        methods["seasonal last value"] = seasonal_value(settings.horizon, settings.season)
    linear = WindowLinear(len(split.scale), settings.horizon, settings.lookback)
    train, valid = [], []
    for piece, (a, b) in zip(split.data.pieces, split.cuts, strict=True):
        rows = torch.from_numpy((piece.values - piece.values[0]).T.astype(np.float32))
        train.append(rows[:, :a])
        valid.append(rows[:, max(0, a - settings.lookback) : b])
    linear.fit(train, valid, split.scale)
    methods["linear"] = linear
    if settings.window:
        methods["Theta"] = theta(split)
    return methods


def theta(split: Split) -> Method:
    """The method Theta over the last 24 steps or two seasons, seasonally adjusted: exponential smoothing with half of
    the linear trend. Its rate has the smallest error on the validation rows, or without any on the training rows.
    Shorter series are forecast by the last value with its season."""
    settings, channels = split.settings, len(split.scale)
    season = settings.season if settings.season > 1 else 0
    kind = Member(min(max(STEPS, 2 * season), settings.window), season, False, False)
    origins = split.origins("valid", _THETA)
    if not len(origins):
        origins = split.origins("train", _THETA)
    methods: dict[str, Method] = {}
    for rate in RATES:
        layer = PooledForecast(channels, settings.horizon, settings.window, [kind], season=season)
        layer.requires_grad_(False).readouts[0].weight.copy_(Classical(kind, rate, 0.5).weight(settings.horizon))
        methods[str(rate)] = model_method(layer)
    if not len(origins):
        return methods[str(RATES[0])]
    errors = score(methods, split, origins).errors
    best = min(errors, key=lambda name: errors[name].averages().get("mase", errors[name].mse))
    return methods[best]


def score(
    methods: dict[str, Method],
    split: Split,
    origins: Tensor,
    intervals: Intervals | None = None,
    windows: Windows | None = None,
    units: SeriesUnits | None = None,
) -> Scores:
    """Errors of each method over these origins, and the share of values within the first method's intervals. Several
    processes that have the series of `split` share the work.

    Args:
        methods: by name.
        split: the series.
        origins: the last rows of the windows.
        intervals: of the first method.
        windows: of other series; by default those of `split`.
        units: of these, if there are several.
    """
    scale = split.scale

    def zeros() -> Tensor:
        return torch.zeros(len(split.scale), split.horizon, dtype=torch.float64)

    sums = {name: Errors(zeros(), zeros(), zeros()) for name in methods}
    if windows is None:
        windows, ends = split.windows, [end for _, end in split.cuts]
        units = SeriesUnits.of(split.data.pieces, ends, split.settings.season)
    if units is not None:
        for errors in sums.values():
            errors.series = SeriesErrors(units)
    count, processes = len(origins), split.data.processes
    origins = origins[processes.share(count)]
    pieces = torch.searchsorted(windows.offsets, origins, right=True) - 1  # that each origin is in
    done = 0
    levels = () if intervals is None else intervals.levels
    inside = torch.zeros(len(levels), dtype=torch.float64)
    with torch.no_grad():
        for examples in windows.blocks(origins, split.length, split.horizon):
            future = examples.future
            places = pieces[done : done + len(future)]
            done += len(future)
            counted = torch.ones_like(future, dtype=torch.bool) if examples.measured is None else examples.measured
            for name, method in methods.items():
                forecast = method(examples)
                error = torch.where(counted, (forecast - future) / scale[:, None], 0.0)
                sums[name].squares += error.square().sum(0)
                sums[name].absolute += error.abs().sum(0)
                sums[name].count += counted.sum(0)
                if (series := sums[name].series) is not None:
                    series.add(examples, forecast, counted, places)
                if intervals is not None and name == next(iter(methods)):
                    spread = intervals.spread(examples.windows, examples.rows)
                    lower, upper = intervals.bounds(forecast, spread, examples.level)
                    inside += ((future >= lower) & (future <= upper) & counted).flatten(1).sum(1)
    for errors in sums.values():
        errors.total(processes)
    processes.total(inside)
    total = next(iter(sums.values())).count.sum()
    if not total:
        raise DataError("the rows that are scored have no measured value: there is nothing to compare forecasts with")
    return Scores(sums, count, levels, (inside / total).tolist())


def first_rows_to_score(model: nn.Module, settings: Settings, pieces: Sequence[Piece]) -> list[int]:
    """Where windows of other series are scored: the number of rows of each piece before the first value that is
    forecast. All that the model reads lie before it, or in a shorter piece all but the last horizon."""
    rows = settings.lookback
    if isinstance(model, LookbackForecast):
        rows = model.lookback
    if isinstance(model, PooledForecast):  # four seasons show its season
        read = max(member.kind.lookback for member in model.readouts)
        rows = min(model.window, max(read, 4 * model.season))
    return [max(settings.least, min(rows, len(piece) - settings.horizon)) for piece in pieces]


def variance(windows: Windows, origins: Tensor, split: Split, mean: Tensor) -> float:
    """Of what is to be forecast, in units of each channel's standard deviation."""
    count, total, squares = 0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for block in origins.split(max(1, BLOCK // (split.horizon * len(mean)))):
        examples = windows.take(block, 1, split.horizon)
        level = windows.level[torch.searchsorted(windows.offsets, block, right=True) - 1] - mean
        values = (examples.future.double() + level[:, :, None]) / split.scale[:, None]
        values = values.flatten() if examples.measured is None else values[examples.measured]
        count, total, squares = count + len(values), total + values.sum(), squares + values.square().sum()
    return float(squares / count - (total / count) ** 2)
