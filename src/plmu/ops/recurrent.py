"""Equation 19, one step after another: the definition, the reference of all tests, and what a stream runs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from plmu.core.systems import LinearSystem
from plmu.ops.algorithm import Algorithm, Case, Option, Plan, Problem, last_of
from plmu.ops.matrices import apply, step_matrix


class Stepper:
    """One step: `stepper(u, state)` is m_t (batch, order, channels) for u_t (batch, inputs, channels) and the state
    m_{t-1}. It is [Ā | B̄] [m_{t-1} ; u_t], or m_{t-1} + [Ā − I | B̄] [m_{t-1} ; u_t] where that rounds better."""

    def __init__(self, system: LinearSystem, dtype: torch.dtype, device: torch.device) -> None:
        self.incremental = system.near_identity
        self.matrix = system.derive(step_matrix, dtype=dtype, device=device)

    def __call__(self, u: Tensor, state: Tensor) -> Tensor:
        both = torch.cat([state, u], dim=1)
        if state.shape[-1] == 1:
            flat = both.squeeze(-1)
            if self.incremental:
                return torch.addmm(state.squeeze(-1), flat, self.matrix.mT).unsqueeze(-1)
            return linear(flat, self.matrix).unsqueeze(-1)
        return state + apply(self.matrix, both) if self.incremental else apply(self.matrix, both)


def states(u: Tensor, system: LinearSystem, state: Tensor | None, resets: Tensor | None) -> Tensor:
    """All states (batch, time, order, channels) of u (batch, time, inputs, channels)."""
    batch, time, _, channels = u.shape
    m = u.new_zeros(batch, system.order, channels) if state is None else state
    advance = Stepper(system, u.dtype, u.device)
    collected = []
    for t in range(time):
        if resets is not None:
            m = torch.where(resets[:, t, None, None], 0.0, m)
        m = advance(u[:, t], m)
        collected.append(m)
    return torch.stack(collected, dim=1)


class Recurrent(Algorithm):
    """Every step in turn; "auto" considers it for few steps."""

    name = "recurrent"

    MOST_STEPS = 16  # for "auto"
    LAUNCHES = 5  # for each step
    TRAFFIC = 4  # passes over m
    FLOPS = 4  # a multiplication and an addition, forward and backward

    def states(self, problem: Problem, plan: Plan) -> tuple[Tensor, Tensor]:
        m = states(problem.u.to(problem.wide), problem.system, problem.state, problem.stops())
        return m, last_of(problem, m)

    def limit(self, case: Case) -> str | None:
        return None

    def auto_limit(self, case: Case) -> str | None:
        if case.time > self.MOST_STEPS:
            return f"takes {case.time} steps one after another; considered up to {self.MOST_STEPS}"
        return super().auto_limit(case)

    def options(self, case: Case) -> list[Option]:
        flops = self.FLOPS * case.states * (case.order + case.inputs)
        seconds = self.estimate(case, flops=flops, moved=self.TRAFFIC * case.states, launches=self.LAUNCHES * case.time)
        return [Option(self.name, seconds)]

    def explain(self, option: Option) -> str:
        return "Equation 19 itself, one step after another: for very few steps."

    def stored(self, case: Case, option: Option) -> tuple[str, ...]:
        both = super().stored(case, option)
        return both if case.constant or case.kind == "project" else (*both, "m")


ALGORITHM = Recurrent()
