"""The functions of `plmu.ops`: each checks its arguments, chooses an algorithm and runs it.

`states`, `final_state`, `project` and `plan` are public. `final_state` has one algorithm, equation 25 (`final.py`),
outside the table of `plan.py`. Layers have checked their input already: they make a `Problem`
of it and call `states_of`, `final_state_of` and `output`.
"""

from __future__ import annotations

import contextlib
import operator
from dataclasses import replace

import torch
from torch import Tensor

from plmu.core.modes import autocasts, is_open, transformed, watched
from plmu.core.systems import LinearSystem
from plmu.ops import exported, routes
from plmu.ops.algorithm import Algorithm, Plan, Problem, last_of, projected
from plmu.ops.check import Epilogue, Lengths, checked, finite_by_sum, precision, problem_of
from plmu.ops.final import final_of
from plmu.ops.groups import SystemGroups
from plmu.ops.matrices import apply, infinity_as_nan, input_matrix, lasts, may_grow
from plmu.ops.nonfinite import Spoilt, isolated
from plmu.ops.plan import ALGORITHMS, choice, in_graphs, known_plan, named
from plmu.ops.rates import DEVICES

KINDS = ("states", "final_state", "project")


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
    return states_of(checked(u, system, state, lengths, resets), algorithm)


def states_of(problem: Problem, algorithm: str) -> tuple[Tensor, Tensor]:
    """`states` of a problem that is checked."""
    problem, spoilt = _isolated(problem)
    problem = _driven(problem)
    chosen = _plan("states", problem, algorithm)
    with _no_autocast(problem.u.device):
        m, last = _exported(problem) if chosen is None else _algorithm(chosen).states(problem, chosen)
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
    return final_state_of(checked(u, system, state, lengths, resets))


def final_state_of(problem: Problem) -> Tensor:
    """`final_state` of a problem that is checked."""
    problem = _driven(problem)
    with _no_autocast(problem.u.device):
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
    result = output(u, system, weight, state, lengths, algorithm, resets, None, check=True)
    assert result is not None  # None is for groups of channels
    return result


def output(
    u: Tensor,
    system: LinearSystem | SystemGroups,
    weight: Tensor,
    state: Tensor | None,
    lengths: Lengths,
    algorithm: str,
    resets: Tensor | None,
    epilogue: Epilogue | None,
    *,
    check: bool = False,
) -> tuple[Tensor, Tensor] | None:
    """`project` with what else a layer does, and the final state. With an epilogue, outputs in the padding are not
    zero. None for groups of channels where a call for each group is faster, or the only way. `check`: whether u and the
    system are still to be checked."""
    key = None
    if lengths is None and u.device.type in routes.DEVICES:
        key = routes.key_of(u, weight, state, resets, algorithm)
        result = routes.run(key, u, system, weight, state, resets, epilogue)
        if result is not None:
            return result
    groups, first = (system, system.systems[0]) if isinstance(system, SystemGroups) else (None, system)
    problem = (checked if check else problem_of)(u, first, state, lengths, resets)
    problem.groups = groups
    _check_weight(weight, problem)
    chosen = _plan("project", problem, algorithm, out=weight.shape[0])
    if groups is not None and chosen is None:
        return None
    finite, spoilt = _isolated(problem)
    if key is not None and chosen is not None:
        route = routes.keep(key, _algorithm(chosen), problem, weight)
        if route is not None and spoilt is None:
            return route.output(u, weight, state, resets, epilogue)
    problem = _driven(finite)
    with _no_autocast(u.device):
        if chosen is None:
            m, last = _exported(problem)
            o = projected(problem, m, weight)
        else:
            chosen_algorithm = _algorithm(chosen)
            if chosen_algorithm.makes_output and epilogue is not None and spoilt is None:
                result = chosen_algorithm.output(problem, weight, chosen, epilogue)
                if result is not None:
                    return result
            o, last = chosen_algorithm.project(problem, weight, chosen)
        o = o.to(problem.dtype)
        if spoilt is not None:
            o, last = spoilt.mark_outputs(o), spoilt.mark_final(last)
        o = problem.keep_valid(o)
    return (o if epilogue is None else epilogue.after(o, u)), last


