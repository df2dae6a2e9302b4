"""How the work of a launch is divided on a GPU, and the sizes that decide it.

A launch for given sizes is prepared once.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch

from plmu.ops.gpu.tables import CHUNK, tiles

prepared = functools.lru_cache(maxsize=1024)


class Sizes(NamedTuple):
    """All that the launch of a projection, or of the gradient of its weight, is prepared for."""

    device: torch.device
    dtype: torch.dtype
    batch: int
    time: int
    inputs: int  #: channels; of the gradient of o, where time runs backwards
    outputs: int
    order: int
    rows: int  #: of what a chunk knows of its past
    groups: int
    history: bool  #: whether inputs before a chunk stand for its state
    segmented: bool  #: whether the state is reset inside sequences
    reversed: bool = False  #: whether time runs backwards, and the weight is transposed

    @property
    def chunks(self) -> int:
        """Of a sequence."""
        return tiles(self.time, CHUNK)


def unit(channels: int, groups: int) -> int:
    """What the channels of a group are a multiple of, as far as it matters; of one group the compiler finds out."""
    return 1 if groups == 1 else math.gcd(channels // groups, 16)


def shared_out(chunks: int, programs: int, device: torch.device) -> tuple[int, int]:
    """How many chunks a share has, and how many shares fill the GPU with so many programs each."""
    wanted = max(1, min(chunks, multiprocessors(device) // programs))
    share = tiles(chunks, wanted)
    return share, tiles(chunks, share)


def roomy(device: torch.device) -> bool:
    """Whether a program may have 227 KB of shared memory, as on Hopper and on the large GPUs after it. Others have at
    least 99 KB, and smaller tiles."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] in (9, 10)


def multiprocessors(device: torch.device) -> int:
    """How many programs run at the same time; where there is no GPU, that of the ones these kernels are made for."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132
