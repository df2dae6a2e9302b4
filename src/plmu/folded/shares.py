"""Running shares of time above thresholds, for single steps; and the formulas that `plmu.nn` shares."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plmu.folded.base import Folded


@dataclass(frozen=True, eq=False)
class RunningShares(Folded):
    """The share of the steps so far at which each feature was above each of its thresholds, and where those steps were:
    `plmu.nn.ThresholdShares`. The state is its counts (batch, outputs + 1)."""

    thresholds: Tensor  # (count, features)
    positions: int  # the highest degree of the Legendre polynomials that say where

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        counts = self.initial_state(x.shape[0], x.dtype, x.device) if state is None else state
        step = counts[:, -1:]  # the last count is the number of steps so far
        above = counted_above(x, self.thresholds, step, self.positions)
        counts = counts + above
        return shares_of(counts, self.positions).to(x.dtype), counts

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        outputs = self.thresholds.numel() * (1 + self.positions)
        return torch.zeros(batch, outputs + 1, dtype=count_dtype(device), device=device)


def count_dtype(device: torch.device) -> torch.dtype:
    """The precision of counts. Sums of (t + ½)⁸ overflow float32 after 24,000 steps, and polynomials of a high degree
    need more digits than it has."""
    return torch.float32 if device.type == "mps" else torch.float64


def counted_above(x: Tensor, thresholds: Tensor, number: Tensor, positions: int) -> Tensor:
    """What steps add to the counts: (t + ½)ᵏ for each degree k where x is above a threshold, NaN where x is NaN, and
    a 1 for the step.

    Args:
        x: (..., features).
        thresholds: (count, features).
        number: t of each step, (..., 1), in the precision of the counts.
        positions: the highest degree.
    """
    x = x.detach().unsqueeze(-2)
    above = torch.where(x.isnan(), torch.nan, (x > thresholds).to(number.dtype)).flatten(-2)
    return torch.cat([*(above * power for power in powers(number, positions)), torch.ones_like(above[..., :1])], dim=-1)


def powers(number: Tensor, degree: int) -> Iterable[Tensor]:
    """(t + ½)ᵏ of steps t, from degree 0."""
    power = torch.ones_like(number)
    yield power
    for _ in range(degree):
        power = power * (number + 0.5)
        yield power


def shares_of(counts: Tensor, positions: int) -> Tensor:
    """Shares and positions (..., outputs) of counts (..., outputs + 1), of which the last is the number of steps."""
    steps = counts[..., -1:].clamp(min=1)
    parts = counts[..., :-1].chunk(1 + positions, dim=-1)
    means = [part / steps ** (k + 1) for k, part in enumerate(parts)]  # of ((t + ½) / T)ᵏ
    zero = torch.zeros_like(means[0])
    rows = legendre(positions)  # of each degree, the factors of these means; degree 0 is the shares
    out = [sum((factor * mean for factor, mean in zip(row, means, strict=True) if factor), zero) for row in rows]
    return torch.cat(out, dim=-1)


def legendre(degree: int) -> list[list[float]]:
    """Legendre polynomials of 2 s − 1 up to a degree, a row each: the coefficients of the powers of s, from 0."""
    degrees = range(degree + 1)
    return [[(-1.0) ** (k + j) * math.comb(k, j) * math.comb(k + j, j) for j in degrees] for k in degrees]


def monomials(degree: int) -> list[list[float]]:
    """Powers of s, from 0, as sums of Legendre polynomials of 2 s − 1: the inverse of `legendre`."""
    degrees = range(degree + 1)
    return [
        [(2 * j + 1) * math.comb(k, j) / (math.comb(k + j, j) * (k + j + 1)) for j in degrees] for k in degrees
    ]  # fmt: skip
