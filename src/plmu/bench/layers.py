"""`plmu bench layers`: the speed of whole layers.

- *whole layers*: ours, causal attention and an LSTM with as many parameters; as CUDA graphs and eager, with host time,
  peak memory and the time of the first call.
- *length*: tokens per second of W_m m, from short sequences to long ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import plmu
from plmu.bench import whole_layers
from plmu.bench.measure import Keep, collected, forget, launched, medians, release, training
from plmu.bench.problems import CPU_SHAPES, GPU_SHAPES, Problem, Shape

WHOLE, LENGTH = "whole layers", "length"


def run(device: str, rounds: int, keep: Keep = forget) -> dict[str, Any]:
    """All tables. `keep` is called with the tables so far after every row."""
    return collected(measured(device, rounds), device, keep)


def measured(device: str, rounds: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Pairs of a table's name and a row."""
    gpu = device != "cpu"
    dtype = torch.bfloat16 if gpu else torch.float32
    for shape in GPU_SHAPES if gpu else CPU_SHAPES:
        for budget in whole_layers.budgets(shape):
            with plmu.for_graphs():
                rows = whole_layers.compared(shape, budget, dtype, device, rounds)
            yield from ((WHOLE, row) for row in rows)
            release(device)
    tokens, longest = (1 << 20, 20) if gpu else (1 << 13, 13)
    for time in (1 << k for k in range(10, longest + 1)):
        with plmu.for_graphs():
            row = tokens_per_second(time, tokens, dtype, device, rounds)
        yield LENGTH, row


def tokens_per_second(time: int, tokens: int, dtype: torch.dtype, device: str, rounds: int) -> dict[str, Any]:
    """With gradients, in sequences of `time` steps; on a GPU as a graph."""
    width = 32 if device == "cpu" else 256
    problem = Problem(Shape(tokens // time, time, width, width, 4, 64.0), dtype, device)
    call = {"auto": training(problem.project("auto"), problem.u, problem.weight)}
    seconds = medians(launched(call, device), device=device, rounds=rounds)["auto"]
    return {"time": time, "batch": tokens // time, "tokens per second": tokens / seconds}
