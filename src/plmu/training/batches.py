"""Where batches come from: examples, examples of similar length, or windows of one long stream.

A source says which examples each step of an epoch takes, and gathers them. The data may lie on the device, or on the
host, in memory or in a mapped file: then the next batch is gathered while the device works on this one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from plmu.training.config import TrainingConfig
from plmu.training.processes import Processes
from plmu.training.task import Batch, Task

MOST_BUCKETS = 8  # each has a CUDA graph of its own
SHARE = 4  # training data may take this part of a device's free memory: 1 / SHARE


@dataclass(frozen=True)
class Shape:
    """The size of a batch: examples of this process, and the length to which each tensor is cut."""

    rows: int
    cut: tuple[int | None, ...] = ()
    share: float = 1.0  # weight of the mean loss of these rows in the mean over processes


@dataclass(frozen=True)
class Step:
    """One step of an epoch: the keys of its examples, of all processes."""

    keys: Tensor
    shape: Shape


class Source(ABC):
    """The training data of a task."""

    def __init__(self, tensors: Batch) -> None:
        self.tensors = tensors

    @property
    @abstractmethod
    def shapes(self) -> list[Shape]:
        """The shapes of this process's batches."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps per epoch."""

    @abstractmethod
    def order(self, generator: torch.Generator) -> list[Step]:
        """The steps of an epoch, shuffled. An incomplete batch is left out; its examples differ from epoch to epoch."""

    @abstractmethod
    def take(self, keys: Tensor, shape: Shape) -> Batch:
        """The examples of these keys."""

    def any_keys(self, shape: Shape) -> Tensor:
        """Keys of any examples of this shape, for allocating memory and capturing graphs."""
        return torch.zeros(shape.rows, dtype=torch.int64)

    @abstractmethod
    def first(self, count: int) -> Batch:
        """The first examples, at most `count`."""


