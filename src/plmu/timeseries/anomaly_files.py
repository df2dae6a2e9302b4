"""The files of a run of anomalies: series.json says what the detector reads and which rows it has learned from,
anomalies.json and the picture show its alarms."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from plmu.clock import Clock
from plmu.errors import RunError
from plmu.modelfiles.files import load as load_model
from plmu.modelfiles.files import save
from plmu.nn.continued import Continued
from plmu.runs.anomalies import Anomalies, read_states, write_states
from plmu.runs.configuration import typed
from plmu.runs.folder import MODEL_FILE, OUTPUTS_FILE, SERIES_FILE, parsed, write_json
from plmu.runs.outputs import Outputs
from plmu.runs.outputs import read as read_outputs
from plmu.runs.outputs import write as write_outputs
from plmu.runtime.frozen import FrozenModel
from plmu.timeseries.anomaly_scores import Scored
from plmu.timeseries.anomaly_series import Learned, Recording, Settings
from plmu.timeseries.forecast_tables import time_column
from plmu.timeseries.reporting import shortened, text_table

if TYPE_CHECKING:
    from plmu.runs.experiment import Predictions
    from plmu.timeseries.anomaly_detector import AnomalyDetector

REPORT, PLOT = "anomalies.json", "anomalies.png"
SHOWN = 10  # stretches that are printed


def series_json(detector: AnomalyDetector) -> str:
    """The content of series.json."""
    learned = [
        {"name": name, "samples": part.samples, "following": part.following, "digest": part.digest}
        for name, part in detector.learned_.items()
    ]
    return json.dumps({**asdict(detector.settings_), "learned": learned}, indent=1, ensure_ascii=False) + "\n"


def write_model(folder: Path, detector: AnomalyDetector, header: Sequence[str]) -> None:
    """Save the model, what its numbers mean, and of several series what was learned of each. `header` are all columns
    of the user's file."""
    settings, learned = detector.settings_, detector.learned_
    save(detector.model, folder / MODEL_FILE)
    outputs = Outputs(
        inputs=settings.values,
        time=settings.time or "",
        series=settings.id or "",
        header=tuple(header),
        clock=settings.clock,
        next_step=max(part.following for part in learned.values()),
        season=settings.season,
        threshold=settings.threshold,
    )
    write_outputs(folder, outputs)
    if len(learned) > 1:
        states = {name: (part.state, torch.tensor([[part.following, 1]])) for name, part in learned.items()}
        write_states(folder, FrozenModel(detector.model), states, len(settings.values))


def read_run(folder: Path) -> tuple[Settings, Continued, dict[str, Learned]]:
    """What the detector of a run reads, its model, and what it has learned of each series."""

    def content(read: Any) -> tuple[Settings, list[Any]]:
        learned = read.pop("learned")
        read = {**read, "values": tuple(read["values"]), "clock": typed(Clock(**read["clock"]))}
        parts = [(part["name"], int(part["samples"]), int(part["following"]), str(part["digest"])) for part in learned]
        if not parts:
            raise ValueError
        return typed(Settings(**read)), parts

    settings, parts = parsed(folder / SERIES_FILE, content)
    model, outputs = load_model(folder / MODEL_FILE), read_outputs(folder)
    if not isinstance(model, Continued):
        raise RunError(f"{folder / MODEL_FILE} is not a model of anomalies")
    if outputs is None:
        raise RunError(f"{folder / OUTPUTS_FILE} is missing: copy it again")
    states = read_states(folder, FrozenModel(model))
    if len(parts) > 1 and set(states) != {name for name, *_ in parts}:
        raise RunError(f"{folder} has not the states of all its series: copy it again")
    deployed = Anomalies(model, outputs, settings.clock, states)
    learned = {
        name: Learned(samples, following, digest, deployed.state_at(following, name)[0])
        for name, samples, following, digest in parts
    }
    return settings, model, learned


def write_report(
    folder: Path, settings: Settings, scored: Sequence[Scored], scores: Mapping[str, float], label: str | None
) -> list[str]:
    """Write anomalies.json.

    Returns:
        Lines to print: the alarms, and how they agree with labels.
    """
    listed = stretches(settings, scored)
    content = {
        "threshold": settings.threshold,
        "season": settings.season,
        **{name: None if np.isnan(value) else value for name, value in scores.items()},
        "labels": label,
        "alarms in stretches": listed,
    }
    write_json(folder / REPORT, content)
    lines = [summary(settings, scores)]
    if scores["steps"] < 1 / settings.threshold:
        lines.append(few(settings, scores))
    if listed:
        hidden = {"score", "lower", "upper", *(() if len(scored) > 1 else ("series",))}
        columns = [name for name in listed[0] if name not in hidden]
        highest = sorted(listed, key=lambda row: -row["score"])[:SHOWN]
        shown = [row | {"expected": f"{row['lower']:.4g} to {row['upper']:.4g}"} for row in listed if row in highest]
        lines += text_table(columns, [[_cell(row[name]) for name in columns] for row in shown])
        if len(listed) > SHOWN:
            lines.append(f"  and {len(listed) - SHOWN} stretches more, in {REPORT}")
    if label is not None:
        lines.append(agreement(scores, label))
    return lines


