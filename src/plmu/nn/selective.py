"""A memory whose readout weights depend on the input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from plmu.folded import Folded, SelectiveMemory, wide_dtype
from plmu.folded.joining import stacked
from plmu.nn.folding import fold_linear, fold_module, is_plain
from plmu.nn.memory import Memory, plain_order, plain_theta
from plmu.nn.savable import savable
from plmu.nn.steppable import Steppable, changed, check_features, factory, positive
from plmu.ops.check import Lengths, check_state, checked_lengths, keep_valid
from plmu.ops.matrices import infinity_as_nan

_EPS = 1e-8  # of the norm: far below the mean square of the coefficients of a long window, which is about 1 / θ


@savable(modules=8)
class SelectiveLMU(Steppable):
    """A parallel LMU whose readout weights depend on the input; Ā and B̄ are constant.

        u_t = W_u x_t
        m_t = Ā m_{t-1} + B̄ u_t                                 (19)
        o_t[h] = norm(Σ_i C_t[h, i] m_t[i, h]), C_t = W_c x_t + b

    The channels are divided into heads of consecutive channels. Each head has its own weights over the `order` Legendre
    coefficients, the same for all its channels, computed from x_t. `norm` is an RMS norm over the channels of a head,
    so that long windows, whose coefficients are small, count as much as short ones. It trains in parallel over time,
    and stores m for the backward pass: order numbers for each channel and step.

    Args:
        input_size: features of x.
        hidden_size: channels of the memory, and features of the output.
        order: number of Legendre coefficients each memory channel keeps.
        theta: the window in steps; several numbers give equal groups of memory channels one window each.
        heads: number of groups of channels with readout weights of their own; best a multiple of the windows.
        algorithm: "auto", or one by name; see `plmu.plan`.
        device, dtype: of the parameters, as in `torch.nn`.

    Shape:
        x: (batch, time, input_size).
        out: (batch, time, hidden_size).
        state: (batch, order, hidden_size).
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        order: int,
        theta: float | Sequence[float],
        heads: int = 1,
        *,
        algorithm: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        place = factory(device, dtype)
        self.input_size = positive(input_size, "input_size")
        self.hidden_size = self.output_size = positive(hidden_size, "hidden_size")
        self.heads = positive(heads, "heads")
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size must be a multiple of heads, got {hidden_size} and {heads}")
        self.order, self.theta, self.algorithm = plain_order(order), plain_theta(theta), algorithm
        self.encoder = nn.Linear(self.input_size, self.hidden_size, bias=False, **place)
        self.memory = Memory(self.hidden_size, order, theta, None, "none", algorithm, **place)
        self.readout = nn.Linear(self.input_size, self.heads * self.memory.order, **place)
        self.norm = nn.RMSNorm(self.hidden_size // self.heads, eps=_EPS, **place)

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        check_features(x, 3, self.input_size, self.encoder.weight)
        lengths = checked_lengths(lengths, x.shape[0], x.shape[1], x.device)
        x = keep_valid(x, lengths)
        m, last = self.memory.states(self.encoder(x), state, lengths, resets)
        return keep_valid(self._read(m, x), lengths), last

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        check_features(x, 2, self.input_size, self.encoder.weight)
        before = self.initial_state(x.shape[0], x.dtype, x.device)
        if state is not None:
            check_state(state, tuple(before.shape), before.dtype, x.device)
            before = state
        u = infinity_as_nan(self.encoder(x))
        m = self.memory.stepper(before.dtype, x.device)(u.to(before.dtype), before)
        return self._read(m.to(u.dtype), x), m

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.memory.initial_state(batch, dtype, device)

    def fold(self) -> Folded:
        if changed(self, "fold") or not all(is_plain(layer, nn.Linear) for layer in (self.encoder, self.readout)):
            return super().fold()
        weight = self.encoder.weight
        memory = replace(self.memory.fold(), dtype=wide_dtype(weight.dtype), device=weight.device)
        readout = fold_linear(self.readout)  # its rows are (heads, order), and a step sums over the order
        rows = torch.arange(readout.weight.shape[0]).unflatten(0, (self.heads, -1)).mT.flatten()
        assert readout.bias is not None
        readout = replace(readout, weight=readout.weight[rows], bias=readout.bias[rows])
        both = stacked(fold_linear(self.encoder), readout)
        return SelectiveMemory(both, memory, fold_module(self.norm), self.heads)

    def _read(self, m: Tensor, x: Tensor) -> Tensor:
        """The output for m (..., order, hidden_size)."""
        weights = self.readout(x).unflatten(-1, (self.heads, -1))
        # A product and a sum rather than a matrix product: (1, order) times (order, channels) is too small for one.
        read = (weights.mT.unsqueeze(-1) * m.unflatten(-1, (self.heads, -1))).sum(-3)
        out: Tensor = self.norm(read.to(self.norm.weight.dtype))  # under autocast wider, as torch's kernel needs it
        return out.to(read.dtype).flatten(-2)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, heads={self.heads}"
