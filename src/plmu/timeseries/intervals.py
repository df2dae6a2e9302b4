"""Prediction intervals: quantiles of the errors of forecasts on rows that the model has not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from plmu.nn.windowed import WindowedForecast
from plmu.runs.intervals import Intervals as StoredIntervals
from plmu.runs.intervals import Scaling, needed
from plmu.timeseries.scores import seasonal_value
from plmu.timeseries.split import Split, is_several_or_short
from plmu.timeseries.windows import Examples, Method, Windows
from plmu.training.processes import ALONE, Processes

HELD = 2**22  # errors that are held to find intervals
FEW = 30  # horizons in the validation rows, below which errors of fits to fewer rows count, too
LEAST = 10  # windows, below which errors of the last value, or of the last season, count, too
GROSS = 8.0  # an error of so many median absolute errors is one of an event, such as a level shift
LARGEST = 5.0  # median absolute errors; larger errors count as this where errors are few
_SHARE = 0.5  # of the mean change of a single series: smaller changes in a window count as this
PRIOR = 5.0  # series whose errors would tell as much of a scale's powers as is assumed


class Intervals(StoredIntervals):
    """Quantiles of forecast errors.

    The interval of level p at a step ahead reaches from the (1 − p)/2 to the (1 + p)/2 quantile of what was measured
    minus what was forecast, with the correction of conformal prediction for finitely many errors. Errors that are too
    few for such a quantile give the interval of Student's t distribution. Where there are several series, errors are
    relative to the changes from row to row in the window (`spread`).
    """

    @classmethod
    def of(cls, split: Split, levels: Sequence[float], model: WindowedForecast | None = None) -> Intervals:
        """Without quantiles yet; changes are measured in the window that the model keeps, by default in a look-back."""
        settings = split.settings
        several = _several(split)
        floor = split.smallest_change if several else _SHARE * _mean_change(split)
        relative = several or (settings.window > 0 and is_several_or_short(split.data))
        rows = settings.lookback if model is None else model.window_size
        nonnegative = () if model is None else model.nonnegative
        return cls(tuple(sorted(levels)), relative, rows, floor, nonnegative=nonnegative)

    def scaled(self, split: Split, method: Method) -> Intervals:
        """With a scale by the changes in a window. With several series it is regressed on the errors of a method on the
        validation rows, in which each series counts alike."""
        settings = split.settings
        if not settings.window or not self.relative:
            return self
        scaling = Scaling.of(settings.season, settings.horizon)
        origins = split.origins("valid", HELD // (split.horizon * len(split.scale)))
        if not _several(split) or not len(origins):
            return replace(self, scaling=scaling)
        processes = split.data.processes
        shares = _shares(split, origins)[processes.share(len(origins))]
        origins = origins[processes.share(len(origins))]
        inputs, targets, moving = [], [], []
        with torch.no_grad():
            for examples in split.windows.blocks(origins, split.length, split.horizon):
                windows = examples.windows[..., -self.lookback :].double()
                logarithms = scaling.logarithms(
                    windows, examples.rows.clamp(max=windows.shape[-1]), self.floor.double()
                )
                error = (examples.future - method(examples)).double().abs().mean(-1) + self.floor
                inputs.append((logarithms[..., 1:] - logarithms[..., :1]).flatten(0, 1))
                targets.append(((error + 1e-300).log() - logarithms[..., 0]).flatten())
                moving.append(moves(windows).flatten())
        x, y = torch.cat(inputs), torch.cat(targets)
        x = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
        share = shares.repeat_interleave(len(split.scale))
        share = (share * torch.cat(moving))[:, None]
        penalty = PRIOR * torch.diag(torch.tensor([1.0, 1.0, 1.0, 1e-9], dtype=torch.float64))
        gram, cross = processes.total((share * x).mT @ x), processes.total((share * x).mT @ y)
        *powers, factor = torch.linalg.solve(gram + penalty, cross).tolist()
        return replace(self, scaling=replace(scaling, powers=(1 - sum(powers), *powers, factor)))

    def fitted(self, errors: Tensor, share: Tensor | None = None) -> Intervals:
        """With the quantiles of these errors.

        Args:
            errors: (windows, channels, horizon), NaN where nothing was measured.
            share: how much each window counts, (windows,); by default alike.
        """
        count = errors.isfinite().sum(0)
        few = tuple(count.amin(0).tolist())
        if not self.levels:
            return replace(self, errors=few)
        weight = torch.ones(len(errors)) if share is None else share
        weight = torch.where(errors.isfinite(), weight.double()[:, None, None], 0.0)
        total = weight.sum(0)
        # So many errors that count alike tell as much.
        alike = total.square() / weight.square().sum(0).clamp(min=1e-300)
        deviation = _deviation(errors)
        low, high = [torch.zeros_like(deviation)], [torch.zeros_like(deviation)]
        for level in self.levels:
            # The ⌈(n + 1) q⌉-th smallest of n errors that count alike, and as far from the largest.
            reached = total * (1 + 1 / count.double().clamp(min=1)) * (1 + level) / 2
            sure = alike > needed(level) - 0.5
            width = deviation * student((1 + level) / 2, alike.round()).to(deviation)
            above = torch.where(sure, _quantile(errors, weight, reached), width)
            below = torch.where(sure, -_quantile(-errors, weight, reached), -width)
            # Where all errors have one sign, the interval still holds the forecast; a wider one holds a narrower one.
            high.append(above.maximum(high[-1]))
            low.append(below.minimum(low[-1]))
        return replace(self, low=torch.stack(low[1:]), high=torch.stack(high[1:]), errors=few)


def _quantile(errors: Tensor, weight: Tensor, reached: Tensor) -> Tensor:
    """The smallest of the errors (windows, channels, horizon) up to which their weights add up to `reached` (channels,
    horizon), or else the largest."""
    ordered, places = errors.nan_to_num(torch.inf).sort(0)
    sums = weight.gather(0, places).cumsum(0)
    place = (sums < reached * (1 - 1e-9)).sum(0)
    return ordered.gather(0, place.minimum(errors.isfinite().sum(0) - 1).clamp(min=0)[None])[0]


def _several(split: Split) -> bool:
    return len({piece.name for piece in split.data.pieces}) > 1


def _shares(split: Split, origins: Tensor) -> Tensor:
    """How much the windows of these origins count, so that each series counts alike: (windows,)."""
    names: dict[str, int] = {}
    series = torch.tensor([names.setdefault(piece.name, len(names)) for piece in split.data.pieces])
    places = series[torch.searchsorted(split.windows.offsets, origins, right=True) - 1]
    return (1 / torch.bincount(places).double())[places]


def _mean_change(split: Split) -> Tensor:
    """The mean absolute change (channels,) from row to row before the validation rows."""
    past = [
        np.abs(np.diff(piece.values[:end], axis=0))
        for piece, (end, _) in zip(split.data.pieces, split.cuts, strict=True)
    ]
    changes = np.concatenate(past)
    mean = changes.mean(axis=0) if len(changes) else np.zeros(len(split.scale))
    return torch.tensor(mean, dtype=torch.float32).maximum(split.smallest_change)


def moves(windows: Tensor) -> Tensor:
    """Whether any of the values of windows (..., channels, length) differ, (..., channels)."""
    return (windows != windows[..., :1]).any(-1)


def _deviation(errors: Tensor) -> Tensor:
    """The standard deviation (channels, horizon) around 0 of errors and of one more; the largest errors count as
    `LARGEST` median ones. Infinite without errors."""
    count = errors.isfinite().sum(0)
    absolute = errors.abs()
    median = absolute.nanmedian(0).values
    most = torch.where(median > 0, LARGEST * median, torch.inf)
    squares = absolute.minimum(most).square().nansum(0) / count
    return torch.where(count > 0, (squares * (1 + 1 / count)).sqrt(), torch.inf)


def student(probability: float, count: Tensor) -> Tensor:
    """Quantiles above the median of Student's t distribution with so many degrees of freedom: exact for 1 and 2, else
    by Fisher's expansion, which is off by less than 1 % up to 99.5 %."""
    n = count.double().clamp(min=1)
    z = float(torch.special.ndtri(torch.tensor(probability, dtype=torch.float64)))
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    expanded = z + sum(term / n ** (power + 1) for power, term in enumerate(terms))
    odds = torch.tensor(2 * probability - 1, dtype=torch.float64)
    two = odds * (2 / (1 - odds.square())).sqrt()
    return torch.where(n == 1, (torch.pi * odds / 2).tan(), torch.where(n == 2, two, expanded))


