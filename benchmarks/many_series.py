"""Forecasts of a million short series in Parquet: seconds, rows per second and peak memory of `plmu train forecast` and
`plmu predict`. `python -m benchmarks.many_series`.

The files are generated: days, with a weekly season, a level and a noise of each series. Each command runs in a process,
whose peak memory is measured. The answer is checked: the forecasts must be close to the series without their noise.
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
import polars as pl
import torch

from plmu.runs.folder import write_json
from plmu.runs.provenance import provenance

NOISE = 0.1  # of each level
WEEK = 7
PART = 50_000  # series that are made at a time
COMMANDS = {"train": "plmu train forecast", "predict": "plmu predict"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=1_000_000, help="number of series (1,000,000)")
    parser.add_argument("--rows", type=int, default=50, help="rows of each (50)")
    parser.add_argument("--folder", action="store_true", help=f"a folder with a file for {PART:,} series, not one file")
    parser.add_argument("--stage", choices=tuple(COMMANDS), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help="folder for the data and the run (a temporary one)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if options.stage:
        print(json.dumps({"train": train, "predict": predict}[options.stage](options.work)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        data = write_series(work, options.series, options.rows, options.folder)
        size = sum(file.stat().st_size for file in ([data] if data.is_file() else data.iterdir()))
        count = options.series * options.rows
        result: dict[str, Any] = {"series": options.series, "rows": count, "files": "folder" if options.folder else 1}
        result["bytes"] = size
        for stage, name in COMMANDS.items():
            words = [sys.executable, "-m", "benchmarks.many_series", "--stage", stage, "--work", str(work)]
            start = time.perf_counter()
            done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
            seconds = time.perf_counter() - start
            row = {"seconds": round(seconds, 1), "rows per second": round(count / seconds)}
            row |= json.loads(done.stdout.splitlines()[-1])
            row |= {"load average of the machine": round(os.getloadavg()[0], 1)}
            result[name] = row
            print(name, row, flush=True)
        check(work, options.series, options.rows)
    if options.json:
        words = [f"--{name} {value}" for name, value in (("series", options.series), ("rows", options.rows))]
        words += ["--folder"] * options.folder
        command = f"python -m benchmarks.many_series {' '.join(words)} --json results/{options.json.name}"
        write_json(options.json, {"command": command, "machine": provenance(torch.device("cpu")), **result})


def signal(first: int, count: int, days: np.ndarray) -> np.ndarray:
    """Series (count, days) without their noise; `first` is the number of the first."""
    number = np.arange(first, first + count)[:, None]
    level = np.exp(np.random.default_rng(first).normal(3, 1, (count, 1)))
    values: np.ndarray = level * (1 + 0.3 * np.sin(2 * np.pi * (days + number % WEEK) / WEEK))
    return values


def write_series(work: Path, series: int, rows: int, folder: bool) -> Path:
    """The data, as a file or a folder of files, made in parts."""
    parts = work / "series"
    parts.mkdir(parents=True, exist_ok=True)
    days = np.arange(rows)
    times = np.datetime64("2024-01-01") + days
    for first in range(0, series, PART):
        file, count = parts / f"part-{first // PART:05}.parquet", min(PART, series - first)
        if file.is_file() or (work / "series.parquet").is_file():
            continue
        noise = np.random.default_rng([first, 1]).standard_normal((count, rows))
        values = signal(first, count, days) * (1 + NOISE * noise)
        names = pl.Series([f"item-{number:07}" for number in range(first, first + count)])
        columns = {
            "unique_id": names.gather(np.repeat(np.arange(count), rows)),
            "ds": pl.Series(np.tile(times, count).astype("datetime64[ms]")).cast(pl.Date),
            "y": values.ravel(),
        }
        pl.DataFrame(columns).write_parquet(file)
    if folder:
        return parts
    whole = work / "series.parquet"
    if not whole.is_file():
        pl.scan_parquet(sorted(parts.glob("*.parquet"))).sink_parquet(whole)
        for file in parts.iterdir():
            file.unlink()
    parts.rmdir()
    return whole


def data_of(work: Path) -> Path:
    return work / "series.parquet" if (work / "series.parquet").is_file() else work / "series"


def train(work: Path) -> dict[str, Any]:
    """Seconds of `plmu train forecast`."""
    from plmu.cli.program import main as program

    program(["train", "forecast", str(data_of(work)), "--runs", str(work / "runs")])
    result = json.loads((work / "runs/forecast-series-seed0/result.json").read_text(encoding="utf-8"))
    return {**used(), "test MASE": result["test"]["mase"], "seasonal naive": result["test"]["seasonal_last_value_mase"]}


def predict(work: Path) -> dict[str, Any]:
    """Seconds of `plmu predict`."""
    from plmu.cli.program import main as program

    run, out = work / "runs/forecast-series-seed0", work / "forecasts.parquet"
    program(["predict", str(run), str(data_of(work)), "--out", str(out)])
    return used()


def check(work: Path, series: int, rows: int) -> None:
    """The forecasts of all series are close to the series without noise: each is an average of some weeks."""
    frame = pl.read_parquet(work / "forecasts.parquet", columns=["unique_id", "y"])
    horizon = frame.height // series
    if frame["unique_id"].n_unique() != series or frame.height != series * horizon:
        raise RuntimeError(f"{frame.height} forecasts of {frame['unique_id'].n_unique()} series, not of {series}")
    days = np.arange(rows, rows + horizon)
    expected = np.concatenate([signal(first, min(PART, series - first), days) for first in range(0, series, PART)])
    level = np.abs(expected).mean(1, keepdims=True)
    error = float((np.abs(frame["y"].to_numpy().reshape(series, horizon) - expected) / level).mean())
    if error > 0.8 * NOISE:
        raise RuntimeError(f"forecasts are {error:.3f} of the level from the series without noise, which is {NOISE}")
    print(f"forecasts are {error:.3f} of the level from the series without noise")


def used() -> dict[str, float]:
    """Processor time and peak memory of this process. On a busy machine, processor time is the better figure."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    spent = usage.ru_utime + usage.ru_stime
    return {"processor seconds": round(spent, 1), "peak GiB": round(usage.ru_maxrss / 2**20, 2)}


if __name__ == "__main__":
    main()
