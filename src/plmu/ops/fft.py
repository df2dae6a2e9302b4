"""Equation 26: the convolution with the impulse response in the frequency domain, as the paper trains."""

from __future__ import annotations

import torch
from torch import Tensor

from plmu.ops.matrices import apply, power, response_spectrum
from plmu.systems import LinearSystem


def states(u: Tensor, system: LinearSystem, state: Tensor | None, resets: Tensor | None) -> Tensor:
    """All states (batch, time, order, channels) of u (batch, time, inputs, channels)."""
    assert resets is None, "the plan gives resets to recurrent and chunked only"
    batch, time, _, channels = u.shape
    if batch == 0:  # which FFT libraries refuse
        return u.sum() * u.new_zeros(0, time, system.order, channels)
    points = fast_length(2 * time)  # zero-padded: the circular convolution does not wrap into the result
    taps = system.derive(response_spectrum, time, points, dtype=u.dtype, device=u.device)
    spectrum = torch.fft.rfft(u, n=points, dim=1)  # (batch, frequency, inputs, channels)
    product = taps * spectrum if spectrum.shape[2] == 1 else taps @ spectrum  # (batch, frequency, order, channels)
    m: Tensor = torch.fft.irfft(product, n=points, dim=1)[:, :time]
    return m if state is None else m + _decay(system, state, time)


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
