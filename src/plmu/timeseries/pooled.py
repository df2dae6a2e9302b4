"""Forecasts of many series, or of a short one: readouts that all series share, in a `PooledForecast`.

Candidate members are fitted to windows of all series that end before the validation rows. Those whose mean has the
smallest error on the validation rows are fitted again, to all rows. Readouts are fitted in closed form; where there are
many rows, members with trained hidden layers are candidates, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plmu.folded.pooled import Member
from plmu.nn.pooled import PooledForecast, PooledMember
from plmu.timeseries.pooled_choice import Tried, available, averaged, blended, chosen, forecasts_of, mean_of
from plmu.timeseries.pooled_members import Candidates, Classical
from plmu.timeseries.pooled_readouts import fit_readout, train
from plmu.timeseries.pooled_windows import (
    Error,
    Limits,
    Panel,
    SingleError,
    Windows,
    fitting_windows,
    long_enough,
    validation_places,
)
from plmu.timeseries.series import Numbers
from plmu.timeseries.window_linear import LinearMap

RANDOM = 16, 512  # random features, at least and at most
ALPHAS = (1e-3, 1e-2, 1e-1)  # penalties of the ridge that are tried, for features of unit power
_EACH = 128  # windows for each random feature
TRIED, FITTED = Limits(12, 12_000, 60_000), Limits(24, 40_000, 250_000)  # for all candidates; for those that are chosen
NONE = Limits(1, 1, 1)  # where no readout is fitted
TRAINED_ROWS = 250_000  # rows of all series, from which hidden layers are trained
HIDDEN = ((0, (128, 128)), (100_000, (256, 256)))  # sizes of trained hidden layers, by the least number of windows


@dataclass(frozen=True)
class PooledFit:
    """A fit to series."""

    model: PooledForecast  # fitted to all rows
    unrefitted: PooledForecast  # fitted to the rows before the validation rows
    error: float  # on the validation windows, in that of the last value with its season; NaN without such windows
    members: list[tuple[Member, float, int]]  # kind, penalty (0: classical or trained), and how often in the mean
    checked: Windows  # the validation windows
    error_of: Error | SingleError


def fit(
    series: Sequence[Numbers],
    lengths: Sequence[int],
    validation_rows: Sequence[int],
    horizon: int,
    season: int,
    channels: int = 1,
    maps: Sequence[LinearMap] = (),
    closed_forms: bool = True,
) -> PooledFit:
    """Fit to series of one channel.

    Args:
        series: (time,) each, in any units.
        lengths: how many rows of each are fitted, those of validation included.
        validation_rows: the last of these, by which members are chosen; 0 for none.
        horizon: steps ahead.
        season: the seasonal period; 0 for none.
        channels: of the layer.
        maps: further candidates, for a single series. The mean of its members is never worse on the validation windows
            than the first of these, and than the classical candidates.
        closed_forms: whether readouts are fitted, or all other candidates are classical.
    """
    panel = Panel.of(series, torch.tensor(lengths), season)
    rows = torch.tensor(validation_rows)
    past = panel.until(panel.lengths - rows, season)
    candidates = Candidates.of(past.lengths, horizon, season, max((len(linear.weight) for linear in maps), default=0))
    if not closed_forms:
        candidates = candidates._replace(fitted=[], trained=[])
    places = long_enough(validation_places(panel.lengths, rows, horizon), candidates, panel.lengths)
    checked = Windows.of(panel, places, candidates, horizon)
    fallback = checked.fallback(max(candidates.seasons, default=0))
    error = SingleError.of(checked, fallback) if maps else Error.of(checked, fallback)

    windows = fitting_windows(past, candidates, horizon, TRIED if closed_forms else NONE)
    tried = _closed_forms(candidates.fitted, windows, checked, error)
    train_hidden = closed_forms and bool(past.lengths.sum() >= TRAINED_ROWS)
    if (closed_forms and len(windows.level) > TRIED.most // 2) or train_hidden:
        windows = fitting_windows(past, candidates, horizon, FITTED)
        tried = _closed_forms(_promising(tried, error, fallback), windows, checked, error)
    if train_hidden:
        tried += [_trained(kind, windows, candidates, checked) for kind in candidates.trained]
    tried += _classical(candidates.classical, checked)
    tried += [_linear(linear, checked) for linear in maps]
    if maps:
        simple = [place for place, candidate in enumerate(tried) if candidate.classical]
        counts, best = averaged(tried, error, fallback, [*simple, len(tried) - len(maps)])
    else:
        counts, best = blended(tried, error, fallback)
    picked = [(candidate, count) for candidate, count in zip(tried, counts, strict=True) if count]

    everything = fitting_windows(panel, candidates, horizon, FITTED if closed_forms else NONE)
    refitted = [(_refitted(candidate, everything, candidates), count) for candidate, count in picked]
    return PooledFit(
        _joined(refitted, candidates, horizon, channels),
        _joined([(candidate.member, count) for candidate, count in picked], candidates, horizon, channels),
        best,
        [(candidate.kind, candidate.alpha, count) for candidate, count in picked],
        checked,
        error,
    )


def _promising(tried: Sequence[Tried], error: Error | SingleError, fallback: Tensor) -> list[Member]:
    """Of many candidates those to fit to more windows: those that `chosen` takes, and the best of each look-back."""
    counts, _ = chosen(tried, error, fallback)
    picked = {candidate.kind for candidate, count in zip(tried, counts, strict=True) if count}
    best: dict[int, tuple[float, Member]] = {}
    for candidate in tried:
        alone = error(mean_of([candidate], [1], fallback))
        best[candidate.kind.lookback] = min(best.get(candidate.kind.lookback, (math.inf, candidate.kind)),
                                            (alone, candidate.kind))  # fmt: skip
    picked |= {kind for _, kind in best.values()}
    return [kind for kind in dict.fromkeys(candidate.kind for candidate in tried) if kind in picked]


def _closed_forms(
    kinds: Sequence[Member], windows: Windows, checked: Windows, error: Error | SingleError
) -> list[Tried]:
    """Members with random features, each fitted with the penalty that has the smallest error on the validation windows
    that it forecasts."""
    tried = []
    for seed, kind in enumerate(kinds):
        member = _with_random_features(kind, windows, seed)
        weights = fit_readout(member, windows, ALPHAS, rounds=1)
        forecasts, there = forecasts_of(member, weights, checked), available(member, checked)
        errors = [error(torch.where(there > 0, forecast, error.future)) for forecast in forecasts]
        place = min(range(len(errors)), key=errors.__getitem__)
        member.weight.copy_(weights[place])
        tried.append(Tried(member, ALPHAS[place], forecasts[place], there))
    return tried


def _trained(kind: Member, windows: Windows, candidates: Candidates, checked: Windows) -> Tried:
    """A member with trained hidden layers."""
    member = _train(kind, windows, candidates)
    return Tried(member, 0.0, forecasts_of(member, member.weight[None], checked)[0], available(member, checked))


def _classical(members: Sequence[Classical], checked: Windows) -> list[Tried]:
    """Classical members."""
    tried = []
    for kind in dict.fromkeys(member.kind for member in members):
        weights = torch.stack([member.weight(checked.horizon) for member in members if member.kind == kind])
        layers = [_member(kind, checked.horizon) for _ in weights]
        for layer, weight, forecast in zip(layers, weights, forecasts_of(layers[0], weights, checked), strict=True):
            layer.weight.copy_(weight)
            tried.append(Tried(layer, 0.0, forecast, available(layer, checked)))
    return tried


def _linear(linear: LinearMap, checked: Windows) -> Tried:
    """A linear map as a member."""
    kind = Member(max(2, len(linear.weight)), 0, False)
    members = [_member(kind, checked.horizon) for _ in range(2)]
    for member, weight in zip(members, (linear.weight, linear.refitted), strict=True):
        member.weight[1 : len(weight)] = weight[:-1]  # the last value's difference from itself is 0
    member, refitted = members
    forecasts = forecasts_of(member, member.weight[None], checked)[0]
    return Tried(member, linear.alpha, forecasts, available(member, checked), refitted)


def _refitted(candidate: Tried, windows: Windows, candidates: Candidates) -> PooledMember:
    """The member of a candidate, fitted to these windows."""
    if candidate.refitted is not None:
        return candidate.refitted
    if candidate.classical:
        return candidate.member
    if candidate.trained:
        return _train(candidate.kind, windows, candidates)
    member = _with_random_features(candidate.kind, windows, candidate.member.seed)
    member.weight.copy_(fit_readout(member, windows, (candidate.alpha,))[0])
    return member


def _with_random_features(kind: Member, windows: Windows, seed: int) -> PooledMember:
    """A member whose readout is still to be fitted, with more random features for more windows."""
    size = min(max(len(windows.level) // _EACH, RANDOM[0]), RANDOM[1])
    return _member(kind._replace(hidden=(size,)), windows.horizon, seed)


def _train(kind: Member, windows: Windows, candidates: Candidates) -> PooledMember:
    """A member with hidden layers, larger ones for more windows, that are trained."""
    hidden = [sizes for least, sizes in HIDDEN if len(windows.level) >= least][-1]
    member = _member(kind._replace(hidden=hidden), windows.horizon)
    train(member, windows, windows.fallback(max(candidates.seasons, default=0)))
    return member


def _member(kind: Member, horizon: int, seed: int = 0) -> PooledMember:
    return PooledMember(kind, horizon, seed).requires_grad_(False)


def _joined(
    members: Sequence[tuple[PooledMember, int]], candidates: Candidates, horizon: int, channels: int
) -> PooledForecast:
    """A layer of these members, with their shares; without any, one that forecasts the last value with its season."""
    season, window = max(candidates.seasons, default=0), candidates.window
    kinds = [member.kind for member, _ in members] or [Member(min(2, window), season, False)]
    layer = PooledForecast(channels, horizon, window, kinds, season=season).requires_grad_(False).eval()
    for place, (member, share) in enumerate(members):
        layer.readouts[place].load_state_dict(member.state_dict())
        layer.shares[place] = share
    return layer