def plan(
    kind: str,
    *,
    batch: int,
    time: int,
    channels: int,
    system: LinearSystem,
    out: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    algorithm: str = "auto",
    lengths: bool = False,
    resets: bool = False,
) -> Plan:
    """What `states`, `final_state` or `project` runs for these shapes, why, and at what estimated cost.

    Args:
        kind: "states", "final_state" or "project".
        batch: number of sequences in u.
        time: number of steps.
        channels: number of channels of u.
        system: the `LinearSystem`. For a fixed one the plan depends on whether it is unstable and how long its memory
            lasts; for a trained one on shapes alone.
        out: the first dimension of the weight, for "project".
        dtype: of u; under autocast, autocast's is planned for.
        device: where u is. No GPU is required, but without one the kernels for Hopper are not planned.
        algorithm: "auto", or one by name.
        lengths: whether the call has lengths.
        resets: whether the call has resets.

    Returns:
        A `Plan`, deterministic: it depends on these arguments and torch's modes alone.

    Raises:
        ValueError: if a size is not a positive integer, and where an algorithm asked for by name cannot run.

    >>> print(plan("states", batch=8, time=512, channels=64, system=system))  # doctest: +SKIP
    states: chunked. Chunks of 32 steps, one product with a constant matrix each, ...
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if algorithm != "auto":
        named(algorithm)
    if kind == "project" and out is None:
        raise ValueError("out is needed to plan project: the first dimension of its weight")
    if not isinstance(system, LinearSystem):
        raise TypeError(f"system must be a plmu.LinearSystem, got {type(system).__name__}")
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype, got {dtype!r}")
    batch, time = _at_least(0, batch, "batch"), _at_least(1, time, "time")
    channels, out = _at_least(1, channels, "channels"), 0 if out is None else _at_least(1, out, "out")
    if kind == "final_state" and algorithm != "auto":
        raise ValueError(f"final_state has one algorithm, equation 25: algorithm must be auto, got {algorithm!r}")
    if system.inputs is not None and channels != system.inputs:
        raise ValueError(f"channels must be the system's {system.inputs} inputs, got {channels}")
    try:
        target = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device must be a torch.device or a name such as 'cpu' or 'cuda', got {device!r}") from None
    inputs = system.inputs or 1
    sizes = (batch, time, inputs, channels // inputs, out)
    dtype = _planned_dtype(dtype, target)
    chosen = _chosen(kind, system, algorithm, sizes, dtype, target, bool(lengths), bool(resets))
    assert chosen is not None  # None is for groups of channels
    return chosen


def plan_groups(
    systems: SystemGroups,
    *,
    batch: int,
    time: int,
    channels: int,
    out: int,
    dtype: torch.dtype,
    device: torch.device,
    algorithm: str,
    lengths: bool,
    resets: bool,
) -> Plan | None:
    """How `project` runs for all groups of channels in one launch; None where one call for each group is faster, or the
    only way."""
    sizes = (batch, time, 1, channels, out)
    return _chosen("project", systems, algorithm, sizes, _planned_dtype(dtype, device), device, lengths, resets)


def _plan(kind: str, problem: Problem, algorithm: str, out: int = 0) -> Plan | None:
    """The plan for a call; None where torch.export leaves the batch or time open, so that nothing can be chosen by it,
    and for groups of channels that are not run together."""
    batch, time, inputs, channels = problem.u.shape
    if is_open(batch, time):
        return None
    options = (problem.lengths is not None, problem.resets is not None)
    sizes = (batch, time, inputs, channels, out)
    return _chosen(kind, problem.groups or problem.system, algorithm, sizes, problem.dtype, problem.u.device, *options)


def _chosen(
    kind: str,
    system: LinearSystem | SystemGroups,
    algorithm: str,
    sizes: tuple[int, int, int, int, int],
    dtype: torch.dtype,
    device: torch.device,
    lengths: bool,
    resets: bool,
) -> Plan | None:
    """The plan for sizes (batch, time, inputs, channels, out)."""
    # As integers: a compiled graph is made for its sizes, as the constant matrices are.
    batch, time, inputs, channels, out = map(operator.index, sizes)
    systems = system.systems if isinstance(system, SystemGroups) else (system,)
    first = systems[0]
    if inputs > first.order:  # as `_driven` does then
        first, inputs = first.driven_directly(), first.order
        systems = (first,)
    if algorithm != "auto" and algorithm not in ALGORITHMS:
        named(algorithm)  # raises
    # In this order: on a CPU torch.compile then has no guard on what only matters to a GPU.
    graph = device.type == "cuda" and in_graphs()
    bounded = not any(map(may_grow, systems))
    fades = bounded and len(systems) == 1 and device.type == "cpu" and not watched()
    reach = lasts(first, dtype) if fades else 0
    properties = (first.inputs is not None, bounded, first.constant, first.trained, reach)
    shape = (batch, time, first.order, inputs, channels, out)
    facts = (*shape, dtype, str(device), lengths, resets, *properties, transformed(), graph, len(systems))
    if torch.compiler.is_compiling():
        chosen = choice(algorithm, kind, *facts)
        return None if chosen is None else Plan(kind, *chosen)
    return known_plan(algorithm, kind, *facts)


def _algorithm(chosen: Plan) -> Algorithm:
    return ALGORITHMS.get(chosen.algorithm) or named(chosen.algorithm)


def _planned_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The precision of results: autocast's where it is on. Only asked for on `DEVICES`: torch knows no autocast for
    some others."""
    return precision(dtype, device) if device.type in DEVICES else dtype


def _at_least(least: int, value: int, name: str) -> int:
    """`value` as an int. Raises ValueError unless it is an integer of at least `least`."""
    try:
        whole = operator.index(value)
    except TypeError:
        whole = least - 1
    if isinstance(value, bool) or whole < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return whole


def _isolated(problem: Problem) -> tuple[Problem, Spoilt | None]:
    """The problem with zeros in place of NaN and infinity, and where its results must become NaN, or None."""
    return (problem, None) if finite_by_sum(problem.u, problem.state) else isolated(problem)


def _driven(problem: Problem) -> Problem:
    """The problem; if its system has more inputs than its order, the smaller problem with input B̄ u and B̄ = I."""
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


def _check_weight(weight: Tensor, problem: Problem) -> None:
    """Raise unless the weight is floating point, (out, order, channels) and on the device of u."""
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
