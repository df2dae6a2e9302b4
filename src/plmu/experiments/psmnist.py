"""psMNIST (the paper's section 4.1): digits from their 784 pixels, one at a time, in a fixed random order.

Ours: one parallel LMU (d = 468, θ = 784, one memory channel, 346 outputs) whose last output is classified: 166,092
parameters. The paper gives these and Adam; epochs, batch and regularisation are chosen here, on validation data. The
memory is standardised, which is a reparametrisation of W_m and b_o and no parameter, and noise and dropout act on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

import plmu
from plmu.data import mnist
from plmu.experiments import encoder_last
from plmu.experiments.base import Config, Experiment
from plmu.experiments.baselines import lstm
from plmu.experiments.fields import Checked
from plmu.nn.steppable import Steppable
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
    """Whether the input enters the output directly, through W_x."""
    noise: float = 0.7
    """Standard deviation of the noise that is added to the standardised memory in training."""
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
                TrainingConfig(epochs=30, batch_size=100, schedule="cosine", clip=1.0),  # at 4e-3 one of three diverged
            ),
            "lmu": (LMUModel(), TrainingConfig(epochs=15, batch_size=100, schedule="cosine", clip=1.0)),
        }
        chosen, training = choices[self.check(model)]
        return Config(chosen, training)

    def task(self, config: Config[Any]) -> Task:
        train, valid, test = mnist.permuted_sequences(config.data)
        smoothing = config.model.label_smoothing

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            return cross_entropy(model(batch[0]).float(), batch[1], label_smoothing=smoothing)

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
        if isinstance(model, PlmuModel):
            return Ours(model, task.train[0])
        layer: nn.Module
        if isinstance(model, LSTMModel):
            layer = lstm(1, model.hidden, forget_bias=model.forget_bias)
        else:
            layer = plmu.LMU(
                1, model.hidden, order=model.order, theta=model.theta, init="memory", return_sequences=False
            )
        return LastOutput(layer, nn.Linear(model.hidden, 10))

    def deployable(self, model: nn.Module) -> Steppable | None:
        if isinstance(model, Ours):
            return model.plain()
        if isinstance(model, LastOutput) and isinstance(model.layer, Steppable):
            return plmu.Sequential(model.layer, model.out)
        return None


class Ours(nn.Module):
    """The parallel LMU with its memory standardised by the training data: m → (m − μ) / σ."""

    scale: Tensor  # 1 / σ
    shift: Tensor  # −μ / σ

    def __init__(self, config: PlmuModel, pixels: Tensor) -> None:
        super().__init__()
        self.noise, self.memory_dropout, self.dropout = config.noise, config.memory_dropout, config.dropout
        self.lmu = plmu.ParallelLMU(
            1,
            config.hidden,
            order=config.order,
            theta=config.theta,
            input_to_output=config.input_to_output,
            return_sequences=False,
        )
        self.out = nn.Linear(config.hidden, 10)
        with torch.no_grad():
            m = self.lmu.memory.final_state(pixels[:, :, None], None, None, None).flatten(1)
        self.register_buffer("scale", 1 / m.std(0))
        self.register_buffer("shift", -m.mean(0) / m.std(0))

    def forward(self, pixels: Tensor) -> Tensor:
        lmu = self.lmu
        x = pixels[:, :, None]
        m = encoder_last.final_state(lmu, x).flatten(1)  # equation 25
        z = torch.addcmul(self.shift, m, self.scale)
        if self.training and self.noise:
            z = torch.add(z, torch.randn_like(z), alpha=self.noise)
        z = dropout(z, self.memory_dropout, self.training)
        hidden = lmu._output(lmu._joint_product(z, x[:, -1], lmu.memory_weight))
        return dropout(hidden, self.dropout, self.training) @ self.out.weight.mT + self.out.bias

    def plain(self) -> Steppable:
        """The same function with μ and σ multiplied into W_m and b_o: ordinary layers."""
        lmu = plmu.ParallelLMU(**self.lmu.config)
        lmu.load_state_dict(self.lmu.state_dict())
        lmu.to(self.scale.device)
        assert lmu.bias is not None
        lmu.bias.data += lmu.memory_weight.data.flatten(1) @ self.shift
        lmu.memory_weight.data *= self.scale[:, None]
        return plmu.Sequential(lmu, self.out)


class LastOutput(nn.Module):
    """A recurrent layer and a classifier of its last output."""

    def __init__(self, layer: nn.Module, out: nn.Linear) -> None:
        super().__init__()
        self.layer, self.out = layer, out

    def forward(self, pixels: Tensor) -> Tensor:
        hidden = self.layer(pixels[:, :, None])[0]
        logits: Tensor = self.out(hidden if hidden.dim() == 2 else hidden[:, -1])
        return logits


def _measure(model: nn.Module, batch: Batch) -> Tensor:
    right = (model(batch[0]).argmax(1) == batch[1]).sum()
    return torch.stack([right, torch.full_like(right, batch[1].shape[0])])
