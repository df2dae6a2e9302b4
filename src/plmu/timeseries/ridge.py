"""Ridge regression over all windows of series, from sums of products that are computed in blocks, so that memory stays
bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from plmu.nn.covariates import spread
from plmu.nn.forecast import Standard as Standard  # what a reader returns
from plmu.timeseries.windows import Part, Sizes, blocks, stride_of

ALPHAS = tuple(10.0 ** (k / 2) for k in range(-8, 5))  # penalties of the ridge, for features of unit power
PULLS = (float("inf"), 3.0, 1.0, 0.3, 0.1, 0.03)  # penalties on each channel's difference from the shared readout


class Reader(Sizes, Protocol):
    """A layer that makes features of windows, such as a `LookbackForecast`."""

    @property
    def order(self) -> int:
        """The number of features of a window."""

    def standard(self, windows: Tensor, phase: Tensor) -> Standard:
        """The features, the last value and the season ahead of windows (..., channels, lookback)."""


@dataclass(frozen=True)
class Sums:
    """Means over windows, for each channel: features by features, features by targets, squares of the targets."""

    gram: Tensor  # (channels, order, order)
    cross: Tensor  # (channels, order, horizon)
    square: Tensor  # (channels,), summed over the horizon
    count: int  # the number of windows

    @classmethod
    def of(cls, layer: Reader, parts: Sequence[Part], stride: int = 1) -> Sums:
        """The means over the windows of `parts` that begin at every stride-th row; all 0 without windows."""
        gram = torch.zeros(layer.channels, layer.order, layer.order, dtype=torch.float64)
        cross = torch.zeros(layer.channels, layer.order, layer.horizon, dtype=torch.float64)
        square = torch.zeros(layer.channels, dtype=torch.float64)
        count = 0
        for windows, future, phase in blocks(layer, parts, stride):
            standard = layer.standard(windows, phase)
            target = future - standard.last
            if standard.ahead is not None:
                target -= standard.ahead
            features, target = standard.features.movedim(1, 0), target.movedim(1, 0)  # (channels, windows, ...)
            gram += features.mT @ features
            cross += features.mT @ target
            square += target.square().sum((1, 2))
            count += windows.shape[0]
        return cls(gram / max(count, 1), cross / max(count, 1), square / max(count, 1), count)

    def scaled(self, scale: Tensor) -> Sums:
        """The means for features that are divided by their scale (order,)."""
        return Sums(self.gram / scale[:, None] / scale, self.cross / scale[:, None], self.square, self.count)

    def error(self, weight: Tensor) -> float:
        """The mean squared error of the readouts `weight`, (1 or channels, order, horizon)."""
        explained = (weight * (2 * self.cross - self.gram @ weight)).sum((1, 2))
        return float((self.square - explained).mean()) / self.cross.shape[2]


@dataclass(frozen=True)
class ScaledSeries:
    """Series in units of a standard deviation, of which the last rows are for validation."""

    series: list[Tensor]  # (channels, time) each
    validation_rows: list[int]  # of each series: how many rows at its end
    start_rows: list[int]  # of each series: the number of its first row, for the season
    channels: int
    horizon: int
    effects: list[Tensor] | None = None  # of covariates on each series, (channels, time)
    relative: bool = False  # whether effects are in units of each window's spread

    def past(self) -> list[Tensor]:
        """The rows before the validation rows, without the effects of covariates."""
        return [self._without_effect(place)[:, : self._end(place)] for place in range(len(self.series))]

    def has_validation(self, lookback: int) -> bool:
        """Whether a series has validation rows and, before them, enough rows for a window."""
        pairs = zip(self.series, self.validation_rows, strict=True)
        return any(rows and series.shape[1] - rows >= lookback for series, rows in pairs)

    def train(self) -> list[Part]:
        """The rows before the validation rows."""
        return [self._part(place, 0, self._end(place)) for place in range(len(self.series))]

    def valid(self, lookback: int) -> list[Part]:
        """The validation rows, and those before them that their windows need."""
        firsts = [self._end(place) - lookback for place in range(len(self.series))]
        return [
            self._part(place, first, None)
            for place, first in enumerate(firsts)
            if self.validation_rows[place] and first >= 0
        ]

    def sums(self, layer: Reader, limit: int) -> tuple[Sums, Sums | None]:
        """Means over at most about `limit` windows before the validation rows, and over as many whose horizon lies in
        the validation rows; None if no horizon does."""
        train, valid = self.train(), self.valid(layer.lookback)
        checked = Sums.of(layer, valid, self.stride(layer, valid, limit)) if valid else None
        return Sums.of(layer, train, self.stride(layer, train, limit)), checked if checked and checked.count else None

    def all_sums(self, layer: Reader, limit: int) -> Sums:
        """Means over at most about `limit` windows of all rows, validation rows included."""
        parts = [self._part(place, 0, None) for place in range(len(self.series))]
        return Sums.of(layer, parts, self.stride(layer, parts, limit))

    def stride(self, layer: Sizes, parts: list[Part], limit: int) -> int:
        """The stride at which at most `limit` windows of these parts are taken, counted over all channels."""
        return stride_of(sum(part.windows(layer) for part in parts) * self.channels, limit, layer.season)

    def _end(self, place: int) -> int:
        return self.series[place].shape[1] - self.validation_rows[place]

    def _part(self, place: int, first: int, end: int | None) -> Part:
        effect = None if self.effects is None else self.effects[place][:, first:end]
        return Part(self.series[place][:, first:end], self.start_rows[place] + first, effect, self.relative)

    def _without_effect(self, place: int) -> Tensor:
        series = self.series[place]
        if self.effects is None:
            return series
        size = spread(series[:, : max(1, self._end(place))]) if self.relative else 1.0
        return series - self.effects[place] * size


@dataclass(frozen=True)
class Ridge:
    """A readout, the penalties with which it was fitted (`solve`), and its error on validation data."""

    weight: Tensor  # (1 or channels, order, horizon), of unscaled features
    alpha: float
    pull: float
    error: float  # mean squared; NaN without validation data


def solve(train: Sums, alpha: float, pull: float, shared: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The ridge regression of scaled features.

    Args:
        train: means over windows.
        alpha: penalty on the shared readout.
        pull: penalty on the difference of a channel's readout from the shared one; infinite for the shared one alone.
        shared: the shared readout (order, horizon), if it is known; then alpha has no effect.

    Returns:
        The shared readout, and the readouts (1 or channels, order, horizon) of the channels.
    """
    eye = torch.eye(train.gram.shape[1], dtype=torch.float64)
    if shared is None:
        shared = torch.linalg.solve(train.gram.mean(0) + alpha * eye, train.cross.mean(0))
    if pull == float("inf"):
        return shared, shared[None]
    difference = torch.linalg.solve(train.gram + pull * eye, train.cross - train.gram @ shared)
    return shared, shared + difference


