"""The adding problem: the answer is the sum of two marked numbers in a long sequence of random numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def sequences(examples: int, longest: int, seed: int, shortest: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Random sequences, the sums of their marked numbers, and their lengths.

    A model that always answers 1 has a mean squared error of 1/6.

    Args:
        examples: number of sequences.
        longest: steps of the longest sequences.
        seed: of the random numbers.
        shortest: steps of the shortest sequences; all have `longest` steps by default.

    Returns:
        x (examples, longest, 2): numbers uniform in [0, 1], and markers, one in each half of a sequence;
        y (examples, 1); lengths (examples,).
    """
    shortest = longest if shortest is None else shortest
    if not 2 <= shortest <= longest:
        raise ValueError(f"a sequence needs two steps, one for each marker, and at most {longest}; got {shortest}")
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (examples,), generator=generator)
    values = torch.rand(examples, longest, generator=generator)
    half = lengths // 2
    first = (torch.rand(examples, generator=generator) * half).long()
    second = half + (torch.rand(examples, generator=generator) * (lengths - half)).long()
    markers = torch.zeros(examples, longest).scatter_(1, torch.stack([first, second], dim=1), 1.0)
    valid = torch.arange(longest) < lengths[:, None]
    return torch.stack([values * valid, markers], dim=2), (values * markers).sum(1, keepdim=True), lengths
