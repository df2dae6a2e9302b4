"""Evaluating a linear system over a sequence (the paper's section 3.3): check, ask the plan, run one algorithm.

All algorithms compute the same function, forward and backward; `plmu.plan` tells which one `"auto"` takes and why.
Shapes: u (batch, time, channels), m (batch, time, order, channels), state (batch, order, channels). `lengths` are for
sequences padded on the right; `resets` (batch, time) marks steps before which the state is set to zero.

The path of a call: `project` here checks its arguments (`check.py`), asks the plan (`plan.py`), and calls `project` of
the algorithm that was chosen. Each algorithm is one file: `recurrent.py`, `toeplitz.py`, `fft.py` (its blocks are in
`transforms.py`), `chunked.py` and `fused.py`. Kernels of our own are three files further: `fused.py` calls
`gpu/projection.py`, that `gpu/launch.py`, and this launches those of `gpu/triton_chunked.py` or, for Hopper GPUs,
`gpu/gluon_chunked.py`.
On a GPU a call with the shapes of an earlier one goes there directly (`routes.py`). A layer calls `output` instead of
`project`: where one launch makes W_m m and the rest of the layer's output, `gpu/output.py` does; under torch.compile
`gpu/compiled_output.py` does.
`docs/adding-an-algorithm.md` shows how to add an algorithm.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import torch
from torch import Tensor

from plmu.core.modes import autocasts, is_open
from plmu.core.systems import LinearSystem
from plmu.ops import exported, routes
from plmu.ops.algorithm import Algorithm, Case, Option, Plan, Problem, final_of, last_of, projected
from plmu.ops.check import Lengths, checked
from plmu.ops.fused import ALGORITHM as FUSED
from plmu.ops.gpu.launch import Rest
from plmu.ops.gpu.output import NOTHING
from plmu.ops.groups import SystemGroups
from plmu.ops.matrices import apply, input_matrix
from plmu.ops.nonfinite import infinity_as_nan, isolate_nonfinite, isolated
from plmu.ops.plan import ALGORITHMS, for_graphs, named, plan, plan_groups, register

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Case",
    "Option",
    "Plan",
    "Problem",
    "final_state",
    "for_graphs",
    "isolate_nonfinite",
    "last_of",
    "plan",
    "project",
    "register",
    "states",
]


def states(
    u: Tensor,
    system: LinearSystem,
    state: Tensor | None = None,
    lengths: Lengths = None,
    algorithm: str = "auto",
    *,
    resets: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All states m (batch, time, order, channels) and the final one (batch, order, channels).

    Args:
        u: the input of the memory, (batch, time, channels).
        system: the linear system, for example `plmu.DelayNetwork(order, theta).discretize()`.
        state: the initial state, (batch, order, channels); None for zero.
        lengths: the length of each sequence, (batch,), where they are padded on the right. States and outputs past
            the end are zero.
        algorithm: "auto", or one by name; see `plmu.plan`.
        resets: (batch, time) of bools: steps before which the state is set to zero.

    Returns:
        m (batch, time, order, channels), zero in the padding, and the state after each sequence's last step (batch,
        order, channels), float32 or wider.
    """
    problem, spoilt = isolated(checked(u, system, state, lengths, resets))
    problem = _driven(problem)
    chosen = _plan("states", problem, algorithm)
    with _no_autocast(u.device):
        m, last = _exported(problem) if chosen is None else named(chosen.algorithm).states(problem, chosen)
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
    """The state after each sequence's last step (batch, order, channels), as one product (equation 25).

    Args:
        u: the input of the memory, (batch, time, channels).
        system: the linear system, for example `plmu.DelayNetwork(order, theta).discretize()`.
        state: the initial state, (batch, order, channels); None for zero.
        lengths: the length of each sequence, (batch,), where they are padded on the right. States and outputs past
            the end are zero.
        resets: (batch, time) of bools: steps before which the state is set to zero.

    Returns:
        The state after each sequence's last step, (batch, order, channels), float32 or wider.
    """
    problem = _driven(checked(u, system, state, lengths, resets))
    with _no_autocast(u.device):
        return infinity_as_nan(final_of(problem))


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

    The memory product of equation 20. `"auto"` stores m only if it has at most 4 MiB (CPU) or 64 MiB (GPU).

    Args:
        u: the input of the memory, (batch, time, channels).
        system: the linear system, for example `plmu.DelayNetwork(order, theta).discretize()`.
        weight: W_m, (out, order, channels).
        state: the initial state, (batch, order, channels); None for zero.
        lengths: the length of each sequence, (batch,), where they are padded on the right. States and outputs past
            the end are zero.
        algorithm: "auto", or one by name; see `plmu.plan`.
        resets: (batch, time) of bools: steps before which the state is set to zero.

    Returns:
        o (batch, time, out), zero in the padding, and the state after each sequence's last step (batch, order,
        channels), float32 or wider.
    """
    o, last, _ = output(u, system, weight, state, lengths, algorithm, resets, None)
    return o, last


def output(
    u: Tensor,
    system: LinearSystem,
    weight: Tensor,
    state: Tensor | None,
    lengths: Lengths,
    algorithm: str,
    resets: Tensor | None,
    rest: Rest | None,
) -> tuple[Tensor, Tensor, bool]:
    """`project`, and whether the rest of a layer is in its first result: where one launch makes all of it."""
    key = None
    if lengths is None and isinstance(system, LinearSystem):
        key = routes.key_of(u, weight, state, resets, algorithm)
        if key is not None and (found := routes.run(key, u, system, weight, state, resets, rest)) is not None:
            return found
    problem, spoilt = isolated(checked(u, system, state, lengths, resets))
    problem = _driven(problem)
    _check_weight(weight, problem)
    chosen = _plan("project", problem, algorithm, out=weight.shape[0])
    if key is not None and chosen is not None and chosen.algorithm == "fused":
        routes.keep(key, u, system, weight, state, problem.dtype)
    with _no_autocast(u.device):
        # Without a rest too, if it may repeat: so it makes the same node of autograd's graph now as then.
        in_one = chosen is not None and chosen.kernel == "Hopper" and spoilt is None
        if in_one and (rest is not None or key is not None):
            whole = FUSED.output(problem, weight, rest or NOTHING)
            if whole is not None:
                return *whole, rest is not None
        if chosen is None:
            m, last = _exported(problem)
            o = projected(problem, m, weight)
        else:
            o, last = named(chosen.algorithm).project(problem, weight, chosen)
        o = o.to(problem.dtype)
        if spoilt is not None:
            o, last = spoilt.mark_outputs(o), spoilt.mark_final(last)
        return problem.keep_valid(o), last, False


def output_of_groups(
    u: Tensor,
    systems: SystemGroups,
    weight: Tensor,
    state: Tensor | None,
    lengths: Lengths,
    algorithm: str,
    resets: Tensor | None,
    rest: Rest | None,
) -> tuple[Tensor, Tensor, bool] | None:
    """`output` with a system for each of several equal groups of channels, in one launch; None where that is not
    planned, so that each group has a call of its own."""
    key = routes.key_of(u, weight, state, resets, algorithm) if lengths is None else None
    if key is not None and (found := routes.run(key, u, systems, weight, state, resets, rest)) is not None:
        return found
    if is_open(*u.shape[:2]):
        return None
    problem = checked(u, systems.systems[0], state, lengths, resets)
    _check_weight(weight, problem)
    batch, time, _, channels = problem.u.shape
    chosen = plan_groups(
        systems,
        batch=batch,
        time=time,
        channels=channels,
        out=weight.shape[0],
        dtype=problem.dtype,
        device=u.device,
        algorithm=algorithm,
        lengths=problem.lengths is not None,
        resets=problem.resets is not None,
    )
    if chosen is None:
        return None
    if key is not None:
        routes.keep(key, u, systems, weight, state, problem.dtype)
    problem, spoilt = isolated(problem)
    problem = replace(problem, groups=systems)
    with _no_autocast(u.device):
        if chosen.kernel == "Hopper" and spoilt is None and (rest is not None or key is not None):
            whole = FUSED.output(problem, weight, rest or NOTHING)
            if whole is not None:
                return *whole, rest is not None
        o, last = named(chosen.algorithm).project(problem, weight, chosen)
        if spoilt is not None:
            o, last = spoilt.mark_outputs(o), spoilt.mark_final(last)
        return problem.keep_valid(o.to(problem.dtype)), last, False


def _driven(problem: Problem) -> Problem:
    """Where more inputs than the order drive one system, B̄ u in their place: a smaller problem with B̄ = I."""
    system = problem.system
    if system.inputs is None or system.inputs <= system.order:
        return problem
    with _no_autocast(problem.u.device):
        drive = system.derive(input_matrix, dtype=problem.wide, device=problem.u.device)
        u = apply(drive, problem.u.to(problem.wide))
    return replace(problem, u=u, system=system.driven_directly())


def _exported(problem: Problem) -> tuple[Tensor, Tensor]:
    """m and the final state where torch.export leaves the batch or time open."""
    m = exported.states(problem.u.to(problem.wide), problem.system, problem.state, problem.resets)
    return m, last_of(problem, m)


def _plan(kind: str, problem: Problem, algorithm: str, out: int | None = None) -> Plan | None:
    """What runs; None where torch.export leaves a size open, so that nothing can be chosen by it."""
    batch, time, inputs, channels = problem.u.shape
    if is_open(batch, time):
        return None
    return plan(
        kind,
        batch=batch,
        time=time,
        channels=channels * inputs,
        system=problem.system,
        out=out,
        dtype=problem.dtype,
        device=problem.u.device,
        algorithm=algorithm,
        lengths=problem.lengths is not None,
        resets=problem.resets is not None,
    )


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
