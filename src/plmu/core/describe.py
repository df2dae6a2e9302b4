"""Help in choosing order and θ: what a Delay Network can hold at a sampling rate, and what that costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:  # for types alone: systems.py imports this module
    from plmu.core.systems import DelayNetwork, LinearSystem

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
    error_at: dict[float, float]  # relative reconstruction error by cycles per window
    leakage: float  # the share of the impulse response, by magnitude, that lies beyond the window
    state_numbers: int
    state_bytes: int  # float32
    multiplications_per_step: int

    def __str__(self) -> str:
        held = f"{self.cycles_per_window:.2f} cycles per window = {self.bandwidth:.4g} cycles per time unit"
        if self.bandwidth >= self.nyquist:
            held += ", all that this sampling rate can carry"
        errors = ", ".join(f"{_percent(error)} at {cycles:g}" for cycles, error in self.error_at.items())
        holds = f"holds to {_percent(self.tolerance)}"
        return "\n".join(
            [
                f"Delay Network of order {self.order} over {self.theta:g} time units"
                f" ({self.theta / self.dt:g} samples)",
                f"  {holds:<17}  {held}",
                f"  error              {errors} cycles per window",
                f"  beyond the window  {_percent(self.leakage)} of the impulse response is left after θ",
                f"  state              {self.state_numbers} numbers, {self.state_bytes} bytes in float32",
                f"  cost per step      {self.multiplications_per_step} multiplications",
            ]
        )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def describe(dn: DelayNetwork, *, dt: float, channels: int, tolerance: float) -> Description:
    """See `DelayNetwork.describe`."""
    if not isinstance(channels, int) or channels < 1:
        raise ValueError(f"channels must be an integer of at least 1, got {channels!r}")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must lie between 0 and 1, got {tolerance!r}")
    with torch.no_grad():
        system = dn.discretize(dt)
        theta = dn.theta.item()
        nyquist = 0.5 / dt
        bandwidth = _bandwidth(dn, system, dt, tolerance, nyquist)
        candidates = [c for c in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0) if c / theta <= nyquist]
        cycles = [c for c in candidates if c <= 2 * bandwidth * theta][-4:] or candidates[:1] or [nyquist * theta]
        errors = {c: reconstruction_error(dn, system, c / theta, dt) for c in cycles}
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

    The steady response of the discrete system to e^{iωt} is compared with the delayed input. Zero-order hold makes a
    staircase of the samples, whose steps end now: the middle of the k-th step back, at θ' = (k + ½) dt, is where the
    sample of k steps ago is decoded.
    """
    omega = 2 * math.pi * frequency
    z = complex(math.cos(omega * dt), math.sin(omega * dt))
    matrix = z * torch.eye(dn.order, dtype=torch.complex128) - system.A.cpu().to(torch.complex128)
    response = z * torch.linalg.solve(matrix, system.B.cpu().to(torch.complex128))
    theta = dn.theta.item()
    steps = torch.linspace(0, max(0.0, theta / dt - 0.5), DELAYS, dtype=torch.float64).floor().unique()
    delays = ((steps + 0.5) * dt).clamp(max=theta)
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
    """The share of Σ_k ‖Ā^k B̄‖ that lies beyond a window of `window` samples. Long windows are sampled at 2048 lags,
    and the tail is followed for 12 windows at most."""
    stride = max(1, math.ceil(window / 2048))
    taps: Tensor = system.B.reshape(system.order, -1)
    advance = system.power(stride)
    inside = outside = 0.0
    for lag in range(0, math.ceil(12 * window) + stride, stride):
        size = float(torch.linalg.vector_norm(taps))
        if lag < window:
            inside += size
        else:
            outside += size
            if size < 1e-6 * inside / max(1.0, window / stride):
                break
        taps = advance @ taps
    return outside / (inside + outside)
