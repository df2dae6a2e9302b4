"""Folded layers with a memory: equations 15 to 20 for one step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from plmu.core.modes import watched
from plmu.folded.base import Folded, Stateless, as_dtype, read_only, wide_dtype
from plmu.folded.functions import Affine
from plmu.ops.matrices import apply, infinity_as_nan

_SMALL = 2**15  # multiplications, up to which torch is faster elementwise than as a matrix product


@dataclass(frozen=True, eq=False)
class LinearMemory(Folded):
    """A step that is linear up to the activation, for one memory channel: [m_t ; y_t] = M [m_{t-1} ; x_t] + c.

    Near the identity the rows of m hold Ā − I, which rounds better, and m_{t-1} is added. The state m is (batch,
    order, 1). M is float32 or wider; the output has the precision of x.
    """

    matrix: Tensor  # (order + out, order + in)
    constant: Tensor  # (order + out,)
    order: int
    near_identity: bool
    activation: Stateless | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sizes", [self.memory_size, self.matrix.shape[0] - self.memory_size])

    @property
    def memory_size(self) -> int:
        """Number of elements of m."""
        return self.order

    @property
    def state_columns(self) -> int:
        """Number of columns of M, at its left, that multiply the state."""
        return self.order

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        m = self.initial_state(x.shape[0], x.dtype, x.device) if state is None else state
        before = m.squeeze(2)
        both = linear(torch.cat([before, as_dtype(x, before.dtype)], dim=1), self.matrix, self.constant)
        after, out = both.split_with_sizes(self._sizes, 1)  # type: ignore[attr-defined]
        if self.near_identity:
            after = before + after
        out = as_dtype(out, x.dtype)
        return (out if self.activation is None else self.activation(out)), after.unsqueeze(2)

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return torch.zeros(batch, self.order, 1, dtype=wide_dtype(dtype), device=device)


@dataclass(frozen=True, eq=False)
class CoupledMemory(LinearMemory):
    """The original LMU: [m_t ; z_t] = M [m_{t-1} ; h_{t-1} ; x_t] + c with h_t = f(z_t), for m flattened to (batch,
    order · channels). The state is (h, m (batch, order, channels))."""

    channels: int

    @property
    def memory_size(self) -> int:
        return self.order * self.channels

    @property
    def state_columns(self) -> int:
        return self.matrix.shape[0]

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, m = self.initial_state(x.shape[0], x.dtype, x.device) if state is None else state
        before = m.flatten(1)
        both = linear(torch.cat([before, h, as_dtype(x, m.dtype)], dim=1), self.matrix, self.constant)
        after, new = both.split_with_sizes(self._sizes, 1)  # type: ignore[attr-defined]
        if self.near_identity:
            after = before + after
        new = as_dtype(new, x.dtype)
        out = new if self.activation is None else self.activation(new)
        # A copy: what becomes of the output must not reach the state.
        return out, (out.to(m.dtype, copy=True), after.unflatten(1, (self.order, self.channels)))

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        m = torch.zeros(batch, self.order, self.channels, dtype=wide_dtype(dtype), device=device)
        return m.new_zeros(batch, self.matrix.shape[0] - self.memory_size), m


@dataclass(frozen=True, eq=False)
class Delay(Folded):
    """The memory alone (equation 19): m_t = [Ā | B̄] [m_{t-1} ; u_t] for each group of channels.

    Where a group is `near_identity`, Ā − I stands for Ā and m_{t-1} is added. The output is m (batch, order, channels)
    flattened, in the precision of the input; the state is m. If `dtype` is None the matrices stay float64, and are cast
    to the precision of each input once.
    """

    matrix: Tensor  # (groups, order, order + inputs)
    near_identity: tuple[bool, ...]
    channels: int
    scale: Tensor | None = None  # (channels,), by which u is multiplied first

    def __post_init__(self) -> None:
        object.__setattr__(self, "_casts", {})

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        before = self.initial_state(x.shape[0], x.dtype, x.device) if state is None else state
        m = self.remember(x, before)
        return m.to(x.dtype, copy=True).flatten(1), m  # what becomes of the output must not reach the state

    def remember(self, u: Tensor, m: Tensor) -> Tensor:
        """The next m (batch, order, channels) from u (batch, channels), or (batch, inputs) where they share one."""
        matrix, spread, added = self._cast(m)
        groups, order, columns = matrix.shape
        u = as_dtype(u, m.dtype)
        if groups > 1 and m.shape[0] * spread.numel() <= _SMALL:
            u = u.unsqueeze(1)
            new = (spread * torch.cat([m, u, u], dim=1).unsqueeze(1)).sum(2)
            return new if added is None else torch.addcmul(new, m, added)
        u = infinity_as_nan(u if self.scale is None else u * self.scale)
        u = u.unsqueeze(2) if columns > order + 1 else u.unsqueeze(1)
        both = torch.cat([m, u], dim=1)
        if groups == 1:
            return self._product(matrix[0], both, m, self.near_identity[0])
        batch, width = m.shape[0], self.channels // groups
        inputs = both.view(batch, columns, groups, width).permute(2, 1, 0, 3).reshape(groups, columns, batch * width)
        new = torch.bmm(matrix, inputs).view(groups, order, batch, width).permute(2, 1, 0, 3).reshape(m.shape)
        return new if added is None else torch.addcmul(new, m, added)

    @staticmethod
    def _product(matrix: Tensor, both: Tensor, m: Tensor, near_identity: bool) -> Tensor:
        if m.shape[2] == 1:
            flat = both.squeeze(2)
            if near_identity:
                return torch.addmm(m.squeeze(2), flat, matrix.mT).unsqueeze(2)
            return linear(flat, matrix).unsqueeze(2)
        return m + apply(matrix, both) if near_identity else apply(matrix, both)

    def scaled(self, scale: Tensor) -> Delay:
        """The same memory for an input that is still to be multiplied by `scale` (channels,)."""
        return replace(self, scale=scale if self.scale is None else scale * self.scale)

    def _cast(self, m: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The matrix; that of each channel, (order, order + 2, channels), with zeros for a second u, which turn
        infinity into NaN; and 1 for each channel where m is added to the product, else 0, or None if all are 0."""
        casts: dict[Any, tuple[Tensor, Tensor, Tensor | None]] = self._casts  # type: ignore[attr-defined]
        key = (m.dtype, m.device)
        arrays = casts.get(key)
        if arrays is None:
            width = self.channels // len(self.near_identity)
            spread = pad(self.matrix, (0, 1)).permute(1, 2, 0).repeat_interleave(width, 2)
            if self.scale is not None:
                spread[:, -2] *= self.scale
            added = torch.tensor(self.near_identity).repeat_interleave(width)
            cast_arrays = [read_only(array, *key) for array in (self.matrix, spread, added)]
            arrays = cast_arrays[0], cast_arrays[1], cast_arrays[2] if any(self.near_identity) else None
            if not watched():  # tensors of a mode must not outlive it
                casts[key] = arrays
        return arrays

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return torch.zeros(batch, self.matrix.shape[1], self.channels, dtype=wide_dtype(dtype), device=device)


