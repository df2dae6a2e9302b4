"""`states` of `plmu.ops.fused`: a kernel writes m once, with a program for each order of each chunk."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from plmu.core.systems import LinearSystem
from plmu.ops.gpu import division, launch
from plmu.ops.gpu.devices import aligned, aligned_if, on
from plmu.ops.gpu.tables import CHUNK, grouping, segments_of, sum_terms, tables, tiles
from plmu.ops.gpu.triton_launch import constants_of, exact, precision
from plmu.ops.matrices import finite


def states(
    u: Tensor, system: LinearSystem, state: Tensor | None, resets: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """m (batch, time, order, channels) for u (batch, time, channels), and the final state; empty with resets."""
    first = None if state is None else state.contiguous()
    run, _ = grouping(*u.shape)
    m, last = _states(u.contiguous(), first, segments_of(resets), *tables(u, system, 0, run)[:8], run)
    return m, last


@torch.library.custom_op("plmu::states", mutates_args=())
def _states(
    u: Tensor,
    first: Tensor | None,
    segments: Tensor | None,
    toeplitz: Tensor,
    past: Tensor,
    future: Tensor,
    taps: Tensor,
    advance: Tensor,
    leap: Tensor,
    last_taps: Tensor,
    last_advance: Tensor,
    run: int,
) -> tuple[Tensor, Tensor]:
    """m, and the final state in float32."""
    batch, time, channels = u.shape
    order = taps.shape[1]
    u, first, segments = aligned(u), aligned_if(first), aligned_if(segments)
    m = u.new_empty(batch, time, order, channels)
    chunks = tiles(time, CHUNK)
    with on(u):
        before, last = launch.carry(u, first, segments, taps, advance, leap, run)
        _kernels().all_states[batch * chunks, tiles(channels, 64), order](
            u, toeplitz, past, before, u if segments is None else segments, m, time, channels, chunks,
            **constants_of(order), WIDTH=64, SEGMENTED=segments is not None, PRECISION=precision(u.dtype),
            num_warps=4,
        )  # fmt: skip
        if segments is not None:  # the caller computes it
            return m, advance.new_empty(0)
        return m, launch.final_state(u, last, None, last_taps, last_advance)


@torch.library.custom_op("plmu::states_backward", mutates_args=())
def _states_backward(
    grad_m: Tensor,
    grad_last: Tensor | None,
    segments: Tensor | None,
    toeplitz: Tensor,
    past: Tensor,
    taps: Tensor,
    advance: Tensor,
    last_taps: Tensor,
    last_advance: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradients of u and of the first state."""
    batch, time, order, channels = grad_m.shape
    chunks = tiles(time, CHUNK)
    grad_u = grad_m.new_empty(batch, time, channels)
    grad_states = advance.new_empty(batch, chunks, order, channels)
    kernels, options = _kernels(), {**constants_of(order), "WIDTH": 64, "SEGMENTED": segments is not None}
    marks = grad_m if segments is None else segments  # any tensor; without segments it is not read
    with on(grad_m):
        kernels.states_gradient[batch * chunks, tiles(channels, 64)](
            grad_m, toeplitz, past, marks, grad_u, grad_states, time, channels, chunks,
            **options, PRECISION=precision(grad_m.dtype), num_warps=4,
            num_stages=3 if division.has_large_memory(grad_m.device) else 2,
        )  # fmt: skip
    if grad_last is not None and segments is None:
        grad_states[:, -1] += last_advance.mT @ grad_last
        grad_u[:, -last_taps.shape[2] :] += (sum_terms(last_taps).mT @ grad_last).to(grad_u.dtype)
    reach, back = 1, advance.mT
    before = (
        None if segments is None else torch.nn.functional.pad(segments, (1, 0))[:, :time:CHUNK]
    )  # segments before chunks
    while reach < chunks:  # s_k ← Aᵀ s_{k+1} + s_k from the last chunk on, by doubling
        passed = back @ grad_states[:, reach:]
        if before is not None:
            passed = torch.where((before[:, :-reach] == before[:, reach:])[:, :, None, None], passed, 0.0)
        grad_states[:, :-reach] += passed
        back, reach = finite(back @ back), 2 * reach
    if chunks > 1:
        with on(grad_m):
            kernels.add_through_ends[batch * (chunks - 1), tiles(channels, 64)](
                grad_u, sum_terms(taps), grad_states, marks, time, channels, chunks,
                **options, PRECISION=exact(grad_u.dtype),
            )  # fmt: skip
    return grad_u, grad_states[:, 0].clone()


@_states.register_fake
def _(u: Tensor, first: Tensor | None, segments: Tensor | None, toeplitz: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    batch, time, channels = u.shape
    order = toeplitz.shape[0]
    last = (batch, order, channels) if segments is None else (0,)
    return u.new_empty(batch, time, order, channels), u.new_empty(*last, dtype=torch.float32)


@_states_backward.register_fake
def _(grad_m: Tensor, grad_last: Tensor | None, *tables: Tensor | None) -> tuple[Tensor, Tensor]:
    batch, time, order, channels = grad_m.shape
    return grad_m.new_empty(batch, time, channels), grad_m.new_empty(batch, order, channels, dtype=torch.float32)


def _setup_states(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, segments, toeplitz, past, _, taps, advance, _, *last, _ = inputs
    ctx.save_for_backward(segments, toeplitz, past, taps, advance, *last)
    ctx.m = output[0].shape
    ctx.set_materialize_grads(False)


def _backward_states(ctx: Any, grad_m: Tensor | None, grad_last: Tensor | None) -> tuple[Tensor | None, ...]:
    tables = ctx.saved_tensors
    if grad_m is None:
        grad_m = tables[1].new_zeros(ctx.m)
    grad_u, grad_first = _states_backward(grad_m.contiguous(), grad_last, *tables)
    return (grad_u, grad_first if ctx.needs_input_grad[1] else None, *([None] * 10))


_states.register_autograd(_backward_states, setup_context=_setup_states)
_states_backward.register_autograd(launch.no_second)


def _kernels() -> ModuleType:
    return importlib.import_module("plmu.ops.gpu.triton_states")
