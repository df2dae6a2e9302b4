"""Forecasts as a mean of members in a `PooledForecast`: of many series, or of a single one.

Candidate members are fitted to windows of all series that end before the validation rows. Those near the best on the
validation rows are averaged (`pooled_choice`), and fitted again to all rows. Readouts are fitted in closed form;
classical forecasts need no fit. Where there are many rows, members with trained hidden layers are candidates, too. Of a
single series the caller adds linear maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from plmu.folded.pooled import Member
from plmu.nn.pooled import PooledForecast, PooledMember
from plmu.timeseries.pooled_choice import Tried, available, averaged, blended, forecasts_of, smallest
from plmu.timeseries.pooled_members import Candidates, Classical
from plmu.timeseries.pooled_readouts import fit_readout, fit_readouts, train
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
from plmu.training.processes import ALONE, Processes
from plmu.training.stages import counted

RANDOM = 16, 512  # random features, at least and at most
ALPHAS = (1e-3, 1e-2, 1e-1)  # penalties of the ridge that are tried, for features of unit power
_EACH = 128  # windows for each random feature
TRIED = Limits(12, 12_000, 40_000)  # windows for all candidates
FITTED = Limits(16, 20_000, 100_000)  # for those that are chosen
TRAINED = Limits(24, 40_000, 250_000)  # for hidden layers
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
    processes: Processes = ALONE,
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
        processes: which all have these series, and share the work.
        maps: further candidates, for a single series. The mean of its members is never worse on the validation windows
            than the first of these, and than the classical candidates.
        closed_forms: whether readouts are fitted, or all other candidates are classical.
    """
    panel = Panel.of(series, torch.tensor(lengths), season)
    rows = torch.tensor(validation_rows)
    past = panel.until(panel.lengths - rows, season)
    candidates = Candidates.of(past.lengths, horizon, season, max((len(linear.weight) for linear in maps), default=0))
    if maps:
        candidates = candidates.without_adaptive()
    if not closed_forms:
        candidates = candidates._replace(fitted=[], trained=[])
    places = long_enough(validation_places(panel.lengths, rows, horizon), candidates, panel.lengths)
    checked = Windows.of(panel, places, candidates, horizon, processes)
    fallback = checked.fallback(max(candidates.seasons, default=0))
    error = SingleError.of(checked, fallback) if maps else Error.of(checked, fallback)

    windows = fitting_windows(past, candidates, horizon, TRIED if closed_forms else NONE, processes)
    tried = _closed_forms(candidates.fitted, windows, checked, error)
    if closed_forms and bool(past.lengths.sum() >= TRAINED_ROWS):
        windows = fitting_windows(past, candidates, horizon, TRAINED, processes)
        tried += [_trained(kind, windows, candidates, checked) for kind in counted(candidates.trained, "networks")]
    tried += _classical(candidates.classical, checked)
    tried += [_as_it_is(_member(kind, checked), checked) for kind in candidates.adaptive]
    tried += [_linear(linear, checked) for linear in maps]
    if maps:
        simple = [place for place, candidate in enumerate(tried) if candidate.classical]
        counts, best = averaged(tried, error, fallback, [*simple, len(tried) - len(maps)])
    else:
        counts, best = blended(tried, error, fallback)
    picked = [(candidate, count) for candidate, count in zip(tried, counts, strict=True) if count]

    refitted = []
    for trained, limits in ((False, FITTED if closed_forms else NONE), (True, TRAINED)):
        members = [(candidate, count) for candidate, count in picked if candidate.trained == trained]
        windows = fitting_windows(panel, candidates, horizon, limits if members else NONE, processes)
        refitted += [
            (_refitted(candidate, windows, candidates), count) for candidate, count in counted(members, "members")
        ]
    picked.sort(key=lambda pair: pair[0].trained)  # as those that are refitted
    return PooledFit(
        _joined(refitted, candidates, horizon, channels, panel.dtype),
        _joined([(candidate.member, count) for candidate, count in picked], candidates, horizon, channels, panel.dtype),
        best,
        [(candidate.kind, candidate.alpha, count) for candidate, count in picked],
        checked,
        error,
    )


