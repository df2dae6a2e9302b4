"""The command: `plmu bench KIND`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from plmu.bench import algorithms, complexity, layers, show, streaming, training_time
from plmu.bench.measure import Keep, copy_bandwidth
from plmu.cli.arguments import OneOf, Parser
from plmu.runs.results import provenance

KINDS: dict[str, Callable[[str, int, Keep], dict[str, Any]]] = {
    "layers": layers.run,
    "algorithms": algorithms.run,
    "training-time": training_time.run,
    "complexity": complexity.run,
    "streaming": streaming.run,
}


def parser() -> Parser:
    made = Parser(
        prog="plmu bench",
        description="Measure speed on this machine, after checking the answers: a table, a JSON file and a figure.",
    )
    made.add_argument("kind", type=OneOf(*KINDS), metavar="KIND", help=f"what to measure: {', '.join(KINDS)}")
    made.add_argument("--device", default=None, help="cpu or cuda (a GPU if there is one)")
    made.add_argument("--rounds", type=int, default=9, help="how often each candidate is timed (9)")
    made.add_argument("--out", type=Path, default=Path("bench"), help="folder for the JSON file and the figure (bench)")
    return made


def main(words: list[str]) -> None:
    given = parser().parse_args(words)
    if given.rounds < 1:
        parser().error(f"--rounds must be at least 1, got {given.rounds}")
    device = given.device or ("cuda" if torch.cuda.is_available() and given.kind != "streaming" else "cpu")
    if device != "cpu" and not torch.cuda.is_available():
        parser().error(f"--device {device}: there is no GPU here")
    given.out.mkdir(parents=True, exist_ok=True)
    name = f"bench-{given.kind}-{device.split(':')[0]}"
    command = f"plmu bench {given.kind} --device {device} --rounds {given.rounds}"
    report = {"benchmark": given.kind, "command": command, "machine": provenance(torch.device(device))}

    def keep(found: dict[str, Any]) -> None:
        show.write(given.out / f"{name}.json", {**report, "unfinished": True, **found})

    found = KINDS[given.kind](device, given.rounds, keep)
    found["copy bandwidth, bytes per second"] = copy_bandwidth(device)
    show.write(given.out / f"{name}.json", {**report, **found})
    show.tables(found)
    try:
        show.figure(given.kind, found, given.out / f"{name}.png")
    except ModuleNotFoundError as error:
        print(f"wrote {given.out / name}.json; a figure needs {error.name}: pip install {error.name}")
    else:
        print(f"wrote {given.out / name}.json and .png")
