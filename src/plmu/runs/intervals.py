"""Prediction intervals of a forecast model, as a run holds them in intervals.json."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from plmu.runs.folder import INTERVALS_FILE, parsed

SURE = 40  # errors, below which the ends of intervals are not quantiles of them
_RECENT = 6  # latest changes of a window that are measured apart; those of a season if that is longer


@dataclass(frozen=True)
class Scaling:
    """How large the errors of a forecast are, by the changes in its window: the product of powers of mean absolute
    changes over one step, over `lag` steps, of changes over one step from those `again` steps before, and of the latest
    ones over one step.

    Attributes:
        lag: steps.
        again: steps; `lag` if it is a season, else 1.
        powers: of these four changes, whose sum is 1; and the logarithm of a factor.
    """

    lag: int
    again: int
    powers: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0, 0.0)

    @classmethod
    def of(cls, season: int, horizon: int) -> Self:
        """For forecasts `horizon` steps ahead, of series with a seasonal period or 0, without powers yet."""
        return cls(season, season) if season > 1 else cls(max(2, horizon // 2), 1)

    def logarithms(self, windows: Tensor, rows: Tensor, floor: Tensor) -> Tensor:
        """The logarithms of the four changes, (windows, channels, 4).

        Args:
            windows: (windows, channels, length).
            rows: how many values of each are real, the last ones, (windows,).
            floor: smaller changes count as this, (channels,).
        """
        length, recent = windows.shape[-1], max(_RECENT, self.again) + 1
        parts = [(windows, rows, lags) for lags in ((1,), (self.lag,), (1, self.again))]
        parts.append((windows[..., -recent:], rows.clamp(max=min(recent, length)), (1,)))
        step = _mean_change(*parts[0])
        changes = [step, *(torch.where(mean > 0, mean, step) for mean in (_mean_change(*part) for part in parts[1:]))]
        return torch.stack(changes, dim=-1).maximum(floor[:, None]).clamp(min=1e-300).log()

    def __call__(self, windows: Tensor, rows: Tensor, floor: Tensor) -> Tensor:
        """The scale (windows, channels, 1) of errors; arguments as of `logarithms`."""
        *powers, factor = self.powers
        logarithms = self.logarithms(windows.double(), rows, floor.double())
        scale = (logarithms @ logarithms.new_tensor(powers) + factor).exp()[..., None]
        return scale.to(windows.dtype)


def _mean_change(windows: Tensor, rows: Tensor, lags: tuple[int, ...]) -> Tensor:
    """The mean absolute change (windows, channels) over these lags, one after the other, within the last `rows` of each
    window; 0 where it is shorter."""
    length, lost = windows.shape[-1], sum(lags)
    if length <= lost:
        return windows.new_zeros(windows.shape[:-1])
    for lag in lags:
        windows = windows[..., lag:] - windows[..., :-lag]
    real = (torch.arange(length - lost, device=windows.device) >= length - rows[:, None])[:, None]
    return (windows.abs() * real).sum(-1) / real.sum(-1).clamp(min=1)


@dataclass
class Intervals:
    """Quantiles of forecast errors, in units of the `spread` of a window."""

    levels: tuple[float, ...]
    relative: bool
    lookback: int  # rows of a window in which its changes are measured
    floor: Tensor  # (channels,): the smallest spread
    low: Tensor = field(default_factory=lambda: torch.zeros(0))  # (levels, channels, horizon)
    high: Tensor = field(default_factory=lambda: torch.zeros(0))
    scaling: Scaling | None = None  # of models of many series
    nonnegative: tuple[int, ...] = ()  # channels whose bounds are at least 0
    errors: tuple[int, ...] = ()  # how many errors the quantiles of each step ahead rest on

    @classmethod
    def read(cls, folder: Path, lookback: int) -> Self:
        """Those of a run's folder.

        Raises:
            RunError: intervals.json is missing or damaged.
        """

        def fields(content: Any) -> tuple[Any, ...]:
            floor, low, high = (torch.tensor(content[name]) for name in ("floor", "low", "high"))
            scaling = None
            if "scaling" in content:
                lag, again, powers = (content["scaling"][name] for name in ("lag", "again", "powers"))
                scaling = Scaling(int(lag), int(again), tuple(map(float, powers)))
            rows = int(content.get("lookback", lookback))
            nonnegative, errors = (tuple(map(int, content.get(name, ()))) for name in ("nonnegative", "errors"))
            relative, levels = bool(content["relative"]), tuple(content["levels"])
            return levels, relative, rows, floor, low, high, scaling, nonnegative, errors

        return cls(*parsed(folder / INTERVALS_FILE, fields))

    @property
    def percent(self) -> tuple[float, ...]:
        """The levels in percent."""
        return tuple(round(100 * level, 10) for level in self.levels)

    def only(self, levels: Sequence[float]) -> Self:
        """Those of some of its levels."""
        places = [self.levels.index(level) for level in levels if level in self.levels]
        if len(places) < len(levels):
            shown = ", ".join(f"{100 * level:g}" for level in self.levels)
            raise ValueError(f"level must be of those of the run: {shown}")
        return replace(self, levels=tuple(levels), low=self.low[places], high=self.high[places])

    @property
    def basis(self) -> str:
        """How many errors the quantiles rest on, in words; empty where that is not known."""
        if not self.errors or not self.levels:
            return ""
        first, last = self.errors[0], self.errors[-1]
        count = f"{first:,} errors" + f" of the first step to {last:,} of the last" * (first != last)
        count += " of each step ahead" * (first == last and len(self.errors) > 1)
        few = [level for level in self.levels if min(self.errors) < needed(level)]
        shown = ", ".join(f"{100 * level:g}" for level in few)
        how = f"; too few for quantiles of {shown} %, which are those of Student's t distribution" if few else ""
        return f"intervals: from {count}{how}"

    def until(self, horizon: int | None) -> Self:
        """Those of the first steps ahead; None for all."""
        return replace(self, low=self.low[..., :horizon], high=self.high[..., :horizon], errors=self.errors[:horizon])

    def spread(self, windows: Tensor, rows: Tensor | None = None) -> Tensor:
        """The unit of errors: (windows, channels, 1), or 1.

        Args:
            windows: (windows, channels, length).
            rows: the number of measured rows of each, (windows,); those before repeat the first. By default all.
        """
        if not self.relative:
            return windows.new_ones(1)
        windows = windows[..., -self.lookback :]
        count = windows.new_full((len(windows),), windows.shape[-1]) if rows is None else rows
        if self.scaling is not None:
            return self.scaling(windows, count.clamp(max=windows.shape[-1]), self.floor)
        changes = windows.diff(dim=-1).square().sum(-1, keepdim=True)
        changes = (changes / (count.clamp(max=windows.shape[-1]) - 1).clamp(min=1)[:, None, None]).sqrt()
        return changes.maximum(self.floor[:, None])

    def bounds(self, mean: Tensor, spread: Tensor, level: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Lower and upper ends of the intervals, (levels, series, channels, horizon).

        Args:
            mean: point forecasts, (series, channels, horizon).
            spread: (series, channels, 1).
            level: what forecasts are relative to, (series, channels); by default 0.
        """
        if not self.levels:
            return mean.new_zeros(0, *mean.shape), mean.new_zeros(0, *mean.shape)
        lowest = mean.new_full((mean.shape[-2], 1), -math.inf)
        lowest[list(self.nonnegative)] = 0
        lowest = lowest if level is None else lowest - level[..., None].to(mean)
        low, high = ((mean + spread * ends[:, None]).maximum(lowest) for ends in (self.low, self.high))
        return low, high


def needed(level: float) -> int:
    """The number of errors of which an interval's ends are quantiles."""
    return max(SURE, math.ceil((1 + level) / (1 - level) - 1e-9))


def bound_names(column: str, level: float) -> tuple[str, str]:
    """The names of the lower and the upper end of an interval of a column, such as load-lo-80; `level` in percent."""
    return f"{column}-lo-{level:g}", f"{column}-hi-{level:g}"
