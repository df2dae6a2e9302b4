"""`plmu bench algorithms`: the speed of W_m m by each algorithm.

- *over the GEMM*: relative to its limit, the GEMM `m @ W` of an m in memory, and to the paper's FFT.
- *auto against every algorithm*: whether the plan chooses the fastest; eager, as CUDA graphs, and with resets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import plmu
from plmu.bench.measure import Keep, Times, collected, forget, launched, peak_memory, release, timed, training
from plmu.bench.problems import CPU_CHOICES, CPU_SHAPES, GPU_CHOICES, GPU_SHAPES, Problem, Shape

GEMM = "over the GEMM"
CHOICES, GRAPHS, RESETS = (
    "auto against every algorithm",
    "auto against every algorithm, as graphs",
    "with resets, as graphs",
)
RESET_INTERVAL = 100  # mean number of steps between resets


def run(device: str, rounds: int, keep: Keep = forget) -> dict[str, Any]:
    """All tables. `keep` is called with the tables so far after every row."""
    return collected(measured(device, rounds), device, keep)


def measured(device: str, rounds: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Pairs of a table's name and a row."""
    gpu = device != "cpu"
    shapes = GPU_SHAPES if gpu else CPU_SHAPES
    choices = GPU_CHOICES if gpu else tuple(shape for kind, shape in CPU_CHOICES if kind == "project")
    precisions = (torch.bfloat16, torch.float32) if gpu else (torch.float32,)
    for dtype in precisions:
        for shape in shapes:
            with plmu.for_graphs():
                row = over_the_gemm(shape, dtype, device, rounds)
            yield GEMM, row
            release(device)
    for shape in choices:
        yield CHOICES, choice(shape, precisions[0], device, rounds)
    if gpu:
        for table, table_shapes, interval in ((GRAPHS, choices, None), (RESETS, shapes, RESET_INTERVAL)):
            for shape in table_shapes:
                with plmu.for_graphs():
                    row = choice(shape, precisions[0], device, rounds, graphs=True, reset_interval=interval)
                yield table, row
                release(device)


def over_the_gemm(shape: Shape, dtype: torch.dtype, device: str, rounds: int) -> dict[str, Any]:
    """Time of W_m m relative to the GEMM and to the FFT; memory; error."""
    problem = Problem(shape, dtype, device)
    names = ["auto", "chunked", *_fused_if_it_suits(problem)]
    gemm, operand = problem.gemm()
    forward: dict[str, Callable[[], Tensor]] = {name: problem.project(name) for name in names}
    forward["FFT"] = problem.fft()
    errors = problem.errors(forward)
    leaves = (problem.u, problem.weight)
    both = {name: training(call, *leaves) for name, call in forward.items()}
    with torch.no_grad():
        forward_times = timed(launched({**forward, "GEMM": gemm}, device), device=device, rounds=rounds)
    both_calls = {**both, "GEMM": training(gemm, operand, problem.weight)}
    both_times = timed(launched(both_calls, device), device=device, rounds=rounds)
    row: dict[str, Any] = {
        "shape": str(shape),
        "dtype": _named(dtype),
        "milliseconds forward": _milli(forward_times),
        "milliseconds forward and backward": _milli(both_times),
        "over the GEMM, forward": {name: forward_times.ratio(name, "GEMM") for name in names},
        "over the GEMM, both": {name: both_times.ratio(name, "GEMM") for name in names},
        "times faster than the FFT, both": both_times.ratio("FFT", "auto"),
        "error": errors,
    }
    if device != "cpu":
        inputs = problem.u.numel() + shape.batch * shape.time * shape.out
        # u, W and the gradient of o exist before the call. o and the gradients of u and W are its results; all else is
        # working memory.
        results = inputs + problem.weight.numel()
        size = problem.u.element_size()
        row["working memory over u + o"] = {
            name: (peak_memory(both[name]) - results * size) / (inputs * size) for name in names
        }
    return row


def choice(
    shape: Shape,
    dtype: torch.dtype,
    device: str,
    rounds: int,
    *,
    graphs: bool = False,
    reset_interval: int | None = None,
) -> dict[str, Any]:
    """`auto` relative to the fastest algorithm by name, with gradients; with `reset_interval`, with
    resets."""
    problem = Problem(shape, dtype, device, reset_interval)
    names = ["chunked"] if reset_interval else ["fft", "chunked"]
    if shape.time**2 * shape.order <= 1 << 25 and not reset_interval:
        names.append("toeplitz")
    if shape.time <= 64:
        names.append("recurrent")
    names += _fused_if_it_suits(problem)
    forward = {name: problem.project(name) for name in (*names, "auto")}
    problem.errors(forward)
    calls = {name: training(call, problem.u, problem.weight) for name, call in forward.items()}
    times = timed(launched(calls, device) if graphs else calls, device=device, rounds=rounds)
    seconds = times.medians()
    best = min(names, key=lambda name: seconds[name])
    return {
        "shape": str(shape),
        "dtype": _named(dtype),
        "chosen": problem.plan().algorithm,
        "best": best,
        "auto over best": times.ratio("auto", best),
        "milliseconds": _milli(times),
    }


def _fused_if_it_suits(problem: Problem) -> list[str]:
    """`fused` where `auto` considers it."""
    return ["fused"] if "fused" in problem.plan().costs else []


def _milli(times: Times) -> dict[str, float]:
    return {name: 1e3 * seconds for name, seconds in times.medians().items()}


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
