"""Equations 22 to 24: all states at once as one matrix product. O(time²), plain, and fine for short sequences."""

from __future__ import annotations

from torch import Tensor

from plmu.core.systems import LinearSystem
from plmu.ops.algorithm import Algorithm, Case, Option, Plan, Problem, last_of
from plmu.ops.matrices import apply, block_toeplitz, free_response


def states(u: Tensor, system: LinearSystem, state: Tensor | None) -> Tensor:
    """All states (batch, time, order, channels) of u (batch, time, inputs, channels)."""
    batch, time, inputs, channels = u.shape
    product = system.derive(block_toeplitz, time, dtype=u.dtype, device=u.device)
    m = apply(product, u.reshape(batch, time * inputs, channels))  # (batch, time · order, channels)
    if state is not None:
        m = m + apply(system.derive(free_response, time, dtype=u.dtype, device=u.device), state)
    return m.reshape(batch, time, system.order, channels)


class Toeplitz(Algorithm):
    """One product over all steps."""

    name = "toeplitz"

    LARGEST = 1 << 29  # elements of the matrix
    LARGEST_FOR_AUTO = 1 << 24
    LAUNCHES = 10
    TRAFFIC = 3  # passes over m
    MATRIX_TRAFFIC = 3 / 4  # passes over the matrix
    FLOPS = 4  # a multiplication and an addition, forward and backward

    def states(self, problem: Problem, plan: Plan) -> tuple[Tensor, Tensor]:
        m = states(problem.u.to(problem.wide), problem.system, problem.state)
        return m, last_of(problem, m)

    def limit(self, case: Case) -> str | None:
        if case.resets:
            return "cannot reset inside a sequence"
        if self._elements(case) > self.LARGEST:
            return f"needs a matrix of {self._elements(case):.1e} elements for {case.time} steps and order {case.order}"
        return None

    def auto_limit(self, case: Case) -> str | None:
        if self._elements(case) > self.LARGEST_FOR_AUTO:
            return f"would build a matrix of {self._elements(case):,} elements"
        return super().auto_limit(case)

    def options(self, case: Case) -> list[Option]:
        flops = self.FLOPS * case.states * case.time * case.inputs
        moved, constants = self.TRAFFIC * case.states, self.MATRIX_TRAFFIC * self._elements(case)
        seconds = self.estimate(case, flops=flops, moved=moved, launches=self.LAUNCHES, constants=constants)
        return [Option(self.name, seconds)]

    def explain(self, option: Option) -> str:
        return "One product over all steps (equations 22 to 24): for short sequences."

    def _elements(self, case: Case) -> int:
        return case.time**2 * case.order * case.inputs


ALGORITHM = Toeplitz()
