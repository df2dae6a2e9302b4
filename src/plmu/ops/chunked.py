"""Block products with a carried state: the training algorithm. Exact, O(time), and all library products.

Time is cut into chunks of c steps. All states of a chunk are one product with a constant matrix,

    m_chunk = [T | P] · [u_chunk ; m_before]        T the block Toeplitz of H, P the powers Ā¹ … Ā^c,

and the states at chunk ends form a linear system again, with Ā^c, solved for all chunks at once in log₂ rounds.
`project` multiplies each tile of m into the weight while it is at hand and recomputes it in the backward pass, so m is
never stored whole. Both are in `blocks.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plmu.core.modes import forward_mode
from plmu.core.systems import LinearSystem
from plmu.ops.algorithm import Algorithm, Case, Option, Plan, Problem, last_of
from plmu.ops.blocks import BlockProject, Blocks, carry
from plmu.ops.final import final_state
from plmu.ops.matrices import apply, finite, input_matrix, may_grow
from plmu.ops.rates import FLOAT


class Chunked(Algorithm):
    """Takes every case."""

    name = "chunked"

    CHUNKS = (16, 32, 64, 128)  # steps
    RESET_CHUNK = 16  # with resets each block has a Toeplitz matrix of its own, whose size grows with the chunk
    SINGLE_CHUNK = 256  # up to this length the whole sequence may be one chunk
    LARGEST_MATRIX = 1 << 24  # elements of the block matrix
    SMALL_FOLDED = 1 << 20  # elements that the weight times the block matrix may always have
    LEAST_TILE = 1 << 21  # elements of m at a time in `project`; more where u and o are large
    LEAST_TILE_ON_GPU = 1 << 24
    TILE_SHARE = 4  # a tile of m may have a quarter of the elements of u and o

    # What the estimate is made of, fitted to measured times; forward and backward together.
    FLOPS = 6  # for each element of m and each term of its sum in `project`, where m is made twice
    STATES_FLOPS = 4  # the same in `states`
    CARRY_FLOPS = 4  # for each carried state and each term of its sum
    SHORT_PRODUCT = 24  # terms of a product that runs at half the rate
    CARRY_TRAFFIC = 4  # passes over the carried states in each round
    CARRY_TRAFFIC_ON_GPU = 12
    INPUT_TRAFFIC = 3  # passes over the blocks' inputs
    STATES_TRAFFIC = 2  # passes over m
    RESET_TRAFFIC = 22  # the same in `project` with resets on a GPU
    OUTPUT_TRAFFIC = 2  # passes over o
    FOLDED_TRAFFIC = 4  # passes over the folded matrix
    STATES_MATRIX_TRAFFIC = 1 / 2  # passes over the block matrix in `states`; in `project` one for each tile
    FOLDED_MATRIX_TRAFFIC = 2  # the same where the weight is multiplied into it
    LAUNCHES = 15
    CARRY_LAUNCHES = (40, 6)  # in place of them where states are carried; and for each round
    CARRY_LAUNCHES_ON_GPU = (20, 4)
    FOLD_LAUNCHES = 20
    PROJECT_LAUNCHES = 10  # and as many for each tile

    def states(self, problem: Problem, plan: Plan) -> tuple[Tensor, Tensor]:
        u = problem.u.to(_operand(problem))
        m = states(u, problem.system, problem.state, problem.lengths, problem.resets, plan.chunk)
        return m, last_of(problem, m)

    def project(self, problem: Problem, weight: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        operand, stops = _operand(problem), problem.resets
        if stops is not None and may_grow(problem.system):  # without resets there are masks for the padding
            stops = problem.stops()
        return project(
            problem.u.to(operand),
            problem.system,
            weight.to(operand),
            problem.state,
            problem.lengths,
            stops,
            plan.chunk,
            plan.fold,
            plan.tile,
        )

    def limit(self, case: Case) -> str | None:
        return None

    def auto_limit(self, case: Case) -> str | None:
        return None

    def options(self, case: Case) -> list[Option]:
        return [
            self._option(case, chunk, fold)
            for chunk in self._chunks(case)
            for fold in ((False, True) if self._may_fold(case, chunk) else (False,))
        ]

    def explain(self, option: Option) -> str:
        if option.fold:
            after = f"with the weight multiplied into their matrix: cheaper than {option.chunk} states."
        else:
            after = "one product with a constant matrix each, states carried between them."
        return f"Chunks of {option.chunk} {'step' if option.chunk == 1 else 'steps'}, {after}"

    def stored(self, case: Case, option: Option) -> tuple[str, ...]:
        if case.kind == "states" and case.constant:
            return ()
        between = ("states between chunks",) if option.chunk < case.time else ()
        if case.kind == "states":
            return ("u", *between)
        return ("u", *between, "weight", *(("weight times block matrix",) if option.fold else ()))

    def _option(self, case: Case, chunk: int, fold: bool) -> Option:
        seconds = self._cost(case, chunk, fold)
        if case.kind == "states" and case.resets:  # every step is a chunk of its own
            chunk = 1
        label = f"chunked, {chunk} {'step' if chunk == 1 else 'steps'}" + (", folded" if fold else "")
        return Option(label, seconds, chunk, fold, self._tile(case, chunk, case.resets))

    def _chunks(self, case: Case) -> list[int]:
        """Candidate numbers of steps of a chunk; the whole sequence if it is short."""
        if case.resets:
            return [min(self.RESET_CHUNK, case.time)]
        small = [chunk for chunk in self.CHUNKS if chunk < case.time and _matrix(case, chunk) <= self.LARGEST_MATRIX]
        if case.time <= self.SINGLE_CHUNK and _matrix(case, case.time) <= self.LARGEST_MATRIX:
            small.append(case.time)
        return small or [min(self.CHUNKS[0], case.time)]

    def _may_fold(self, case: Case, chunk: int) -> bool:
        """Whether the weight times the block matrix is no larger than what goes in and out."""
        folded = chunk * case.out * (chunk * case.inputs + case.order) * case.channels
        return case.kind == "project" and not case.resets and folded <= max(self.SMALL_FOLDED, case.moved)

    def _tile(self, case: Case, chunk: int, resets: bool) -> int:
        """The number of blocks whose m exists at a time: a few MiB, or a quarter of input and output where that is
        more. With resets each block has a matrix of its own, which counts too."""
        least = self.LEAST_TILE_ON_GPU if case.rates.gpu else self.LEAST_TILE
        width = max(case.channels, chunk * case.inputs) if resets else case.channels
        return max(1, max(least, case.moved // self.TILE_SHARE) // (chunk * case.order * width))

    def _rounds(self, case: Case, chunk: int, chunks: int) -> int:
        """The number of rounds in which states are carried: log₂ of the number of chunks, or of the chunks after which
        the memory has faded, if known. `carry` runs on until the powers of Ā are zero, but counting those rounds too
        gave worse choices."""
        far = min(chunks - 1, -(-case.reach // chunk)) if case.reach else chunks - 1
        return far.bit_length()

    def _cost(self, case: Case, chunk: int, fold: bool) -> float:
        """Estimated seconds, forward and backward, with chunks of `chunk` steps."""
        rates = case.rates
        chunks = -(-case.time // chunk)
        blocks, rounds = case.batch * chunks, self._rounds(case, chunk, chunks)
        columns = chunk * case.inputs + (case.order if chunk < case.time else 0)
        carried = blocks * case.channels * case.order
        passing = self.CARRY_FLOPS * carried * (chunk * case.inputs + rounds * case.order) if rounds else 0
        states = blocks * chunk * case.order * case.channels
        moved = (self.CARRY_TRAFFIC_ON_GPU if rates.gpu else self.CARRY_TRAFFIC) * (1 + rounds) * carried
        moved += self.INPUT_TRAFFIC * blocks * columns * case.channels
        launches = self.LAUNCHES
        if rounds:
            once, each = self.CARRY_LAUNCHES_ON_GPU if rates.gpu else self.CARRY_LAUNCHES
            launches = once + each * rounds
        slower = 1 + self.SHORT_PRODUCT / columns
        matrix = _matrix(case, chunk)
        if case.kind == "states":
            flops = self.STATES_FLOPS * states * columns * slower
            moved += self.STATES_TRAFFIC * states
            constants = self.STATES_MATRIX_TRAFFIC * matrix
        elif fold:
            wide, folded = blocks * chunk * case.out, chunk * case.out * columns * case.channels
            flops = self.FLOPS * wide * columns * case.channels * slower + self.FLOPS * folded * case.order
            moved += self.OUTPUT_TRAFFIC * wide + self.FOLDED_TRAFFIC * folded
            constants = self.FOLDED_MATRIX_TRAFFIC * matrix
            launches += self.FOLD_LAUNCHES
        else:
            passes = -(-blocks // self._tile(case, chunk, resets=False))
            flops = self.FLOPS * states * columns * slower + self.FLOPS * states * case.out
            traffic = self.RESET_TRAFFIC if case.resets and rates.gpu else self.STATES_TRAFFIC
            moved += traffic * states + self.OUTPUT_TRAFFIC * blocks * chunk * case.out
            constants = passes * matrix
            launches += self.PROJECT_LAUNCHES * passes + self.PROJECT_LAUNCHES
        return rates.seconds(
            flops=flops,
            moved=FLOAT * moved,
            constants=FLOAT * constants,
            launches=launches,
            half=case.half,
            in_float32=passing,
        )


ALGORITHM = Chunked()


def _matrix(case: Case, chunk: int) -> int:
    """Elements of the block matrix [T | P]."""
    return chunk * case.order * (chunk * case.inputs + case.order)


def _operand(problem: Problem) -> torch.dtype:
    """What products are computed in: half precision only where the device has units for it."""
    return problem.dtype if problem.u.is_cuda else problem.wide


def states(
    u: Tensor,
    system: LinearSystem,
    state: Tensor | None,
    lengths: Tensor | None,
    resets: Tensor | None,
    chunk: int,
) -> Tensor:
    """All states (batch, time, order, channels) of u (batch, time, inputs, channels)."""
    batch, time, _, channels = u.shape
    if resets is not None:
        return _states_with_resets(u, system, state, resets)
    blocks = Blocks(u, system, state, lengths, None, chunk)
    m = apply(blocks.matrix, blocks.x)
    return m.reshape(batch, blocks.count * chunk, system.order, channels)[:, :time]


def project(
    u: Tensor,
    system: LinearSystem,
    weight: Tensor,
    state: Tensor | None,
    lengths: Tensor | None,
    resets: Tensor | None,
    chunk: int,
    fold: bool,
    tile: int,
) -> tuple[Tensor, Tensor]:
    """W_m m (batch, time, out) and the final state, without ever holding m. `fold` multiplies W_m into [T | P]."""
    batch, time, _, _ = u.shape
    out = weight.shape[0]
    blocks = Blocks(u, system, state, lengths, resets, chunk)
    if fold and resets is None:
        by_step = blocks.matrix.unflatten(0, (chunk, system.order))
        folded = torch.einsum("odx,tdr->torx", weight, by_step).flatten(2).flatten(0, 1)
        if blocks.reach is not None:  # zero gradients of the padding must meet finite numbers
            folded = finite(folded)
        o = blocks.x.flatten(1) @ folded.mT  # (N, chunk · out)
    else:
        # Its `forward` as an ordinary function has forward-mode gradients, at the price of storing all of m.
        project_tiles: Any = BlockProject.forward if forward_mode() else BlockProject.apply
        o = project_tiles(blocks.x, blocks.matrix, *(blocks.reach or (None, None)), weight.flatten(1), tile)
    o = o.reshape(batch, blocks.count * chunk, out)[:, :time]
    if lengths is None and resets is None:
        last = blocks.last_state(time)
    else:
        last = final_state(u.to(blocks.wide), system, state, lengths, resets)
    return o, last


def _states_with_resets(u: Tensor, system: LinearSystem, state: Tensor | None, resets: Tensor) -> Tensor:
    """All states (batch, time, order, channels): every step is a chunk of its own, and no state passes a reset."""
    driven = apply(system.derive(input_matrix, dtype=u.dtype, device=u.device), u)  # (batch, time, order, channels)
    first = torch.zeros_like(driven[:, :1]) if state is None else state[:, None].to(u.dtype)
    return carry(torch.cat([first, driven], dim=1), ~resets, system, 1)[:, 1:].contiguous()
