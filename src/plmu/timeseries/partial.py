"""What `Forecaster.partial_fit` does: new rows follow those that are held, are forecast, and are then learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from plmu.clock import Clock, steps_in
from plmu.nn.forecast import LookbackForecast
from plmu.nn.pooled import PooledForecast
from plmu.timeseries.calibration import Calibration
from plmu.timeseries.choosing import fitted_pieces, units_of
from plmu.timeseries.frames import SeriesTable
from plmu.timeseries.learning import Forgetting, Grown, ReadoutSums, WindowSums
from plmu.timeseries.learning_pooled import PooledSums
from plmu.timeseries.predictions import ForecastModel, with_options
from plmu.timeseries.scores import model_method
from plmu.timeseries.series import Key, Piece
from plmu.timeseries.split import Split

if TYPE_CHECKING:
    from plmu.timeseries.fitted import Fitted

HELD_ROWS = 1_000_000  # the latest rows of each series that are held, for `choose`


@dataclass(frozen=True)
class Learning:
    """A model whose readout is solved from sums of windows, and the errors of its forecasts of rows that were new."""

    sums: WindowSums | PooledSums
    forgetting: Forgetting
    calibration: Calibration
    first: Mapping[Key, int]  # of each series the clock's step of the first row that was learned

    @classmethod
    def of(cls, fitted: Fitted, summary: Mapping[str, Any], half_life: float | str | None) -> Learning:
        """With the sums of the rows of a fit, validation rows included.

        Args:
            fitted: to the rows before the test rows.
            summary: what was chosen.
            half_life: as in `Forecaster`.
        """
        split, model = fitted.series("partial_fit"), fitted.model
        pieces, validation_rows = fitted_pieces(split)
        _, scales = units_of(pieces, validation_rows)
        sizes = {name: torch.from_numpy(size) for name, (_, size) in scales.items()}
        unit = torch.from_numpy(np.max([size for _, size in scales.values()], axis=0))
        sums: WindowSums | PooledSums
        if isinstance(model, PooledForecast):
            alphas = [member[-2] for member in summary["members"]] or [0.0] * len(model.readouts)
            sums = PooledSums.of(model, alphas, pieces, sizes, unit)
        else:
            zeros = ReadoutSums.zeros(model.order, model.horizon, summary["alpha"], summary["pull"], unit)
            sums = WindowSums(model, zeros, sizes)
        forgetting = Forgetting(steps_in(half_life, split.data.clock), max(piece.last for piece in pieces))
        sums = sums.learned([Grown(piece, len(piece)) for piece in pieces], forgetting)
        first: dict[Key, int] = {}
        for piece in pieces:
            first.setdefault(piece.key, piece.start)
        return cls(sums, forgetting, Calibration.of(split, *fitted.errors), first)

    def reach(self, split: Split) -> int:
        """Rows before new ones that are needed to learn these."""
        return max(self.sums.reach, split.length + split.horizon)

    def learned(self, series: Sequence[Grown], model: ForecastModel, split: Split) -> Learning:
        """With new rows, which `model` forecasts before."""
        latest = max([self.forgetting.latest, *(grown.piece.last for grown in series)])
        forgetting = self.forgetting._replace(latest=latest)
        sums = self.sums.decayed(self.forgetting.factor(latest)).learned(series, forgetting)
        first = {grown.piece.key: grown.first for grown in reversed(series)} | dict(self.first)
        return Learning(sums, forgetting, self.calibration.learned(model_method(model), series, split), first)

    @property
    def model(self) -> ForecastModel:
        """The model whose readouts the sums are for."""
        if isinstance(self.sums, PooledSums):
            return self.sums.model
        assert isinstance(self.sums.reader, LookbackForecast)
        return self.sums.reader

    def bounded(self, channels: Sequence[int]) -> Learning:
        """With forecasts and intervals of at least 0 of these channels alone."""
        if tuple(channels) == self.model.nonnegative:
            return self
        model, sums = with_options(self.model, nonnegative=list(channels)), self.sums
        if isinstance(sums, PooledSums):
            assert isinstance(model, PooledForecast)
            sums = replace(sums, model=model)
        else:
            assert isinstance(model, LookbackForecast)
            sums = replace(sums, reader=model)
        unit = replace(self.calibration.unit, nonnegative=tuple(channels))
        return replace(self, sums=sums, calibration=replace(self.calibration, unit=unit))

    def solved(self) -> ForecastModel:
        """The model with the readouts of the sums."""
        if isinstance(self.sums, PooledSums):
            return self.sums.solved()
        model = with_options(self.model)
        if self.sums.sums.count:
            with torch.no_grad():
                model.get_parameter("weight").copy_(self.sums.sums.readout().mT)
        return model


def test_rows(split: Split) -> list[Grown]:
    """The rows that were not fitted, with those before them."""
    return [
        Grown(piece, len(piece) - end)
        for piece, (_, end) in zip(split.data.pieces, split.cuts, strict=True)
        if end < len(piece)
    ]


def grown(held: Sequence[Piece], new: Sequence[Piece], reach: int) -> tuple[list[Piece], list[Grown]]:
    """The pieces of all rows, of which the latest are held; and the new rows with those that their windows need.

    Args:
        held: earlier rows.
        new: rows that follow them.
        reach: rows before new ones that are needed.
    """
    pieces = list(held)
    places = {piece.key: place for place, piece in enumerate(pieces)}
    series = []
    for piece in new:
        place = places.get(piece.key)
        if place is None or pieces[place].last + 1 != piece.start:
            places[piece.key] = len(pieces)
            pieces.append(piece.since(max(0, len(piece) - HELD_ROWS)))
            series.append(Grown(piece, len(piece)))
            continue
        joined = _joined(pieces[place], piece)
        pieces[place] = joined.since(max(0, len(joined) - HELD_ROWS))
        series.append(Grown(joined.since(max(0, len(joined) - len(piece) - reach)), len(piece)))
    return pieces, series


def _joined(piece: Piece, following: Piece) -> Piece:
    """A piece and the rows that follow it."""
    covariates = None
    if piece.covariates is not None and following.covariates is not None:
        covariates = np.concatenate([piece.covariates[: len(piece)], following.covariates])
    values = np.concatenate([piece.values, following.values])
    measured = np.concatenate([piece.measured, following.measured])
    return replace(piece, values=values, measured=measured, covariates=covariates)


def grown_split(split: Split, pieces: list[Piece]) -> Split:
    """The split of more rows: those after the rows that the unrefitted model was fitted to are validation rows, and
    there are no test rows. Pieces of which the first rows are no longer held have fewer before."""
    cuts = []
    for place, piece in enumerate(pieces):
        begin = len(piece)
        if place < len(split.cuts):
            dropped = piece.start - split.data.pieces[place].start
            begin = max(0, split.cuts[place][0] - dropped)
        cuts.append((begin, len(piece)))
    validation_rows = [end - begin if end - begin >= split.horizon else 0 for begin, end in cuts]
    data = replace(split.data, pieces=pieces)
    return replace(split, data=data, cuts=cuts, validation_rows=validation_rows)


def tables_of(tables: Sequence[SeriesTable], pieces: Sequence[Piece], clock: Clock) -> list[SeriesTable]:
    """Arrays and wide frames with the rows of the last piece of each."""
    last = {piece.source: piece for piece in pieces}
    grown_tables = []
    for place, table in enumerate(tables):
        piece, times = last.get(place), None
        if piece is None:
            grown_tables.append(table)
            continue
        if table.form.times is not None and clock.kind != "rows":
            rows = len(piece) if piece.covariates is None else len(piece.covariates)
            times = clock.dates(piece.start + np.arange(rows), piece.offset)
            if table.form.zoned and clock.zone:
                times = times - np.timedelta64(clock.zone, "m")
        grown_tables.append(replace(table, values=piece.values, times=times, covariates=piece.covariates))
    return grown_tables
