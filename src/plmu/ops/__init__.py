"""Evaluating a linear system over a sequence (the paper's section 3.3): check, ask the plan, run one algorithm.

All algorithms compute the same function, forward and backward; `plmu.plan` tells which one `"auto"` takes and why.
Shapes: u (batch, time, channels), m (batch, time, order, channels), state (batch, order, channels). `lengths` are for
sequences padded on the right; `resets` (batch, time) marks steps before which the state is set to zero.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import replace

import torch
from torch import Tensor

from plmu.modes import autocasts, is_open, transformed
from plmu.ops import chunked, exported, fft, final, fused, recurrent, toeplitz
from plmu.ops.check import Lengths, Problem, checked
from plmu.ops.matrices import apply, input_matrix, may_grow
from plmu.ops.nonfinite import infinity_as_nan, isolate_nonfinite, isolated
from plmu.ops.plan import Plan, for_graphs, plan
from plmu.systems import LinearSystem

__all__ = ["Plan", "final_state", "for_graphs", "isolate_nonfinite", "plan", "project", "states"]

_PLAIN = {"recurrent": recurrent.states, "toeplitz": toeplitz.states, "fft": fft.states, "exported": exported.states}


def states(
    u: Tensor,
    system: LinearSystem,
    state: Tensor | None = None,
    lengths: Lengths = None,
    algorithm: str = "auto",
    *,
    resets: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All states m (batch, time, order, channels) and the final one (batch, order, channels)."""
    problem, spoilt = isolated(checked(u, system, state, lengths, resets))
    problem = _driven(problem)
    chosen = _plan("states", problem, algorithm)
    with _no_autocast(u.device):
        m, last = _all_states(problem, chosen)
        m = m.to(problem.dtype)
        if spoilt is not None:
            m, last = spoilt.mark_states(m), spoilt.mark_final(last)
        return problem.keep_valid(m), last


def final_state(
    u: Tensor,
    system: LinearSystem,
    state: Tensor | None = None,
    lengths: Lengths = None,
    *,
    resets: Tensor | None = None,
) -> Tensor:
    """The state after each sequence's last step (batch, order, channels), as one product (equation 25)."""
    problem = _driven(checked(u, system, state, lengths, resets))
    with _no_autocast(u.device):
        return infinity_as_nan(_final_state(problem))


