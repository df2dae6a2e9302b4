"""psMNIST (the paper's section 4.1): digits from their 784 pixels, one at a time, in a fixed random order.

Ours: one parallel LMU (d = 468, θ = 784, one memory channel, 346 outputs) whose last output is classified: 166,092
parameters. The paper gives these and Adam; epochs, batch and regularisation are chosen here, on validation data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import plmu
from plmu.experiments.baselines import LastOutput, lstm
from plmu.experiments.data import mnist
from plmu.runs.experiment import Config, Experiment
from plmu.runs.fields import Checked
from plmu.training.config import TrainingConfig
from plmu.training.task import Batch, Task


@dataclass
class PlmuModel(Checked):
    """The parallel LMU and a linear classifier."""

    order: int = 468
    """Legendre coefficients of the memory."""
    theta: float = 784.0
    """Window of the memory, in steps."""
    hidden: int = 346
    """Outputs of the LMU."""
    input_to_output: bool = True
    """Add the input to the output directly, through W_x."""
    noise: float = 0.7
    """Standard deviation of the noise added to the standardised memory in training."""
    memory_dropout: float = 0.2
    """Dropout rate of the memory coefficients."""
    dropout: float = 0.3
    """Dropout rate of the LMU outputs."""
    label_smoothing: float = 0.05
    """Label smoothing."""


@dataclass
class LSTMModel(Checked):
    """One LSTM layer and a linear classifier of its last output."""

    hidden: int = 200
    """Hidden units."""
    forget_bias: float = 1.0
    """Initial bias of the forget gates."""
    label_smoothing: float = 0.0
    """Label smoothing."""


@dataclass
class LMUModel(Checked):
    """The original LMU and a linear classifier of its last output."""

    order: int = 256
    """Legendre coefficients of the memory."""
    theta: float = 784.0
    """Window of the memory, in steps."""
    hidden: int = 212
    """Hidden units."""
    label_smoothing: float = 0.0
    """Label smoothing."""


class PermutedMNIST(Experiment):
    name = "psmnist"
    metric = "accuracy"
    percent = True
    paper: ClassVar[dict[str, float]] = {"plmu": 0.9849, "lstm": 0.8986, "lmu": 0.9715}
    models = ("plmu", "lstm", "lmu")
    streamable = ("plmu", "lmu")
    labels = tuple("0123456789")

    def defaults(self, model: str) -> Config[Any]:
        choices: dict[str, tuple[Any, TrainingConfig]] = {
            "plmu": (
                PlmuModel(),
                TrainingConfig(
                    epochs=120, batch_size=100, schedule="cosine", weight_decay=0.1, learning_rate=1e-3, warmup=0.02
                ),
            ),
            "lstm": (
                LSTMModel(),
                TrainingConfig(
                    epochs=30, batch_size=100, schedule="cosine", clip=1.0
                ),  # with learning rate 4e-3, one seed of three diverged
            ),
            "lmu": (LMUModel(), TrainingConfig(epochs=15, batch_size=100, schedule="cosine", clip=1.0)),
        }
        return Config(*choices[self.check(model)])

    def task(self, config: Config[Any]) -> Task:
        train, valid, test = mnist.permuted_sequences(config.data)
        smoothing = config.model.label_smoothing

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            return cross_entropy(_logits(model, batch).float(), batch[1], label_smoothing=smoothing)

        return Task(
            train,
            valid,
            test,
            loss=loss,
            measure=_measure,
            finish=lambda sums: {"accuracy": float(sums[0] / sums[1])},
            metric=self.metric,
            higher_is_better=True,
            evaluation_batch=2000,
            notes={"data": "MNIST, complete: 50,000 / 10,000 / 10,000"},
        )

    def build(self, config: Config[Any], task: Task) -> nn.Module:
        model = config.model
        if isinstance(model, LSTMModel):
            return LastOutput(lstm(1, model.hidden, forget_bias=model.forget_bias), nn.Linear(model.hidden, 10))
        if isinstance(model, LMUModel):
            layer = plmu.LMU(
                1, model.hidden, order=model.order, theta=model.theta, init="memory", return_sequences=False
            )
            return plmu.Sequential(layer, nn.Linear(model.hidden, 10))
        network = plmu.Sequential(
            plmu.ParallelLMU(
                1,
                model.hidden,
                order=model.order,
                theta=model.theta,
                input_to_output=model.input_to_output,
                standardize=True,
                memory_noise=model.noise,
                memory_dropout=model.memory_dropout,
                return_sequences=False,
            ),
            nn.Dropout(model.dropout),
            nn.Linear(model.hidden, 10),
        )
        plmu.standardize(network, task.train[0][:, :, None])
        return network


def _logits(model: nn.Module, batch: Batch) -> Tensor:
    logits: Tensor = model(batch[0][:, :, None])[0]
    return logits


def _measure(model: nn.Module, batch: Batch) -> Tensor:
    """The number of right answers, and of examples."""
    right = (_logits(model, batch).argmax(1) == batch[1]).sum()
    return torch.stack([right, torch.full_like(right, batch[1].shape[0])])
