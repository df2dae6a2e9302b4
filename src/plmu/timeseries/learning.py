"""Sums from which readouts are solved, as rows arrive: the sums of all rows are those of their parts, added.

`WindowSums` are those of a reader of windows, such as a `LookbackForecast`; those of the members of a `PooledForecast`
are in `learning_pooled`. What was chosen is held: the reader, the penalties, and the units in which series count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from plmu.nn.covariates import CovariateForecast
from plmu.timeseries.choosing import standard_deviation
from plmu.timeseries.effects import padded
from plmu.timeseries.ridge import Reader, Sums, feature_scale, solve
from plmu.timeseries.series import Piece
from plmu.timeseries.windows import Part, blocks

_LEAST_COUNT = 1e-200  # of windows: nothing beside a new one


@dataclass(frozen=True)
class ReadoutSums:
    """Sums of products over windows, in float64, and the penalties with which the readout is solved from them.

    A window counts 1 / unit² of its channel, so that features x (order,) and targets y (horizon,) in the units of the
    data add x xᵀ / unit² to `gram` and x yᵀ / unit² to `cross`, and 1 to `count`. Where all channels share a readout,
    the sums have their mean.

    Attributes:
        gram: features by features, (readouts, order, order).
        cross: features by targets, (readouts, order, horizon).
        count: the number of windows, in which older ones count less where there is a half-life.
        alpha: penalty on the shared readout, for features of unit power.
        pull: penalty on the difference of a channel's readout from the shared one; infinite for the shared one alone.
        unit: (channels,): the standard deviation that counts as 1.
    """

    gram: Tensor
    cross: Tensor
    count: float
    alpha: float
    pull: float
    unit: Tensor

    @classmethod
    def zeros(cls, order: int, horizon: int, alpha: float, pull: float, unit: Tensor) -> Self:
        """Of no windows."""
        readouts = 1 if math.isinf(pull) else len(unit)
        gram = torch.zeros(readouts, order, order, dtype=torch.float64)
        return cls(gram, gram.new_zeros(readouts, order, horizon), 0.0, alpha, pull, unit)

    @property
    def scale(self) -> Tensor:
        """The root mean square of the features, (order,)."""
        return feature_scale(self.gram / max(self.count, 1e-300))

    def decayed(self, factor: float) -> Self:
        """The sums, all windows of which count less by this factor; but no less in all than what float64 holds exactly,
        so that after a gap of many half-lives the readout is that of the rows before, until there are new windows."""
        if self.count:
            factor = max(factor, min(1.0, _LEAST_COUNT / self.count))
        return replace(self, gram=self.gram * factor, cross=self.cross * factor, count=self.count * factor)

    def added(self, gram: Tensor, cross: Tensor, count: float) -> Self:
        """The sums with those of other windows."""
        return replace(self, gram=self.gram + gram, cross=self.cross + cross, count=self.count + count)

    def readout(self) -> Tensor:
        """The readouts (readouts, order, horizon) of the ridge regression; 0 without windows."""
        if not self.count:
            return torch.zeros_like(self.cross)
        count, scale = self.count, self.scale
        means = Sums(self.gram / count, self.cross / count, torch.zeros(0), 1).scaled(scale)
        return solve(means, self.alpha, self.pull)[1] / scale[:, None]


class Grown(NamedTuple):
    """Rows of a series, with those before them that their windows need."""

    piece: Piece
    fresh: int  # how many of its rows, the last ones, are new

    @property
    def first(self) -> int:
        """The clock's step of the first new row."""
        return self.piece.last + 1 - self.fresh

    def last_rows(self, count: int) -> Piece:
        """The new rows with so many before them, or as many as there are."""
        return self.piece.since(max(0, len(self.piece) - self.fresh - count))


Weighting = Callable[[Tensor], Tensor]  # how much windows count, by the step (windows,) at which their horizon ends


class Forgetting(NamedTuple):
    """How much windows count at a time: half as much for each half-life that they are older."""

    half_life: float  # in steps; infinite where nothing is forgotten
    latest: int  # the clock's step of the last row that was learned

    @property
    def forgets(self) -> bool:
        return math.isfinite(self.half_life)

    def factor(self, latest: int) -> float:
        """By which sums at the latest row count less at a later one."""
        return 2.0 ** ((self.latest - latest) / self.half_life) if self.forgets else 1.0

    def weights(self, ends: Tensor) -> Tensor:
        """How much windows count whose horizons end at these steps."""
        if not self.forgets:
            return torch.ones(len(ends), dtype=torch.float64)
        return torch.exp2((ends - self.latest).double() / self.half_life)


