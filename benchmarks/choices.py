"""The choice of `auto` at random shapes, compared with the best of all algorithms: a part of `python -m
benchmarks.cpu`.

Times are processor time of one thread, so that other work on the machine matters little. Each figure is the minimum of
several rounds, in which all candidates take turns.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import plmu
from plmu.bench.measure import Call, relative_error, training
from plmu.bench.problems import CPU_CHOICES, Problem, Shape

BAR = 1.15  # the time of `auto` over that of the best
LARGEST = 1 << 22  # numbers of m
SLOW = 3.0  # times slower in its first calls than the fastest: not measured further


@dataclass
class Choice:
    """The choice of `auto` at one shape, and the times of all algorithms."""

    kind: str
    shape: str
    chosen: str
    milliseconds: dict[str, float]
    error: float

    @property
    def ratio(self) -> float:
        """The time of `auto` over that of the best algorithm by name."""
        return self.milliseconds["auto"] / min(value for name, value in self.milliseconds.items() if name != "auto")


def random_shapes(count: int, seed: int = 0) -> list[tuple[str, Shape]]:
    """Functions and shapes, uniform in the logarithm of each size; half of them have one channel."""
    draw = random.Random(seed)

    def between(least: float, most: float) -> float:
        return math.exp(draw.uniform(math.log(least), math.log(most)))

    shapes: list[tuple[str, Shape]] = []
    while len(shapes) < count:
        kind = draw.choice(("states", "project"))
        batch, steps = round(between(1, 64)), round(between(2, 8192))
        channels = 1 if draw.random() < 0.5 else round(between(1, 256))
        order = round(between(1, 512))
        shape = Shape(batch, steps, channels, round(between(1, 512)), order, round(between(max(4, order), 2048)))
        if batch * steps * order * channels <= LARGEST:
            shapes.append((kind, shape))
    return shapes


def compare_choices(count: int, rounds: int, seed: int = 0) -> dict[str, Any]:
    """The choices of `auto` at the committed shapes and at `count` random ones."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    committed = [choice for choice in CPU_CHOICES if choice[0] != "final_state"]  # which has one algorithm
    results = {}
    try:
        for title, shapes in (("committed", committed), ("random", random_shapes(count, seed))):
            choices = [measure(kind, shape, rounds) for kind, shape in shapes]
            show_choices(choices)
            results[title] = {**summary(choices), "rows": [asdict(choice) for choice in choices]}
    finally:
        torch.set_num_threads(threads)
    return results


def measure(kind: str, shape: Shape, rounds: int) -> Choice:
    """The times of `auto` and of every algorithm by name, forward and backward, and their largest error."""
    problem = Problem(shape)
    calls = _calls(problem, kind)
    with torch.no_grad():
        wide = plmu.states(problem.u.double(), problem.system, algorithm="chunked")[0]
        expected = wide if kind == "states" else wide.flatten(2) @ problem.weight.double().flatten(1).mT
        error = max(relative_error(call(), expected) for call in calls.values())
    leaves = (problem.u, problem.weight) if kind == "project" else (problem.u,)
    times = least_times({name: training(call, *leaves) for name, call in calls.items()}, rounds)
    return Choice(
        kind=kind,
        shape=str(shape),
        chosen=problem.plan(kind).algorithm,
        milliseconds={name: 1e3 * seconds for name, seconds in times.items()},
        error=error,
    )


def least_times(candidates: dict[str, Call], rounds: int, least: float = 0.01) -> dict[str, float]:
    """The minimum processor seconds of a call of each candidate. Slow candidates are dropped after their first
    calls."""
    first = {}
    for name, call in candidates.items():
        call()
        first[name] = _processor_seconds(call, 2)
    fastest = min(seconds for name, seconds in first.items() if name != "auto")
    order = [name for name in candidates if name == "auto" or first[name] <= SLOW * fastest]
    repeats = {name: max(1, round(least / max(first[name], 1e-6))) for name in order}
    times = dict.fromkeys(order, math.inf)
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            candidates[name]()
            times[name] = min(times[name], _processor_seconds(candidates[name], repeats[name]))
    return times


def summary(choices: list[Choice]) -> dict[str, float]:
    """How near `auto` is to the best algorithm by name."""
    ratios = [choice.ratio for choice in choices]
    within = sum(ratio <= BAR for ratio in ratios) / len(ratios)
    return {"shapes": len(ratios), "median": median(ratios), "worst": max(ratios), "within 15 %": within}


def show_choices(choices: list[Choice]) -> None:
    """The figures, and the shapes at which `auto` is furthest from the best algorithm."""
    table = Table("function", "shape", "auto takes", "ms of each", "over the best by name")
    for choice in sorted(choices, key=lambda choice: -choice.ratio)[:10]:
        times = ", ".join(f"{name} {value:.3g}" for name, value in choice.milliseconds.items())
        table.add_row(choice.kind, choice.shape, choice.chosen, times, f"{choice.ratio:.3g}")
    console = Console(width=170)
    console.print(table)
    console.print(summary(choices))


def _calls(problem: Problem, kind: str) -> dict[str, Callable[[], Tensor]]:
    shape = problem.shape
    names = ["chunked", "fft", "auto"]
    if shape.time**2 * shape.order <= 1 << 24:
        names.append("toeplitz")
    if shape.time <= 64:
        names.append("recurrent")
    run = problem.states if kind == "states" else problem.project
    return {name: run(name) for name in names}


def _processor_seconds(call: Call, repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats
