"""Which algorithm runs for which shape, and why: deterministic, from shapes, precision and device alone.

`ALGORITHMS` is the one table. Each algorithm says in its own file when it cannot run, when "auto" leaves it out and how
long it takes (`plmu.ops.algorithm`); here the cheapest is taken. `plmu.plan`, the layers' `plan` and every call of
`states` and `project` ask the same function.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch

from plmu.core.modes import transformed, watched
from plmu.core.systems import LinearSystem
from plmu.ops import final
from plmu.ops.algorithm import Algorithm, Case, Option, Plan
from plmu.ops.check import precision
from plmu.ops.groups import SystemGroups
from plmu.ops.matrices import lasts, may_grow
from plmu.ops.rates import DEVICES

KINDS = ("states", "final_state", "project")

ALGORITHMS: dict[str, Algorithm] = {}  # filled below


def register(algorithm: Algorithm) -> None:
    """Add an algorithm to the table, so that `algorithm=` takes its name and "auto" considers it.

    Args:
        algorithm: an instance of a subclass of `plmu.ops.Algorithm`.

    Raises:
        TypeError: it is no `Algorithm`.
        ValueError: its name is no word, or taken.
    """
    if not isinstance(algorithm, Algorithm):
        raise TypeError(f"algorithm must be an instance of plmu.ops.Algorithm, got {algorithm!r}")
    name = getattr(algorithm, "name", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"an algorithm's name must be a word, got {name!r}")
    if name == "auto" or name in ALGORITHMS:
        raise ValueError(f"there is an algorithm named {name!r} already")
    ALGORITHMS[name] = algorithm
    known_plan.cache_clear()
    known_plan_of_groups.cache_clear()


def named(algorithm: str) -> Algorithm:
    """The algorithm of that name."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be auto or one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
    return ALGORITHMS[algorithm]


_in_graphs = 0  # how many times entered, by all threads: what autograd's recomputes must be planned as it was
_in_graphs_lock = threading.Lock()


@contextlib.contextmanager
def for_graphs() -> Iterator[None]:
    """Within it `"auto"` chooses for calls that are captured as a CUDA graph, where launches cost next to nothing.

    Calls that warm up for the capture belong in it too: they build the constants of what is chosen. It holds for all
    threads of the process.

    >>> with plmu.for_graphs():  # doctest: +SKIP
    ...     step()
    ...     with torch.cuda.graph(graph):
    ...         step()
    """
    _count_graphs(1)
    try:
        yield
    finally:
        _count_graphs(-1)


def _count_graphs(change: int) -> None:
    global _in_graphs
    with _in_graphs_lock:
        _in_graphs += change


def in_graphs() -> bool:
    """Whether calls on a GPU are planned for CUDA graphs."""
    return _in_graphs > 0


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
        batch: how many sequences u has.
        time: how many steps they have.
        channels: how many channels u has.
        system: the `LinearSystem`; of a fixed one the plan looks at whether it grows and how long its memory lasts,
            of a trained one at shapes alone.
        out: the first size of the weight, for "project".
        dtype: of u; under autocast, autocast's is planned for.
        device: where u is. A GPU need not be there, but without one its kernels for Hopper are not planned.
        algorithm: "auto", or one by name.
        lengths: whether they are given.
        resets: whether they are given.

    Returns:
        A `Plan`. It depends on nothing but these arguments and torch's modes, so a choice repeats.

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
        raise ValueError("out is needed to plan project: the first size of its weight")
    if not isinstance(system, LinearSystem):
        raise TypeError(f"system must be a plmu.LinearSystem, got {type(system).__name__}")
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype, got {dtype!r}")
    # As whole numbers: a compiled graph is made for its sizes, as the constant matrices are.
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
    channels //= inputs
    if inputs > system.order:  # as `states` and `project` then do
        system, inputs = system.driven_directly(), system.order
    graph, dtype = _mode(target, dtype)
    sizes = (batch, time, system.order, inputs, channels, out, dtype, str(device))
    given = (bool(lengths), bool(resets))
    bounded = not may_grow(system)
    reach = lasts(system, dtype) if bounded and target.type == "cpu" and not watched() else 0
    known = (system.inputs is not None, bounded, system.constant, system.trained, reach)
    if torch.compiler.is_compiling():
        return Plan(kind, *_choice(algorithm, kind, *sizes, *given, *known, transformed(), graph))
    return known_plan(algorithm, kind, *sizes, *given, *known, transformed(), graph)


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
    """How `project` runs for all groups of channels in one launch, if it does: None where one call for each group is
    faster, or the only way."""
    graph, dtype = _mode(device, dtype)
    batch, time, channels, out = map(operator.index, (batch, time, channels, out))  # as in `plan`
    sizes = (batch, time, systems.order, 1, channels, out, dtype, str(device))
    bounded = not any(map(may_grow, systems.systems))
    facts = (*sizes, lengths, resets, False, bounded, True, False, 0, transformed(), graph, len(systems.systems))
    if torch.compiler.is_compiling():
        chosen = _choice_for_groups(algorithm, "project", *facts)
        return None if chosen is None else Plan("project", *chosen)
    return known_plan_of_groups(algorithm, "project", *facts)


