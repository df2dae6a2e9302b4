"""Constant matrices derived from a linear system, and how they are applied. All are built in float64 and cached
by `LinearSystem.derive`.

Inside `ops` every input is (batch, time, inputs, channels): a system with B̄ of shape (order,) has one input per
channel, a multi-input system has one channel. The channel axis comes last, so a matrix applies from the left.
"""

from __future__ import annotations

import math
import operator

import torch
from torch import Tensor

from plmu.core.modes import is_open
from plmu.core.systems import LinearSystem, is_stable

LONGEST = 24  # powers of two, up to which the length of a memory is measured
FEW_CHANNELS = 16  # up to here one product over all sequences and channels beats one for each sequence
LARGE = 1 << 14  # elements of a matrix from which a CPU multiplies rows faster than columns, also of a single sequence


def apply(matrix: Tensor, x: Tensor) -> Tensor:
    """matrix (rows, columns) times x (..., columns, channels): (..., rows, channels), as one library product."""
    *leading, columns, channels = x.shape
    rows = matrix.shape[0]
    if channels == 1:
        return (x.squeeze(-1) @ matrix.mT).unsqueeze(-1)
    count = math.prod(leading)
    alone = x.device.type == "cpu" and not is_open(count) and count == 1
    if alone and channels <= FEW_CHANNELS // 2 and rows * columns >= LARGE:
        # A view of the transpose would be multiplied several times as slowly, and so would its gradient.
        products = torch.stack(x.reshape(columns, channels).unbind(1)) @ matrix.mT
        return torch.stack(products.unbind(0), dim=1).reshape(*leading, rows, channels)
    if channels <= FEW_CHANNELS:
        flat = x.mT.reshape(count * channels, columns) @ matrix.mT
        return flat.reshape(*leading, channels, rows).mT.contiguous()
    if matrix.requires_grad:
        return torch.einsum("pr,...rx->...px", matrix, x)  # its gradient for `matrix` is one product too
    product = torch.bmm(matrix.expand(count, rows, columns), x.reshape(count, columns, channels))
    return product.reshape(*leading, rows, channels)


def input_matrix(system: LinearSystem) -> Tensor:
    """B̄ as (order, inputs)."""
    return system.B.reshape(system.order, -1)


def step_matrix(system: LinearSystem) -> Tensor:
    """[Ā | B̄], or [Ā − I | B̄], the change of the state in one step, for a system that is `near_identity`.

    For θ far above the order Ā is close to I, and rounding it would change the dynamics: at order 1 and θ = 100,000 a
    float32 Ā decays up to 0.3 % too fast or too slow. Its difference from I keeps all its digits.
    """
    advance = system.A
    if system.near_identity:
        advance = advance - torch.eye(system.order, dtype=system.A.dtype, device=system.A.device)
    return torch.cat([advance, system.B.reshape(system.order, -1)], dim=1)


def power(system: LinearSystem, exponent: int) -> Tensor:
    """Ā^exponent."""
    return system.power(exponent)


def response(system: LinearSystem, length: int) -> Tensor:
    """H as (order, length, inputs)."""
    return system.impulse_response(length).reshape(system.order, length, -1)


def reversed_response(system: LinearSystem, length: int) -> Tensor:
    """H in reversed time, as the row block of equation 25: (order, length · inputs)."""
    return response(system, length).flip(1).reshape(system.order, -1)


def block_toeplitz(system: LinearSystem, length: int) -> Tensor:
    """T: rows (time, order), columns (time, inputs), T[(t, i), (s, q)] = H[i, t − s, q] for s ≤ t.

    The same sum as H·U (equations 22 to 24) with the Toeplitz structure on H, which all sequences share.
    """
    taps = response(system, length)  # (order, length, inputs)
    time = torch.arange(length, device=taps.device)
    lag = time[:, None] - time[None, :]  # (t, s)
    blocks = taps[:, lag.clamp(min=0)] * (lag >= 0)[None, :, :, None]  # (order, t, s, inputs)
    return blocks.permute(1, 0, 2, 3).reshape(length * system.order, -1)


def free_response(system: LinearSystem, length: int) -> Tensor:
    """P: rows (time, order), the powers Ā¹ … Ā^length, which carry an initial state through the block."""
    return system.powers(length).reshape(length * system.order, system.order)


def block_matrix(system: LinearSystem, length: int) -> Tensor:
    """[T | P]: all states of a block from its inputs and the state before it."""
    return torch.cat([block_toeplitz(system, length), free_response(system, length)], dim=1)


def response_spectrum(system: LinearSystem, length: int, points: int) -> Tensor:
    """F{H} / points, zero-padded to `points`: (order, inputs, points // 2 + 1), complex."""
    spectrum: Tensor = torch.fft.rfft(response(system, length).transpose(1, 2), n=points) / points
    return spectrum.contiguous()


def unit_states(system: LinearSystem, length: int) -> Tensor:
    """The states of a single input that is 1 from the first step on: (length, order)."""
    return response(system, length).squeeze(2).cumsum(1).mT.contiguous()


def may_grow(system: LinearSystem) -> bool:
    """Whether the powers of Ā may grow: the system is not stable, or its values cannot be read."""
    return not (system.constant and system.numbers(_stable)[0] == 1)


def _stable(system: LinearSystem) -> Tensor:
    """1 if the system is stable, else 0: (1,)."""
    return torch.tensor([float(is_stable(system.A))], dtype=torch.float64)


def lasts(system: LinearSystem, dtype: torch.dtype) -> int:
    """The number of steps, roughly, until all elements of a power of Ā are below 1/16 of the rounding step of `dtype`;
    for stable systems."""
    return int(system.numbers(_fading)[int(dtype == torch.float64)])


def _fading(system: LinearSystem) -> Tensor:
    """`lasts` in float32 and in float64, rounded up to a quarter of the next power of two: (2,)."""
    steps_by_dtype = []
    for dtype in (torch.float32, torch.float64):
        small = torch.finfo(dtype).eps / 16
        squares = [system.A]  # Ā^1, Ā^2, Ā^4, …
        while squares[-1].abs().max() > small and len(squares) < LONGEST:
            squares.append(squares[-1] @ squares[-1])
        steps, lasting = 0, torch.eye(system.order, dtype=system.A.dtype, device=system.A.device)
        for k in range(len(squares) - 1, max(len(squares) - 4, -1), -1):
            later = lasting @ squares[k]
            if later.abs().max() > small:
                steps, lasting = steps + (1 << k), later
        steps_by_dtype.append(steps + (1 << max(len(squares) - 3, 0)))
    return torch.tensor(steps_by_dtype, dtype=torch.float64)


def finite(matrix: Tensor) -> Tensor:
    """A matrix with finite numbers in place of overflow, so that its product with zero is zero."""
    largest = torch.finfo(matrix.dtype).max
    return torch.nan_to_num(matrix, 0.0, largest, -largest)


def infinity_as_nan(x: Tensor) -> Tensor:
    """x with NaN in place of infinity, by one fast call: x + 0 · x."""
    return torch.add(x, x, alpha=0)


def power_of_2_from(time: int) -> int:
    """The smallest power of 2 that is no less than a number of steps: one constant serves many lengths."""
    return 1 << (operator.index(time) - 1).bit_length()
