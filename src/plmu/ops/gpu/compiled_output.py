"""`output` of `plmu.ops.gpu.output` for torch.compile: the operators `plmu::output`, `plmu::output_backward` and
`plmu::final_state`.

They launch the same kernels as an eager call, with the same bits. As for `plmu::project`, the constant tables are
arguments. The final state is a separate operator, which a compiler removes if it is not used. Gradients through the
first and the final state are products of torch, which a compiler may fuse.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plmu.ops.check import Epilogue
from plmu.ops.gpu import launch
from plmu.ops.gpu.devices import aligned_if, laid_out, on
from plmu.ops.gpu.ends import through_states
from plmu.ops.gpu.output import Gradients, by_kernels, cast, keeps_states, prepared
from plmu.ops.gpu.tables import CHUNK, Constants, Tables, rows_of, tiles


def output(
    u: Tensor, weight: Tensor, first: Tensor | None, segments: Tensor | None, constants: Constants, epilogue: Epilogue
) -> tuple[Tensor, Tensor]:
    """o and the final state, if the call `fits`. The tensors of the epilogue are cast to the precision of u."""
    x, input_weight, bias, relu = cast(epilogue, u.dtype)
    options = (relu, constants.steps, constants.run, constants.groups)
    o, _, carried = _output(
        u, weight, first, segments, x, input_weight, bias, constants.powers, *constants.tables, *options
    )
    _, _, _, taps, advance, _, last_taps, last_advance, _ = constants.tables
    before = None if constants.steps else carried
    last: Tensor = _final_state(u, first, segments, before, taps, advance, last_taps, last_advance, constants.groups)
    return o, last


@torch.library.custom_op("plmu::output", mutates_args=())
def _output(
    u: Tensor,
    weight: Tensor,
    first: Tensor | None,
    segments: Tensor | None,
    x: Tensor | None,
    input_weight: Tensor | None,
    bias: Tensor | None,
    powers: Tensor | None,
    toeplitz: Tensor,
    past: Tensor,
    future: Tensor,
    taps: Tensor,
    advance: Tensor,
    leap: Tensor,
    last_taps: Tensor,
    last_advance: Tensor,
    from_state: Tensor,
    relu: bool,
    steps: int,
    run: int,
    groups: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """o; the states before chunks, empty unless they are kept; and that before the last chunk in float32, empty if
    inputs replace it."""
    tables = Tables(toeplitz, past, future, taps, advance, leap, last_taps, last_advance, from_state)
    constants = Constants(tables, None, steps, run, groups)
    call = prepared(u.shape, weight, Epilogue(x, input_weight, bias, relu), segments, constants)
    u = laid_out(u)
    with on(u):
        o, states, carried, _ = call.output(u, weight, first, x, input_weight, bias, aligned_if(segments))
    return o, u.new_empty(0) if states is None else states, advance.new_empty(0) if carried is None else carried


@torch.library.custom_op("plmu::final_state", mutates_args=())
def _final_state(
    u: Tensor,
    first: Tensor | None,
    segments: Tensor | None,
    carried: Tensor | None,
    taps: Tensor,
    advance: Tensor,
    last_taps: Tensor,
    last_advance: Tensor,
    groups: int,
) -> Tensor:
    """The final state in float32, from the last inputs and `carried`, the state before the last chunk, if there is one.
    Gradients go to u and to the first state, not to `carried`."""
    u = laid_out(u)
    with on(u):
        return launch.final_state(u, carried, aligned_if(segments), last_taps, last_advance, groups=groups)


@torch.library.custom_op("plmu::output_backward", mutates_args=())
def _output_backward(
    grad_o: Tensor,
    u: Tensor,
    weight: Tensor,
    first: Tensor | None,
    segments: Tensor | None,
    x: Tensor | None,
    input_weight: Tensor | None,
    o: Tensor | None,
    kept: Tensor | None,
    toeplitz: Tensor,
    past: Tensor,
    future: Tensor,
    taps: Tensor,
    advance: Tensor,
    leap: Tensor,
    last_taps: Tensor,
    last_advance: Tensor,
    from_state: Tensor,
    steps: int,
    run: int,
    groups: int,
    needed: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of u, W_m, x, W_x and the bias from that of o; empty if not needed. `o` is there if there is a
    ReLU, `kept` if the states before chunks are kept."""
    tables = Tables(toeplitz, past, future, taps, advance, leap, last_taps, last_advance, from_state)
    constants = Constants(tables, None, steps, run, groups)
    call = prepared(u.shape, weight, Epilogue(x, input_weight, None, o is not None), segments, constants)
    saved = (u, weight, first, segments, x, input_weight, o, kept)
    with torch.no_grad():
        gradients = by_kernels(constants, call, saved, (*needed[:2], False, *needed[2:]), grad_o, None)
    grad_u, grad_weight, _, grad_x, grad_input_weight, grad_bias = (
        u.new_empty(0) if gradient is None else gradient for gradient in gradients
    )
    return grad_u, grad_weight, grad_x, grad_input_weight, grad_bias


