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
    """All that a run needs to be resumed. Every process calls it: each has its own random numbers."""
    processes, device = trainer.processes, trainer.device
    generator = [torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None]
    carried = [leaf.cpu() for leaf in leaves(trainer.stepping.carried)]
    generators, states = [generator], [carried]
    if processes.count > 1:
        gathered: list[Any] = [None] * processes.count
        dist.all_gather_object(gathered, (generator, carried))
        generators, states = [pair[0] for pair in gathered], [pair[1] for pair in gathered]
    parameters = parameters_of(trainer.optimizers)
    return {
        "plmu": plmu.__version__,
        "epoch": trainer.epoch,
        "step": trainer.step,
        "model": trainer.model.state_dict(),
        "average": trainer.average,
        "optimizer": {
            i: dict(optimizer.state[p]) for i, (optimizer, p) in enumerate(parameters) if p in optimizer.state
        },
        "generators": generators,
        "carried": states,
        "loss_sum": trainer.loss_sum,
        "history": trainer.history,
        "best": trainer.best,
        "seconds": trainer.seconds,
    }


def restore(trainer: Trainer, checkpoint: dict[str, Any]) -> None:
    """Set the state of a run from a checked checkpoint. Raises if it does not fit the run."""
    if not (0 <= checkpoint["epoch"] <= trainer.config.epochs and 0 <= checkpoint["step"] < trainer.steps_per_epoch):
        raise ValueError(f"it is of step {checkpoint['step']} in epoch {checkpoint['epoch']}")
    if checkpoint["best"] is not None:
        trainer.model.load_state_dict(checkpoint["best"]["model"])  # to see that it fits
        if not trainer.config.refit and not isinstance(checkpoint["best"]["scores"][trainer.task.metric], float):
            raise ValueError("the score of its best model is not a number")
    if not all(isinstance(value, int | float) for entry in checkpoint["history"] for value in entry.values()):
        raise ValueError("its history is not of numbers")
    trainer.model.load_state_dict(checkpoint["model"])
    if trainer.average is not None:
        for mean, value in zip(trainer.average, checkpoint["average"], strict=True):
            mean.copy_(value)
    _load_optimizers(trainer.optimizers, checkpoint["optimizer"])
    _load_carried(trainer, checkpoint.get("carried"))
    cpu, cuda = checkpoint["generators"][trainer.processes.rank % len(checkpoint["generators"])]
    torch.set_rng_state(cpu.cpu())
    if cuda is not None and trainer.device.type == "cuda":
        torch.cuda.set_rng_state(cuda.cpu(), trainer.device)
    trainer.loss_sum.copy_(checkpoint["loss_sum"])
    trainer.epoch, trainer.step = checkpoint["epoch"], checkpoint["step"]
    trainer.history, trainer.best, trainer.seconds = checkpoint["history"], checkpoint["best"], checkpoint["seconds"]


def _load_optimizers(optimizers: list[torch.optim.Optimizer], saved: dict[int, dict[str, Tensor]]) -> None:
    """Set the optimisers' states, in place where a captured graph already has the addresses."""
    parameters = parameters_of(optimizers)
    for number, values in saved.items():
        if values.keys() not in KEPT:
            raise ValueError(f"the optimiser's state has the names {', '.join(map(str, values))}")
        optimizer, parameter = parameters[number]
        state = optimizer.state[parameter]
        for name, value in values.items():
            if value.shape not in ((), parameter.shape, (parameter.shape[0], parameter[0].numel())):
                raise ValueError(f"the optimiser's {name!r} has the shape {tuple(value.shape)}")
            if name in state:
                state[name].copy_(value)
            else:
                state[name] = value.to(parameter.device, copy=True)


def _load_carried(trainer: Trainer, saved: list[list[Tensor]] | None) -> None:
    """Set the states that this process carries from batch to batch."""
    buffers = leaves(trainer.stepping.carried)
    if not buffers:
        return
    if saved is None or len(saved) != trainer.processes.count:
        raise ValueError(f"its carried states are not of {trainer.processes.count} processes")
    for buffer, value in zip(buffers, saved[trainer.processes.rank], strict=True):
        if buffer.shape != value.shape:
            raise ValueError(f"a carried state has the shape {tuple(value.shape)}, not {tuple(buffer.shape)}")
        buffer.copy_(value)
