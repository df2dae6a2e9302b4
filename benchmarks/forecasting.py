"""Forecasts of ETTh1, ETTh2, ETTm1, Weather and Exchange in closed form, beside published figures.

    python -m benchmarks.forecasting --json results

Needs `ltsf/` in the data folder (`PLMU_DATA`) with ETTh1.csv.xz, ETTh2.csv.xz, ETTm1.csv.xz, weather.csv.xz and
exchange_rate.csv.xz. The protocol is that of the papers: channels standardised by the training rows, every window of
the test rows, windows may look back into the rows before them, errors on standardised values. Options are chosen on the
validation rows alone, and nothing is fitted to them.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import plmu
from plmu.runs.provenance import provenance

HORIZONS = (96, 192, 336, 720)
FILES = {"ETTh1": "ETTh1", "ETTh2": "ETTh2", "ETTm1": "ETTm1", "Weather": "weather", "Exchange": "exchange_rate"}
MONTHS = {"ETTh1": 24, "ETTh2": 24, "ETTm1": 96}  # rows of a day, for splits in months of 30 days
# Mean MSE over the four horizons, as published.
PUBLISHED: dict[str, dict[str, dict[str, float]]] = {
    "96": {
        "ETTh1": {"RLinear": 0.44575, "DLinear": 0.45575, "PatchTST": 0.46875, "iTransformer": 0.45425},
        "ETTh2": {"RLinear": 0.37425, "DLinear": 0.55875, "PatchTST": 0.38675, "iTransformer": 0.383},
        "ETTm1": {"RLinear": 0.41425, "DLinear": 0.403, "PatchTST": 0.38725, "iTransformer": 0.407},
        "Weather": {"RLinear": 0.272, "DLinear": 0.265, "PatchTST": 0.259, "iTransformer": 0.258},
        "Exchange": {"RLinear": 0.378, "DLinear": 0.354, "PatchTST": 0.367, "iTransformer": 0.360},
    },
    "free": {
        "ETTh1": {"NLinear": 0.41275, "PatchTST/64": 0.413},
        "ETTh2": {"NLinear": 0.343, "PatchTST/64": 0.33075},
        "ETTm1": {"NLinear": 0.36575, "PatchTST/64": 0.35275},
        "Weather": {"NLinear": 0.254, "PatchTST/64": 0.2255},
        "Exchange": {"NLinear": 0.40825},
    },
}


def read(folder: Path, name: str) -> tuple[np.ndarray, tuple[int, int, int]]:
    """The values (time, channels), and the rows at which training, validation and test end."""
    with lzma.open(folder / f"{FILES[name]}.csv.xz", "rt", newline="") as file:
        rows = list(csv.reader(file))
    columns = [i for i, column in enumerate(rows[0]) if column != "date"]
    values = np.array([[float(row[i]) for i in columns] for row in rows[1:]])
    if name in MONTHS:
        month = 30 * MONTHS[name]
        return values, (12 * month, 16 * month, 20 * month)
    total = len(values)
    test = int(0.2 * total)
    return values, (int(0.7 * total), total - test, total)


def measured(values: np.ndarray, ends: tuple[int, int, int], horizon: int, lookback: int | None) -> dict[str, Any]:
    """Fit and test one horizon."""
    train, valid, test = ends
    begin, used = time.perf_counter(), time.process_time()
    forecaster = plmu.Forecaster(horizon, lookback=lookback, validation=valid - train, refit=False).fit(values[:valid])
    fitted, used = time.perf_counter(), time.process_time() - used
    model = forecaster.model
    read = [member.kind.lookback for member in getattr(model, "readouts", ())]  # of a PooledForecast
    reach = min(model.lookback, max(*read, 4 * model.season)) if read else model.lookback
    first = valid - reach
    scores = forecaster.evaluate(values[first:test], start=first)
    if scores["windows"] != test - valid - horizon + 1:
        raise SystemExit(f"{scores['windows']} test windows, not {test - valid - horizon + 1}")
    chosen = {key: value for key, value in forecaster.validation_.items() if key not in ("mse", "tried", "members")}
    return {
        "horizon": horizon,
        "valid mse": forecaster.validation_.get("mse"),
        **{key: scores[key] for key in ("mse", "mae", "last value mse", "last value mae", "windows")},
        "chosen": {key: "inf" if value == float("inf") else value for key, value in chosen.items()},
        "fit seconds": fitted - begin,
        "fit processor seconds": used,
        "test seconds": time.perf_counter() - fitted,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="folder for forecast-<set>.json")
    parser.add_argument("--sets", nargs="+", default=list(FILES), choices=list(FILES))
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("PLMU_DATA", ".")))
    options = parser.parse_args()
    for name in options.sets:
        values, ends = read(options.data / "ltsf", name)
        result: dict[str, Any] = {
            "command": f"python -m benchmarks.forecasting --sets {name} --json results",
            "machine": provenance(torch.device("cpu")),
            "threads": torch.get_num_threads(),
        }
        for kind, lookback in (("96", 96), ("free", None)):
            rows = [measured(values, ends, horizon, lookback) for horizon in HORIZONS]
            keys = [key for key in ("valid mse", "mse", "mae") if all(row[key] is not None for row in rows)]
            means = {key: float(np.mean([row[key] for row in rows])) for key in keys}
            last = float(np.mean([row["last value mse"] for row in rows]))
            seconds = sum(row["fit seconds"] for row in rows)
            used = sum(row["fit processor seconds"] for row in rows)
            published = PUBLISHED[kind][name]
            result[f"lookback {kind}"] = {
                "rows": rows,
                "mean": {**means, "last value mse": last},
                "fit seconds": seconds,
                "fit processor seconds": used,
                "published mean mse": published,
                "not below": [peer for peer, figure in published.items() if means["mse"] >= figure],
            }
            figures = " ".join(f"{row['mse']:.3f}/{row['mae']:.3f}" for row in rows)
            peers = ", ".join(f"{peer} {figure:.3f}" for peer, figure in published.items())
            spent = f"fit {seconds:.1f} s ({used:.1f} s of the processor)"
            print(f"{name:<9}{kind:<5}{figures}   mean {means['mse']:.4f}   {spent}   {peers}", flush=True)
        if options.json:
            path = options.json / f"forecast-{name.lower()}.json"
            path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
