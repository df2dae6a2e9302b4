"""Help in choosing order and θ: what a Delay Network can hold at a sampling rate, and what that costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from plmu.systems import DelayNetwork, LinearSystem

DELAYS = 33  # points of the window at which a decoded sine is compared with the true one
FREQUENCIES = 48  # points of a first scan for the bandwidth


@dataclass(frozen=True)
class Description:
    """The answer of `DelayNetwork.describe`; `print` it. Frequencies are in cycles per time unit of θ and dt."""

    order: int
    theta: float
    dt: float
    channels: int
    tolerance: float
    cycles_per_window: float  # the fastest sine held to the tolerance, over the window
    bandwidth: float  # the same as a frequency
    nyquist: float
    error_at: dict[float, float]  # relative reconstruction error for so many cycles per window
    leakage: float  # how much of a step input's memory is left one window after it should have gone
    state_numbers: int
    state_bytes: int  # float32
    multiplications_per_step: int

    def __str__(self) -> str:
        held = f"{self.cycles_per_window:.2f} cycles per window = {self.bandwidth:.4g} cycles per time unit"
        if self.bandwidth >= self.nyquist:
            held += ", all that this sampling rate can carry"
        errors = ", ".join(f"{100 * error:.2g} % at {cycles:g}" for cycles, error in self.error_at.items())
        return "\n".join(
            [
                f"Delay Network of order {self.order} over {self.theta:g} time units"
                f" ({self.theta / self.dt:g} samples)",
                f"  holds to {100 * self.tolerance:g} %     {held}",
                f"  error              {errors} cycles per window",
                f"  beyond the window  {100 * self.leakage:.2g} % of the impulse response is left after θ",
                f"  state              {self.state_numbers} numbers, {self.state_bytes} bytes in float32",
                f"  cost per step      {self.multiplications_per_step} multiplications",
            ]
        )


def describe(dn: DelayNetwork, *, dt: float, channels: int, tolerance: float) -> Description:
    """See `DelayNetwork.describe`."""
    if not isinstance(channels, int) or channels < 1:
        raise ValueError(f"channels must be a whole number of at least 1, got {channels!r}")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must lie between 0 and 1, got {tolerance!r}")
    with torch.no_grad():
        system = dn.discretize(dt)
        theta = dn.theta.item()
        nyquist = 0.5 / dt
        bandwidth = _bandwidth(dn, system, dt, tolerance, nyquist)
        wanted = [c for c in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0) if c / theta <= nyquist]
        shown = [c for c in wanted if c <= 2 * bandwidth * theta][-4:] or wanted[:1]
        errors = {c: reconstruction_error(dn, system, c / theta, dt) for c in shown}
        numbers = dn.order * channels
        return Description(
            order=dn.order,
            theta=theta,
            dt=dt,
            channels=channels,
            tolerance=tolerance,
            cycles_per_window=bandwidth * theta,
            bandwidth=bandwidth,
            nyquist=nyquist,
            error_at=errors,
            leakage=_leakage(system, theta / dt),
            state_numbers=numbers,
            state_bytes=4 * numbers,
            multiplications_per_step=numbers * (dn.order + 1),
        )


def reconstruction_error(dn: DelayNetwork, system: LinearSystem, frequency: float, dt: float) -> float:
    """Relative error (RMS over the window) with which a sine of this frequency is decoded from the state.

    The steady response of the discrete system to e^{iωt} is compared with the delayed input. Under zero-order hold the
    state already contains the newest sample, so decoding at θ' gives the input of θ' − dt/2 ago.
    """
    omega = 2 * math.pi * frequency
    z = complex(math.cos(omega * dt), math.sin(omega * dt))
    matrix = z * torch.eye(dn.order, dtype=torch.complex128) - system.A.cpu().to(torch.complex128)
    response = z * torch.linalg.solve(matrix, system.B.cpu().to(torch.complex128))
    delays = torch.linspace(0, dn.theta.item(), DELAYS, dtype=torch.float64)
    decoded = dn.decoder(delays).cpu().to(torch.complex128) @ response
    ideal = torch.exp(-1j * omega * (delays - dt / 2))
    return float((decoded - ideal).abs().square().mean().sqrt())


def _bandwidth(dn: DelayNetwork, system: LinearSystem, dt: float, tolerance: float, nyquist: float) -> float:
    """The highest frequency up to which every sine is held to the tolerance: scan upwards, then halve the interval."""
    theta = dn.theta.item()
    highest = min(nyquist, (dn.order + 2) / theta)  # order d holds fewer than d / π cycles
    low = 0.0
    for i in range(1, FREQUENCIES + 1):
        high = highest * i / FREQUENCIES
        if reconstruction_error(dn, system, high, dt) > tolerance:
            break
        low = high
    else:
        return low
    for _ in range(12):
        middle = (low + high) / 2
        if reconstruction_error(dn, system, middle, dt) > tolerance:
            high = middle
        else:
            low = middle
    return low


def _leakage(system: LinearSystem, window: float) -> float:
    """The share of the impulse response, by magnitude, that lies beyond the window."""
    steps = max(1, min(4096, math.ceil(window)))
    stride = max(1, round(window / steps))
    taps: Tensor = system.B.reshape(system.order, -1)
    advance = system.power(stride)
    sizes = []
    for _ in range(4 * steps):
        sizes.append(float(torch.linalg.vector_norm(taps)))
        taps = advance @ taps
    return sum(sizes[steps:]) / sum(sizes)
