"""Windows of series and what follows them, gathered by the row at which a forecast is made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from plmu.timeseries.series import Piece

_BLOCK = 2**22  # numbers of windows that are held at a time


class Examples(NamedTuple):
    """Windows, and what is to be forecast."""

    windows: Tensor  # (some, channels, length)
    future: Tensor  # (some, channels, horizon)
    measured: Tensor | None  # (some, channels, horizon): False where a gap was filled; None where there is no gap
    steps: Tensor  # (some,): the clock's step of each window's last row
    covariates: Tensor | None = None  # (some, covariates, length + horizon)


@dataclass(frozen=True)
class Windows:
    """The rows of all pieces, one after the other. A window is known by its last row, its origin.

    Values are relative to the level of their piece, so that large ones with small changes keep their digits in float32.
    Forecasts are relative to it, too.
    """

    values: Tensor  # (channels, rows)
    measured: Tensor | None  # (channels, rows)
    offsets: Tensor  # (pieces,): where in the rows each begins
    starts: Tensor  # (pieces,): the clock's step there
    level: Tensor  # (pieces, channels), float64
    covariates: Tensor | None = None  # (covariates, rows), relative to the first row of each piece, too

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> Windows:
        lengths = [len(one) for one in pieces]
        level = np.stack([one.values[0] for one in pieces])
        values = torch.from_numpy(np.concatenate([one.values - one.values[0] for one in pieces]).T.astype(np.float32))
        gaps = not all(one.measured.all() for one in pieces)
        measured = torch.from_numpy(np.concatenate([one.measured for one in pieces]).T.copy()) if gaps else None
        offsets = torch.tensor([0, *np.cumsum(lengths)[:-1].tolist()])
        starts = torch.tensor([one.start for one in pieces])
        known = [one.covariates[: len(one)] - one.covariates[0] for one in pieces if one.covariates is not None]
        covariates = torch.from_numpy(np.concatenate(known).T.astype(np.float32)) if known else None
        return cls(values, measured, offsets, starts, torch.from_numpy(level), covariates)

    def origins(
        self,
        rows: Sequence[tuple[int, int]],
        lookback: int,
        horizon: int,
        limit: int | None = None,
        season: int = 0,
    ) -> Tensor:
        """The origins whose horizon lies within these rows of each piece, whose windows may begin before.

        Args:
            rows: for each piece the first row, and the one after the last.
            lookback: how many rows a window has.
            horizon: how many rows follow it.
            limit: most origins; if there are more, they are taken at equal distances.
            season: of which the distance shall not be a divisor, so that all phases are seen.
        """
        found = []
        for offset, (first, end) in zip(self.offsets.tolist(), rows, strict=True):
            low, high = max(first - 1, lookback - 1), end - horizon
            if high > low:
                found.append(torch.arange(offset + low, offset + high))
        every = torch.cat(found) if found else torch.zeros(0, dtype=torch.long)
        stride = 1 if limit is None else math.ceil(len(every) / limit)
        while season and stride > 1 and math.gcd(stride, season) > 1:
            stride += 1
        return every[:: max(1, stride)].clone()

    def take(self, origins: Tensor, lookback: int, horizon: int) -> Examples:
        """The windows of these origins. Where a window begins before its piece, the first row of it is repeated."""
        piece = torch.searchsorted(self.offsets, origins, right=True) - 1
        index = origins[:, None] + torch.arange(1 - lookback, horizon + 1)
        index = index.maximum(self.offsets[piece][:, None])
        both = self.values[:, index].movedim(0, 1)  # (some, channels, lookback + horizon)
        ahead = index[:, lookback:]
        measured = None if self.measured is None else self.measured[:, ahead].movedim(0, 1)
        steps = origins - self.offsets[piece] + self.starts[piece]
        covariates = None if self.covariates is None else self.covariates[:, index].movedim(0, 1)
        return Examples(both[..., :lookback], both[..., lookback:], measured, steps, covariates)

    def blocks(self, origins: Tensor, lookback: int, horizon: int) -> Iterator[Examples]:
        """`take`, a bounded number at a time."""
        for some in origins.split(max(1, _BLOCK // ((lookback + horizon) * self.values.shape[0]))):
            yield self.take(some, lookback, horizon)
