"""`project` and `states` by fused kernels on a GPU: chunks as in `plmu.ops.chunked`.

Forward: one kernel writes W_m m once, and no tile of m ever reaches memory. The past enters a chunk as the state before
it, for all chunks in one launch or two; or, where the impulse response fades within a chunk, as the last inputs before
it, and no state is passed at all. Backward: the gradient of u is the same projection in backward time, of the gradient
of o by the transposed weight. That of the weight is another kernel, whose sum over time is cut into fixed shares and
added up in a fixed order, so that results repeat bit for bit. For the backward pass u and the weight are stored and, by
the kernels for Hopper in half precision, states before chunks.

The kernels are in `plmu.ops.gpu`, written twice: in Triton for every GPU and precision, and the two heavy ones for the
TMA unit and the tensor cores of Hopper GPUs. That package is imported by the first call, or plan, for a GPU.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plmu.ops.algorithm import Algorithm, Case, Epilogue, Option, Plan, Problem, final_of
from plmu.ops.groups import each, final_of_groups
from plmu.ops.matrices import may_grow
from plmu.ops.rates import FLOAT, HALF

if TYPE_CHECKING:
    from plmu.ops.routes import Route

LARGEST_ORDER = 64
AVAILABLE = importlib.util.find_spec("triton") is not None


class Fused(Algorithm):
    """Fused kernels, for systems that are not trained."""

    name = "fused"
    takes_groups = makes_output = True

    # What the estimate is made of; forward and backward together.
    FLOPS = 6  # for each element of m and each output: the projection, and its two gradients
    TILE = 64  # channels; outputs are tiled by 64, 128 or 256
    PAST = 32  # rows of a chunk's past that are multiplied beside its steps
    RESETS_SLOWER = 1.22  # times, in half precision
    IN_PARTS = 3.2  # times the arithmetic of half precision that float32 takes in parts
    RESETS_SLOWER_IN_PARTS = 1.27  # times
    WIDE_IN_PARTS = 128  # outputs of a tile there
    TRAFFIC = 3  # passes over u and o
    LAUNCHES = 12
    CARRIED_ROW = 5e-8  # seconds for a row of the state to pass a chunk
    CARRIES = 3  # times that states are passed on
    STATES_TRAFFIC = 4  # passes over m where all states are the result
    STATES_LAUNCHES = 8
    ALL_STATES = "fused, all states"  # as a plan lists it
    BETWEEN = "states between chunks, where they are carried"  # the same

    def states(self, problem: Problem, plan: Plan) -> tuple[Tensor, Tensor]:
        from plmu.ops.gpu import all_states

        inputs = problem.u.squeeze(2).to(problem.dtype)
        if not inputs.shape[0]:
            return _empty(inputs, problem)
        m, last = all_states.states(inputs, problem.system, problem.state, _stops(problem))
        return m, last if problem.lengths is None and problem.resets is None else final_of(problem)

    def project(self, problem: Problem, weight: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        from plmu.ops.gpu import projection

        inputs, weight = problem.u.squeeze(2).to(problem.dtype), weight.to(problem.dtype)
        if not inputs.shape[0]:
            m, last = _empty(inputs, problem)
            return m.flatten(2) @ weight.flatten(1).mT, last
        o, last = projection.project(inputs, problem.groups or problem.system, weight, problem.state, _stops(problem))
        return o, last if problem.lengths is None else final_of_groups(problem)

    def output(self, problem: Problem, weight: Tensor, plan: Plan, epilogue: Epilogue) -> tuple[Tensor, Tensor] | None:
        if plan.kernel != "Hopper":
            return None
        from plmu.ops.gpu import compiled_output, output, projection
        from plmu.ops.gpu.tables import segments_of

        inputs, weight = problem.u.squeeze(2).to(problem.dtype), weight.to(problem.dtype)
        if not inputs.shape[0] or not output.fits(inputs, weight, epilogue):
            return None
        first = None if problem.state is None else problem.state.contiguous()
        constants = projection.constants_for(inputs, problem.groups or problem.system, problem.state)
        run = compiled_output.output if torch.compiler.is_compiling() else output.output
        o, last = run(inputs, weight, first, segments_of(_stops(problem)), constants, epilogue)
        return o, last if problem.lengths is None else final_of_groups(problem)

    def route(self, problem: Problem, weight: Tensor) -> Route | None:
        if not problem.u.shape[0]:
            return None
        from plmu.ops.gpu.route import FusedRoute

        return FusedRoute(problem, weight)

    def limit(self, case: Case) -> str | None:
        reason = None
        if case.target.type != "cuda" and not interpreted():
            reason = f"runs on a GPU alone, not on {case.target.type}"
        elif not AVAILABLE:
            reason = "needs Triton: pip install triton"
        elif case.dtype == torch.float64:
            reason = "has no float64"
        elif case.several_inputs:
            reason = "takes one input for each channel, not a system with several"
        elif case.order > LARGEST_ORDER:
            reason = f"takes orders up to {LARGEST_ORDER}, not {case.order}"
        elif case.trained:
            reason = "has no gradient for the system itself"
        elif not case.constant:
            reason = "needs a system whose values are known"
        elif case.transformed:
            reason = "works neither under torch.func nor with forward-mode gradients"
        elif case.target.type == "cuda":
            from plmu.ops.gpu.devices import lacking_for_products

            missing = lacking_for_products(case.target)
            reason = None if missing is None else f"needs {missing}"
        return reason

    def auto_limit(self, case: Case) -> str | None:
        """The kernels pay where the two heavy ones run in their form for Hopper. For all states they pay there in CUDA
        graphs, where their many launches cost little."""
        if not case.batch:
            return "is not considered for an empty batch"
        if case.kind == "states" and (case.resets or not case.graph):
            return "is considered for states in CUDA graphs alone (plmu.for_graphs), without resets"
        if case.kind == "states" and case.channels < self.TILE:
            return f"is considered for states of at least {self.TILE} channels, not {case.channels}"
        if case.kind == "project" and case.dtype == torch.float32:
            return self._why_not_in_parts(case)
        return self._why_not_hopper(case)

    def options(self, case: Case) -> list[Option]:
        """One option: the time to carry states, plus that of the products.

        The estimate rounds sizes up to whole tiles: of chunks, of 64 channels, and of 64, 128 or 256 outputs. It counts
        carried states even if the response fades within a chunk, since a case does not have the system's values. With
        groups a tile has channels of one group alone, in the gradient of u too; for the kernel that filters after the
        product (`gluon_input_gradient`), this counts too much. A product in float32 is several products of parts in
        half precision (`plmu.ops.gpu.float32`).
        """
        from plmu.ops.gpu.tables import CHUNK, grouping, rows_of, tiles

        _, chunks_in_a_row = grouping(case.batch, case.time, case.channels, case.groups)
        carries = self.CARRIES - 1 if case.kind == "project" and self._keeps(case) else self.CARRIES
        carrying = carries * chunks_in_a_row * rows_of(case.order) * self.CARRIED_ROW
        if case.kind == "states":
            moved = HALF * self.STATES_TRAFFIC * case.states
            seconds = case.rates.seconds(flops=0, moved=moved, launches=self.STATES_LAUNCHES, half=True, own=True)
            return [Option(self.ALL_STATES, carrying + seconds, CHUNK)]
        float32 = case.dtype == torch.float32
        widest = self.WIDE_IN_PARTS if float32 else 256
        tile_outputs = min(widest, 256 if case.out > 128 else 128 if case.out > 64 else 64)
        steps = tiles(case.time, CHUNK) * CHUNK
        width = case.channels // case.groups
        channels = case.groups * tiles(width, self.TILE) * self.TILE
        outputs = tiles(case.out, tile_outputs) * tile_outputs
        products = self.FLOPS * case.batch * steps * case.order * channels * outputs
        resets_slower = self.RESETS_SLOWER_IN_PARTS if float32 else self.RESETS_SLOWER
        # Beside the products of m and the weight, m itself is made for each tile of outputs.
        slower = (resets_slower if case.resets else 1) * (1 + (CHUNK + self.PAST) / tile_outputs)
        if case.groups > 1:  # a third of the products is in narrower tiles
            tile_channels = min(widest, 256 if width > 128 else 128 if width > 64 else 64)
            slower += max(0.0, (CHUNK + self.PAST) * (1 / tile_channels - 1 / tile_outputs)) / 3
        slower *= self.IN_PARTS if float32 else 1
        moved = (FLOAT if float32 else HALF) * self.TRAFFIC * case.moved
        seconds = case.rates.seconds(flops=products * slower, moved=moved, launches=self.LAUNCHES, half=True, own=True)
        return [Option(self.name, carrying + seconds, CHUNK)]

    def explain(self, option: Option) -> str:
        if option.label == self.ALL_STATES:
            return "Kernels of our own: tiles of m are made on chip and written once."
        return "Kernels of our own: tiles of m are made on chip and multiplied into the weight at once."

    def kernel(self, case: Case) -> tuple[str, str | None]:
        if case.kind == "states":
            return "Triton", None
        reason = self._why_not_hopper(case)
        return ("Hopper", None) if reason is None else ("Triton", reason)

    def stored(self, case: Case, option: Option) -> tuple[str, ...]:
        if case.kind == "states":
            return ()
        return ("u", "weight", *((self.BETWEEN,) if self._keeps(case) else ()))

    def _keeps(self, case: Case) -> bool:
        """Whether carried states are stored for the backward pass, which then does not carry them again."""
        from plmu.ops.gpu.output import keeps_states

        return case.half and keeps_states(case.order, case.time) and self._why_not_hopper(case) is None

    def _why_not_in_parts(self, case: Case) -> str | None:
        """Why "auto" leaves float32 to other algorithms: parts in half precision pay on Hopper GPUs alone."""
        from plmu.ops.gpu import launch
        from plmu.ops.gpu.float32 import split

        if not case.bounded:
            return "divides the constants in float32 of systems that do not grow alone"
        if not launch.has_hopper(case.target):
            return "is considered for float32 on Hopper GPUs alone"
        return None if split.PARTS else "products in float32 are not divided into parts"

    def _why_not_hopper(self, case: Case) -> str | None:
        """The reason why the kernels for Hopper do not run a case, or None."""
        from plmu.ops.gpu import launch
        from plmu.ops.gpu.float32 import split, split_hopper

        sizes = (case.batch, case.time, case.channels, case.out or case.channels)
        if case.kind == "project" and case.dtype == torch.float32 and split.PARTS == 2:
            if not case.bounded:
                return "the kernels for Hopper take float32 with systems that do not grow alone"
            return split_hopper.why_not(case.target, *sizes, case.groups)
        return launch.why_not_hopper(case.target, case.dtype, *sizes)


ALGORITHM = Fused()


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on any device."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _stops(problem: Problem) -> Tensor | None:
    """The resets (batch, time); for an unstable system also one where each sequence ends; None without any."""
    return problem.stops() if any(map(may_grow, each(problem.groups or problem.system))) else problem.resets


def _empty(u: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """m (0, time, order, channels) and the final state of an empty batch, connected to u for autograd; nothing is
    launched."""
    m = u[:, :, None].expand(-1, -1, problem.system.order, -1)
    return m, m.sum(1, dtype=problem.wide)
