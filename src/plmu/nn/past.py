"""What layers with a window of single steps share: the last steps of each sequence, and which of them to see."""

from __future__ import annotations

import torch
from torch import Tensor


def documents(before: Tensor, resets: Tensor | None, time: int) -> Tensor:
    """A number for each document, (batch, size + time): the given ones (batch, size) for steps before, where 0 is the
    document that goes on; and for the new steps one more at each reset."""
    new = before.new_zeros(before.shape[0], time) if resets is None else resets.cumsum(1)
    return torch.cat([before, new], dim=1)


def ends(values: Tensor, size: int, lengths: Tensor | None) -> Tensor:
    """Of values (batch, size + time, ...), of which `size` are from before, the last `size` at each sequence's end."""
    if lengths is None:
        return values[:, values.shape[1] - size :]
    index = lengths[:, None] + torch.arange(size, device=values.device)
    return values.gather(1, index.reshape(*index.shape, *(1,) * (values.dim() - 2)).expand(-1, -1, *values.shape[2:]))


def since_reset(numbers: Tensor, size: int, lengths: Tensor | None) -> Tensor:
    """Of document numbers (batch, size + time), whether the last `size` at each end belong to the last document."""
    # Of an empty sequence, it is the document of the last step before it.
    current = numbers[:, -1:] if lengths is None else numbers.gather(1, lengths[:, None] + size - 1)
    return ends(numbers, size, lengths) == current
