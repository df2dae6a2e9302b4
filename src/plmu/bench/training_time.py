"""`plmu bench training-time`: the paper's figure on training time, redone.

Left: a training step (batch, loss, gradients, Adam) of the original LMU, of our model run step by step (*LTI*, equation
19), and in parallel, on psMNIST and on Mackey-Glass, eager and, on a GPU, as a CUDA graph. Right: the step's time over
the length of the sequence. The models and their training are those of `plmu train psmnist` and `mackey-glass`. The data
are random numbers of the same shapes; time does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import plmu
from plmu.bench.measure import Keep, forget, medians, memories
from plmu.training.config import TrainingConfig
from plmu.training.loop import Trainer
from plmu.training.processes import processes
from plmu.training.task import Batch, Task

# For each task: the data, the sequence length on a GPU and on a CPU, the batch, and the models: name, model and the
# algorithm of its memory. Ratios are to the original LMU of as many parameters in one layer.
TASKS = {
    "psMNIST": (
        "psmnist",
        (784, 196),
        100,
        {"original LMU": ("lmu", None), "ours, LTI": ("plmu", "recurrent"), "ours, parallel": ("plmu", "auto")},
    ),
    "Mackey-Glass": (
        "mackey-glass",
        (5000, 250),
        32,
        {
            "original LMU": ("lmu-single", None),
            "original LMU, four layers": ("lmu", None),
            "ours, LTI": ("plmu", "recurrent"),
            "ours, parallel": ("plmu", "auto"),
        },
    ),
}


def _psmnist_plmu() -> plmu.Sequential:
    layer = plmu.ParallelLMU(
        1,
        346,
        order=468,
        theta=784.0,
        standardize=True,
        memory_noise=0.7,
        memory_dropout=0.2,
        return_sequences=False,
    )
    return plmu.Sequential(layer, nn.Dropout(0.3), nn.Linear(346, 10))


def _psmnist_lmu() -> plmu.Sequential:
    layer = plmu.LMU(1, 212, order=256, theta=784.0, init="memory", return_sequences=False)
    return plmu.Sequential(layer, nn.Linear(212, 10))


def _mackey_glass_plmu() -> plmu.Sequential:
    layer = plmu.ParallelLMU(1, 140, order=40, theta=50.0, output_activation="gelu", standardize=True)
    return plmu.Sequential(layer, nn.Linear(140, 80), nn.GELU(), nn.Linear(80, 1))


def _mackey_glass_lmu() -> plmu.Sequential:
    layers = (plmu.LMU(inputs, 49, order=4, theta=4.0) for inputs in (1, 49, 49, 49))
    return plmu.Sequential(*layers, nn.Linear(49, 1))


def _mackey_glass_lmu_single() -> plmu.Sequential:
    return plmu.Sequential(plmu.LMU(1, 111, order=40, theta=50.0), nn.Linear(111, 1))


_PSMNIST = TrainingConfig(batch_size=100, schedule="cosine")
_MACKEY_GLASS = TrainingConfig(epochs=500, batch_size=8, schedule="cosine", evaluate_every=5)
# How each model is built and trained.
MODELS: dict[str, dict[str, tuple[Callable[[], plmu.Sequential], TrainingConfig]]] = {
    "psmnist": {
        "plmu": (_psmnist_plmu, replace(_PSMNIST, epochs=120, weight_decay=0.1, warmup=0.02)),
        "lmu": (_psmnist_lmu, replace(_PSMNIST, epochs=15, clip=1.0)),
    },
    "mackey-glass": {
        "plmu": (_mackey_glass_plmu, replace(_MACKEY_GLASS, batch_size=2, learning_rate=5e-3)),
        "lmu": (_mackey_glass_lmu, replace(_MACKEY_GLASS, learning_rate=2e-3, clip=1.0)),
        "lmu-single": (_mackey_glass_lmu_single, replace(_MACKEY_GLASS, learning_rate=1e-3, clip=1.0)),
    },
}


def run(device: str, rounds: int, keep: Keep = forget) -> dict[str, Any]:
    """Tables of the time of a training step: of each task's models, over the full length on a GPU and a shorter one on
    a CPU; and over the length of the sequence."""
    gpu = device != "cpu"
    rows: list[dict[str, Any]] = []
    for task, (data, lengths, batch, models) in TASKS.items():
        steps = lengths[0] if gpu else lengths[1]
        times = {
            name: step_times(data, model, algorithm, steps, batch, device, rounds)
            for name, (model, algorithm) in models.items()
        }
        for name, seconds in times.items():
            rows.append(
                {
                    "task": task,
                    "steps": steps,
                    "batch": batch,
                    "model": name,
                    "milliseconds": {mode: 1e3 * value for mode, value in seconds.items()},
                    "times faster than the original": {
                        mode: times["original LMU"][mode] / value for mode, value in seconds.items()
                    },
                }
            )
        keep({"training step": rows})
    return {"training step": rows, "over the length": over_the_length(device, rounds)}


def over_the_length(device: str, rounds: int) -> list[dict[str, float]]:
    """The step of our Mackey-Glass model, batch 8; step by step up to 2,048 steps."""
    gpu = device != "cpu"
    rows = []
    for steps in (1 << k for k in range(8, 16 if gpu else 12)):
        row: dict[str, float] = {"steps": steps}
        for name, algorithm in (("LTI", "recurrent"), ("parallel", "auto")):
            if algorithm == "auto" or steps <= 2048:
                seconds = step_times("mackey-glass", "plmu", algorithm, steps, 8, device, rounds)
                row[f"milliseconds, {name}"] = 1e3 * seconds["graph" if gpu else "eager"]
        rows.append(row)
    return rows


def step_times(
    data: str, model: str, algorithm: str | None, steps: int, batch: int, device: str, rounds: int
) -> dict[str, float]:
    """Seconds of a training step, eager and, on a GPU, as a graph."""
    check(data, model, algorithm)
    seconds = {}
    with processes(device) as group:
        kind = group.device.type
        for mode in ("eager", "graph") if kind == "cuda" else ("eager",):
            task = random_task(data, steps, batch)
            network = build(data, model, task, algorithm)
            training = replace(MODELS[data][model][1], batch_size=batch, graph=mode == "graph")
            trainer = Trainer(task, network, training, group, 0)
            trainer.model.train()
            seconds[mode] = medians({"step": trainer.stepping.run}, device=kind, rounds=max(3, rounds // 3))["step"]
    return seconds


def random_task(data: str, steps: int, batch: int) -> Task:
    """Random numbers in the shapes of psMNIST or Mackey-Glass, with that experiment's loss."""
    generator = torch.Generator().manual_seed(0)
    if data == "psmnist":
        pixels = torch.rand(batch, steps, generator=generator)
        examples: Batch = (pixels, torch.randint(10, (batch,), generator=generator))
    else:
        examples = tuple(torch.randn(2, batch, steps, 1, generator=generator).unbind())

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        out: Tensor = model(_inputs(batch))[0]
        return (
            nn.functional.cross_entropy(out, batch[1]) if data == "psmnist" else nn.functional.mse_loss(out, batch[1])
        )

    return Task(
        examples,
        examples,
        examples,
        loss=loss,
        measure=lambda model, batch: loss(model, batch)[None],
        finish=lambda sums: {"loss": float(sums[0])},
        metric="loss",
        higher_is_better=False,
        evaluation_batch=batch,
    )


