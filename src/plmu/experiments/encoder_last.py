"""The encoder after the memory: for one input and nothing nonlinear between them they may change places,

    M(w x + b) = w M(x) + b M(1),

and x, which is data, then needs no gradient through the memory. M(1), the states of an input of ones, is constant.
Where b nearly cancels a large w x the sum loses digits that the layer's own order keeps; the inputs of the experiments
are of size 1, and b starts at zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

import plmu
from plmu.ops.matrices import unit_state, unit_states


def final_state(lmu: plmu.ParallelLMU, x: Tensor) -> Tensor:
    """The state of `lmu` after x (batch, time, 1): (batch, order, 1)."""
    return _encoded(lmu, lmu.memory.final_state(x, None, None, None), x.shape[1])


def projected(lmu: plmu.ParallelLMU, x: Tensor, memory_weight: Tensor) -> tuple[Tensor, Tensor]:
    """W_m m + W_x x + b_o of `lmu` (batch, time, out), with this W_m, and the final state."""
    assert lmu.encoder is not None
    m, last = lmu.memory.states(x, None, None, None)
    total = lmu._joint_product(m.flatten(2), x, memory_weight @ lmu.encoder.weight)
    ones = lmu.memory.systems()[0].derive(unit_states, x.shape[1], dtype=x.dtype, device=x.device)  # (time, order)
    return total + ones @ (memory_weight @ lmu.encoder.bias).mT, _encoded(lmu, last, x.shape[1])


def _encoded(lmu: plmu.ParallelLMU, m: Tensor, time: int) -> Tensor:
    """The final state of w x + b, from that of x."""
    assert lmu.encoder is not None
    ones = lmu.memory.systems()[0].derive(unit_state, time, dtype=m.dtype, device=m.device)
    return torch.addcmul(ones[:, None] * lmu.encoder.bias, m, lmu.encoder.weight)