def _mode(target: torch.device, dtype: torch.dtype) -> tuple[bool, torch.dtype]:
    """Whether to plan for a CUDA graph, and the precision of results."""
    # In this order: on a CPU torch.compile then has no guard on what only matters to a GPU.
    graph = target.type == "cuda" and in_graphs()
    # torch does not know autocast on all devices
    return graph, precision(dtype, target) if target.type in DEVICES else dtype


def _at_least(least: int, value: int, name: str) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        whole = least - 1
    if isinstance(value, bool) or whole < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return whole


def _choice(*arguments: Any) -> tuple[str, int, bool, int, str, str]:
    """What torch.compile needs of a plan, worked out once, while tracing."""
    chosen = known_plan(*arguments)
    return chosen.algorithm, chosen.chunk, chosen.fold, chosen.tile, "", chosen.kernel


def _choice_for_groups(*arguments: Any) -> tuple[str, int, bool, int, str, str] | None:
    """The same for a plan of several groups of channels."""
    chosen = known_plan_of_groups(*arguments)
    return None if chosen is None else (chosen.algorithm, chosen.chunk, chosen.fold, chosen.tile, "", chosen.kernel)


# What torch.compiler.assume_constant_result does, without importing the compiler, which takes longer than torch.
_choice._dynamo_marked_constant = _choice_for_groups._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=4096)
def known_plan(algorithm: str, *facts: Any) -> Plan:
    """The plan for the facts of a `Case`, kept for the next call."""
    case = Case(*facts)
    if case.kind == "final_state":
        return final.plan(case)
    if algorithm == "auto":
        return _cheapest(case)
    one = named(algorithm)
    reason = one.limit(case)
    if reason is not None:
        raise ValueError(f"algorithm={algorithm!r} {reason}: use chunked or auto")
    options = one.options(case)
    return _told(case, one, min(options, key=_seconds), options, "Asked for by name.", {})


@functools.lru_cache(maxsize=4096)
def known_plan_of_groups(algorithm: str, *facts: Any) -> Plan | None:
    """The plan of a `Case` with groups of channels, kept for the next call: `fused`, or None."""
    case, one = Case(*facts), ALGORITHMS["fused"]
    if algorithm not in ("auto", one.name) or one.limit(case) is not None:
        return None
    options, why = one.options(case), f"All {case.groups} groups of channels in one launch."
    option = min(options, key=_seconds)
    if algorithm == "auto":
        if one.auto_limit(case) is not None:
            return None
        alone = _cheapest(replace(case, channels=case.channels // case.groups, groups=1))
        separately = case.groups * min(alone.costs.values())
        if option.seconds > separately:
            return None
        options = [*options, Option("one call for each group", separately)]
    return _told(case, one, option, options, why, {})


def _cheapest(case: Case) -> Plan:
    candidates: list[tuple[Algorithm, Option]] = []
    passed_over: dict[str, str] = {}
    for name, one in ALGORITHMS.items():
        reason = one.limit(case) or one.auto_limit(case)
        if reason is not None:
            passed_over[name] = reason
        else:
            candidates += [(one, option) for option in one.options(case)]
    one, option = min(candidates, key=lambda candidate: candidate[1].seconds)
    options = [option for _, option in candidates]
    why = f"Cheapest of {len(options)} candidates by estimate." if len(options) > 1 else "The only candidate."
    return _told(case, one, option, options, why, passed_over)


def _told(
    case: Case, one: Algorithm, option: Option, compared: Sequence[Option], why: str, passed_over: dict[str, str]
) -> Plan:
    kernel, slower = one.kernel(case)
    if slower is not None:
        passed_over = {**passed_over, "a faster kernel": slower}
    return Plan(
        case.kind,
        one.name,
        option.chunk,
        option.fold,
        option.tile,
        f"{one.explain(option)} {why}",
        kernel,
        one.stored(case, option),
        {each.label: each.seconds for each in compared},
        passed_over,
    )


def _seconds(option: Option) -> float:
    return option.seconds


def joined(plans: Sequence[Plan]) -> Plan:
    """The plan of a call that is made once for each group of channels: theirs, or where they differ all of them."""
    first = plans[0]
    if len(plans) == 1:
        return first
    reason = f"{first.reason} Once for each of {len(plans)} groups of channels."
    if all(one == first for one in plans):
        return replace(first, reason=reason)
    names = " + ".join(dict.fromkeys(one.algorithm for one in plans))
    kernels = " + ".join(dict.fromkeys(one.kernel for one in plans))
    reason = " ".join(f"Group {i}: {one.algorithm}. {one.reason}" for i, one in enumerate(plans))
    stored = tuple(dict.fromkeys(name for one in plans for name in one.stored))
    return replace(first, algorithm=names, kernel=kernels, reason=reason, stored=stored)


# The table: each file has its algorithm as `ALGORITHM`. Of equal estimates the first one's is taken.
for _file in (
    "chunked",
    "fused",
    "fft",
    "recurrent",
    "toeplitz",
):
    register(import_module(f"plmu.ops.{_file}").ALGORITHM)
