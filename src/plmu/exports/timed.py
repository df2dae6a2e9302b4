"""`TimedDelay` of `plmu.folded` as an operation."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from plmu.exports import program as ops
from plmu.exports.builder import Builder, cast
from plmu.exports.program import Value
from plmu.folded import TimedDelay

_FADED = 1e-30  # of a memory, which C sets to zero
_MOST = 24  # bits of a float32 number


def lower_timed(b: Builder, part: TimedDelay, x: Value, state: Any) -> tuple[Value, Any]:
    """One step of `TimedDelay`."""
    b.kinds[state] = "memory"
    interval, u = b.split(x, 1, part.channels)
    moves, unit, near_identity = _moves(part.rate)
    m = b.add(ops.Elapse, state.size, interval, state, u, cast(moves), cast(part.rate), unit, near_identity)
    return m, m


def _moves(rate: Tensor) -> tuple[Tensor, float, int]:
    """The top of e^{[[A, B], [0, 0]] Δ} for Δ = unit · 2ᵏ with k from 0 up to where nothing is left of a memory, (bits,
    order, order + 1); the unit; and of how many of these the identity is subtracted.

    Over the unit a Taylor series of few terms is exact: |[A B]| · unit is at most ¼.
    """
    order = len(rate)
    matrix = torch.cat([rate, torch.zeros(1, order + 1, dtype=torch.float64)])
    unit = 2.0 ** math.floor(math.log2(0.25 / float(matrix.abs().sum(1).max())))
    moves, near_identity = [], 0
    identity = torch.eye(order, order + 1, dtype=torch.float64)
    for bit in range(_MOST):
        move = torch.linalg.matrix_exp(matrix * (unit * 2.0**bit))[:order]
        if bit == near_identity and (move - identity)[:, :order].norm() < move[:, :order].norm():
            move, near_identity = move - identity, bit + 1
        moves.append(move)
        if bit >= near_identity and float(move[:, :order].norm()) < _FADED:
            break
    return torch.stack(moves), unit, near_identity
