"""Seconds from process start to answer, through `plmu train` as a user types it: psMNIST to 98 % of validation
accuracy, and Mackey-Glass over all of its 500 epochs.

    python -m benchmarks.answers --json results/answers.json

Needs MNIST in the data folder (`PLMU_DATA`). Run it on an idle machine. One epoch runs first, untimed, so that the
generated Mackey-Glass series and compiled kernels are in their caches.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from plmu.runs.provenance import provenance

# What is typed, and the validation accuracy that psMNIST must reach.
PSMNIST = ["psmnist", "--training.epochs", "20"]
MACKEY_GLASS = ["mackey-glass"]
GOAL = 0.98


def answer(arguments: list[str], folder: Path) -> tuple[float, dict[str, Any]]:
    """Wall-clock seconds of the whole process, and the result it wrote."""
    command = [sys.executable, "-m", "plmu", "train", *arguments, "--quiet", "--runs", str(folder)]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    return seconds, json.loads((folder / f"{arguments[0]}-plmu.json").read_text())


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--rounds", type=int, default=3, help="number of runs of each; the median counts (3)")
    options = parser.parse_args()
    rows = []
    for arguments in (PSMNIST, MACKEY_GLASS):
        runs = []
        with tempfile.TemporaryDirectory() as folder:  # fills the caches for the measured runs
            answer([arguments[0], "--training.epochs", "1"], Path(folder))
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(answer(arguments, Path(folder)))
        seconds = sorted(seconds for seconds, _ in runs)
        row = {
            "command": "plmu train " + " ".join(arguments),
            "seconds": seconds[len(seconds) // 2],
            "all seconds": seconds,
            "valid": runs[0][1]["seeds"][0]["valid"],
            "test": runs[0][1]["seeds"][0]["test"],
        }
        if arguments is PSMNIST and row["valid"]["accuracy"] < GOAL:
            raise SystemExit(f"validation accuracy {row['valid']['accuracy']:.4f} is below {GOAL}")
        rows.append(row)
        print(f"{row['command']:<40} {row['seconds']:6.1f} s   valid {row['valid']}   test {row['test']}")
    if options.json:
        machine = provenance(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        command = "python -m benchmarks.answers --json results/answers.json"
        options.json.write_text(json.dumps({"command": command, "machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
