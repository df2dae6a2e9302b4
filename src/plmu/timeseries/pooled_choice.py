"""Which candidates are averaged in a `PooledForecast`, by their errors on validation windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plmu.folded.pooled import Member, forecast_of
from plmu.nn.pooled import PooledMember
from plmu.timeseries.pooled_windows import BLOCK, Error, SingleError, Windows

NEAR, MOST = 1.2, 12  # fitted candidates in the mean: errors of at most so many times the smallest, and how many
CLASSICAL = 4  # classical candidates in the mean, or half as many as there are fitted ones
SINGLE, SINGLE_NEAR = 16, 1.3  # the same for a single series
ROUNDING = 1e-5  # share by which errors differ that are taken as equal
CLOSE = 1.1  # of the best fitted and the best classical candidate: where one has a larger error, its kind is left out


@dataclass(frozen=True)
class Tried:
    """A candidate, and its forecasts of the validation windows."""

    member: PooledMember
    alpha: float  # of the ridge; 0 for a member that is classical or trained
    forecasts: Tensor  # (windows, horizon); 0 where it is not available
    available: Tensor  # (windows, 1): 1 where a window is long enough, else 0
    refitted: PooledMember | None = None  # to all rows, where that is known

    @property
    def kind(self) -> Member:
        return self.member.kind

    @property
    def trained(self) -> bool:
        """Whether its hidden layers are trained."""
        return len(self.kind.hidden) > 1

    @property
    def classical(self) -> bool:
        """Whether its readout is known without any data."""
        return not (self.alpha or self.trained)

    @property
    def simple(self) -> bool:
        """Whether it is classical, without logarithms and with the same weights for each window."""
        return self.classical and not (self.kind.log or self.kind.adaptive)


def forecasts_of(member: PooledMember, weights: Tensor, windows: Windows) -> Tensor:
    """Forecasts (options, windows, horizon) of a member with each of the readouts (options, features, horizon); 0 where
    it is not available."""
    kind, together = member.kind, weights.movedim(0, 1).flatten(1)
    forecasts = windows.future.new_zeros(len(weights), *windows.future.shape)
    with torch.no_grad():
        for rows in windows.rows_for(kind).split(BLOCK):
            values, ahead = windows.values(kind, rows)
            window = member.features(values, ahead)
            changes = (window.features @ together).unflatten(1, (len(weights), windows.horizon))
            for place in range(len(weights)):
                forecasts[place, rows] = forecast_of(kind, window, changes[:, place], values, ahead)
    return forecasts


def available(member: PooledMember, windows: Windows) -> Tensor:
    """1 for each window (windows, 1) that is long enough for a member, else 0."""
    return (windows.steps >= member.kind.lookback)[:, None].to(windows.future.dtype)


def blended(tried: Sequence[Tried], error: Error | SingleError, fallback: Tensor) -> tuple[list[int], float]:
    """How often each candidate is in the mean, and the error of the mean.

    All fitted candidates near the best are in it twice, and the best classical ones once: a mean of many depends less
    on the validation windows than those with the smallest error there. It has fewer while it is worse than the best
    simple candidate. Without validation windows it is that of the simple ones, and the error NaN.

    Args:
        tried: the candidates.
        error: of forecasts.
        fallback: the forecast where no candidate is available, (windows, horizon).
    """
    if not error.is_known:
        return [int(candidate.simple) for candidate in tried], math.nan
    errors = [error(mean_of([candidate], [1], fallback)) for candidate in tried]
    order = sorted(range(len(tried)), key=lambda place: float(f"{errors[place]:.5g}"))
    fitted = [place for place in order if not tried[place].classical]
    classical = [place for place in order if tried[place].classical]
    fitted = [place for place in fitted if errors[place] <= NEAR * errors[fitted[0]]]
    if fitted and classical:
        limit = CLOSE * errors[order[0]]
        fitted, classical = (places if errors[places[0]] <= limit else [] for places in (fitted, classical))
    simple = [place for place in order if tried[place].simple]
    worst = errors[simple[0]] if simple else math.inf
    most = MOST
    while most > 1:
        picked = dict.fromkeys(fitted[:most], 2) | dict.fromkeys(classical[: max(min(most, CLASSICAL), most // 2)], 1)
        counts = [picked.get(place, 0) for place in range(len(tried))]
        if (best := error(mean_of(tried, counts, fallback))) <= worst:
            return counts, best
        most //= 2
    return [int(place == order[0]) for place in range(len(tried))], errors[order[0]]


def smallest(errors: Sequence[float]) -> int:
    """The place of the smallest error, or of one before it that differs by rounding alone: candidates may be equal, and
    sums are rounded otherwise on other machines and in several processes."""
    least = min(errors)
    return next((place for place, error in enumerate(errors) if error <= (1 + ROUNDING) * least), 0)


def averaged(
    tried: Sequence[Tried], error: Error | SingleError, fallback: Tensor, simple: Sequence[int]
) -> tuple[list[int], float]:
    """The counts, 0 or 1, of candidates in the mean for a single series, whose few validation windows tell less: the
    best, as many as leave the error below that of each simple candidate. Without validation windows as `blended`.

    Args:
        tried: the candidates.
        error: of forecasts.
        fallback: the forecast where no candidate is available, (windows, horizon).
        simple: places of the candidates that the mean must not be worse than.
    """
    if not error.is_known:
        return blended(tried, error, fallback)
    errors = [error(mean_of([candidate], [1], fallback)) for candidate in tried]
    order = sorted(range(len(tried)), key=errors.__getitem__)
    order = [place for place in order if errors[place] <= SINGLE_NEAR * errors[order[0]]]
    limit, count = min(errors[place] for place in simple), SINGLE
    while True:
        counts = [int(place in order[:count]) for place in range(len(tried))]
        best = error(mean_of(tried, counts, fallback))
        if best <= limit or count == 1:
            return counts, best
        count //= 2


def mean_of(tried: Sequence[Tried], counts: Sequence[int], fallback: Tensor) -> Tensor:
    """The mean of candidates that are available, with these weights."""
    total, number = torch.zeros_like(fallback), torch.zeros(len(fallback), 1, dtype=fallback.dtype)
    for candidate, count in zip(tried, counts, strict=True):
        if count:
            total += count * candidate.forecasts
            number += count * candidate.available
    return torch.where(number > 0, total / number.clamp(min=1), fallback)
