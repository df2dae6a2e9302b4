"""Prediction intervals of a forecast model, as a run holds them in intervals.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from plmu.runs.folder import INTERVALS_FILE, parsed


@dataclass
class Intervals:
    """Quantiles of forecast errors, in units of the `spread` of a window."""

    levels: tuple[float, ...]
    relative: bool
    lookback: int  # rows of a window in which its changes are measured
    floor: Tensor  # (channels,): the smallest spread
    low: Tensor = field(default_factory=lambda: torch.zeros(0))  # (levels, channels, horizon)
    high: Tensor = field(default_factory=lambda: torch.zeros(0))

    @classmethod
    def read(cls, folder: Path, lookback: int) -> Self:
        """Those of a run's folder.

        Raises:
            RunError: intervals.json is missing or damaged.
        """

        def fields(content: Any) -> tuple[Any, ...]:
            floor, low, high = (torch.tensor(content[name]) for name in ("floor", "low", "high"))
            return tuple(content["levels"]), bool(content["relative"]), lookback, floor, low, high

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
        changes = windows.diff(dim=-1).square().sum(-1, keepdim=True)
        changes = (changes / (count.clamp(max=windows.shape[-1]) - 1).clamp(min=1)[:, None, None]).sqrt()
        return changes.maximum(self.floor[:, None])

    def bounds(self, mean: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper ends of the intervals, (levels, series, channels, horizon).

        Args:
            mean: point forecasts, (series, channels, horizon).
            spread: (series, channels, 1).
        """
        if not self.levels:
            return mean.new_zeros(0, *mean.shape), mean.new_zeros(0, *mean.shape)
        low, high = (mean + spread * ends[:, None] for ends in (self.low, self.high))
        return low, high


def bound_names(column: str, level: float) -> tuple[str, str]:
    """The names of the lower and the upper end of an interval of a column, such as load-lo-80; `level` in percent."""
    return f"{column}-lo-{level:g}", f"{column}-hi-{level:g}"
