"""Covariates of the steps ahead, for series that are held."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from plmu.errors import DataError
from plmu.timeseries.long_frames import LongFrame
from plmu.timeseries.public_holidays import country_of, with_holidays
from plmu.timeseries.series import Piece, SeriesConfig, SeriesData, last_pieces, last_row, pieces_of
from plmu.timeseries.source_rows import read_plans
from plmu.timeseries.table_rows import RawSeries


def with_plans(data: SeriesData, future: Path | LongFrame) -> SeriesData:
    """The last piece of each series, with the later rows of `future` in place of its own covariates ahead.

    Raises:
        DataError: something in `future` is at fault.
    """
    assert data.config is not None
    clock, country = data.clock, country_of(data.columns.covariates)
    columns, pieces = data.columns, [*last_pieces(data.pieces).values()]
    if country is not None:
        columns = replace(columns, covariates=columns.covariates[:-1])
        pieces = [replace(piece, covariates=_without_last(piece)) for piece in pieces]
    config = data.config if data.config.day_first is not None else replace(data.config, day_first=clock.day_first)
    plans = read_plans(future, columns, config, clock.zone)
    empty = SeriesData(columns, clock, [], other=True, config=config)
    pieces = [_with_plan(piece, plans.get(piece.name, plans.get("")), config, empty) for piece in pieces]
    planned = replace(data, columns=columns, pieces=pieces)
    return planned if country is None else with_holidays(planned, country)


def _without_last(piece: Piece) -> np.ndarray | None:
    """The covariates without their last column."""
    assert piece.covariates is not None
    return piece.covariates[:, :-1] if piece.covariates.shape[1] > 1 else None


def _with_plan(piece: Piece, plan: RawSeries | None, config: SeriesConfig, data: SeriesData) -> Piece:
    """A piece with the covariates of a plan ahead, on the clock of `data` and with gaps filled as those of a file."""
    if plan is None or piece.covariates is None:
        return piece
    clock, times, values = data.clock, None, plan.values
    if plan.times is not None and clock.kind != "rows":
        last, numbers = np.array([piece.last]), clock.kind == "numbers"
        if plan.times.dtype.kind != ("f" if numbers else "M"):
            raise DataError("the times of --data.future are not written as those of --data.file")
        later = clock.steps(plan.times, piece.offset) > piece.last
        stamps = clock.first + clock.step * (last + piece.offset) if numbers else clock.dates(last, piece.offset)
        times, values = np.concatenate([stamps, plan.times[later]]), values[later]
    empty = np.full((len(values), piece.values.shape[1]), np.nan)
    rows = np.concatenate([last_row(piece), np.concatenate([empty, values], axis=1)])
    ahead = pieces_of(RawSeries(piece.name, times, rows), config, data)[0].covariates
    assert ahead is not None
    return replace(piece, covariates=np.concatenate([piece.covariates[: len(piece)], ahead[1:]]))
