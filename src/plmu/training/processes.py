"""One process or many: the same code, started alone or by torchrun."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from plmu.errors import DataError, Diverged

Value = TypeVar("Value")

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


@dataclass(frozen=True)
class Processes:
    """The rank of this process, the number of processes, and the device of this one."""

    rank: int
    count: int
    device: torch.device

    @property
    def writes(self) -> bool:
        """Only the first process writes files and talks."""
        return self.rank == 0

    def share(self, size: int) -> slice:
        """This process's part of a batch. The parts differ by at most one example."""
        return slice(self.rank * size // self.count, (self.rank + 1) * size // self.count)

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.count > 1:
            shared = value.to(self.device)  # a process on a GPU adds up there
            dist.all_reduce(shared)
            if shared is not value:
                value.copy_(shared)
        return value

    def mean(self, values: Tensor) -> Tensor:
        """The mean of the values of all processes."""
        if self.count == 1:
            return values.mean()
        total, count = self.total(torch.stack([values.double().sum(), torch.tensor(float(values.numel()))]).double())
        mean: Tensor = (total / count).to(values)
        return mean

    def gathered(self, value: Value) -> list[Value]:
        """The values of all processes, by rank."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def joined(self, rows: Tensor) -> Tensor:
        """The rows of all processes, by rank."""
        return torch.cat(self.gathered(rows))

    def agreed(self, function: Callable[[], Value]) -> Value:
        """What a function returns. If it raises a DataError in one process, all raise that."""
        if self.count == 1:
            return function()
        error: DataError | None = None
        try:
            value = function()
        except DataError as local_error:
            error = local_error
        for fault in self.gathered(error):
            if fault is not None:
                raise fault
        return value

    def wait(self) -> None:
        if self.count > 1:
            dist.barrier()


ALONE = Processes(0, 1, torch.device("cpu"))


@contextmanager
def processes(device: str = "auto") -> Iterator[Processes]:
    """Join the other processes if torchrun started several."""
    count, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    target = _device(device, int(os.environ.get("LOCAL_RANK", 0)))
    if target.type == "cpu":
        keep_freed_memory()
    if count == 1:
        yield Processes(0, 1, target)
        return
    if target.type == "cuda":
        torch.cuda.set_device(target)
    shared, rank, count = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    # torchrun keeps its store when it restarts workers. Without its own prefix an attempt may read what a worker of the
    # attempt before wrote, and wait for it.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"attempt {attempt}", shared)  # type: ignore[attr-defined]
    dist.init_process_group("nccl" if target.type == "cuda" else "gloo", store=store, rank=rank, world_size=count)
    try:
        yield Processes(rank, count, target)
    except Diverged:  # in every process; the first reports it
        if rank == 0:
            raise
        raise SystemExit(2) from None
    finally:
        dist.destroy_process_group()


def keep_freed_memory() -> bool:
    """Have this process keep memory that is freed, for the next step to take again; whether that is done.

    The allocator of glibc returns large blocks to the system, and every step on a CPU then waits for new pages. Other
    allocators are left as they are.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    return bool(set_option(M_MMAP_THRESHOLD, 1 << 30)) and bool(set_option(M_TRIM_THRESHOLD, -1))


def _device(name: str, local_rank: int) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name!r} is not available: {str(error).splitlines()[0]}") from None
    if device.type == "meta":
        raise ValueError(
            "device 'meta' holds no values, so that nothing can be trained or scored there: take cpu or cuda"
        )
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", local_rank)
    return device
