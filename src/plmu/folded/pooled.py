"""Forecasts from windows by readouts that many series share, for single steps; and the formulas that `plmu.nn` trains,
which are the same.

A window (..., window) of one channel is real in its last `steps` values; those before them are padding, which is never
read. Values are relative to their mean absolute value, so that series may be of any size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from plmu.folded.adaptive import Tables, adaptive, tables
from plmu.folded.base import read_only, wide_dtype
from plmu.folded.windowed import Windowed, bounded, count_after, number_of, position_after, pushed, window_state

NOISE = 1e-12  # variance of seasonal ratios that counts as none
FLAT = 0.05  # a moving average has ratios above this share of the mean absolute value
HIGHEST_RATIO, LOWEST_INDEX = 4.0, 0.05
LEAST_LEVEL = 1e-30  # a smaller mean absolute value is taken as this
LOWEST = 0.01  # of which a logarithm is taken, relative to the level
STILL = 2e-3  # added to the mean absolute change
CLIP, CLIP_LEVEL, SLOPE = 8.0, 2.0, 0.3  # bounds of differences, in mean absolute changes and in levels; a factor
LARGEST_CHANGE = 3.0  # of a forecast, in levels or as a logarithm
LARGEST_LINEAR = 1000.0  # levels: of a member without hidden layers and logarithms, such as a linear map
RATES = (0.1, 0.2, 0.35, 0.5, 0.7, 0.85)  # of exponential smoothing
RECENT = 3  # changes that follow the smoothed ones

_CPU = torch.device("cpu")


class Member(NamedTuple):
    """One of the forecasts that are averaged."""

    lookback: int  # steps that it depends on
    season: int  # period by whose seasonal indices the window is divided before; 0 or 1 for none
    log: bool  # whether it is linear in logarithms
    smooth: bool = False  # whether the hidden layers see changes smoothed at several rates
    hidden: tuple[int, ...] = ()  # sizes of the hidden layers, if any
    adaptive: int = 0  # power of the errors by which the classical forecasts are weighted that it starts from; 0: none

    @property
    def width(self) -> int:
        """The number of changes, or of their smoothings, that the hidden layers see."""
        changes = self.lookback - 1
        return 2 * len(RATES) + min(RECENT, changes) if self.smooth else changes

    def inputs(self, horizon: int) -> int:
        """The number of inputs of the hidden layers."""
        return 2 * self.width + 1 + (horizon if self.season > 1 else 0)

    @property
    def largest_change(self) -> float:
        """Of a forecast, in levels or as a logarithm."""
        return LARGEST_CHANGE if self.log or self.hidden else LARGEST_LINEAR

    @property
    def features(self) -> int:
        """The number of features, the last of them from the last hidden layer."""
        return 2 * self.lookback + sum(self.hidden[-1:])

    def layers(self, horizon: int) -> list[tuple[int, int]]:
        """Inputs and outputs of each hidden layer."""
        return list(pairwise([self.inputs(horizon), *self.hidden]))


class Readout(NamedTuple):
    """The arrays of a member, in the precision of the windows."""

    hidden: Sequence[tuple[Tensor, Tensor]]  # of each hidden layer its weight (inputs, outputs) and bias (outputs,)
    weight: Tensor  # (features, horizon)
    bank: Tensor | None = None  # `bank(lookback)` if `smooth`
    tables: Tables | None = None  # `tables(lookback, horizon)` if `adaptive`


class Features(NamedTuple):
    """The input of a readout. The forecast is last + base + features · weight, where what is added to last is kept
    within the `largest_change` of the member; then exp if `log`; times the level."""

    features: Tensor  # (..., features)
    last: Tensor  # (..., 1), relative to the level; its logarithm if `log`
    level: Tensor  # (..., 1), the mean absolute value
    base: Tensor | float = 0.0  # (..., horizon), the `adaptive` mean of classical forecasts, if the member has it


class Adjusted(NamedTuple):
    """Windows without their season."""

    windows: Tensor  # (..., window), zero in the padding
    ahead: Tensor  # (..., horizon), the seasonal indices of the next steps


def real_part(windows: Tensor, steps: Tensor) -> Tensor:
    """Windows (..., window) with zeros before their last `steps` values, (...)."""
    size = windows.shape[-1]
    return torch.where(torch.arange(size, device=windows.device) >= size - steps[..., None], windows, 0.0)


def has_season(size: int, season: int) -> bool:
    """Whether a window of this size can have seasonal indices: enough ratios for every phase, and for their spread."""
    return season > 1 and 2 * (size - 2 * (season // 2) - season) >= season


def adjusted(windows: Tensor, steps: Tensor, season: int, horizon: int) -> Adjusted:
    """Windows divided by their seasonal indices, and the indices of the next steps.

    Args:
        windows: zero in the padding, (..., window).
        steps: how many values of each are real, of a shape that broadcasts to (...).
        season: the seasonal period; 0 or 1 for none.
        horizon: number of steps ahead.
    """
    size = windows.shape[-1]
    if not has_season(size, season):
        return Adjusted(windows, windows.new_ones(*windows.shape[:-1], horizon))
    indices = seasonal_indices(windows, steps, season)
    past = indices.repeat(*(1,) * (indices.dim() - 1), -(-size // season))[..., -size:]
    return Adjusted(windows / past, indices.repeat(*(1,) * (indices.dim() - 1), -(-horizon // season))[..., :horizon])


def seasonal_indices(windows: Tensor, steps: Tensor, season: int) -> Tensor:
    """The seasonal indices (..., season) of windows, in order of time: the last one is that of the last step.

    They are mean ratios to the centred moving average, shrunk towards 1 as far as the ratios of a phase differ.

    Args:
        windows: zero in the padding, (..., window), with `has_season`.
        steps: how many values of each are real, of a shape that broadcasts to (...).
        season: the seasonal period.
    """
    size, half = windows.shape[-1], season // 2
    count = size - 2 * half
    sums = _running_sums(windows, season)
    if season % 2 == 0:  # half weights at both ends
        sums = (sums[..., :-1] + sums[..., 1:]) / 2
    averages = sums / season
    level = windows.abs().sum(-1, keepdim=True) / steps[..., None].clamp(1, size)
    rises = averages > FLAT * level
    ratios = torch.where(rises, windows[..., half : size - half] / torch.where(rises, averages, 1.0), 1.0)
    # An average is valid if all that it averages is real.
    valid = (torch.arange(count, device=windows.device) >= size - steps[..., None]).to(windows.dtype)
    ratios, valid = _cycles(ratios.clamp(0, HIGHEST_RATIO), season, half), _cycles(valid, season, half)
    number = valid.sum(-2)  # of each phase
    spare = number.sum(-1, keepdim=True) - season  # residual degrees of freedom
    usable = (number >= 1).all(-1, keepdim=True) & (2 * spare >= season)
    means = torch.where(number > 0, (ratios * valid).sum(-2) / number.clamp(min=1), 1.0)
    scale = torch.where(usable, means.mean(-1, keepdim=True), 1.0)
    ratios, means = ratios / scale[..., None], means / scale
    within = ((ratios - means[..., None, :]).square() * valid).sum((-2, -1))[..., None]
    noise = within / spare.clamp(min=1) + NOISE
    between = ((means - 1).square() * number).sum(-1, keepdim=True) / (season - 1)
    share = torch.where(usable, (1 - noise / between.clamp(min=NOISE)).clamp(0, 1), 0.0)
    return (1 + share * (means - 1)).clamp(min=LOWEST_INDEX)


def _running_sums(values: Tensor, length: int) -> Tensor:
    """Sums of `length` consecutive values: (..., count − length + 1)."""
    if length == 1:
        return values
    half, count = length // 2, values.shape[-1] - length // 2 * 2 + 1
    sums = _running_sums(values, half)
    sums = sums[..., :count] + sums[..., half : half + count]
    return sums if length % 2 == 0 else sums[..., :-1] + values[..., 2 * half :]


def _cycles(values: Tensor, season: int, half: int) -> Tensor:
    """Values (..., count), of which the last is `half` steps before the window's end, as rows of whole seasons (...,
    cycles, season), with zeros before and after them."""
    padded = nn.functional.pad(values, (-(values.shape[-1] + half) % season, half))
    cycles: Tensor = padded.unflatten(-1, (-1, season))
    return cycles


def bank(lookback: int, device: torch.device = _CPU) -> Tensor:
    """The matrix (lookback − 1, smoothings) by which changes are smoothed, in float64; in float32 on MPS.

    Its columns are a weighted mean of the changes for each of the `RATES`, with weights (1 − rate)^age; then another of
    each, which is smoothed twice, with weights (age + 1) (1 − rate)^age; then the last `RECENT` changes. The means
    count the last value, of age 0, with a change of 0.

    Args:
        lookback: number of values.
        device: of the matrix.
    """
    dtype = torch.float32 if device.type == "mps" else torch.float64
    age = torch.arange(lookback - 1, -1, -1, dtype=dtype, device=device)
    once = torch.stack([(1 - rate) ** age for rate in RATES], dim=1)
    weights = torch.cat([once, (age[:, None] + 1) * once], dim=1)
    weights = (weights / weights.sum(0))[:-1]
    # A CPU multiplies subnormal numbers of float32 many times slower.
    weights = torch.where(weights < torch.finfo(torch.float32).tiny, 0.0, weights)
    recent = torch.eye(lookback - 1, dtype=dtype, device=device)[:, -RECENT:]
    return torch.cat([weights, recent], dim=1)


class Changes(NamedTuple):
    """Values relative to the last one."""

    changes: Tensor  # (..., lookback − 1), in levels; of logarithms if `log`
    pace: Tensor  # (..., 1): their mean absolute change from step to step
    last: Tensor  # (..., 1), as in `Features`
    level: Tensor


def changes_of(member: Member, values: Tensor) -> Changes:
    """The changes of a member's last `lookback` values (..., lookback)."""
    level = values.abs().mean(-1, keepdim=True)
    divisor = level.clamp(min=LEAST_LEVEL)
    if member.log:
        scaled = (values / divisor).clamp(min=LOWEST).log()
        last, changes = scaled[..., -1:], scaled[..., :-1] - scaled[..., -1:]
    else:  # differences first, which values may be far larger than
        last, changes = values[..., -1:] / divisor, (values[..., :-1] - values[..., -1:]) / divisor
    after = torch.cat([changes[..., 1:], torch.zeros_like(changes[..., :1])], dim=-1)
    pace = (after - changes).abs().mean(-1, keepdim=True) + STILL
    return Changes(changes, pace, last, level)


