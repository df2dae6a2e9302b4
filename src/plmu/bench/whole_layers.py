"""Whole layers with parameter counts within 5 % of each other: forward and backward, with gradients of all weights.

There are up to two comparisons at each shape. In one, every layer has the 4·channels² weights of attention with its
usual q, k, v and o; above order 4, our memory then has fewer channels, after an encoder. In the other, our memory has
all channels, and the other layers are widened to as many weights: more heads, a larger `expand`, more units.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plmu.bench.measure import (
    Call,
    Times,
    first_seconds,
    graphed,
    host_seconds,
    medians,
    peak_memory,
    timed,
    training,
)
from plmu.bench.peers import LAYERS, OURS, Layer, errors
from plmu.bench.problems import TOLERANCE, Shape

CLOSE = 0.05  # parameter counts further apart than this are not compared
Row = dict[str, Any]
Timed = tuple[Row, Call, Call]  # a layer's row, forward alone, and forward with backward


def budgets(shape: Shape) -> list[int]:
    """The numbers of parameters at which layers are compared."""
    return sorted({(3 * shape.channels + shape.out) * shape.channels, shape.order * shape.channels * shape.out})


def compared(shape: Shape, budget: int, dtype: torch.dtype, device: str, rounds: int) -> list[Row]:
    """A row for each layer. The row of a layer that is not installed, fails or is wrong says so; the others are
    timed."""
    torch.manual_seed(0)
    x = torch.randn(shape.batch, shape.time, shape.channels).to(device, dtype).requires_grad_()
    rows: dict[str, Row] = {}
    forward: dict[str, Call] = {}
    both: dict[str, Call] = {}
    for name, kinds in LAYERS.items():
        rows[name] = {
            "shape": str(shape),
            "order": shape.order,
            "time": shape.time,
            "dtype": str(dtype).removeprefix("torch."),
            "budget": budget,
            "layer": name,
        }
        ready: dict[str, Timed] = {}
        skipped: list[str] = []
        for kind in kinds:
            try:
                layer = kind(shape, budget).to(device, dtype)
                ready[layer.source] = _ready(layer, x, device, rounds)
            except Exception as error:  # whatever another library's kernel raises
                skipped.append(f"{kind.__name__}: {type(error).__name__}: {error}")
        if ready:
            timed_row, forward[name], both[name] = _fastest(ready, device)
            rows[name] |= timed_row
        if skipped:
            rows[name]["skipped"] = "; ".join(skipped)
    forward_times = timed(forward, device=device, rounds=rounds)
    both_times = timed(both, device=device, rounds=rounds)
    for name in both:
        rows[name] |= _times(rows[name], rows[OURS], forward_times, both_times)
    return list(rows.values())


def _fastest(ready: dict[str, Timed], device: str) -> Timed:
    """The fastest of several implementations of a layer; its row has the times of all."""
    if len(ready) == 1:
        return next(iter(ready.values()))
    seconds = medians({source: both for source, (_, _, both) in ready.items()}, device=device, rounds=3)
    row, forward, both = ready[min(seconds, key=lambda source: seconds[source])]
    return {**row, "milliseconds by source": {source: 1e3 * seconds[source] for source in seconds}}, forward, both


def _described(layer: Layer, x: Tensor) -> Row:
    """The layer's size and implementation, and the errors of its output."""
    return {
        "width": layer.width,
        "parameters": layer.parameter_count(),
        "source": layer.source,
        "error": checked(layer, x),
    }


def checked(layer: Layer, x: Tensor) -> dict[str, float]:
    """The errors of a layer's output and gradients; RuntimeError if one is too large."""
    relative = errors(layer, x)
    wrong = [f"{what} {error:.1e}" for what, error in relative.items() if not error <= TOLERANCE[x.dtype]]
    if wrong:
        raise RuntimeError(f"wrong answer, relative error of {', '.join(wrong)}")
    return relative


def _ready(layer: Layer, x: Tensor, device: str, rounds: int) -> Timed:
    """A layer's row; forward alone, and with the gradients of x and of all weights; on a GPU as CUDA graphs."""
    leaves = (x, *layer.parameters())

    def forward() -> Tensor:
        with torch.no_grad():
            out: Tensor = layer(x)
            return out

    def step() -> object:
        return torch.autograd.grad(layer(x).sum(), leaves)

    row: Row = {"seconds of the first call": first_seconds(step, device), **_described(layer, x)}
    both = training(lambda: layer(x), *leaves)
    if device == "cpu":
        return row, forward, both
    row |= eager(forward, both, device, rounds)
    return row, graphed(forward), graphed(both)


def eager(forward: Call, both: Call, device: str, rounds: int) -> Row:
    """Milliseconds of eager calls, in all and on the host, and peak memory."""
    times = medians({"forward": forward, "both": both}, device=device, rounds=rounds)
    return {
        "milliseconds eager": {way: 1e3 * times[way] for way in times},
        "milliseconds of the host": {
            way: 1e3 * host_seconds(call, rounds=rounds) for way, call in (("forward", forward), ("both", both))
        },
        "peak memory, bytes": peak_memory(both),
    }


def _times(row: Row, ours: Row, forward: Times, both: Times) -> Row:
    name = row["layer"]
    result: Row = {
        "milliseconds forward": 1e3 * forward.medians()[name],
        "milliseconds forward and backward": 1e3 * both.medians()[name],
    }
    if OURS in both:
        result["times ours"] = both.ratio(name, OURS)
        result["matched"] = abs(row["parameters"] / ours["parameters"] - 1) <= CLOSE
    return result