def _inputs(batch: Batch) -> Tensor:
    """(batch, time, 1)"""
    return batch[0] if batch[0].dim() == 3 else batch[0][:, :, None]


def build(data: str, model: str, task: Task, algorithm: str | None) -> nn.Module:
    """A model of `MODELS`, standardised on the task's data, whose memories use this algorithm."""
    network = MODELS[data][model][0]()
    if algorithm is None:
        return network
    plmu.standardize(network, _inputs(task.train))
    for memory in memories(network):
        memory.algorithm = algorithm
        if algorithm == "recurrent" and data == "psmnist":
            _step_by_step(memory)
    return network


def _step_by_step(memory: Any) -> None:
    """The final state by way of all states, as an RNN reaches it."""

    def final_state(u: Tensor, state: Tensor | None, lengths: Any, resets: Any) -> Tensor:
        last: Tensor = memory.states(u, state, lengths, resets)[1]
        return last

    memory.final_state = final_state


def check(data: str, model: str, algorithm: str | None) -> None:
    """Raise RuntimeError unless the loss step by step is the loss in parallel."""
    if algorithm != "recurrent":
        return
    task = random_task(data, 160, 2)
    losses = []
    for name in ("recurrent", "auto"):
        torch.manual_seed(0)
        network = build(data, model, task, name).eval()
        with torch.no_grad():
            losses.append(float(task.loss(network, task.train)))
    if abs(losses[0] - losses[1]) > 1e-4 * abs(losses[1]):
        raise RuntimeError(f"{data}: step by step the loss is {losses[0]}, in parallel {losses[1]}")