@dataclass(frozen=True, eq=False)
class ParallelMemory(Folded):
    """Equations 18 to 20 one after another: encoder, f1, gate, memory, readout, f2."""

    encoder: Affine | None
    gate: Affine | None
    memory: Delay
    readout: Tensor  # (out, order · channels)
    input_weight: Tensor | None  # (out, in)
    bias: Tensor | None  # (out,)
    input_activation: Stateless | None
    output_activation: Stateless | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "_transposed", self.readout.mT)

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        readout: Tensor = self._transposed  # type: ignore[attr-defined]
        u = x if self.encoder is None else self.encoder(x)
        if self.input_activation is not None:
            u = self.input_activation(u)
        if self.gate is not None:
            u = torch.lerp(x, u, torch.sigmoid(self.gate(x)))
        m = self.initial_state(x.shape[0], x.dtype, x.device) if state is None else state
        m = self.memory.remember(u, m)
        flat = as_dtype(m, x.dtype).flatten(1)
        from_input = self.bias if self.input_weight is None else linear(x, self.input_weight, self.bias)
        out = torch.mm(flat, readout) if from_input is None else torch.addmm(from_input, flat, readout)
        return (out if self.output_activation is None else self.output_activation(out)), m

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return self.memory.initial_state(batch, dtype, device)
