"""Timing for comparisons: all candidates take turns, round after round, so that a busy machine slows all alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

Call = Callable[[], object]
Keep = Callable[[dict[str, Any]], None]  # called with all tables after every row, so that a stopped run loses nothing


def forget(tables: dict[str, Any]) -> None:
    """A `Keep` that keeps nothing."""


def collected(rows: Iterator[tuple[str, dict[str, Any]]], device: str, keep: Keep) -> dict[str, Any]:
    """Tables by name, from pairs of a table's name and a row."""
    tables: dict[str, Any] = {}
    # Graphs must be captured on the stream where gradients were first taken.
    with nullcontext() if device == "cpu" else torch.cuda.stream(torch.cuda.Stream()):
        for table, row in rows:
            tables.setdefault(table, []).append(row)
            keep(tables)
    return tables


class Times(dict[str, list[float]]):
    """Seconds of one call of each candidate, in each round."""

    def medians(self) -> dict[str, float]:
        return {name: median(values) for name, values in self.items()}

    def ratio(self, name: str, other: str) -> float:
        """The time of `name` relative to `other`: the median of the ratios of all rounds."""
        return median([a / b for a, b in zip(self[name], self[other], strict=True)])


def medians(
    candidates: dict[str, Call], *, device: str = "cpu", rounds: int = 9, least: float = 0.02
) -> dict[str, float]:
    """Median seconds of one call of each candidate."""
    return timed(candidates, device=device, rounds=rounds, least=least).medians()


def timed(candidates: dict[str, Call], *, device: str = "cpu", rounds: int = 9, least: float = 0.02) -> Times:
    """Times of all candidates, which take turns in each round.

    Args:
        candidates: calls by name.
        device: "cpu" or a GPU, which is timed by its own clock.
        rounds: number of times that each candidate is timed.
        least: seconds of a measurement, at least; a short call is repeated.
    """
    repeats = {}
    for name, call in candidates.items():
        call()  # the first calls build, compile and cache
        call()
        repeats[name] = max(1, round(least / max(_once(call, 1, device), 1e-7)))
    times = Times({name: [] for name in candidates})
    order, shuffle = list(candidates), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)  # the clock of a GPU depends on what ran before
        for name in order:
            call = candidates[name]
            call()  # after another candidate, the first call pays for its memory
            times[name].append(_once(call, repeats[name], device))
    return times


def _once(call: Call, repeats: int, device: str) -> float:
    """Seconds of one of `repeats` calls; on a GPU by its own clock."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / repeats


def host_seconds(call: Call, *, rounds: int = 9, repeats: int = 20, most: float = 0.2) -> float:
    """Median seconds until a call on a GPU returns, while its kernels may still wait or run.

    A round has `repeats` calls, or fewer if they would take more than `most` seconds.
    """
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    repeats = max(1, min(repeats, int(most / max(time.perf_counter() - start, 1e-7))))
    seconds = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):  # far fewer launches than a GPU's queue takes
            call()
        seconds.append((time.perf_counter() - start) / repeats)
    torch.cuda.synchronize()
    return median(seconds)


def first_seconds(call: Call, device: str) -> float:
    """Seconds of a single call, with what a first call builds and compiles."""
    start = time.perf_counter()
    call()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def random_like(output: Tensor) -> Tensor:
    """An output gradient of random numbers, always the same. With equal numbers a GPU takes less power, and multiplies
    faster than in training."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.randn_like(output)


def training(call: Callable[[], Tensor], *leaves: Tensor) -> Call:
    """A call with the gradients of `leaves`, for the output gradient of `random_like`."""
    gradient = random_like(call())
    return lambda: torch.autograd.grad(call(), leaves, gradient)


def graphed(call: Call) -> Call:
    """A call as a CUDA graph, which has no launch overhead. All gradients must have been taken on the current stream,
    and that must not be the default stream."""
    stream = torch.cuda.current_stream()
    if stream == torch.cuda.default_stream():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    torch.cuda.synchronize()

    def replay(_: Call = call) -> None:  # keeps the tensors that the graph uses
        graph.replay()

    return replay


def launched(calls: Mapping[str, Call], device: str) -> dict[str, Call]:
    """On a GPU, calls as CUDA graphs, so that work is compared and not launches."""
    return dict(calls) if device == "cpu" else {name: graphed(call) for name, call in calls.items()}


def release(device: str) -> None:
    """Free the memory of graphs."""
    if device != "cpu":
        torch.cuda.empty_cache()


def peak_memory(call: Call) -> int:
    """Peak bytes of GPU memory that a call takes, its results included."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    results = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del results
    return peak


def copy_bandwidth(device: str) -> float:
    """Bytes read and written per second by a large copy."""
    source = torch.empty(1 << (29 if device != "cpu" else 26), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = medians({"copy": lambda: target.copy_(source)}, device=device, rounds=5)["copy"]
    return 2 * source.numel() / seconds


def relative_error(value: Tensor, reference: Tensor) -> float:
    exact = reference.detach().double()
    return float((value.detach().double() - exact).norm() / exact.norm())


def memories(model: nn.Module) -> list[Any]:
    """The linear memories of a model's layers."""
    return [module for module in model.modules() if hasattr(module, "systems")]
