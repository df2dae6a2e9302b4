"""Windows of past steps: the last steps of each sequence, and which of them belong to its last document."""

from __future__ import annotations

import torch
from torch import Tensor


def documents(before: Tensor, resets: Tensor | None, time: int) -> Tensor:
    """The number of each step's document, (batch, size + time): `before` (batch, size) for earlier steps, then 0 for
    the document that continues from there, and one more after each reset (batch, time)."""
    new = before.new_zeros(before.shape[0], time) if resets is None else resets.cumsum(1)
    return torch.cat([before, new], dim=1)


def ends(values: Tensor, size: int, lengths: Tensor | None) -> Tensor:
    """The last `size` steps of each sequence, (batch, size, ...), of values (batch, size + time, ...), which begin with
    `size` steps from before the sequence; `lengths` do not count those."""
    if lengths is None:
        return values[:, values.shape[1] - size :]
    index = lengths[:, None] + torch.arange(size, device=values.device)
    return values.gather(1, index.reshape(*index.shape, *(1,) * (values.dim() - 2)).expand(-1, -1, *values.shape[2:]))


def since_reset(numbers: Tensor, size: int, lengths: Tensor | None) -> Tensor:
    """Whether the last `size` steps of each sequence belong to its last document, by the numbers of `documents`."""
    # For an empty sequence this is the document of the last earlier step.
    current = numbers[:, -1:] if lengths is None else numbers.gather(1, lengths[:, None] + size - 1)
    return ends(numbers, size, lengths) == current