def hidden_inputs(member: Member, smoothing: Tensor | None, window: Changes, ahead: Tensor) -> Tensor:
    """The inputs of a member's hidden layers, (..., inputs). `smoothing` is its `bank`; `ahead` is that of
    `features`."""
    shown = window.changes if smoothing is None else window.changes @ smoothing
    paced = (shown / window.pace).clamp(-CLIP, CLIP)
    inputs = [paced / 3, window.pace.log() / 2, 3 * shown.clamp(-CLIP_LEVEL, CLIP_LEVEL)]
    return torch.cat([*inputs, ahead - 1] if member.season > 1 else inputs, dim=-1)


def features(member: Member, readout: Readout, values: Tensor, ahead: Tensor) -> Features:
    """The input of a member's readout.

    Args:
        member: what it depends on.
        readout: its arrays.
        values: its last `lookback` values, seasonally adjusted or not, (..., lookback).
        ahead: the indices of the next steps for the member's season, (..., horizon); not read if it has none.
    """
    window = changes_of(member, values)
    changes, pace = window.changes, window.pace
    paced = (changes / pace).clamp(-CLIP, CLIP)
    parts = [torch.ones_like(pace), changes, SLOPE * pace * paced, pace]
    if member.hidden:
        values = hidden_inputs(member, readout.bank, window, ahead)
        for weight, bias in readout.hidden:
            values = torch.relu(values @ weight + bias)
        parts.append(pace * values)
    base = 0.0 if readout.tables is None else adaptive(member.adaptive, readout.tables, changes, pace)
    return Features(torch.cat(parts, dim=-1), window.last, window.level, base)


