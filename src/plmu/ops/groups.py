"""Equal groups of channels, each with its own system, as one problem that an algorithm may run in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from plmu.core.derived import Derived, constants_of
from plmu.core.systems import LinearSystem
from plmu.ops.check import Problem
from plmu.ops.final import aligned_right, final_of


class SystemGroups(Derived):
    """Several constant systems of one order. Each has an equal share of the channels, in their order.

    A constant derived from it stacks those of all systems along a first axis.
    """

    def __init__(self, systems: Sequence[LinearSystem]) -> None:
        self.systems = tuple(systems)
        self.order, self.inputs = self.systems[0].order, None
        A, B = (torch.stack([getattr(system, name) for system in self.systems]) for name in ("A", "B"))
        self._cache = constants_of(A, B)

    def _built(self, build: Callable[..., Tensor], *sizes: int) -> Tensor:
        return torch.stack([build(system, *sizes) for system in self.systems])

    def __deepcopy__(self, memo: dict[int, Any]) -> SystemGroups:
        return self

    def __reduce__(self) -> tuple[type[SystemGroups], tuple[tuple[LinearSystem, ...]]]:
        return SystemGroups, (self.systems,)


def together(systems: Sequence[LinearSystem]) -> SystemGroups | None:
    """The systems as `SystemGroups`; None unless they are several, constant, of one order, with B̄ of shape (order,)."""
    first = systems[0]
    alike = all(system.constant and system.inputs is None and system.order == first.order for system in systems)
    return SystemGroups(systems) if len(systems) > 1 and alike else None


def each(system: LinearSystem | SystemGroups) -> tuple[LinearSystem, ...]:
    """The systems of all groups."""
    return system.systems if isinstance(system, SystemGroups) else (system,)


def final_of_groups(problem: Problem) -> Tensor:
    """The final state by equation 25, of each group by its own system."""
    if problem.groups is None:
        return final_of(problem)
    systems = problem.groups.systems
    if problem.lengths is not None and problem.state is None and problem.resets is None:
        problem = replace(problem, u=aligned_right(problem.u, problem.lengths), lengths=None)  # once for all
    inputs = problem.u.chunk(len(systems), dim=3)
    states: Sequence[Tensor | None] = [None] * len(systems)
    if problem.state is not None:
        states = problem.state.chunk(len(systems), dim=2)
    ends = [
        final_of(replace(problem, u=u, system=system, state=state, groups=None))
        for u, system, state in zip(inputs, systems, states, strict=True)
    ]
    return torch.cat(ends, dim=2)
