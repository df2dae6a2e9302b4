"""Ridge regression over all windows of long tables: sums of products in blocks, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from plmu.nn.covariates import spread
from plmu.nn.forecast import Standard as Standard  # what a reader returns
from plmu.timeseries.windows import Part, Sizes, blocks, stride_of

ALPHAS = tuple(10.0 ** (k / 2) for k in range(-8, 5))  # of the ridge, for features of unit power
PULLS = (float("inf"), 3.0, 1.0, 0.3, 0.1, 0.03)  # of each channel's readout towards the shared one


class Reader(Sizes, Protocol):
    """What reads windows: a `LookbackForecast`, or another with its sizes."""

    @property
    def order(self) -> int:
        """The number of features of a window."""

    def standard(self, windows: Tensor, phase: Tensor) -> Standard:
        """Features, level and season ahead of windows (..., channels, lookback)."""


@dataclass(frozen=True)
class Sums:
    """Means over windows, for each channel: features by features, features by targets, squares of the targets."""

    gram: Tensor  # (channels, order, order)
    cross: Tensor  # (channels, order, horizon)
    square: Tensor  # (channels,)
    count: int

    @classmethod
    def of(cls, layer: Reader, parts: Sequence[Part], stride: int = 1) -> Sums:
        """Over the windows of the parts that start at every stride-th row."""
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
        """The same with features divided by their scale (order,)."""
        return Sums(self.gram / scale[:, None] / scale, self.cross / scale[:, None], self.square, self.count)

    def error(self, weight: Tensor) -> float:
        """The mean squared error of readouts (1 or channels, order, horizon)."""
        explained = (weight * (2 * self.cross - self.gram @ weight)).sum((1, 2))
        return float((self.square - explained).mean()) / self.cross.shape[2]


@dataclass(frozen=True)
class ScaledSeries:
    """Scaled series (channels, time), the number of validation rows at the end of each, and the number of each one's
    first row; and the effects of covariates on them."""

    series: list[Tensor]
    validation_rows: list[int]
    start_rows: list[int]
    channels: int
    horizon: int
    effects: list[Tensor] | None = None
    relative: bool = False

    def past(self) -> list[Tensor]:
        """The rows before the validation rows, without the effects of covariates."""
        return [self._without_effect(place)[:, : self._end(place)] for place in range(len(self.series))]

    def has_validation(self, lookback: int) -> bool:
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
        """Of the windows before the validation rows, and of those whose horizon lies in them."""
        train, valid = self.train(), self.valid(layer.lookback)
        checked = Sums.of(layer, valid, self.stride(layer, valid, limit)) if valid else None
        return Sums.of(layer, train, self.stride(layer, train, limit)), checked if checked and checked.count else None

    def all_sums(self, layer: Reader, limit: int) -> Sums:
        parts = [self._part(place, 0, None) for place in range(len(self.series))]
        return Sums.of(layer, parts, self.stride(layer, parts, limit))

    def stride(self, layer: Sizes, parts: list[Part], limit: int) -> int:
        """So that at most `limit` windows are taken, over all channels."""
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
    """A readout, the regularisation that gave it, and its error on validation data."""

    weight: Tensor  # (1 or channels, order, horizon), of unscaled features
    alpha: float
    pull: float
    error: float


def solve(train: Sums, alpha: float, pull: float, shared: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The shared readout (order, horizon) of scaled features, and that of each channel, pulled towards it."""
    eye = torch.eye(train.gram.shape[1], dtype=torch.float64)
    if shared is None:
        shared = torch.linalg.solve(train.gram.mean(0) + alpha * eye, train.cross.mean(0))
    if pull == float("inf"):
        return shared, shared[None]
    difference = torch.linalg.solve(train.gram + pull * eye, train.cross - train.gram @ shared)
    return shared, shared + difference


def best_ridge(
    train: Sums,
    valid: Sums | None,
    alphas: Sequence[float] = ALPHAS,
    pulls: Sequence[float] = PULLS,
) -> Ridge:
    """The readout with the smallest error on validation data; that of the median alpha where there is none."""
    scale = train.gram.diagonal(dim1=1, dim2=2).mean(0).sqrt()
    scale = torch.where(scale > 0, scale, 1.0)
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
