"""`project` and `states` by our own kernels on a GPU: chunks as in `plmu.ops.chunked`.

Forward: one kernel writes W_m m, or m, once; for W_m m no tile of m ever reaches memory. What a chunk knows of its past
is the state before it, for all chunks in one launch or two; or, where the impulse response fades within a chunk, the
last inputs before it, and no state is passed at all. Backward: the gradient of u is the same projection with time
running backwards, of the gradient of o by the transposed weight. That of the weight is one more kernel, whose sum over
time is cut into fixed shares and added up in a fixed order, so that results repeat bit for bit. Nothing but u and the
weight is kept between the two passes.

The kernels are written twice: in Triton for every GPU and precision (`triton_chunked`), and the two heavy ones for the
copy engine and the matrix units of Hopper GPUs (`gluon_chunked`).
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

from plmu.ops import launch
from plmu.ops.chunk_tables import CHUNK, all_powers, grouping, history, tables, tiles
from plmu.ops.matrices import finite
from plmu.systems import LinearSystem

SEGMENT = 1024  # steps at a time in the gradient of the first state
LARGEST_ORDER = 64
AVAILABLE = importlib.util.find_spec("triton") is not None


def project(
    u: Tensor, system: LinearSystem, weight: Tensor, state: Tensor | None, resets: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """W_m m (batch, time, out) for u (batch, time, channels), and the final state; with resets there is none."""
    first = powers = None
    steps = history(system, u.dtype) if state is None else 0
    if state is not None:
        first = state.contiguous()
        if state.requires_grad:
            segment = min(u.shape[1], SEGMENT)
            powers = system.derive(all_powers, segment, dtype=torch.float32, device=u.device)
    segments = _segments(resets)
    group, _ = grouping(*u.shape)
    constants = tables(u, system, steps, group)
    o, last = _project(u.contiguous(), weight.contiguous(), first, segments, powers, *constants, steps, group)
    return o, last


def states(
    u: Tensor, system: LinearSystem, state: Tensor | None, resets: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """m (batch, time, order, channels) for u (batch, time, channels), and the final state; with resets none."""
    first = None if state is None else state.contiguous()
    group, _ = grouping(*u.shape)
    m, last = _states(u.contiguous(), first, _segments(resets), *tables(u, system, 0, group), group)
    return m, last


def _segments(resets: Tensor | None) -> Tensor | None:
    """The segments that resets divide each sequence into, counted from 0: (batch, time)."""
    return None if resets is None else resets.cumsum(1, dtype=torch.int32)


@torch.library.custom_op("plmu::project", mutates_args=())
def _project(
    u: Tensor,
    weight: Tensor,
    first: Tensor | None,
    segments: Tensor | None,
    powers: Tensor | None,
    toeplitz: Tensor,
    past: Tensor,
    future: Tensor,
    taps: Tensor,
    advance: Tensor,
    leap: Tensor,
    last_taps: Tensor,
    last_advance: Tensor,
    steps: int,
    group: int,
) -> tuple[Tensor, Tensor]:
    """o, and the final state in float32. With `steps` that many inputs before a chunk stand for its state; else one
    program carries it over `group` chunks, which `leap` is made for."""
    before = last = None
    if not steps:
        before, last = launch.carry(u, first, segments, taps, advance, leap, group)
    o, held = launch.project(u, before, segments, weight, toeplitz, past)
    return o, _final_state(u, last, segments, last_taps, last_advance, early=bool(held))


def _final_state(
    u: Tensor, last: Tensor | None, segments: Tensor | None, taps: Tensor, advance: Tensor, *, early: bool = False
) -> Tensor:
    """In float32; empty where the state is reset, whose end other products find."""
    return launch.final_state(u, last, taps, advance, early=early) if segments is None else advance.new_empty(0)


@torch.library.custom_op("plmu::project_backward", mutates_args=())
def _project_backward(
    of_o: Tensor,
    u: Tensor,
    weight: Tensor,
    first: Tensor | None,
    segments: Tensor | None,
    toeplitz: Tensor,
    past: Tensor,
    future: Tensor,
    taps: Tensor,
    advance: Tensor,
    leap: Tensor,
    steps: int,
    group: int,
    need_u: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of u and of the weight; empty where not needed."""
    of_u, of_weight = u.new_empty(0), weight.new_empty(0)
    passing = (segments, taps, advance, leap, group)
    if need_weight:
        before = None if steps else launch.carry(u, first, *passing)[0]
        of_weight = launch.weight_gradient(u, before, segments, of_o, weight, toeplitz, past)
        del before
    if need_u:
        after = None if steps else launch.carry(of_o, None, *passing, reversed=True)[0]
        of_u, _ = launch.project(of_o, after, segments, weight, toeplitz, future, reversed=True)
    return of_u, of_weight


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
    group: int,
) -> tuple[Tensor, Tensor]:
    """m, and the final state in float32."""
    batch, time, channels = u.shape
    order = taps.shape[1]
    before, last = launch.carry(u, first, segments, taps, advance, leap, group)
    m = u.new_empty(batch, time, order, channels)
    chunks = before.shape[1]
    with torch.cuda.device_of(u):
        launch.kernels().all_states[batch * chunks, tiles(channels, 64), order](
            u, toeplitz, past, before, u if segments is None else segments, m, time, channels, chunks,
            **launch.sizes(order), WIDTH=64, SEGMENTED=segments is not None, PRECISION=launch.precision(), num_warps=4,
        )  # fmt: skip
    return m, _final_state(u, last, segments, last_taps, last_advance)


