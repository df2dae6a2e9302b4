"""Running a benchmark: which kinds there are, and the files that each writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from plmu.bench import algorithms, complexity, layers, show, streaming, training_time
from plmu.bench.measure import Keep, copy_bandwidth
from plmu.runs.folder import write_json
from plmu.runs.provenance import provenance

KINDS: dict[str, Callable[[str, int, Keep], dict[str, Any]]] = {
    "layers": layers.run,
    "algorithms": algorithms.run,
    "training-time": training_time.run,
    "complexity": complexity.run,
    "streaming": streaming.run,
}


def run(kind: str, device: str, rounds: int, out: Path, program: str | None = None) -> None:
    """Measure, print the tables, and write them to a JSON file and a figure in the folder `out`.

    The file is written after every row, marked as unfinished, so that a run that is stopped keeps what it has measured.
    It names the command, which begins with `program`: by default `plmu bench KIND`.
    """
    out.mkdir(parents=True, exist_ok=True)
    name = f"bench-{kind}-{device.split(':')[0]}"
    path = out / f"{name}.json"
    command = f"{program or f'plmu bench {kind}'} --device {device} --rounds {rounds}"
    report = {"benchmark": kind, "command": command, "machine": provenance(torch.device(device))}

    def keep(tables: dict[str, Any]) -> None:
        write_json(path, {**report, "unfinished": True, **tables})

    tables = KINDS[kind](device, rounds, keep)
    tables["copy bandwidth, bytes per second"] = copy_bandwidth(device)
    write_json(path, {**report, **tables})
    show.tables(tables)
    try:
        show.figure(kind, tables, out / f"{name}.png")
    except ModuleNotFoundError as error:
        print(f"wrote {path}; a figure needs {error.name}: pip install {error.name}")
    else:
        print(f"wrote {path} and .png")
