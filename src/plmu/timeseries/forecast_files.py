"""The files of a run of forecast: series.json says what the model reads, intervals.json how far measured values were
from forecasts; forecast.json and the plots show the test, beside the baselines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from plmu.clock import Clock
from plmu.errors import RunError
from plmu.modelfiles.files import load as load_model
from plmu.modelfiles.files import save
from plmu.runs.configuration import typed
from plmu.runs.folder import INTERVALS_FILE, MODEL_FILE, SERIES_FILE, parsed, write_json
from plmu.runs.intervals import Intervals
from plmu.runs.outputs import Outputs
from plmu.runs.outputs import write as write_outputs
from plmu.timeseries.predictions import ForecastModel, at_phase
from plmu.timeseries.reporting import literal, pyplot, shortened, text_table, write_plot
from plmu.timeseries.scores import Errors, Scores, model_method
from plmu.timeseries.series import Numbers
from plmu.timeseries.split import Settings, Split

FORECASTS, ERRORS, REPORT = "forecast.png", "errors.png", "forecast.json"
SHOWN = 4  # largest number of columns that are drawn, and of covariates that are named
DRAWN = 4  # forecasts that are drawn of each column


def write_model(folder: Path, split: Split, model: ForecastModel, intervals: Intervals) -> None:
    """Save the model, whose streams begin at the step after the last row, and what its numbers mean."""
    settings = split.settings
    following = max(piece.start + len(piece) for piece in split.data.pieces)
    save(at_phase(model.cpu(), following), folder / MODEL_FILE)
    outputs = Outputs(
        inputs=settings.inputs,
        time=settings.time or "",
        series=settings.id or "",
        horizon=settings.horizon,
        columns=settings.values if settings.covariates else (),
        header=split.data.columns.names,
        clock=settings.clock,
        next_step=following,
        season=model.season if model.timed else 0,
    )
    write_outputs(folder, outputs)
    content = {
        "levels": intervals.levels,
        "relative": intervals.relative,
        "floor": intervals.floor.tolist(),
        "low": intervals.low.tolist(),
        "high": intervals.high.tolist(),
        "scale": split.scale.tolist(),
        "lookback": intervals.lookback,
        "nonnegative": list(model.nonnegative),
        "errors": list(intervals.errors),
    }
    if intervals.scaling is not None:
        content["scaling"] = dataclasses.asdict(intervals.scaling)
    write_json(folder / INTERVALS_FILE, content)


def read_settings(folder: Path) -> Settings:
    """The content of series.json."""

    def settings(content: Any) -> Settings:
        tuples = {name: tuple(content.get(name, ())) for name in ("values", "covariates")}  # old runs lack covariates
        return typed(Settings(**{**content, **tuples, "clock": typed(Clock(**content["clock"]))}))

    return parsed(folder / SERIES_FILE, settings)


def read_run(folder: Path) -> tuple[ForecastModel, Settings, Intervals]:
    """The model of a run, what it reads and forecasts, and the intervals of its test."""
    settings = read_settings(folder)
    stored = Intervals.read(folder, settings.lookback)
    model = load_model(folder / MODEL_FILE)
    if not isinstance(model, ForecastModel):
        raise RunError(f"{folder / MODEL_FILE} is not a model of forecast")
    return model, settings, stored


def read_scale(folder: Path) -> torch.Tensor | None:
    """The units of scores, (channels,), from intervals.json; None for a run of a version that did not write them."""

    def scale(content: Any) -> torch.Tensor | None:
        return torch.tensor(content["scale"]) if "scale" in content else None

    return parsed(folder / INTERVALS_FILE, scale)


def as_text(values: Numbers, levels: Numbers) -> list[str]:
    """Values (series, horizon) with nine digits, and with more where they differ little from the level (series,)."""
    changes = np.maximum(np.abs(values - levels[:, None]).max(axis=1), 1e-300)
    ratios = np.clip(np.abs(values).max(axis=1) / changes, 1.0, 1e15)
    digits = np.minimum(9 + np.floor(np.log10(ratios)), 15).astype(int).tolist()
    return [f"{value:.{count}g}" for row, count in zip(values.tolist(), digits, strict=True) for value in row]


def write_report(
    folder: Path,
    split: Split,
    scores: Scores,
    intervals: Intervals,
    folds: list[dict[str, float]],
    horizons: Sequence[int] = (),
) -> list[str]:
    """Write forecast.json and errors.png.

    Returns:
        Lines to print: one row for each model and baseline, one column for each score.
    """
    settings = split.settings
    in_units = {name: errors.by_channel(split.scale) for name, errors in scores.errors.items()}
    content = {
        "windows": scores.windows,
        "mse": {name: errors.mse for name, errors in scores.errors.items()},
        "mae": {name: errors.mae for name, errors in scores.errors.items()},
        **{
            kind: {name: errors.averages().get(kind) for name, errors in scores.errors.items()}
            for kind in ("mase", "smape")
            if scores.errors["model"].series is not None
        },
        "mae in own units": {
            name: {
                column: None if np.isnan(value) else value
                for column, value in zip(settings.values, values, strict=True)
            }
            for name, values in in_units.items()
        },
        "mse by step ahead": {name: errors.by_step() for name, errors in scores.errors.items()},
        "inside interval": dict(zip(map(str, scores.levels), scores.coverage, strict=True)),
        "errors of intervals by step ahead": list(intervals.errors),
        "backtest": folds,
    }
    write_json(folder / REPORT, content)
    plot_errors(folder / ERRORS, scores.errors)
    lines = []
    if folds:  # first, so that a terminal of 24 rows ends with the scores
        lines.append("rolling backtest:")
        lines += text_table(["rows", "windows", "mse", "last value"], [
            [f"{fold['rows']:,}", f"{fold['windows']:,}", f"{fold['model_mse']:.4g}", f"{fold['last_value_mse']:.4g}"]
            for fold in folds
        ])  # fmt: skip
    lines.append(f"test: {scores.windows:,} windows; mse and mae in units of each column's standard deviation")
    shorter = sorted({steps for steps in horizons if steps < settings.horizon})
    several = ["mase", "smape"] if scores.errors["model"].series is not None else []
    names = {"mase": "MASE", "smape": "sMAPE"}
    header = ["", "mse", "mae", *(names[kind] for kind in several), *(f"mse of {steps} steps" for steps in shorter)]
    header += [f"mae of {shortened(name)}" for name in settings.values]
    rows = [
        [
            name,
            *(
                "–" if np.isnan(value) else f"{value:.4g}"
                for value in (
                    errors.mse,
                    errors.mae,
                    *(errors.averages().get(kind, np.nan) for kind in several),
                    *map(errors.until, shorter),
                    *in_units[name],
                )
            ),
        ]
        for name, errors in scores.errors.items()
    ]
    lines += text_table(header, rows)
    unmeasured = [name for name, value in zip(settings.values, in_units["model"], strict=True) if np.isnan(value)]
    if unmeasured:
        lines.append(
            f"nothing to score in {', '.join(map(shortened, unmeasured))}: no value was measured in the test rows"
        )
    for level, share in zip(scores.levels, scores.coverage, strict=True):
        lines.append(f"{100 * level:g} % intervals held {100 * share:.1f} % of the measured values")
    lines += [intervals.basis] if intervals.basis else []
    return [*lines, f"wrote {FORECASTS}, {ERRORS} and {REPORT} to {folder}"]


def covariates_summary(names: tuple[str, ...], summary: Mapping[str, Any]) -> str:
    """Whether covariates helped to forecast the validation rows."""
    few = ", ".join(names[:SHOWN]) + ("…" if len(names) > SHOWN else "")
    with_them, without = summary["mse with covariates"], summary["mse without covariates"]
    errors = f"mse on the validation rows {with_them:.4g} with, {without:.4g} without"
    if not summary["covariates"]:
        return f"covariates {few}: not used, since they did not clearly help ({errors})"
    return f"covariates {few}: used, with {summary['lags']} step{'s' * (summary['lags'] > 1)} of each ({errors})"


def model_summary(summary: Mapping[str, Any]) -> list[str]:
    """Which model was best on the validation rows, where several were tried, and the members of a `PooledForecast`."""
    errors = summary.get("errors", {})
    shared = "a mean of members" if "linear" in errors else "readouts that all series share"
    names = {"pooled": shared, "look-back": "a memory of the look-back"}
    lines = [f"model: {names[summary['model']]}"] if errors else []
    if np.isfinite(errors.get(summary["model"], np.nan)):
        of = "of the error of the last value with its season on the validation rows"
        lines[0] += f", with {errors[summary['model']]:.3g} {of}"
        others = [f"{names.get(name, name)}: {error:.3g}" for name, error in errors.items() if name != summary["model"]]
        lines[0] += f" ({'; '.join(others)})" if others else ""
    if lookbacks := summary.get("lookbacks"):
        tried = ", ".join(f"{size}: {error:.3g}" for size, error in sorted(lookbacks.items()))
        lines.append(f"look-back: {summary['lookback']} steps, by the mse on the validation rows ({tried})")
    if members := summary.get("members"):
        ordered = sorted(members, key=lambda member: -member[-1])[:SHOWN]
        shown = "; ".join(f"{size} steps" + f", season {season}" * (season > 1) + ", log" * log
                          for size, season, log, *_ in ordered)  # fmt: skip
        lines.append(f"members: {shown}" + f"; {len(members) - SHOWN} more" * (len(members) > SHOWN))
    return lines


def bound_summary(columns: Sequence[str], model: ForecastModel) -> list[str]:
    """Which forecasts are at least 0, if any."""
    names = [shortened(columns[place]) for place in model.nonnegative]
    few = ", ".join(names[:SHOWN]) + ("…" if len(names) > SHOWN else "")
    return [f"forecasts of at least 0: {few}"] if names else []


def season_summary(summary: Mapping[str, Any]) -> list[str]:
    """Which season was best on the validation rows, if any was tried."""
    if not summary["tried"]:  # nothing, or the members of a `PooledForecast`, which tell
        return []
    if summary["calendar"]:
        return ["season: the profile of the calendar is used"]
    used, steps = "season: not used, since it did not help", summary["season"]
    return [f"season: {steps} steps are used" if steps else used]


def plot_forecasts(path: Path, split: Split, network: nn.Module, intervals: Intervals) -> None:
    """Draw the last forecasts of the test rows that do not overlap, or without test rows of the validation rows, with
    their intervals, on what was measured."""
    windows, settings = split.windows, split.settings
    horizon, before = settings.horizon, min(settings.lookback, 3 * settings.horizon)
    kinds = {"test": "test", "valid": "validation", "train": "training"}
    kind = next((kind for kind in kinds if len(split.origins(kind))), None)
    if kind is None:
        raise ValueError("the series are too short for a window and its horizon: there is nothing to draw")
    origins = split.origins(kind)
    piece = int(torch.searchsorted(windows.offsets, origins[-1:], right=True)[0]) - 1
    offset = int(windows.offsets[piece])
    origins = origins[origins >= offset].flip(0)[: horizon * DRAWN : horizon].flip(0)
    start = max(offset, int(origins[0]) - before + 1)
    rows = np.arange(start, int(origins[-1]) + horizon + 1)
    axis_values = _axis(split.data.clock, rows - offset + int(windows.starts[piece]))
    examples = windows.take(origins, split.length, horizon)
    with torch.no_grad():
        ahead = model_method(network)(examples).double()
    lower, upper = intervals.bounds(ahead, intervals.spread(examples.windows, examples.rows), examples.level)
    names = settings.values[:SHOWN]
    drawing = pyplot()
    figure, axes = drawing.subplots(len(names), 1, figsize=(9, 1.2 + 2.4 * len(names)), sharex=True, squeeze=False)
    for channel, (axis, name) in enumerate(zip(axes[:, 0], names, strict=True)):
        level = float(windows.level[piece, channel])
        measured = windows.values[channel, rows].double() + level
        axis.plot(axis_values, measured, color="0.25", linewidth=1, label="measured")
        for number, origin in enumerate(origins.tolist()):
            at = axis_values[origin + 1 - start : origin + 1 - start + horizon]
            mean = ahead[number, channel]
            for place in reversed(range(len(intervals.levels))):
                low, high = (ends[place, number, channel] + level for ends in (lower, upper))
                label = f"{100 * intervals.levels[place]:g} % interval" if not number else None
                shade = 0.32 if place == 0 else 0.16
                axis.fill_between(at, low, high, color="tab:blue", alpha=shade, linewidth=0, label=label)
            style = "o-" if horizon == 1 else "-"
            axis.plot(at, mean + level, style, color="tab:blue", label=None if number else "forecast")
            axis.axvline(axis_values[origin - start], color="0.8", linewidth=0.8)
        axis.set_ylabel(literal(name))
        axis.grid(alpha=0.3)
    axes[0, 0].legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize="small", ncols=5, frameon=False)
    several = len({piece.name for piece in split.data.pieces}) > 1
    title = f", series {literal(split.data.pieces[piece].name)}" if several else ""
    axes[0, 0].set_title(f"Forecasts of the {kinds[kind]} rows{title}", pad=26)
    figure.autofmt_xdate()
    write_plot(figure, path)


def _axis(clock: Clock, steps: Any) -> Any:
    if clock.kind in ("rows", "numbers"):
        return clock.first + clock.step * steps
    return clock.dates(steps)


def plot_errors(path: Path, errors: Mapping[str, Errors]) -> None:
    """Draw root mean squared errors by step ahead, beside the baselines."""
    drawing = pyplot()
    figure, axis = drawing.subplots(figsize=(6.4, 3.6))
    for name, sums in errors.items():
        steps = np.sqrt(sums.by_step())
        form = ("o" if len(steps) == 1 else "") + ("-" if name == "model" else "--")
        axis.plot(np.arange(1, len(steps) + 1), steps, form, label=name, linewidth=2.2 if name == "model" else 1.2)
    axis.set_xlabel("steps ahead")
    axis.set_ylabel("RMSE, standard deviations")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small", frameon=False)
    write_plot(figure, path)
