"""`project` and `states` by our own kernels on a GPU: chunks as in `plmu.ops.chunked`.

Forward: one kernel writes W_m m once, and no tile of m ever reaches memory. What a chunk knows of its past is the state
before it, for all chunks in one launch or two; or, where the impulse response fades within a chunk, the last inputs
before it, and no state is passed at all. Backward: the gradient of u is the same projection with time running
backwards, of the gradient of o by the transposed weight. That of the weight is one more kernel, whose sum over time is
cut into fixed shares and added up in a fixed order, so that results repeat bit for bit. Nothing but u and the weight is
kept between the two passes.

The kernels are in `plmu.ops.gpu`, written twice: in Triton for every GPU and precision, and the two heavy ones for the
TMA unit and the tensor cores of Hopper GPUs.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

from plmu.ops.algorithm import Algorithm, Case, Option, Plan, Problem, final_of
from plmu.ops.gpu import all_states, launch
from plmu.ops.gpu.tables import CHUNK, all_powers, grouping, history, rows_of, segments_of, summed, tables, tiles
from plmu.ops.matrices import finite, may_grow
from plmu.ops.rates import HALF
from plmu.systems import LinearSystem

SEGMENT = 1024  # steps at a time in the gradient of the first state
LARGEST_ORDER = 64
AVAILABLE = importlib.util.find_spec("triton") is not None


class Fused(Algorithm):
    """Kernels of our own, for systems that are not trained."""

    name = "fused"

    # What the estimate is made of; forward and backward together.
    FLOPS = 6  # for each number of m and each output: the projection, and its two gradients
    TILE = 64  # channels; outputs are tiled by 64, 128 or 256
    PAST = 32  # rows of a chunk's past that are multiplied beside its steps
    RESETS_SLOWER = 2.5  # times, with the kernels for every GPU
    TRAFFIC = 3  # passes over u and o
    LAUNCHES = 12
    CARRIED_ROW = 5e-8  # seconds for a row of the state to pass a chunk
    CARRIES = 3  # times that states are passed on
    STATES_TRAFFIC = 4  # passes over m where all states are the result
    STATES_LAUNCHES = 8
    ALL_STATES = "fused, all states"  # as a plan lists it

    def states(self, problem: Problem, plan: Plan) -> tuple[Tensor, Tensor]:
        inputs = problem.u.squeeze(2).to(problem.dtype)
        if not inputs.shape[0]:
            return _no_states(inputs, problem)
        m, last = all_states.states(inputs, problem.system, problem.state, _stops(problem))
        return m, last if problem.lengths is None and problem.resets is None else final_of(problem)

    def project(self, problem: Problem, weight: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        inputs, weight = problem.u.squeeze(2).to(problem.dtype), weight.to(problem.dtype)
        if not inputs.shape[0]:
            m, last = _no_states(inputs, problem)
            return m.flatten(2) @ weight.flatten(1).mT, last
        o, last = project(inputs, problem.system, weight, problem.state, _stops(problem))
        return o, last if problem.lengths is None and problem.resets is None else final_of(problem)

    def limit(self, case: Case) -> str | None:
        reason = None
        if case.target.type != "cuda" and not interpreted():
            reason = f"runs on a GPU alone, not on {case.target.type}"
        elif not AVAILABLE:
            reason = "needs Triton: pip install triton"
        elif case.dtype == torch.float64:
            reason = "has no float64"
        elif case.several_inputs:
            reason = "takes one input for each channel, not a system with several"
        elif case.order > LARGEST_ORDER:
            reason = f"takes orders up to {LARGEST_ORDER}, not {case.order}"
        elif case.trained:
            reason = "has no gradient for the system itself"
        elif not case.constant:
            reason = "needs a system whose values are known"
        elif case.transformed:
            reason = "works neither under torch.func nor with forward-mode gradients"
        return reason

    def auto_limit(self, case: Case) -> str | None:
        """The kernels are worth it where the two heavy ones run in their form for Hopper; with resets the others do.
        For all states they win on such GPUs as CUDA graphs, where their many launches cost little."""
        if not case.batch:
            return "has no sequences to run for"
        if case.kind == "states" and (case.resets or not case.graph):
            return "is considered for states in CUDA graphs alone (plmu.for_graphs), without resets"
        if case.kind == "states" and case.channels < self.TILE:
            return f"is considered for states of at least {self.TILE} channels, not {case.channels}"
        return self._why_not_hopper(case, segmented=False)

    def options(self, case: Case) -> list[Option]:
        """Tiles are made whole: of chunks, of 64 channels, and of 64, 128 or 256 outputs. Passing states on is counted
        whether or not the response fades within a chunk: that is a matter of the system's values."""
        _, passed = grouping(case.batch, case.time, case.channels)  # one after another
        carrying = self.CARRIES * passed * rows_of(case.order) * self.CARRIED_ROW
        if case.kind == "states":
            moved = HALF * self.STATES_TRAFFIC * case.states
            seconds = case.rates.seconds(flops=0, moved=moved, launches=self.STATES_LAUNCHES, half=True, own=True)
            return [Option(self.ALL_STATES, carrying + seconds, CHUNK)]
        wide = 256 if case.out > 128 else 128 if case.out > 64 else 64
        steps = tiles(case.time, CHUNK) * CHUNK
        channels, outputs = tiles(case.channels, self.TILE) * self.TILE, tiles(case.out, wide) * wide
        products = self.FLOPS * case.batch * steps * case.order * channels * outputs
        extra = (self.RESETS_SLOWER if case.resets else 1) * (1 + (CHUNK + self.PAST) / wide)
        moved = HALF * self.TRAFFIC * case.moved
        seconds = case.rates.seconds(flops=products * extra, moved=moved, launches=self.LAUNCHES, half=True, own=True)
        return [Option(self.name, carrying + seconds, CHUNK)]

    def explain(self, option: Option) -> str:
        if option.label == self.ALL_STATES:
            return "Kernels of our own: tiles of m are made on chip and written once."
        return "Kernels of our own: tiles of m are made on chip and multiplied into the weight at once."

    def kernel(self, case: Case) -> tuple[str, str | None]:
        if case.kind == "states":
            return "Triton", None
        reason = self._why_not_hopper(case, segmented=case.resets or (case.lengths and not case.bounded))
        return ("Hopper", None) if reason is None else ("Triton", reason)

    def stored(self, case: Case, option: Option) -> tuple[str, ...]:
        return ("u", "weight") if case.kind == "project" else ()

    def _why_not_hopper(self, case: Case, *, segmented: bool) -> str | None:
        sizes = (case.batch, case.time, case.channels, case.out or case.channels)
        return launch.why_not_hopper(case.target, case.dtype, *sizes, segmented)


