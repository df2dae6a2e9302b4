"""Forecasts of the steps after the last rows of series, with their intervals, in the form of what was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from plmu.nn.covariates import CovariateForecast
from plmu.nn.forecast import LookbackForecast
from plmu.nn.pooled import PooledForecast
from plmu.runs.intervals import bound_names
from plmu.runtime.stream import Stream
from plmu.timeseries.effects import padded
from plmu.timeseries.frames import Form
from plmu.timeseries.scores import Intervals
from plmu.timeseries.season import aligned
from plmu.timeseries.series import Numbers, Piece
from plmu.timeseries.split import Settings
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
                forecasts.append(model.read(windows, rows[:, None]))
                continue
            if isinstance(model, CovariateForecast):
                effect = model.effect(torch.stack([_recent_covariates(model, piece) for piece in block]))
                rest = model.rest(rest, effect[..., : model.lookback])
            if model.season and not placed:
                pairs = zip(rest, rows.tolist(), strict=True)
                steps = torch.tensor([_last_phase(model, window[:, -count:]) for window, count in pairs])
            phase = steps % max(model.season, 1)
            if isinstance(model, CovariateForecast) and effect is not None:
                forecasts.append(model.forecast(windows, phase, effect))
            else:
                forecasts.append(model.read(windows, phase))
    return Ahead(torch.cat(forecasts), torch.cat(spreads))


def formed(settings: Settings, piece: Piece, form: Form, ahead: Ahead, place: int, intervals: Intervals | None) -> Any:
    """The forecast of one array or frame, the `place`-th of them."""
    mean = ahead.mean[place].mT.numpy()  # (horizon, channels)
    if intervals is None:
        return form.like(mean)
    lower, upper = (bounds[:, place].mT.numpy() for bounds in ahead.bounds(intervals))
    if form.frame is None:
        cut = (..., 0) if form.flat else ...
        return Forecast(mean[cut], lower[cut], upper[cut], intervals.percent)
    columns = _columns(form.names or (), mean.T, lower.swapaxes(1, 2), upper.swapaxes(1, 2), intervals.percent)
    if form.times is None:
        return form.table(columns)
    stamps, zone = _stamps(settings, piece), settings.clock.zone
    return form.table(columns, stamps - np.timedelta64(zone, "m") if zone and form.zoned else stamps)


def file_frame(settings: Settings, pieces: Sequence[Piece], ahead: Ahead, intervals: Intervals | None) -> Any:
    """A polars frame with the forecasts of the series of a file, one after the other."""
    import polars

    columns: dict[str, Any] = {}
    if settings.id is not None or len(pieces) > 1:
        columns[settings.id or "series"] = [piece.name for piece in pieces for _ in range(settings.horizon)]
    columns[time_column(settings)] = np.concatenate([_stamps(settings, piece) for piece in pieces])
    mean = ahead.mean.movedim(1, 0).flatten(1).numpy()
    levels: tuple[float, ...] = ()
    lower = upper = mean[None][:0]
    if intervals is not None:
        lower, upper = (bounds.movedim(2, 1).flatten(2).numpy() for bounds in ahead.bounds(intervals))
        levels = intervals.percent
    return polars.DataFrame({**columns, **_columns(settings.values, mean, lower, upper, levels)})


def time_column(settings: Settings) -> str:
    """The name of the column of times in forecasts."""
    return "row" if settings.clock.kind == "rows" or settings.time is None else settings.time


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
    other = type(model)(**{**model.config, "phase": start % max(model.season, 1)})
    other.load_state_dict(model.state_dict())
    return other.eval()


def stream_after(model: ForecastModel, piece: Piece) -> Stream:
    """A stream of the model that continues a series."""
    lags = model.lags - 1 if isinstance(model, CovariateForecast) else 0
    first = max(0, len(piece) - model.lookback - lags)
    stream = Stream(at_phase(model, piece.start + first))
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


def _stamps(settings: Settings, piece: Piece) -> Any:
    """The times of the steps ahead: datetime64[us], numbers, or rows counted from 1."""
    clock, steps = settings.clock, piece.last + np.arange(1, settings.horizon + 1)
    if clock.kind == "rows":
        return steps + 1
    if clock.kind == "numbers":
        return clock.first + clock.step * (steps + piece.offset)
    return clock.dates(steps, piece.offset)


def _columns(
    names: Sequence[str], mean: Numbers, lower: Numbers, upper: Numbers, levels: Sequence[float]
) -> dict[str, Any]:
    """Columns of means (columns, rows) and of bounds (levels, columns, rows)."""
    columns: dict[str, Any] = {}
    for place, name in enumerate(names):
        columns[name] = mean[place]
        for level, low, high in zip(levels, lower[:, place], upper[:, place], strict=True):
            columns |= dict(zip(bound_names(name, level), (low, high), strict=True))
    return columns
