"""How many characters a second a language model writes on one CPU thread, from the first to the last of many:
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
from torch import nn

import plmu
from plmu.training.results import provenance, write_json

LETTERS = 27
CHECKED = 50  # characters
PIECE = 1000  # characters that are timed together


def models() -> dict[str, plmu.Sequential]:
    def model(width: int, norm: type[nn.Module], *blocks: nn.Module) -> plmu.Sequential:
        return plmu.Sequential(nn.Embedding(LETTERS, width), *blocks, norm(width), nn.Linear(width, LETTERS))

    def modern(width: int, **options: Any) -> plmu.Sequential:
        return model(width, nn.RMSNorm, *(plmu.MemoryBlock(width, **options) for _ in range(6)))

    return {
        "the paper's: 3 blocks of 288": model(288, nn.LayerNorm, *(plmu.LMUBlock(288, 8, 15.0) for _ in range(3))),
        "modern: 6 blocks of 208": modern(208, hidden=448),
        "modern: 6 blocks of 224": modern(224, hidden=448),
        "selective, with convolution: 6 blocks of 192": modern(192, order=8, heads=8, kernel_size=4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=100_000, help="characters of each model (100,000)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    if given.length < 3 * PIECE:
        parser.error(f"--length must be at least {3 * PIECE}, got {given.length}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for name, model in models().items():
        check(name, model)
        rows.append({"model": name, "parameters": sum(one.numel() for one in model.parameters())})
        rows[-1] |= rates(model, given.length)
        print(rows[-1], flush=True)
    if given.json:
        command = " ".join(["python -m benchmarks.generation", *sys.argv[1:]])
        write_json(given.json, {"command": command, "machine": provenance(torch.device("cpu")), "rows": rows})


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
    found = []
    for _ in range(length // PIECE):
        begun = time.perf_counter()
        for _ in itertools.islice(tokens, PIECE):
            pass
        found.append(PIECE / (time.perf_counter() - begun))
    return {"first": round(found[0]), "last": round(found[-1]), "median": round(statistics.median(found))}


if __name__ == "__main__":
    main()
