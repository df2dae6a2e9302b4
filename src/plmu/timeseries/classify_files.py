"""The files of a run of classify: its models, outputs.json, series.json (the columns that were read, and the classes)
and normalization.json."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

import plmu
from plmu.errors import RunError
from plmu.nn import Sequential
from plmu.runs.configuration import typed
from plmu.runs.experiment import Predictions
from plmu.runs.folder import MODEL_FILE, NORMALIZATION_FILE, SERIES_FILE, WHOLE_MODEL_FILE, parsed, write_json
from plmu.runs.outputs import Outputs
from plmu.runs.outputs import write as write_outputs
from plmu.timeseries.classification_report import untrained_note
from plmu.timeseries.labelled import LabelledData, by_number
from plmu.timeseries.labelled_columns import Format

if TYPE_CHECKING:
    from plmu.timeseries.classifier import SequenceClassifier


def series_json(data: LabelledData, classes: tuple[str, ...]) -> str:
    """The content of series.json: the format of the data, the number of channels, and the classes."""
    content = {"form": asdict(data.format), "channels": data.channels, "classes": classes}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def write_models(
    folder: Path, classifier: SequenceClassifier, network: nn.Module, streaming: SequenceClassifier | None
) -> None:
    """Write outputs.json, normalization.json and the models: model.plmu, which takes samples as they come, and, if
    series are normalised, whole.plmu, which takes whole series.

    Args:
        folder: of the run.
        classifier: the fitted classifier.
        network: the classifier's model, whose readout may have been trained further.
        streaming: a classifier without normalisation, for model.plmu, where `classifier` normalises series.
    """
    form, classes = classifier.format_, tuple(classifier.classes_.tolist())
    inputs = form.values if form.layout in ("rows", "files", "arrays") else ()
    read = Outputs(labels=classes, inputs=inputs, time=form.time or "", series=form.id or "", header=form.names)
    write_outputs(folder, read)
    counts = classifier.class_count_.tolist()
    write_json(folder / NORMALIZATION_FILE, {"normalize": classifier.normalize_, "training series": counts})
    if streaming is not None:
        plmu.save(network.cpu(), folder / WHOLE_MODEL_FILE)
        network = streaming.model
    plmu.save(network.cpu(), folder / MODEL_FILE)


def read_fitted(folder: Path) -> dict[str, Any]:
    """The attributes that a classifier had after `fit`, from the files of its run.

    Raises:
        RunError: a file is missing or damaged.
    """
    form, channels, classes = parsed(folder / SERIES_FILE, _series)
    normalize, counts = parsed(folder / NORMALIZATION_FILE, _normalization)
    model = plmu.load(folder / (MODEL_FILE if normalize is False else WHOLE_MODEL_FILE))
    if not isinstance(model, Sequential):
        raise RunError(f"{folder} has no model of classify")
    fitted = {
        "format_": form,
        "n_channels_": channels,
        "classes_": np.array(classes),
        "normalize_": normalize,
        "model_": model,
    }
    return fitted if counts is None else fitted | {"class_count_": np.array(counts)}


def _series(content: Any) -> tuple[Format, int, tuple[str, ...]]:
    """The format, the number of channels and the classes that `series_json` wrote."""
    form = content["form"]
    columns = form["id"], form["label"], form["time"], tuple(form["values"]), tuple(form.get("left_out", ()))
    return typed(Format(form["layout"], *columns)), int(content["channels"]), tuple(map(str, content["classes"]))


def _normalization(content: Any) -> tuple[Any, list[int] | None]:
    if content["normalize"] not in (True, False, "both"):
        raise ValueError
    counts = content.get("training series")  # which older runs lack
    if counts is not None and not all(type(count) is int for count in counts):
        raise TypeError
    return content["normalize"], counts


def predictions(classifier: SequenceClassifier, data: LabelledData) -> Predictions:
    """The class of each series and the probability of each class, as columns of text; a note counts the labels in the
    data, if any, that are as predicted."""
    classes = classifier.classes_.tolist()
    probabilities = torch.from_numpy(classifier.scores(data)).float().softmax(1)
    predicted = [classes[i] for i in probabilities.argmax(1).tolist()]
    id_column = data.format.id or "series"
    columns: dict[str, Any] = {id_column: data.names, "class" if id_column != "class" else "predicted class": predicted}
    for name, column in zip(classes, probabilities.mT, strict=True):
        columns[f"probability of {name}"] = [f"{probability:.4f}" for probability in column.tolist()]
    labelled = [(label, other) for label, other in zip(data.labels, predicted, strict=True) if label is not None]
    if labelled:
        right = sum(label == other for label, other in labelled)
        data.notes.append(f"labels: {right:,} of {len(labelled):,} are as predicted")
        untrained = sorted({label for label, _ in labelled} - set(classes), key=by_number)
        if untrained:
            data.notes.append(untrained_note(sum(label in untrained for label, _ in labelled), untrained))
    return Predictions(columns, data.notes, tuple(columns)[2:])
