"""`project` of `plmu.ops.fused`: W_m m, its gradients, and the two operators that torch knows them by.

Called eagerly, each is an `autograd.Function`, which costs the host least. Where torch looks at single operations, to
compile, trace or transform them, they are `plmu::project` and `plmu::project_backward`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plmu.modes import is_batched, watched
from plmu.ops.gpu import launch, split
from plmu.ops.gpu.devices import aligned, aligned_if, on
from plmu.ops.gpu.tables import CHUNK, Tables, all_powers, grouping, history, segments_of, summed, tables, tiles
from plmu.ops.groups import SystemGroups, each
from plmu.ops.matrices import finite
from plmu.systems import LinearSystem

SEGMENT = 1024  # steps at a time in the gradient of the first state


class Constants:
    """What a projection needs beside tensors with a batch: tables, and how the past of a chunk is known.

    With `steps` that many inputs before a chunk stand for its state; else one program carries it over `run` chunks.
    """

    __slots__ = ("groups", "in_parts", "powers", "prepared", "run", "steps", "tables")

    def __init__(self, tables: Tables, powers: Tensor | None, steps: int, run: int, groups: int) -> None:
        self.tables, self.powers, self.steps, self.run, self.groups = tables, powers, steps, run, groups
        #: Whether the matrices that are multiplied with float32 are divided into parts in half precision.
        self.in_parts = tables.toeplitz.dim() == tables.advance.dim() + 2
        self.prepared: dict[Any, Any] = {}  #: what else calls of the same shapes found out


def constants(u: Tensor, system: LinearSystem | SystemGroups, state: Tensor | None) -> Constants:
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
    given = constants(u, system, state)
    if watched() or not all(type(one) in (Tensor, torch.nn.Parameter) for one in (u, weight)):
        how = (given.steps, given.run, given.groups)
        o, last = _project(
            u.contiguous(), weight.contiguous(), first, segments_of(resets), given.powers, *given.tables, *how
        )
        return o, last
    return eagerly(u, weight, first, segments_of(resets), given)


def eagerly(
    u: Tensor, weight: Tensor, first: Tensor | None, segments: Tensor | None, given: Constants
) -> tuple[Tensor, Tensor]:
    """The same with constants at hand, where nothing looks at single operations."""
    if not torch.is_grad_enabled():
        return forward(u, weight, first, segments, given)
    o: Tensor
    last: Tensor
    o, last = _Project.apply(u, weight, first, segments, given)
    return o, last


def forward(
    u: Tensor,
    weight: Tensor,
    first: Tensor | None,
    segments: Tensor | None,
    given: Constants,
) -> tuple[Tensor, Tensor]:
    """o, and the final state in float32."""
    u, weight = aligned(u.contiguous()), aligned(weight.contiguous())
    first, segments = aligned_if(first), aligned_if(segments)
    groups = given.groups
    toeplitz, past, _, taps, advance, leap, last_taps, last_advance = given.tables
    with on(u):
        before = last = None
        if not given.steps:
            before, last = launch.carry(u, first, segments, taps, advance, leap, given.run, groups=groups)
        operands = (u, before, segments, weight, toeplitz, past)
        if given.in_parts:
            o, held = split.project(*operands, groups=groups)
        else:
            forwards, _ = launch.marks(u, segments, weight) or (None, None)
            o, held = launch.project(*operands, forwards, groups=groups)
        return o, launch.final_state(u, last, segments, last_taps, last_advance, groups=groups, early=bool(held))


def _gradients(
    of_o: Tensor,
    u: Tensor,
    weight: Tensor,
    first: Tensor | None,
    segments: Tensor | None,
    given: Constants,
    need_u: bool,
    need_weight: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of u and of the weight from that of o; None where not needed."""
    of_o, u, weight = (aligned(one.contiguous()) for one in (of_o, u, weight))
    first, segments = aligned_if(first), aligned_if(segments)
    groups = given.groups
    toeplitz, past, future, taps, advance, leap, _, _ = given.tables
    of_u = of_weight = None
    with on(u):
        passing = (segments, taps, advance, leap, given.run)
        forwards, backwards = launch.marks(u, segments, weight) or (None, None)
        if need_weight:
            before = None if given.steps else launch.carry(u, first, *passing, groups=groups)[0]
            operands = (u, before, segments, of_o, weight, toeplitz, past)
            if given.in_parts:
                of_weight = split.weight_gradient(*operands, groups=groups)
            else:
                of_weight = launch.weight_gradient(*operands, forwards, groups=groups)
            del before, operands
        if need_u:
            after = None if given.steps else launch.carry(of_o, None, *passing, groups=groups, reversed=True)[0]
            backward = (of_o, after, segments, weight, toeplitz, future)
            if given.in_parts:
                of_u, _ = split.project(*backward, groups=groups, reversed=True)
            else:
                of_u, _ = launch.project(*backward, backwards, groups=groups, reversed=True)
    return of_u, of_weight


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, u: Tensor, weight: Tensor, first: Tensor | None, segments: Tensor | None, given: Constants
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(u, weight, first, segments)
        ctx.given = given
        ctx.set_materialize_grads(False)
        return forward(u, weight, first, segments, given)

    @staticmethod
    def backward(ctx: Any, of_o: Tensor | None, of_last: Tensor | None) -> tuple[Tensor | None, ...]:
        gradients = through(ctx.saved_tensors, ctx.given, ctx.needs_input_grad[:3], of_o, of_last)
        return *gradients, None, None