ALGORITHM = Fused()


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on any device."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _stops(problem: Problem) -> Tensor | None:
    """Where the state is reset; and, of a system that may grow, where a sequence ends."""
    return problem.stops() if may_grow(problem.system) else problem.resets


def _no_states(u: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """m and the final state of no sequences, for which nothing is launched."""
    m = u[:, :, None].expand(-1, -1, problem.system.order, -1)
    return m, m.sum(1, dtype=problem.wide)


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
    segments = segments_of(resets)
    group, _ = grouping(*u.shape)
    constants = tables(u, system, steps, group)
    o, last = _project(u.contiguous(), weight.contiguous(), first, segments, powers, *constants, steps, group)
    return o, last


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
    u, weight = launch.aligned(u), launch.aligned(weight)
    before = last = None
    if not steps:
        before, last = launch.carry(u, first, segments, taps, advance, leap, group)
    o, held = launch.project(u, before, segments, weight, toeplitz, past)
    return o, launch.final_state(u, last, segments, last_taps, last_advance, early=bool(held))


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
    of_o, u, weight = launch.aligned(of_o), launch.aligned(u), launch.aligned(weight)
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
            added = summed(last_taps).mT @ of_last
            if passed is not None:
                added = torch.cat([(summed(taps).mT @ passed[:, 1:]).flatten(1, 2), added], dim=1)
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


_project.register_autograd(_backward, setup_context=_setup)
_project_backward.register_autograd(launch.no_second)
