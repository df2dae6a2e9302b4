"""Windows of series and the rows that follow them, indexed by forecast origin, which is the last row of the window; and
all windows of series in blocks, for sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from plmu.nn.covariates import spread

if TYPE_CHECKING:
    from plmu.timeseries.series import Numbers, Piece

BLOCK = 2**22  # values in the windows that are held at a time


def gather(rows: Tensor, size: int, first: Tensor | slice) -> Tensor:
    """The windows (windows, columns, size) of `rows` (columns, time) that begin at `first`; a view if it is a slice."""
    if isinstance(first, Tensor) and not len(first):
        return rows.new_zeros(0, rows.shape[0], size)
    return rows.unfold(1, size, 1)[:, first].movedim(0, 1)


def stride_of(count: int, limit: int | None, season: int) -> int:
    """The stride at which at most `limit` of `count` windows are taken; None for all. It shares no divisor with the
    season, so that windows begin at all of its phases."""
    stride = max(1, 1 if limit is None else math.ceil(count / limit))
    while season and stride > 1 and math.gcd(stride, season) > 1:
        stride += 1
    return stride


class Examples(NamedTuple):
    """Windows of rows up to the forecast origins, and the rows after them, which are to be forecast."""

    windows: Tensor  # (windows, channels, length)
    future: Tensor  # (windows, channels, horizon)
    measured: Tensor | None  # (windows, channels, horizon): False where a gap was filled; None where there is no gap
    steps: Tensor  # (windows,): the clock's step of each window's last row
    rows: Tensor  # (windows,): how many rows of its piece each window has; those before them repeat the first
    level: Tensor  # (windows, channels), float64: what windows and future are relative to
    covariates: Tensor | None = None  # (windows, covariates, length + horizon)


Method = Callable[[Examples], Tensor]  # to forecasts (windows, channels, horizon)


@dataclass(frozen=True)
class Windows:
    """The rows of all pieces, one after the other. The origin of a window is the number of its last row in them.

    Values are differences from the first row of their piece (`level`), so that large values with small changes keep
    their digits in float32. Forecasts are relative to this level, too.
    """

    values: Tensor  # (channels, rows)
    measured: Tensor | None  # (channels, rows)
    offsets: Tensor  # (pieces,): the row at which each begins
    starts: Tensor  # (pieces,): the clock's step of that row
    level: Tensor  # (pieces, channels), float64
    covariates: Tensor | None = None  # (covariates, rows), relative to the first row of each piece

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> Windows:
        """The windows of these pieces; covariates ahead of a piece are left out."""
        lengths = [len(piece) for piece in pieces]
        level = np.stack([piece.values[0] for piece in pieces])
        values = _transposed([piece.values - piece.values[0] for piece in pieces])
        measured = None
        if not all(piece.measured.all() for piece in pieces):
            measured = torch.from_numpy(np.concatenate([piece.measured for piece in pieces]).T.copy())
        offsets = torch.tensor([0, *np.cumsum(lengths)[:-1].tolist()])
        starts = torch.tensor([piece.start for piece in pieces])
        relative = [
            piece.covariates[: len(piece)] - piece.covariates[0] for piece in pieces if piece.covariates is not None
        ]
        covariates = _transposed(relative) if relative else None
        return cls(values, measured, offsets, starts, torch.from_numpy(level), covariates)

    def origins(
        self,
        rows: Sequence[tuple[int, int]],
        lookback: int,
        horizon: int,
        limit: int | None = None,
        season: int = 0,
    ) -> Tensor:
        """The origins whose horizon lies within these rows of each piece; their windows may begin before these rows.

        Args:
            rows: for each piece the first row, and the row after the last.
            lookback: rows of a window.
            horizon: rows that follow it.
            limit: the largest number of origins; if there are more, every n-th is taken (`stride_of`).
            season: the seasonal period in rows, 0 for none.
        """
        spans = []
        for offset, (first, end) in zip(self.offsets.tolist(), rows, strict=True):
            low, high = max(first - 1, lookback - 1), end - horizon
            if high > low:
                spans.append(torch.arange(offset + low, offset + high))
        origins = torch.cat(spans) if spans else torch.zeros(0, dtype=torch.long)
        return origins[:: stride_of(len(origins), limit, season)].clone()

    def take(self, origins: Tensor, lookback: int, horizon: int) -> Examples:
        """The windows of these origins. Where a window begins before its piece, the piece's first row is repeated."""
        piece = torch.searchsorted(self.offsets, origins, right=True) - 1
        first = origins + 1 - lookback
        if bool((first >= self.offsets[piece]).all()):
            rows = gather(self.values, lookback + horizon, first)
            covariates = None if self.covariates is None else gather(self.covariates, lookback + horizon, first)
        else:
            index = first[:, None] + torch.arange(lookback + horizon)
            index = index.maximum(self.offsets[piece][:, None])
            rows = self.values[:, index].movedim(0, 1)  # (windows, channels, lookback + horizon)
            covariates = None if self.covariates is None else self.covariates[:, index].movedim(0, 1)
        measured = None if self.measured is None else gather(self.measured, horizon, origins + 1)
        past = origins - self.offsets[piece]
        counts = (past + 1).clamp(max=lookback)
        level = self.level[piece]
        steps = past + self.starts[piece]
        return Examples(rows[..., :lookback], rows[..., lookback:], measured, steps, counts, level, covariates)

    def blocks(self, origins: Tensor, lookback: int, horizon: int) -> Iterator[Examples]:
        """The windows of these origins in blocks, so that memory stays bounded."""
        for block in origins.split(max(1, BLOCK // ((lookback + horizon) * self.values.shape[0]))):
            yield self.take(block, lookback, horizon)


def _transposed(rows: list[Numbers]) -> Tensor:
    """Rows (time, columns) of pieces, one after the other, as (columns, rows) in float32."""
    return torch.from_numpy(np.ascontiguousarray(np.concatenate(rows).T, dtype=np.float32))


class Sizes(Protocol):
    """Sizes of the windows that a layer reads, the seasonal period, and its phase at row 0."""

    @property
    def channels(self) -> int: ...
    @property
    def horizon(self) -> int: ...
    @property
    def lookback(self) -> int: ...
    @property
    def season(self) -> int: ...
    @property
    def phase(self) -> int: ...


@dataclass(frozen=True)
class Part:
    """Rows of one series (channels, time) from which windows are taken. The first row has the number `start`.

    `effect` is that of covariates on these rows, which is subtracted from the windows; if `relative`, in units of each
    window's spread.
    """

    values: Tensor
    start: int
    effect: Tensor | None = None  # (channels, time)
    relative: bool = False

    def windows(self, layer: Sizes) -> int:
        """The number of its windows that have a horizon after them."""
        return max(0, self.values.shape[1] - layer.lookback - layer.horizon + 1)


def blocks(layer: Sizes, parts: Sequence[Part], stride: int = 1) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Blocks of windows (windows, channels, lookback), the rows that follow them (windows, channels, horizon), and the
    phase of their last rows in the season (windows,). Windows begin at every stride-th row. Those of short parts are
    in blocks together."""
    most = BLOCK // ((layer.lookback + layer.horizon) * layer.channels)
    held: list[tuple[Tensor, Tensor, Tensor]] = []
    count = 0
    for block in _of_parts(layer, parts, stride):
        if held and count + len(block[0]) > most:
            yield _together(held)
            held, count = [], 0
        held.append(block)
        count += len(block[0])
    if held:
        yield _together(held)


def _together(blocks: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    if len(blocks) == 1:
        return blocks[0]
    windows, future, phase = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return windows, future, phase


def _of_parts(layer: Sizes, parts: Sequence[Part], stride: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """`blocks` of each part."""
    reach = layer.lookback + layer.horizon
    for part in parts:
        count = part.windows(layer)
        block = stride * max(1, BLOCK // (reach * layer.channels))
        for first in range(0, count, block):
            taken = slice(first, min(first + block, count), stride)
            rows = gather(part.values, reach, taken)
            if part.effect is not None:
                size = spread(rows[..., : layer.lookback]) if part.relative else 1.0
                rows = rows - size * gather(part.effect, reach, taken)
            row = torch.arange(count)[taken] + part.start + layer.lookback - 1
            phase = (row + layer.phase) % max(layer.season, 1)
            yield rows[..., : layer.lookback], rows[..., layer.lookback :], phase
