"""Forecasts as arrays and data frames: in the form of what was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from plmu.clock import Clock, Steps
from plmu.runs.intervals import Intervals
from plmu.timeseries.frames import Form
from plmu.timeseries.long_frames import LongFrame, as_times
from plmu.timeseries.predictions import Ahead, Forecast
from plmu.timeseries.series import Piece
from plmu.timeseries.split import Settings

Rows = Sequence[tuple[Piece, Steps]]  # steps of series


class Named(Protocol):
    """The names of columns, and the clock of their times."""

    @property
    def time(self) -> str | None: ...
    @property
    def id(self) -> str | None: ...
    @property
    def clock(self) -> Clock: ...


def formed(
    settings: Settings,
    piece: Piece,
    form: Form,
    ahead: Ahead,
    intervals: Intervals | None,
    quantiles: Sequence[float] | None = None,
) -> Any:
    """The forecast of one array or wide frame."""
    mean = ahead.mean[0].mT.numpy()  # (horizon, channels)
    if intervals is None:
        return form.like(mean)
    if form.frame is None:
        cut = (..., 0) if form.flat else ...
        if quantiles is not None:
            lines = ahead.lines(intervals, quantiles).values()
            return np.stack([line[0].mT.numpy() for line in [*lines][1:]])[cut]
        lower, upper = (bounds[:, 0].mT.numpy() for bounds in ahead.bounds(intervals))
        return Forecast(mean[cut], lower[cut], upper[cut], intervals.percent)
    columns = {
        f"{name}{suffix}": line[0, channel].numpy()
        for channel, name in enumerate(form.names or ())
        for suffix, line in ahead.lines(intervals, quantiles).items()
    }
    if form.times is None:
        return form.table(columns)
    stamps = stamps_of_steps(settings, [(piece, _ahead(settings, piece))])
    return form.table(columns, _in_utc(settings, stamps) if form.zoned else stamps)


def forecast_table(
    settings: Settings, pieces: Sequence[Piece], lines: Mapping[str, Tensor], frame: LongFrame | None
) -> Any:
    """A frame with the forecasts of series, one after the other: of polars for files, or like `frame`.

    Args:
        settings: of the model.
        pieces: the series.
        lines: forecasts and bounds (series, channels, horizon), by what follows the column's name in theirs.
        frame: that the series are from.
    """
    rows = [(piece, _ahead(settings, piece)) for piece in pieces]
    columns = {
        f"{name}{suffix}": line[:, channel].flatten().numpy()
        for channel, name in enumerate(settings.values)
        for suffix, line in lines.items()
    }
    return long_table(settings, {time_column(settings): rows}, columns, frame)


def long_table(
    settings: Named,
    times: Mapping[str, Rows],
    columns: Mapping[str, NDArray[Any]],
    frame: LongFrame | None = None,
    form: Form | None = None,
) -> Any:
    """A frame in long format.

    Args:
        settings: have the names of columns.
        times: columns of times by name, the first of which has the series of all rows.
        columns: the other columns.
        frame: a frame in long format that the series are from, to which its types are those of this one.
        form: or that of a wide frame or array that they are from.
    """
    first = next(iter(times.values()))
    names = [piece.name for piece, steps in first for _ in range(len(steps))]
    result: dict[str, Any] = {}
    if frame is not None:
        result |= frame.ids(settings.id, names)
    elif settings.id is not None or len({(piece.name, piece.source) for piece, _ in first}) > 1:
        result[settings.id or "series"] = names
    for name, rows in times.items():
        stamps = stamps_of_steps(settings, rows)
        if frame is not None and settings.time is not None:
            result[name] = frame.times(settings.time, stamps, settings.clock.zone, _text(settings, rows, stamps))
        elif form is not None and form.frame is not None and form.times is not None and stamps.dtype.kind == "M":
            result[name] = as_times(form.frame, form.times.dtype, _in_utc(settings, stamps) if form.zoned else stamps)
        else:
            result[name] = stamps
    library = "polars" if frame is None else frame.library
    if form is not None and form.frame is not None:
        library = form.frame
    return import_module(library).DataFrame({**result, **columns})


def time_column(settings: Named) -> str:
    """The name of the column of times in forecasts."""
    return "row" if settings.clock.kind == "rows" or settings.time is None else settings.time


def stamps_of_steps(settings: Named, rows: Rows) -> Any:
    """The times of steps: datetime64[us], numbers, or rows counted from 1."""
    clock = settings.clock
    if clock.kind == "rows":
        return np.concatenate([steps + 1 for _, steps in rows])
    if clock.kind == "numbers":
        return np.concatenate([clock.first + clock.step * (steps + piece.offset) for piece, steps in rows])
    return np.concatenate([clock.dates(steps, piece.offset) for piece, steps in rows])


def _ahead(settings: Settings, piece: Piece) -> Steps:
    """The steps after the last row of a series."""
    return piece.last + np.arange(1, settings.horizon + 1)


def _in_utc(settings: Named, stamps: Any) -> Any:
    """Dates in the time zone of the clock, in UTC."""
    zone = settings.clock.zone
    return stamps - np.timedelta64(zone, "m") if zone and stamps.dtype.kind == "M" else stamps


def _text(settings: Named, rows: Rows, stamps: NDArray[Any]) -> list[str]:
    """Dates as text."""
    if stamps.dtype.kind != "M":
        return []
    return [time for piece, steps in rows for time in settings.clock.times(steps, piece.offset)]