def read_out(member: Member, readout: Readout, values: Tensor, ahead: Tensor) -> Tensor:
    """Forecasts (..., horizon) of a member; arguments as of `features`."""
    window = features(member, readout, values, ahead)
    return forecast_of(member, window, window.features @ readout.weight, values, ahead)


def forecast_of(member: Member, window: Features, changes: Tensor, values: Tensor, ahead: Tensor) -> Tensor:
    """Forecasts (..., horizon) from `changes`, the product of features and weight; other arguments as of `features`."""
    changes = (changes + window.base).clamp(-member.largest_change, member.largest_change)
    last = values[..., -1:]
    lowest = LOWEST * window.level
    out = torch.maximum(last, lowest) * changes.exp() if member.log else last + window.level * changes
    return out * ahead if member.season > 1 else out


def pooled(
    windows: Tensor, steps: Tensor, season: int, horizon: int, members: Iterable[tuple[Member, Readout]], shares: Tensor
) -> Tensor:
    """Forecasts (..., horizon) of windows: the mean of the members that the windows are long enough for, else the last
    value without its season, times the season ahead.

    Args:
        windows: (..., window).
        steps: how many values of each are real, of a shape that broadcasts to (...).
        season: the seasonal period of the forecast before any member is long enough; 0 or 1 for none.
        horizon: number of steps ahead.
        members: with their arrays.
        shares: the weight of each in the mean, (members,).
    """
    windows, members = real_part(windows, steps), list(members)
    seasons = dict.fromkeys([season, *(member.season for member, _ in members)])
    by_season = {period: adjusted(windows, steps, period, horizon) for period in seasons}
    without, ahead = by_season[season]
    total, mean = shares.new_zeros(steps.shape)[..., None], torch.zeros_like(ahead)
    for (member, readout), share in zip(members, shares.unbind(), strict=True):
        past, indices = by_season[member.season]
        values = past[..., -member.lookback :]
        available = (steps >= member.lookback)[..., None]
        total = total + torch.where(available, share, 0.0)
        mean = mean + torch.where(available, share * read_out(member, readout, values, indices), 0.0)
    out = torch.where(total > 0, mean / torch.where(total > 0, total, 1.0), without[..., -1:] * ahead)
    # NaN from anywhere in the window; a clamp or a comparison may have hidden it.
    return torch.where(windows.abs().sum(-1, keepdim=True).isfinite(), out, torch.nan)


