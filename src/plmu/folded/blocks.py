"""Folded layers of which blocks are made, beside the memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plmu.folded.base import Folded, as_dtype, wide_dtype
from plmu.folded.functions import Affine
from plmu.folded.memory import Delay


@dataclass(frozen=True, eq=False)
class Taps(Folded):
    """Σ_j w_j · x_{t−j} for each feature alone. The state is the inputs before, the oldest first."""

    weight: Tensor  # (steps, features), the weight of the oldest step first

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        before = self.initial_state(x.shape[0], x.dtype, x.device) if state is None else state
        steps = torch.cat([before, as_dtype(x, before.dtype).unsqueeze(1)], dim=1)
        return (as_dtype(steps, x.dtype) * self.weight).sum(1), steps.narrow(1, 1, before.shape[1])

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        steps, features = self.weight.shape
        return torch.zeros(batch, steps - 1, features, dtype=wide_dtype(dtype), device=device)


@dataclass(frozen=True, eq=False)
class SelectiveMemory(Folded):
    """A memory read by weights of the input: norm(Σ_i C_t[h, i] m_t[i, h]) for each head h. The state is m."""

    both: Affine  # to u, the memory's input, and to C_t (order, heads)
    memory: Delay
    norm: Folded
    heads: int

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        m = self.initial_state(x.shape[0], x.dtype, x.device) if state is None else state
        batch, order, channels = m.shape
        u, weights = self.both(x).split_with_sizes([channels, self.heads * order], 1)
        m = self.memory.remember(u, m)
        heads = m.view(batch, order, self.heads, channels // self.heads)
        read = (weights.view(batch, order, self.heads, 1) * heads).sum(1)  # (batch, heads, channels of a head)
        return self.norm.advance(as_dtype(read, x.dtype), None)[0].view(batch, channels), m

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return self.memory.initial_state(batch, dtype, device)