class _ProjectBackward(torch.autograd.Function):
    """The gradients where they may be differentiated again, which raises."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor | None, Tensor | None]:
        return _gradients(*arguments)

    backward = staticmethod(launch.no_second)


def plain(of_o: Tensor) -> bool:
    """Whether a gradient is one tensor of which nothing but its values is asked."""
    return not (watched() or is_batched(of_o) or type(of_o) is not Tensor or torch.is_grad_enabled())


def through(
    saved: tuple[Tensor | None, ...],
    given: Constants,
    needed: tuple[bool, bool, bool],
    of_o: Tensor | None,
    of_last: Tensor | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of u, of the weight and of the first state from those of o and of the final state."""
    u, weight, first, segments = saved
    assert u is not None
    assert weight is not None
    need_u, need_weight, _ = needed
    of_u = of_weight = None
    if of_o is not None:
        arguments = (of_o, u, weight, first, segments)
        if watched() or is_batched(of_o) or type(of_o) is not Tensor:
            how = (given.steps, given.run, given.groups, need_u, need_weight)
            of_u, of_weight = _project_backward(of_o.contiguous(), *arguments[1:], *given.tables[:6], *how)
        elif torch.is_grad_enabled():
            of_u, of_weight = _ProjectBackward.apply(*arguments, given, need_u, need_weight)
        elif need_u or need_weight:
            of_u, of_weight = _gradients(*arguments, given, need_u, need_weight)
    of_u, of_first = through_states(u, weight, segments, given, needed, of_o, of_last, of_u)
    return of_u if need_u else None, of_weight if need_weight else None, of_first


