"""The model of a run as it is deployed: with its words and the names of its outputs, ready for samples.

A finished run folder describes itself, so that nothing here needs the experiment that trained it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from plmu.errors import RunError
from plmu.modelfiles.files import load as load_model
from plmu.nn import Continued, LookbackForecast, PooledForecast, Steppable
from plmu.runs.anomalies import NUMBERS, Anomalies
from plmu.runs.folder import CONFIG_FILE, model_file, read_json
from plmu.runs.forecasts import Forecasts
from plmu.runs.outputs import Outputs
from plmu.runs.outputs import read as read_outputs
from plmu.runtime.frozen import FrozenModel
from plmu.runtime.sessions import Sessions
from plmu.text.symbols import SEPARATOR, Characters, Symbols, Words, beginning, read
from plmu.text.words import tokenise

SENTIMENTS = ("negative", "positive")
# What the outputs of runs without outputs.json mean, by experiment and model: they are from before version 0.2.
OLD_OUTPUTS = {
    "mackey-glass": {"": Outputs(ahead=15)},
    "psmnist": {"": Outputs(tuple("0123456789"))},
    "imdb": {
        "": Outputs(SENTIMENTS),
        **dict.fromkeys(("pretrained", "pretrained-paper", "scratch"), Outputs(SENTIMENTS, start=(SEPARATOR,))),
    },
}
# Of each experiment the models that are steppable, which is why there is a model file.
STEPPABLE = {
    "mackey-glass": ("plmu", "lmu", "lmu-single"),
    "psmnist": ("plmu", "lmu"),
    "addition": ("plmu", "plain"),
    "imdb": ("plmu", "frozen", "deep", "pretrained", "pretrained-paper", "scratch"),
    "text8": ("plmu", "modern", "plmu-attention", "plmu-paper"),
    "reviews": ("plmu",),
    "forecast": ("closed", "gradient"),
    "classify": ("closed", "gradient"),
    "anomalies": ("online",),
}


@dataclass
class Deployed:
    """A trained model, frozen, and what its inputs and outputs mean.

    `kind` is "numbers" (predictions of numbers), "classes" (numbers in, classes out), "anomalies" (numbers in, scores
    out), "text" (a class of a text) or "language" (the next token of a text).
    """

    frozen: FrozenModel
    kind: str
    outputs: Outputs
    symbols: Symbols | None
    experiment: str  # its name, or nothing
    memory: tuple[int, float] | None  # order and θ of the first memory
    forecasts: Forecasts | Anomalies | None = None  # if the model is a forecast, or a detector of anomalies

    def tokens(self, text: str, first: bool) -> list[tuple[int, str]]:
        """Token numbers of a text, each with its name. The tokens that start each text have no name.

        Args:
            text: a line or a part of it.
            first: whether a text begins here.

        Raises:
            ValueError: names a character that the model does not know.
        """
        assert self.symbols is not None
        if isinstance(self.symbols, Words):
            named = list(zip(self.symbols.encode(text), tokenise(text), strict=True))
        else:
            if isinstance(self.symbols, Characters) and "\n" not in self.symbols.alphabet:
                text = text.rstrip("\r\n")
            numbers = self.symbols.encode(text)
            decoder = self.symbols.decoder()
            named = [(number, decoder.push(number)) for number in numbers]
        start = self.outputs.start
        if self.kind == "language" and not start:
            start = tuple(beginning(self.symbols))
        return [*((number, "") for number in start if first and named), *named]

    def answer(self, output: list[float]) -> dict[str, Any]:
        """The probabilities of the classes by name, and the likeliest class; else nothing. For forecasts see
        `Forecasts.answer`."""
        labels = self.outputs.labels
        if not labels:
            return {}
        if len(output) == 1:  # the logit of the second of two
            positive = 1 / (1 + math.exp(-max(-50.0, min(50.0, output[0]))))
            probabilities = [1 - positive, positive]
        else:
            probabilities = softmax(output)
        best = max(range(len(labels)), key=probabilities.__getitem__)
        return {
            "label": labels[best],
            "probability": probabilities[best],
            "probabilities": dict(zip(labels, probabilities, strict=True)),
        }


def softmax(logits: list[float]) -> list[float]:
    """Probabilities of logits."""
    highest = max(logits)
    powers = [math.exp(logit - highest) for logit in logits]
    total = sum(powers)
    return [power / total for power in powers]


@dataclass(frozen=True)
class Learning:
    """How a deployed forecast learns while it runs."""

    half_life: float | str | None = None  # the age at which what was learned counts half; None for the default


def load(path: Path, learning: Learning | None = None) -> Deployed:
    """The model of a run folder, or a model file, with the files beside it. It never executes code from them.

    Args:
        path: of the folder or the file.
        learning: how the model learns from what it forecasts; None if it does not.

    Raises:
        RunError: there is no model that streams, or a file beside it is missing or damaged.
        ValueError: it shall learn, and is not a forecast; or the half-life is not a positive number.
    """
    folder, file = model_file(path)
    experiment, name = trained_as(folder) if path.exists() else ("", "")
    model = load_steppable(path, _why_no_model(experiment, name))
    outputs = read_outputs(folder) or _old_outputs(experiment, name)
    frozen = FrozenModel(model)
    symbols = symbols_of(folder, model) if frozen.takes_tokens else None
    if frozen.features is None and symbols is None:
        raise RunError(f"{file} does not say how many numbers a sample has: begin the model with a layer that does")
    count = Sessions(frozen, 1).outputs
    labels = len(outputs.labels)
    if labels and count not in ((1, 2) if labels == 2 else (labels,)):
        raise RunError(f"{file} has {count} outputs for {labels} classes: outputs.json is of another run")
    kind = "classes" if labels else "numbers"
    if symbols is not None:
        kind = "language" if count == symbols.size and not labels else "text"
    numbers = outputs.horizon * len(outputs.columns or outputs.inputs)
    if outputs.horizon and (len(outputs.inputs) != frozen.features or count != numbers):
        raise RunError(f"{file} has {count} outputs, outputs.json is of another run")
    forecasts: Forecasts | Anomalies | None = None
    if isinstance(model, LookbackForecast | PooledForecast):
        forecasts = Forecasts.of(model, outputs, folder)
        if learning is not None:
            forecasts = forecasts.learned(learning.half_life, folder)
            assert forecasts.learning is not None
            frozen = FrozenModel(forecasts.learning)
    elif learning is not None:
        what = "a detector of anomalies, which learns without it" if outputs.threshold else f"a model of {kind}"
        raise ValueError(f"--learn is for forecasts, whose truth comes with later samples: {file} has {what}")
    elif isinstance(model, Continued) and outputs.threshold:
        if len(outputs.inputs) != frozen.features or count != 1 + NUMBERS * len(outputs.inputs):
            raise RunError(f"{file} has {count} outputs, outputs.json is of another run")
        kind, forecasts = "anomalies", Anomalies.of(model, outputs, folder, frozen)
    return Deployed(frozen, kind, outputs, symbols, experiment, _memory(model), forecasts)


def load_steppable(path: Path, missing: str) -> Steppable:
    """The model of a run folder, or a model file. `missing` says in the error what is expected there.

    Raises:
        RunError: there is no model, or it cannot be stepped.
    """
    _, file = model_file(path)
    if not file.is_file():
        raise RunError(f"no model at {path}: {missing}")
    model = load_model(file)
    if not isinstance(model, Steppable):
        raise RunError(f"{file} cannot be stepped: it is a {type(model).__name__}")
    return model


def symbols_of(folder: Path, model: nn.Module) -> Symbols | None:
    """What the token numbers of a model stand for, from the files beside it; None for a model of numbers."""
    embedding = next((module for module in model.modules() if isinstance(module, nn.Embedding)), None)
    return None if embedding is None else read(folder, embedding.num_embeddings)


def trained_as(folder: Path) -> tuple[str, str]:
    """The experiment and the model that config.json names; empty without one."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        return "", ""
    try:
        config = read_json(path)
        return str(config["experiment"]), str(config["model"])
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{path} is damaged: it says what the model is of") from None


def _old_outputs(experiment: str, name: str) -> Outputs:
    models = OLD_OUTPUTS.get(experiment, {})
    return models.get(name, models.get("", Outputs()))


def _why_no_model(experiment: str, name: str) -> str:
    """The reason, for an error, why the model `name` of an experiment cannot be loaded as a stream."""
    if experiment == "iwslt":
        return "iwslt reads whole sentences, which are no stream: `plmu translate` translates them"
    if experiment in ("qqp", "snli"):
        return f"{experiment} compares pairs of texts, which are no stream"
    steppable = STEPPABLE.get(experiment, (name,))
    if name not in steppable:
        return f"of {experiment}, the models {', '.join(steppable)} are steppable and saved, {name} is not"
    return "expected the folder of a finished run of a steppable model (not an LSTM), or a model.plmu"


def _memory(model: nn.Module) -> tuple[int, float] | None:
    """Order and θ of the first layer that has both."""
    for module in model.modules():
        order, theta = (getattr(module, "config", {}).get(name) for name in ("order", "theta"))
        if isinstance(order, int) and isinstance(theta, int | float):
            return order, float(theta)
    return None
