"""`plmu bench training-time`: the paper's figure on training time, redone.

Left: a training step (batch, loss, gradients, Adam) of the original LMU, of our model run step by step (*LTI*, equation
19), and in parallel, on psMNIST and on Mackey-Glass, eager and, on a GPU, as a CUDA graph. Right: the step's time over
the length of the sequence. The data are random numbers of the right shapes; time does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from plmu.bench.measure import Keep, forget, medians, memories
from plmu.experiments import EXPERIMENTS
from plmu.training.loop import Trainer
from plmu.training.processes import processes
from plmu.training.task import Batch, Task

# For each task: the experiment, its sequence length on a GPU and on a CPU, the batch, and the models: name, model and
# the algorithm of its memory. Ratios are to the original LMU of as many parameters in one layer.
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


def run(device: str, rounds: int, keep: Keep = forget) -> dict[str, Any]:
    gpu = device != "cpu"
    left: list[dict[str, Any]] = []
    for task, (experiment, lengths, batch, models) in TASKS.items():
        steps = lengths[0] if gpu else lengths[1]
        times = {
            name: step_times(experiment, model, algorithm, steps, batch, device, rounds)
            for name, (model, algorithm) in models.items()
        }
        for name, found in times.items():
            left.append(
                {
                    "task": task,
                    "steps": steps,
                    "batch": batch,
                    "model": name,
                    "milliseconds": {kind: 1e3 * seconds for kind, seconds in found.items()},
                    "times faster than the original": {
                        kind: times["original LMU"][kind] / seconds for kind, seconds in found.items()
                    },
                }
            )
        keep({"training step": left})
    return {"training step": left, "over the length": over_the_length(device, rounds)}


def over_the_length(device: str, rounds: int) -> list[dict[str, float]]:
    """The step of our Mackey-Glass model, batch 8; step by step up to 2,048 steps."""
    gpu = device != "cpu"
    rows = []
    for steps in (1 << k for k in range(8, 16 if gpu else 12)):
        row: dict[str, float] = {"steps": steps}
        for name, algorithm in (("LTI", "recurrent"), ("parallel", "auto")):
            if algorithm == "auto" or steps <= 2048:
                found = step_times("mackey-glass", "plmu", algorithm, steps, 8, device, rounds)
                row[f"milliseconds, {name}"] = 1e3 * found["graph" if gpu else "eager"]
        rows.append(row)
    return rows


def step_times(
    experiment: str, model: str, algorithm: str | None, steps: int, batch: int, device: str, rounds: int
) -> dict[str, float]:
    """Seconds of a training step, eager and as a graph."""
    check(experiment, model, algorithm)
    found = {}
    with processes(device) as group:
        for kind in ("eager", "graph") if group.device.type == "cuda" else ("eager",):
            config = EXPERIMENTS[experiment].defaults(model)
            task = random_task(experiment, steps, batch)
            network = build(experiment, config, task, algorithm)
            training = replace(config.training, batch_size=batch, graph=kind == "graph")
            trainer = Trainer(task, network, training, group, 0)
            trainer.model.train()
            where = group.device.type
            found[kind] = medians({"step": trainer.one_step}, device=where, rounds=max(3, rounds // 3))["step"]
    return found


def random_task(experiment: str, steps: int, batch: int) -> Task:
    generator = torch.Generator().manual_seed(0)
    if experiment == "psmnist":
        data: Batch = (torch.rand(batch, steps, generator=generator), torch.randint(10, (batch,), generator=generator))
    else:
        data = tuple(torch.randn(2, batch, steps, 1, generator=generator).unbind())
    base: Task = _TASKS[experiment](data)
    return base


def _classify(data: Batch) -> Task:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0][:, :, None])[0], batch[1])

    return _task(data, loss)


def _predict(data: Batch) -> Task:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.mse_loss(model(batch[0])[0], batch[1])

    return _task(data, loss)


def _task(data: Batch, loss: Callable[[nn.Module, Batch], Tensor]) -> Task:
    def measure(model: nn.Module, batch: Batch) -> Tensor:
        return loss(model, batch)[None]

    return Task(
        data, data, data, loss=loss, measure=measure, finish=lambda sums: {"loss": float(sums[0])}, metric="loss",
        higher_is_better=False, evaluation_batch=data[0].shape[0],
    )  # fmt: skip


_TASKS = {"psmnist": _classify, "mackey-glass": _predict}


def build(experiment: str, config: Any, task: Task, algorithm: str | None) -> nn.Module:
    network = EXPERIMENTS[experiment].build(config, task)
    if algorithm is None:
        return network
    for memory in memories(network):
        memory.algorithm = algorithm
        if algorithm == "recurrent" and experiment == "psmnist":
            _step_by_step(memory)
    return network


def _step_by_step(memory: Any) -> None:
    """The final state by way of all states, as an RNN reaches it."""

    def final_state(u: Tensor, state: Tensor | None, lengths: Any, resets: Any) -> Tensor:
        last: Tensor = memory.states(u, state, lengths, resets)[1]
        return last

    memory.final_state = final_state


def check(experiment: str, model: str, algorithm: str | None) -> None:
    """Step by step and in parallel the loss is the same."""
    if algorithm != "recurrent":
        return
    config = EXPERIMENTS[experiment].defaults(model)
    task = random_task(experiment, 160, 2)
    losses = []
    for chosen in ("recurrent", "auto"):
        torch.manual_seed(0)
        network = build(experiment, config, task, chosen).eval()
        with torch.no_grad():
            losses.append(float(task.loss(network, task.train)))
    if abs(losses[0] - losses[1]) > 1e-4 * abs(losses[1]):
        raise RuntimeError(f"{experiment}: step by step the loss is {losses[0]}, in parallel {losses[1]}")
