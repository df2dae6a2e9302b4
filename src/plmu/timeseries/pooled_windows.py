"""The windows of many series that a `PooledForecast` is fitted to and judged by, and the error of forecasts of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from plmu.folded.pooled import LEAST_LEVEL, Adjusted, Member, adjusted, real_part
from plmu.nn.pooled import PooledForecast
from plmu.timeseries.pooled_members import LEAST, Candidates
from plmu.timeseries.series import Numbers
from plmu.timeseries.windows import stride_of
from plmu.training.processes import ALONE, Processes

BLOCK = 2**13  # windows of which all numbers are held at a time
SMALLEST_UNIT = 0.01  # of a series, in its level
CHECKED = 2_000, 25_000  # validation windows, at least where series are long enough, and at most
COVERED, JUDGED = 0.8, 0.3  # shares of series, and of validation windows, that a member is long enough for to be judged
_VALUES = 2**25  # values in the windows that are held at a time
_FAR = 1e9  # levels; values that are further away count as this
_SMALL = 1e-4  # of its level: where the unit of a series is smaller, float32 would not have the digits of its changes


class Limits(NamedTuple):
    """How many windows are taken."""

    recent: int  # latest windows of each series
    least: int  # in all, by more windows of each series
    most: int  # in all


class Panel(NamedTuple):
    """Series of one channel, one after the other."""

    values: Tensor  # (rows of all series,), float64
    starts: Tensor  # (series,): the first row of each
    lengths: Tensor  # (series,): how many rows of each count
    unit: Tensor  # (series,): mean absolute change over a season, or over a step of a series that is shorter
    dtype: torch.dtype = torch.float32  # of windows and weights

    @classmethod
    def of(cls, series: Sequence[Numbers], lengths: Tensor, season: int) -> Panel:
        """Of arrays (time,), of which the first `lengths` rows count."""
        sizes = torch.tensor([len(values) for values in series])
        values = torch.from_numpy(np.concatenate(series).astype(np.float64))
        panel = cls(values, sizes.cumsum(0) - sizes, lengths, torch.empty(0)).until(lengths, season)
        counted = (rows[:count] for rows, count in zip(series, lengths.tolist(), strict=True))
        level = torch.tensor([float(np.abs(rows).mean()) if len(rows) else 0.0 for rows in counted])
        small = bool(((panel.unit > 0) & (panel.unit < _SMALL * level)).any())
        return panel._replace(dtype=torch.float64) if small else panel

    def until(self, lengths: Tensor, season: int) -> Panel:
        """The same, of which the first `lengths` rows count."""
        apart = max(season, 1)
        step, seasonal = (_mean_change(self.values, self.starts, lengths, count) for count in (1, apart))
        return self._replace(lengths=lengths, unit=torch.where(lengths > apart, seasonal, step))


def _mean_change(values: Tensor, starts: Tensor, lengths: Tensor, apart: int) -> Tensor:
    """The mean absolute change over so many rows of each series; 0 where a series has no more rows."""
    counts = (lengths - apart).clamp(min=0)
    means = torch.zeros(len(lengths), dtype=torch.float64)
    if bool(counts.any()):
        changes = (values[apart:] - values[:-apart]).abs().numpy()
        long = counts > 0
        spans = torch.stack([starts[long], starts[long] + counts[long]], dim=1).flatten().numpy()
        sums = np.add.reduceat(np.append(changes, 0.0), spans)[::2]
        means[long] = torch.from_numpy(sums) / counts[long]
    return means


class Places(NamedTuple):
    """Windows: the series of each, and the number of its rows up to the window's end."""

    series: Tensor
    ends: Tensor