@dataclass(frozen=True)
class WindowSums:
    """Sums over every window of series that a reader makes features of.

    The unit of a channel of a new series is the standard deviation in its first window, with the horizon, in which it
    varies: that depends on its rows alone, however they arrive. Windows before that one count as 0.
    """

    reader: Reader
    sums: ReadoutSums
    sizes: Mapping[str, Tensor] = field(default_factory=dict)  # units (channels,) of series by name; 0: not yet known

    @property
    def reach(self) -> int:
        """Rows before new ones that are needed to learn these."""
        lags = self.reader.lags - 1 if isinstance(self.reader, CovariateForecast) else 0
        return self.reader.lookback + self.reader.horizon - 1 + lags

    def decayed(self, factor: float) -> Self:
        """The sums, all windows of which count less by this factor."""
        return replace(self, sums=self.sums.decayed(factor))

    def learned(self, series: Sequence[Grown], forgetting: Forgetting) -> Self:
        """The sums with the windows whose horizons end in the new rows."""
        gram, cross = torch.zeros_like(self.sums.gram), torch.zeros_like(self.sums.cross)
        sizes, parts, units, ends = dict(self.sizes), [], [], []
        for grown in series:
            part = self._part(grown)
            if windows := part.windows(self.reader):
                parts.append(part)
                units.append(self._inverse_units(grown.piece.name, part, windows, sizes))
                ends.append(part.start + self.reader.lookback + self.reader.horizon - 1 + torch.arange(windows))
        if not parts:
            return self
        inverse, weights = torch.cat(units), forgetting.weights(torch.cat(ends))  # (windows, channels), (windows,)
        done = 0
        for block, future, phase in blocks(self.reader, parts):
            rows = slice(done, done + len(block))
            done += len(block)
            standard = self.reader.standard(block, phase)
            target = future - standard.last - (0.0 if standard.ahead is None else standard.ahead)
            unit = inverse[rows, :, None]
            features, target = (standard.features * unit).movedim(1, 0), (target * unit).movedim(1, 0)
            weighted = (features * weights[rows, None]).mT
            if len(gram) == 1:
                weighted = weighted.movedim(0, 1).flatten(1) / len(features)  # (order, channels · windows)
                gram += weighted @ features.flatten(0, 1)
                cross += weighted @ target.flatten(0, 1)
            else:
                gram += weighted @ features
                cross += weighted @ target
        return replace(self, sums=self.sums.added(gram, cross, float(weights.sum())), sizes=sizes)

    def _part(self, grown: Grown) -> Part:
        """The rows of all windows that end in new rows, in float64."""
        reader, relative, effect = self.reader, False, None
        piece = grown.last_rows(self.reader.lookback + self.reader.horizon - 1)
        values = torch.from_numpy(piece.values.T.copy())
        if isinstance(reader, CovariateForecast):
            whole = grown.last_rows(self.reach)
            assert whole.covariates is not None
            covariates = torch.from_numpy((whole.covariates[: len(whole)] - whole.covariates[len(whole) - 1]).T.copy())
            with torch.no_grad():
                effect = reader.effect(padded(covariates, reader.lags - 1))[:, len(whole) - len(piece) :]
            relative = reader.relative
        return Part(values, piece.start, effect, relative)

    def _inverse_units(self, name: str, part: Part, windows: int, sizes: dict[str, Tensor]) -> Tensor:
        """1 / unit (windows, channels) of the channels of a series in each window, 0 before it is known; adds to
        `sizes`."""
        channels, reach = part.values.shape[0], self.reader.lookback + self.reader.horizon
        size = sizes.get(name, torch.zeros(channels, dtype=torch.float64)).clone()
        first = torch.zeros(channels, dtype=torch.long)  # window with a unit
        for channel in (size == 0).nonzero()[:, 0].tolist():
            rows = part.values[channel]
            changed = (rows[1:] != rows[:-1]).nonzero()[:, 0]
            first[channel] = max(0, int(changed[0]) + 2 - reach) if len(changed) else windows
            if len(changed):
                deviation = standard_deviation(rows[int(first[channel]) :][:reach, None].numpy())
                size[channel] = float(deviation[0])
        sizes[name] = size
        inverse = torch.where(size > 0, 1 / size.clamp(min=1e-300), 0.0)
        return torch.where(torch.arange(windows)[:, None] >= first, inverse, 0.0)
