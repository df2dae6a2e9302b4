"""The adding problem: two marked numbers in a long sequence of random ones; the answer is their sum."""

from __future__ import annotations

import torch
from torch import Tensor


def sequences(examples: int, longest: int, seed: int, shortest: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """x (examples, longest, 2): numbers uniform in [0, 1], and markers; y (examples, 1): the sum of the two marked
    numbers, one in each half of its sequence; and the lengths, from `shortest` to `longest`, or all `longest`.

    Answering 1 always gives a mean squared error of 1/6.
    """
    least = longest if shortest is None else shortest
    if not 2 <= least <= longest:
        raise ValueError(f"a sequence needs two steps, one for each marker, and at most {longest}; got {least}")
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(least, longest + 1, (examples,), generator=generator)
    values = torch.rand(examples, longest, generator=generator)
    half = lengths // 2
    first = (torch.rand(examples, generator=generator) * half).long()
    second = half + (torch.rand(examples, generator=generator) * (lengths - half)).long()
    markers = torch.zeros(examples, longest).scatter_(1, torch.stack([first, second], dim=1), 1.0)
    valid = torch.arange(longest) < lengths[:, None]
    return torch.stack([values * valid, markers], dim=2), (values * markers).sum(1, keepdim=True), lengths
