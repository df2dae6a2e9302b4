"""The picture of `plmu predict --plot`: the last rows of series, their forecasts and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plmu.runs.intervals import bound_names
from plmu.timeseries.forecast_tables import stamps_of_steps, time_column
from plmu.timeseries.reporting import literal, pyplot, write_plot
from plmu.timeseries.series import Piece, SeriesData
from plmu.timeseries.split import Settings

PANELS = 6  # largest number
_SHADES = (0.32, 0.16)  # of the narrowest interval, and of the others


def plot_ahead(path: Path, data: SeriesData, settings: Settings, frame: Any, levels: Sequence[float]) -> list[str]:
    """Draw the steps after the last rows, a panel for each column of each series.

    Args:
        path: of the image.
        data: the series.
        settings: of the model, whose horizon is that of the forecasts.
        frame: the forecasts, as `Forecaster.predict` returns them.
        levels: of their intervals, in percent.

    Returns:
        Notes: what is left out, if anything is.
    """
    series: dict[str, list[Piece]] = {}
    for piece in data.pieces:
        series.setdefault(piece.name, []).append(piece)
    panels = [(place, name, column) for place, name in enumerate(series) for column in settings.values]
    shown, count = panels[:PANELS], len(panels)
    what = "series" if len(settings.values) == 1 else "columns" if len(series) == 1 else "columns of series"
    drawing = pyplot()
    figure, axes = drawing.subplots(len(shown), 1, figsize=(9, 1.2 + 2 * len(shown)), squeeze=False)
    for (place, name, column), axis in zip(shown, axes[:, 0], strict=True):
        rows = slice(place * settings.horizon, (place + 1) * settings.horizon)
        _draw(axis, series[name], column, settings, frame[rows], levels)
        axis.set_ylabel(literal(column))
        if len(series) > 1:
            axis.set_title(literal(name), fontsize="medium", loc="right")
    axes[-1, 0].set_xlabel(literal(time_column(settings)))
    axes[0, 0].legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize="small", ncols=5, frameon=False)
    rest = f", {len(shown)} of {count} {what} ({count - len(shown)} left out)" if count > len(shown) else ""
    figure.suptitle(f"Forecasts of {settings.horizon} step{'s' * (settings.horizon > 1)}{rest}")
    write_plot(figure, path)
    return [f"{path.name} shows {len(shown)} of {count} {what}; {count - len(shown)} are left out"] if rest else []


def _draw(
    axis: Any, pieces: Sequence[Piece], column: str, settings: Settings, frame: Any, levels: Sequence[float]
) -> None:
    """One column of a series, NaN in its gaps, and the forecast, which is in a frame."""
    channel, last = settings.values.index(column), pieces[-1]
    before = min(settings.lookback, max(3 * settings.horizon, 2 * settings.season, 24))
    steps = np.arange(last.last + 1 - before, last.last + 1)
    steps = steps[steps >= pieces[0].start]
    measured = np.full(len(steps), np.nan)
    for piece in pieces:
        rows = steps - piece.start
        inside = (rows >= 0) & (rows < len(piece))
        values = np.where(piece.measured[:, channel], piece.values[:, channel], np.nan)
        measured[inside] = values[rows[inside]]
    axis.plot(stamps_of_steps(settings, [(last, steps)]), measured, ".-", color="0.25", linewidth=1, markersize=3,
              label="measured")  # fmt: skip
    ahead = stamps_of_steps(settings, [(last, last.last + np.arange(1, 1 + settings.horizon))])
    for place, level in reversed([*enumerate(levels)]):
        low, high = (frame[name].to_numpy() for name in bound_names(column, level))
        shade = _SHADES[min(place, 1)]
        axis.fill_between(ahead, low, high, color="tab:blue", alpha=shade, linewidth=0, label=f"{level:g} % interval")
    style = "o-" if settings.horizon == 1 else "-"
    axis.plot(ahead, frame[column].to_numpy(), style, color="tab:blue", label="forecast")
    axis.grid(alpha=0.3)
    if ahead.dtype.kind == "M":
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator()
        axis.xaxis.set_major_locator(locator)
        axis.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    elif bool((ahead == np.round(ahead)).all()):
        axis.xaxis.get_major_locator().set_params(integer=True)  # rows and years have no halves
