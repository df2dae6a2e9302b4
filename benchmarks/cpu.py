"""Speed on a CPU against the paper's FFT and against the matrix products alone: `python -m benchmarks.cpu`.

Every answer is checked against the float64 recurrence (or the float64 FFT for long sequences) before its time is
reported. Ratios are between medians of one run, all candidates in turn. Exits with 1 if an answer is wrong or a bar is
missed. `--random 100` compares `auto` with every algorithm at these shapes and at 100 random ones, on one thread.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import plmu
from benchmarks.choices import BAR, compare_choices
from plmu.bench.measure import medians, relative_error, training
from plmu.bench.problems import CPU_CHOICES, CPU_SHAPES, Problem, Shape
from plmu.runs.provenance import provenance

ERROR = 1e-5  # relative, float32 against float64: what a plain float32 recurrence holds


@dataclass
class Row:
    """One line of the table: ours against a baseline, and the bar that the ratio must reach."""

    name: str
    ours: str
    baseline: str
    milliseconds: float
    baseline_milliseconds: float
    ratio: float
    bar: str
    met: bool
    error: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="how often each candidate is timed (9)")
    parser.add_argument(
        "--random", type=int, default=0, metavar="N", help="instead: `auto` at N random shapes, on one thread"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random shapes (0)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    command = " ".join(["python -m benchmarks.cpu", *sys.argv[1:]])
    report: dict[str, Any] = {"command": command, "machine": provenance(torch.device("cpu"))}
    rows: list[Row] = []
    if arguments.random:
        report |= compare_choices(arguments.random, arguments.rounds, arguments.seed)
    else:
        rows = all_rows(arguments.rounds)
        show(rows)
        report["rows"] = [asdict(row) for row in rows]
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    if not all(row.met and row.error <= ERROR for row in rows):
        raise SystemExit(1)


def all_rows(rounds: int) -> list[Row]:
    return [
        *(against_fft(shape, rounds) for shape in CPU_SHAPES[:2]),
        *(auto_against_best(kind, shape, rounds) for kind, shape in CPU_CHOICES),
        final_against_recurrent(rounds),
        stream_against_products(rounds),
    ]


def against_fft(shape: Shape, rounds: int) -> Row:
    """Training step of `project` against the plain torch FFT form: the whole of m, then the GEMM."""
    problem = Problem(shape)
    ours, fft = problem.project("auto"), problem.fft()
    calls = {"ours": training(ours, problem.u, problem.weight), "fft": training(fft, problem.u, problem.weight)}
    times = medians(calls, rounds=rounds)
    error = max(relative_error(ours(), reference(problem, "project")), relative_error(fft(), ours()))
    return row(f"{shape.name}, forward + backward", "auto", "torch FFT", times["ours"], times["fft"], 2.0, error)


def auto_against_best(kind: str, shape: Shape, rounds: int) -> Row:
    """`auto` against the fastest of all algorithms by name."""
    problem = Problem(shape)
    if kind == "final_state":
        # Its one algorithm is equation 25; the others reach the final state by way of all states.
        calls = {name: last_of_all(problem, name) for name in feasible(shape)}
        calls["auto"] = lambda: plmu.final_state(problem.u, problem.system)
    else:
        run = problem.states if kind == "states" else problem.project
        calls = {name: run(name) for name in (*feasible(shape), "auto")}
    expected = reference(problem, kind)
    error = max(relative_error(call(), expected) for call in calls.values())
    leaves = (problem.u, problem.weight) if kind == "project" else (problem.u,)
    times = medians({name: training(call, *leaves) for name, call in calls.items()}, rounds=rounds, least=0.06)
    best = min((name for name in times if name != "auto"), key=lambda name: times[name])
    ratio = times["auto"] / times[best]
    return Row(
        name=f"{kind}: {shape.name}",
        ours=f"auto ({problem.plan(kind).algorithm})",
        baseline=f"best by name ({best})",
        milliseconds=1e3 * times["auto"],
        baseline_milliseconds=1e3 * times[best],
        ratio=ratio,
        bar=f"≤ {BAR}",
        met=ratio <= BAR,
        error=error,
    )


def final_against_recurrent(rounds: int) -> Row:
    """Equation 25 against the recurrence at psMNIST's shape, batch 100, forward."""
    problem = Problem(Shape(100, 784, 1, 1, 468, 784.0, "final state, psMNIST, batch 100"))
    u, system = problem.u, problem.system
    with torch.no_grad():
        calls: dict[str, Callable[[], Tensor]] = {
            "ours": lambda: plmu.final_state(u, system),
            "recurrent": last_of_all(problem, "recurrent"),
        }
        error = relative_error(calls["ours"](), plmu.final_state(u.double(), system))
        error = max(error, relative_error(calls["recurrent"](), calls["ours"]()))
        times = medians(calls, rounds=max(3, rounds // 3))
    name = f"{problem.shape.name}, forward"
    return row(name, "final_state", "recurrent", times["ours"], times["recurrent"], 200.0, error)


def stream_against_products(rounds: int) -> Row:
    """`Stream.push` of psMNIST's layer against the five matrix–vector products of a step alone."""
    layer = plmu.ParallelLMU(1, 346, order=468, theta=784.0)
    stream = plmu.Stream(layer)
    x = torch.randn(1)
    system = layer.memory.systems()[0]
    state_matrix, drive = system.A.float(), system.B.float()[:, None]
    encoder, memory_weight = layer.encoder.weight.detach(), layer.memory_weight.detach().flatten(1)
    input_weight = layer.input_weight.detach()
    m = torch.randn(468)

    def products() -> Tensor:
        torch.mv(state_matrix, m)
        torch.mv(drive, torch.mv(encoder, x))
        torch.mv(input_weight, x)
        return torch.mv(memory_weight, m)

    sequence = torch.randn(1, 50, 1)
    with torch.no_grad():
        whole = layer(sequence)[0][0]
        checked = plmu.Stream(layer)
        error = relative_error(torch.stack([checked.push(sequence[0, t]) for t in range(50)]), whole)
        times = medians({"ours": lambda: stream.push(x), "products": products}, rounds=5 * rounds, least=0.03)
    ratio = times["ours"] / times["products"]
    return Row(
        name="Stream.push, order 468, 346 outputs",
        ours="push",
        baseline="products alone",
        milliseconds=1e3 * times["ours"],
        baseline_milliseconds=1e3 * times["products"],
        ratio=ratio,
        bar="≤ 3",
        met=ratio <= 3,
        error=error,
    )


def reference(problem: Problem, kind: str) -> Tensor:
    """The float64 recurrence; where that would take minutes, the float64 FFT, which agrees with it to 1e-13."""
    slow = kind != "final_state" and problem.shape.time * problem.shape.order > 1e5
    with torch.no_grad():
        m = plmu.states(problem.u.double(), problem.system, algorithm="fft" if slow else "recurrent")[0]
        if kind == "project":
            return m.flatten(2) @ problem.weight.double().flatten(1).mT
        return m[:, -1] if kind == "final_state" else m


def last_of_all(problem: Problem, algorithm: str) -> Callable[[], Tensor]:
    """The final state by way of all states."""
    states = problem.states(algorithm)
    return lambda: states()[:, -1]


def feasible(shape: Shape) -> list[str]:
    """The algorithms that take neither minutes nor tens of gigabytes here."""
    names = ["fft", "chunked"]
    if shape.time <= 1000 and shape.time**2 * shape.order <= 1 << 25:
        names.append("toeplitz")
    if shape.time <= 800:
        names.append("recurrent")
    return names


def row(name: str, ours: str, baseline: str, time: float, baseline_time: float, bar: float, error: float) -> Row:
    """A row whose ratio is the baseline's time relative to ours."""
    ratio = baseline_time / time
    return Row(name, ours, baseline, 1e3 * time, 1e3 * baseline_time, ratio, f"≥ {bar:g}", ratio >= bar, error)


def show(rows: list[Row]) -> None:
    table = Table("case", "ours", "against", "ms", "ms against", "ratio", "bar", "error")
    for row in rows:
        met = "green" if row.met else "red"
        table.add_row(
            row.name,
            row.ours,
            row.baseline,
            f"{row.milliseconds:.3g}",
            f"{row.baseline_milliseconds:.3g}",
            f"[{met}]{row.ratio:.3g}[/]",
            row.bar,
            f"{row.error:.0e}" if row.error <= ERROR else f"[red]{row.error:.0e} WRONG[/]",
        )
    Console(width=170).print(table)


if __name__ == "__main__":
    main()
