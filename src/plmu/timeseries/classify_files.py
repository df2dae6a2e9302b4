"""The files of a run of classify, and classes from them: series.json says what the model reads, and the classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import plmu
from plmu.errors import DataError, RunError
from plmu.nn import Sequential
from plmu.runs.experiment import Predictions
from plmu.runs.folder import read_json, write_json
from plmu.runs.outputs import Outputs
from plmu.runs.outputs import write as write_outputs
from plmu.timeseries import labelled
from plmu.timeseries.classifier import SequenceClassifier
from plmu.timeseries.labelled import LabelledConfig
from plmu.timeseries.labelled_columns import Format
from plmu.timeseries.threshold_features import over_blocks, padded

SERIES, MODEL, WHOLE, NORMALIZED = "series.json", "model.plmu", "whole.plmu", "normalization.json"


@dataclass(frozen=True)
class Settings:
    """What a model reads, and its classes."""

    form: Format
    channels: int
    classes: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> Settings:
        try:
            found = read_json(folder / SERIES)
            form = found["form"]
            form = Format(form["layout"], form["id"], form["label"], form["time"], tuple(form["values"]),
                          tuple(form.get("left_out", ())))  # fmt: skip
            return cls(form, int(found["channels"]), tuple(map(str, found["classes"])))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{folder / SERIES} is missing or damaged ({type(error).__name__}): copy it again") from None


def write_models(
    folder: Path,
    settings: Settings,
    fitted: SequenceClassifier,
    network: nn.Module,
    streaming: SequenceClassifier | None,
) -> None:
    """model.plmu, which takes samples as they come, and whole.plmu of whole series, where it is another."""
    form = settings.form
    inputs = form.values if form.layout in ("rows", "files", "arrays") else ()
    write_outputs(folder, Outputs(labels=settings.classes, inputs=inputs, time=form.time or "", series=form.id or ""))
    write_json(folder / NORMALIZED, {"normalize": fitted.normalize_})
    if streaming is not None:
        plmu.save(network.cpu(), folder / WHOLE)
        network = streaming.model
    plmu.save(network.cpu(), folder / MODEL)


def predict(folder: Path, config: LabelledConfig, file: Path) -> Predictions:
    """The class of each series of a file, with the probability of each class."""
    settings = Settings.read(folder)
    try:
        normalize = read_json(folder / NORMALIZED)["normalize"]
        if normalize not in (True, False, "both"):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder / NORMALIZED} is missing or damaged ({type(error).__name__}): copy it again") from None
    model = plmu.load(folder / (MODEL if normalize is False else WHOLE))
    if not isinstance(model, Sequential):
        raise RunError(f"{folder} has no model of classify")
    labels = None if config.labels is None else file / config.labels.name  # among the files of a folder
    labels = labels if labels is not None and labels.is_file() else None
    data = labelled.load(replace(config, file=file, test_file=None, labels=labels), settings.form, settings.classes)
    if data.series[0].shape[1] != settings.channels:
        raise DataError(f"{file} has {data.series[0].shape[1]} channels; the model was trained on {settings.channels}")
    x, lengths = padded(data.series, normalize)
    shares = torch.cat(list(over_blocks(model, x, lengths))).softmax(1)
    best = [settings.classes[i] for i in shares.argmax(1).tolist()]
    named = "class" if settings.form.id != "class" else "predicted class"
    columns: dict[str, Any] = {settings.form.id or "series": data.names, named: best}
    for place, name in enumerate(settings.classes):
        columns[f"probability of {name}"] = [f"{one:.4f}" for one in shares[:, place].tolist()]
    pairs = [(one, other) for one, other in zip(data.labels, best, strict=True) if one is not None]
    if pairs:
        right = sum(one == other for one, other in pairs)
        data.notes.append(f"labels: {right:,} of {len(pairs):,} are as predicted")
    return Predictions(columns, data.notes)
