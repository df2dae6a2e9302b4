"""Calls of whole layers on a GPU as a user makes them: host time, eager and graph times, several windows, small shapes.

python -m benchmarks.calls --json results/bench-calls-cuda.json

Answers are compared with float64 before anything is timed: outputs, final states and all gradients, which must also
repeat bit for bit. `--compiled` measures layers under torch.compile too. `--before FOLDER` measures the package in that
folder (one that has `plmu` in it) too, in a process of its own, and adds ratios. Kernels are compiled first, in many
processes at the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import plmu
from benchmarks.layer_errors import BOUNDS, check, inputs, made
from benchmarks.profiling import kernel_times
from plmu.bench import algorithms
from plmu.bench.measure import graphed, peak_memory, random_like, timed, training
from plmu.bench.problems import GPU_CHOICES, GPU_SHAPES, Problem, Shape
from plmu.runs.folder import write_json
from plmu.runs.provenance import provenance

# Shapes with four windows, which are compared with one window of the same order.
WINDOWS = (
    (Shape(64, 512, 512, 512, 4, 6.0), (3.0, 4.0, 5.0, 6.0)),
    (Shape(64, 512, 512, 512, 4, 16.0), (4.0, 16.0, 64.0, 256.0)),
    (Shape(64, 512, 208, 208, 4, 16.0), (4.0, 16.0, 64.0, 256.0)),
)
# Small problems, where launches decide which algorithm is fastest in an eager call.
SMALL = GPU_CHOICES[-4:]
PATIENCE = 150  # seconds for all to compile
FORMS = ("DN, W_m, bias, ReLU", "with W_x", "with encoder and W_x")
Call = Callable[[], Any]
Row = dict[str, Any]


def layers(shape: Shape) -> dict[str, plmu.ParallelLMU]:
    memory: dict[str, Any] = {"order": shape.order, "theta": shape.theta, "memory_size": shape.channels}
    sizes = (shape.channels, shape.out)
    options: list[dict[str, Any]] = [{"encoder": False, "input_to_output": False}, {"encoder": False}, {}]
    return {name: plmu.ParallelLMU(*sizes, **memory, **form) for name, form in zip(FORMS, options, strict=True)}


def ways(layer: plmu.ParallelLMU, x: Tensor, compiled: bool = False) -> tuple[Call, Call]:
    """Forward alone, and with the gradients of x and of all weights."""

    def output() -> Tensor:
        out: Tensor = layer(x)[0]
        return out

    call = torch.compile(output, fullgraph=True) if compiled else output

    def forward() -> Tensor:
        with torch.no_grad():
            return call()

    return forward, training(call, x, *layer.parameters())


def gemms(layer: plmu.ParallelLMU, shape: Shape) -> list[tuple[Tensor, Tensor]]:
    """The operands of the layer's matrix products, with m in memory."""
    steps = shape.batch * shape.time

    def operands(inner: int, out: int) -> tuple[Tensor, Tensor]:
        left = torch.randn(steps, inner, device="cuda").bfloat16().requires_grad_()
        return left, torch.randn(out, inner, device="cuda").bfloat16().requires_grad_()

    pairs = [operands(shape.order * shape.channels, shape.out)]
    if layer.encoder is not None:
        pairs.append(operands(shape.channels, shape.channels))
    if layer.input_weight is not None:
        pairs.append(operands(shape.channels, shape.out))
    return pairs


def host(call: Call, rounds: int) -> float:
    """Milliseconds until a call returns: the minimum over the rounds, since other processes only add to it."""
    seconds = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            call()
        seconds.append((time.perf_counter() - start) / 20)
    torch.cuda.synchronize()
    return 1e3 * min(seconds)


def milliseconds(calls: dict[str, Call], rounds: int) -> tuple[dict[str, float], Any]:
    times = timed(calls, device="cuda", rounds=rounds)
    return {name: 1e3 * seconds for name, seconds in times.medians().items()}, times


