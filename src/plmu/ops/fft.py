"""Equation 26: the convolution with the impulse response in the frequency domain, as the paper trains."""

from __future__ import annotations

import torch
from torch import Tensor

from plmu.ops.algorithm import Algorithm, Case, Option, Plan, Problem, last_of
from plmu.ops.matrices import apply, power, response, response_spectrum
from plmu.systems import LinearSystem


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
    """How many of the first `time` values of the impulse response count: what is left out is at most a sixteenth of the
    rounding step, which a transform adds to every state anyway."""
    if not system.constant:
        return time
    return int(system.numbers(spans, time)[int(dtype == torch.float64)])


def spans(system: LinearSystem, time: int) -> Tensor:
    """The same for float32 and float64: (2,)."""
    size = response(system, time).abs().sum(2)  # (order, time)
    left = size.flip(1).cumsum(1).flip(1)  # from each lag on
    share = left / left[:, :1]
    small = [torch.finfo(dtype).eps / 16 for dtype in (torch.float32, torch.float64)]
    return torch.stack([(~(share <= one)).sum(1).max() for one in small]).double()


def _decay(system: LinearSystem, state: Tensor, time: int) -> Tensor:
    """Ā^t m_0 for t = 1 … time, by doubling: (batch, time, order, channels)."""
    decayed = apply(system.derive(power, 1, dtype=state.dtype, device=state.device), state)[:, None]
    while decayed.shape[1] < time:
        size = decayed.shape[1]
        later = system.derive(power, size, dtype=state.dtype, device=state.device)
        decayed = torch.cat([decayed, apply(later, decayed[:, : time - size])], dim=1)
    return decayed


def fast_length(least: int) -> int:
    """The smallest number 2^a or 3·2^a that is at least `least`: sizes every FFT library is fast at."""
    size = 1
    while size < least:
        size *= 2
    return size // 4 * 3 if size % 4 == 0 and size // 4 * 3 >= least else size


class FFT(Algorithm):
    """One transform over all steps. It has, at every step, the rounding errors of a sequence's largest input."""

    name = "fft"

    LAUNCHES = 24
    TRAFFIC = 30  # passes over m, the transforms' own included

    def states(self, problem: Problem, plan: Plan) -> tuple[Tensor, Tensor]:
        m = states(problem.u.to(problem.wide), problem.system, problem.state)
        return m, last_of(problem, m)

    def limit(self, case: Case) -> str | None:
        return "cannot reset inside a sequence" if case.resets else None

    def auto_limit(self, case: Case) -> str | None:
        reason = None
        if not case.rates.gpu:  # on a GPU it is taken for its few launches
            reason = "less accurate: its error scales with the largest input; on a GPU only"
        elif not case.bounded:
            reason = "less accurate: its error scales with the largest state, and this system may grow"
        elif case.dtype == torch.float64:
            reason = "less accurate: its error scales with the largest input; not in float64"
        return reason or super().auto_limit(case)

    def options(self, case: Case) -> list[Option]:
        seconds = self.estimate(case, flops=0, moved=self.TRAFFIC * case.states, launches=self.LAUNCHES)
        return [Option(self.name, seconds)]

    def explain(self, option: Option) -> str:
        return "One transform over all steps (equation 26): for long and narrow inputs."


ALGORITHM = FFT()
