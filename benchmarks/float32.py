"""Float32 on a GPU: `project` beside the plain float32 GEMM of an m in memory, its error, memory, and with resets.

python -m benchmarks.float32 --json results/bench-float32-cuda.json

`error over plain` is the error of the output, the gradient of u and that of the weight against float64, over the error
of `chunked`, whose products are in plain float32. TF32 is off.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import plmu
from plmu.bench.measure import graphed, peak_memory, random_like, timed, training
from plmu.bench.problems import GPU_SHAPES, Problem, Shape
from plmu.runs.provenance import provenance

EVERY = 128  # steps between resets
RIGHT = 2.0  # times the error of plain float32 that are allowed
Row = dict[str, Any]


def results(problem: Problem, algorithm: str, dtype: torch.dtype) -> list[Tensor]:
    """o, and the gradients of u and of the weight."""
    leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in (problem.u, problem.weight)]
    o = plmu.project(leaves[0], problem.system, leaves[1], algorithm=algorithm, resets=problem.resets)[0]
    return [o.detach(), *torch.autograd.grad(o, leaves, random_like(o.float()).to(dtype))]


def errors(problem: Problem) -> list[float]:
    """The errors of `auto` relative to those of `chunked`. RuntimeError if one is too large or answers do not
    repeat."""
    ours, again = results(problem, "auto", torch.float32), results(problem, "auto", torch.float32)
    if not all(map(torch.equal, ours, again)):
        raise RuntimeError(f"{problem.shape}: answers do not repeat bit for bit")
    exact = results(problem, "chunked", torch.float64)
    plain = results(problem, "chunked", torch.float32)
    ratios = [
        float((value.double() - right).norm() / (plain_value.double() - right).norm())
        for value, plain_value, right in zip(ours, plain, exact, strict=True)
    ]
    if not max(ratios) <= RIGHT:
        raise RuntimeError(f"{problem.shape}: the error is {max(ratios):.2f} times that of plain float32")
    return ratios


def measured(shape: Shape, rounds: int) -> Row:
    with plmu.for_graphs():
        problem, reset = Problem(shape, torch.float32, "cuda"), Problem(shape, torch.float32, "cuda", EVERY)
        gemm, operand = problem.gemm()
        row: Row = {"shape": str(shape), "plan": problem.plan().algorithm, "error over plain": errors(problem)}
        row["error over plain, with resets"] = errors(reset)
        both = training(problem.project("auto"), problem.u, problem.weight)
        with torch.no_grad():
            forward = {"forward": graphed(problem.project("auto")), "GEMM forward": graphed(gemm)}
        calls = {
            **forward,
            "both": graphed(both),
            "GEMM both": graphed(training(gemm, operand, problem.weight)),
            "with resets": graphed(training(reset.project("auto"), reset.u, reset.weight)),
        }
    times = timed(calls, device="cuda", rounds=rounds)
    row["ms"] = {name: 1e3 * seconds for name, seconds in times.medians().items()}
    row["over the GEMM"] = {way: times.ratio(way, f"GEMM {way}") for way in ("forward", "both")}
    row["with resets over without"] = times.ratio("with resets", "both")
    moved = problem.u.nbytes + 4 * shape.batch * shape.time * shape.out  # u and o
    row["working memory over u + o"] = (peak_memory(both) - moved - problem.weight.nbytes) / moved
    torch.cuda.empty_cache()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a GPU")
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for shape in GPU_SHAPES:
            rows.append(measured(shape, options.rounds))
            print(rows[-1], flush=True)
    report = {"command": "python -m benchmarks.float32", "machine": provenance(torch.device("cuda")), "rows": rows}
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