Forecasts = Sequence[tuple[Callable[[Examples], Tensor], Tensor]]  # methods, each with origins that it has not seen


def errors_of(
    intervals: Intervals,
    forecasts: Forecasts,
    windows: Windows,
    length: int,
    horizon: int,
    processes: Processes = ALONE,
) -> Tensor:
    """Errors (windows, channels, horizon) of forecasts in units of the spread, NaN where a gap was filled. If they are
    relative to the changes in a window, they are NaN after a window without any, unless there are no others."""
    parts: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for method, origins in forecasts:
            measured = []
            for examples in windows.blocks(origins[processes.share(len(origins))], length, horizon):
                error = (examples.future - method(examples)) / intervals.spread(examples.windows, examples.rows)
                error = error if examples.measured is None else torch.where(examples.measured, error, torch.nan)
                measured.append((error, moves(examples.windows[..., -intervals.lookback :])[..., None]))
            parts += [pair for share in processes.gathered(measured) for pair in share]
    errors, moved = (torch.cat(rows) for rows in zip(*parts, strict=True))
    counted = moved | (not intervals.relative) | ~(moved & errors.isfinite()).any(0)
    return torch.where(counted, errors, torch.nan)


class Unseen(NamedTuple):
    """Errors on rows that a model has not seen."""

    errors: Tensor  # (windows, channels, horizon), in units of the spread, NaN where a gap was filled
    share: Tensor  # (windows,): how much each counts
    origins: Tensor  # (windows,), in the rows of the split


