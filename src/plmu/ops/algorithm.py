"""What an algorithm is: one class in a file of its own, and one line in the table of `plmu.ops.plan`.

An algorithm evaluates m_t = Ā m_{t-1} + B̄ u_t over a sequence. It says how (`states`, `project`, `output`), when it
cannot (`limit`), when "auto" leaves it out although it could (`auto_limit`), how long it takes (`options`), and what a
plan tells about it (`explain`, `kernel`, `stored`). docs/adding-an-algorithm.md adds one from scratch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plmu.ops.case import Case, Option, Plan
from plmu.ops.check import Epilogue, Problem
from plmu.ops.final import final_of
from plmu.ops.rates import FLOAT

if TYPE_CHECKING:
    from plmu.ops.routes import Route

__all__ = ["Algorithm", "Case", "Epilogue", "Option", "Plan", "Problem", "final_of", "last_of", "projected"]

# The products of `project` behind a stored m, forward and backward: o, the gradient of m and that of the weight.
PROJECT_FLOPS = 6  # for each element of m and each output
PROJECT_LAUNCHES = 8


class Algorithm(ABC):
    """A way to evaluate a linear system. A subclass without one of the abstract methods cannot be instantiated."""

    name: str  #: as `algorithm=` takes it
    takes_groups = False  #: whether it runs groups of channels with a system each together (`Problem.groups`)
    makes_output = False  #: whether it has an `output`

    @abstractmethod
    def states(self, problem: Problem, plan: Plan) -> tuple[Tensor, Tensor]:
        """m (batch, time, order, channels) and the final state (batch, order, channels) in float32 or wider.

        `last_of` finds the final state. What m has in the padding does not matter, but its gradient must be finite.
        """

    def project(self, problem: Problem, weight: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """o (batch, time, out) and the final state; here with all of m stored."""
        m, last = self.states(problem, plan)
        return projected(problem, m, weight), last

    def output(self, problem: Problem, weight: Tensor, plan: Plan, epilogue: Epilogue) -> tuple[Tensor, Tensor] | None:
        """`project` with the epilogue of a layer fused into it; outputs in the padding may be anything.
        None if the caller must call `project` and apply the epilogue itself."""
        return None

    def route(self, problem: Problem, weight: Tensor) -> Route | None:
        """A `Route`, which repeats plain calls with arguments of these shapes without checks or plan; None, as here, if
        that gains nothing."""
        return None

    @abstractmethod
    def limit(self, case: Case) -> str | None:
        """The reason why it cannot run a case, or None. It follows the name: "cannot reset inside a sequence"."""

    def auto_limit(self, case: Case) -> str | None:
        """The reason why "auto" leaves it out though it could run, or None; here, that `project` would store a large
        m."""
        if case.kind == "project" and case.states > case.rates.stored:
            return f"would store m: it has {case.states:,} elements; limit {case.rates.stored:,}"
        return None

    @abstractmethod
    def options(self, case: Case) -> list[Option]:
        """The ways to run a case, at least one, with their estimated time."""

    @abstractmethod
    def explain(self, option: Option) -> str:
        """A sentence that says what it does, and where it pays."""

    def kernel(self, case: Case) -> tuple[str, str | None]:
        """What computes the products, and the reason why no faster kernel does, or None."""
        return "library", None

    def stored(self, case: Case, option: Option) -> tuple[str, ...]:
        """What is stored for the backward pass, beside constants."""
        inputs = () if case.constant else ("u",)
        return (*inputs, "m", "weight") if case.kind == "project" else inputs

    def estimate(self, case: Case, *, flops: float, moved: float, launches: int, constants: float = 0) -> float:
        """Seconds for m with `flops`, `moved` elements of float32, `constants` elements of matrices that are read, and
        `launches`. For "project" the product of a stored m and the weight is added."""
        if case.kind == "project":
            flops += PROJECT_FLOPS * case.states * case.out
            moved += case.states + 2 * case.batch * case.time * case.out
            launches += PROJECT_LAUNCHES
        return case.rates.seconds(flops=flops, moved=FLOAT * moved, constants=FLOAT * constants, launches=launches)


def projected(problem: Problem, m: Tensor, weight: Tensor) -> Tensor:
    """W_m m for a stored m."""
    m = problem.keep_valid(m)  # an unstable system may have overflowed in the padding
    return m.flatten(2) @ weight.to(m.dtype).flatten(1).mT


def last_of(problem: Problem, m: Tensor) -> Tensor:
    """The final state, from m where that is float32 or wider.

    Args:
        problem: what was solved.
        m: all its states, (batch, time, order, channels).

    Returns:
        The state after each sequence's last step, (batch, order, channels), in float32 or wider.
    """
    if m.dtype != problem.wide:
        return final_of(problem)
    if problem.lengths is None:
        return m[:, -1].clone()  # not a part of m, which its owner may change
    index = (problem.lengths - 1).clamp(min=0)[:, None, None, None].expand(-1, 1, *m.shape[2:])
    last = m.gather(1, index).squeeze(1)
    before = torch.zeros_like(last) if problem.state is None else problem.state
    return torch.where((problem.lengths > 0)[:, None, None], last, before)
