"""Sums of the members of a `PooledForecast` as rows arrive.

A member's rows are weighted towards the absolute error by the errors of an earlier readout. That of the fit is held as
this reference, so that the weights do not depend on the order in which rows arrive, and sums add up. Hidden layers are
held, too, and members whose hidden layers are trained or that are classical are held as they are.

Windows are as far apart as in the fit, of each series from the first one that the fit took. Each counts alike: a weight
by the number of a series' windows would change with every row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from plmu.folded.pooled import Member
from plmu.nn.pooled import PooledForecast, PooledMember
from plmu.timeseries.learning import Forgetting, Grown, ReadoutSums, WindowSums
from plmu.timeseries.pooled import FITTED
from plmu.timeseries.pooled_members import LEAST, Candidates
from plmu.timeseries.pooled_readouts import regression, row_weights
from plmu.timeseries.pooled_windows import BLOCK, Panel, Places, Windows, fitting_places, fitting_stride
from plmu.timeseries.series import Key, Piece
from plmu.timeseries.window_linear import WindowLinear


class Place(NamedTuple):
    """Where a series is in its windows."""

    following: int  # the clock's step of the last row of its next window
    apart: int  # steps from one window to the next


@dataclass(frozen=True)
class MemberSums:
    """Sums of a weighted regression of a member."""

    member: PooledMember  # in float64, with the readout that is the weights' reference
    sums: ReadoutSums

    def learned(self, windows: Windows, weights: Tensor) -> Self:
        """The sums with those of windows that count so much, (windows, 1)."""
        gram, cross = torch.zeros_like(self.sums.gram[0]), torch.zeros_like(self.sums.cross[0])
        count = 0.0
        for rows in windows.rows_for(self.member.kind).split(BLOCK):
            x, y, unit = regression(self.member, windows, rows, (1.0,))
            wrong = (y - x @ self.member.weight).abs().mean(1, keepdim=True)
            weight = weights[rows] * row_weights(wrong, unit)
            gram += (x * weight).mT @ x
            cross += (x * weight).mT @ y
            count += float(weight.sum())
        return replace(self, sums=self.sums.added(gram, cross, count))


@dataclass(frozen=True)
class PooledSums:
    """Sums of all members that are fitted in closed form, by their places in the layer."""

    model: PooledForecast
    members: Mapping[int, MemberSums]
    maps: Mapping[int, WindowSums]  # members that are linear maps of the window
    units: Mapping[Key, Tensor]  # mean absolute change (channels,) of series
    usual: float  # unit in levels of the other series
    places: Mapping[Key, Place]

    @classmethod
    def of(
        cls,
        model: PooledForecast,
        alphas: Sequence[float],
        series: Sequence[Piece],
        sizes: Mapping[str, Tensor],
        unit: Tensor,
    ) -> Self:
        """Of no windows yet.

        Args:
            model: as it was fitted.
            alphas: penalties of the members' readouts; 0 for those that are held.
            series: the rows of the fit, which tell the units of series and which windows are taken.
            sizes: the units (channels,) in which linear maps are fitted, by name of the series.
            unit: the largest of these.
        """
        members, maps = {}, {}
        for number, (member, alpha) in enumerate(zip(model.readouts, alphas, strict=True)):
            kind, (features, horizon) = member.kind, member.weight.shape
            if len(kind.hidden) == 1 and alpha:
                reference = PooledMember(kind, horizon).double().requires_grad_(False)
                reference.load_state_dict(member.state_dict())
                members[number] = MemberSums(
                    reference, ReadoutSums.zeros(features, horizon, alpha, torch.inf, torch.ones(1))
                )
            elif not kind.hidden and alpha:
                reader = WindowLinear(model.channels, horizon, kind.lookback)
                maps[number] = WindowSums(
                    reader, ReadoutSums.zeros(kind.lookback, horizon, alpha, torch.inf, unit), dict(sizes)
                )
        empty = cls(model, members, maps, {}, 1.0, {})
        return empty._with_series(series) if members else empty

    def _with_series(self, series: Sequence[Piece]) -> Self:
        """With the units of series of the fit, the usual one, and the windows that it took."""
        horizon, season = self.model.horizon, max(self._seasons, default=0)
        lengths = torch.tensor([len(piece) for piece in series])
        taken = fitting_places(lengths, self._longest, self._seasons, horizon, FITTED)
        columns = [piece.values[:, channel] for piece in series for channel in range(self.model.channels)]
        panel = Panel.of(columns, lengths.repeat_interleave(self.model.channels), season)
        units = panel.unit.view(len(series), -1)
        places: dict[Key, Place] = {}
        ratios = []
        for number, piece in enumerate(series):
            ends = taken.ends[taken.series == number]
            apart = int(ends[0] - ends[1]) if len(ends) > 1 else fitting_stride(self._seasons, horizon)
            first = int(ends.min()) if len(ends) else max(LEAST, len(piece) - horizon + 1)
            begin = places.get(piece.key, Place(piece.start + first - 1, apart)).following  # of its first piece
            places[piece.key] = Place(begin, apart)
            level = torch.from_numpy(abs(piece.values).mean(axis=0))
            ratios.append(units[number] / level.clamp(min=1e-30))
        usual = torch.cat(ratios)
        usual = usual[usual > 0]
        by_key = {piece.key: unit for piece, unit in zip(series, units, strict=True)}
        return replace(self, units=by_key, usual=float(usual.median()) if len(usual) else 1.0, places=places)

    @property
    def reach(self) -> int:
        """Rows before new ones that are needed to learn these."""
        apart = max([place.apart for place in self.places.values()], default=1)
        rows = self.model.window + self.model.horizon + max(apart, fitting_stride(self._seasons, self.model.horizon))
        return max([rows, *(sums.reach for sums in self.maps.values())])

    @property
    def _seasons(self) -> tuple[int, ...]:
        kinds = [member.kind.season for member in self.model.readouts]
        return tuple(sorted({season for season in (self.model.season, *kinds) if season > 1}))

    @property
    def _longest(self) -> int:
        return max(member.kind.lookback for member in self.model.readouts)

    def decayed(self, factor: float) -> Self:
        """The sums, all windows of which count less by this factor."""
        members = {n: replace(part, sums=part.sums.decayed(factor)) for n, part in self.members.items()}
        maps = {n: replace(part, sums=part.sums.decayed(factor)) for n, part in self.maps.items()}
        return replace(self, members=members, maps=maps)

    def learned(self, series: Sequence[Grown], forgetting: Forgetting) -> Self:
        """The sums with the windows whose horizons end in the new rows."""
        maps = {number: part.learned(series, forgetting) for number, part in self.maps.items()}
        if not self.members or not series:
            return replace(self, maps=maps)
        members, places = dict(self.members), dict(self.places)
        pieces, taken, ends = [], [], []
        for number, grown in enumerate(series):
            piece, horizon = grown.piece, self.model.horizon
            following, apart = places.get(piece.key, Place(piece.start, fitting_stride(self._seasons, horizon)))
            following = max(following, piece.start + LEAST - 1)
            steps = torch.arange(following, max(following, piece.last - horizon + 1), apart)
            places[piece.key] = Place(following + apart * len(steps), apart)
            pieces.append(piece)
            taken.append(torch.full((len(steps),), number))
            ends.append(steps + 1 - piece.start)
        where = Places(torch.cat(taken), torch.cat(ends))
        if not len(where.series):
            return replace(self, maps=maps, places=places)
        for rows in torch.arange(len(where.series)).split(BLOCK):
            block = Places(where.series[rows], where.ends[rows])
            last = torch.tensor([piece.start for piece in pieces])[block.series] + block.ends - 1 + self.model.horizon
            weights = forgetting.weights(last)[:, None].repeat_interleave(self.model.channels, dim=0)
            windows = self._windows(pieces, block)
            members = {number: part.learned(windows, weights) for number, part in members.items()}
        return replace(self, members=members, maps=maps, places=places)

    def _windows(self, pieces: Sequence[Piece], places: Places) -> Windows:
        """These windows of each channel, in float64."""
        channels, used = self.model.channels, places.series.unique()
        series = torch.searchsorted(used, places.series)
        chosen = [pieces[number] for number in used.tolist()]
        columns = [torch.from_numpy(piece.values[:, channel]) for piece in chosen for channel in range(channels)]
        lengths = torch.tensor([len(column) for column in columns])
        unknown = torch.full((channels,), torch.nan, dtype=torch.float64)
        unit = torch.cat([self.units.get(piece.key, unknown) for piece in chosen])
        panel = Panel(torch.cat(columns).double(), lengths.cumsum(0) - lengths, lengths, unit, torch.float64)
        each = Places(
            (series[:, None] * channels + torch.arange(channels)).flatten(), places.ends.repeat_interleave(channels)
        )
        kinds = Candidates(self._seasons, [], [], [], [], self.model.window, self._longest)
        windows = Windows.of(panel, each, kinds, self.model.horizon)
        return windows._replace(unit=torch.where(windows.unit.isnan(), self.usual, windows.unit))

    def solved(self) -> PooledForecast:
        """The layer with the readouts of these sums."""
        config = self.model.config
        layer = PooledForecast(**config, dtype=next(self.model.parameters()).dtype).requires_grad_(False).eval()
        layer.load_state_dict(self.model.state_dict())
        for number, part in self.members.items():
            if part.sums.count:
                layer.readouts[number].weight.copy_(part.sums.readout()[0])
        for number, linear in self.maps.items():
            if linear.sums.count:
                _copy_map(layer.readouts[number].weight, layer.readouts[number].kind, linear.sums.readout()[0])
        return layer


def _copy_map(weight: Tensor, kind: Member, readout: Tensor) -> None:
    """Set the readout of a member to a linear map (lookback, horizon) of differences from the last value."""
    weight.zero_()
    weight[1 : kind.lookback] = readout[:-1]