class Examples(Source):
    """Tensors whose first axis is the example, in batches of equal size."""

    def __init__(self, tensors: Batch, batch: int, processes: int) -> None:
        super().__init__(tensors)
        self.batch, self.processes = batch, processes

    @property
    def shapes(self) -> list[Shape]:
        return [Shape(self.batch // self.processes)]

    @property
    def steps(self) -> int:
        return self.tensors[0].shape[0] // self.batch

    def order(self, generator: torch.Generator) -> list[Step]:
        mixed = torch.randperm(self.tensors[0].shape[0], generator=generator)
        return [Step(keys, self.shapes[0]) for keys in mixed[: self.steps * self.batch].split(self.batch)]

    def take(self, keys: Tensor, shape: Shape) -> Batch:
        return tuple(part[keys] for part in self.tensors)

    def first(self, count: int) -> Batch:
        return tuple(part[:count] for part in self.tensors)


class Buckets(Examples):
    """Batches of examples of similar length, with at most `tokens` tokens each, padding included.

    The examples are sorted by length into a few buckets with about as many tokens each; a bucket's batches are cut to
    the length of its longest example. A batch has at least one example for each process, even if that is more than
    `tokens`. The number of processes changes nothing else: they share a batch as evenly as possible.
    """

    def __init__(self, tensors: Batch, lengths: Sequence[Tensor | None], tokens: int, processes: Processes) -> None:
        super().__init__(tensors, 0, processes.count)
        on_host = [None if part is None else part.cpu().long() for part in lengths]
        longest = torch.stack([part for part in on_host if part is not None]).amax(0).clamp(min=1)
        count = processes.count
        if len(longest) < count:
            raise ValueError(f"{count} processes need as many training examples, got {len(longest)}")
        ordered = longest.argsort(stable=True)
        mass = longest[ordered].cumsum(0)
        wanted = torch.arange(1, MOST_BUCKETS + 1) * int(mass[-1]) // MOST_BUCKETS
        starts = [0]
        for end in (torch.searchsorted(mass, wanted) + 1).tolist():
            if end - starts[-1] >= count and (len(longest) - end >= count or end == len(longest)):
                starts.append(end)  # else this bucket or the rest has too few examples for a batch
        self.buckets: list[tuple[Tensor, int, Shape]] = []  # members, batch over all processes, shape
        for start, end in pairwise(starts):
            members = ordered[start:end]
            width = int(longest[members[-1]])
            batch = max(count, min(tokens // width, len(members)))
            rows = len(range(batch)[processes.share(batch)])
            cut = tuple(None if part is None else max(1, int(part[members].max())) for part in on_host)
            self.buckets.append((members, batch, Shape(rows, cut, rows * count / batch)))

    @property
    def shapes(self) -> list[Shape]:
        return list(dict.fromkeys(shape for _, _, shape in self.buckets))

    @property
    def steps(self) -> int:
        return sum(len(members) // batch for members, batch, _ in self.buckets)

    def order(self, generator: torch.Generator) -> list[Step]:
        steps = []
        for members, batch, shape in self.buckets:
            mixed = members[torch.randperm(len(members), generator=generator)]
            steps += [Step(keys, shape) for keys in mixed[: len(members) // batch * batch].split(batch)]
        return [steps[i] for i in torch.randperm(len(steps), generator=generator).tolist()]

    def any_keys(self, shape: Shape) -> Tensor:
        return next(members[: shape.rows] for members, _, other in self.buckets if other == shape)

    def take(self, keys: Tensor, shape: Shape) -> Batch:
        return tuple(
            part[keys] if cut is None else part[keys, :cut] for part, cut in zip(self.tensors, shape.cut, strict=True)
        )


class Windows(Source):
    """A stream of tokens (time,) in windows: inputs and, one step on, targets, both (batch, length).

    In each epoch the windows begin elsewhere and come in another order. With `carry` a batch continues where the batch
    before it ended: each row reads its own part of the stream from beginning to end. The part of the stream that no row
    reads differs from epoch to epoch.
    """

    def __init__(self, tokens: Tensor, length: int, batch: int, processes: int, carry: bool = False) -> None:
        super().__init__((tokens,))
        self.length, self.batch, self.processes, self.carry = length, batch, processes, carry
        self.windows = (len(tokens) - 1) // length - 1  # one is spare, for the shift
        if self.windows < batch:
            raise ValueError(
                f"training.batch_size = {batch} windows of {length} tokens need {(batch + 1) * length + 1:,} training"
                f" tokens, got {len(tokens):,}: choose a smaller training.batch_size or model.length"
            )
        self.ahead = torch.arange(length + 1, device=tokens.device)

    @property
    def shapes(self) -> list[Shape]:
        return [Shape(self.batch // self.processes)]

    @property
    def steps(self) -> int:
        return self.windows // self.batch

    def order(self, generator: torch.Generator) -> list[Step]:
        spare = self.windows - self.steps * self.batch if self.carry else 0  # windows that no row reads
        shift = int(torch.randint(self.length * (1 + spare), (), generator=generator))
        if self.carry:
            rows = torch.arange(self.batch) * self.steps
            windows = torch.arange(self.steps)[:, None] + rows
        else:
            mixed = torch.randperm(self.windows, generator=generator)
            windows = mixed[: self.steps * self.batch].reshape(self.steps, self.batch)
        return [Step(keys, self.shapes[0]) for keys in (shift + self.length * windows).unbind()]

    def take(self, keys: Tensor, shape: Shape) -> Batch:
        tokens = self.tensors[0][keys[:, None] + self.ahead].long()
        return tokens[:, :-1], tokens[:, 1:]

    def first(self, count: int) -> Batch:
        keys = self.length * torch.arange(min(count, self.windows), device=self.ahead.device)
        return self.take(keys, self.shapes[0])


def source_of(task: Task, config: TrainingConfig, processes: Processes) -> Source:
    """The training data of a task in batches as configured, on the device where it is."""
    count, multiple = processes.count, processes.count * config.accumulate
    if config.batch_tokens is not None and task.lengths is None:
        raise ValueError("training.batch_tokens is for examples of different lengths: use training.batch_size")
    if task.window is not None:
        batch = _whole_batch(config.batch_size, count, config.accumulate)
        return Windows(task.train[0], task.window, batch, count, config.carry)
    if config.carry:
        raise ValueError("training.carry is for streams of tokens: these training data are single examples")
    if config.batch_tokens is not None:
        assert task.lengths is not None
        return Buckets(task.train, task.lengths(task.train), config.batch_tokens, processes)
    batch, examples = _whole_batch(config.batch_size, count, config.accumulate), task.train[0].shape[0]
    if examples < multiple:
        raise ValueError(
            f"there are {examples} training examples: at least {multiple} are needed, one for each process and part of"
            " training.accumulate"
        )
    return Examples(task.train, min(batch, examples // multiple * multiple), count)


def _whole_batch(size: int, processes: int, accumulate: int) -> int:
    if size % processes:
        raise ValueError(f"training.batch_size = {size} must be divisible by the {processes} processes")
    if size // processes % accumulate:
        raise ValueError(
            f"training.batch_size = {size} must be divisible by training.accumulate = {accumulate}"
            + (f" times the {processes} processes" if processes > 1 else "")
        )
    return size


def fits(tensors: Batch, device: torch.device) -> bool:
    """Whether training data takes at most a quarter of the device's free memory."""
    if device.type != "cuda":
        return True
    return sum(part.nbytes for part in tensors) * SHARE <= torch.cuda.mem_get_info(device)[0]


class Prefetcher:
    """Gathers batches of host data in a thread, each while its predecessor is in use. For a GPU, in pinned memory."""

    def __init__(self, source: Source, device: torch.device) -> None:
        self.source, self.pin = source, device.type == "cuda"

    def batches(self, steps: Sequence[tuple[Tensor, Shape]]) -> Generator[Batch]:
        """The batches of these steps in order. A background thread is one batch ahead."""
        with ThreadPoolExecutor(1) as pool:
            waiting: Any = None
            for keys, shape in steps:
                coming = pool.submit(self._take, keys, shape)
                if waiting is not None:
                    yield waiting.result()
                waiting = coming
            if waiting is not None:
                yield waiting.result()

    def _take(self, keys: Tensor, shape: Shape) -> Batch:
        batch = self.source.take(keys, shape)
        return tuple(part.pin_memory() for part in batch) if self.pin else batch
