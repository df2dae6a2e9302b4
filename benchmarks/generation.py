"""Characters per second that a language model writes on one CPU thread, from the first to the last of many:
`python -m benchmarks.generation`.

The models are of the sizes that text8 is trained with, untrained: the time of a step does not depend on the weights.
Before anything is timed, greedy characters must be those of the parallel forward.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

import plmu
from plmu.cli.catalogue import lookup
from plmu.experiments import language
from plmu.experiments.language import ModernModel
from plmu.runs.folder import write_json
from plmu.runs.provenance import provenance

LETTERS = 27
CHECKED = 50  # characters
PIECE = 1000  # characters that are timed together


def models() -> dict[str, plmu.Sequential]:
    """The models of text8 as it trains them, and a modern one with a selective readout and a short convolution."""
    configs: dict[str, Any] = {name: lookup("text8").defaults(name).model for name in ("plmu", "modern")}
    configs["modern, selective"] = ModernModel(order=8, thetas=(8.0, 32.0, 128.0, 512.0), heads=8, kernel=4, hidden=736)
    built = {name: language.build(config, LETTERS) for name, config in configs.items()}
    return {name: model for name, model in built.items() if isinstance(model, plmu.Sequential)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=100_000, help="characters of each model (100,000)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if options.length < 3 * PIECE:
        parser.error(f"--length must be at least {3 * PIECE}, got {options.length}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for name, model in models().items():
        check(name, model)
        rows.append({"model": name, "parameters": sum(parameter.numel() for parameter in model.parameters())})
        rows[-1] |= rates(model, options.length)
        print(rows[-1], flush=True)
    if options.json:
        command = " ".join(["python -m benchmarks.generation", *sys.argv[1:]])
        write_json(options.json, {"command": command, "machine": provenance(torch.device("cpu")), "rows": rows})


def check(name: str, model: plmu.Sequential) -> None:
    written = [0, *plmu.generate(model.double(), [0], CHECKED, temperature=0)]
    with torch.no_grad():
        wanted = model.eval()(torch.tensor([written[:-1]]))[0][0].argmax(1).tolist()
    model.float()
    if written[1:] != wanted:
        raise RuntimeError(f"{name}: the characters differ from those of the parallel forward")


def rates(model: plmu.Sequential, length: int) -> dict[str, float]:
    """Characters a second: in the first and in the last piece, and the median of all."""
    tokens = plmu.generate(model, [0], seed=0)
    for _ in itertools.islice(tokens, PIECE):  # a CPU takes a while to be at its speed
        pass
    tokens = plmu.generate(model, [0], seed=0)
    speeds = []
    for _ in range(length // PIECE):
        start = time.perf_counter()
        for _ in itertools.islice(tokens, PIECE):
            pass
        speeds.append(PIECE / (time.perf_counter() - start))
    return {"first": round(speeds[0]), "last": round(speeds[-1]), "median": round(statistics.median(speeds))}


if __name__ == "__main__":
    main()
