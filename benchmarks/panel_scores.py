"""Scores of forecasts of many series, by the definitions of the M competitions.

A set's true values and forecasts are arrays (series, horizon). Scores of each series are arrays (series,); `summary`
averages them over the series of a set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEVELS = (80, 95)  # percent


@dataclass(frozen=True)
class Forecasts:
    """Forecasts of the series of a set, with prediction intervals if a method has them."""

    mean: np.ndarray  # (series, horizon)
    lower: np.ndarray | None = None  # (levels, series, horizon), levels as in LEVELS
    upper: np.ndarray | None = None

    def first(self, count: int) -> Forecasts:
        """Those of the first series."""
        lower, upper = (None if bounds is None else bounds[:, :count] for bounds in (self.lower, self.upper))
        return Forecasts(self.mean[:count], lower, upper)


def smape(test: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Symmetric mean absolute percentage error in percent: mean 200 |y − f| / (|y| + |f|), where 0 / 0 is 0."""
    total = np.abs(test) + np.abs(mean)
    return 200 * np.divide(np.abs(test - mean), total, out=np.zeros_like(total), where=total > 0).mean(axis=1)


def naive_error(train: Sequence[np.ndarray], season: int) -> np.ndarray:
    """What MASE and MSIS are relative to: mean |y[t] − y[t − season]| over the training values of each series."""
    return np.array([np.abs(values[season:] - values[:-season]).mean() for values in train])


def mase(test: np.ndarray, mean: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Mean absolute scaled error: mean |y − f| by `naive_error`."""
    return np.abs(test - mean).mean(axis=1) / unit


def msis(test: np.ndarray, lower: np.ndarray, upper: np.ndarray, unit: np.ndarray, level: float = 95) -> np.ndarray:
    """Mean scaled interval score: the mean of the interval's width plus 2/α times how far y is outside, with
    α = 1 − level/100, by `naive_error`."""
    outside = np.maximum(lower - test, 0) + np.maximum(test - upper, 0)
    return (upper - lower + 2 / (1 - level / 100) * outside).mean(axis=1) / unit


def coverage(test: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """The share of the true values within the interval."""
    return ((lower <= test) & (test <= upper)).mean(axis=1)


def weighted_quantile_loss(test: np.ndarray, quantiles: Mapping[float, np.ndarray]) -> float:
    """The mean over quantiles q of 2 Σ (q − [y < f]) (y − f) / Σ |y|, with sums over all steps of all series."""
    losses = [2 * ((q - (test < forecast)) * (test - forecast)).sum() for q, forecast in quantiles.items()]
    return float(np.mean(losses) / np.abs(test).sum())


def summary(test: np.ndarray, unit: np.ndarray, forecasts: Forecasts) -> dict[str, float]:
    """The scores of a set, averaged over its series.

    The weighted quantile loss is over the ends of the 80 and 95 % intervals: the quantiles 0.025, 0.1, 0.9 and 0.975.
    """
    scores = {"smape": smape(test, forecasts.mean), "mase": mase(test, forecasts.mean, unit)}
    if forecasts.lower is None or forecasts.upper is None:
        return {name: float(values.mean()) for name, values in scores.items()}
    quantiles: dict[float, np.ndarray] = {}
    for level, lower, upper in zip(LEVELS, forecasts.lower, forecasts.upper, strict=True):
        scores[f"coverage {level}"] = coverage(test, lower, upper)
        tail = (1 - level / 100) / 2
        quantiles |= {tail: lower, 1 - tail: upper}
    scores["msis"] = msis(test, forecasts.lower[-1], forecasts.upper[-1], unit, LEVELS[-1])
    means = {name: float(values.mean()) for name, values in scores.items()}
    return {**means, "weighted quantile loss": weighted_quantile_loss(test, quantiles)}


def owa(scores: Mapping[str, float], naive2: Mapping[str, float]) -> float:
    """Overall weighted average of the M4: sMAPE and MASE relative to Naive 2's on the same series, averaged."""
    return (scores["smape"] / naive2["smape"] + scores["mase"] / naive2["mase"]) / 2


def together(sets: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Averages over the series of several sets, of the scores that are averages over series in each."""
    total = sum(count for count, _ in sets)
    names = [name for name in sets[0][1] if name not in ("weighted quantile loss", "owa")]
    return {name: sum(count * scores[name] for count, scores in sets) / total for name in names}
