"""Which algorithm runs for which shape, and why: deterministic, from shapes, precision and device alone.

`ALGORITHMS` is the table. Each algorithm says in its own file when it cannot run, when "auto" leaves it out and how
long it takes (`plmu.ops.algorithm`); here the cheapest is taken. `plmu.plan`, the layers' `plan` and every call of
`states` and `project` (`plmu.ops.dispatch`) ask `known_plan`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from plmu.ops import final
from plmu.ops.algorithm import Algorithm, Case, Option, Plan

Candidate = tuple[Algorithm, Option]

ALGORITHMS: dict[str, Algorithm] = {}  # filled below


def register(algorithm: Algorithm) -> None:
    """Add an algorithm to the table, so that `algorithm=` takes its name and "auto" considers it.

    Args:
        algorithm: an instance of a subclass of `plmu.ops.Algorithm`.

    Raises:
        TypeError: it is not an `Algorithm`.
        ValueError: its name is not a word, or taken.
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


def named(algorithm: str) -> Algorithm:
    """The algorithm of that name."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be auto or one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
    return ALGORITHMS[algorithm]


_in_graphs = 0  # nested entries of all threads: what autograd's threads recompute must be planned as before
_in_graphs_lock = threading.Lock()


@contextlib.contextmanager
def for_graphs() -> Iterator[None]:
    """Context manager: inside it `"auto"` plans calls for capture as a CUDA graph, where launches cost next to nothing.

    Put the warm-up calls before a capture inside it too: they build the constants of the chosen algorithms. It affects
    all threads of the process.

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


def choice(*facts: Any) -> tuple[str, int, bool, int, str, str] | None:
    """The first fields of the `Plan` that `known_plan` returns, with an empty reason, as constants for torch.compile,
    which evaluates this once, while tracing."""
    chosen = known_plan(*facts)
    return None if chosen is None else (chosen.algorithm, chosen.chunk, chosen.fold, chosen.tile, "", chosen.kernel)


# What torch.compiler.assume_constant_result does, without importing the compiler, which takes longer than torch.
choice._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=4096)
def known_plan(algorithm: str, *facts: Any) -> Plan | None:
    """The plan for `Case(*facts)`, cached; None for groups of channels that are not run together."""
    case = Case(*facts)
    if case.kind == "final_state":
        return final.plan(case)
    if case.groups > 1:
        return _together(case, algorithm)
    if algorithm == "auto":
        return _cheapest(case)
    asked = named(algorithm)
    reason = asked.limit(case)
    if reason is not None:
        raise ValueError(f"algorithm={algorithm!r} {reason}: use {next(iter(ALGORITHMS))} or auto")
    candidates = [(asked, option) for option in asked.options(case)]
    return _explained(case, candidates, _seconds_of(candidates), "Asked for by name.", {})


def _together(case: Case, algorithm: str) -> Plan | None:
    """The plan for all groups of channels in one call; None where one call for each group is faster, or the only
    way."""
    auto, candidates = algorithm == "auto", []
    for name, candidate in ALGORITHMS.items():
        able = candidate.takes_groups and (auto or name == algorithm) and candidate.limit(case) is None
        if able and not (auto and candidate.auto_limit(case) is not None):
            candidates += [(candidate, option) for option in candidate.options(case)]
    if not candidates:
        return None
    costs = _seconds_of(candidates)
    if auto:
        alone = _cheapest(replace(case, channels=case.channels // case.groups, groups=1))
        separately = case.groups * min(alone.costs.values())
        if min(costs.values()) > separately:
            return None
        costs["one call for each group"] = separately
    return _explained(case, candidates, costs, f"All {case.groups} groups of channels in one launch.", {})


def _cheapest(case: Case) -> Plan:
    """The plan of "auto": the option of least estimated time of all algorithms without a `limit` or `auto_limit`."""
    candidates: list[Candidate] = []
    passed_over: dict[str, str] = {}
    for name, candidate in ALGORITHMS.items():
        reason = candidate.limit(case) or candidate.auto_limit(case)
        if reason is not None:
            passed_over[name] = reason
        else:
            candidates += [(candidate, option) for option in candidate.options(case)]
    count = len(candidates)
    why = f"Cheapest of {count} candidates by estimate." if count > 1 else "The only candidate."
    return _explained(case, candidates, _seconds_of(candidates), why, passed_over)


def _seconds_of(candidates: list[Candidate]) -> dict[str, float]:
    return {option.label: option.seconds for _, option in candidates}


def _explained(
    case: Case, candidates: list[Candidate], costs: dict[str, float], why: str, passed_over: dict[str, str]
) -> Plan:
    """The plan that runs the cheapest candidate."""
    algorithm, option = min(candidates, key=lambda candidate: candidate[1].seconds)
    kernel, slower = algorithm.kernel(case)
    if slower is not None:
        passed_over = {**passed_over, "a faster kernel": slower}
    return Plan(
        case.kind,
        algorithm.name,
        option.chunk,
        option.fold,
        option.tile,
        f"{algorithm.explain(option)} {why}",
        kernel,
        algorithm.stored(case, option),
        costs,
        passed_over,
    )


def joined(plans: Sequence[Plan]) -> Plan:
    """One plan for a layer that makes one call for each group of channels: the plan of these calls if all are equal,
    else the first with the algorithms, kernels, reasons and stored tensors of all."""
    first = plans[0]
    if len(plans) == 1:
        return first
    reason = f"{first.reason} Once for each of {len(plans)} groups of channels."
    if all(plan == first for plan in plans):
        return replace(first, reason=reason)
    names = " + ".join(dict.fromkeys(plan.algorithm for plan in plans))
    kernels = " + ".join(dict.fromkeys(plan.kernel for plan in plans))
    reason = " ".join(f"Group {i}: {plan.algorithm}. {plan.reason}" for i, plan in enumerate(plans))
    stored = tuple(dict.fromkeys(name for plan in plans for name in plan.stored))
    return replace(first, algorithm=names, kernel=kernels, reason=reason, stored=stored)


# The table: each file has its algorithm as `ALGORITHM`. The first takes every case. Among equal estimates the earlier
# algorithm is chosen.
for _file in (
    "chunked",
    "fused",
    "fft",
    "recurrent",
    "toeplitz",
):
    register(import_module(f"plmu.ops.{_file}").ALGORITHM)