def compiled(layer: plmu.ParallelLMU, x: Tensor) -> tuple[Call, Call]:
    """The `ways` of a layer under torch.compile, after a comparison of its output with an eager call's."""
    torch.compiler.reset()
    forward, both = ways(layer, x, compiled=True)
    right = ways(layer, x)[0]().float()
    if not (forward().float() - right).norm() <= BOUNDS[torch.bfloat16] * right.norm():
        raise RuntimeError(f"{tuple(x.shape)}: compiled, the output is wrong")
    return forward, both


def whole(shape: Shape, name: str, rounds: int, profiled: bool, under_compile: bool) -> Row:
    """The row of a form of the layer at a shape."""
    layer, x = made(layers(shape)[name]), inputs(shape)
    row: Row = {"shape": str(shape), "layer": name, "error": check(layer, shape)}
    forward, both = ways(layer, x)
    row["host, ms"] = {"forward": host(forward, 3 * rounds), "both": host(both, 3 * rounds)}
    row["eager, ms"], _ = milliseconds({"forward": forward, "both": both}, rounds)
    row["peak memory, MB"] = peak_memory(both) / 1e6
    if profiled:
        row["kernels, us"] = kernel_times(both)
    with plmu.for_graphs():
        products = gemms(layer, shape)

        def product(pairs: list = products) -> list[Tensor]:
            return [left @ right.mT for left, right in pairs]

        leaves = [operand for pair in products for operand in pair]
        gradients = [random_like(out) for out in product()]
        calls = {
            "forward": graphed(forward),
            "both": graphed(both),
            "GEMMs forward": graphed(lambda: product()),
            "GEMMs both": graphed(
                lambda leaves=leaves, gradients=gradients: torch.autograd.grad(product(), leaves, gradients)
            ),
        }
    if under_compile:
        forward, both = compiled(layer, x)
        row["compiled, host, ms"] = {"forward": host(forward, 3 * rounds), "both": host(both, 3 * rounds)}
        calls |= {"compiled, forward": graphed(forward), "compiled, both": graphed(both)}
    row["graph, ms"], times = milliseconds(calls, rounds)
    for kind in ("", "compiled, ") if under_compile else ("",):
        row[f"{kind}over the GEMMs"] = {way: times.ratio(kind + way, f"GEMMs {way}") for way in ("forward", "both")}
    torch.cuda.empty_cache()
    return row


def windows(shape: Shape, thetas: tuple[float, ...], rounds: int) -> Row:
    """The row that compares several windows with one, in layers of equal sizes."""
    x = inputs(shape)
    memory: dict[str, Any] = {"order": shape.order, "encoder": False, "input_to_output": False}
    several = made(plmu.ParallelLMU(shape.channels, shape.out, theta=list(thetas), **memory))
    single = made(plmu.ParallelLMU(shape.channels, shape.out, theta=shape.theta, **memory))
    row: Row = {"shape": str(shape), "windows": list(thetas), "error": check(several, shape)}
    check(single, shape)
    calls = {"several": ways(several, x), "one": ways(single, x)}
    for name, (forward, both) in calls.items():
        row[f"host, ms, {name}"] = {"forward": host(forward, 3 * rounds), "both": host(both, 3 * rounds)}
    row["eager, ms"], eager = milliseconds({name: both for name, (_, both) in calls.items()}, rounds)
    with plmu.for_graphs():
        row["plan"] = several.plan(batch=shape.batch, time=shape.time).reason
        graphs = {name: graphed(both) for name, (_, both) in calls.items()}
        graphs |= {f"{name}, forward": graphed(forward) for name, (forward, _) in calls.items()}
    row["graph, ms"], times = milliseconds(graphs, rounds)
    row["several over one"] = {
        "graph, both": times.ratio("several", "one"),
        "graph, forward": times.ratio("several, forward", "one, forward"),
        "eager, both": eager.ratio("several", "one"),
    }
    torch.cuda.empty_cache()
    return row


