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
        names = {name: place for place, name in enumerate(self.names)}
        numbered = [(grown, names.setdefault(grown.piece.name, len(names))) for grown in series]
        errors, places = _errors_of_rows(self.unit, method, [grown for grown, _ in numbered], split)
        numbers = torch.tensor([place for _, place in numbered], dtype=torch.long)
        steps = [grown.first + torch.arange(grown.fresh) for grown in series]
        most = max(200, HELD // (self.errors.shape[1] * self.errors.shape[2]))
        return Calibration(
            self.unit,
            torch.cat([self.errors, errors])[-most:],
            torch.cat([self.series, numbers[places]])[-most:],
            torch.cat([self.steps, *steps])[-most:],
            tuple(names),
        )

    def unseen(self, forgetting: Forgetting) -> tuple[Tensor, Tensor]:
        """The errors, of which an event in a single series counts once; and how much each counts, (errors,)."""
        weights = forgetting.weights(self.steps)
        totals = torch.zeros(len(self.names), dtype=torch.float64).index_add_(0, self.series, weights)
        share = weights / totals[self.series].clamp(min=1e-300)
        return self.errors if len(self.names) > 1 else without_repeats(self.errors), share


def _errors_of_rows(unit: Intervals, method: Method, series: Sequence[Grown], split: Split) -> tuple[Tensor, Tensor]:
    """Errors (new rows, channels, horizon) of forecasts of the new rows of all series from 1 to `horizon` steps before,
    NaN where there is none; and the places of their series (new rows,)."""
    horizon = split.horizon
    pieces = [grown.last_rows(split.length + horizon) for grown in series]
    fresh = torch.tensor([grown.fresh for grown in series], dtype=torch.long)
    places = torch.repeat_interleave(torch.arange(len(series)), fresh)
    errors = torch.full((len(places), split.scale.shape[0], horizon), torch.nan)
    if not pieces:
        return errors, places
    windows = Windows.of([_prolonged(piece, horizon) for piece in pieces])
    origins, firsts = [], []  # of windows; and of each the row of `errors` that comes after it
    offsets = zip(windows.offsets.tolist(), (fresh.cumsum(0) - fresh).tolist(), strict=True)
    for piece, grown, (offset, row) in zip(pieces, series, offsets, strict=True):
        before = len(piece) - grown.fresh
        earliest = max(0, before - horizon, split.settings.least - 1)
        local = torch.arange(earliest, max(earliest, len(piece) - 1))
        origins.append(offset + local)
        firsts.append(row + local + 1 - before)
    rows = torch.cat(firsts)
    if not len(rows):
        return errors, places
    of_origins = errors_of(unit, [(method, torch.cat(origins))], windows, split.length, horizon).to(errors)
    series_of = torch.repeat_interleave(torch.arange(len(series)), torch.tensor([len(part) for part in origins]))
    for step in range(horizon):
        row = rows + step
        inside = (row >= 0) & (row < len(places))
        inside &= places[row.clamp(0, len(places) - 1)] == series_of
        errors[row[inside], :, step] = of_origins[inside, :, step]
    return errors, places


def _prolonged(piece: Piece, count: int) -> Piece:
    """The piece with more rows, in which nothing is measured."""
    values = np.concatenate([piece.values, piece.values[-1:].repeat(count, axis=0)])
    measured = np.concatenate([piece.measured, np.zeros((count, piece.values.shape[1]), bool)])
    covariates = piece.covariates
    if covariates is not None:
        covariates = covariates[: len(piece)]
        covariates = np.concatenate([covariates, covariates[-1:].repeat(count, axis=0)])
    return replace(piece, values=values, measured=measured, covariates=covariates)
