"""The adding problem: two marked numbers in a long sequence of random ones; the answer is their sum."""

from __future__ import annotations

import torch
from torch import Tensor


def sequences(examples: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """x (examples, length, 2): numbers uniform in [0, 1], and markers, one in each half; y (examples, 1): their sum.

    Answering 1 always gives a mean squared error of 1/6.
    """
    if length < 2:
        raise ValueError(f"length must be at least 2, one step for each marker; got {length}")
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(examples, length, generator=generator)
    half = length // 2
    first = torch.randint(half, (examples, 1), generator=generator)
    second = half + torch.randint(length - half, (examples, 1), generator=generator)
    markers = torch.zeros(examples, length).scatter_(1, torch.cat([first, second], dim=1), 1.0)
    return torch.stack([values, markers], dim=2), (values * markers).sum(1, keepdim=True)
