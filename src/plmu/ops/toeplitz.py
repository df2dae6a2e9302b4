"""Equations 22 to 24: all states at once as one matrix product. O(time²), plain, and fine for short sequences."""

from __future__ import annotations

from torch import Tensor

from plmu.ops.matrices import apply, block_toeplitz, free_response
from plmu.systems import LinearSystem

LARGEST = 1 << 29  # elements of the matrix


def states(u: Tensor, system: LinearSystem, state: Tensor | None, resets: Tensor | None) -> Tensor:
    """All states (batch, time, order, channels) of u (batch, time, inputs, channels)."""
    assert resets is None, "the plan gives resets to other algorithms"
    batch, time, inputs, channels = u.shape
    elements = time**2 * system.order * inputs
    if elements > LARGEST:
        raise ValueError(
            f"algorithm='toeplitz' needs a matrix of {elements:.1e} elements for {time} steps and order {system.order}:"
            " use auto, chunked or fft"
        )
    product = system.derive(block_toeplitz, time, dtype=u.dtype, device=u.device)
    m = apply(product, u.reshape(batch, time * inputs, channels))  # (batch, time · order, channels)
    if state is not None:
        m = m + apply(system.derive(free_response, time, dtype=u.dtype, device=u.device), state)
    return m.reshape(batch, time, system.order, channels)
