"""Seasonal periods: pooled over the series of a panel, and no multiples or neighbours of the true ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import plmu
from plmu.timeseries import read_series
from plmu.timeseries.season import period


def scaled(values: np.ndarray) -> Tensor:  # type: ignore[type-arg]
    rows = np.atleast_2d(values)
    return torch.tensor((rows - rows.mean(1, keepdims=True)) / rows.std(1, keepdims=True), dtype=torch.float32)


def seasonal(steps: int, rows: int, noise: float, seed: int) -> Tensor:
    rng = np.random.default_rng(seed)
    profile = rng.standard_normal(steps)
    values = np.tile(profile / profile.std(), rows // steps + 1)[:rows]
    return scaled(values + noise * rng.standard_normal(rows) + 0.05 * rng.standard_normal(rows).cumsum())


@pytest.mark.parametrize("steps", [4, 7, 12, 24, 48, 52, 96])
def test_the_shortest_period_that_explains_as_much_is_taken(steps: int) -> None:
    for rows in (6 * steps, 11 * steps + 3, 30 * steps):
        for seed in range(3):
            assert period([seasonal(steps, rows, 0.2, seed)]) == steps, (rows, seed)


def test_the_longest_series_of_a_panel_does_not_decide_alone() -> None:
    panel = [seasonal(12, 900, 0.1, seed) for seed in range(8)]
    walk = scaled(np.random.default_rng(0).standard_normal(901).cumsum())
    assert period([walk, *panel]) == period([*panel, walk]) == 12
    assert period([walk]) == period([walk, walk[:, :400]]) == 0


def test_a_panel_with_a_random_walk_is_forecast_by_its_season() -> None:
    rng = np.random.default_rng(0)
    arrays = [np.sin(2 * np.pi * np.arange(900) / 12) + 0.02 * rng.standard_normal(900) for _ in range(8)]
    arrays.append(rng.standard_normal(901).cumsum())
    forecaster = plmu.Forecaster(12, lookback=6).fit([array[:-12] for array in arrays])  # too short to see the season
    assert forecaster.settings_.season == 12
    forecasts = forecaster.predict()
    errors = [np.sqrt(np.mean((ahead - array[-12:]) ** 2)) for ahead, array in zip(forecasts, arrays, strict=True)]
    assert max(errors[:8]) < 0.2  # the last value has 1


def test_many_series_short_ones_and_constant_ones() -> None:
    assert period([seasonal(7, 60, 0.2, seed) for seed in range(150)]) == 7
    assert period([torch.zeros(2, 100)]) == 0
    assert period([torch.zeros(1, 3), seasonal(7, 100, 0.1, 0)]) == 7
    both = torch.cat([seasonal(12, 300, 0.1, 0), seasonal(12, 300, 0.1, 1)])
    assert period([both]) == 12


@pytest.mark.parametrize(("name", "steps"), [("co2", 52), ("sunspots", 11), ("nile", 0), ("macrodata", 0)])
def test_periods_of_measured_series(name: str, steps: int) -> None:
    spec = importlib.util.find_spec("statsmodels")
    assert spec is not None
    assert spec.origin is not None
    data = read_series(Path(spec.origin).parent / "datasets" / name / f"{name}.csv")
    assert period([scaled(piece.values.T) for piece in data.pieces]) == steps
