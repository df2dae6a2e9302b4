"""Equation 25: the final state alone, as one product with the impulse response in reversed time."""

from __future__ import annotations

import torch
from torch import Tensor

from plmu.core.modes import is_open
from plmu.core.systems import LinearSystem
from plmu.ops import exported
from plmu.ops.case import Case, Plan
from plmu.ops.check import Problem
from plmu.ops.matrices import apply, power, reversed_response

LARGEST_PRODUCT = 1 << 22  # elements of the reversed impulse response; beyond it the sequence is taken in blocks
FLOPS = 4  # a multiplication and an addition, forward and backward
LAUNCHES = 10


def final_of(problem: Problem) -> Tensor:
    """The final state by equation 25."""
    u = problem.u.to(problem.wide)
    return final_state(u, problem.system, problem.state, problem.lengths, problem.resets)


def final_state(
    u: Tensor, system: LinearSystem, state: Tensor | None, lengths: Tensor | None, resets: Tensor | None
) -> Tensor:
    """The state (batch, order, channels) after each sequence's own last step. Inputs past a length must be zero."""
    time, decay = u.shape[1], lengths  # decay: steps over which the first state decays; None for all
    if resets is not None:
        segment = resets.cumsum(dim=1)  # (batch, time)
        end = segment[:, -1:] if lengths is None else segment.gather(1, (lengths - 1).clamp(min=0)[:, None])
        u = torch.where((segment == end)[:, :, None, None], u, 0.0)
        if state is not None:
            remains = end == 0 if lengths is None else (end == 0) | (lengths == 0)[:, None]
            state = torch.where(remains[:, :, None], state, 0.0)
            if lengths is not None:  # powers that overflow would make the gradient of zero NaN
                decay = torch.where(remains[:, 0], lengths, 0)
    if lengths is not None:
        u = aligned_right(u, lengths)
    last = exported.driven(u, system) if is_open(time) else _driven(u, system)
    if state is None:
        return last
    decayed = exported.decayed if is_open(time) else _decayed
    return last + decayed(state, system, time, decay)


def aligned_right(u: Tensor, lengths: Tensor) -> Tensor:
    """u with each sequence aligned to the right, so that all end at the last step; the zeros of the padding come
    first."""
    time = u.shape[1]
    steps = (torch.arange(time, device=u.device) + lengths[:, None]) % time
    return u.gather(1, steps[:, :, None, None].expand_as(u))


def block_length(time: int, order: int, inputs: int) -> int:
    """The number of steps of one product: all, halved until its impulse response has at most LARGEST_PRODUCT
    elements."""
    block = time
    while block > 1 and block * order * inputs > LARGEST_PRODUCT:
        block = (block + 1) // 2
    return block


def _driven(u: Tensor, system: LinearSystem) -> Tensor:
    """The final state from a zero initial state."""
    batch, time, inputs, channels = u.shape
    block = block_length(time, system.order, inputs)
    count = -(-time // block)
    u = torch.nn.functional.pad(u, (0, 0, 0, 0, count * block - time, 0))
    taps = system.derive(reversed_response, block, dtype=u.dtype, device=u.device)
    ends = apply(taps, u.reshape(batch, count, block * inputs, channels))  # (batch, blocks, order, channels)
    while ends.shape[1] > 1:  # join blocks in pairs, earlier into later
        if ends.shape[1] % 2:
            ends = torch.nn.functional.pad(ends, (0, 0, 0, 0, 1, 0))
        advance = system.derive(power, block, dtype=u.dtype, device=u.device)
        ends = apply(advance, ends[:, 0::2]) + ends[:, 1::2]
        block *= 2
    return ends[:, 0]


def _decayed(state: Tensor, system: LinearSystem, time: int, lengths: Tensor | None) -> Tensor:
    """Ā^length m_0, with the power taken bit by bit where lengths differ."""
    if lengths is None:
        return apply(system.derive(power, time, dtype=state.dtype, device=state.device), state)
    exponent = 1
    while exponent <= time:
        advanced = apply(system.derive(power, exponent, dtype=state.dtype, device=state.device), state)
        chosen = (lengths // exponent) % 2 == 1
        state = torch.where(chosen[:, None, None], advanced, state)
        exponent *= 2
    return state


def plan(case: Case) -> Plan:
    """The plan of a final state, with its estimated time: there is one algorithm."""
    block = block_length(case.time, case.order, case.inputs)
    if block == case.time:
        why = f"Equation 25: one product with the impulse response, {case.order} × {case.time * case.inputs}."
    else:
        why = f"Equation 25 over chunks of {block} steps, whose ends are then joined in pairs."
    flops = FLOPS * case.batch * case.time * case.channels * case.order * case.inputs
    seconds = flops / case.rates.flops + LAUNCHES * case.rates.latency
    stored = () if case.constant else ("u",)
    return Plan("final_state", "product", chunk=block, reason=why, stored=stored, costs={"product": seconds})