def _closed_forms(
    kinds: Sequence[Member], windows: Windows, checked: Windows, error: Error | SingleError
) -> list[Tried]:
    """Members with random features, each fitted with the penalty that has the smallest error on the validation windows
    that it forecasts; those that start from classical forecasts without these, too."""
    tried = []
    for seed, kind in enumerate(counted(kinds, "candidates")):
        member = _with_random_features(kind, windows, seed)
        members, weights = [member], fit_readouts(member, windows, ALPHAS, rounds=1)
        if kind.adaptive:
            members.append(_with_random_features(kind._replace(adaptive=0), windows, seed))
            members[1].load_state_dict(member.state_dict())
        for layer, options in zip(members, weights, strict=True):
            forecasts, there = forecasts_of(layer, options, checked), available(layer, checked)
            errors = [error(torch.where(there > 0, forecast, error.future)) for forecast in forecasts]
            place = smallest(errors)
            layer.weight.copy_(options[place])
            tried.append(Tried(layer, ALPHAS[place], forecasts[place], there))
    return tried


def _trained(kind: Member, windows: Windows, candidates: Candidates, checked: Windows) -> Tried:
    """A member with trained hidden layers."""
    return _as_it_is(_train(kind, windows, candidates), checked)


def _as_it_is(member: PooledMember, checked: Windows) -> Tried:
    """A member whose weights are known."""
    return Tried(member, 0.0, forecasts_of(member, member.weight[None], checked)[0], available(member, checked))


def _classical(members: Sequence[Classical], checked: Windows) -> list[Tried]:
    """Classical members."""
    tried = []
    for kind in dict.fromkeys(member.kind for member in members):
        weights = torch.stack([member.weight(checked.horizon) for member in members if member.kind == kind])
        layers = [_member(kind, checked) for _ in weights]
        weights = weights.to(checked.future.dtype)
        for layer, weight, forecast in zip(layers, weights, forecasts_of(layers[0], weights, checked), strict=True):
            layer.weight.copy_(weight)
            tried.append(Tried(layer, 0.0, forecast, available(layer, checked)))
    return tried


def _linear(linear: LinearMap, checked: Windows) -> Tried:
    """A linear map as a member."""
    kind = Member(max(2, len(linear.weight)), 0, False)
    members = [_member(kind, checked) for _ in range(2)]
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
    size = min(max(windows.total // _EACH, RANDOM[0]), RANDOM[1])
    return _member(kind._replace(hidden=(size,)), windows, seed)


def _train(kind: Member, windows: Windows, candidates: Candidates) -> PooledMember:
    """A member with hidden layers, larger ones for more windows, that are trained."""
    hidden = [sizes for least, sizes in HIDDEN if windows.total >= least][-1]
    member = _member(kind._replace(hidden=hidden), windows)
    train(member, windows, windows.fallback(max(candidates.seasons, default=0)))
    return member


def _member(kind: Member, windows: Windows, seed: int = 0) -> PooledMember:
    """A member in the precision of the windows, whose hidden layers are drawn in float32."""
    return PooledMember(kind, windows.horizon, seed).to(windows.future.dtype).requires_grad_(False)


def _joined(
    members: Sequence[tuple[PooledMember, int]],
    candidates: Candidates,
    horizon: int,
    channels: int,
    dtype: torch.dtype,
) -> PooledForecast:
    """A layer of these members, with their shares; without any, one that forecasts the last value with its season."""
    season, window = max(candidates.seasons, default=0), candidates.window
    kinds = [member.kind for member, _ in members] or [Member(min(2, window), season, False)]
    layer = PooledForecast(channels, horizon, window, kinds, season=season, dtype=dtype).requires_grad_(False).eval()
    for place, (member, share) in enumerate(members):
        layer.readouts[place].load_state_dict(member.state_dict())
        layer.shares[place] = share
    return layer
