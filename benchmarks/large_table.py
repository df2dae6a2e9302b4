"""Forecasts of a CSV file of 10 million rows: seconds to the first batch and to the end, and peak memory.
`python -m benchmarks.large_table`.

The file is generated: minutes, two columns, a daily season and noise. Each stage runs in a process, whose peak memory
is measured. The first batch is a block of windows and targets, as the fit takes it. The answer is checked: no model
forecasts the noise, so the error must be close to its variance.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plmu.runs.folder import write_json
from plmu.runs.provenance import provenance

NOISE = 1.0
DAY = 1440


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the file (10,000,000)")
    parser.add_argument("--stage", choices=("batch", "train"), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help="where the file is, or is made (a temporary folder)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if options.stage:
        print(json.dumps({"batch": first_batch, "train": train}[options.stage](options.file)))
        return
    with tempfile.TemporaryDirectory() as folder:
        file = options.file or Path(folder) / "minutes.csv"
        if not file.is_file():
            write_table(file, options.rows)
        result: dict[str, Any] = {"rows": options.rows, "bytes": file.stat().st_size}
        for stage in ("batch", "train"):
            words = [sys.executable, "-m", "benchmarks.large_table", "--stage", stage, "--file", str(file)]
            start = time.perf_counter()
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            row = json.loads(done.stdout.splitlines()[-1])
            row |= {"seconds, from the start of Python": round(time.perf_counter() - start, 1)}
            row |= {"load average of the machine": round(os.getloadavg()[0], 1)}
            result[{"batch": "first batch", "train": "whole run"}[stage]] = row
            print(stage, row, flush=True)
    if options.json:
        command = f"python -m benchmarks.large_table --rows {options.rows} --json results/{options.json.name}"
        write_json(options.json, {"command": command, "machine": provenance(torch.device("cpu")), **result})


def write_table(file: Path, rows: int) -> None:
    """Write the file in pieces, which takes little memory."""
    rng = np.random.default_rng(0)
    with open(file, "w", encoding="utf-8") as out:
        out.write("time,load,temperature\n")
        for first in range(0, rows, 100_000):
            k = np.arange(first, min(rows, first + 100_000))
            times = np.datetime_as_string(np.datetime64("2005-01-01T00:00:00") + k.astype("timedelta64[m]"))
            load = 50 + 10 * np.sin(2 * np.pi * k / DAY) + NOISE * rng.standard_normal(len(k))
            temperature = 20 + 5 * np.cos(2 * np.pi * k / DAY) + NOISE * rng.standard_normal(len(k))
            lines = zip(times, load, temperature, strict=True)
            out.writelines(f"{time.replace('T', ' ')},{a:.3f},{b:.2f}\n" for time, a, b in lines)


def first_batch(file: Path) -> dict[str, float]:
    """Seconds from the start of the program to the first windows."""
    start = time.perf_counter()
    from plmu.timeseries.forecast_experiment import Forecast, prepare

    config: Any = Forecast().defaults("closed")
    config.data.file = file
    task = prepare(config)
    settings = task.split.settings
    batch = next(iter(task.split.windows.blocks(task.train[0], settings.lookback, settings.horizon)))
    if not bool(batch.windows.isfinite().all()):
        raise RuntimeError("the first batch is not finite")
    return {"seconds": round(time.perf_counter() - start, 1), **used()}


def train(file: Path) -> dict[str, float]:
    """Seconds of `plmu train forecast`."""
    from plmu.cli.program import main as program

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        program(["train", "forecast", "--data.file", str(file), "--runs", folder, "--quiet"])
        (summary,) = Path(folder).glob("*.json")
        content = json.loads(summary.read_text(encoding="utf-8"))
        (run,) = (path for path in Path(folder).iterdir() if path.is_dir())
        errors = json.loads((run / "forecast.json").read_text(encoding="utf-8"))["mae in own units"]["model"]
    seconds = time.perf_counter() - start
    for name, value in errors.items():  # the mean absolute value of the noise is √(2/π) of its deviation
        least = NOISE * float(np.sqrt(2 / np.pi))
        if not 0.97 * least < value < 1.15 * least:
            raise RuntimeError(f"the mean absolute error of {name} is {value}, and that of the noise {least}")
    return {"seconds": round(seconds, 1), **used(), "test mse": content["test"]["mse"]["mean"]}


def used() -> dict[str, float]:
    """Processor time and peak memory of this process. On a busy machine, processor time is the better figure."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    spent = usage.ru_utime + usage.ru_stime
    return {
        "processor seconds, from the start of Python": round(spent, 1),
        "peak GiB": round(usage.ru_maxrss / 2**20, 2),
    }


if __name__ == "__main__":
    main()