def project(
    u: Tensor,
    system: LinearSystem,
    weight: Tensor,
    state: Tensor | None = None,
    lengths: Lengths = None,
    algorithm: str = "auto",
    *,
    resets: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """o_t = W_m m_t (batch, time, out) for a weight (out, order, channels), and the final state.

    The memory product of equation 20. With `"chunked"`, and with `"auto"` beyond a few MiB, m is never stored.
    """
    problem, spoilt = isolated(checked(u, system, state, lengths, resets))
    problem = _driven(problem)
    _check_weight(weight, problem)
    chosen = _plan("project", problem, algorithm, out=weight.shape[0])
    with _no_autocast(u.device):
        if chosen.algorithm == "chunked":
            operand = _operand(problem)
            o, last = chunked.project(
                problem.u.to(operand),
                problem.system,
                weight.to(operand),
                problem.state,
                problem.lengths,
                _stops(problem, "chunked"),
                chosen.chunk,
                chosen.fold,
                chosen.tile,
            )
        elif chosen.algorithm == "fused":
            inputs = problem.u.squeeze(2).to(problem.dtype)
            stops = _stops(problem, "fused")
            o, last = fused.project(inputs, problem.system, weight.to(problem.dtype), problem.state, stops)
            if problem.lengths is not None or problem.resets is not None:
                last = _final_state(problem)
        else:
            m, last = _all_states(problem, chosen)
            m = problem.keep_valid(m)  # a system that grows may have overflowed in the padding
            o = m.flatten(2) @ weight.to(m.dtype).flatten(1).mT
        o = o.to(problem.dtype)
        if spoilt is not None:
            o, last = spoilt.mark_outputs(o), spoilt.mark_final(last)
        return problem.keep_valid(o), last


def _driven(problem: Problem) -> Problem:
    """Where more inputs than the order drive one system, B̄ u in their place: a smaller problem with B̄ = I."""
    system = problem.system
    if system.inputs is None or system.inputs <= system.order:
        return problem
    with _no_autocast(problem.u.device):
        drive = system.derive(input_matrix, dtype=problem.wide, device=problem.u.device)
        u = apply(drive, problem.u.to(problem.wide))
    return replace(problem, u=u, system=system.driven_directly())


def _all_states(problem: Problem, chosen: Plan) -> tuple[Tensor, Tensor]:
    """m as the algorithm leaves it, and the final state in float32 or wider."""
    if chosen.algorithm == "fused":
        inputs = problem.u.squeeze(2).to(problem.dtype)
        m, last = fused.states(inputs, problem.system, problem.state, _stops(problem, "fused"))
        return m, last if problem.lengths is None and problem.resets is None else _final_state(problem)
    if chosen.algorithm == "chunked":
        u = problem.u.to(_operand(problem))
        m = chunked.states(u, problem.system, problem.state, problem.lengths, problem.resets, chosen.chunk)
    else:
        u = problem.u.to(problem.wide)
        m = _PLAIN[chosen.algorithm](u, problem.system, problem.state, _stops(problem, chosen.algorithm))
    if m.dtype != problem.wide:
        return m, _final_state(problem)
    if problem.lengths is None:
        return m, m[:, -1].clone()  # not a part of m, which its owner may change
    index = (problem.lengths - 1).clamp(min=0)[:, None, None, None].expand(-1, 1, *m.shape[2:])
    last = m.gather(1, index).squeeze(1)
    before = torch.zeros_like(last) if problem.state is None else problem.state
    return m, torch.where((problem.lengths > 0)[:, None, None], last, before)


def _stops(problem: Problem, algorithm: str) -> Tensor | None:
    """The resets and, for the recurrence and for a system that may grow, one where each sequence ends, so that nothing
    grows in the padding. `chunked` alone has masks of its own for that, unless there are resets anyway."""
    if problem.lengths is None or algorithm not in ("recurrent", "fused", "chunked"):
        return problem.resets
    if algorithm != "recurrent" and not may_grow(problem.system):
        return problem.resets
    if algorithm == "chunked" and problem.resets is None:
        return None
    ends = torch.arange(problem.u.shape[1], device=problem.u.device) == problem.lengths[:, None]
    return ends if problem.resets is None else problem.resets | ends


def _final_state(problem: Problem) -> Tensor:
    u = problem.u.to(problem.wide)
    return final.final_state(u, problem.system, problem.state, problem.lengths, problem.resets)


def _plan(kind: str, problem: Problem, algorithm: str, out: int | None = None) -> Plan:
    batch, time, inputs, channels = problem.u.shape
    if is_open(batch, time):
        return Plan(kind, "exported")
    ask = functools.partial(
        plan,
        kind,
        batch=batch,
        time=time,
        channels=channels * inputs,
        system=problem.system,
        out=out,
        dtype=problem.dtype,
        device=problem.u.device,
        resets=problem.resets is not None,
    )
    chosen = ask(algorithm=algorithm)
    if chosen.algorithm == "fused" and (batch == 0 or transformed()):
        if algorithm == "fused" and batch:
            raise ValueError(
                "algorithm='fused' works neither under torch.func nor with forward-mode gradients: use chunked or auto"
            )
        chosen = ask(algorithm="chunked")
    return chosen


def _operand(problem: Problem) -> torch.dtype:
    """What chunked products are computed in: half precision only where the device has units for it."""
    return problem.dtype if problem.u.is_cuda else problem.wide


def _check_weight(weight: Tensor, problem: Problem) -> None:
    order, channels = problem.system.order, problem.u.shape[3]
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        kind = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
        raise TypeError(f"weight must be a floating-point tensor, got {kind}")
    if weight.dim() != 3 or tuple(weight.shape[1:]) != (order, channels) or weight.shape[0] < 1:
        raise ValueError(f"weight must have shape (out, {order}, {channels}), got {tuple(weight.shape)}")
    if weight.device != problem.u.device:
        raise ValueError(f"weight must be on {problem.u.device}, as u is; got {weight.device}")


def _no_autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """The algorithms choose their own precision: the state is float32 or wider under autocast too."""
    if autocasts(device):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()
