"""Linear maps of a window to the horizon: a baseline, and candidates for a `PooledForecast`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from plmu.timeseries.ridge import ALPHAS, Ridge, ScaledSeries, Standard, Sums, best_ridge
from plmu.timeseries.windows import Examples, Part

_FITTED = 20_000  # windows over all channels that a map is fitted to


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
            sums.append(Sums.of(self, parts, max(1, -(-count // _FITTED))))
        best = best_ridge(sums[0], sums[1] if sums[1].count else None, ALPHAS, (float("inf"),))
        self.weight = best.weight[0].float()
        return best

    def __call__(self, examples: Examples) -> Tensor:
        windows = examples.windows[..., -self.lookback :]
        return windows[..., -1:] + (windows - windows[..., -1:]) @ self.weight


class LinearMap(NamedTuple):
    """A linear map of the differences from a window's last value: weights (lookback, horizon)."""

    weight: Tensor
    refitted: Tensor  # fitted to the validation rows, too
    alpha: float  # penalty of the ridge regression; 0 for a map that is known


def linear_maps(data: ScaledSeries, lookbacks: Iterable[int]) -> list[LinearMap]:
    """The ridge regressions on windows of these sizes, of which the validation rows have some."""
    maps = []
    for lookback in lookbacks:
        layer = WindowLinear(data.channels, data.horizon, lookback)
        train, valid = data.sums(layer, _FITTED)
        if train.count and valid is not None:
            best = best_ridge(train, valid, ALPHAS, (float("inf"),))
            again = best_ridge(data.all_sums(layer, _FITTED), valid, (best.alpha,), (best.pull,))
            maps.append(LinearMap(best.weight[0].float(), again.weight[0].float(), best.alpha))
    return maps


def seasonal_map(horizon: int, season: int) -> LinearMap:
    """The value of one season before, or of several where the horizon is longer."""
    weight = torch.zeros(season, horizon)
    weight[torch.arange(horizon) % season, torch.arange(horizon)] = 1.0
    return LinearMap(weight, weight, 0.0)
