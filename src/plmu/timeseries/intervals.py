"""Prediction intervals: quantiles of forecast errors on rows that the model has not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from plmu.timeseries.split import Split
from plmu.timeseries.windows import Examples, Windows

HELD = 2**22  # errors that are held to find intervals
FEW = 30  # horizons in the validation rows, below which errors of fits to fewer rows count, too
LEAST = 50  # windows, below which errors on the training rows count, too


@dataclass
class Intervals:
    """Quantiles of forecast errors.

    The interval of level p at a step ahead reaches from the (1 − p)/2 to the (1 + p)/2 quantile of what was measured
    minus what was forecast, with the correction of conformal prediction for finitely many errors. Where there are
    several series, errors are relative to the changes from row to row in the window (`spread`).
    """

    levels: tuple[float, ...]
    relative: bool
    lookback: int  # rows of a window in which its changes are measured
    floor: Tensor  # (channels,): the smallest spread
    low: Tensor = field(default_factory=lambda: torch.zeros(0))  # (levels, channels, horizon)
    high: Tensor = field(default_factory=lambda: torch.zeros(0))

    @classmethod
    def of(cls, split: Split, levels: Sequence[float]) -> Intervals:
        """Without quantiles yet."""
        several = len({piece.name for piece in split.data.pieces}) > 1
        return cls(tuple(sorted(levels)), several, split.settings.lookback, split.smallest_change)

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

    def fitted(self, errors: Tensor) -> Intervals:
        """With the quantiles of these errors (windows, channels, horizon), NaN where nothing was measured."""
        if not self.levels:
            return self
        count = errors.isfinite().sum(0)
        ordered = errors.nan_to_num(torch.inf).sort(0).values
        low, high = [], []
        for level in self.levels:
            # The ⌈(n + 1) q⌉-th smallest of n errors, and as far from the largest.
            rank = ((count + 1) * (1 + level) / 2).ceil().long().clamp(min=1).minimum(count.clamp(min=1)) - 1
            # Where all errors have one sign, the interval still holds the forecast.
            high.append(ordered.gather(0, rank[None])[0].clamp(min=0))
            low.append(ordered.gather(0, (count - 1 - rank).clamp(min=0)[None])[0].clamp(max=0))
        return replace(self, low=torch.stack(low), high=torch.stack(high))


Forecasts = Sequence[tuple[Callable[[Examples], Tensor], Tensor]]  # methods, each with origins that it has not seen


def errors_of(intervals: Intervals, forecasts: Forecasts, windows: Windows, length: int, horizon: int) -> Tensor:
    """Errors (windows, channels, horizon) of forecasts in units of the spread, NaN where a gap was filled."""
    blocks = []
    with torch.no_grad():
        for method, origins in forecasts:
            for examples in windows.blocks(origins, length, horizon):
                error = (examples.future - method(examples)) / intervals.spread(examples.windows)
                blocks.append(error if examples.measured is None else torch.where(examples.measured, error, torch.nan))
    return torch.cat(blocks)


def unseen_errors(
    split: Split, method: Callable[[Examples], Tensor], folds: Callable[[], Forecasts] | None = None
) -> Tensor:
    """Errors of a model on the validation rows. Where these are few, errors of fits to fewer rows on the rows that
    follow count, too; where even these are few, errors on the training rows do.

    Args:
        split: the series.
        method: the model's forecasts.
        folds: models fitted to fewer rows, each with the origins that follow these rows.
    """
    limit = max(200, HELD // (split.horizon * len(split.scale)))
    forecasts = [(method, split.origins("valid", limit))]
    if folds is not None and len(split.scored("valid")) < FEW * split.horizon:
        forecasts += folds()
    if sum(len(origins) for _, origins in forecasts) < LEAST:
        forecasts.append((method, split.origins("train", limit)))
    return errors_of(Intervals.of(split, ()), forecasts, split.windows, split.length, split.horizon)
