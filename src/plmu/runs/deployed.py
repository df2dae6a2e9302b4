"""The model of a run as it is deployed: with its words and the names of its outputs, ready for samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

import plmu
from plmu.timeseries.clock import Clock
from plmu.text.symbols import Characters, Symbols, Words, beginning, read
from plmu.text.words import tokenise
from plmu.experiments import EXPERIMENTS
from plmu.timeseries.forecast_files import SERIES, Settings
from plmu.runs.outputs import Outputs, outputs_of
from plmu.runs.outputs import read as read_outputs
from plmu.nn import LookbackForecast, Steppable
from plmu.errors import RunError
from plmu.runs.results import read_json

MODEL_FILE = "model.plmu"


@dataclass
class Deployed:
    """A trained model, frozen, and what its inputs and outputs mean.

    `kind` is "numbers" (predictions of numbers), "classes" (numbers in, classes out), "text" (a class of a text) or
    "language" (the next token of a text).
    """

    frozen: plmu.FrozenModel
    kind: str
    outputs: Outputs
    symbols: Symbols | None
    experiment: str  # its name, or nothing
    memory: tuple[int, float] | None  # order and θ of the first memory
    forecast: LookbackForecast | None = None  # the model, where it is such a one
    clock: Clock | None = None  # of a forecast: when its steps are

    def state_at(self, when: str) -> Any:
        """The model's state before a sample of this time; None of a model without a season.

        Raises:
            ValueError: it is not a time as those of the data.
        """
        if self.clock is None or self.forecast is None or not self.forecast.season:
            return None
        return self.forecast.state_at(self.clock.step_of(when))

    def tokens(self, text: str, first: bool) -> list[tuple[int, str]]:
        """Token numbers of a text, and what each is to be called. What a text begins with has no name.

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
        """The probabilities of the classes by name, and the likeliest; nothing of a model without classes."""
        labels, horizon = self.outputs.labels, self.outputs.horizon
        if horizon:
            columns = self.outputs.columns or self.outputs.inputs
            return {"forecast": {name: output[place :: len(columns)] for place, name in enumerate(columns)}}
        if not labels:
            return {}
        if len(output) == 1:  # the logit of the second of two
            positive = 1 / (1 + math.exp(-max(-50.0, min(50.0, output[0]))))
            shares = [1 - positive, positive]
        else:
            shares = softmax(output)
        best = max(range(len(labels)), key=shares.__getitem__)
        return {
            "label": labels[best],
            "probability": shares[best],
            "probabilities": dict(zip(labels, shares, strict=True)),
        }


def softmax(logits: list[float]) -> list[float]:
    """Probabilities of logits."""
    highest = max(logits)
    powers = [math.exp(one - highest) for one in logits]
    total = sum(powers)
    return [one / total for one in powers]


def load(path: Path) -> Deployed:
    """The model of a run's folder, or a model file, with the files beside it. It never executes code from them.

    Raises:
        RunError: there is no model that streams, or a file beside it is missing or damaged.
    """
    folder, file = (path, path / MODEL_FILE) if path.is_dir() else (path.parent, path)
    experiment, name = _described(folder) if path.exists() else ("", "")
    if not file.is_file():
        raise RunError(f"no model at {path}: {_why(experiment, name)}")
    model = plmu.load(file)
    if not isinstance(model, Steppable):
        raise RunError(f"{file} cannot be stepped: it is a {type(model).__name__}")
    outputs = read_outputs(folder)
    if outputs is None:  # of a run before there was such a file
        known = EXPERIMENTS.get(experiment)
        outputs = Outputs() if known is None or name not in known.models else outputs_of(known, name)
    frozen = plmu.FrozenModel(model)
    symbols = None
    if frozen.takes_tokens:
        first = next(one for one in model.modules() if isinstance(one, nn.Embedding))
        symbols = read(folder, first.num_embeddings)
    if frozen.features is None and symbols is None:
        raise RunError(f"{file} does not say how many numbers a sample has: begin the model with a layer that does")
    count = plmu.Sessions(frozen, 1).outputs
    if symbols is not None and count == 1 and not outputs.labels:  # a model file alone
        outputs = replace(outputs, labels=EXPERIMENTS["imdb"].labels)
    labels = len(outputs.labels)
    if labels and count not in ((1, 2) if labels == 2 else (labels,)):
        raise RunError(f"{file} has {count} outputs for {labels} classes: outputs.json is of another run")
    kind = "classes" if labels else "numbers"
    if symbols is not None:
        kind = "language" if count == symbols.size and not labels else "text"
    forecasts = outputs.horizon * len(outputs.columns or outputs.inputs)
    if outputs.horizon and (len(outputs.inputs) != frozen.features or count != forecasts):
        raise RunError(f"{file} has {count} outputs, outputs.json is of another run")
    forecast = model if isinstance(model, LookbackForecast) else None
    clock = Settings.read(folder).clock if (folder / SERIES).is_file() and forecast is not None else None
    return Deployed(frozen, kind, outputs, symbols, experiment, _memory(model), forecast, clock)


def _described(folder: Path) -> tuple[str, str]:
    """The experiment and the model that config.json names, if there is one."""
    known = folder / "config.json"
    if not known.is_file():
        return "", ""
    try:
        found = read_json(known)
        return str(found["experiment"]), str(found["model"])
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{known} is damaged: it says what the model is of") from None


def _why(experiment: str, name: str) -> str:
    """Why there is no model."""
    known = EXPERIMENTS.get(experiment)
    if experiment == "iwslt":
        return "iwslt reads whole sentences, which are no stream: `plmu translate` translates them"
    if known is not None and not known.streamable:
        return f"{experiment} compares pairs of texts, which are no stream"
    if known is not None and name not in known.streamable:
        return f"of {experiment}, the models {', '.join(known.streamable)} are steppable and saved, {name} is not"
    return "expected the folder of a finished run of a steppable model (not an LSTM), or a model.plmu"


def _memory(model: nn.Module) -> tuple[int, float] | None:
    """Order and θ of the first layer that has both."""
    for module in model.modules():
        order, theta = (getattr(module, "config", {}).get(name) for name in ("order", "theta"))
        if isinstance(order, int) and isinstance(theta, int | float):
            return order, float(theta)
    return None
