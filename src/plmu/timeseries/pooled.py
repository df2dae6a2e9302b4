"""Forecasts of many series, or of a short one, in closed form: readouts that all series share, in a `PooledForecast`.

Candidate members are fitted to windows of all series that end before the validation rows. Those whose mean has the
smallest error on the validation rows are fitted again, to all rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from plmu.folded.pooled import LARGEST_CHANGE, LOWEST, Adjusted, Member, adjusted, forecast_of, real_part
from plmu.nn.pooled import PooledForecast, PooledMember
from plmu.timeseries.pooled_members import LEAST, Candidates, Classical
from plmu.timeseries.series import Numbers
from plmu.timeseries.windows import stride_of

COVERED, JUDGED = (
    0.8,
    0.3,
)  # shares of series, and of validation windows, that are long enough for a member to be judged
CHECKED = 2_000  # validation windows, where there are few series; else one for each
RANDOM = 16, 512  # random features, at least and at most
ALPHAS = (1e-3, 1e-2, 1e-1)  # penalties of the ridge that are tried, for features of unit power
ROUNDS = 3  # of reweighting towards the absolute error
BEST, ROOM = 6, 0.01  # fitted candidates that are in the mean in any case, if that raises the error by so much at most
PICKS, GAIN = 8, 5e-4  # members in the mean, some more than once; and the share by which each must lower the error
_EACH = 128  # windows for each random feature
_VALUES = 2**26  # values in the windows that are held at a time
_SOFT, _SCALED = 0.3, 0.05  # windows weigh (1 + _SCALED / unit) / (error + _SOFT · unit)
_SMALLEST_UNIT = 0.01  # of a series, in its level
_BLOCK = 2**13  # windows of which all numbers are held at a time


class Limits(NamedTuple):
    """How many windows are taken."""

    recent: int  # latest windows of each series
    least: int  # in all, by more windows of each series
    most: int  # in all


TRIED, FITTED = Limits(12, 12_000, 60_000), Limits(24, 40_000, 250_000)  # for all candidates; for those that are chosen


class Panel(NamedTuple):
    """Series of one channel, one after the other."""

    values: Tensor  # (rows of all series,), float64
    starts: Tensor  # (series,): the first row of each
    lengths: Tensor  # (series,): how many rows of each count
    unit: Tensor  # (series,): mean absolute change over a season

    @classmethod
    def of(cls, series: Sequence[Numbers], lengths: Tensor, season: int) -> Panel:
        """Of arrays (time,), of which the first `lengths` rows count."""
        sizes = torch.tensor([len(values) for values in series])
        units = [_unit(values[:length], season) for values, length in zip(series, lengths.tolist(), strict=True)]
        values = torch.from_numpy(np.concatenate(series).astype(np.float64))
        return cls(values, sizes.cumsum(0) - sizes, lengths, torch.tensor(units, dtype=torch.float64))


class Places(NamedTuple):
    """Windows: the series of each, and the number of its rows up to the window's end."""

    series: Tensor
    ends: Tensor


class Batch(NamedTuple):
    """Windows and what follows them."""

    windows: Tensor  # (windows, window), float64; what is before the series does not count
    steps: Tensor  # (windows,): how many values of each are real
    future: Tensor  # (windows, horizon), float64
    unit: Tensor  # (windows,): that of its series
    share: Tensor  # (windows,): 1 / windows of its series


