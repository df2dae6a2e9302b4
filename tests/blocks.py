"""Every block in a small form, for its tests."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import plmu
from plmu import (
    CausalAttention,
    CausalConvolution,
    Gated,
    Highway,
    LMUBlock,
    MemoryBlock,
    ParallelLMU,
    Residual,
    SelectiveLMU,
    Sequential,
    WeightedStack,
)

WIDTH = 8
WINDOWS = [3.0, 9.0]


def _gated() -> Gated:
    gate = nn.Sequential(nn.Linear(WIDTH, 5), nn.Sigmoid())
    return Gated(ParallelLMU(WIDTH, 5, order=3, theta=4.0, memory_size=2), gate)


BLOCKS: dict[str, Callable[[], plmu.nn.Steppable]] = {
    "highway": lambda: Sequential(Highway(WIDTH, "tanh")),
    "the paper's": lambda: LMUBlock(WIDTH, 3, 4.0),
    "the paper's, bare": lambda: LMUBlock(WIDTH, 3, WINDOWS, highways=0, activation=None, norm=False),
    "memory": lambda: MemoryBlock(WIDTH, 3, WINDOWS, hidden=12),
    "memory, standardised": lambda: MemoryBlock(WIDTH, 3, WINDOWS, kernel_size=4, standardize=True),
    "memory, selective": lambda: MemoryBlock(WIDTH, 3, WINDOWS, heads=2, kernel_size=2),
    "convolution": lambda: CausalConvolution(WIDTH, 4),
    "selective": lambda: SelectiveLMU(WIDTH, 6, 3, WINDOWS, heads=2),
    "gated": _gated,
    "gated steps": lambda: Gated(nn.Linear(WIDTH, 5), nn.Linear(WIDTH, 5)),
    "weighted": lambda: WeightedStack(
        nn.Linear(WIDTH, WIDTH), LMUBlock(WIDTH, 2, 3.0, highways=1), MemoryBlock(WIDTH, 2, 5.0)
    ),
    "attention": lambda: CausalAttention(WIDTH, 2, 5, bias=True),
    "attention behind a block": lambda: Sequential(
        LMUBlock(WIDTH, 2, 3.0, highways=1), Residual(Sequential(nn.RMSNorm(WIDTH), CausalAttention(WIDTH, 1, 4)))
    ),
}


def build(name: str, dtype: torch.dtype = torch.float64) -> Any:
    """The block with no weight at zero, where a forgotten connection would not show."""
    torch.manual_seed(1)
    block = BLOCKS[name]()
    with torch.no_grad():
        for value in block.parameters():
            value.add_(0.3 * torch.randn_like(value))
    return block.to(dtype)


def language_model(*blocks: nn.Module, letters: int = 11) -> Sequential:
    """Blocks between an embedding and an output layer that share their weight."""
    embedding, head = nn.Embedding(letters, WIDTH), nn.Linear(WIDTH, letters, bias=False)
    nn.init.normal_(embedding.weight, std=WIDTH**-0.5)
    head.weight = embedding.weight
    return Sequential(embedding, *blocks, nn.RMSNorm(WIDTH), head)


def state_after(block: plmu.nn.Steppable, batch: int, time: int = 3, dtype: torch.dtype = torch.float64) -> Any:
    """A state that a sequence leaves behind."""
    with torch.no_grad():
        return block(torch.randn(batch, time, WIDTH, dtype=dtype))[1]


def in_steps(block: Any, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    outputs = []
    for x_t in x.unbind(1):
        out, state = block.step(x_t, state)
        outputs.append(out)
    return torch.stack(outputs, dim=1), state
