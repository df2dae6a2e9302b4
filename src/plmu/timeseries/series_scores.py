"""Scores that are averages over series, as forecasting competitions have them: MASE and sMAPE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from plmu.timeseries.series import Numbers, Piece
from plmu.timeseries.windows import Examples


@dataclass(frozen=True)
class SeriesUnits:
    """The series that pieces are parts of, and what the MASE of each is relative to."""

    place: Tensor  # (pieces,): the number of each one's series
    naive: Tensor  # (series, channels): mean absolute change over a season; NaN without two rows

    @classmethod
    def of(cls, pieces: Sequence[Piece], ends: Sequence[int], season: int) -> SeriesUnits | None:
        """Of several series; None if there is one.

        Args:
            pieces: of the series.
            ends: the number of rows of each that changes are measured in.
            season: the seasonal period in steps, or 0.
        """
        numbers: dict[str, int] = {}
        place = [numbers.setdefault(piece.name, len(numbers)) for piece in pieces]
        if len(numbers) < 2:
            return None
        longest = np.zeros(len(numbers), dtype=int)
        np.maximum.at(longest, place, np.array(ends))
        apart = np.where(longest > season, max(season, 1), 1)
        channels = pieces[0].values.shape[1]
        total, count = np.zeros((len(numbers), channels)), np.zeros((len(numbers), 1))
        for number, piece, end in zip(place, pieces, ends, strict=True):
            changes = _changes(piece.values[:end], int(apart[number]))
            total[number] += changes.sum(axis=0)
            count[number] += len(changes)
        naive = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
        return cls(torch.tensor(place), torch.from_numpy(naive))


@dataclass
class SeriesErrors:
    """Sums over the windows of each series, (series, channels)."""

    units: SeriesUnits
    absolute: Tensor = field(init=False)
    symmetric: Tensor = field(init=False)  # relative to the mean of both sizes, in percent
    count: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.absolute, self.symmetric, self.count = (torch.zeros_like(self.units.naive) for _ in range(3))

    def add(self, examples: Examples, forecast: Tensor, counted: Tensor, pieces: Tensor) -> None:
        """Add forecasts of windows.

        Args:
            examples: the windows.
            forecast: relative to their level, (windows, channels, horizon).
            counted: which values count, of the same shape.
            pieces: the number of each window's piece, (windows,).
        """
        level = examples.level[..., None]
        future, ahead = examples.future.double() + level, forecast.double() + level
        error = torch.where(counted, (ahead - future).abs(), 0.0)
        size = (ahead.abs() + future.abs()).clamp(min=1e-300)  # of two zeros the error is zero, too
        place = self.units.place[pieces]
        for total, values in ((self.absolute, error), (self.symmetric, 200 * error / size), (self.count, counted)):
            total.index_add_(0, place, values.sum(-1).double())

    @property
    def mase(self) -> float:
        """The mean absolute error relative to that of the seasonal naive method within the training rows, averaged
        over the series that vary in these rows; NaN without any."""
        ratios = self.absolute / self.count / self.units.naive
        return float(ratios[(self.count > 0) & (self.units.naive > 0)].mean())

    @property
    def smape(self) -> float:
        """The mean of 2 |y − f| / (|y| + |f|) in percent, averaged over series."""
        return float((self.symmetric / self.count)[self.count > 0].mean())


def _changes(values: Numbers, apart: int) -> Numbers:
    changes: Numbers = np.abs(values[apart:] - values[:-apart])
    return changes
