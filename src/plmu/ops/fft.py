"""Equation 26: the convolution with the impulse response in the frequency domain, as the paper trains."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from plmu.core.systems import LinearSystem
from plmu.ops import transforms
from plmu.ops.algorithm import Algorithm, Case, Option, Plan, Problem, final_of, last_of
from plmu.ops.blocks import BlockProject, carry
from plmu.ops.matrices import apply, free_response, power, response, response_spectrum

DECAY_CHUNK = 16  # steps


def states(u: Tensor, system: LinearSystem, state: Tensor | None) -> Tensor:
    """All states (batch, time, order, channels) of u (batch, time, inputs, channels)."""
    batch, time, _, channels = u.shape
    if batch == 0:  # which FFT libraries refuse
        return u.sum() * u.new_zeros(0, time, system.order, channels)
    taps_that_count = span(system, time, u.dtype)
    points = fast_length(time + taps_that_count)  # zero-padded: the circular convolution does not wrap into the result
    taps = system.derive(response_spectrum, taps_that_count, points, dtype=u.dtype, device=u.device)
    spectrum = torch.fft.rfft(u.permute(0, 2, 3, 1), n=points)  # (batch, inputs, channels, frequency)
    product = taps * spectrum if u.shape[2] == 1 else torch.einsum("oif,bicf->bocf", taps, spectrum)
    by_order: Tensor = torch.fft.irfft(product, n=points, norm="forward")  # (batch, order, channels, points)
    m = by_order[..., :time].permute(0, 3, 1, 2)
    return m if state is None else m + _decay(system, state, time)


def span(system: LinearSystem, time: int, dtype: torch.dtype) -> int:
    """The number of first lags of the impulse response, at most `time`, that matter. The others sum to at most 1/16 of
    the rounding step, and a transform adds such errors to every state anyway."""
    if not system.constant:
        return time
    return int(system.numbers(spans, time)[int(dtype == torch.float64)])


def spans(system: LinearSystem, time: int) -> Tensor:
    """`span` of a constant system in float32 and in float64: (2,)."""
    size = response(system, time).abs().sum(2)  # (order, time)
    remaining = size.flip(1).cumsum(1).flip(1)  # from each lag on
    share = remaining / remaining[:, :1]
    small = [torch.finfo(dtype).eps / 16 for dtype in (torch.float32, torch.float64)]
    return torch.stack([(~(share <= bound)).sum(1).max() for bound in small]).double()


def _decay(system: LinearSystem, state: Tensor, time: int) -> Tensor:
    """Ā^t m_0 for t = 1 … time, by doubling: (batch, time, order, channels)."""
    decayed = apply(system.derive(power, 1, dtype=state.dtype, device=state.device), state)[:, None]
    while decayed.shape[1] < time:
        size = decayed.shape[1]
        later = system.derive(power, size, dtype=state.dtype, device=state.device)
        decayed = torch.cat([decayed, apply(later, decayed[:, : time - size])], dim=1)
    return decayed


def _projected_decay(system: LinearSystem, state: Tensor, time: int, weight: Tensor) -> Tensor:
    """W_m Ā^t m_0 for t = 1 … time, by chunks, without holding all states: (batch, time, out)."""
    count = -(-time // DECAY_CHUNK)
    starts = torch.cat([state[:, None], state.new_zeros(len(state), count - 1, *state.shape[1:])], dim=1)
    starts = carry(starts, None, system, DECAY_CHUNK).flatten(0, 1)
    powers = system.derive(free_response, DECAY_CHUNK, dtype=state.dtype, device=state.device)
    tile = max(1, (1 << 20) // (powers.shape[0] * state.shape[2]))
    o: Tensor = BlockProject.apply(starts, powers, None, None, weight, tile)
    return o.reshape(len(state), count * DECAY_CHUNK, -1)[:, :time]


def fast_block(least: int) -> int:
    """The smallest multiple of 4 without prime factors above 7 that is at least `least`."""
    size = -(-least // 4) * 4
    while _largest_factor(size) > 7:
        size += 4
    return size


def _largest_factor(number: int) -> int:
    factor = 2
    while factor * factor <= number:
        if number % factor:
            factor += 1
        else:
            number //= factor
    return number


def fast_length(least: int) -> int:
    """The smallest number 2^a or 3·2^a that is at least `least`: sizes every FFT library is fast at."""
    size = 1
    while size < least:
        size *= 2
    return size // 4 * 3 if size % 4 == 0 and size // 4 * 3 >= least else size


class FFT(Algorithm):
    """On a GPU, for a system that may grow and in compiled graphs, one transform over all steps: it has, at every step,
    the rounding errors of a sequence's largest input. Else transforms of blocks of steps, whose errors stay local."""

    name = "fft"

    BLOCKS = (128, 256, 512)  # steps that a block has at most
    TILE = 1 << 17  # elements of m at a time

    # What the estimate is made of; forward and backward together.
    LAUNCHES = 24
    TRAFFIC = 30  # passes over m, the transforms' own included

    # The same for blocks.
    POINT_FLOPS = 11  # for each point of a transform and each of its log₂(points) rounds
    PRODUCT_FLOPS = 90  # for each number of m and each piece of the response
    PROJECT_PRODUCT_FLOPS = 120  # the same in `project`, where m is made twice
    BLOCK_TRAFFIC = 4  # passes over m
    PROJECT_BLOCK_TRAFFIC = 2  # the same in `project`, where a tile of m stays in the cache
    INPUT_TRAFFIC = 8  # passes over u
    BLOCK_LAUNCHES = 42
    TILE_LAUNCHES = (8, 4)  # for each tile; and for each piece of the response in it

    def states(self, problem: Problem, plan: Plan) -> tuple[Tensor, Tensor]:
        u, system, state = problem.u.to(problem.wide), problem.system, problem.state
        if plan.chunk == 0 or u.shape[0] == 0:
            m = states(u, system, state)
        else:
            m = transforms.states(u, system, plan.chunk, span(system, u.shape[1], u.dtype), plan.tile)
            m = m if state is None else m + _decay(system, state, u.shape[1])
        return m, last_of(problem, m)

    def project(self, problem: Problem, weight: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        u, system, state = problem.u.to(problem.wide), problem.system, problem.state
        if plan.chunk == 0 or u.shape[0] == 0:
            return super().project(problem, weight, plan)
        weight = weight.to(u.dtype).flatten(1)
        o = transforms.project(u, system, weight, plan.chunk, span(system, u.shape[1], u.dtype), plan.tile)
        if state is not None:
            o = o + _projected_decay(system, state, u.shape[1], weight)
        return o, final_of(problem)

    def limit(self, case: Case) -> str | None:
        return "cannot reset inside a sequence" if case.resets else None

    def auto_limit(self, case: Case) -> str | None:
        if self._in_blocks(case):
            return None
        reason = None
        if not case.bounded:
            reason = "less accurate: its error scales with the largest state, and this system may grow"
        elif not case.rates.gpu:  # on a GPU it is taken for its few launches
            reason = "less accurate: its error scales with the largest input; in blocks in eager calls only"
        elif case.dtype == torch.float64:
            reason = "less accurate: its error scales with the largest input; not in float64"
        return reason or super().auto_limit(case)

    def options(self, case: Case) -> list[Option]:
        if self._in_blocks(case):
            return [self._option(case, block) for block in self._blocks(case)]
        seconds = self.estimate(case, flops=0, moved=self.TRAFFIC * case.states, launches=self.LAUNCHES)
        return [Option(self.name, seconds)]

    def explain(self, option: Option) -> str:
        if option.chunk:
            return f"Transforms of blocks of {option.chunk} steps: for few sequences, high orders and long memories."
        return "One transform over all steps (equation 26): for long and narrow inputs."

    def stored(self, case: Case, option: Option) -> tuple[str, ...]:
        if option.chunk == 0:
            return super().stored(case, option)
        return ("u", "weight") if case.kind == "project" else ()

    def _in_blocks(self, case: Case) -> bool:
        """Whether blocks of steps are transformed, not all steps at once: on a CPU, if the memory is known to fade."""
        return case.reach > 0 and not case.rates.gpu

    def _blocks(self, case: Case) -> list[int]:
        """Candidate block lengths, which cut time into about equal parts. They do not exceed the length of the memory
        by much, since rounding errors spread over two blocks."""
        limits = [min(steps, case.time) for steps in self.BLOCKS if steps <= max(case.reach, self.BLOCKS[0])]
        return sorted({fast_block(-(-case.time // -(-case.time // limit))) for limit in limits})

    def _option(self, case: Case, block: int) -> Option:
        """Transforms of blocks of `block` steps, with the estimated time."""
        blocks = -(-case.time // block)
        pieces = min(-(-case.reach // block), blocks)
        products = pieces - pieces * (pieces - 1) / (2 * blocks)  # the first blocks have fewer windows before them
        driven = case.batch * blocks * block * case.channels  # copies of the system, at each step
        states, inputs = driven * case.order, driven * case.inputs
        tile = max(1, self.TILE // (block * case.order * case.channels))
        tiles = -(-case.batch // max(1, tile // blocks)) * -(-blocks // tile)
        project = case.kind == "project"
        transformed = (3 if project else 2) * 2 * (states + inputs) * math.log2(2 * block)
        multiplied = (self.PROJECT_PRODUCT_FLOPS if project else self.PRODUCT_FLOPS) * states * products * case.inputs
        moved = (self.PROJECT_BLOCK_TRAFFIC if project else self.BLOCK_TRAFFIC) * states + self.INPUT_TRAFFIC * inputs
        once, each = self.TILE_LAUNCHES
        seconds = self.estimate(
            case,
            flops=self.POINT_FLOPS * transformed + multiplied,
            moved=moved,
            launches=self.BLOCK_LAUNCHES + round(tiles * (once + each * products * case.inputs)),
        )
        return Option(f"{self.name}, {block} steps", seconds, block, tile=tile)


ALGORITHM = FFT()
