"""How the work of a launch is divided on a GPU, and the sizes that decide it. Each launch is prepared once for its
sizes."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch

from plmu.ops.gpu.tables import CHUNK, tiles

prepared = functools.lru_cache(maxsize=1024)


class Sizes(NamedTuple):
    """The sizes for which a projection, or the gradient of its weight, is prepared."""

    device: torch.device
    dtype: torch.dtype
    batch: int
    time: int
    inputs: int  #: channels of u; of the gradient of o if time runs backwards
    outputs: int
    order: int
    rows: int  #: of a chunk's past
    groups: int
    history: bool  #: whether inputs before a chunk replace its state
    segmented: bool  #: whether the state is reset inside sequences
    reversed: bool = False  #: whether time runs backwards, and the weight is transposed

    @property
    def chunks(self) -> int:
        """Chunks of a sequence."""
        return tiles(self.time, CHUNK)


def unit(channels: int, groups: int) -> int:
    """A divisor of the channels of a group, up to 16, for the compiler, which finds that of a single group itself."""
    return 1 if groups == 1 else math.gcd(channels // groups, 16)


def divide_into_shares(chunks: int, programs: int, device: torch.device) -> tuple[int, int]:
    """The chunks of a share, and the number of shares that fill the GPU when each takes this number of programs."""
    shares = max(1, min(chunks, multiprocessors(device) // programs))
    share = tiles(chunks, shares)
    return share, tiles(chunks, share)


def has_large_memory(device: torch.device) -> bool:
    """Whether a program may have 227 KB of shared memory, as on Hopper and later data-centre GPUs. Others have at least
    99 KB, and smaller tiles."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] in (9, 10)


def multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors; without a GPU, that of an H100."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132
