"""Half-lives, intervals as rows are learned, and how sound sums stay over many updates."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from closeness import within
from learned_sums import (
    MEMORY,
    ROWS,
    assert_close,
    course,
    of_reference,
    reference_sums,
)
from torch import Tensor

import plmu
from plmu.nn import LookbackForecast
from plmu.timeseries.learning import ReadoutSums


def test_new_rows_are_forecast_before_they_are_learned() -> None:
    data = course()
    forecaster = plmu.Forecaster(**MEMORY).fit(data[:ROWS])
    before = len(forecaster.fitted_.errors[1].errors)
    model = forecaster.model
    forecaster.partial_fit(data[ROWS : ROWS + 8])
    calibration = forecaster._learning().calibration
    errors = calibration.errors[before:, 0]
    assert errors.shape == (8, 5)
    assert not calibration.unit.relative  # errors are in the units of the data
    window = torch.from_numpy(data.T.copy())
    for row in range(8):
        for step in range(5):
            end = ROWS + row - step
            with torch.no_grad():
                ahead = model.read(window[:, end - 16 : end], torch.tensor(end - 1))
            error = data[ROWS + row, 0] - float(ahead[0, step])
            assert float(errors[row, step]) == pytest.approx(error, abs=2e-5)


def test_intervals_follow_the_errors_of_new_rows() -> None:
    rng = np.random.default_rng(1)
    calm, loud = course(400)[:, 0], course(1000, seed=2)[400:, 0] + 3 * rng.standard_normal(600)
    forecaster = plmu.Forecaster(**MEMORY, half_life=100.0).fit(calm)

    def width() -> float:
        ahead = forecaster.predict(level=80)
        return float((ahead.upper - ahead.lower).mean())

    first = width()
    forecaster.partial_fit(loud[:500])
    assert width() > 3 * first
    inside = []
    for row in range(500, 595):
        ahead = forecaster.predict(level=80)
        inside.append((ahead.lower[0, 0] <= loud[row]) & (loud[row] <= ahead.upper[0, 0]))
        forecaster.partial_fit(loud[row : row + 1])
    assert 0.66 < np.mean(inside) < 0.92  # 80 % of 95: three standard deviations are 12 points


def test_half_life_is_a_regression_with_weights() -> None:
    """The readout follows a process whose coefficient changes, one without a half-life does not."""
    rng = np.random.default_rng(0)
    values = np.zeros(3000)
    for t in range(1, 3000):
        values[t] = (0.9 if t < 2000 else -0.5) * values[t - 1] + rng.standard_normal()
    options: dict[str, Any] = {"horizon": 1, "lookback": 4, "order": 3, "season": 0}
    errors = []
    for half_life in (None, 150):
        forecaster = plmu.Forecaster(**options, half_life=half_life).fit(values[:1500])
        forecaster.partial_fit(values[1500:2800])
        errors.append(forecaster.evaluate(values[2796:], start=2796)["mse"])
    assert errors[1] < 0.7 * errors[0]


@pytest.mark.parametrize(
    ("half_life", "steps"), [("7d", 7.0), ("12h", 0.5), ("2w", 14.0), (30, 30.0), ("1mo", 365.2425 / 12)]
)
def test_half_life_as_a_time(half_life: Any, steps: float) -> None:
    frame = pd.DataFrame({"ds": pd.date_range("2024-01-01", periods=120, freq="D"), "y": course(120)[:, 0]})
    forecaster = plmu.Forecaster(**MEMORY, half_life=half_life).fit(frame)
    assert forecaster._learning().forgetting.half_life == pytest.approx(steps)


@pytest.mark.parametrize("half_life", [0, -1.0, math.nan, "7", "days", True, "0d"])
def test_a_half_life_that_is_none(half_life: Any) -> None:
    with pytest.raises(ValueError, match="half_life must be a positive number of rows or a length of time such as"):
        plmu.Forecaster(half_life=half_life).fit(course()[:, 0])


def test_half_life_as_a_time_needs_times() -> None:
    forecaster = plmu.Forecaster(half_life="7d")
    with pytest.raises(ValueError, match="half_life='7d' needs dates"):
        forecaster.fit(course()[:, 0])
    assert not hasattr(forecaster, "model_")


def decayed_sums(updates: int, half_life: float) -> tuple[Tensor, Tensor]:
    """Sums after so many updates by one row of 3 features, of a stream that repeats; and those of a closed form."""
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((1000, 3)))
    products = rows[:, :, None] * rows[:, None]
    factor = 2.0 ** (-1 / half_life) if math.isfinite(half_life) else 1.0
    sums = ReadoutSums.zeros(3, 1, 1.0, math.inf, torch.ones(1))
    gram, cross = [product[None] for product in products], sums.cross
    for update in range(updates):
        sums = sums.decayed(factor).added(gram[update % 1000], cross, 1.0)
    cycles = updates // 1000
    within = (products * factor ** torch.arange(999, -1, -1, dtype=torch.float64)[:, None, None]).sum(0)
    whole = within * cycles if factor == 1.0 else within * (1 - factor ** (1000 * cycles)) / (1 - factor**1000)
    return sums.gram[0], whole


@pytest.mark.parametrize("half_life", [math.inf, 1000.0])
@pytest.mark.parametrize("updates", [20_000, pytest.param(10_000_000, marks=pytest.mark.full)])
def test_sums_stay_sound(updates: int, half_life: float) -> None:
    """Each update rounds twice, by at most eps / 2 of the sum, and with a half-life these errors decay, too. So the
    error is below eps times the number of updates that count, relative to the powers of the features."""
    sums, expected = decayed_sums(updates, half_life)
    counting = min(updates, half_life / math.log(2))
    power = expected.diagonal().sqrt()
    bound = 2 * (counting + 1000) * torch.finfo(torch.float64).eps
    within(float(((sums - expected).abs() / (power[:, None] * power)).max()), bound)


def test_a_fit_with_half_life_does_not_learn_test_rows(path: Path) -> None:
    data = course()[:, 0]
    forecaster = plmu.Forecaster(**MEMORY, test=0.3, half_life=40.0).fit(data[:ROWS])
    assert isinstance(forecaster.model, LookbackForecast)
    for rows in (140, ROWS, len(data)):
        if rows == len(data):
            forecaster.partial_fit(data[ROWS:])
        elif rows == ROWS:
            forecaster.save(path, updatable=True)
            assert plmu.Forecaster.load(path).sums_.count > forecaster.sums_.count
            continue
        series = [(0, data[:rows, None], forecaster.scale_)]
        gram, cross, count = reference_sums(forecaster.model, series, 40.0)
        assert_close(forecaster.sums_, of_reference(forecaster.sums_, gram, cross, count))
    loaded = plmu.Forecaster.load(path).partial_fit(data[ROWS:])
    np.testing.assert_array_equal(loaded.predict(level=80).upper, forecaster.predict(level=80).upper)