@_output.register_fake
def _(u: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    batch, time, channels = u.shape
    steps, (out, order, _) = rest[-3], weight.shape
    kept = not steps and keeps_states(order, time)
    states = (batch, tiles(time, CHUNK), rows_of(order), channels) if kept else (0,)
    carried = u.new_empty(*((0,) if steps else (batch, order, channels)), dtype=torch.float32)
    return u.new_empty(batch, time, out), u.new_empty(states), carried


@_final_state.register_fake
def _(u: Tensor, first: Any, segments: Any, carried: Any, taps: Tensor, *rest: Any) -> Tensor:
    return u.new_empty(u.shape[0], taps.shape[-2], u.shape[2], dtype=torch.float32)


@_output_backward.register_fake
def _(
    grad_o: Tensor, u: Tensor, weight: Tensor, first: Any, segments: Any, x: Any, input_weight: Any, *rest: Any
) -> tuple[Tensor, ...]:
    x_shape, input_weight_shape = ((0,) if tensor is None else tensor.shape for tensor in (x, input_weight))
    shapes = (u.shape, weight.shape, x_shape, input_weight_shape, weight.shape[:1])
    return tuple(u.new_empty(shape if need else (0,)) for shape, need in zip(shapes, rest[-1], strict=True))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    u, weight, first, segments, x, input_weight, _, powers, *tables, relu, ctx.steps, ctx.run, ctx.groups = inputs
    o, states = output[0], output[1] if output[1].numel() and ctx.needs_input_grad[1] else None
    ctx.save_for_backward(u, weight, first, segments, x, input_weight, o if relu else None, states, powers, *tables)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_o: Tensor | None, *_: Tensor | None) -> Gradients:
    *saved, powers, toeplitz, past, future, taps, advance, leap, last_taps, last_advance, from_state = ctx.saved_tensors
    tables = Tables(toeplitz, past, future, taps, advance, leap, last_taps, last_advance, from_state)
    constants = Constants(tables, powers, ctx.steps, ctx.run, ctx.groups)
    u, weight, _, segments, _, _, o, _ = saved
    need_u, need_weight, need_first, _, *others = ctx.needs_input_grad[:7]
    needed = [need_u, need_weight, *others]
    gradients: list[Tensor | None] = [None] * 5
    if grad_o is not None and any(needed):
        results = _output_backward(grad_o, *saved, *tables, ctx.steps, ctx.run, ctx.groups, needed)
        gradients = [result if need else None for result, need in zip(results, needed, strict=True)]
    grad_u, grad_weight, *grad_others = gradients
    if grad_o is not None and o is not None and need_first:
        grad_o = torch.where(o <= 0, 0.0, grad_o)
    options = (constants, (need_u, need_weight, need_first))
    grad_u, grad_first = through_states(u, weight, segments, *options, grad_o, None, grad_u)
    return grad_u, grad_weight, grad_first, None, *grad_others, *([None] * 14)


def _setup_final(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    u, _, segments, carried, *tables, ctx.groups = inputs
    ctx.carries = carried is not None
    ctx.save_for_backward(u, segments, *tables)


def _final_backward(ctx: Any, grad_last: Tensor) -> Gradients:
    u, segments, taps, advance, last_taps, last_advance = ctx.saved_tensors
    # Only four tables are used; the others, and the weight, are not read without a gradient of o.
    all_tables = Tables(taps, taps, taps, taps, advance, advance, last_taps, last_advance, taps)
    constants = Constants(all_tables, None, 0 if ctx.carries else last_taps.shape[-1], 0, ctx.groups)
    need_u, need_first = ctx.needs_input_grad[:2]
    grad_u, grad_first = through_states(u, u, segments, constants, (need_u, False, need_first), None, grad_last, None)
    return grad_u if need_u else None, grad_first, *([None] * 7)


_output.register_autograd(_backward, setup_context=_setup)
_final_state.register_autograd(_final_backward, setup_context=_setup_final)
_output_backward.register_autograd(launch.no_second)
