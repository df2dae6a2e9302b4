"""Series for tests of learning, and the sums of a plain loop over their windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from closeness import within

import plmu
from plmu.nn import LookbackForecast
from plmu.timeseries.learning import ReadoutSums
from plmu.timeseries.learning_pooled import PooledSums

ROWS, LATER = 200, 60
MEMORY: dict[str, Any] = {"horizon": 5, "lookback": 16, "order": 4, "season": 12}
EXACT = 1e-9  # of sums in float64, relative to products of features


def course(rows: int = ROWS + LATER, channels: int = 1, seed: int = 0) -> np.ndarray:
    """A season of 12 steps that jumps, a slow wave, and noise, at a level of 10."""
    rng, t = np.random.default_rng(seed), np.arange(rows)[:, None]
    shape = np.random.default_rng(5).standard_normal(12)
    wave = shape[(t + 3 * np.arange(channels)) % 12] + np.sin(t / 40)
    values: np.ndarray = (10 + 2 * wave + 0.3 * rng.standard_normal((rows, channels))) * (1 + np.arange(channels))
    return values


def reference_sums(
    model: LookbackForecast, series: list[tuple[int, np.ndarray, np.ndarray]], half_life: float = math.inf
) -> tuple[np.ndarray, np.ndarray, float]:
    """Sums over all windows of series (first step, rows, unit), one window after the other: of each channel."""
    size, horizon = model.lookback, model.horizon
    response = plmu.DelayNetwork(model.order, model.config["theta"]).discretize().impulse_response(size).numpy()
    taps, latest = response[:, ::-1].T, max(start + len(rows) for start, rows, _ in series)
    gram = np.zeros((model.channels, model.order, model.order))
    cross, count = np.zeros((model.channels, model.order, horizon)), 0.0
    for start, rows, unit in series:
        for first in range(len(rows) - size - horizon + 1):
            age = latest - (start + first + size + horizon)
            weight = 2.0 ** (-age / half_life)
            count += weight
            for channel in range(model.channels):
                window, ahead = rows[first : first + size, channel], rows[first + size :][:horizon, channel]
                change, target = window - window[-1], ahead - window[-1]
                if model.season:
                    steps = (start + first + np.arange(size + horizon)) % model.season
                    shape = model.season_pattern[steps, channel].double().numpy()
                    shape = shape - shape[size - 1]
                    centred, prior = shape[:size] - shape[:size].mean(), float(model.prior[channel])
                    amplitude = np.clip((change @ centred + prior) / (centred @ centred + prior), 0, 2)
                    change, target = change - amplitude * shape[:size], target - amplitude * shape[size:]
                x, y = change @ taps / unit[channel], target / unit[channel]
                gram[channel] += weight * np.outer(x, x)
                cross[channel] += weight * np.outer(x, y)
    return gram, cross, count


def assert_close(sums: ReadoutSums, other: ReadoutSums) -> None:
    """Relative to the powers of the two factors of each product."""
    power = sums.gram.diagonal(dim1=1, dim2=2).sqrt()
    near = (sums.gram - other.gram).abs() / (power[:, :, None] * power[:, None]).clamp(min=1e-30)
    within(float(near.max()), EXACT)
    cross = (sums.cross - other.cross).abs().amax(2) / (power * sums.cross.abs().max() + 1e-30)
    within(float(cross.max()), EXACT)
    assert sums.count == pytest.approx(other.count, rel=EXACT)


def of_reference(sums: ReadoutSums, gram: np.ndarray, cross: np.ndarray, count: float) -> ReadoutSums:
    if len(sums.gram) == 1:
        gram, cross = gram.mean(0, keepdims=True), cross.mean(0, keepdims=True)
    return ReadoutSums(torch.from_numpy(gram), torch.from_numpy(cross), count, sums.alpha, sums.pull, sums.unit)


def panel(rows: int, names: str = "abc", first: int = 0) -> pd.DataFrame:
    times = pd.date_range("2020-01-01", periods=400, freq="D")[first : first + rows]
    parts = [
        pd.DataFrame({"unique_id": name, "ds": times, "y": course(400, seed=seed)[first : first + rows, 0] * 5**seed})
        for seed, name in enumerate(names)
    ]
    return pd.concat(parts, ignore_index=True)


def member_sums(forecaster: plmu.Forecaster) -> dict[int, ReadoutSums]:
    sums = forecaster._learning().sums
    assert isinstance(sums, PooledSums)
    return {number: part.sums for number, part in [*sums.members.items(), *sums.maps.items()]}
