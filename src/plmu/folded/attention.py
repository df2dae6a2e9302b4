"""Attention over a window, for single steps; and the rotation of positions, which `plmu.nn` shares."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from plmu.folded.base import Folded, as_dtype, wide_dtype
from plmu.ops.nonfinite import suspect

_LONGEST = 10_000.0  # the slowest rotation, in steps per radian


@dataclass(frozen=True, eq=False)
class WindowAttention(Folded):
    """Self-attention of each step to itself and the window − 1 steps before it: `plmu.nn.CausalAttention`.

    The state is keys and values, both (batch, window − 1, width), the oldest step first; and (batch, window − 1), 1
    where there was a step and 0 before the start.
    """

    input_weight: Tensor  # (3 · width, width), to queries, keys and values
    input_bias: Tensor | None
    output_weight: Tensor  # (width, width)
    output_bias: Tensor | None
    heads: int
    window: int

    @property
    def width(self) -> int:
        return self.output_weight.shape[0]

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        keys, values, present = self.initial_state(x.shape[0], x.dtype, x.device) if state is None else state
        query, *new = linear(x[:, None], self.input_weight, self.input_bias).chunk(3, dim=-1)
        key, value = (torch.cat([as_dtype(old, x.dtype), now], 1) for old, now in zip((keys, values), new, strict=True))
        visible = torch.cat([present > 0, present.new_ones(len(present), 1, dtype=torch.bool)], dim=1)
        mixed = self._mixed(query, key, value, visible[:, None])
        wide, after = wide_dtype(x.dtype), visible[:, 1:]
        rows_after = (torch.where(after[:, :, None], rows[:, 1:], 0.0).to(wide) for rows in (key, value))
        return linear(mixed, self.output_weight, self.output_bias)[:, 0], (*rows_after, after.to(wide))

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        """What a query (batch, 1, width) sees of keys and values (batch, window, width), where visible (batch, 1,
        window)."""
        bad = None
        if suspect(key, value):  # zero times NaN is NaN: what is not seen must not have any
            bad = ~(torch.isfinite(key) & torch.isfinite(value)).all(2, keepdim=True)
            key, value = (torch.where(bad, 0.0, rows) for rows in (key, value))
        split = [rows.unflatten(2, (self.heads, -1)).transpose(1, 2) for rows in (query, key, value)]
        turned = rotated(split[0], self.window - 1), rotated(split[1], 0)
        out = scaled_dot_product_attention(*turned, split[2], attn_mask=visible[:, None])
        if bad is not None:
            spoilt = (visible & bad.mT).any(2)
            out = out.masked_fill(spoilt[:, None, :, None], math.nan)
        joined: Tensor = out.transpose(1, 2).flatten(2)
        return joined

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        size = self.window - 1
        shapes = ((batch, size, self.width), (batch, size, self.width), (batch, size))
        return tuple(torch.zeros(shape, dtype=wide_dtype(dtype), device=device) for shape in shapes)


def rotation(start: int, count: int, pairs: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine (count, pairs) of the angles by which pairs of features are rotated, from step `start` on."""
    steps = torch.arange(start, start + count, dtype=dtype, device=device)
    rates = _LONGEST ** (-torch.arange(pairs, dtype=dtype, device=device) / pairs)
    angles = steps[:, None] * rates
    return angles.cos(), angles.sin()


def rotated(x: Tensor, start: int) -> Tensor:
    """x (..., steps, features) with pairs of features rotated by an angle for each step, from `start` on."""
    wide = wide_dtype(x.dtype)
    cos, sin = rotation(start, x.shape[-2], x.shape[-1] // 2, wide, x.device)
    first, second = x.to(wide).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)
