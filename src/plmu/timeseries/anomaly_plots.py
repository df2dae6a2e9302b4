"""The picture of anomalies: series with their expected intervals, alarms, and the scores below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plmu.timeseries.anomaly_scores import Scored
from plmu.timeseries.anomaly_series import Labels, Settings
from plmu.timeseries.forecast_tables import stamps_of_steps, time_column
from plmu.timeseries.reporting import literal, pyplot, write_plot
from plmu.timeseries.series import Numbers

PANELS = 4  # largest number of columns
_POINTS = 4000  # of a line, above which only the extremes of pieces are drawn
_SMALLEST = 1e-6  # of 1 − score that is drawn
_RED, _ORANGE = "tab:red", "tab:orange"


def plot_anomalies(path: Path, settings: Settings, scored: Sequence[Scored], labels: Labels | None = None) -> list[str]:
    """Draw the series with the most alarms, a panel for each column, and the scores below.

    Args:
        path: of the image.
        settings: have the names of columns.
        scored: the series.
        labels: the steps that are labelled as anomalies, if they are known.

    Returns:
        Notes: what is left out, if anything is.
    """
    shown = max(scored, key=lambda part: int(part.alarm.sum()))
    names = settings.values[:PANELS]
    series, pieces = shown.series, shown.series.pieces
    stamps = stamps_of_steps(settings, [(piece, piece.start + np.arange(len(piece))) for piece in pieces])
    breaks = np.cumsum([len(piece) for piece in pieces])[:-1]
    drawing = pyplot()
    figure, axes = drawing.subplots(len(names) + 1, 1, figsize=(9, 2.6 + 2 * len(names)), sharex=True, squeeze=False,
                                    height_ratios=[*(2 for _ in names), 1])  # fmt: skip
    alarm = shown.alarm
    for channel, (axis, name) in enumerate(zip(axes[:, 0], names, strict=False)):
        values, parts = shown.values[:, channel], shown.parts[:, channel]
        whose = alarm & (shown.channel == channel)
        _lines(axis, stamps, values, parts, breaks)
        axis.plot(stamps[whose], values[whose], "o", color=_RED, markersize=4, label="alarm", zorder=3)
        axis.set_ylabel(literal(name))
        _limit(axis, values)
    score = axes[-1, 0]
    unusual = np.clip(1 - shown.score, _SMALLEST, 1.0)
    for rows in np.split(_drawn(unusual), np.searchsorted(_drawn(unusual), breaks)):
        score.plot(stamps[rows], 1 / unusual[rows], color="0.35", linewidth=0.8)
    score.axhline(1 / shown.threshold, color=_RED, linewidth=0.8, linestyle="--")
    score.set_yscale("log")
    score.set_ylabel("1 / (1 − score)")
    truth = np.array([labels is not None and (series.name, step) in labels for step in series.steps.tolist()])
    for axis in axes[:, 0]:
        for stretch in shown.stretches():
            axis.axvspan(*_around(stamps, stretch.first, stretch.last), color=_RED, alpha=0.12, linewidth=0)
        for begin, end in _ranges(truth):
            axis.axvspan(*_around(stamps, begin, end), color=_ORANGE, alpha=0.25, linewidth=0)
        axis.grid(alpha=0.3)
    score.set_xlabel(literal(time_column(settings)))
    if truth.any():
        axes[0, 0].fill_between([], [], color=_ORANGE, alpha=0.25, label="labelled")
    axes[0, 0].legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize="small", ncols=5, frameon=False)
    if series.name and len(scored) > 1:
        axes[0, 0].set_title(literal(series.name), fontsize="medium", loc="right")
    if stamps.dtype.kind == "M":
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator()
        score.xaxis.set_major_locator(locator)
        score.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    write_plot(figure, path)
    notes = []
    if len(scored) > 1:
        notes.append(f"{path.name} shows the series with the most alarms, {series.name!r}, of {len(scored):,}")
    if len(settings.values) > PANELS:
        notes.append(f"{path.name} shows {PANELS} of {len(settings.values)} columns")
    return notes


def _lines(axis: Any, stamps: Any, values: Numbers, parts: Numbers, breaks: Any) -> None:
    """What was measured, and the expected interval, each piece on its own."""
    for number, rows in enumerate(np.split(np.arange(len(values)), breaks)):
        chosen = rows[_drawn(values[rows])]
        inner = rows[:: max(1, len(rows) // _POINTS)]
        lower, upper = parts[inner, 2], parts[inner, 3]
        axis.fill_between(stamps[inner], lower, upper, color="tab:blue", alpha=0.25, linewidth=0,
                          label=None if number else "expected")  # fmt: skip
        axis.plot(stamps[chosen], values[chosen], color="0.25", linewidth=0.9, label=None if number else "measured")


def _drawn(values: Numbers) -> Any:
    """The rows of a line that are drawn: of many the extremes of pieces of equal length."""
    count = len(values)
    if count <= _POINTS:
        return np.arange(count)
    size = -(-2 * count // _POINTS)
    padded = np.full(-(-count // size) * size, np.nan)
    padded[:count] = values
    pieces = padded.reshape(-1, size)
    extremes = [np.where(np.isnan(pieces), worst, pieces) for worst in (np.inf, -np.inf)]
    places = np.stack([extremes[0].argmin(axis=1), extremes[1].argmax(axis=1)], axis=1)
    rows = np.unique((places + size * np.arange(len(pieces))[:, None]).ravel())
    return rows[rows < count]


def _limit(axis: Any, values: Numbers) -> None:
    """Limits that show what was measured; intervals may be much wider before the model has learned."""
    measured = values[~np.isnan(values)]
    if len(measured):
        low, high = measured.min(), measured.max()
        margin = 0.08 * (high - low) or 1.0
        axis.set_ylim(low - margin, high + margin)


def _around(stamps: Any, first: int, last: int) -> tuple[Any, Any]:
    """The times from half a step before a row to half a step after another, at least a visible width."""
    whole = stamps[-1] - stamps[0]
    step = (stamps[1] - stamps[0]) if len(stamps) > 1 else whole
    margin = max(step / 2, whole / 600)
    return stamps[first] - margin, stamps[last] + margin


def _ranges(rows: Any) -> list[tuple[int, int]]:
    """The first and the last row of each stretch of rows."""
    bounds = np.flatnonzero(np.diff(np.concatenate([[False], rows, [False]]).astype(np.int8)))
    return [(int(begin), int(end) - 1) for begin, end in zip(bounds[::2], bounds[1::2], strict=True)]
