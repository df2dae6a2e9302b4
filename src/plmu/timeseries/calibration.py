"""The errors that prediction intervals rest on, as rows arrive: a row that is learned is first forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from plmu.timeseries.intervals import HELD, Intervals, Unseen, errors_of, without_repeats
from plmu.timeseries.learning import Forgetting, Grown
from plmu.timeseries.series import Piece
from plmu.timeseries.split import Split
from plmu.timeseries.windows import Method, Windows


@dataclass(frozen=True)
class Calibration:
    """Errors of forecasts of rows that the model had not learned. Each of several series counts alike."""

    unit: Intervals  # says what errors are relative to
    errors: Tensor  # (errors, channels, horizon), NaN where nothing was measured
    series: Tensor  # (errors,): the place of the series in `names`
    steps: Tensor  # (errors,): the clock's step by which they were known
    names: tuple[str, ...]

    @classmethod
    def of(cls, split: Split, unit: Intervals, unseen: Unseen) -> Calibration:
        """Those that intervals rested on after the fit."""
        names = tuple(dict.fromkeys(piece.name for piece in split.data.pieces))
        piece = torch.searchsorted(split.windows.offsets, unseen.origins, right=True) - 1
        places = torch.tensor([names.index(piece.name) for piece in split.data.pieces])
        steps = unseen.origins - split.windows.offsets[piece] + split.windows.starts[piece] + split.horizon
        return cls(unit, unseen.errors, places[piece], steps, names)

    def learned(self, method: Method, series: Sequence[Grown], split: Split) -> Calibration:
        """With the errors of new rows, forecast from 1 to `horizon` steps before by a method that has not learned them.
        At most `HELD` errors are held, the latest ones."""
        names = list(self.names)
        errors, places, steps = [self.errors], [self.series], [self.steps]
        for grown in series:
            if grown.piece.name not in names:
                names.append(grown.piece.name)
            of_rows = _errors_of_rows(self.unit, method, grown, split)
            if of_rows is not None:
                errors.append(of_rows)
                places.append(torch.full((len(of_rows),), names.index(grown.piece.name)))
                steps.append(grown.first + torch.arange(len(of_rows)))
        most = max(200, HELD // (self.errors.shape[1] * self.errors.shape[2]))
        latest = [torch.cat(parts)[-most:] for parts in (errors, places, steps)]
        return Calibration(self.unit, latest[0], latest[1], latest[2], tuple(names))

    def unseen(self, forgetting: Forgetting) -> tuple[Tensor, Tensor]:
        """The errors, of which an event in a single series counts once; and how much each counts, (errors,)."""
        weights = forgetting.weights(self.steps)
        totals = torch.zeros(len(self.names), dtype=torch.float64).index_add_(0, self.series, weights)
        share = weights / totals[self.series].clamp(min=1e-300)
        return self.errors if len(self.names) > 1 else without_repeats(self.errors), share


def _errors_of_rows(unit: Intervals, method: Method, grown: Grown, split: Split) -> Tensor | None:
    """Errors (new rows, channels, horizon) of forecasts of the new rows of a series from 1 to `horizon` steps before,
    NaN where there is none; None if there are none at all."""
    horizon, piece = split.horizon, grown.last_rows(split.length + split.horizon)
    first = len(piece) - grown.fresh
    earliest = max(0, first - horizon, split.settings.least - 1)
    if earliest >= len(piece) - 1:
        return None
    origins = torch.arange(earliest, len(piece) - 1)
    windows = Windows.of([_prolonged(piece, horizon)])
    of_origins = errors_of(unit, [(method, origins)], windows, split.length, horizon)
    of_rows = torch.full((grown.fresh, *of_origins.shape[1:]), torch.nan, dtype=of_origins.dtype)
    for step in range(horizon):
        rows = origins + 1 + step - first
        inside = (rows >= 0) & (rows < grown.fresh)
        of_rows[rows[inside], :, step] = of_origins[inside, :, step]
    return of_rows


def _prolonged(piece: Piece, count: int) -> Piece:
    """The piece with more rows, in which nothing is measured."""
    values = np.concatenate([piece.values, piece.values[-1:].repeat(count, axis=0)])
    measured = np.concatenate([piece.measured, np.zeros((count, piece.values.shape[1]), bool)])
    covariates = piece.covariates
    if covariates is not None:
        covariates = covariates[: len(piece)]
        covariates = np.concatenate([covariates, covariates[-1:].repeat(count, axis=0)])
    return replace(piece, values=values, measured=measured, covariates=covariates)