def feature_scale(gram: Tensor) -> Tensor:
    """The root mean square of each feature (order,), 1 for those that are 0; of means (readouts, order, order)."""
    scale = gram.diagonal(dim1=1, dim2=2).mean(0).sqrt()
    return torch.where(scale > 0, scale, 1.0)


def best_ridge(
    train: Sums,
    valid: Sums | None,
    alphas: Sequence[float] = ALPHAS,
    pulls: Sequence[float] = PULLS,
) -> Ridge:
    """The readout with the smallest error on validation data; without such data, the shared one of the median alpha.
    Alpha is chosen for the shared readout, then the pull of the channels' readouts with this alpha."""
    scale = feature_scale(train.gram)
    train = train.scaled(scale)
    if valid is None:
        alpha = sorted(alphas)[len(alphas) // 2]
        weight = solve(train, alpha, float("inf"))[1]
        return Ridge(weight / scale[:, None], alpha, float("inf"), float("nan"))
    valid = valid.scaled(scale)
    best: Ridge | None = None
    for alpha in alphas:
        weight = solve(train, alpha, float("inf"))[1]
        error = valid.error(weight)
        if best is None or error < best.error:
            best = Ridge(weight, alpha, float("inf"), error)
    assert best is not None
    shared = best.weight[0]
    for pull in pulls:
        if pull != float("inf") and train.gram.shape[0] > 1:
            weight = solve(train, best.alpha, pull, shared)[1]
            error = valid.error(weight)
            if error < best.error:
                best = Ridge(weight, best.alpha, pull, error)
    return Ridge(best.weight / scale[:, None], best.alpha, best.pull, best.error)
