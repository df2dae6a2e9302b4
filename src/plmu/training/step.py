"""One training step: loss, gradients and update, in parts if asked, eagerly or as a captured CUDA graph."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

import plmu
from plmu.runtime.state_tree import leaves, map_state
from plmu.training.batches import Shape, Source
from plmu.training.config import TrainingConfig
from plmu.training.processes import Processes
from plmu.training.task import Batch, Task


class TrainingStep:
    """Takes steps on batches that are copied into its own tensors: a captured graph has their addresses."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: TrainingConfig,
        processes: Processes,
        source: Source,
        optimizers: list[torch.optim.Optimizer],
        on_device: bool,
        graphed: bool,
    ) -> None:
        self.model, self.task, self.config, self.processes = model, task, config, processes
        self.source, self.optimizers, self.on_device = source, optimizers, on_device
        self.device = processes.device
        self.trained: nn.Module = model
        if processes.count > 1:
            self.trained = nn.parallel.DistributedDataParallel(model)
        self.loss: Any = task.carried_loss if config.carry else task.loss
        if self.loss is None:
            raise ValueError("training.carry: this experiment cannot carry a state from batch to batch")
        if config.compile and self.device.type == "cuda":
            self.loss = torch.compile(self.loss, dynamic=False)
        self.average = [p.detach().clone() for p in model.parameters()] if config.average else None
        self.loss_sum = torch.zeros((), device=self.device, dtype=torch.float64)
        self.loaded = {shape: self._room(shape) for shape in source.shapes}
        self.shape = source.shapes[0]
        self.carried = self._no_state() if config.carry else None  # of each part of a batch
        self._replay: dict[Shape, Any] = {}
        if graphed:
            for shape in source.shapes:
                self.shape = shape
                self._replay[shape] = self._captured()

    def begin(self, anew: bool) -> None:
        """Prepare for the steps of an epoch. `anew`: from its first step, with a carried state of zeros."""
        self.trained.train()
        if anew:
            self._forget()

    def _forget(self) -> None:
        for leaf in leaves(self.carried):
            leaf.zero_()

    def load(self, shape: Shape, content: Batch) -> None:
        """Load the batch of the next step: keys of examples that lie on the device, or the examples."""
        self.shape = shape
        for room, value in zip(self.loaded[shape], content, strict=True):
            room.copy_(value, non_blocking=True)

    def run(self) -> None:
        """A step on the loaded batch."""
        if self._replay:
            self._replay[self.shape].replay()
        else:
            self.eager()

    def eager(self) -> None:
        parts = self._parts()
        shares = self._shares(parts)
        states = []
        for number, part in enumerate(parts):
            last = number + 1 == len(parts)
            with nullcontext() if last or self.processes.count == 1 else self.trained.no_sync():  # type: ignore[operator]
                with self.config.autocast(self.device):
                    if self.carried is None:
                        loss = self.loss(self.trained, part)
                    else:
                        loss, state = self.loss(self.trained, part, self.carried[number])
                        states.append(state)
                loss = loss if shares is None else loss * shares[number]
                loss.backward()
            self.loss_sum += loss.detach()
        for before, after in zip(leaves(self.carried), leaves(states), strict=True):
            before.copy_(after.detach())
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        if self.average is not None:
            assert self.config.average is not None
            blend = get_ema_multi_avg_fn(self.config.average)
            blend(self.average, [p.detach() for p in self.model.parameters()], 0)

    def _room(self, shape: Shape) -> Batch:
        """Tensors to load a batch of this shape into: its keys, or its content where the data is on the host."""
        keys = self.source.any_keys(shape)
        content = (keys,) if self.on_device else self.source.take(keys, shape)
        return tuple(part.to(self.device, copy=True) for part in content)

    def _parts(self) -> list[Batch]:
        """The loaded batch in `accumulate` parts, or one for each example if there are fewer."""
        loaded = self.loaded[self.shape]
        batch = self.source.take(loaded[0], self.shape) if self.on_device else loaded
        if self.config.accumulate == 1:
            return [batch]
        return list(zip(*(part.chunk(self.config.accumulate) for part in batch), strict=True))

    def _shares(self, parts: list[Batch]) -> Sequence[float] | Tensor | None:
        """The factor of each part's loss, so that the gradients' mean over processes is that of the mean loss
        over the whole batch. None means 1."""
        if self.task.weight is None:
            if len(parts) == 1 and self.shape.share == 1:
                return None
            return [self.shape.share * len(part[0]) / self.shape.rows for part in parts]
        weights = torch.stack([self.task.weight(part).to(torch.float32) for part in parts])
        total = weights.sum()
        if self.processes.count > 1:
            dist.all_reduce(total)
        return weights * (self.processes.count / total)

    def _no_state(self) -> list[Any]:
        """Zeros in the shape of the state of each part."""
        assert self.task.carried_loss is not None
        self.model.eval()
        states = []
        for part in self._parts():
            with torch.no_grad():
                _, state = self.task.carried_loss(self.model, part, None)
            states.append(map_state(state, torch.zeros_like))
        return states

    def _captured(self) -> torch.cuda.CUDAGraph:
        """A step on a batch of the current shape as a CUDA graph: one launch instead of a hundred."""
        snapshot = copy.deepcopy(self.model.state_dict())
        generators = torch.get_rng_state(), torch.cuda.get_rng_state(self.device)
        self.trained.train()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with plmu.for_graphs():
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self.eager()
            torch.cuda.current_stream().wait_stream(stream)
            pool = next((other.pool() for other in self._replay.values()), None)
            with torch.cuda.graph(graph, **({} if pool is None else {"pool": pool})):
                self.eager()
        self.model.load_state_dict(snapshot)  # in place, as all below: the graph has the addresses
        for state in (state for optimizer in self.optimizers for state in optimizer.state.values()):
            for value in state.values():
                value.zero_()
        if self.average is not None:
            for mean, value in zip(self.average, self.model.parameters(), strict=True):
                mean.copy_(value.detach())
        self.loss_sum.zero_()
        self._forget()
        torch.set_rng_state(generators[0])
        torch.cuda.set_rng_state(generators[1], self.device)
        return graph
