"""Repeated calls of the fused algorithm, with the constants of an earlier call: nothing is checked or planned."""

from __future__ import annotations

from torch import Tensor

from plmu.ops.check import Epilogue, Problem
from plmu.ops.gpu import encoding, launch, output, projection
from plmu.ops.gpu.tables import segments_of
from plmu.ops.routes import Route

NOTHING = Epilogue()


class FusedRoute(Route):
    """For calls with arguments of the same shapes as a problem's and a weight's."""

    def __init__(self, problem: Problem, weight: Tensor) -> None:
        inputs = problem.u.detach().squeeze(2).to(problem.dtype)
        self.dtype = problem.dtype
        self.constants = projection.constants_for(inputs, problem.groups or problem.system, problem.state)
        self.hopper = launch.for_hopper(inputs, weight)  # whether the kernels for Hopper run
        powers = () if self.constants.powers is None else (self.constants.powers,)
        self.uses = (*self.constants.tables, *powers)

    def output(
        self, u: Tensor, weight: Tensor, state: Tensor | None, resets: Tensor | None, epilogue: Epilogue | None
    ) -> tuple[Tensor, Tensor]:
        inputs = u
        if u.dtype != self.dtype or weight.dtype != self.dtype:
            inputs, weight = u.to(self.dtype), weight.to(self.dtype)
        first = None if state is None else state.contiguous()
        segments = segments_of(resets)
        if self.hopper and (epilogue is None or output.epilogue_fits(u.device, epilogue)):
            return output.output(inputs, weight, first, segments, self.constants, epilogue or NOTHING)
        o, last = projection.eagerly(inputs, weight, first, segments, self.constants)
        return (o if epilogue is None else epilogue.after(o, u)), last

    def encoded_output(
        self,
        x: Tensor,
        encoder: tuple[Tensor, Tensor | None],
        weight: Tensor,
        state: Tensor | None,
        resets: Tensor | None,
        epilogue: Epilogue | None,
    ) -> tuple[Tensor, Tensor] | None:
        if not self.hopper or self.dtype != x.dtype:
            return None
        first = None if state is None else state.contiguous()
        return encoding.output(x, encoder, weight, first, segments_of(resets), self.constants, epilogue or NOTHING)
