"""Scores of forecasts: errors of a model and of the baselines by step ahead, and how often intervals held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from plmu.nn.covariates import CovariateForecast
from plmu.nn.forecast import LookbackForecast
from plmu.timeseries.intervals import Intervals
from plmu.timeseries.ridge import ALPHAS, Part, Ridge, Standard, Sums, best_ridge
from plmu.timeseries.split import Split
from plmu.timeseries.windows import Examples, Windows

Method = Callable[[Examples], Tensor]  # to forecasts (windows, channels, horizon)
_LINEAR = 20_000  # windows over all channels that the linear baseline is fitted to


@dataclass
class Errors:
    """Sums over windows, for each channel and step ahead."""

    squares: Tensor  # (channels, horizon), in units of each channel's scale
    absolute: Tensor
    count: Tensor

    @property
    def mse(self) -> float:
        return float(self.squares.sum() / self.count.sum())

    @property
    def mae(self) -> float:
        return float(self.absolute.sum() / self.count.sum())

    def by_step(self) -> list[float]:
        """The mean squared error of each step ahead."""
        means: list[float] = (self.squares.sum(0) / self.count.sum(0).clamp(min=1)).tolist()
        return means

    def by_channel(self, scale: Tensor) -> list[float]:
        """The mean absolute error of each channel, in its own units."""
        means: list[float] = (scale * self.absolute.sum(1) / self.count.sum(1).clamp(min=1)).tolist()
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
    """A model's forecasts from windows and covariates; a LookbackForecast also takes the season's phase."""

    def forecast(examples: Examples) -> Tensor:
        device = next(model.parameters()).device
        windows = examples.windows.to(device)
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
        return ahead.to(examples.windows.device)

    return forecast


def last_value(horizon: int) -> Method:
    return lambda examples: examples.windows[..., -1:].expand(-1, -1, horizon)


def seasonal_value(horizon: int, season: int) -> Method:
    """The value of one season before, or of several where the horizon is longer."""
    back = torch.arange(horizon) % season - season
    return lambda examples: examples.windows[..., back + examples.windows.shape[-1]]


class WindowLinear:
    """A linear map of the window to the horizon, relative to the last value, by ridge regression: NLinear, whose class
    of functions DLinear shares. It has what `Sums` asks of a layer."""

    def __init__(self, channels: int, horizon: int, lookback: int) -> None:
        self.season = self.phase = 0
        self.channels, self.horizon, self.lookback, self.order = channels, horizon, lookback, lookback
        self.weight = torch.zeros(lookback, horizon)

    def standard(self, windows: Tensor, phase: Tensor) -> Standard:
        return Standard(windows - windows[..., -1:], windows[..., -1:], None)

    def fit(self, train: Sequence[Tensor], valid: Sequence[Tensor], scale: Tensor) -> Ridge:
        """To series (channels, time), each divided by its scale."""
        sums = []
        for series in (train, valid):
            parts = [Part(rows / scale[:, None], 0) for rows in series]
            count = sum(part.windows(self) for part in parts) * self.channels
            sums.append(Sums.of(self, parts, max(1, -(-count // _LINEAR))))
        best = best_ridge(sums[0], sums[1] if sums[1].count else None, ALPHAS, (float("inf"),))
        self.weight = best.weight[0].float()
        return best

    def __call__(self, examples: Examples) -> Tensor:
        windows = examples.windows[..., -self.lookback :]
        return windows[..., -1:] + (windows - windows[..., -1:]) @ self.weight


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
    return methods


def score(
    methods: dict[str, Method],
    windows: Windows,
    origins: Tensor,
    length: int,
    horizon: int,
    scale: Tensor,
    intervals: Intervals | None = None,
) -> Scores:
    """Errors of each method over these origins, and the share of values within the first method's intervals.

    Args:
        methods: by name.
        windows: the series.
        origins: the last rows of the windows.
        length: rows of a window.
        horizon: steps ahead.
        scale: the unit of errors, (channels,).
        intervals: of the first method.
    """
    shape = (len(scale), horizon)
    sums = {name: Errors(*(torch.zeros(shape, dtype=torch.float64) for _ in range(3))) for name in methods}
    levels = () if intervals is None else intervals.levels
    inside = torch.zeros(len(levels), dtype=torch.float64)
    with torch.no_grad():
        for examples in windows.blocks(origins, length, horizon):
            future = examples.future
            counted = torch.ones_like(future, dtype=torch.bool) if examples.measured is None else examples.measured
            for name, method in methods.items():
                forecast = method(examples)
                error = torch.where(counted, (forecast - future) / scale[:, None], 0.0)
                sums[name].squares += error.square().sum(0)
                sums[name].absolute += error.abs().sum(0)
                sums[name].count += counted.sum(0)
                if intervals is not None and name == next(iter(methods)):
                    relative = (future - forecast) / intervals.spread(examples.windows)
                    for place in range(len(levels)):
                        within = (relative >= intervals.low[place]) & (relative <= intervals.high[place])
                        inside[place] += (within & counted).sum()
    total = next(iter(sums.values())).count.sum().clamp(min=1)
    return Scores(sums, len(origins), levels, (inside / total).tolist())
