"""Causal self-attention over a window, with a cache of fixed size, so that it steps."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from plmu.core.modes import is_open, transformed
from plmu.folded import Folded, Stepped, WindowAttention, wide_dtype
from plmu.folded.attention import rotated
from plmu.nn.folding import is_plain
from plmu.nn.past import documents, ends, since_reset
from plmu.nn.savable import savable
from plmu.nn.steppable import Steppable, changed, check_features, factory, positive
from plmu.ops.check import Lengths, check_state, checked_lengths, checked_resets, keep_valid
from plmu.ops.nonfinite import suspect

State = tuple[Tensor, Tensor, Tensor]


@savable(modules=2)
class CausalAttention(Steppable):
    """Self-attention of each step to itself and the window − 1 steps before it.

    Positions enter by rotating queries and keys (rotary embedding), so only distances count. The cost of a step and
    the size of the state do not grow with the sequence. A whole sequence takes time · window products, in blocks of
    the window's length, through `scaled_dot_product_attention`.

    It has neither a norm nor a skip connection: put it into
    `plmu.Residual(plmu.Sequential(nn.RMSNorm(width), plmu.CausalAttention(width, heads, window)))`.

    Args:
        width: features of the input and the output.
        heads: number of attention heads, each of width / heads features, an even number.
        window: number of steps that each step attends to, itself included; at least 2.
        bias: whether the projections have biases.
        device, dtype: of the parameters, as in `torch.nn`.

    Shape:
        x: (batch, time, width). The output has the same shape.
        state: keys and values, both (batch, window − 1, width), the oldest step first; and (batch, window − 1), 1 where
            there was a step and 0 before the start.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        window: int,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        place = factory(device, dtype)
        self.width = self.input_size = self.output_size = positive(width, "width")
        self.heads, self.window, self.bias = positive(heads, "heads"), positive(window, "window"), bool(bias)
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be an even multiple of heads, got width={width} and heads={heads}")
        if self.window < 2:
            raise ValueError(f"window must be at least 2, got {window}")
        self.inputs = nn.Linear(self.width, 3 * self.width, bias=bias, **place)  # to queries, keys and values
        self.output = nn.Linear(self.width, self.width, bias=bias, **place)

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        check_features(x, 3, self.width, self.inputs.weight)
        batch, time, _ = x.shape
        lengths = checked_lengths(lengths, batch, time, x.device)
        resets = checked_resets(resets, batch, time, x.device)
        cached, size = self._cached(x, state), self.window - 1
        query, *new = self.inputs(keep_valid(x, lengths)).chunk(3, dim=-1)
        key, value = (torch.cat([old.to(now.dtype), now], dim=1) for old, now in zip(cached[:2], new, strict=True))
        numbers = documents(torch.where(cached[2] > 0, 0, -1), resets, time)  # -1: before the start, never visible
        if state is None and not is_open(time) and time <= size:  # all is in one window, and nothing in the cache
            mixed = self._mixed(query, new[0], new[1], numbers[:, size:], plain=resets is None)
        else:
            mixed = self._mixed(query, key, value, numbers)
        out = self.output(mixed)
        present = since_reset(numbers, size, lengths)
        if lengths is not None:  # an empty sequence leaves its state as it was
            present = torch.where((lengths > 0)[:, None], present, cached[2] > 0)
        last = [torch.where(present[:, :, None], ends(rows, size, lengths), 0.0) for rows in (key, value)]
        wide = wide_dtype(x.dtype)
        return keep_valid(out, lengths), (last[0].to(wide), last[1].to(wide), present.to(wide))

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        check_features(x, 2, self.width, self.inputs.weight)
        out, state = self.forward(x[:, None], state)
        return out[:, 0], state

    def fold(self) -> Folded:
        if changed(self, "fold") or not all(is_plain(layer, nn.Linear) for layer in (self.inputs, self.output)):
            return Stepped.of(self)
        inputs, output = self.inputs, self.output
        return WindowAttention(
            inputs.weight,
            inputs.bias,
            output.weight,
            output.bias,
            self.heads,
            self.window,
            dtype=output.weight.dtype,
            device=output.weight.device,
        )

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        size = self.window - 1
        shapes = ((batch, size, self.width), (batch, size, self.width), (batch, size))
        key, value, present = (torch.zeros(shape, dtype=wide_dtype(dtype), device=device) for shape in shapes)
        return key, value, present

    def _cached(self, x: Tensor, state: Any) -> State:
        """The checked state; zeros where it is None."""
        if state is None:
            return self.initial_state(x.shape[0], x.dtype, x.device)
        if not isinstance(state, tuple) or len(state) != 3:
            kind = f"a tuple of {len(state)}" if isinstance(state, tuple) else type(state).__name__
            raise TypeError(f"state must be a tuple of keys, values and a mask of the steps there are; got {kind}")
        shape = (x.shape[0], self.window - 1)
        for name, part, features in zip(("keys", "values", "steps"), state, ((self.width,),) * 2 + ((),), strict=True):
            check_state(part, (*shape, *features), wide_dtype(x.dtype), x.device, f"{name} of state")
        return state

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor, numbers: Tensor, plain: bool = False) -> Tensor:
        """Attention output (batch, time, width) of the queries, before the output projection.

        `query` is (batch, time, width). Keys, values and the document numbers of steps begin with the cached steps. A
        query attends to the last `window` steps of its document. `plain` says that there is no cache and one document,
        shorter than the window: causal attention without a mask.
        """
        batch, time, _ = query.shape
        before, size = key.shape[1] - time, self.window - 1
        block = time if is_open(time) else min(time, size)
        blocks = 1 if is_open(time) else -(-time // block)
        padding = blocks * block - time  # in the last block, at its end
        query, key, value = (pad(rows, (0, 0, 0, padding)) for rows in (query, key, value))
        bad = None
        if suspect(key, value):  # zero times NaN is NaN: masked steps must not have any
            bad = ~(torch.isfinite(key) & torch.isfinite(value)).all(2, keepdim=True)
            key, value = (torch.where(bad, 0.0, rows) for rows in (key, value))
        queries, keys, values = (_windows(rows, blocks, block) for rows in (query, key, value))
        split = [rows.unflatten(2, (self.heads, -1)).transpose(1, 2) for rows in (queries, keys, values)]
        turned = rotated(split[0], before), rotated(split[1], 0)
        if plain and bad is None:
            out = attend(*turned, split[2], causal=True)
        else:
            numbers = pad(numbers, (0, padding), value=-2)[:, :, None]
            document, documents_before = (_windows(part, blocks, block) for part in (numbers[:, before:], numbers))
            ago = torch.arange(before, before + block, device=query.device)[:, None]
            ago = ago - torch.arange(before + block, device=query.device)
            # (batch · blocks, queries, keys)
            visible = (document == documents_before.mT) & (ago >= 0) & (ago <= size)
            out = attend(*turned, split[2], visible[:, None])
            if bad is not None:
                spoilt = (visible & _windows(bad, blocks, block).mT).any(2)
                out = out.masked_fill(spoilt[:, None, :, None], math.nan)
        joined: Tensor = out.transpose(1, 2).flatten(2)
        return joined if blocks == 1 else joined.unflatten(0, (batch, blocks)).flatten(1, 2)[:, :time]

    def extra_repr(self) -> str:
        return f"{self.width}, heads={self.heads}, window={self.window}"


def attend(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None = None, *, causal: bool = False) -> Tensor:
    """`scaled_dot_product_attention` of (batch, heads, time, features), with derivatives of every order.

    Its kernels have neither forward-mode nor second derivatives. So on a CPU, and under torch.func, what may be
    differentiated is computed by products and a softmax.
    """
    trained = torch.is_grad_enabled() and any(part.requires_grad for part in (query, key, value))
    exact = query.dtype in (torch.float32, torch.float64)
    if not (transformed() or (trained and exact and query.device.type == "cpu")):
        return scaled_dot_product_attention(query, key, value, attn_mask=visible, is_causal=causal)
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    out: Tensor = scores.softmax(dim=-1) @ value
    return out


def _windows(x: Tensor, blocks: int, step: int) -> Tensor:
    """x (batch, time, features) as windows (batch · blocks, length, features), which begin `step` steps apart."""
    if blocks == 1:
        return x
    return x.unfold(1, x.shape[1] - (blocks - 1) * step, step).flatten(0, 1).mT