def unseen_errors(
    split: Split,
    method: Callable[[Examples], Tensor],
    folds: Callable[[], Forecasts] | None = None,
    unit: Intervals | None = None,
) -> Unseen:
    """Errors of a model on the validation rows. Where these are few, errors of fits to fewer rows on the rows that
    follow count, too; where even these are few, so do errors of the last value, or of the last season, on the training
    rows, where those of the model would be too small. Each series counts alike, and of a single one an event counts
    once.

    Args:
        split: the series.
        method: the model's forecasts.
        folds: models fitted to fewer rows, each with the origins that follow these rows.
        unit: says what errors are relative to.
    """
    limit = max(200, HELD // (split.horizon * len(split.scale)))
    forecasts = [(method, split.origins("valid", limit))]
    if folds is not None and len(split.scored("valid")) < FEW * split.horizon:
        forecasts += folds()
    if sum(len(origins) for _, origins in forecasts) < LEAST:
        naive = seasonal_value(split.horizon, split.settings.season or 1)
        forecasts.append((naive, split.origins("train", limit)))
    unit = unit or Intervals.of(split, ())
    errors = errors_of(unit, forecasts, split.windows, split.length, split.horizon, split.data.processes)
    origins = torch.cat([origins for _, origins in forecasts])
    return Unseen(errors if _several(split) else without_repeats(errors), _shares(split, origins), origins)


def without_repeats(errors: Tensor) -> Tensor:
    """Errors (windows, channels, horizon) of which an event counts once: a level shift is in the horizons of many
    windows, one after the other. Repeated errors are NaN."""
    gross = errors.abs() > GROSS * errors.abs().nanmedian(0).values
    again = gross[1:] & gross[:-1] & (errors[1:].sign() == errors[:-1].sign())
    return torch.cat([errors[:1], torch.where(again, torch.nan, errors[1:])])
