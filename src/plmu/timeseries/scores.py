"""Scores of forecasts: errors of a model and of baselines by step ahead, prediction intervals, a rolling backtest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from plmu.nn import CovariateForecast, LookbackForecast
from plmu.timeseries.examples import Examples, Windows
from plmu.timeseries.ridge import STRENGTHS, Part, Ridge, Standard, Sums, best_ridge

Method = Callable[[Examples], Tensor]  # to forecasts (some, channels, horizon)
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
        found: list[float] = (self.squares.sum(0) / self.count.sum(0).clamp(min=1)).tolist()
        return found

    def by_channel(self, scale: Tensor) -> list[float]:
        """The mean absolute error of each channel, in its own units."""
        found: list[float] = (scale * self.absolute.sum(1) / self.count.sum(1).clamp(min=1)).tolist()
        return found

    def until(self, horizon: int) -> float:
        """The mean squared error of the first steps ahead."""
        return float(self.squares[:, :horizon].sum() / self.count[:, :horizon].sum())


@dataclass
class Intervals:
    """Quantiles of validation errors, by which a forecast gets its intervals.

    The interval of level p at a step ahead reaches from the (1 − p)/2 to the (1 + p)/2 quantile of what was measured
    minus what was forecast, with the correction for finitely many errors of conformal prediction. Where there are
    several series, errors are relative to the changes from row to row in the window (`spread`).
    """

    levels: tuple[float, ...]
    relative: bool
    lookback: int  # rows of a window in which its changes are measured
    floor: Tensor  # (channels,): the smallest spread
    low: Tensor = field(default_factory=lambda: torch.zeros(0))  # (levels, channels, horizon)
    high: Tensor = field(default_factory=lambda: torch.zeros(0))

    def spread(self, windows: Tensor, known: Tensor | None = None) -> Tensor:
        """What errors are relative to: (some, channels, 1), or 1.

        Args:
            windows: (some, channels, length).
            known: how many rows of each were measured, (some,); those before repeat the first. Default: all.
        """
        if not self.relative:
            return windows.new_ones(1)
        windows = windows[..., -self.lookback :]
        count = windows.new_full((len(windows),), windows.shape[-1]) if known is None else known
        changes = windows.diff(dim=-1).square().sum(-1, keepdim=True)
        changes = (changes / (count.clamp(max=windows.shape[-1]) - 1).clamp(min=1)[:, None, None]).sqrt()
        return changes.maximum(self.floor[:, None])


def model_method(model: nn.Module) -> Method:
    """A model's forecasts from windows and covariates, and of a LookbackForecast by the season's phase."""

    def forecast(one: Examples) -> Tensor:
        place = next(model.parameters()).device
        given = one.windows.to(place)
        if not isinstance(model, LookbackForecast):
            known = () if one.covariates is None else (one.covariates.to(place),)
            found: Tensor = model(given, *known).to(one.windows.device)
            return found
        given, phase = given[..., -model.lookback :], one.steps.to(place) % max(model.season, 1)
        if isinstance(model, CovariateForecast):
            assert one.covariates is not None
            effect = model.effect(one.covariates[..., 1 - model.lags - model.lookback - model.horizon :].to(place))
            out = model.forecast(given, phase, effect)
        else:
            out = model.read(given, phase)
        return out.to(one.windows.device)

    return forecast


def last_value(horizon: int) -> Method:
    return lambda one: one.windows[..., -1:].expand(-1, -1, horizon)


def seasonal_value(horizon: int, season: int) -> Method:
    """The value of one season before, or of several where the horizon is longer."""
    back = torch.arange(horizon) % season - season
    return lambda one: one.windows[..., back + one.windows.shape[-1]]


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
            parts = [Part(one / scale[:, None], 0) for one in series]
            count = sum(one.windows(self) for one in parts) * self.channels
            sums.append(Sums.of(self, parts, max(1, -(-count // _LINEAR))))
        found = best_ridge(sums[0], sums[1] if sums[1].count else None, STRENGTHS, (float("inf"),))
        self.weight = found.weight[0].float()
        return found

    def __call__(self, one: Examples) -> Tensor:
        own = one.windows[..., -self.lookback :]
        return own[..., -1:] + (own - own[..., -1:]) @ self.weight


def score(
    methods: dict[str, Method],
    windows: Windows,
    origins: Tensor,
    length: int,
    horizon: int,
    scale: Tensor,
    intervals: Intervals | None = None,
) -> tuple[dict[str, Errors], list[float]]:
    """Errors of each method over these origins, and the share of values within the first method's intervals."""
    shape = (len(scale), horizon)
    sums = {name: Errors(*(torch.zeros(shape, dtype=torch.float64) for _ in range(3))) for name in methods}
    inside = torch.zeros(0 if intervals is None else len(intervals.levels), dtype=torch.float64)
    with torch.no_grad():
        for one in windows.blocks(origins, length, horizon):
            counted = torch.ones_like(one.future, dtype=torch.bool) if one.measured is None else one.measured
            for name, method in methods.items():
                forecast = method(one)
                error = torch.where(counted, (forecast - one.future) / scale[:, None], 0.0)
                sums[name].squares += error.square().sum(0)
                sums[name].absolute += error.abs().sum(0)
                sums[name].count += counted.sum(0)
                if intervals is not None and name == next(iter(methods)):
                    left = (one.future - forecast) / intervals.spread(one.windows)
                    for place in range(len(intervals.levels)):
                        within = (left >= intervals.low[place]) & (left <= intervals.high[place])
                        inside[place] += (within & counted).sum()
    total = next(iter(sums.values())).count.sum().clamp(min=1)
    return sums, (inside / total).tolist()


def fill_intervals(
    found: Intervals, forecasts: Sequence[tuple[Method, Tensor]], windows: Windows, length: int, horizon: int
) -> Intervals:
    """With the quantiles of the errors of methods, each over origins that it has not seen."""
    if not found.levels:
        return found
    left = []
    with torch.no_grad():
        for method, origins in forecasts:
            for one in windows.blocks(origins, length, horizon):
                error = (one.future - method(one)) / found.spread(one.windows)
                left.append(error if one.measured is None else torch.where(one.measured, error, torch.nan))
    errors = torch.cat(left)  # (windows, channels, horizon)
    count = errors.isfinite().sum(0)
    ordered = errors.nan_to_num(torch.inf).sort(0).values
    low, high = [], []
    for level in found.levels:
        # The ⌈(n + 1) q⌉-th smallest of n errors, and as far from the largest.
        rank = ((count + 1) * (1 + level) / 2).ceil().long().clamp(min=1).minimum(count.clamp(min=1)) - 1
        # Where all errors have one sign, the interval still holds the forecast.
        high.append(ordered.gather(0, rank[None])[0].clamp(min=0))
        low.append(ordered.gather(0, (count - 1 - rank).clamp(min=0)[None])[0].clamp(max=0))
    return replace(found, low=torch.stack(low), high=torch.stack(high))