def through_states(
    u: Tensor,
    weight: Tensor,
    segments: Tensor | None,
    given: Constants,
    needed: tuple[bool, bool, bool],
    of_o: Tensor | None,
    of_last: Tensor | None,
    of_u: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradient of u with what the final state adds to it, and that of the first state."""
    need_u, _, need_first = needed
    of_first = None
    if of_o is not None and need_first:  # which reaches the first segment alone
        reached = of_o if segments is None else torch.where((segments == 0)[:, :, None], of_o, 0.0)
        assert given.powers is not None
        of_first = _of_first(reached, weight, given.powers, given.groups)
    if of_last is not None and (need_u or need_first):
        added, passed = _through_last(of_last, u.shape[1], given, need_u)
        if segments is not None:  # it reaches the last segment alone
            end = segments[:, -1:]
            added = None if added is None else torch.where((segments == end)[:, :, None], added, 0.0)
            passed = None if passed is None else torch.where((end == 0)[:, :, None], passed, 0.0)
        if added is not None:
            of_u = added.to(u.dtype) if of_u is None else of_u + added.to(u.dtype)
        if need_first and passed is not None:
            of_first = passed if of_first is None else of_first + passed
    return of_u, of_first


def _of_first(of_o: Tensor, weight: Tensor, powers: Tensor, groups: int) -> Tensor:
    """The gradient of the first state from that of o: Σ_t (Ā^{t+1})ᵀ W_mᵀ of_o[t], segment by segment from the last."""
    if groups > 1:
        parts = zip(weight.chunk(groups, dim=2), powers.unbind(), strict=True)
        return torch.cat([_of_first(of_o, part, own, 1) for part, own in parts], dim=2)
    total: Tensor | None = None
    for part in reversed(of_o.split(powers.shape[0], dim=1)):
        now = torch.einsum("tij,bto->bijo", powers[: part.shape[1]], part.to(powers.dtype))
        total = now if total is None else now + torch.einsum("biko,kj->bijo", total, powers[-1])
    assert total is not None
    return torch.einsum("bijo,oic->bjc", total, weight.to(powers.dtype))


def _through_last(of_last: Tensor, time: int, given: Constants, need_u: bool) -> tuple[Tensor | None, Tensor | None]:
    """What the gradient of the final state says to all inputs (batch, time, channels), if needed, and to the first
    state, where states are passed: (batch, order, channels)."""
    if given.groups > 1:
        ends = enumerate(of_last.chunk(given.groups, dim=2))
        alone = [(end, Constants(given.tables.of_group(i), None, given.steps, given.run, 1)) for i, end in ends]
        found = [_through_last(end, time, own, need_u) for end, own in alone]
        inputs, states = ([one for one in some if one is not None] for some in zip(*found, strict=True))
        return torch.cat(inputs, dim=2) if inputs else None, torch.cat(states, dim=2) if states else None
    _, _, _, taps, advance, _, last_taps, last_advance = given.tables
    passed = added = None
    if not given.steps:
        passed = _before_chunks(of_last, tiles(time, CHUNK), advance, last_advance)
    if need_u:  # to the last inputs, and through earlier states to the others
        added = summed(last_taps).mT @ of_last
        if passed is not None:
            added = torch.cat([(summed(taps).mT @ passed[:, 1:]).flatten(1, 2), added], dim=1)
        added = torch.nn.functional.pad(added, (0, 0, time - added.shape[1], 0))
    return added, None if passed is None else passed[:, 0]


def _before_chunks(of_last: Tensor, chunks: int, advance: Tensor, last_advance: Tensor) -> Tensor:
    """The gradients of the states before all chunks from that of the final one: (batch, chunks, order, channels)."""
    passed, back = (last_advance.mT @ of_last)[:, None], advance.mT
    while passed.shape[1] < chunks:
        passed = torch.cat([back @ passed, passed], dim=1)[:, -chunks:]
        back = finite(back @ back)
    return passed


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
) -> tuple[Tensor, Tensor]:
    """o, and the final state in float32."""
    own = Tables(toeplitz, past, future, taps, advance, leap, last_taps, last_advance)
    return forward(u, weight, first, segments, Constants(own, powers, steps, run, groups))


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
    run: int,
    groups: int,
    need_u: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of u and of the weight; empty where not needed."""
    own = Tables(toeplitz, past, future, taps, advance, leap, taps, advance)  # the last two are not for this
    given = Constants(own, None, steps, run, groups)
    of_u, of_weight = _gradients(of_o, u, weight, first, segments, given, need_u, need_weight)
    return u.new_empty(0) if of_u is None else of_u, weight.new_empty(0) if of_weight is None else of_weight


@_project.register_fake
def _(u: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    batch, time, channels = u.shape
    last = u.new_empty(batch, weight.shape[1], channels, dtype=torch.float32)
    return u.new_empty(batch, time, weight.shape[0]), last


@_project_backward.register_fake
def _(of_o: Tensor, u: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    need_u, need_weight = rest[-2:]
    none = u.new_empty(0)
    return torch.empty_like(u) if need_u else none, torch.empty_like(weight) if need_weight else none.clone()


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.steps, ctx.run, ctx.groups = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, of_o: Tensor | None, of_last: Tensor | None) -> tuple[Tensor | None, ...]:
    u, weight, first, segments, powers, *own = ctx.saved_tensors
    given = Constants(Tables(*own), powers, ctx.steps, ctx.run, ctx.groups)
    gradients = through((u, weight, first, segments), given, ctx.needs_input_grad[:3], of_o, of_last)
    return *gradients, *([None] * 13)


_project.register_autograd(_backward, setup_context=_setup)
_project_backward.register_autograd(launch.no_second)
