"""The simple methods of the M competitions for many series at once: Naive, seasonal naive, Naive 2 and Theta.

Every method takes the training values of the series, the horizon and the seasonal period, and returns forecasts
(series, horizon). They follow the R code of the M4 (github.com/Mcompetitions/M4-methods). Series of similar lengths are
computed together, aligned at their ends, with zeros before their starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

BLOCK = 2**21  # values computed together


def naive(train: Sequence[np.ndarray], horizon: int, season: int = 1) -> np.ndarray:
    """The last value."""
    return np.repeat([[values[-1]] for values in train], horizon, axis=1)


def seasonal_naive(train: Sequence[np.ndarray], horizon: int, season: int) -> np.ndarray:
    """The last season."""
    return np.array([np.resize(values[-season:], horizon) for values in train])


def naive2(train: Sequence[np.ndarray], horizon: int, season: int) -> np.ndarray:
    """The last value of the deseasonalised series, with the season put back."""
    forecasts = np.empty((len(train), horizon))
    for rows, values, lengths in blocks(train):
        indices = seasonal_indices(values, lengths, season)
        last = values[:, -1] / indices[:, -1]
        forecasts[rows] = last[:, None] * ahead(indices, horizon)
    return forecasts


def theta(train: Sequence[np.ndarray], horizon: int, season: int) -> np.ndarray:
    """The classical Theta method on the deseasonalised series, with the season put back.

    The mean of the linear trend, and of simple exponential smoothing of the Theta line 2, which is twice the series
    minus the trend. Forecasts below zero are zero, as in the M4.
    """
    forecasts = np.empty((len(train), horizon))
    for rows, values, lengths in blocks(train):
        indices = seasonal_indices(values, lengths, season)
        values = values / ahead(indices, values.shape[1] + -values.shape[1] % season)[:, -values.shape[1] :]
        steps = np.arange(1 - values.shape[1], 1.0)  # the last is 0
        within = steps > -lengths[:, None]
        centred = np.where(within, steps + (lengths[:, None] - 1) / 2, 0)
        slope = (centred * values).sum(axis=1) / np.maximum((centred**2).sum(axis=1), 1)
        middle = values.sum(axis=1) / lengths
        trend = middle[:, None] + slope[:, None] * (steps + (lengths[:, None] - 1) / 2)
        level = smoothed(np.where(within, 2 * values - trend, 0), lengths)
        future = trend[:, -1:] + slope[:, None] * np.arange(1, horizon + 1)
        forecasts[rows] = np.maximum((future + level[:, None]) / 2 * ahead(indices, horizon), 0)
    return forecasts


METHODS = {"naive": naive, "seasonal naive": seasonal_naive, "naive 2": naive2, "theta": theta}


def blocks(train: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Series of similar lengths: their places in `train`, their values (series, time), and their lengths."""
    lengths = np.array([len(values) for values in train])
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        longest = int(lengths[order[0]])
        enough = lengths[order[: max(1, BLOCK // longest)]] >= longest / 2
        rows, order = np.split(order, [int(enough.sum())])
        padded = np.zeros((len(rows), longest))
        for place, row in enumerate(rows):
            padded[place, longest - lengths[row] :] = train[row]
        yield rows, padded, lengths[rows]


def ahead(indices: np.ndarray, steps: int) -> np.ndarray:
    """The seasonal indices (series, season) of the steps after the last, (series, steps)."""
    return indices[:, np.arange(steps) % indices.shape[1]]


def seasonal_indices(values: np.ndarray, lengths: np.ndarray, season: int) -> np.ndarray:
    """Multiplicative seasonal indices (series, season) of classical decomposition, from the step after the last on.

    They are 1 where the series is shorter than three seasons, or the autocorrelation at the season is not significant
    at 90 %.
    """
    indices = np.ones((len(values), season))
    seasonal = np.flatnonzero(is_seasonal(values, lengths, season))
    if not len(seasonal):
        return indices
    values, lengths = values[seasonal], lengths[seasonal]
    weights = np.full(season, 1.0) if season % 2 else np.r_[0.5, np.ones(season - 1), 0.5]
    half, time = len(weights) // 2, values.shape[1]
    trend = sum(weight * values[:, lag : lag + time - 2 * half] for lag, weight in enumerate(weights)) / season
    inside = np.arange(half, time - half) >= time - lengths[:, None] + half
    inside &= trend != 0
    padding = ((0, 0), (half + -time % season, half))  # so that columns are whole seasons
    ratio = np.divide(values[:, half : time - half], trend, out=np.zeros_like(trend), where=inside)
    ratio, inside = (np.pad(part, padding).reshape(len(values), -1, season) for part in (ratio, inside))
    profile = ratio.sum(axis=1) / np.maximum(inside.sum(axis=1), 1)
    indices[seasonal] = profile / profile.mean(axis=1, keepdims=True)
    return indices


def is_seasonal(values: np.ndarray, lengths: np.ndarray, season: int) -> np.ndarray:
    """Whether the autocorrelation at the season is significant at 90 %, by Bartlett's formula."""
    long = lengths >= 3 * season
    if season == 1 or not long.any():
        return np.zeros(len(values), dtype=bool)
    within = np.arange(values.shape[1]) >= values.shape[1] - lengths[:, None]
    centred = np.where(within, values - values.sum(axis=1, keepdims=True) / lengths[:, None], 0)
    power = (centred**2).sum(axis=1)
    products = np.stack([(centred[:, lag:] * centred[:, :-lag]).sum(axis=1) for lag in range(1, season + 1)])
    correlations = np.divide(products, power, out=np.zeros_like(products), where=power > 0)  # (lags, series)
    limits = 1.645 * np.sqrt((1 + 2 * (correlations[:-1] ** 2).sum(axis=0)) / lengths)
    return long & (np.abs(correlations[-1]) > limits)


def smoothed(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The last level of simple exponential smoothing, (series,), with the rate and the first level of least squares.

    The rate is found on a grid between 0.0001 and 0.9999 that is refined three times around its best.
    """
    low, high = np.full(len(values), 1e-4), np.full(len(values), 1 - 1e-4)
    rows = np.arange(len(values))
    for _ in range(4):
        rates = np.linspace(low, high, 11, axis=1)  # (series, rates)
        errors, levels = _smoothing(values, lengths, rates)
        best = errors.argmin(axis=1)
        low, high = rates[rows, np.maximum(best - 1, 0)], rates[rows, np.minimum(best + 1, 10)]
    return levels[rows, best]


def _smoothing(values: np.ndarray, lengths: np.ndarray, rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squared errors and last levels for several rates, both (series, rates), with the first level of least squares.

    Errors and levels are linear in the first level: they are computed for a first level of 0, with its weight beside.
    """
    level, weight, squares, products, power = (np.zeros(rates.shape) for _ in range(5))
    decay = 1 - rates
    starts = values.shape[1] - lengths
    for step, column in enumerate(values.T):
        weight[starts == step] = 1  # a series starts: before, all are zero
        error = column[:, None] - level
        squares += error * error
        products += error * weight
        power += weight * weight
        level += rates * error
        weight *= decay
    first = products / power
    return squares - first * products, level + first * weight
