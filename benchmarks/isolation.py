"""What `plmu.isolate_nonfinite()` costs on a GPU: `project` within it over `project` without, as CUDA graphs.

python -m benchmarks.isolation --json results/bench-isolation-cuda.json
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
from plmu.bench.problems import GPU_SHAPES, Problem, Shape
from plmu.runs.provenance import provenance


def cost(shape: Shape, dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    """Milliseconds without, and how much longer it takes within; the answer is checked first."""
    problem = Problem(shape, dtype, "cuda")
    call = problem.project("auto")
    check(problem)
    row: dict[str, Any] = {"shape": str(shape), "precision": str(dtype)}
    for name, one in (("forward", call), ("both", training(call, problem.u, problem.weight))):
        candidates = {}
        for kind, context in (("without", nullcontext), ("within", plmu.isolate_nonfinite)):
            with context():
                candidates[kind] = graphed(one)
        times = timed(candidates, device="cuda", rounds=rounds)
        row[name] = {"ms": 1e3 * times.medians()["without"], "ratio": times.ratio("within", "without")}
    return row


def check(problem: Problem) -> None:
    """A bad value in the middle of the first sequence spoils what comes after it, and nothing else."""
    with torch.no_grad(), plmu.isolate_nonfinite():
        middle = problem.shape.time // 2
        original = problem.u[0, middle, 0].clone()
        problem.u[0, middle, 0] = 0.0
        clean = problem.project("auto")()
        problem.u[0, middle, 0] = torch.nan
        spoilt = problem.project("auto")()
        problem.u[0, middle, 0] = original
    assert spoilt[0, middle:].isnan().all()
    assert torch.equal(spoilt[0, :middle], clean[0, :middle])
    assert torch.equal(spoilt[1:], clean[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    rows = []
    with torch.cuda.stream(torch.cuda.Stream()), plmu.for_graphs():
        for dtype in (torch.bfloat16, torch.float32):
            for shape in GPU_SHAPES:
                rows.append(cost(shape, dtype, options.rounds))
                print(json.dumps(rows[-1]), flush=True)
    command = f"python -m benchmarks.isolation --json results/{options.json.name} --rounds {options.rounds}"
    report = {"benchmark": "isolation", "command": command, "machine": provenance(torch.device("cuda")), "rows": rows}
    options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
