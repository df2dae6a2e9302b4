"""Series with many zeros: `plmu.Forecaster` by default beside the methods for intermittent demand.

    python -m benchmarks.intermittent
    python -m benchmarks.intermittent --tweets FOLDER

Panels are simulated: demands occur with some probability in each step, and have a size; in "fading" that probability
falls. FOLDER has `Twitter_volume_*.csv` of the Numenta Anomaly Benchmark (`data/realTweets`): how often companies were
named in five minutes; each file gives a series for each of its last ten days.

Croston, SBA (Croston less the bias that Syntetos and Boylan found) and ADIDA (the mean over the interval of demands,
smoothed) smooth with the rate of 0.1. MASE is relative to the mean change from step to step, and pinball the mean loss
of the quantiles 0.1, 0.5 and 0.9 relative to the mean of the series, in which the other methods have the quantiles of
the series' own values.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

import plmu

RATE, QUANTILES, HORIZON = 0.1, (0.1, 0.5, 0.9), 12
Numbers = np.ndarray


def smoothed(values: Numbers) -> float:
    """The last level of exponential smoothing that begins with the first value."""
    level = float(values[0])
    for value in values[1:]:
        level += RATE * (float(value) - level)
    return level


def sizes_and_intervals(series: Numbers) -> tuple[Numbers, Numbers]:
    """Of each demand its size, and the steps since the one before."""
    places = np.flatnonzero(series)
    return series[places], np.diff(np.concatenate([[-1], places]))


def croston(series: Numbers) -> float:
    sizes, intervals = sizes_and_intervals(series)
    return smoothed(sizes) / smoothed(intervals) if len(sizes) else 0.0


def sba(series: Numbers) -> float:
    return (1 - RATE / 2) * croston(series)


def adida(series: Numbers) -> float:
    sizes, intervals = sizes_and_intervals(series)
    if not len(sizes):
        return 0.0
    step = max(1, round(float(intervals.mean())))
    sums = series[len(series) % step :].reshape(-1, step).sum(axis=1)
    return smoothed(sums) / step if len(sums) else float(series.mean())


METHODS: dict[str, Callable[[Numbers], float]] = {
    "Croston": croston,
    "SBA": sba,
    "ADIDA": adida,
    "mean": lambda series: float(series.mean()),
    "zero": lambda series: 0.0,
    "last value": lambda series: float(series[-1]),
}


def simulated(kind: str, count: int = 300, rows: int = 120 + HORIZON) -> list[Numbers]:
    """A panel: "rare" has a demand in 5 to 20 % of steps, "frequent" in 30 to 70 %, "fading" ever fewer, "single" is
    one series."""
    rng = np.random.default_rng(0)
    count = 1 if kind == "single" else count
    low, high = {"rare": (0.05, 0.2), "fading": (0.2, 0.6), "single": (0.2, 0.2)}.get(kind, (0.3, 0.7))
    chance = rng.uniform(low, high, (count, 1)) * np.ones(rows)
    if kind == "fading":
        chance *= np.linspace(1, 0, rows)
    sizes = 1 + rng.poisson(rng.lognormal(1, 1, (count, 1)), (count, rows))
    return list(((rng.random((count, rows)) < chance) * sizes).astype(float))


def tweets(folder: Path) -> list[Numbers]:
    series = []
    for path in sorted(folder.glob("Twitter_volume_*.csv")):
        values = np.genfromtxt(path, delimiter=",", skip_header=1)[:, 1]
        days = [values[len(values) - 288 * (day + 1) : len(values) - 288 * day][-120 - HORIZON :] for day in range(10)]
        series += [day for day in days if (day[:-HORIZON] == 0).mean() >= 0.2]
    return series


def pinball(values: Numbers, quantiles: Numbers) -> float:
    """The mean loss of quantiles (quantiles, horizon) of values (horizon,)."""
    over = values - quantiles
    level = np.array(QUANTILES)[:, None]
    return float(np.maximum(level * over, (level - 1) * over).mean())


def scores(name: str, panel: list[Numbers]) -> None:
    past, future = [series[:-HORIZON] for series in panel], [series[-HORIZON:] for series in panel]
    forecaster = plmu.Forecaster(HORIZON).fit(past)
    means = {method: [np.full(HORIZON, forecast(series)) for series in past] for method, forecast in METHODS.items()}
    bounds = {
        method: [np.quantile(series, QUANTILES)[:, None] * np.ones(HORIZON) for series in past] for method in means
    }
    means["plmu"] = forecaster.predict()
    bounds["plmu"] = forecaster.predict(quantiles=QUANTILES)
    for method, forecasts in means.items():
        rows = []
        for series, after, mean, quantiles in zip(past, future, forecasts, bounds[method], strict=True):
            unit, size = np.abs(np.diff(series)).mean(), series.mean()
            if unit > 0:
                error = after - mean
                rows.append(
                    (np.abs(error).mean() / unit, np.sqrt((error**2).mean()) / unit, pinball(after, quantiles) / size)
                )
        mase, rmsse, loss = np.mean(rows, axis=0)
        below = min(float(np.min(quantiles)) for quantiles in bounds[method])
        figures = f"MASE {mase:.3f}  root mean square {rmsse:.3f}  pinball {loss:.3f}"
        print(f"{name:<10}{method:<12}{figures}  least {below:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tweets", type=Path, help="folder with Twitter_volume_*.csv")
    options = parser.parse_args()
    for kind in ("rare", "frequent", "fading", "single"):
        scores(kind, simulated(kind))
    if options.tweets:
        scores("tweets", tweets(options.tweets))


if __name__ == "__main__":
    main()
