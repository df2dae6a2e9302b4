"""Forecasts of the steps after the last rows of series, with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from plmu.nn.covariates import CovariateForecast
from plmu.nn.forecast import LookbackForecast
from plmu.nn.pooled import PooledForecast
from plmu.runs.intervals import Intervals, bound_names
from plmu.runtime.stream import Stream
from plmu.timeseries.effects import padded
from plmu.timeseries.pooled_windows import read
from plmu.timeseries.season import aligned
from plmu.timeseries.series import Numbers, Piece
from plmu.timeseries.windows import BLOCK


@dataclass(frozen=True)
class Forecast:
    """A forecast of an array with prediction intervals.

    Attributes:
        mean: the point forecast, (horizon,) or (horizon, channels).
        lower: the lower ends of the intervals, (levels, horizon) or (levels, horizon, channels).
        upper: their upper ends, of the same shape.
        levels: of the intervals, in percent.
    """

    mean: Numbers
    lower: Numbers
    upper: Numbers
    levels: tuple[float, ...]


class Ahead(NamedTuple):
    """Forecasts of series."""

    mean: Tensor  # (series, channels, horizon), float64
    spread: Tensor  # (series, channels, 1): the unit of the intervals

    def bounds(self, intervals: Intervals) -> tuple[Tensor, Tensor]:
        """Lower and upper ends of the intervals, (levels, series, channels, horizon)."""
        return intervals.bounds(self.mean, self.spread)

    def lines(self, intervals: Intervals | None, quantiles: Sequence[float] | None = None) -> dict[str, Tensor]:
        """The point forecast, and ends of intervals or instead quantiles, (series, channels, horizon), by what follows
        the column's name in theirs: "", "-lo-80", "-hi-80", "-q-10" …"""
        lines = {"": self.mean}
        if intervals is None:
            return lines
        lower, upper = self.bounds(intervals)
        if quantiles is None:
            for level, low, high in zip(intervals.percent, lower, upper, strict=True):
                lines |= dict(zip(bound_names("", level), (low, high), strict=True))
            return lines
        for quantile in quantiles:
            level = level_of(quantile)
            ends = upper if quantile > 0.5 else lower
            lines[f"-q-{100 * quantile:.10g}"] = ends[intervals.levels.index(level)] if level else self.mean
        return lines

    def of_series(self, place: int) -> Ahead:
        """That of one series."""
        return Ahead(self.mean[place : place + 1], self.spread[place : place + 1])

    def until(self, horizon: int) -> Ahead:
        """The first steps ahead."""
        return Ahead(self.mean[..., :horizon], self.spread)


def level_of(quantile: float) -> float:
    """The level of the interval that ends at a quantile of errors; 0 for the median, which is the point forecast."""
    return round(abs(2 * quantile - 1), 12)


ForecastModel = LookbackForecast | PooledForecast


