"""All states by our own kernels against the other algorithms, on a GPU: where `auto` should take them.

python -m benchmarks.fused_states --json results/bench-fused-states-cuda.json

Every candidate's m and gradient of u are compared with float64 first. Times are of forward + backward, eager and as
CUDA graphs.
"""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import plmu
from plmu.bench.measure import graphed, timed, training
from plmu.runs.provenance import provenance

SHAPES = [  # batch, time, channels, order, theta
    (64, 512, 64, 4, 6.0),
    (64, 512, 512, 4, 6.0),
    (8, 4096, 256, 4, 8.0),
    (1, 65536, 64, 8, 64.0),
    (64, 180, 64, 16, 15.0),
    (64, 180, 512, 16, 15.0),
    (16, 2048, 64, 32, 128.0),
    (4, 2048, 128, 64, 256.0),
    (32, 5000, 1, 40, 50.0),
    (100, 784, 1, 32, 784.0),
    (128, 64, 256, 8, 16.0),
    (32, 20, 64, 8, 20.0),
    (8, 1000, 8, 12, 100.0),
]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # relative, against float64


def row(shape: tuple[int, int, int, int, float], dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    """Milliseconds of every algorithm, and what `auto` takes."""
    batch, time, channels, order, theta = shape
    system = plmu.DelayNetwork(order, theta).discretize()
    u = torch.randn(batch, time, channels, device="cuda").to(dtype).requires_grad_()
    names = ["fused", "chunked", "fft", *(["toeplitz"] if time**2 * order <= 1 << 24 else [])]

    def call(name: str) -> Any:
        return lambda: plmu.states(u, system, algorithm=name)[0]

    for name in names:
        check(name, u.detach()[:2], system)
    result: dict[str, Any] = {"shape": f"b{batch} n{time} c{channels} d{order} θ{theta:g}", "precision": str(dtype)}
    sizes: dict[str, Any] = {"batch": batch, "time": time, "channels": channels, "dtype": dtype, "device": "cuda"}
    for way, context in (("eager", nullcontext), ("graph", plmu.for_graphs)):
        with context():
            result[f"{way}, auto takes"] = plmu.plan("states", system=system, **sizes).algorithm
            calls = {name: training(call(name), u) for name in names}
            calls = {name: graphed(call_of) for name, call_of in calls.items()} if way == "graph" else calls
            times = timed(calls, device="cuda", rounds=rounds)
            result[f"{way}, ms"] = {name: 1e3 * seconds for name, seconds in times.medians().items()}
    return result


def check(name: str, u: torch.Tensor, system: plmu.LinearSystem) -> None:
    """m and the gradient of u are those of float64 chunks."""
    results = []
    gradient = torch.randn(*u.shape[:2], system.order, u.shape[2], device=u.device).to(u.dtype)
    for leaf, algorithm in ((u.clone(), name), (u.double(), "chunked")):
        leaf.requires_grad_()
        m, _ = plmu.states(leaf, system, algorithm=algorithm)
        results.append((m.detach(), *torch.autograd.grad(m, leaf, gradient.to(m.dtype))))
    for value, exact in zip(*results, strict=True):
        error = float((value.double() - exact).norm() / exact.norm())
        assert error <= TOLERANCE[u.dtype], f"{name} is wrong by {error:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    rows = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for dtype in TOLERANCE:
            for shape in SHAPES:
                rows.append(row(shape, dtype, options.rounds))
                torch.cuda.empty_cache()
    command = f"python -m benchmarks.fused_states --json {options.json} --rounds {options.rounds}"
    report = {
        "benchmark": "fused-states",
        "command": command,
        "machine": provenance(torch.device("cuda")),
        "rows": rows,
    }
    options.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
