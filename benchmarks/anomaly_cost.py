"""The cost of detecting anomalies: microseconds a sample on one core, in C, ONNX Runtime and `plmu.Stream`.

python -m benchmarks.anomaly_cost --json results/anomaly-cost.json

The samples are hours of the temperature of an office, which comes with plmu, from where training ended. The C program
is compared with the stream.
"""

from __future__ import annotations

import argparse
import gzip
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import plmu
from plmu.runs.folder import write_json
from plmu.runs.provenance import provenance

LEARNED, TIMED = 1000, 4000  # samples
REPEATS, BLOCK = 5, 100  # repeats in C, and steps of a block in Python, of which the fastest counts
WRONG = 1e-9  # largest difference from the stream's scores
BENCH = """#include "model.h"
#include <stdio.h>
#include <time.h>
static model_state state;
static const double x[] = {{{samples}}};
int main(void)
{{
    double y[MODEL_OUTPUTS], best = 1e9, taken;
    int i, repeat;
    for (repeat = 0; repeat < {repeats}; repeat++) {{
        const clock_t start = clock();
        model_init(&state);
        for (i = 0; i < {count}; i += MODEL_INPUTS)
            model_step(&state, x + i, y);
        taken = (double)(clock() - start) / CLOCKS_PER_SEC;
        best = taken < best ? taken : best;
    }}
    printf("%.17g %.17g\\n", 1e6 * best * MODEL_INPUTS / {count}, y[0]);
    return 0;
}}
"""


def series(channels: int) -> Any:
    """(time, channels): the temperatures, each channel later by a day."""
    packed = (files("plmu.cli") / "demo_data" / "office-temperature.csv.gz").read_bytes()
    values = np.array([float(line.split(",")[1]) for line in gzip.decompress(packed).decode().splitlines()[1:]])
    return np.stack([values[24 * k :][: LEARNED + TIMED] for k in range(channels)], axis=1)


def cost(channels: int, season: int) -> dict[str, Any]:
    """Microseconds a sample, and bytes of state."""
    x = series(channels)
    detector = plmu.AnomalyDetector(season=season).fit(x[:LEARNED])
    later = x[LEARNED:]
    stream = detector.stream()
    scores: list[float] = []
    times = {"plmu.Stream": fastest(later, lambda row: scores.append(float(stream.push(row)[0])))}
    score = scores[-1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plmu.export(detector.model, folder, to="c")
        plmu.export(detector.model, folder, to="onnx")
        samples = ", ".join(map(repr, later.flatten().tolist()))
        (folder / "bench.c").write_text(BENCH.format(samples=samples, repeats=REPEATS, count=later.size))
        command = ["cc", "-std=c99", "-O3", "-o", "bench", "model.c", "bench.c"]
        subprocess.run(command, cwd=folder, check=True)
        done = subprocess.run(["./bench"], cwd=folder, check=True, capture_output=True, text=True)
        times["C"], last = map(float, done.stdout.split())
        if not abs(last - score) < WRONG:
            raise SystemExit(f"the last score in C is {last}, that of the stream {score}")
        times["ONNX Runtime"] = onnx_time(folder / "model_step.onnx", later)
    start = detector.model.initial_state(1, torch.float64, torch.device("cpu"))
    state = sum(leaf.numel() * leaf.element_size() for leaf in leaves(start))
    return {"channels": channels, "season": season, "state bytes": state, "microseconds": times}


def fastest(x: Any, step: Callable[[Any], object]) -> float:
    """Microseconds of processor time of a step, in the fastest block of steps."""
    best = float("inf")
    for block in np.split(x, range(BLOCK, len(x), BLOCK)):
        start = time.process_time()
        for row in block:
            step(row)
        best = min(best, (time.process_time() - start) / len(block))
    return 1e6 * best


def onnx_time(path: Path, x: Any) -> float:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs = session.get_inputs()[1:]
    states = [np.zeros([1, *each.shape[1:]]) for each in inputs]
    names = [each.name for each in inputs]

    def step(row: Any) -> None:
        _, *states[:] = session.run(None, {"x": row[None], **dict(zip(names, states, strict=True))})

    return fastest(x, step)


def leaves(state: Any) -> list[Any]:
    return [state] if isinstance(state, torch.Tensor) else [leaf for part in state for leaf in leaves(part)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [cost(channels, season) for channels, season in ((1, 0), (1, 24), (4, 24))]
    for row in rows:
        shown = ", ".join(f"{name} {value:.1f} µs" for name, value in row["microseconds"].items())
        print(f"{row['channels']} channels, season {row['season']}: {shown}, state {row['state bytes']:,} bytes")
    if options.json is not None:
        command = f"python -m benchmarks.anomaly_cost --json {options.json}"
        write_json(options.json, {"command": command, "rows": rows, **provenance(torch.device("cpu"))})


if __name__ == "__main__":
    main()
