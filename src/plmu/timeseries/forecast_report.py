"""What a run of forecast shows: a table beside the baselines, and plots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from plmu.runs.folder import write_json
from plmu.timeseries.plotting import literal, pyplot, shortened
from plmu.timeseries.scores import Intervals, model_method
from plmu.timeseries.text_table import text_table

if TYPE_CHECKING:
    from plmu.timeseries.forecast_task import ForecastTask

SHOWN = 4  # columns that are drawn
FORECASTS = 4  # that are drawn of each


def write(
    folder: Path, task: ForecastTask, network: nn.Module, intervals: Intervals, folds: list[dict[str, Any]]
) -> list[str]:
    """Write forecast.json, forecast.png and errors.png; return what to print."""
    _, _, _, settings = task.known
    own = {name: one.by_channel(task.scale) for name, one in task.errors.items()}
    content = {
        "windows": len(task.test[0]),
        "mse": {name: one.mse for name, one in task.errors.items()},
        "mae": {name: one.mae for name, one in task.errors.items()},
        "mae in own units": {name: dict(zip(settings.values, values, strict=True)) for name, values in own.items()},
        "mse by step ahead": {name: one.by_step() for name, one in task.errors.items()},
        "inside interval": dict(zip(map(str, intervals.levels), task.coverage, strict=True)),
        "backtest": folds,
    }
    write_json(folder / "forecast.json", content)
    plot_forecasts(folder / "forecast.png", task, network, intervals)
    plot_errors(folder / "errors.png", task)
    lines = [f"test: {len(task.test[0]):,} windows; mse and mae in units of each column's standard deviation"]
    lines += text_table(["", "mse", "mae", *(f"mae of {shortened(name)}" for name in settings.values[:SHOWN])], [
        [name, f"{one.mse:.4g}", f"{one.mae:.4g}", *(f"{value:.4g}" for value in own[name][:SHOWN])]
        for name, one in task.errors.items()
    ])  # fmt: skip
    for level, share in zip(intervals.levels, task.coverage, strict=True):
        lines.append(f"{100 * level:g} % intervals held {100 * share:.1f} % of the measured values")
    if folds:
        lines.append("rolling backtest:")
        lines += text_table(["rows", "windows", "mse", "last value"], [
            [f"{one['rows']:,}", f"{one['windows']:,}", f"{one['model_mse']:.4g}", f"{one['last_value_mse']:.4g}"]
            for one in folds
        ])  # fmt: skip
    return [*lines, f"wrote {folder / 'forecast.png'}, {folder / 'errors.png'}, {folder / 'forecast.json'}"]


def covariates_told(names: tuple[str, ...], found: dict[str, Any]) -> str:
    """Whether covariates helped to forecast the validation rows."""
    few = ", ".join(names[:SHOWN]) + ("…" if len(names) > SHOWN else "")
    with_them, without = found["mse with covariates"], found["mse without covariates"]
    errors = f"mse on the validation rows {with_them:.4g} with, {without:.4g} without"
    if not found["covariates"]:
        return f"covariates {few}: not used, since they did not clearly help ({errors})"
    return f"covariates {few}: used, with {found['lags']} step{'s' * (found['lags'] > 1)} of each ({errors})"


def season_told(found: dict[str, Any]) -> list[str]:
    """Which season was best on the validation rows, if any was tried."""
    if not found["tried"]:
        return []
    if found["calendar"]:
        return ["season: the course over the calendar is used"]
    return [
        f"season: {found['season']} steps are used" if found["season"] else "season: not used, since it did not help"
    ]


def plot_forecasts(path: Path, task: ForecastTask, network: nn.Module, intervals: Intervals) -> None:
    """A few forecasts of the test rows, with their intervals, on what was measured."""
    data, _, windows, settings = task.known
    horizon, before = settings.horizon, min(settings.lookback, 3 * settings.horizon)
    # The last forecasts that do not overlap.
    every = task.origins("test")
    piece = int(torch.searchsorted(windows.offsets, every[-1:], right=True)[0]) - 1
    offset = int(windows.offsets[piece])
    mine = every[every >= offset].tolist()
    origins = torch.tensor(mine[::-1][: horizon * FORECASTS : horizon][::-1])
    start = max(offset, int(origins[0]) - before + 1)
    rows = np.arange(start, int(origins[-1]) + horizon + 1)
    clock = data.clock
    steps = rows - offset + int(windows.starts[piece])
    axis_values = _axis(clock, steps)
    examples = windows.take(origins, task.length, horizon)
    with torch.no_grad():
        ahead = model_method(network)(examples)
    spread = intervals.spread(examples.windows).expand(len(origins), len(task.scale), 1)
    names = settings.values[:SHOWN]
    drawing = pyplot()
    figure, axes = drawing.subplots(len(names), 1, figsize=(9, 1.2 + 2.4 * len(names)), sharex=True, squeeze=False)
    for channel, (axis, name) in enumerate(zip(axes[:, 0], names, strict=True)):
        level = float(windows.level[piece, channel])
        axis.plot(
            axis_values, windows.values[channel, rows].double() + level, color="0.25", linewidth=1, label="measured"
        )
        for number, origin in enumerate(origins.tolist()):
            at = axis_values[origin + 1 - start : origin + 1 - start + horizon]
            for place in reversed(range(len(intervals.levels))):
                low = ahead[number, channel].double() + spread[number, channel] * intervals.low[place, channel]
                high = ahead[number, channel].double() + spread[number, channel] * intervals.high[place, channel]
                label = f"{100 * intervals.levels[place]:g} % interval" if not number else None
                shade = 0.32 if place == 0 else 0.16
                axis.fill_between(
                    at, low + level, high + level, color="tab:blue", alpha=shade, linewidth=0, label=label
                )
            style = "o-" if horizon == 1 else "-"
            axis.plot(
                at,
                ahead[number, channel].double() + level,
                style,
                color="tab:blue",
                label=None if number else "forecast",
            )
            axis.axvline(axis_values[origin - start], color="0.8", linewidth=0.8)
        axis.set_ylabel(literal(name))
        axis.grid(alpha=0.3)
    axes[0, 0].legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize="small", ncols=5, frameon=False)
    title = data.pieces[piece].name
    axes[0, 0].set_title(f"Forecasts of the test rows{f', series {literal(title)}' if title else ''}", pad=26)
    figure.autofmt_xdate()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    drawing.close(figure)


def _axis(clock: Any, steps: Any) -> Any:
    if clock.kind in ("rows", "numbers"):
        return clock.first + clock.step * steps
    return clock.dates(steps)


def plot_errors(path: Path, task: ForecastTask) -> None:
    """Root mean squared errors by step ahead, beside the baselines."""
    drawing = pyplot()
    figure, axis = drawing.subplots(figsize=(6.4, 3.6))
    for name, one in task.errors.items():
        steps = np.sqrt(one.by_step())
        form = ("o" if len(steps) == 1 else "") + ("-" if name == "model" else "--")
        axis.plot(np.arange(1, len(steps) + 1), steps, form, label=name, linewidth=2.2 if name == "model" else 1.2)
    axis.set_xlabel("steps ahead")
    axis.set_ylabel("RMSE, standard deviations")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small", frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    drawing.close(figure)
