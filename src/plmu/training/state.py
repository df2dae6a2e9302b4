"""The state of a training run as the content of a checkpoint, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

import plmu

if TYPE_CHECKING:
    from plmu.training.loop import Trainer

ADAM = {"step", "exp_avg", "exp_avg_sq"}  # what the optimiser keeps for each parameter


def snapshot(trainer: Trainer) -> dict[str, Any]:
    """All that decides how the run goes on. Every process calls it: each has random numbers of its own."""
    processes, device = trainer.processes, trainer.device
    own = [torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None]
    generators: list[Any] = [own]
    if processes.count > 1:
        generators = [None] * processes.count
        dist.all_gather_object(generators, own)
    return {
        "plmu": plmu.__version__,
        "epoch": trainer.epoch,
        "step": trainer.step,
        "model": trainer.model.state_dict(),
        "average": trainer.average,
        "optimizer": trainer.optimizer.state_dict()["state"],
        "generators": generators,
        "loss_sum": trainer.loss_sum,
        "history": trainer.history,
        "best": trainer.best,
        "seconds": trainer.seconds,
    }


def restore(trainer: Trainer, found: dict[str, Any]) -> None:
    """Go on from a checkpoint whose fields are there and of their types. Raises where it does not fit the run."""
    if not (0 <= found["epoch"] <= trainer.config.epochs and 0 <= found["step"] < trainer.steps_per_epoch):
        raise ValueError(f"it is of step {found['step']} in epoch {found['epoch']}")
    if found["best"] is not None:
        trainer.model.load_state_dict(found["best"]["model"])  # to see that it fits
        if not trainer.config.refit and not isinstance(found["best"]["scores"][trainer.task.metric], float):
            raise ValueError("the score of its best model is not a number")
    if not all(isinstance(value, int | float) for entry in found["history"] for value in entry.values()):
        raise ValueError("its history is not of numbers")
    trainer.model.load_state_dict(found["model"])
    if trainer.average is not None:
        for mean, value in zip(trainer.average, found["average"], strict=True):
            mean.copy_(value)
    _load_optimizer(trainer.optimizer, found["optimizer"])
    cpu, cuda = found["generators"][trainer.processes.rank % len(found["generators"])]
    torch.set_rng_state(cpu.cpu())
    if cuda is not None and trainer.device.type == "cuda":
        torch.cuda.set_rng_state(cuda.cpu(), trainer.device)
    trainer.loss_sum.copy_(found["loss_sum"])
    trainer.epoch, trainer.step = found["epoch"], found["step"]
    trainer.history, trainer.best, trainer.seconds = found["history"], found["best"], found["seconds"]


def _load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[int, dict[str, Tensor]]) -> None:
    """In place where a captured graph already has the addresses."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, values in saved.items():
        if values.keys() != ADAM:
            raise ValueError(f"the optimiser's state has the names {', '.join(map(str, values))}")
        state = optimizer.state[parameters[number]]
        for name, value in values.items():
            if value.shape not in ((), parameters[number].shape):
                raise ValueError(f"the optimiser's {name!r} has the shape {tuple(value.shape)}")
            if name in state:
                state[name].copy_(value)
            else:
                state[name] = value.to(parameters[number].device, copy=True)