@dataclass(frozen=True, eq=False)
class PooledForecast(Windowed):
    """The next `horizon` values of each channel by the readouts of several members: `plmu.nn.PooledForecast`.

    The state is the window (batch, window, channels) and the position (batch, 2).
    """

    hidden: Tensor  # (numbers,): weight and bias of each hidden layer of each member, one after the other
    weight: Tensor  # (features of all members, horizon)
    shares: Tensor  # (members,), the weight of each in the mean
    members: tuple[Member, ...]
    channels: int
    window: int
    season: int

    @property
    def horizon(self) -> int:
        return self.weight.shape[1]

    def readouts(self, arrays: dict[str, Tensor]) -> Iterator[tuple[Member, Readout]]:
        """The members, each with its part of the arrays, which are those of `cast`."""
        numbers = iter(arrays["hidden"].split([size for member in self.members for layer in member.layers(self.horizon)
                                               for size in (math.prod(layer), layer[1])]))  # fmt: skip
        weights = arrays["weight"].split([member.features for member in self.members])
        for member, weight in zip(self.members, weights, strict=True):
            hidden = [(next(numbers).view(layer), next(numbers)) for layer in member.layers(self.horizon)]
            smoothing = arrays[_bank_of(member)] if member.smooth else None
            matrices = Tables(*(arrays[name] for name in _tables_of(member))) if member.adaptive else None
            yield member, Readout(hidden, weight, smoothing, matrices)

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        window, position = self.initial_state(x.shape[0], x.dtype, x.device) if state is None else state
        window, steps = pushed(window, x, position), count_after(position, self.window)
        arrays = self.cast(window)
        members = self.readouts(arrays)
        out = pooled(window.mT, steps[:, None], self.season, self.horizon, members, arrays["shares"])
        out = bounded(out, self.nonnegative)
        return out.mT.flatten(1).to(x.dtype), (window, position_after(number_of(position, 0), steps))

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return window_state(batch, self.window, self.channels, wide_dtype(dtype), device)

    def _made(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        place = arrays["shares"].dtype, arrays["shares"].device
        smooth = [member for member in self.members if member.smooth]
        made = {_bank_of(member): read_only(bank(member.lookback), *place) for member in smooth}
        for member in self.members:
            if member.adaptive:
                matrices = tables(member.lookback, self.horizon)
                made |= {name: read_only(m, *place) for name, m in zip(_tables_of(member), matrices, strict=True)}
        return {**arrays, **made}


def _bank_of(member: Member) -> str:
    """The name of the `bank` of a member among the cast arrays."""
    return f"bank of {member.lookback}"


def _tables_of(member: Member) -> tuple[str, str]:
    """The names of the `tables` of a member among the cast arrays."""
    return f"errors of {member.lookback}", f"ahead of {member.lookback}"
