"""Mackey-Glass (the paper's section 4.2): predict a chaotic series 15 steps ahead.

Ours: one parallel LMU (d = 40, θ = 50, one memory channel, 140 outputs) and a dense layer of 80: 17,243 parameters. The
paper gives these, 500 epochs and Adam; the rest is chosen here. The memory is standardised, because its high orders are
small and Adam would learn them slowly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

import plmu
from plmu.experiments.baselines import lstm
from plmu.experiments.data import mackey_glass
from plmu.runs.experiment import Config, Experiment
from plmu.runs.fields import Checked
from plmu.training.config import TrainingConfig
from plmu.training.task import Batch, Task

WARMUP = 100  # steps that the second score leaves out: after them all windows are full
ACTIVATION_MODULES: dict[str, type[nn.Module]] = {  # as modules, which can be saved and streamed
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "leaky_relu": nn.LeakyReLU,
    "softplus": nn.Softplus,
    "softsign": nn.Softsign,
}


@dataclass
class PlmuModel(Checked):
    """The parallel LMU and a dense layer."""

    order: int = 40
    """Legendre coefficients of the memory."""
    theta: float = 50.0
    """Window of the memory, in steps."""
    hidden: int = 140
    """Outputs of the LMU."""
    dense: int = 80
    """Outputs of the dense layer after it."""
    activation: str = "gelu"
    """Activation of both layers."""
    standardise: bool = True
    """Standardise the memory to zero mean and unit variance before W_m."""


@dataclass
class LSTMModel(Checked):
    """LSTM layers and a linear output."""

    hidden: int = 25
    """Units of each layer."""
    layers: int = 4
    """Number of layers."""
    forget_bias: float = 1.0
    """Initial bias of the forget gates."""


@dataclass
class LMUModel(Checked):
    """Layers of the original LMU and a linear output."""

    order: int = 4
    """Legendre coefficients of each memory."""
    theta: float = 4.0
    """Window of each memory, in steps."""
    hidden: int = 49
    """Units of each layer."""
    layers: int = 4
    """Number of layers."""
    init: Literal["general", "memory"] = "general"
    """Weight initialisation."""


@dataclass
class HybridModel(Checked):
    """Original LMU in layers 1 and 3, LSTM in layers 2 and 4, and a linear output."""

    order: int = 4
    """Legendre coefficients of each memory."""
    theta: float = 4.0
    """Window of each memory, in steps."""
    lmu_hidden: int = 40
    """Units of an LMU layer."""
    lstm_hidden: int = 25
    """Units of an LSTM layer."""
    init: Literal["general", "memory"] = "memory"
    """Weight initialisation of the LMU."""
    forget_bias: float = 1.0
    """Initial bias of the forget gates."""


class MackeyGlass(Experiment):
    name = "mackey-glass"
    metric = "nrmse"
    paper: ClassVar[dict[str, float]] = {"plmu": 0.044, "lstm": 0.059, "lmu": 0.049, "hybrid": 0.045}
    models = ("plmu", "lstm", "lmu", "hybrid", "lmu-single")
    streamable = ("plmu", "lmu", "lmu-single")
    ahead = mackey_glass.HORIZON

    def defaults(self, model: str) -> Config[Any]:
        ours = TrainingConfig(epochs=500, batch_size=2, learning_rate=5e-3, schedule="cosine", evaluate_every=5)
        baseline = replace(ours, batch_size=8)
        choices: dict[str, tuple[Any, TrainingConfig]] = {
            "plmu": (PlmuModel(), ours),
            "lstm": (LSTMModel(), baseline),
            "lmu": (LMUModel(), replace(baseline, learning_rate=2e-3, clip=1.0)),
            "hybrid": (HybridModel(), baseline),
            "lmu-single": (
                LMUModel(order=40, theta=50.0, hidden=111, layers=1),
                replace(baseline, learning_rate=1e-3, clip=1.0),
            ),
        }
        return Config(*choices[self.check(model)])

    def task(self, config: Config[Any]) -> Task:
        train, valid, test = mackey_glass.prediction_task()
        return Task(
            train,
            valid,
            test,
            loss=lambda model, batch: nn.functional.mse_loss(_output(model, batch[0]), batch[1]),
            measure=_measure,
            finish=_finish,
            metric=self.metric,
            higher_is_better=False,
            evaluation_batch=32,
            notes={"data": "generated; complete"},
        )

    def build(self, config: Config[Any], task: Task) -> nn.Module:
        model = config.model
        if isinstance(model, PlmuModel):
            network = plmu.Sequential(
                plmu.ParallelLMU(
                    1,
                    model.hidden,
                    order=model.order,
                    theta=model.theta,
                    output_activation=model.activation,
                    standardize=model.standardise,
                ),
                nn.Linear(model.hidden, model.dense),
                ACTIVATION_MODULES[model.activation](),
                nn.Linear(model.dense, 1),
            )
            if model.standardise:
                plmu.standardize(network, task.train[0])
            return network
        if isinstance(model, LSTMModel):
            return Recurrent(lstm(1, model.hidden, model.layers, model.forget_bias), nn.Linear(model.hidden, 1))
        if isinstance(model, LMUModel):
            sizes = [1] + [model.hidden] * model.layers
            lmus = [plmu.LMU(a, b, order=model.order, theta=model.theta, init=model.init) for a, b in pairwise(sizes)]
            return plmu.Sequential(*lmus, nn.Linear(model.hidden, 1))
        a, b = model.lmu_hidden, model.lstm_hidden
        return Recurrent(
            plmu.LMU(1, a, order=model.order, theta=model.theta, init=model.init),
            lstm(a, b, forget_bias=model.forget_bias),
            plmu.LMU(b, a, order=model.order, theta=model.theta, init=model.init),
            lstm(a, b, forget_bias=model.forget_bias),
            nn.Linear(b, 1),
        )


class Recurrent(nn.Module):
    """Layers in a row, of which all but the linear ones return outputs and a state. Returns no state itself."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        for layer in self.layers:
            x = layer(x) if isinstance(layer, nn.Linear) else layer(x)[0]
        return x, None


def _output(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x)[0]
    return out


def _measure(model: nn.Module, batch: Batch) -> Tensor:
    """Sums of squared errors and of squared targets over whole series, and the same two after the warm-up."""
    x, y = batch
    error = (_output(model, x).double() - y.double()).square()
    target = y.double().square()
    return torch.stack([error.sum(), target.sum(), error[:, WARMUP:].sum(), target[:, WARMUP:].sum()])


def _finish(sums: Tensor) -> dict[str, float]:
    return {"nrmse": float((sums[0] / sums[1]).sqrt()), "nrmse_after_100": float((sums[2] / sums[3]).sqrt())}