class Prepared:
    """A batch without its seasons, by period."""

    def __init__(self, batch: Batch, seasons: Sequence[int]) -> None:
        self.batch = batch
        self.horizon = batch.future.shape[1]
        self._by_season: dict[int, Adjusted] = {}
        for season in (0, *seasons):
            parts = [
                adjusted(real_part(windows, steps), steps, season, self.horizon)
                for windows, steps in zip(batch.windows.split(_BLOCK), batch.steps.split(_BLOCK), strict=True)
            ]
            self._by_season[season] = Adjusted(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))

    def values(self, kind: Member, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The last values that a member reads, and the season ahead."""
        without = self._by_season[kind.season]
        return without.windows[rows, -kind.lookback :], without.ahead[rows]

    def fallback(self, season: int) -> Tensor:
        """The last value without its season, times the season ahead: (windows, horizon)."""
        without = self._by_season[season]
        return without.windows[:, -1:] * without.ahead


@dataclass(frozen=True)
class Tried:
    """A candidate, and its forecasts of the validation windows."""

    member: PooledMember
    weight: Tensor  # (features, horizon)
    alpha: float  # of the ridge; 0 for a classical member
    forecasts: Tensor  # (windows, horizon), float64; 0 where it is not available
    available: Tensor  # (windows, 1): 1 where a window is long enough, else 0


@dataclass(frozen=True)
class Error:
    """The error of forecasts of windows: the mean of the absolute error in units of the series and in units of the
    level, each relative to that of the last value with its season."""

    future: Tensor
    scales: Tensor  # (windows,)

    @classmethod
    def of(cls, batch: Batch, fallback: Tensor) -> Error:
        level = real_part(batch.windows, batch.steps).abs().sum(1) / batch.steps
        level = level.maximum(batch.future.abs().mean(1)).clamp(min=1e-30)
        scales = torch.stack([batch.share / batch.unit.maximum(_SMALLEST_UNIT * level), batch.share / level])
        errors = (scales * (fallback - batch.future).abs().mean(1)).sum(1, keepdim=True)
        return cls(batch.future, (scales / (2 * errors).clamp(min=1e-30)).sum(0))

    def __call__(self, forecasts: Tensor) -> float:
        return float((self.scales * (forecasts - self.future).abs().mean(1)).sum())


@dataclass(frozen=True)
class PooledFit:
    """A fit to series."""

    model: PooledForecast  # fitted to all rows
    unrefitted: PooledForecast  # fitted to the rows before the validation rows
    error: float  # on the validation windows, in that of the last value with its season; NaN without such windows
    members: list[tuple[Member, float, int]]  # kind, penalty (0: classical) and how often it is in the mean
    checked: Places  # the validation windows
    error_of: Error


def fit(
    series: Sequence[Numbers],
    lengths: Sequence[int],
    validation_rows: Sequence[int],
    horizon: int,
    season: int,
    channels: int = 1,
) -> PooledFit:
    """Fit to series of one channel.

    Args:
        series: (time,) each, in any units.
        lengths: how many rows of each are fitted, those of validation included.
        validation_rows: the last of these, by which members are chosen; 0 for none.
        horizon: steps ahead.
        season: the seasonal period; 0 for none.
        channels: of the layer.
    """
    panel = Panel.of(series, torch.tensor(lengths), season)
    rows = torch.tensor(validation_rows)
    past = Panel.of(series, panel.lengths - rows, season)
    candidates = Candidates.of(past.lengths, horizon, season)
    window = candidates.window
    checked_places = _long_enough(_validation_places(panel.lengths, rows, horizon), candidates, panel.lengths)
    checked = Prepared(_take(panel, checked_places, window, horizon), candidates.seasons)
    largest_season = max(candidates.seasons, default=0)
    fallback = checked.fallback(largest_season)
    error = Error.of(checked.batch, fallback)

    fitted, enough = _fits(candidates.fitted, candidates, past, horizon, TRIED, checked, error)
    if not enough:
        fitted, _ = _fits(_promising(fitted, error, fallback), candidates, past, horizon, FITTED, checked, error)
    tried = list(fitted)
    for kind in dict.fromkeys(member.kind for member in candidates.classical):
        tried += _classical([member for member in candidates.classical if member.kind == kind], checked)
    counts, best = blended(tried, error, fallback)
    picked = [(candidate, count) for candidate, count in zip(tried, counts, strict=True) if count]

    everything = _prepared(panel, candidates, horizon, FITTED)
    again = _layer([candidate.member.kind for candidate, _ in picked], candidates, horizon, _random(everything))
    refitted = []
    for place, (candidate, count) in enumerate(picked):
        if candidate.alpha:
            member = again.readouts[place]
            weight = _fitted(member, everything, (candidate.alpha,))[0]
            candidate = replace(candidate, member=member, weight=weight)
        refitted.append((candidate, count))
    return PooledFit(
        _joined(refitted, candidates, horizon, channels),
        _joined(picked, candidates, horizon, channels),
        best,
        [(candidate.member.kind, candidate.alpha, count) for candidate, count in picked],
        checked_places,
        error,
    )


def chosen(tried: Sequence[Tried], error: Error, fallback: Tensor) -> tuple[list[int], float]:
    """How often each candidate is in the mean that has the smallest error, and that error. Candidates are added one by
    one while they lower it. Without validation windows the mean is that of the classical ones without logarithms, and
    the error NaN.

    Args:
        tried: the candidates.
        error: of forecasts.
        fallback: the forecast where no candidate is available, (windows, horizon).
    """
    if not len(fallback):
        return [int(not candidate.alpha and not candidate.member.kind.log) for candidate in tried], math.nan
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


def blended(tried: Sequence[Tried], error: Error, fallback: Tensor) -> tuple[list[int], float]:
    """The counts of `chosen`, doubled, and one more for each of the best fitted candidates, where that hardly raises
    the error: such a mean depends less on the validation windows."""
    counts, best = chosen(tried, error, fallback)
    fitted = [place for place, candidate in enumerate(tried) if candidate.alpha]
    if not len(fallback):
        return counts, best
    errors = {place: error(mean_of([tried[place]], [1], fallback)) for place in fitted}
    blend = [2 * count for count in counts]
    for place in sorted(fitted, key=errors.__getitem__)[:BEST]:
        blend[place] += 1
    other = error(mean_of(tried, blend, fallback))
    return (blend, other) if other <= (1 + ROOM) * best else (counts, best)


def mean_of(tried: Sequence[Tried], counts: Sequence[int], fallback: Tensor) -> Tensor:
    """The mean of candidates that are available, with these weights."""
    total, number = torch.zeros_like(fallback), torch.zeros(len(fallback), 1, dtype=fallback.dtype)
    for candidate, count in zip(tried, counts, strict=True):
        if count:
            total += count * candidate.forecasts
            number += count * candidate.available
    return torch.where(number > 0, total / number.clamp(min=1), fallback)


def _fitted(member: PooledMember, prepared: Prepared, alphas: Sequence[float], rounds: int = ROUNDS) -> Tensor:
    """Weights (alphas, features, horizon) of a member, by ridge regression on the windows that are long enough; 0
    without such windows. Reweighting brings the squared error near the absolute one, in units of the series and of the
    level. The inputs of the random features are standardised."""
    batch, kind = prepared.batch, member.kind
    rows = (batch.steps >= kind.lookback).nonzero()[:, 0]
    weights = torch.zeros(len(alphas), *member.weight.shape)
    if not len(rows):
        return weights
    member.standardize(*prepared.values(kind, rows[:: max(1, len(rows) // _BLOCK)]))
    features, targets, units = [], [], []
    for block in rows.split(_BLOCK):
        values, ahead = prepared.values(kind, block)
        window = member.features(values, ahead)
        level = window.level.clamp(min=1e-30)
        future = batch.future[block] / (ahead if kind.season > 1 else 1.0) / level
        target = (future.clamp(min=LOWEST).log() if kind.log else future) - window.last
        features.append(window.features.float())
        targets.append(target.clamp(-LARGEST_CHANGE, LARGEST_CHANGE).float())
        units.append((batch.unit[block, None] / level).clamp(_SMALLEST_UNIT, 1).float())
    x, y, unit = torch.cat(features), torch.cat(targets), torch.cat(units)
    share = batch.share[rows, None].float() * (1 + _SCALED / unit)
    error = (1 - _SOFT) * unit
    for number in range(1 + rounds):
        weight = share / (error + _SOFT * unit)
        used = alphas if number == rounds else alphas[len(alphas) // 2 :][:1]
        solved = _ridge(x, y, weight / weight.sum(), used)
        if number < rounds:
            error = (y - x @ solved[0]).abs().mean(1, keepdim=True)
    return solved


def _ridge(x: Tensor, y: Tensor, weight: Tensor, alphas: Sequence[float]) -> Tensor:
    """Weights (alphas, features, targets) of weighted ridge regressions, for features of unit power."""
    gram = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    cross = torch.zeros(x.shape[1], y.shape[1], dtype=torch.float64)
    for xs, ys, ws in zip(x.split(_BLOCK), y.split(_BLOCK), weight.split(_BLOCK), strict=True):
        weighted = (xs * ws).mT
        gram += weighted @ xs
        cross += weighted @ ys
    scale = gram.diagonal().clamp(min=1e-12).sqrt()
    scaled, target = gram / scale / scale[:, None], cross / scale[:, None]
    eye = torch.eye(len(scale), dtype=torch.float64)
    solved = [torch.linalg.solve(scaled + alpha * eye, target) / scale[:, None] for alpha in alphas]
    return torch.stack(solved).float()


def _fits(
    kinds: Sequence[Member],
    candidates: Candidates,
    past: Panel,
    horizon: int,
    limits: Limits,
    checked: Prepared,
    error: Error,
) -> tuple[list[Tried], bool]:
    """Members of these kinds, fitted; and whether their windows are as many as those of the last fit can be."""
    prepared = _prepared(past, candidates, horizon, limits)
    layer = _layer(kinds, candidates, horizon, _random(prepared))
    enough = len(prepared.batch.steps) <= limits.most // 2
    return [_best(member, prepared, checked, error) for member in layer.readouts], enough


def _promising(tried: Sequence[Tried], error: Error, fallback: Tensor) -> list[Member]:
    """Of many candidates those to fit to more windows: those that `chosen` takes, and the best of each look-back."""
    counts, _ = chosen(tried, error, fallback)
    picked = {candidate.member.kind for candidate, count in zip(tried, counts, strict=True) if count}
    best: dict[int, tuple[float, Member]] = {}
    for candidate in tried:
        kind = candidate.member.kind
        alone = error(mean_of([candidate], [1], fallback))
        best[kind.lookback] = min(best.get(kind.lookback, (math.inf, kind)), (alone, kind))
    return [kind for kind in dict.fromkeys(candidate.member.kind for candidate in tried)
            if kind in picked or kind in {kind for _, kind in best.values()}]  # fmt: skip


def _best(member: PooledMember, prepared: Prepared, checked: Prepared, error: Error) -> Tried:
    """A member, fitted with the penalty that has the smallest error on the validation windows that it forecasts."""
    options = _tried(member, _fitted(member, prepared, ALPHAS, rounds=1), ALPHAS, checked)
    errors = [error(torch.where(option.available > 0, option.forecasts, error.future)) for option in options]
    return options[min(range(len(errors)), key=errors.__getitem__)]


def _classical(members: Sequence[Classical], checked: Prepared) -> list[Tried]:
    """Classical members of one kind."""
    weights = torch.stack([member.weight(checked.horizon) for member in members])
    layer = PooledMember(members[0].kind, checked.horizon, 0, 0).requires_grad_(False)
    return _tried(layer, weights, [0.0] * len(members), checked)


def _tried(member: PooledMember, weights: Tensor, alphas: Sequence[float], checked: Prepared) -> list[Tried]:
    """A member with each of the weights (options, features, horizon)."""
    kind, batch = member.kind, checked.batch
    together = weights.movedim(0, 1).flatten(1).double()
    available = (batch.steps >= kind.lookback)[:, None]
    forecasts = batch.future.new_zeros(len(alphas), *batch.future.shape)
    for rows in available[:, 0].nonzero()[:, 0].split(_BLOCK):
        values, ahead = checked.values(kind, rows)
        window = member.features(values, ahead)
        changes = (window.features.double() @ together).unflatten(1, (len(alphas), checked.horizon))
        for place in range(len(alphas)):
            forecasts[place, rows] = forecast_of(kind, window, changes[:, place], values, ahead)
    there = available.double()
    triples = zip(weights, alphas, forecasts, strict=True)
    return [Tried(member, weight, alpha, ahead, there) for weight, alpha, ahead in triples]


def _layer(
    kinds: Sequence[Member], candidates: Candidates, horizon: int, random: int, channels: int = 1
) -> PooledForecast:
    """A layer of these members, or of one that forecasts the last value with its season."""
    season, window = max(candidates.seasons, default=0), candidates.window
    members = kinds or [Member(min(2, window), season, False, False)]
    layer = PooledForecast(channels, horizon, window, members, season=season, random=random)
    return layer.requires_grad_(False).eval()


def _joined(picked: Sequence[tuple[Tried, int]], candidates: Candidates, horizon: int, channels: int) -> PooledForecast:
    """A layer of these members, whose counts are their shares."""
    random = max((candidate.member.projection.shape[1] for candidate, _ in picked), default=0)
    layer = _layer([candidate.member.kind for candidate, _ in picked], candidates, horizon, random, channels)
    for place, (candidate, count) in enumerate(picked):
        member = layer.readouts[place]
        if candidate.alpha:
            member.load_state_dict(candidate.member.state_dict())
        member.weight[: len(candidate.weight)] = candidate.weight  # a classical member has no random features
        layer.shares[place] = count
    return layer


def _random(prepared: Prepared) -> int:
    """The number of random features."""
    return min(max(len(prepared.batch.steps) // _EACH, RANDOM[0]), RANDOM[1])


def _prepared(panel: Panel, candidates: Candidates, horizon: int, limits: Limits) -> Prepared:
    """The latest windows of each series that have a horizon after them."""
    most = max(1, min(limits.most, _VALUES // (candidates.window + horizon)))
    limits = limits._replace(most=most)
    stride = max(1, horizon // 4)
    while any(math.gcd(stride, season) > 1 for season in candidates.seasons if stride > 1):
        stride += 1
    places = _latest_places(panel.lengths, horizon, limits, stride)
    return Prepared(_take(panel, places, candidates.window, horizon), candidates.seasons)


def _latest_places(lengths: Tensor, horizon: int, limits: Limits, stride: int) -> Places:
    """The latest windows of each series that have a horizon after them, at most `stride` steps apart."""
    counts = (lengths - horizon - LEAST + 1).clamp(min=0)  # of windows that there are
    able = max(1, int((counts > 0).sum()))
    each = max(1, min(max(limits.recent, limits.least // able), limits.most // able))
    strides = (counts // each).clamp(1, stride)
    taken = ((counts + strides - 1) // strides).clamp(max=each)
    places = _counted_back(taken, lengths - horizon, strides)
    if len(places.series) <= limits.most:
        return places
    taken = torch.arange(0, len(places.series), stride_of(len(places.series), limits.most, 0))
    return Places(places.series[taken], places.ends[taken])


def _validation_places(lengths: Tensor, rows: Tensor, horizon: int) -> Places:
    """Windows whose horizon lies in the last rows of each series: the latest, and more where there are few series."""
    able = max(1, int((rows >= horizon).sum()))
    counts = torch.where(rows >= horizon, rows - horizon + 1, 0)
    each = -(-CHECKED // able)
    strides = (counts // each).clamp(1, max(1, horizon // 4))
    taken = ((counts + strides - 1) // strides).clamp(max=each)
    return _counted_back(taken, lengths - horizon, strides)


def _long_enough(places: Places, candidates: Candidates, lengths: Tensor) -> Places:
    """The windows for which those candidates are available that most of the series are long enough for: validation
    windows are shorter than those of forecasts. All, where these are few."""
    for lookback in sorted({kind.lookback for kind in candidates.fitted}, reverse=True):
        long = places.ends >= lookback
        if (lengths >= lookback).double().mean() >= COVERED and long.double().mean() >= JUDGED:
            return Places(places.series[long], places.ends[long])
    return places


def _counted_back(counts: Tensor, last: Tensor, strides: Tensor) -> Places:
    """So many windows of each series, from the last one back."""
    series = torch.repeat_interleave(torch.arange(len(counts)), counts)
    back = torch.arange(len(series)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return Places(series, last[series] - back * strides[series])


def _take(panel: Panel, places: Places, window: int, horizon: int) -> Batch:
    """The windows at these places."""
    index = (panel.starts[places.series] + places.ends)[:, None] + torch.arange(-window, horizon)
    rows = panel.values[index.clamp(0, max(0, len(panel.values) - 1))]
    counts = torch.bincount(places.series, minlength=len(panel.starts))
    past, future = rows.split([window, horizon], dim=1)
    share = 1.0 / counts[places.series].double()
    return Batch(past, places.ends.clamp(max=window), future, panel.unit[places.series], share)


def _unit(values: Numbers, season: int) -> float:
    """The mean absolute change over a season, or over a step of a series that is shorter."""
    apart = season if len(values) > season > 0 else 1
    return float(np.abs(values[apart:] - values[:-apart]).mean()) if len(values) > apart else 0.0
