"""`project` of `plmu.ops.fused`: W_m m, its gradients, and two operators of torch for them.

Eager calls use an `autograd.Function`, which takes the least time on the host. Where torch looks at single operations,
to compile, trace or transform them, it sees the operators `plmu::project` and `plmu::project_backward`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plmu.core.modes import is_batched, watched
from plmu.core.systems import LinearSystem
from plmu.ops.gpu import launch
from plmu.ops.gpu.devices import aligned, aligned_if, on
from plmu.ops.gpu.ends import through_states
from plmu.ops.gpu.float32 import split
from plmu.ops.gpu.tables import Constants, Tables, all_powers, grouping, history, segments_of, tables
from plmu.ops.groups import SystemGroups, each

SEGMENT = 1024  # steps at a time in the gradient of the first state


def constants_for(u: Tensor, system: LinearSystem | SystemGroups, state: Tensor | None) -> Constants:
    parts = split.parts_for(u, system)
    steps = history(system, u.dtype) if state is None and not parts else 0
    powers = None
    if state is not None and state.requires_grad:
        powers = system.derive(all_powers, min(u.shape[1], SEGMENT), dtype=torch.float32, device=u.device)
    groups = len(each(system))
    batch, time, channels = u.shape
    run, _ = grouping(batch, time, channels, groups)
    return Constants(tables(u, system, steps, run, parts), powers, steps, run, groups)


def project(
    u: Tensor,
    system: LinearSystem | SystemGroups,
    weight: Tensor,
    state: Tensor | None,
    resets: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """W_m m (batch, time, out) for u (batch, time, channels), and the final state."""
    first = None if state is None else state.contiguous()
    constants = constants_for(u, system, state)
    if watched() or not all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in (u, weight)):
        how = (constants.steps, constants.run, constants.groups)
        o, last = _project(
            u.contiguous(),
            weight.contiguous(),
            first,
            segments_of(resets),
            constants.powers,
            *constants.tables[:8],
            *how,
            constants.tables.from_state if constants.steps and constants.groups > 1 else None,
        )
        return o, last
    return eagerly(u, weight, first, segments_of(resets), constants)


def eagerly(
    u: Tensor, weight: Tensor, first: Tensor | None, segments: Tensor | None, constants: Constants
) -> tuple[Tensor, Tensor]:
    """`project` with ready constants, if torch does not look at single operations."""
    if not torch.is_grad_enabled():
        return forward(u, weight, first, segments, constants)
    o: Tensor
    last: Tensor
    o, last = _Project.apply(u, weight, first, segments, constants)
    return o, last


def forward(
    u: Tensor,
    weight: Tensor,
    first: Tensor | None,
    segments: Tensor | None,
    constants: Constants,
) -> tuple[Tensor, Tensor]:
    """o, and the final state in float32."""
    u, weight = aligned(u.contiguous()), aligned(weight.contiguous())
    first, segments = aligned_if(first), aligned_if(segments)
    groups = constants.groups
    toeplitz, past, _, taps, advance, leap, last_taps, last_advance, _ = constants.tables
    with on(u):
        before = last = None
        if not constants.steps:
            before, last = launch.carry(u, first, segments, taps, advance, leap, constants.run, groups=groups)
        operands = (u, before, segments, weight, toeplitz, past)
        if constants.in_parts:
            o, held = split.project(*operands, groups=groups)
        else:
            forwards, _ = launch.marks(u, segments, weight) or (None, None)
            o, held = launch.project(*operands, forwards, groups=groups)
        return o, launch.final_state(u, last, segments, last_taps, last_advance, groups=groups, early=bool(held))


def _gradients(
    grad_o: Tensor,
    u: Tensor,
    weight: Tensor,
    first: Tensor | None,
    segments: Tensor | None,
    constants: Constants,
    need_u: bool,
    need_weight: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of u and of the weight from that of o; None if not needed."""
    grad_o, u, weight = (aligned(tensor.contiguous()) for tensor in (grad_o, u, weight))
    first, segments = aligned_if(first), aligned_if(segments)
    groups = constants.groups
    toeplitz, past, future, taps, advance, leap, _, _, from_state = constants.tables
    grad_u = grad_weight = None
    with on(u):
        passing = (segments, taps, advance, leap, constants.run)
        forwards, backwards = launch.marks(u, segments, weight) or (None, None)
        if need_weight:
            before = None if constants.steps else launch.carry(u, first, *passing, groups=groups)[0]
            operands = (u, before, segments, grad_o, weight, toeplitz, past)
            if constants.in_parts:
                grad_weight = split.weight_gradient(*operands, groups=groups)
            else:
                grad_weight = launch.weight_gradient(*operands, forwards, groups=groups)
            del before, operands
        if need_u:
            arrays = (toeplitz, from_state, taps, advance)
            grad_u = launch.input_gradient(grad_o, segments, weight, *arrays, groups=groups)
        if need_u and grad_u is None:
            after = None if constants.steps else launch.carry(grad_o, None, *passing, groups=groups, reversed=True)[0]
            backward = (grad_o, after, segments, weight, toeplitz, future)
            if constants.in_parts:
                grad_u, _ = split.project(*backward, groups=groups, reversed=True)
            else:
                grad_u, _ = launch.project(*backward, backwards, groups=groups, reversed=True)
    return grad_u, grad_weight


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, u: Tensor, weight: Tensor, first: Tensor | None, segments: Tensor | None, constants: Constants
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(u, weight, first, segments)
        ctx.constants = constants
        ctx.set_materialize_grads(False)
        return forward(u, weight, first, segments, constants)

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor | None, grad_last: Tensor | None) -> tuple[Tensor | None, ...]:
        gradients = through(ctx.saved_tensors, ctx.constants, ctx.needs_input_grad[:3], grad_o, grad_last)
        return *gradients, None, None