@torch.library.custom_op("plmu::states_backward", mutates_args=())
def _states_backward(
    of_m: Tensor,
    of_last: Tensor | None,
    segments: Tensor | None,
    toeplitz: Tensor,
    past: Tensor,
    taps: Tensor,
    advance: Tensor,
    last_taps: Tensor,
    last_advance: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradients of u and of the first state."""
    batch, time, order, channels = of_m.shape
    chunks = tiles(time, CHUNK)
    of_u = of_m.new_empty(batch, time, channels)
    of_states = advance.new_empty(batch, chunks, order, channels)
    kernels, options = launch.kernels(), {**launch.sizes(order), "WIDTH": 64, "SEGMENTED": segments is not None}
    marks = of_m if segments is None else segments  # not read where there are none
    with torch.cuda.device_of(of_m):
        kernels.states_gradient[batch * chunks, tiles(channels, 64)](
            of_m, toeplitz, past, marks, of_u, of_states, time, channels, chunks,
            **options, PRECISION=launch.precision(), num_warps=4,
        )  # fmt: skip
    if of_last is not None and segments is None:
        of_states[:, -1] += last_advance.mT @ of_last
        of_u[:, -last_taps.shape[2] :] += (_summed(last_taps).mT @ of_last).to(of_u.dtype)
    reach, back = 1, advance.mT
    before = None if segments is None else torch.nn.functional.pad(segments, (1, 0))[:, :time:CHUNK]  # each chunk
    while reach < chunks:  # s_k ← Aᵀ s_{k+1} + s_k from the last chunk on, by doubling
        passed = back @ of_states[:, reach:]
        if before is not None:
            passed = torch.where((before[:, :-reach] == before[:, reach:])[:, :, None, None], passed, 0.0)
        of_states[:, :-reach] += passed
        back, reach = finite(back @ back), 2 * reach
    if chunks > 1:
        with torch.cuda.device_of(of_m):
            kernels.add_through_ends[batch * (chunks - 1), tiles(channels, 64)](
                of_u, _summed(taps), of_states, marks, time, channels, chunks, **options, PRECISION=launch.exact(of_u)
            )
    return of_u, of_states[:, 0].clone()


def _summed(taps: Tensor) -> Tensor:
    """Of all parts, in float32: (order, length)."""
    return taps.float().sum(0)


def _of_first(of_o: Tensor, weight: Tensor, powers: Tensor) -> Tensor:
    """The gradient of the first state from that of o: Σ_t (Ā^{t+1})ᵀ W_mᵀ of_o[t], segment by segment from the last."""
    total: Tensor | None = None
    for part in reversed(of_o.split(powers.shape[0], dim=1)):
        now = torch.einsum("tij,bto->bijo", powers[: part.shape[1]], part.to(powers.dtype))
        total = now if total is None else now + torch.einsum("biko,kj->bijo", total, powers[-1])
    assert total is not None
    return torch.einsum("bijo,oic->bjc", total, weight.to(powers.dtype))


def _through_last(of_last: Tensor, chunks: int, advance: Tensor, last_advance: Tensor) -> Tensor:
    """The gradients of the states before all chunks from that of the final one: (batch, chunks, order, channels)."""
    passed, back = (last_advance.mT @ of_last)[:, None], advance.mT
    while passed.shape[1] < chunks:
        passed = torch.cat([back @ passed, passed], dim=1)[:, -chunks:]
        back = finite(back @ back)
    return passed


@_project.register_fake
def _(u: Tensor, weight: Tensor, first: Tensor | None, segments: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    batch, time, channels = u.shape
    last = (batch, weight.shape[1], channels) if segments is None else (0,)
    return u.new_empty(batch, time, weight.shape[0]), u.new_empty(*last, dtype=torch.float32)


@_project_backward.register_fake
def _(of_o: Tensor, u: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    need_u, need_weight = rest[-2:]
    none = u.new_empty(0)
    return torch.empty_like(u) if need_u else none, torch.empty_like(weight) if need_weight else none.clone()


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.steps, ctx.group = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, of_o: Tensor | None, of_last: Tensor | None) -> tuple[Tensor | None, ...]:
    u, weight, first, segments, powers, *tables, last_taps, last_advance = ctx.saved_tensors
    need_u, need_weight, need_first = ctx.needs_input_grad[:3]
    of_u = of_weight = of_first = None
    if of_o is not None:
        of_o = of_o.contiguous()
        how = (ctx.steps, ctx.group, need_u, need_weight)
        of_u, of_weight = _project_backward(of_o, u, weight, first, segments, *tables, *how)
        if need_first:  # which reaches the first segment alone
            reached = of_o if segments is None else torch.where((segments == 0)[:, :, None], of_o, 0.0)
            of_first = _of_first(reached, weight, powers)
    if of_last is not None and segments is None and (need_u or need_first):
        taps, advance = tables[3:5]
        passed = None
        if not ctx.steps:
            passed = _through_last(of_last, tiles(u.shape[1], CHUNK), advance, last_advance)
        if need_u:  # what the final state says to the last inputs, and through earlier states to the others
            added = _summed(last_taps).mT @ of_last
            if passed is not None:
                added = torch.cat([(_summed(taps).mT @ passed[:, 1:]).flatten(1, 2), added], dim=1)
            added = torch.nn.functional.pad(added, (0, 0, u.shape[1] - added.shape[1], 0)).to(u.dtype)
            of_u = added if of_u is None else of_u + added
        if need_first and passed is not None:
            of_first = passed[:, 0] if of_first is None else of_first + passed[:, 0]
    return (
        of_u if need_u else None,
        of_weight if need_weight else None,
        of_first,
        *([None] * 12),
    )


@_states.register_fake
def _(u: Tensor, first: Tensor | None, segments: Tensor | None, toeplitz: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    batch, time, channels = u.shape
    order = toeplitz.shape[0]
    last = (batch, order, channels) if segments is None else (0,)
    return u.new_empty(batch, time, order, channels), u.new_empty(*last, dtype=torch.float32)


@_states_backward.register_fake
def _(of_m: Tensor, of_last: Tensor | None, *tables: Tensor | None) -> tuple[Tensor, Tensor]:
    batch, time, order, channels = of_m.shape
    return of_m.new_empty(batch, time, channels), of_m.new_empty(batch, order, channels, dtype=torch.float32)


def _setup_states(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, segments, toeplitz, past, _, taps, advance, _, *last, _ = inputs
    ctx.save_for_backward(segments, toeplitz, past, taps, advance, *last)
    ctx.m = output[0].shape
    ctx.set_materialize_grads(False)


def _backward_states(ctx: Any, of_m: Tensor | None, of_last: Tensor | None) -> tuple[Tensor | None, ...]:
    tables = ctx.saved_tensors
    if of_m is None:
        of_m = tables[1].new_zeros(ctx.m)
    of_u, of_first = _states_backward(of_m.contiguous(), of_last, *tables)
    return (of_u, of_first if ctx.needs_input_grad[1] else None, *([None] * 10))


def _no_second(ctx: Any, *gradients: Tensor) -> None:
    raise RuntimeError("the fused kernels have no second derivative: use algorithm='chunked' for it")


_project.register_autograd(_backward, setup_context=_setup)
_project_backward.register_autograd(_no_second)
_states.register_autograd(_backward_states, setup_context=_setup_states)
_states_backward.register_autograd(_no_second)


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on any device."""
    return os.environ.get("TRITON_INTERPRET") == "1"