def forecast(model: ForecastModel, unit: Intervals, pieces: Sequence[Piece], placed: bool) -> Ahead:
    """The `horizon` steps after the last row of each series.

    Args:
        model: in the units of the series.
        unit: says what intervals are relative to.
        pieces: the series.
        placed: whether the steps of their first rows are known; else the season is compared with their last rows.
    """
    forecasts, spreads = [], []
    size = max(1, BLOCK // (model.lookback * model.channels))
    with torch.no_grad():
        for first in range(0, len(pieces), size):
            block = pieces[first : first + size]
            windows = torch.stack([_last_window(piece, model.lookback) for piece in block], dim=1).movedim(0, 1)
            steps = torch.tensor([piece.start + len(piece) - 1 for piece in block])
            rest, effect = windows, None
            rows = torch.tensor([min(len(piece), model.lookback) for piece in block])
            spreads.append(unit.spread(windows, rows).expand(len(block), model.channels, 1))
            if isinstance(model, PooledForecast):
                forecasts.append(model.bounded(read(model, windows, rows)))
                continue
            if isinstance(model, CovariateForecast):
                effect = model.effect(torch.stack([_recent_covariates(model, piece) for piece in block]))
                rest = model.rest(rest, effect[..., : model.lookback])
            if model.season and not placed:
                pairs = zip(rest, rows.tolist(), strict=True)
                steps = torch.tensor([_last_phase(model, window[:, -count:]) for window, count in pairs])
            phase = steps % max(model.season, 1)
            if isinstance(model, CovariateForecast) and effect is not None:
                forecasts.append(model.bounded(model.forecast(windows, phase, effect)))
            else:
                forecasts.append(model.bounded(model.read(windows, phase)))
    return Ahead(torch.cat(forecasts), torch.cat(spreads))


def found_start(model: ForecastModel, piece: Piece) -> int:
    """The number of the first row of a series, by comparing its last rows with the season."""
    if isinstance(model, PooledForecast) or not model.timed:
        return 0
    rows = min(len(piece), model.lookback)
    window = torch.tensor(piece.values[-rows:].T, dtype=torch.float64)
    if isinstance(model, CovariateForecast):
        with torch.no_grad():
            effect = model.effect(_recent_covariates(model, piece))
            window = model.rest(window, effect[:, model.lookback - rows : model.lookback])
    return _last_phase(model, window) - len(piece) + 1


def at_phase(model: ForecastModel, start: int) -> ForecastModel:
    """The same model for a stream whose first sample has this number."""
    if not model.timed:
        return model
    return with_options(model, phase=start % max(model.season, 1))


def with_options(model: ForecastModel, **options: Any) -> ForecastModel:
    """The same model with other options of its class."""
    other = type(model)(**{**model.config, **options}, dtype=next(model.parameters()).dtype)
    other.load_state_dict(model.state_dict())
    for copied, parameter in zip(other.parameters(), model.parameters(), strict=True):
        copied.requires_grad_(parameter.requires_grad)
    return other.eval()


def stream_after(model: ForecastModel, piece: Piece, streamed: Callable[[ForecastModel], Stream] = Stream) -> Stream:
    """A stream of the model that continues a series; `streamed` makes it."""
    lags = model.lags - 1 if isinstance(model, CovariateForecast) else 0
    first = max(0, len(piece) - model.lookback - lags)
    stream = streamed(at_phase(model, piece.start + first))
    covariates = _known_covariates(piece)
    for row in range(first, len(piece)):
        sample = piece.values[row]
        if covariates is not None:  # the state does not depend on covariates ahead, which may be missing
            ahead = np.minimum(np.arange(row, row + model.horizon + 1), len(covariates) - 1)
            sample = np.concatenate([sample, covariates[ahead].ravel()])
        stream.push(sample)
    return stream


def _known_covariates(piece: Piece) -> Numbers | None:
    """The covariates of a series, and as far ahead as all of them are known."""
    if piece.covariates is None:
        return None
    missing = np.isnan(piece.covariates[len(piece) :].sum(axis=1))
    return piece.covariates[: len(piece) + (int(missing.argmax()) if missing.any() else len(missing))]


def _last_window(piece: Piece, lookback: int) -> Tensor:
    """(channels, lookback): the last rows, in float64."""
    rows = torch.from_numpy(np.ascontiguousarray(piece.values[-lookback:].T, dtype=np.float64))
    return padded(rows, lookback - rows.shape[1])


def _recent_covariates(model: CovariateForecast, piece: Piece) -> Tensor:
    """(covariates, lags - 1 + lookback + horizon): before and after the last row of a piece."""
    assert piece.covariates is not None
    rows = np.arange(1 - model.lags - model.lookback, model.horizon) + len(piece)
    last = len(piece.covariates) - 1
    recent = piece.covariates[np.clip(rows, 0, last)] - piece.covariates[len(piece) - 1]
    return torch.tensor(recent.T, dtype=torch.float64)


def _last_phase(model: LookbackForecast, window: Tensor) -> int:
    """Where in the season the last row of a window (channels, time) is."""
    scale = model.season_pattern.square().mean(0).sqrt().clamp(min=1e-30)
    spread = window.std(1, correction=0).clamp(min=1e-30)  # series have amplitudes of their own
    changes = (window - window[:, -1:]).mT / spread
    return aligned(changes.float(), model.season_pattern / scale) + window.shape[1] - 1