class _ProjectBackward(torch.autograd.Function):
    """The gradients if they might be differentiated again, which raises."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor | None, Tensor | None]:
        return _gradients(*arguments)

    backward = staticmethod(launch.no_second)


def plain(grad_o: Tensor) -> bool:
    """Whether a gradient is a plain tensor, and torch neither records nor transforms operations on it."""
    return not (watched() or is_batched(grad_o) or type(grad_o) is not Tensor or torch.is_grad_enabled())


def through(
    saved: tuple[Tensor | None, ...],
    constants: Constants,
    needed: tuple[bool, bool, bool],
    grad_o: Tensor | None,
    grad_last: Tensor | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of u, of the weight and of the first state from those of o and of the final state."""
    u, weight, first, segments = saved
    assert u is not None
    assert weight is not None
    need_u, need_weight, _ = needed
    grad_u = grad_weight = None
    if grad_o is not None:
        arguments = (grad_o, u, weight, first, segments)
        if watched() or is_batched(grad_o) or type(grad_o) is not Tensor:
            sizes = (constants.steps, constants.run, constants.groups, need_u, need_weight)
            grad_u, grad_weight = _project_backward(
                grad_o.contiguous(), *arguments[1:], *constants.tables[:6], constants.tables.from_state, *sizes
            )
        elif torch.is_grad_enabled():
            grad_u, grad_weight = _ProjectBackward.apply(*arguments, constants, need_u, need_weight)
        elif need_u or need_weight:
            grad_u, grad_weight = _gradients(*arguments, constants, need_u, need_weight)
    grad_u, grad_first = through_states(u, weight, segments, constants, needed, grad_o, grad_last, grad_u)
    return grad_u if need_u else None, grad_weight if need_weight else None, grad_first


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
    run: int,
    groups: int,
    from_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """o, and the final state in float32. `from_state`: for the gradient, if it is not `past`. It is the last argument,
    so that programs exported without it run."""
    tables = (toeplitz, past, future, taps, advance, leap, last_taps, last_advance)
    all_tables = Tables(*tables, past if from_state is None else from_state)
    return forward(u, weight, first, segments, Constants(all_tables, powers, steps, run, groups))


@torch.library.custom_op("plmu::project_backward", mutates_args=())
def _project_backward(
    grad_o: Tensor,
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
    from_state: Tensor,
    steps: int,
    run: int,
    groups: int,
    need_u: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of u and of the weight; empty if not needed."""
    all_tables = Tables(toeplitz, past, future, taps, advance, leap, taps, advance, from_state)  # no final state
    constants = Constants(all_tables, None, steps, run, groups)
    grad_u, grad_weight = _gradients(grad_o, u, weight, first, segments, constants, need_u, need_weight)
    return u.new_empty(0) if grad_u is None else grad_u, weight.new_empty(0) if grad_weight is None else grad_weight


@_project.register_fake
def _(u: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    batch, time, channels = u.shape
    last = u.new_empty(batch, weight.shape[1], channels, dtype=torch.float32)
    return u.new_empty(batch, time, weight.shape[0]), last


@_project_backward.register_fake
def _(grad_o: Tensor, u: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    need_u, need_weight = rest[-2:]
    none = u.new_empty(0)
    return torch.empty_like(u) if need_u else none, torch.empty_like(weight) if need_weight else none.clone()


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.steps, ctx.run, ctx.groups, from_state = inputs
    ctx.save_for_backward(*tensors, from_state)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_o: Tensor | None, grad_last: Tensor | None) -> tuple[Tensor | None, ...]:
    u, weight, first, segments, powers, *tables, from_state = ctx.saved_tensors
    _, past, *_ = tables
    all_tables = Tables._make((*tables, past if from_state is None else from_state))
    constants = Constants(all_tables, powers, ctx.steps, ctx.run, ctx.groups)
    gradients = through((u, weight, first, segments), constants, ctx.needs_input_grad[:3], grad_o, grad_last)
    return *gradients, *([None] * 14)


_project.register_autograd(_backward, setup_context=_setup)
_project_backward.register_autograd(launch.no_second)