def warm(number: int, under_compile: bool) -> None:
    """Compile one case: a form of a layer at a shape, several windows, or a small problem. Print the time of the first
    call of a layer's simplest form."""
    whole = len(GPU_SHAPES) * len(FORMS)
    with torch.cuda.stream(torch.cuda.Stream()), plmu.for_graphs():
        torch.zeros(1, device="cuda")
        start = time.perf_counter()
        if number >= whole + len(WINDOWS):
            small = Problem(SMALL[number - whole - len(WINDOWS)], torch.bfloat16, "cuda")
            training(small.project("fused"), small.u, small.weight)()
            return
        memory: dict[str, Any] = {"encoder": False, "input_to_output": False}
        if number < whole:
            shape = GPU_SHAPES[number // len(FORMS)]
            layer = layers(shape)[FORMS[number % len(FORMS)]]
        else:
            shape, thetas = WINDOWS[number - whole]
            layer = plmu.ParallelLMU(shape.channels, shape.out, shape.order, list(thetas), **memory)
        layer, x = made(layer), inputs(shape)
        layer(x)[0].sum().backward()
        torch.cuda.synchronize()
        if number >= whole or number % len(FORMS) == 0:
            print(json.dumps({"shape": str(shape), "seconds": time.perf_counter() - start}))
        if number >= whole:  # one window too
            check(made(plmu.ParallelLMU(shape.channels, shape.out, shape.order, shape.theta, **memory)), shape)
        check(layer, shape)
        if under_compile and number < whole:
            for call in ways(layer, x, compiled=True):
                call()


def cases() -> list[str]:
    """The names of the cases, in the order of `warm`."""
    labels = [f"{shape}, {form}" for shape in GPU_SHAPES for form in FORMS]
    labels += [f"{shape}, windows {thetas}" for shape, thetas in WINDOWS]
    return labels + [f"{shape}, eager" for shape in SMALL]


def warmed(under_compile: bool) -> tuple[list[Row], dict[str, str]]:
    """The first calls at all shapes, with compilation, and the failures by case. All cases are compiled at the same
    time, in processes."""
    command = [sys.executable, "-m", "benchmarks.calls", *(["--compiled"] if under_compile else []), "--warm"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = {label: subprocess.Popen([*command, str(i)], **pipes) for i, label in enumerate(cases())}
    first: list[Row] = []
    failed: dict[str, str] = {}
    until = time.monotonic() + PATIENCE
    for label, process in processes.items():
        try:
            said, complaint = process.communicate(timeout=max(1.0, until - time.monotonic()))
            first += [json.loads(line) for line in said.splitlines()]
            if process.returncode:
                failed[label] = complaint[-500:]
        except subprocess.TimeoutExpired:
            process.kill()
            failed[label] = f"does not end within {PATIENCE} seconds"
    return first, failed


def measure(rounds: int, profiled: bool, under_compile: bool, keep: Callable[[Row], None]) -> Row:
    """All rows. A case that fails or is wrong is named under "failed" instead. `keep` is called with the tables so far
    after every row."""
    first, wrong = warmed(under_compile)
    failed = [f"{label}: {reason}" for label, reason in wrong.items()]
    tables: Row = {"whole layers": [], "windows": [], "small, eager": [], "first calls": first, "failed": failed}

    def tried(table: str, calls: list[Callable[[], Row]], labels: list[str]) -> None:
        for label, call in zip(labels, calls, strict=True):
            if label in wrong:
                continue
            try:
                tables[table].append(call())
            except Exception as error:
                failed.append(f"{label}: {type(error).__name__}: {error}")
            keep(tables)

    labels, many = cases(), len(GPU_SHAPES) * len(FORMS)
    with torch.cuda.stream(torch.cuda.Stream()):
        how = (rounds, profiled, under_compile)
        wholes = [partial(whole, shape, form, *how) for shape in GPU_SHAPES for form in FORMS]
        several = [partial(windows, *case, rounds) for case in WINDOWS]
        small = [partial(algorithms.choice, shape, torch.bfloat16, "cuda", rounds) for shape in SMALL]
        tried("windows", several, labels[many : many + len(WINDOWS)])
        tried("whole layers", wholes, labels[:many])
        tried("small, eager", small, labels[many + len(WINDOWS) :])
    return tables


def beside(results: Row, before: Row) -> list[Row]:
    """The earlier times relative to the present ones."""
    rows: list[Row] = []
    if results["failed"] or before["failed"]:
        return rows
    for now, then in zip(results["whole layers"], before["whole layers"], strict=True):
        kinds = ("host, ms", "eager, ms", "graph, ms")
        ratios = {kind: {way: then[kind][way] / now[kind][way] for way in ("forward", "both")} for kind in kinds}
        rows.append({"shape": now["shape"], "layer": now["layer"], "times faster than before": ratios})
    for now, then in zip(results["windows"], before["windows"], strict=True):
        ratios = {kind: {"both": then[kind]["several"] / now[kind]["several"]} for kind in ("eager, ms", "graph, ms")}
        rows.append({"shape": now["shape"], "windows": now["windows"], "times faster than before": ratios})
    return rows


def show(results: Row) -> None:
    def pair(values: Row) -> str:
        return " / ".join(f"{values[way]:.3f}" for way in ("forward", "both"))

    for row in results["whole layers"]:
        over = pair(row["over the GEMMs"])
        print(f"{row['shape']}, {row['layer']}: host {pair(row['host, ms'])}, eager {pair(row['eager, ms'])}, graph"
              f" {pair(row['graph, ms'])}, over the GEMMs {over},"
              f" {row['peak memory, MB']:.0f} MB")  # fmt: skip
        if "compiled, over the GEMMs" in row:
            over = pair(row["compiled, over the GEMMs"])
            print(f"  compiled: host {pair(row['compiled, host, ms'])}, graph over the GEMMs {over}")
    for row in results["windows"]:
        print(f"{row['shape']}, windows {row['windows']}: over one window {row['several over one']}, host"
              f" {pair(row['host, ms, several'])}; {row['plan']}")  # fmt: skip
    for row in results["small, eager"]:
        times = {name: round(value, 3) for name, value in row["milliseconds"].items()}
        print(
            f"{row['shape']}, eager, both: {times}; auto takes {row['chosen']}, {row['auto over best']:.2f} of the best"
        )
    print("first calls, s:", {row["shape"]: round(row["seconds"], 1) for row in results["first calls"]})
    for row in results["whole layers"]:
        if "kernels, us" in row:
            times = {name: round(value, 1) for name, value in row["kernels, us"].items()}
            print(f"kernels, us, {row['shape']}, {row['layer']}: {times}")
    for failure in results["failed"]:
        print("FAILED", failure)
    for row in results.get("beside before", []):
        print(f"before / now, {row['shape']}, {row.get('layer') or row['windows']}: {row['times faster than before']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path, help="folder with another version of the package")
    parser.add_argument("--profile", action="store_true", help="the time of each kernel of whole layers too")
    parser.add_argument("--compiled", action="store_true", help="whole layers under torch.compile too")
    parser.add_argument("--warm", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a GPU")
    if options.warm is not None:
        warm(options.warm, options.compiled)
        return
    report: Row = {
        "benchmark": "calls",
        "command": f"python -m benchmarks.calls --rounds {options.rounds}{' --compiled' if options.compiled else ''}",
        "machine": provenance(torch.device("cuda")),
    }

    def keep(tables: Row) -> None:
        if options.json is not None:
            write_json(options.json, {**report, "unfinished": True, **tables})

    results = measure(options.rounds, options.profile, options.compiled, keep)
    report |= results
    if options.before is not None:
        other = options.before / "before.json"
        paths = [str(options.before.resolve()), os.environ.get("PYTHONPATH", "")]
        command = [sys.executable, "-m", "benchmarks.calls", "--rounds", str(options.rounds), "--json", str(other)]
        torch.cuda.empty_cache()
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, check=False)
        if done.returncode == 0:
            report["before"] = json.loads(other.read_text())
            report["beside before"] = beside(results, report["before"])
    show(report)
    if options.json is not None:
        write_json(options.json, report)
    sys.exit(1 if results["failed"] else 0)


if __name__ == "__main__":
    main()