class Windows(NamedTuple):
    """Windows and what follows them, in units of each window's level, which is the mean absolute value. Of several
    processes each has a part of them."""

    places: Places
    level: Tensor  # (windows, 1), float64
    steps: Tensor  # (windows,): how many values of each are real
    future: Tensor  # (windows, horizon)
    unit: Tensor  # (windows, 1): that of its series
    share: Tensor  # (windows, 1): 1 / windows of its series
    adjusted: dict[int, Adjusted]  # by seasonal period: the last values without their season, and the season ahead
    total: int  # number of windows of all processes
    processes: Processes

    @classmethod
    def of(
        cls, panel: Panel, places: Places, candidates: Candidates, horizon: int, processes: Processes = ALONE
    ) -> Windows:
        """The windows at these places, or this process's part of them."""
        counts, count = torch.bincount(places.series, minlength=len(panel.starts)), len(places.series)
        places = Places(*(column[processes.share(count)] for column in places))
        size, longest = candidates.window, candidates.longest
        level = torch.zeros(len(places.series), 1, dtype=torch.float64)
        kind = panel.dtype
        future = torch.zeros(len(level), horizon, dtype=kind)
        seasons = (0, *candidates.seasons)
        by_season = {
            s: Adjusted(torch.zeros(len(level), longest, dtype=kind), torch.zeros_like(future)) for s in seasons
        }
        for rows in torch.arange(len(level)).split(BLOCK):
            series, ends = places.series[rows], places.ends[rows]
            index = (panel.starts[series] + ends)[:, None] + torch.arange(-size, horizon)
            values = panel.values[index.clamp(0, max(0, len(panel.values) - 1))]
            steps = ends.clamp(max=size)
            windows = real_part(values[:, :size], steps)
            level[rows] = windows.abs().sum(1, keepdim=True) / steps[:, None]
            divisor = level[rows].clamp(min=LEAST_LEVEL)
            future[rows] = (values[:, size:] / divisor).clamp(-_FAR, _FAR).to(kind)
            for season, (past, ahead) in by_season.items():
                without = adjusted(windows / divisor, steps, season, horizon)
                past[rows], ahead[rows] = without.windows[:, -longest:].to(kind), without.ahead.to(kind)
        unit = (panel.unit[places.series][:, None] / level.clamp(min=LEAST_LEVEL)).clamp(max=_FAR).to(kind)
        share = 1.0 / counts[places.series][:, None].to(kind)
        steps = places.ends.clamp(max=size)
        return cls(places, level, steps, future, unit, share, by_season, count, processes)

    @property
    def horizon(self) -> int:
        return self.future.shape[1]

    def rows_for(self, kind: Member) -> Tensor:
        """Those that are long enough for a member."""
        return (self.steps >= kind.lookback).nonzero()[:, 0]

    def values(self, kind: Member, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The last values that a member reads, and the season ahead."""
        without = self.adjusted[kind.season]
        return without.windows[rows, -kind.lookback :], without.ahead[rows]

    def sample(self, kind: Member, rows: Tensor) -> tuple[Tensor, Tensor]:
        """`values` of some of these rows, evenly spread over those of all processes; the same in each."""
        counts = self.processes.gathered(len(rows))
        stride = max(1, sum(counts) // BLOCK)
        first = -sum(counts[: self.processes.rank]) % stride
        values, ahead = self.values(kind, rows[first::stride])
        return self.processes.joined(values), self.processes.joined(ahead)

    def fallback(self, season: int) -> Tensor:
        """The last value without its season, times the season ahead: (windows, horizon)."""
        without = self.adjusted[season]
        return without.windows[:, -1:] * without.ahead


@dataclass(frozen=True)
class Error:
    """The error of forecasts of windows: the mean of the absolute error in units of the series and in units of the
    level, each relative to that of the last value with its season. Of several processes each has a part of the windows,
    and the error is that of all."""

    future: Tensor
    scales: Tensor  # (windows, 1)
    processes: Processes = ALONE

    @classmethod
    def of(cls, windows: Windows, fallback: Tensor) -> Error:
        level = windows.future.abs().mean(1, keepdim=True).clamp(min=1.0)
        scales = torch.cat([windows.share / windows.unit.maximum(SMALLEST_UNIT * level), windows.share / level], dim=1)
        errors = windows.processes.total((scales * (fallback - windows.future).abs().mean(1, keepdim=True)).sum(0))
        scales = (scales / (2 * errors).clamp(min=1e-30)).sum(1, keepdim=True)
        return cls(windows.future, scales, windows.processes)

    def __call__(self, forecasts: Tensor) -> float:
        errors = (self.scales * (forecasts - self.future).abs().mean(1, keepdim=True)).double()
        return float(self.processes.total(errors.sum()))

    @property
    def is_known(self) -> bool:
        """Whether there are windows."""
        return bool(self.processes.total(torch.tensor(len(self.future))))


@dataclass(frozen=True)
class SingleError:
    """The error of forecasts of windows of a single series, or of the columns of one: the mean of the absolute and the
    root mean squared error of each, relative to those of the last value with its season."""

    future: Tensor
    level: Tensor  # (windows, 1), relative to the mean
    series: Tensor  # (windows,)
    units: Tensor  # (2, series)

    @classmethod
    def of(cls, windows: Windows, fallback: Tensor) -> SingleError:
        level = (windows.level / windows.level.mean().clamp(min=LEAST_LEVEL)).clamp(max=_FAR)
        count = int(windows.places.series.max()) + 1 if len(level) else 0
        error = cls(windows.future, level, windows.places.series, torch.ones(2, count, dtype=torch.float64))
        return replace(error, units=error._means(fallback).clamp(min=1e-30))

    def _means(self, forecasts: Tensor) -> Tensor:
        """The mean absolute and the root mean squared errors of each series, relative to `units`."""
        error = (forecasts - self.future).double() * self.level
        sums = torch.zeros_like(self.units).T
        sums = sums.index_add(0, self.series, torch.stack([error.abs().mean(1), error.square().mean(1)], dim=1))
        absolute, squares = (sums.T / torch.bincount(self.series, minlength=sums.shape[0]).clamp(min=1)).unbind()
        return torch.stack([absolute, squares.sqrt()]) / self.units

    def __call__(self, forecasts: Tensor) -> float:
        there = torch.bincount(self.series, minlength=self.units.shape[1]) > 0
        return float(self._means(forecasts)[:, there].mean())

    @property
    def is_known(self) -> bool:
        """Whether there are windows."""
        return len(self.future) > 0


def read(model: PooledForecast, windows: Tensor, steps: Tensor) -> Tensor:
    """`PooledForecast.read` of windows (windows, channels, window), some at a time, as it makes many numbers of each;
    `steps` is (windows,)."""
    parts = zip(windows.split(BLOCK), steps.split(BLOCK), strict=True)
    return torch.cat([model.read(part, count[:, None]) for part, count in parts])


def fitting_windows(
    panel: Panel, candidates: Candidates, horizon: int, limits: Limits, processes: Processes = ALONE
) -> Windows:
    """The latest windows of each series that have a horizon after them."""
    places = fitting_places(panel.lengths, candidates.longest, candidates.seasons, horizon, limits)
    return Windows.of(panel, places, candidates, horizon, processes)


def fitting_places(lengths: Tensor, longest: int, seasons: Sequence[int], horizon: int, limits: Limits) -> Places:
    """Where the latest windows are of series of these lengths, for members of at most this look-back."""
    most = max(1, min(limits.most, _VALUES // (longest + horizon)))
    return latest_places(lengths, horizon, limits._replace(most=most), fitting_stride(seasons, horizon))


def fitting_stride(seasons: Sequence[int], horizon: int) -> int:
    """How far apart windows are where there are enough, at all phases of these seasons."""
    stride = max(1, horizon // 4)
    while any(math.gcd(stride, season) > 1 for season in seasons if stride > 1):
        stride += 1
    return stride


def latest_places(lengths: Tensor, horizon: int, limits: Limits, stride: int) -> Places:
    """The latest windows of each series that have a horizon after them, at most `stride` steps apart."""
    counts = (lengths - horizon - LEAST + 1).clamp(min=0)  # of windows that there are
    able = max(1, int((counts > 0).sum()))
    each = max(1, min(max(limits.recent, limits.least // able), limits.most // able))
    strides = (counts // each).clamp(1, stride)
    taken = ((counts + strides - 1) // strides).clamp(max=each)
    return _thinned(_counted_back(taken, lengths - horizon, strides), limits.most)


def validation_places(lengths: Tensor, rows: Tensor, horizon: int) -> Places:
    """Windows whose horizon lies in the last rows of each series: the latest, and more where there are few series."""
    able = max(1, int((rows >= horizon).sum()))
    counts = torch.where(rows >= horizon, rows - horizon + 1, 0)
    least, most = CHECKED
    each = -(-least // able)
    strides = (counts // each).clamp(1, max(1, horizon // 4))
    taken = ((counts + strides - 1) // strides).clamp(max=each)
    return _thinned(_counted_back(taken, lengths - horizon, strides), most)


def long_enough(places: Places, candidates: Candidates, lengths: Tensor) -> Places:
    """The windows for which those candidates are available that most of the series are long enough for: validation
    windows are shorter than those of forecasts. All, where these are few."""
    for lookback in sorted({kind.lookback for kind in candidates.fitted}, reverse=True):
        long = places.ends >= lookback
        if (lengths >= lookback).double().mean() >= COVERED and long.double().mean() >= JUDGED:
            return Places(places.series[long], places.ends[long])
    return places


def _thinned(places: Places, most: int) -> Places:
    """At most so many of them, evenly spread."""
    if len(places.series) <= most:
        return places
    taken = torch.arange(0, len(places.series), stride_of(len(places.series), most, 0))
    return Places(places.series[taken], places.ends[taken])


def _counted_back(counts: Tensor, last: Tensor, strides: Tensor) -> Places:
    """So many windows of each series, from the last one back."""
    series = torch.repeat_interleave(torch.arange(len(counts)), counts)
    back = torch.arange(len(series)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return Places(series, last[series] - back * strides[series])
