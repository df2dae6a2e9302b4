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

BEST, ROOM = 6, 0.01  # fitted candidates that are in the mean in any case, if that raises the error by so much at most
MOST, NEAR = 16, 1.3  # candidates in the mean for a single series, with errors of at most so many times the smallest
PICKS, GAIN = 8, 5e-4  # members in the mean, some more than once; and the share by which each must lower the error


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


def forecasts_of(member: PooledMember, weights: Tensor, windows: Windows) -> Tensor:
    """Forecasts (options, windows, horizon) of a member with each of the readouts (options, features, horizon); 0 where
    it is not available."""
    kind, together = member.kind, weights.movedim(0, 1).flatten(1)
    forecasts = torch.zeros(len(weights), *windows.future.shape)
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
    return (windows.steps >= member.kind.lookback)[:, None].float()


def chosen(tried: Sequence[Tried], error: Error | SingleError, fallback: Tensor) -> tuple[list[int], float]:
    """How often each candidate is in the mean that has the smallest error, and that error. Candidates are added one by
    one while they lower it. Without validation windows the mean is that of the classical ones without logarithms, and
    the error NaN.

    Args:
        tried: the candidates.
        error: of forecasts.
        fallback: the forecast where no candidate is available, (windows, horizon).
    """
    if not len(fallback):
        return [int(candidate.classical and not candidate.kind.log) for candidate in tried], math.nan
    counts = [0] * len(tried)
    total, number = torch.zeros_like(fallback), torch.zeros(len(fallback), 1, dtype=fallback.dtype)
    best = error(fallback)
    for _ in range(PICKS):
        errors = []
        for candidate in tried:
            there = number + candidate.available
            mean = (total + candidate.forecasts) / there.clamp(min=1)
            errors.append(error(torch.where(there > 0, mean, fallback)))
        place = min(range(len(tried)), key=errors.__getitem__)
        if not errors[place] < (1 - GAIN) * best:
            break
        best = errors[place]
        counts[place] += 1
        total += tried[place].forecasts
        number += tried[place].available
    return counts, best


def blended(tried: Sequence[Tried], error: Error | SingleError, fallback: Tensor) -> tuple[list[int], float]:
    """The counts of `chosen`, doubled, and one more for each of the best fitted candidates, where that hardly raises
    the error: such a mean depends less on the validation windows."""
    counts, best = chosen(tried, error, fallback)
    fitted = [place for place, candidate in enumerate(tried) if not candidate.classical]
    if not len(fallback):
        return counts, best
    errors = {place: error(mean_of([tried[place]], [1], fallback)) for place in fitted}
    blend = [2 * count for count in counts]
    for place in sorted(fitted, key=errors.__getitem__)[:BEST]:
        blend[place] += 1
    other = error(mean_of(tried, blend, fallback))
    return (blend, other) if other <= (1 + ROOM) * best else (counts, best)


def averaged(
    tried: Sequence[Tried], error: Error | SingleError, fallback: Tensor, simple: Sequence[int]
) -> tuple[list[int], float]:
    """The counts, 0 or 1, of candidates in the mean for a single series, whose few validation windows tell less: the
    best, as many as leave the error below that of each simple candidate. Without validation windows as `chosen`.

    Args:
        tried: the candidates.
        error: of forecasts.
        fallback: the forecast where no candidate is available, (windows, horizon).
        simple: places of the candidates that the mean must not be worse than.
    """
    if not len(fallback):
        return chosen(tried, error, fallback)
    errors = [error(mean_of([candidate], [1], fallback)) for candidate in tried]
    order = sorted(range(len(tried)), key=errors.__getitem__)
    order = [place for place in order if errors[place] <= NEAR * errors[order[0]]]
    limit, count = min(errors[place] for place in simple), MOST
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
