"""The addition problem, which the paper mentions for the gated form: the sum of two marked numbers in a long sequence.

Models train on sequences of 100 to 1000 steps, are validated at 2000 and tested at 1000, 2000 and 5000. The memory has
order 1 and a window far longer than any test, so it is nearly a sum over time; the layer has to learn to admit a number
only if it is marked. Training lengths vary: at a single length the bias can cancel a constant leak of unmarked input,
which then grows with each step beyond that length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import plmu
from plmu.experiments.baselines import LastOutput, lstm
from plmu.experiments.data import addition
from plmu.runs.experiment import Config, Experiment
from plmu.runs.fields import Checked
from plmu.training.config import TrainingConfig
from plmu.training.task import Batch, Task


@dataclass
class AdditionModel(Checked):
    """Options of all models."""

    length: int = 1000
    """Steps of the longest training sequences, and of the test."""
    shortest: int = 100
    """Steps of the shortest training sequences, at most `length`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shortest > self.length:
            raise ValueError(f"model.shortest must be at most model.length = {self.length}; got {self.shortest}")


@dataclass
class PlmuModel(AdditionModel):
    """The parallel LMU and a linear output."""

    gated: bool = True
    """Use the gated form of the input."""
    order: int = 1
    """Legendre coefficients of each memory channel."""
    theta: float = 100_000.0
    """Window of the memory, in steps."""
    hidden: int = 8
    """Outputs of the LMU."""
    input_activation: str | None = "relu"
    """Activation f1 of the encoded input."""


@dataclass
class LSTMModel(AdditionModel):
    """One LSTM layer and a linear output."""

    hidden: int = 32
    """Hidden units."""
    forget_bias: float = 1.0
    """Initial bias of the forget gates."""


class Addition(Experiment):
    name = "addition"
    metric = "mse"
    paper: ClassVar[dict[str, float]] = {}
    models = ("plmu", "plain", "lstm")
    streamable = ("plmu", "plain")

    def defaults(self, model: str) -> Config[Any]:
        choices: dict[str, tuple[Any, float]] = {
            "plmu": (PlmuModel(), 2e-2),
            "plain": (PlmuModel(gated=False, input_activation=None), 2e-2),
            "lstm": (LSTMModel(), 1e-2),
        }
        options, rate = choices[self.check(model)]
        return Config(
            options, TrainingConfig(epochs=120, batch_size=50, learning_rate=rate, schedule="cosine", clip=1.0)
        )

    def task(self, config: Config[Any]) -> Task:
        length = config.model.length
        return Task(
            addition.sequences(10_000, length, seed=1, shortest=config.model.shortest),
            # Longer than in training, so that an epoch is chosen whose model has learned the rule.
            addition.sequences(1_000, 2 * length, seed=2),
            addition.sequences(1_000, length, seed=3),
            loss=lambda model, batch: nn.functional.mse_loss(_sums(model, batch), batch[1]),
            measure=_measure,
            finish=lambda sums: {"mse": float(sums[0] / sums[1])},
            metric=self.metric,
            higher_is_better=False,
            evaluation_batch=250,
            notes={"data": "generated; complete", "always answering 1": 1 / 6},
        )

    def more_tests(self, config: Config[Any]) -> dict[str, Batch]:
        """Sequences longer than those in training."""
        return {f"mse_at_{n}": addition.sequences(1_000, n, seed=4) for n in (2000, 5000)}

    def build(self, config: Config[Any], task: Task) -> nn.Module:
        model = config.model
        if isinstance(model, LSTMModel):
            return LastOutput(lstm(2, model.hidden, forget_bias=model.forget_bias), nn.Linear(model.hidden, 1))
        layer = plmu.ParallelLMU(
            2,
            model.hidden,
            order=model.order,
            theta=model.theta,
            memory_size=2,
            gated=model.gated,
            input_activation=model.input_activation,
            return_sequences=False,
        )
        with torch.no_grad():  # the memory divides by θ: without this, first outputs are near 0
            layer.memory_weight.mul_(model.theta / model.order)
        return plmu.Sequential(layer, nn.Linear(model.hidden, 1))


def _sums(model: nn.Module, batch: Batch) -> Tensor:
    out: Tensor = model(batch[0], lengths=batch[2])[0]
    return out


def _measure(model: nn.Module, batch: Batch) -> Tensor:
    """The sum of squared errors, and the number of examples."""
    error = (_sums(model, batch) - batch[1]).double().square().sum()
    return torch.stack([error, torch.full_like(error, batch[1].shape[0])])
