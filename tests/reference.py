"""The specification: equation 19 in float64, one step after another, written without anything from plmu.ops."""

import cmath

import torch
from torch import Tensor

from plmu import DelayNetwork, LinearSystem


def recurrence(
    u: Tensor, system: LinearSystem, state: Tensor | None = None, resets: Tensor | None = None, dtype=torch.float64
) -> Tensor:
    """All states (batch, time, order, channels). With dtype=torch.float32 it is the plain method at that precision."""
    A, B = system.A.to(dtype), system.B.to(dtype)
    u = u.to(dtype)
    channels = u.shape[2] if system.inputs is None else 1
    m = torch.zeros(u.shape[0], system.order, channels, dtype=dtype) if state is None else state.to(dtype)
    collected = []
    for t in range(u.shape[1]):
        if resets is not None:
            m = torch.where(resets[:, t, None, None], 0.0, m)
        drive = B[None, :, None] * u[:, t, None, :] if system.inputs is None else (u[:, t] @ B.T)[:, :, None]
        m = A @ m + drive
        collected.append(m)
    return torch.stack(collected, dim=1)


def sine_error(network: DelayNetwork, frequency: float, delay: float, after: int) -> tuple[float, float]:
    """The relative error with which a sine (cycles per step) is decoded `delay` steps ago, by the transfer function:
    |C (1 − Ā/z)⁻¹ B̄ − z^(½ − delay)|. And what is left of the start `after` so many steps, at the slowest decay."""
    system, z = network.discretize(), cmath.exp(2j * cmath.pi * frequency)
    matrix = torch.eye(system.order) - system.A / z
    response = network.decoder(delay).to(matrix.dtype) @ torch.linalg.solve(matrix, system.B.to(matrix.dtype))
    left = torch.linalg.eigvals(system.A).abs().max().item() ** after
    return abs(response.item() - z ** (0.5 - delay)), left


def masked(values: Tensor, lengths: Tensor | None) -> Tensor:
    """`values` (batch, time, ...) with zeros at and past each length."""
    if lengths is None:
        return values
    valid = torch.arange(values.shape[1]) < lengths[:, None]
    return values * valid.reshape(*valid.shape, *(1,) * (values.dim() - 2))


def at_end(m: Tensor, state: Tensor | None, lengths: Tensor | None) -> Tensor:
    """The state after each sequence's own last step, from all states."""
    if lengths is None:
        return m[:, -1]
    before = torch.zeros_like(m[:, 0]) if state is None else state.to(m.dtype)
    padded = torch.cat([before[:, None], m], dim=1)
    return padded[torch.arange(len(lengths)), lengths]
