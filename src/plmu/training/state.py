"""The state of a training run as the content of a checkpoint, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

import plmu
from plmu.runtime.state_tree import leaves
from plmu.training.optimizers import parameters_of

if TYPE_CHECKING:
    from plmu.training.loop import Trainer

KEPT = ({"step", "exp_avg", "exp_avg_sq"}, {"momentum"})  # what AdamW and Muon keep for each parameter


def snapshot(trainer: Trainer) -> dict[str, Any]:
    """All that decides how the run goes on. Every process calls it: each has random numbers of its own."""
    processes, device = trainer.processes, trainer.device
    own = [torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None]
    carried = [leaf.cpu() for leaf in leaves(trainer.stepping.carried)]
    generators, states = [own], [carried]
    if processes.count > 1:
        both: list[Any] = [None] * processes.count
        dist.all_gather_object(both, (own, carried))
        generators, states = [one[0] for one in both], [one[1] for one in both]
    known = parameters_of(trainer.optimizers)
    return {
        "plmu": plmu.__version__,
        "epoch": trainer.epoch,
        "step": trainer.step,
        "model": trainer.model.state_dict(),
        "average": trainer.average,
        "optimizer": {i: dict(one.state[p]) for i, (one, p) in enumerate(known) if p in one.state},
        "generators": generators,
        "carried": states,
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
    _load_optimizers(trainer.optimizers, found["optimizer"])
    _load_carried(trainer, found.get("carried"))
    cpu, cuda = found["generators"][trainer.processes.rank % len(found["generators"])]
    torch.set_rng_state(cpu.cpu())
    if cuda is not None and trainer.device.type == "cuda":
        torch.cuda.set_rng_state(cuda.cpu(), trainer.device)
    trainer.loss_sum.copy_(found["loss_sum"])
    trainer.epoch, trainer.step = found["epoch"], found["step"]
    trainer.history, trainer.best, trainer.seconds = found["history"], found["best"], found["seconds"]


def _load_optimizers(optimizers: list[torch.optim.Optimizer], saved: dict[int, dict[str, Tensor]]) -> None:
    """In place where a captured graph already has the addresses."""
    known = parameters_of(optimizers)
    for number, values in saved.items():
        if values.keys() not in KEPT:
            raise ValueError(f"the optimiser's state has the names {', '.join(map(str, values))}")
        optimizer, parameter = known[number]
        state = optimizer.state[parameter]
        for name, value in values.items():
            if value.shape not in ((), parameter.shape, (parameter.shape[0], parameter[0].numel())):
                raise ValueError(f"the optimiser's {name!r} has the shape {tuple(value.shape)}")
            if name in state:
                state[name].copy_(value)
            else:
                state[name] = value.to(parameter.device, copy=True)


def _load_carried(trainer: Trainer, saved: list[list[Tensor]] | None) -> None:
    """The states that are carried from batch to batch, of each process its own."""
    buffers = leaves(trainer.stepping.carried)
    if not buffers:
        return
    if saved is None or len(saved) != trainer.processes.count:
        raise ValueError(f"its carried states are not of {trainer.processes.count} processes")
    for buffer, value in zip(buffers, saved[trainer.processes.rank], strict=True):
        if buffer.shape != value.shape:
            raise ValueError(f"a carried state has the shape {tuple(value.shape)}, not {tuple(buffer.shape)}")
        buffer.copy_(value)
