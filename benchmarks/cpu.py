"""Speed on a CPU against the paper's FFT method and against what the products alone cost: `python -m benchmarks.cpu`.

Every answer is checked against the float64 recurrence (or the float64 FFT for long sequences) before its time is
reported. Ratios are between medians of one run, all candidates in turn. Exits with 1 if an answer is wrong or a bar is
missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import plmu
from plmu.bench.measure import medians, relative_error, training
from plmu.ops import final, recurrent
from plmu.training.results import provenance

ERROR = 1e-5  # relative, float32 against float64: what a plain float32 recurrence holds


@dataclass
class Row:
    """One line of the table: `time` against `rival`, and the bar that the ratio must reach."""

    name: str
    ours: str
    rival: str
    milliseconds: float
    rival_milliseconds: float
    ratio: float
    bar: str
    met: bool
    error: float


@dataclass
class Shape:
    """A problem: the shape of a training step, scaled to a CPU."""

    name: str
    batch: int
    time: int
    channels: int
    out: int
    order: int
    theta: float


FFT_SHAPES = [
    Shape("order 4, θ 6: language model block", 8, 512, 128, 128, 4, 6.0),
    Shape("order 16, θ 15: character model block", 8, 180, 128, 128, 16, 15.0),
]
# For each: which function is asked.
AUTO_SHAPES = [
    ("states", Shape("small θ", 8, 512, 64, 64, 4, 6.0)),
    ("project", Shape("small θ, projected", 8, 512, 64, 64, 4, 6.0)),
    ("states", Shape("characters", 8, 180, 64, 64, 16, 15.0)),
    ("project", Shape("characters, projected", 8, 180, 64, 64, 16, 15.0)),
    ("states", Shape("order 1, θ 500", 8, 500, 300, 2, 1, 500.0)),
    ("project", Shape("order 1, θ 500, projected", 8, 500, 300, 2, 1, 500.0)),
    ("states", Shape("long, one channel", 4, 20000, 1, 16, 12, 1000.0)),
    ("project", Shape("Mackey-Glass", 8, 5000, 1, 140, 40, 50.0)),
    ("states", Shape("psMNIST, all steps", 8, 784, 1, 346, 468, 784.0)),
    ("project", Shape("psMNIST, all steps, projected", 8, 784, 1, 346, 468, 784.0)),
    ("states", Shape("order 256, 8 channels", 2, 1000, 8, 32, 256, 500.0)),
    ("states", Shape("order 32, θ 128", 2, 2048, 64, 64, 32, 128.0)),
    ("project", Shape("short", 32, 20, 32, 32, 8, 20.0)),
    ("states", Shape("four steps", 1, 4, 16, 16, 8, 20.0)),
    ("final_state", Shape("IMDB, final state", 32, 500, 300, 2, 1, 500.0)),
    ("final_state", Shape("psMNIST, final state", 32, 784, 1, 346, 468, 784.0)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="how often each candidate is timed (9)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = [
        *(against_fft(shape, arguments.rounds) for shape in FFT_SHAPES),
        *(auto_against_best(kind, shape, arguments.rounds) for kind, shape in AUTO_SHAPES),
        final_against_recurrent(arguments.rounds),
        stream_against_products(arguments.rounds),
    ]
    show(rows)
    if arguments.json:
        command = " ".join(["python -m benchmarks.cpu", *sys.argv[1:]])
        report = {"command": command, "machine": provenance(torch.device("cpu"))}
        arguments.json.write_text(json.dumps({**report, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    if not all(row.met and row.error <= ERROR for row in rows):
        raise SystemExit(1)


def against_fft(shape: Shape, rounds: int) -> Row:
    """Training step of `project` against the plain torch FFT form: the whole of m, then the product."""
    u, weight, system = problem(shape)
    taps = system.impulse_response(shape.time).float().T.contiguous()  # (time, order)

    def fft() -> Tensor:
        points = 2 * shape.time
        product = (
            torch.fft.rfft(taps, n=points, dim=0)[None, :, :, None] * torch.fft.rfft(u, n=points, dim=1)[:, :, None]
        )
        return torch.fft.irfft(product, n=points, dim=1)[:, : shape.time].flatten(2) @ weight.flatten(1).T

    def ours() -> Tensor:
        return plmu.project(u, system, weight)[0]

    times = medians({"ours": training(ours, u, weight), "fft": training(fft, u, weight)}, rounds=rounds)
    error = max(relative_error(ours(), reference(shape, u, system, weight)), relative_error(fft(), ours()))
    return row(f"{shape.name}, forward + backward", "auto", "torch FFT", times["ours"], times["fft"], 2.0, error)


def auto_against_best(kind: str, shape: Shape, rounds: int) -> Row:
    """`auto` against the fastest of all algorithms asked for by name."""
    u, weight, system = problem(shape)
    if kind == "final_state":
        # Its one algorithm is equation 25; the others reach the final state by way of all states.
        calls = {name: every_state(u, system, name) for name in feasible(shape)}
        calls["auto"] = lambda: plmu.final_state(u, system)
        expected = every_state(u.double(), system, "recurrent")()
    else:
        calls = {name: algorithm(kind, u, system, weight, name) for name in (*feasible(shape), "auto")}
        expected = reference(shape, u, system, weight if kind == "project" else None)
    error = max(relative_error(call(), expected) for call in calls.values())
    leaves = (u, weight) if kind == "project" else (u,)
    times = medians({name: training(call, *leaves) for name, call in calls.items()}, rounds=rounds, least=0.06)
    best = min((name for name in times if name != "auto"), key=lambda name: times[name])
    ratio = times["auto"] / times[best]
    chosen = "product" if kind == "final_state" else chosen_by_auto(kind, shape, system)
    return Row(
        name=f"{kind}: {shape.name}",
        ours=f"auto ({chosen})",
        rival=f"best by name ({best})",
        milliseconds=1e3 * times["auto"],
        rival_milliseconds=1e3 * times[best],
        ratio=ratio,
        bar="≤ 1.15",
        met=ratio <= 1.15,
        error=error,
    )


def final_against_recurrent(rounds: int) -> Row:
    """Equation 25 against the recurrence at psMNIST's shape, batch 100, forward."""
    shape = Shape("final state, psMNIST, batch 100", 100, 784, 1, 1, 468, 784.0)
    u, _, system = problem(shape)
    split = u.detach()[:, :, None]
    with torch.no_grad():
        calls: dict[str, Callable[[], Tensor]] = {
            "ours": lambda: plmu.final_state(u, system),
            "recurrent": lambda: recurrent.states(split, system, None, None)[:, -1],
        }
        error = relative_error(calls["ours"](), final.final_state(split.double(), system, None, None, None))
        error = max(error, relative_error(calls["recurrent"](), calls["ours"]()))
        times = medians(calls, rounds=max(3, rounds // 3))
    return row(f"{shape.name}, forward", "final_state", "recurrent", times["ours"], times["recurrent"], 200.0, error)


def stream_against_products(rounds: int) -> Row:
    """`Stream.push` of psMNIST's layer against the five matrix–vector products of a step, bare."""
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
        rival="bare products",
        milliseconds=1e3 * times["ours"],
        rival_milliseconds=1e3 * times["products"],
        ratio=ratio,
        bar="≤ 3",
        met=ratio <= 3,
        error=error,
    )


def problem(shape: Shape) -> tuple[Tensor, Tensor, plmu.LinearSystem]:
    u = torch.randn(shape.batch, shape.time, shape.channels, requires_grad=True)
    weight = torch.randn(shape.out, shape.order, shape.channels) / (shape.order * shape.channels) ** 0.5
    return u, weight.requires_grad_(), plmu.DelayNetwork(shape.order, shape.theta).discretize()


def reference(shape: Shape, u: Tensor, system: plmu.LinearSystem, weight: Tensor | None) -> Tensor:
    """The float64 recurrence; where that would take minutes, the float64 FFT, which agrees with it to 1e-13."""
    slow = shape.time * shape.order > 1e5
    with torch.no_grad():
        m = plmu.states(u.double(), system, algorithm="fft" if slow else "recurrent")[0]
        return m if weight is None else m.flatten(2) @ weight.double().flatten(1).T


def algorithm(kind: str, u: Tensor, system: plmu.LinearSystem, weight: Tensor, name: str) -> Callable[[], Tensor]:
    if kind == "states":
        return lambda: plmu.states(u, system, algorithm=name)[0]
    return lambda: plmu.project(u, system, weight, algorithm=name)[0]


def every_state(u: Tensor, system: plmu.LinearSystem, name: str) -> Callable[[], Tensor]:
    return lambda: plmu.states(u, system, algorithm=name)[0][:, -1]


def feasible(shape: Shape) -> list[str]:
    """All algorithms but those that would take minutes or tens of gigabytes here."""
    names = ["fft", "chunked"]
    if shape.time <= 1000 and shape.time**2 * shape.order <= 1 << 25:
        names.append("toeplitz")
    if shape.time <= 800:
        names.append("recurrent")
    return names


def chosen_by_auto(kind: str, shape: Shape, system: plmu.LinearSystem) -> str:
    out = shape.out if kind == "project" else None
    sizes = {"batch": shape.batch, "time": shape.time, "channels": shape.channels, "out": out}
    return plmu.plan(kind, system=system, **sizes).algorithm


def row(name: str, ours: str, rival: str, time: float, rival_time: float, bar: float, error: float) -> Row:
    """A row whose ratio says how many times faster than the rival we are."""
    ratio = rival_time / time
    return Row(name, ours, rival, 1e3 * time, 1e3 * rival_time, ratio, f"≥ {bar:g}", ratio >= bar, error)


def show(rows: list[Row]) -> None:
    table = Table("case", "ours", "against", "ms", "ms against", "ratio", "bar", "error")
    for one in rows:
        met = "green" if one.met else "red"
        table.add_row(
            one.name,
            one.ours,
            one.rival,
            f"{one.milliseconds:.3g}",
            f"{one.rival_milliseconds:.3g}",
            f"[{met}]{one.ratio:.3g}[/]",
            one.bar,
            f"{one.error:.0e}" if one.error <= ERROR else f"[red]{one.error:.0e} WRONG[/]",
        )
    Console(width=170).print(table)


if __name__ == "__main__":
    main()