def summary(settings: Settings, scores: Mapping[str, float]) -> str:
    """How many alarms there are."""
    steps, alarms = int(scores["steps"]), int(scores["alarms"])
    times = f"{alarms:,} alarm{'s' * (alarms != 1)}"
    if alarms:
        stretches = int(scores["stretches"])
        times += f" in {stretches:,} stretch{'es' * (stretches != 1)}"
    normal = settings.threshold * steps
    return f"scored: {steps:,} samples; {times} (about {normal:.2g} if all of them were normal)"


def few(settings: Settings, scores: Mapping[str, float]) -> str:
    """What is said of samples that are too few."""
    steps, needed = f"{int(scores['steps']):,}", f"{1 / settings.threshold:,.0f}"
    return f"{steps} samples are few for a threshold of {settings.threshold:g}, which needs {needed} to compare with"


def agreement(scores: Mapping[str, float], label: str) -> str:
    """How alarms agree with labels."""
    shares = [
        f"{name} {100 * scores[name]:.0f} %" if not np.isnan(scores[name]) else f"{name} –"
        for name in ("precision", "recall")
    ]
    false = scores["false_alarms"]
    return (
        f"labels in {shortened(label)}: {', '.join(shares)} of the labelled stretches;"
        f" {false:.2g} false alarms in 1,000 steps"
    )


def stretches(settings: Settings, scored: Sequence[Scored]) -> list[dict[str, Any]]:
    """Stretches of alarms: where they begin and end, and the reason of the highest score."""
    rows = []
    for series in scored:
        steps, offset = series.series.steps, series.series.pieces[0].offset
        counted_from = 1 if settings.clock.kind == "rows" else 0
        for stretch in series.stretches():
            ends = steps[[stretch.first, stretch.last]] + counted_from
            # With the time of day, unless all steps are days.
            times = settings.clock.times(np.concatenate([ends, ends + 1]), offset)
            value, expected, lower, upper = series.reasons[stretch.highest].tolist()
            rows.append({
                "series": series.series.name,
                f"{time_column(settings)} from": times[0],
                "to": times[1],
                "alarms": stretch.alarms,
                "column": settings.values[series.channel[stretch.highest]],
                "value": None if np.isnan(value) else value,
                "lower": lower,
                "upper": upper,
                "expected": expected,
                "score": float(series.score[stretch.highest]),
            })  # fmt: skip
    return rows


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.6g}" if isinstance(value, float) else shortened(str(value))


def predictions(detector: AnomalyDetector, recording: Recording, scored: Sequence[Scored], draw: Any) -> Predictions:
    """The scores of a file, as columns of text."""
    from plmu.runs.experiment import Predictions

    settings = detector.settings_
    columns: dict[str, Sequence[object]] = {}
    several = len({series.series.name for series in scored}) > 1
    if several or settings.id is not None:
        columns[settings.id or "series"] = [series.series.name for series in scored for _ in series.series.steps]
    counted_from = 1 if settings.clock.kind == "rows" else 0
    columns[time_column(settings)] = [
        stamp
        for series in scored
        for piece in series.series.pieces
        for stamp in settings.clock.times(piece.start + np.arange(len(piece)) + counted_from, piece.offset)
    ]
    names = np.array(settings.values, dtype=object)
    numbers = {
        "score": np.concatenate([series.score for series in scored]),
        "alarm": np.concatenate([series.alarm for series in scored]).astype(np.int64),
    }
    reasons = np.concatenate([series.reasons for series in scored])
    columns |= {name: list(map(number, column.tolist())) for name, column in numbers.items()}
    columns["channel"] = names[np.concatenate([series.channel for series in scored])].tolist()
    for name, column in zip(("value", "expected", "lower", "upper"), reasons.T, strict=True):
        columns[name] = list(map(number, column.tolist()))
    numeric = ("score", "alarm", "value", "expected", "lower", "upper")
    return Predictions(columns, recording.data.notes, numeric, draw)


def number(value: float) -> str | None:
    """A number in nine digits; None for a missing one."""
    return None if np.isnan(value) else f"{value:.9g}"
