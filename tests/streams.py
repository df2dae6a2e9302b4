"""Models that the tests of streams share."""

import pytest
import torch
from torch import Tensor, nn

from plmu import LMU, DelayLayer, ParallelLMU, Residual, Sequential, Stream

TIME = 20
SMALL = {"order": 4, "theta": 7.0}
MODELS = {
    "parallel": lambda: ParallelLMU(3, 4, **SMALL),
    "gated": lambda: ParallelLMU(3, 4, **SMALL, gated=True),
    "several theta": lambda: ParallelLMU(3, 4, order=4, theta=[3.0, 9.0], memory_size=2),
    "trained theta": lambda: ParallelLMU(3, 4, **SMALL, trainable="theta"),
    "last output": lambda: ParallelLMU(3, 4, **SMALL, return_sequences=False),
    "delay": lambda: DelayLayer(3, **SMALL),
    "original": lambda: LMU(3, 4, **SMALL),
    "stack": lambda: Sequential(
        nn.Linear(3, 3), Residual(ParallelLMU(3, 3, **SMALL)), nn.GELU(), LMU(3, 2, **SMALL), nn.Linear(2, 1)
    ),
}
every_model = pytest.mark.parametrize("name", MODELS)


def pushed(stream: Stream, samples: list | Tensor) -> Tensor:
    return torch.stack([stream.push(sample) for sample in samples])


def stack() -> Sequential:
    torch.manual_seed(3)
    return MODELS["stack"]()
