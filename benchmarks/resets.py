"""Resets inside sequences on a GPU: `project` with and without them, in bfloat16.

python -m benchmarks.resets --json results/bench-resets-cuda.json

Answers are compared with float64 before anything is timed: outputs, final states and all gradients, which must also
repeat bit for bit. A process for each shape does this, all at the same time, and compiles the kernels. A shape
that fails or is wrong has no row, and is named under "failed".
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import plmu
from benchmarks.profiling import kernel_times
from plmu.bench.measure import graphed, host_seconds, peak_memory, timed, training
from plmu.bench.problems import GPU_SHAPES, TOLERANCE, Problem, Shape
from plmu.runs.provenance import provenance

FINAL = 5e-6  # relative error of final states, which are float32
PATIENCE = 100  # seconds for all checks
EVERY = {"every 128 steps": 128, "every 1000 steps": 1000}
# Checked but not timed: windows in one launch, and a first state; batch, time, channels, out, order, windows.
CHECKED = (
    (Shape(8, 500, 208, 208, 4, 16.0), (4.0, 16.0, 64.0, 256.0), False),
    (Shape(8, 500, 512, 256, 4, 6.0), (3.0, 4.0, 5.0, 6.0), False),
    (Shape(8, 500, 256, 256, 4, 300.0), (300.0,), True),
    (Shape(3, 333, 72, 40, 5, 12.0), (12.0,), False),
)
Call = Callable[[], Any]
Row = dict[str, Any]


def resets_of(shape: Shape) -> dict[str, Tensor]:
    """Where states are reset: at random; nowhere; often; and where chunks and pairs of chunks begin and end."""
    generator = torch.Generator().manual_seed(1)
    size = (shape.batch, shape.time)
    resets = {name: torch.rand(*size, generator=generator) < 1 / interval for name, interval in EVERY.items()}
    resets["none, but given"] = torch.zeros(size, dtype=torch.bool)
    resets["every 5 steps"] = torch.rand(*size, generator=generator) < 1 / 5
    edges = torch.zeros(size, dtype=torch.bool)
    for sequence in range(shape.batch):
        for step in ((0, 63, 128), (64, 65, 127), (1, 62), (48, 112), (shape.time - 1,))[sequence % 5]:
            edges[sequence, step : step + 1] = True
    resets["where chunks meet"] = edges
    return {name: steps.cuda() for name, steps in resets.items()}


def check(shape: Shape, thetas: tuple[float, ...], started: bool, resets: dict[str, Tensor]) -> dict[str, Row]:
    """The relative errors of all results and gradients against float64 chunks, for each kind of resets."""
    torch.manual_seed(2)
    u = torch.randn(shape.batch, shape.time, shape.channels, device="cuda").bfloat16()
    gradients = [torch.randn(shape.batch, shape.time, shape.out, device="cuda").bfloat16()]
    gradients.append(torch.randn(shape.batch, shape.order, shape.channels, device="cuda"))
    first = [torch.randn(shape.batch, shape.order, shape.channels, device="cuda")] if started else []
    options: dict[str, Any] = {"encoder": False, "input_to_output": False, "output_activation": None, "bias": False}
    sizes = (shape.channels, shape.out, shape.order, list(thetas))
    layer = plmu.ParallelLMU(*sizes, **options, algorithm="fused").cuda().bfloat16()
    double = plmu.ParallelLMU(*sizes, **options, algorithm="chunked").cuda().double()
    double.load_state_dict(layer.state_dict())

    def results(module: plmu.ParallelLMU, where: Tensor) -> list[Tensor]:
        like = next(module.parameters())
        leaves = [u.to(like).requires_grad_()]
        leaves += [state.to(torch.promote_types(like.dtype, torch.float32)).requires_grad_() for state in first]
        answer = module(*leaves, resets=where)
        grad_outputs = [gradient.to(value) for gradient, value in zip(gradients, answer, strict=True)]
        gradients_of_leaves = torch.autograd.grad(answer, (*leaves, *module.parameters()), grad_outputs)
        return [value.detach() for value in (*answer, *gradients_of_leaves)]

    names = ["output", "final state", "gradient of u", *(["gradient of the state"] if started else [])]
    names.append("gradient of W")
    errors: dict[str, Row] = {}
    wrong: list[str] = []
    for kind, where in resets.items():
        ours, again, third = (results(layer, where) for _ in range(3))  # the second call takes another way
        if not all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(ours, again, third, strict=True)):
            wrong.append(f"resets {kind} do not repeat bit for bit")
        errors[kind] = {}
        for name, value, right in zip(names, ours, results(double, where), strict=True):
            errors[kind][name] = float((value.double() - right).norm() / right.norm())
            bound = FINAL if name == "final state" else TOLERANCE[torch.bfloat16]
            if not errors[kind][name] <= bound:
                wrong.append(f"resets {kind}: {name} is wrong by {errors[kind][name]:.1e}")
    if wrong:
        raise RuntimeError("; ".join(wrong))
    return errors


def problems(shape: Shape, resets: dict[str, Tensor]) -> dict[str, Problem]:
    """The same problem without resets and with each kind of them."""
    by_kind = {}
    for kind in ("without", *EVERY, "none, but given"):
        by_kind[kind] = Problem(shape, torch.bfloat16, "cuda")
        by_kind[kind].resets = resets.get(kind)
    return by_kind


def forward_of(problem: Problem) -> Call:
    call = problem.project("auto")

    def forward() -> Tensor:
        with torch.no_grad():
            return call()

    return forward


def measured(shape: Shape, errors: dict[str, Row], rounds: int) -> Row:
    by_kind = problems(shape, resets_of(shape))
    row: Row = {"shape": str(shape), "error": errors}
    with plmu.for_graphs():
        chosen = by_kind["every 128 steps"].plan()
        row["plan"] = [chosen.algorithm, chosen.kernel]
        calls = {}
        for kind, problem in by_kind.items():
            calls[f"{kind}, forward"] = graphed(forward_of(problem))
            calls[f"{kind}, both"] = graphed(training(problem.project("auto"), problem.u, problem.weight))
    times = timed(calls, device="cuda", rounds=rounds)
    row["graph, ms"] = {name: 1e3 * seconds for name, seconds in times.medians().items()}
    row["over without"] = {
        kind: {way: times.ratio(f"{kind}, {way}", f"without, {way}") for way in ("forward", "both")}
        for kind in by_kind
        if kind != "without"
    }
    eager = {
        f"{kind}, {way}": call
        for kind in ("without", "every 128 steps")
        for way, call in (
            ("forward", forward_of(by_kind[kind])),
            ("both", training(by_kind[kind].project("auto"), by_kind[kind].u, by_kind[kind].weight)),
        )
    }
    row["eager, ms"] = {
        name: 1e3 * seconds for name, seconds in timed(eager, device="cuda", rounds=rounds).medians().items()
    }
    row["host, ms"] = {name: 1e3 * host_seconds(call, rounds=rounds) for name, call in eager.items()}
    row["peak memory, MB"] = {name: peak_memory(call) / 1e6 for name, call in eager.items() if "both" in name}
    torch.cuda.empty_cache()
    return row


def profiled(shape: Shape) -> Row:
    """Microseconds of each kernel in a training step, without resets and with them."""
    row: Row = {}
    by_kind = problems(shape, resets_of(shape))
    for kind in ("without", "every 128 steps"):
        row[kind] = kernel_times(training(by_kind[kind].project("auto"), by_kind[kind].u, by_kind[kind].weight))
    return row


def all_checked() -> list[tuple[Shape, tuple[float, ...], bool]]:
    return [*((shape, (shape.theta,), False) for shape in GPU_SHAPES), *CHECKED]


def warm(number: int) -> None:
    """Check one shape, print its errors, and compile its other kernels."""
    shape, thetas, started = all_checked()[number]
    with torch.cuda.stream(torch.cuda.Stream()), plmu.for_graphs():
        resets = resets_of(shape)
        if number < len(GPU_SHAPES):
            for problem in problems(shape, resets).values():
                training(problem.project("auto"), problem.u, problem.weight)()
        errors = check(shape, thetas, started, resets)
        torch.cuda.synchronize()
        print(json.dumps(errors))


def checks() -> tuple[list[dict[str, Row] | None], list[str]]:
    """The errors of all shapes, None where a check failed; and the messages of those that failed."""
    command = [sys.executable, "-m", "benchmarks.resets", "--warm"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    shapes, until = all_checked(), time.monotonic() + PATIENCE
    processes = [subprocess.Popen([*command, str(number)], **pipes) for number in range(len(shapes))]
    errors: list[dict[str, Row] | None] = []
    failed = []
    for (shape, thetas, _), process in zip(shapes, processes, strict=True):
        try:
            said, why = process.communicate(timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            said, why = process.communicate()
            why += f"\nnot done after {PATIENCE} s"
        errors.append(json.loads(said.splitlines()[-1]) if process.returncode == 0 else None)
        if errors[-1] is None:
            failed.append(f"{shape}, windows {thetas}: {why.strip()[-600:]}")
    return errors, failed


def show(results: Row) -> None:
    def pair(values: Row) -> str:
        return " / ".join(f"{values[way]:.3f}" for way in ("forward", "both"))

    for row in results["kernels"]:
        for kind, times in row["microseconds"].items():
            print(row["shape"], kind, {name: round(time, 1) for name, time in list(times.items())[:12]})
    for row in results["rows"]:
        print(f"{row['shape']}: {row['plan']}, graph {row['graph, ms']}")
        print(f"    eager {row['eager, ms']}, host {row['host, ms']}, {row['peak memory, MB']} MB")
        worst = {
            name: max(errors[name] for errors in row["error"].values()) for name in row["error"]["every 128 steps"]
        }
        print("    largest errors:", {name: f"{error:.1e}" for name, error in worst.items()})
    for row in results["rows"]:
        print(f"{row['shape']}: over without, forward / both:", {k: pair(v) for k, v in row["over without"].items()})
    shapes = ", ".join(f"{row['shape']}, windows {row['windows']}" for row in results["checked"])
    print(f"also right: {shapes}; checks took {results['checks, s']:.0f} s")
    for failure in results["failed"]:
        print("FAILED", failure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--profile", action="store_true", help="the time of each kernel too")
    parser.add_argument("--warm", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a GPU")
    if options.warm is not None:
        warm(options.warm)
        return
    start = time.monotonic()
    errors, failed = checks()
    results: Row = {"checks, s": time.monotonic() - start, "rows": [], "checked": [], "kernels": [], "failed": failed}
    for (shape, thetas, started), error_rows in zip(CHECKED, errors[len(GPU_SHAPES) :], strict=True):
        if error_rows is not None:
            results["checked"].append({"shape": str(shape), "windows": thetas, "state": started, "error": error_rows})
    right = [
        (shape, error_rows) for shape, error_rows in zip(GPU_SHAPES, errors, strict=False) if error_rows is not None
    ]

    def attempt(part: str, shape: Shape, make: Call) -> None:
        try:
            results[part].append(make())
        except Exception as error:
            failed.append(f"{part}, {shape}: {type(error).__name__}: {error}")

    with torch.cuda.stream(torch.cuda.Stream()):
        for shape, error_rows in right:
            attempt(
                "rows", shape, lambda shape=shape, error_rows=error_rows: measured(shape, error_rows, options.rounds)
            )
        for shape, _ in right if options.profile else ():
            attempt("kernels", shape, lambda shape=shape: {"shape": str(shape), "microseconds": profiled(shape)})
    report: Row = {
        "benchmark": "resets",
        "command": f"python -m benchmarks.resets --rounds {options.rounds}",
        "machine": provenance(torch.device("cuda")),
        **results,
    }
    show(report)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.exit(1 if results["failed"] else 0)


if __name__ == "__main__":
    main()
