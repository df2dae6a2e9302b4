"""Equations 15 to 17 with everything linear in them multiplied out: trained for one memory channel, folded for any.

With z = [m ; h] a step of the original LMU is z_t = φ(M z_{t-1} + V x_t + c), where φ is f on h and nothing on m:

    M = [[Ā + B̄ E_m, B̄ E_h], [W_m (Ā + B̄ E_m), W_m B̄ E_h + W_h]],  V = [B̄ E_x ; W_m B̄ E_x + W_x],  c = [0 ; b]

V x + c is one product for all steps. Each step is then one product and one tanh, forward and backward; the
gradient of M is again one product for all steps. For a system near the identity M holds Ā − I, which rounds better,
and m_{t-1} is added.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from plmu.core.modes import is_batched, watched
from plmu.core.systems import LinearSystem
from plmu.folded import CoupledMemory, wide_dtype
from plmu.nn.folding import fold_activation
from plmu.ops import layer_kernels
from plmu.ops.matrices import step_matrix

if TYPE_CHECKING:
    from plmu.nn.original import LMUCell


def states(
    cell: LMUCell, system: LinearSystem, x: Tensor, h: Tensor, m: Tensor, lengths: Tensor | None = None
) -> Tensor:
    """z of all steps, (time, batch, order + hidden), zero past each length; for one memory channel.

    x is (batch, time, input); h (batch, hidden) and m (batch, order, 1) are the state before it.
    """
    order = system.order
    matrix = system.derive(step_matrix, dtype=x.dtype, device=x.device)
    A, B = matrix[:, :order], matrix[:, order:]
    from_memory = A if cell.memory_encoder is None else A + B @ cell.memory_encoder
    from_hidden = matrix.new_zeros(order, cell.hidden_size) if cell.hidden_encoder is None else B @ cell.hidden_encoder
    top = torch.cat([from_memory, from_hidden], dim=1)
    bottom = cell.memory_weight @ top
    if system.near_identity:
        bottom = bottom + pad(cell.memory_weight, (0, cell.hidden_size))
    if cell.hidden_weight is not None:
        bottom = bottom + pad(cell.hidden_weight, (order, 0))
    drive = B @ cell.input_encoder
    drive_hidden = cell.memory_weight @ drive
    if cell.input_weight is not None:
        drive_hidden = drive_hidden + cell.input_weight
    constant = _constant(cell, B)
    driven = linear(x.transpose(0, 1), torch.cat([drive, drive_hidden]), constant)
    start = torch.cat([m.squeeze(2), h], dim=1)
    past = None
    if lengths is not None:
        past = (torch.arange(x.shape[1], device=x.device)[:, None] >= lengths)[:, :, None]  # (time, batch, 1)
    result: Tensor = _Coupled.apply(driven, start, torch.cat([top, bottom]), past, order, system.near_identity)
    return result


def _constant(cell: LMUCell, B: Tensor) -> Tensor | None:
    """What both biases add to [m ; W_m m + …], (order · channels + hidden,); None without any."""
    if cell.encoder_bias is None:
        return None if cell.bias is None else pad(cell.bias, (len(B), 0))
    driven = B @ cell.encoder_bias
    to_hidden = cell.memory_weight @ driven
    return torch.cat([driven, to_hidden if cell.bias is None else to_hidden + cell.bias])


def fold_cell(original: LMUCell) -> CoupledMemory:
    """The folded cell, whose step is one product, for any number of memory channels; see `plmu.fold`."""
    cell = copy.deepcopy(original).cpu().double()
    systems, order, channels = cell.memory.systems(), cell.memory.order, cell.memory.channels
    size, width = order * channels, cell.memory.width
    A = torch.zeros(order, channels, order, channels, dtype=torch.float64)
    B = torch.zeros(order, channels, width, dtype=torch.float64)
    for channel in range(channels):
        system = systems[channel * len(systems) // channels]
        A[:, channel, :, channel] = system.A
        B[:, channel, channel : channel + width // channels] = system.B.reshape(order, -1)
    A, B = A.reshape(size, size), B.reshape(size, width)
    if cell.memory_encoder is not None:
        A = A + B @ cell.memory_encoder
    hidden = B.new_zeros(size, cell.hidden_size) if cell.hidden_encoder is None else B @ cell.hidden_encoder
    top = torch.cat([A, hidden, B @ cell.input_encoder], dim=1)
    bottom = cell.memory_weight @ top
    if cell.hidden_weight is not None:
        bottom[:, size : size + cell.hidden_size] += cell.hidden_weight
    if cell.input_weight is not None:
        bottom[:, size + cell.hidden_size :] += cell.input_weight
    near_identity = any(system.near_identity for system in systems)
    if near_identity:
        top[:, :size] -= torch.eye(size, dtype=torch.float64)
    constant = _constant(cell, B)
    constant = top.new_zeros(size + cell.hidden_size) if constant is None else constant
    return CoupledMemory(
        torch.cat([top, bottom]),
        constant,
        order,
        near_identity,
        fold_activation(original.f),
        channels,
        dtype=wide_dtype(original.memory_weight.dtype),
        device=original.memory_weight.device,
    )


def plain(driven: Tensor, start: Tensor, matrix: Tensor, past: Tensor | None, order: int, incremental: bool) -> Tensor:
    """z_t = φ(M z_{t-1} + driven_t), with m_{t-1} added to m_t if `incremental`, one step after another; zero where
    `past` (time, batch, 1) is True, after the end of a sequence."""
    z, collected = start, []
    for t, v in enumerate(driven.unbind()):
        total = torch.addmm(v, z, matrix.mT)
        m = z[:, :order] + total[:, :order] if incremental else total[:, :order]
        z = torch.cat([m, torch.tanh(total[:, order:])], dim=1)
        if past is not None:
            z = torch.where(past[t], 0.0, z)
        collected.append(z)
    return torch.stack(collected)


class _Coupled(torch.autograd.Function):
    """`plain` with its gradients, by a few calls of torch for each step, or by a kernel on a GPU."""

    @staticmethod
    def forward(
        ctx: Any, driven: Tensor, start: Tensor, matrix: Tensor, past: Tensor | None, order: int, incremental: bool
    ) -> Tensor:
        z = driven.new_empty(driven.shape[0] + 1, *driven.shape[1:])
        z[0] = start
        _steps(driven).forward(driven.contiguous(), z, matrix, order, incremental)
        if past is not None:
            z[1:].masked_fill_(past, 0.0)  # a system that grows may have overflowed there
        ctx.save_for_backward(driven, start, matrix, past, z)
        ctx.order, ctx.incremental = order, incremental
        return z[1:]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        driven, start, matrix, past, z = ctx.saved_tensors
        order, incremental = ctx.order, ctx.incremental
        if torch.is_grad_enabled() or watched() or is_batched(gradient):  # let autograd differentiate `plain`
            inputs = tuple(
                value for value, needed in zip((driven, start, matrix), ctx.needs_input_grad, strict=False) if needed
            )
            create = torch.is_grad_enabled()
            with torch.enable_grad():
                again = plain(driven, start, matrix, past, order, incremental)
                gradients = iter(torch.autograd.grad(again, inputs, gradient, create_graph=create))
            return (*(next(gradients) if needed else None for needed in ctx.needs_input_grad[:3]), None, None, None)
        if past is not None:
            gradient = gradient.masked_fill(past, 0.0)
        total = torch.empty_like(z[1:])  # of M z_{t-1} + driven_t
        total[-1] = gradient[-1]
        _through_tanh(total[-1, :, order:], z[-1, :, order:])
        _steps(driven).backward(gradient.contiguous(), z, total, matrix, order, incremental)
        for_start = total[0] @ matrix
        if incremental:
            for_start[:, :order] += total[0, :, :order]
        for_matrix = total.flatten(0, 1).mT @ z[:-1].flatten(0, 1) if ctx.needs_input_grad[2] else None
        return total, for_start, for_matrix, None, None, None


class _Library:
    """Steps by torch's own products."""

    @staticmethod
    def forward(driven: Tensor, z: Tensor, matrix: Tensor, order: int, incremental: bool) -> None:
        """Fill z[1:] (time, batch, order + hidden) from z[0]."""
        for t in range(driven.shape[0]):
            torch.addmm(driven[t], z[t], matrix.mT, out=z[t + 1])
            z[t + 1, :, order:].tanh_()
            if incremental:
                z[t + 1, :, :order] += z[t, :, :order]

    @staticmethod
    def backward(gradient: Tensor, z: Tensor, total: Tensor, matrix: Tensor, order: int, incremental: bool) -> None:
        """Fill total[:-1], the gradients of M z_{t-1} + driven_t, from total[-1] and the gradients of z[1:]."""
        for t in range(gradient.shape[0] - 2, -1, -1):
            torch.addmm(gradient[t], total[t + 1], matrix, out=total[t])
            if incremental:
                total[t, :, :order] += total[t + 1, :, :order]
            _through_tanh(total[t, :, order:], z[t + 1, :, order:])


def _through_tanh(gradient: Tensor, value: Tensor) -> None:
    """Multiply the gradient of value = tanh(y) in place by 1 − value², which makes it the gradient of y."""
    torch.ops.aten.tanh_backward.grad_input(gradient, value, grad_input=gradient)


def _steps(driven: Tensor) -> Any:
    """What runs the steps, by `forward` and `backward`: GPU kernels where they can, else `_Library`."""
    by_kernels = layer_kernels.why_no_steps(driven.device, driven.dtype, driven.shape[1]) is None
    return (layer_kernels.steps() if by_kernels else None) or _Library
