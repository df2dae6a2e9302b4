"""Forecasts from earlier rows of series, beside what was measured: rolling origins at the ends of the series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from plmu.timeseries.forecast_tables import long_table, time_column
from plmu.timeseries.frames import Form
from plmu.timeseries.series import Key, Numbers, Piece, SeriesData
from plmu.timeseries.split import Settings

CUTOFF, FORECAST = "cutoff", "forecast"  # names of columns


class Tested(NamedTuple):
    """Forecasts from one cutoff of each series."""

    pieces: Sequence[Piece]  # whose last rows are the cutoffs
    lines: Mapping[str, Tensor]  # (series, channels, horizon), as `Ahead.lines` returns them


def before(data: SeriesData, back: int, horizon: int) -> SeriesData:
    """The rows of each series up to a cutoff, so many steps before its last row; covariates are known `horizon` steps
    ahead. Values that were filled from later ones are the last value that was measured. Series without a row at their
    cutoff are left out."""
    ends = {piece.key: piece.last - back for piece in data.pieces}  # by the last piece of each
    cut = [_until(piece, ends[piece.key], horizon) for piece in data.pieces if piece.start <= ends[piece.key]]
    there = {piece.key for piece in cut if piece.last == ends[piece.key]}
    return replace(data, pieces=[piece for piece in cut if piece.key in there])


def tested_table(data: SeriesData, settings: Settings, tests: Sequence[Tested], horizon: int, form: Form | None) -> Any:
    """A frame with a row for each step, from each cutoff of each series.

    Args:
        data: all rows.
        settings: of the fit.
        tests: from the earliest cutoff to the latest.
        horizon: steps ahead.
        form: of the arrays or wide frames that the series are from; None for a file or a frame in long format.
    """
    places: dict[Key, list[tuple[int, int]]] = {}  # of each series: its cutoffs, and its place there
    for number, test in enumerate(tests):
        for place, piece in enumerate(test.pieces):
            places.setdefault(piece.key, []).append((number, place))
    order = [pair for key in dict.fromkeys(piece.key for piece in data.pieces) for pair in places.get(key, ())]
    pieces = [tests[number].pieces[place] for number, place in order]
    values: dict[Key, list[Piece]] = {}
    for piece in data.pieces:
        values.setdefault(piece.key, []).append(piece)
    rows = [(piece, piece.last + np.arange(1, 1 + horizon)) for piece in pieces]
    cutoffs = [(piece, np.full(horizon, piece.last)) for piece in pieces]
    measured = np.concatenate([_measured(values[piece.key], steps) for piece, steps in rows])
    time, alone = time_column(settings), len(settings.values) == 1 and settings.values != (FORECAST,)
    columns: dict[str, Any] = {}
    for channel, name in enumerate(settings.values):
        columns[name] = measured[:, channel]
        for suffix in tests[0].lines:
            forecasts = [tests[number].lines[suffix][place, channel].numpy() for number, place in order]
            columns[(FORECAST if alone else f"{name}-{FORECAST}") + suffix] = np.concatenate(forecasts)
    frame = long_table(settings, {time: rows, CUTOFF: cutoffs}, columns, data.frame, form)
    if type(frame).__module__.startswith("polars"):
        import polars

        frame = frame.with_columns(polars.col(settings.values).fill_nan(None))
    return frame


def _until(piece: Piece, last: int, horizon: int) -> Piece:
    """The piece cut at a step, without what its filled values have from later rows."""
    count = min(len(piece), last + 1 - piece.start)
    if count == len(piece):
        return piece
    cut = piece.until(count)
    values = cut.values.copy()
    for channel, present in zip(values.T, cut.measured.T, strict=True):
        if not present[-1]:  # the first row is of earlier values in any case
            last_measured = len(present) - 1 - int(present[::-1].argmax()) if present.any() else 0
            channel[last_measured:] = channel[last_measured]
    covariates = None if piece.covariates is None else piece.covariates[: count + horizon]
    return replace(cut, values=values, covariates=covariates)


def _measured(pieces: Sequence[Piece], steps: Any) -> Numbers:
    """The measured values of a series at these steps, (steps, channels); NaN elsewhere."""
    values = np.full((len(steps), pieces[0].values.shape[1]), np.nan)
    for piece in pieces:
        rows = steps - piece.start
        inside = (rows >= 0) & (rows < len(piece))
        values[inside] = np.where(piece.measured[rows[inside]], piece.values[rows[inside]], np.nan)
    return values
