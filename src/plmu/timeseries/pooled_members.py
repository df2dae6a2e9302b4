"""What a `PooledForecast` of series may be made of: members with a look-back, a season, logarithms; and classical
forecasts as members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from plmu.folded.adaptive import RATES, SLOPES, classical
from plmu.folded.pooled import Member

_LONG = 0.75  # share of series that may be shorter than the longest look-back
LEAST = 4  # steps of the shortest window that is fitted or scored
_HORIZONS = (0.75, 1.5, 4.0)  # look-backs in horizons, where there is no season
_SEASONS = (1.5, 3.0, 6.0)  # look-backs in seasons
_MOST = 336  # steps of a look-back, since features are as many
_CYCLES = (4, 12)  # seasons that a window has, at least and at most
_STEPS = 240  # of a window with a season, if that many seasons hold them
_WEEK, _DAYS = 7, range(20, 145)  # a season of so many steps may be a day, and have weeks
ADAPTIVE = 8  # the shortest look-back from which readouts start from a mean of classical forecasts, too
POWER, POWERS = 4, (3, 8)  # of the errors by which this mean is weighted; and of classical members
STEPS = 24  # steps of a classical member, at most, or two seasons


class Classical(NamedTuple):
    """Exponential smoothing with a share of the linear trend of the look-back: a member with known weights."""

    kind: Member
    rate: float  # of the smoothing; 1 is the last value
    slope: float  # share of the trend

    def weight(self, horizon: int) -> Tensor:
        """The weights (features, horizon), of changes from the last value."""
        size = self.kind.lookback
        weight = torch.zeros(self.kind.features, horizon, dtype=torch.float64)
        weight[1:size] = classical(size, self.rate, self.slope, horizon)
        return weight


class Candidates(NamedTuple):
    """What is tried for series."""

    seasons: tuple[int, ...]
    fitted: list[Member]  # whose readouts are fitted; those that start from classical forecasts without these, too
    trained: list[Member]  # whose hidden layers are trained, too, where there are enough rows
    classical: list[Classical]
    adaptive: list[Member]  # classical forecasts that are weighted by their errors in each window
    window: int
    longest: int  # look-back

    def without_adaptive(self) -> Candidates:
        """Without those that start from classical forecasts."""
        fitted = [kind._replace(adaptive=0) for kind in self.fitted]
        return self._replace(fitted=fitted, adaptive=[])

    @classmethod
    def of(cls, lengths: Tensor, horizon: int, season: int, reach: int = 0) -> Candidates:
        """For series of these lengths.

        Args:
            lengths: of the rows that are fitted, (series,).
            horizon: steps ahead.
            season: the seasonal period; 0 for none.
            reach: the longest look-back of further candidates.
        """
        fitted_rows = lengths[lengths > 0].double()
        usual = int(fitted_rows.quantile(_LONG)) if len(fitted_rows) else LEAST
        longest = max(LEAST, usual - horizon)
        seasons = [season] if season > 1 else []
        if season in _DAYS and _WEEK * season * _CYCLES[0] <= usual:
            seasons.append(_WEEK * season)
        sizes = _lookbacks(horizon, seasons, min(longest, _MOST))
        fitted, classical = _fitted(sizes, seasons), _classical(seasons, longest)
        kinds = dict.fromkeys(member.kind for member in classical)
        adaptive = [kind._replace(adaptive=power) for kind in kinds for power in POWERS]
        trained = [Member(size, *kind) for size in sizes for kind in _trained(seasons)]
        largest = max(reach, *(kind.lookback for kind in (*fitted, *adaptive)))
        windows = [steps * min(max(_STEPS // steps, _CYCLES[0]), _CYCLES[1]) for steps in seasons]
        window = max(largest, min(max(windows, default=0), int(lengths.max())))
        return cls(tuple(seasons), fitted, trained, classical, adaptive, window, largest)


def _lookbacks(horizon: int, seasons: Sequence[int], longest: int) -> list[int]:
    """Look-backs that are tried, of at most `longest` steps."""
    if seasons:
        sizes = [share * seasons[0] for share in _SEASONS]
        sizes += [share * season for season in seasons[1:] for share in (1, 2)]
    else:
        sizes = [share * horizon for share in _HORIZONS]
    return sorted({min(max(LEAST, round(size)), longest) for size in sizes})


def _fitted(sizes: Sequence[int], seasons: Sequence[int]) -> list[Member]:
    members = []
    for size in sizes:
        for season in seasons:
            members += [Member(size, season, True, True), Member(size, season, False, True)]
            members.append(Member(size, season, True, False))
        members += [Member(size, 0, True, True), Member(size, 0, False, True)]
        if not seasons:
            members.append(Member(size, 0, True, False))
    return [kind._replace(adaptive=POWER) if kind.lookback >= ADAPTIVE else kind for kind in members]


def _trained(seasons: Sequence[int]) -> list[tuple[int, bool]]:
    """Season and logarithm of trained members of a look-back."""
    return [(season, True) for season in seasons] + [(0, False)] if seasons else [(0, False), (0, True)]


def _classical(seasons: Sequence[int], longest: int) -> list[Classical]:
    members = []
    for season in (0, *seasons):
        size = min(max(STEPS, 2 * season), longest)
        for lookback in sorted({size, max(LEAST, size // 3)}):
            for log in (False, True):
                kind = Member(lookback, season, log, False)
                members += [Classical(kind, rate, slope) for rate in RATES for slope in SLOPES]
    return members
