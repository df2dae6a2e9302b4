"""Prediction intervals of `plmu.Forecaster` where series are short, shift their level, or hardly ever change."""

from __future__ import annotations

import numpy as np
import pytest

import plmu


@pytest.mark.parametrize("rows", [12, 20, 36])
def test_levels_of_few_rows_are_told_apart(rows: int) -> None:
    series = 50 + np.random.default_rng(rows).standard_normal(rows)
    forecaster = plmu.Forecaster(3).fit(series)
    ahead = forecaster.predict(level=[80, 95])
    outer, inner = ahead.upper[1] - ahead.mean, ahead.upper[0] - ahead.mean
    assert (outer > 1.2 * inner).all()
    assert (inner > 0).all()
    assert (ahead.lower[1] < ahead.lower[0]).all()
    assert (ahead.lower[0] < ahead.mean).all()
    assert (outer < 50).all()
    errors = forecaster.fitted_.intervals((0.8,)).errors
    assert len(errors) == 3
    assert any("Student's t" in note and f"{errors[0]} errors" in note for note in forecaster.notes_)


@pytest.mark.parametrize("rows", [60, 120, 600])
def test_an_old_level_shift_does_not_widen_intervals(rows: int) -> None:
    series = 50 + np.random.default_rng(0).standard_normal(rows)
    series[int(0.3 * rows) :] += 100
    ahead = plmu.Forecaster(12).fit(series).predict(level=80)
    assert (ahead.upper[0] - ahead.mean < 20).all()
    assert (ahead.mean - ahead.lower[0] < 20).all()


def test_intervals_are_measured_in_the_window_of_the_model() -> None:
    """The look-back that is tried is longer than the window of shared readouts; streams hold the latter alone."""
    rng = np.random.default_rng(0)
    series = [100 * (1 + n) + rng.standard_normal(400).cumsum() for n in range(6)]
    forecaster = plmu.Forecaster(8, season=0, pooled=True).fit(series)
    assert forecaster.settings_.lookback > forecaster.model.lookback
    assert forecaster.fitted_.intervals((0.8,)).lookback == forecaster.model.lookback


def test_a_series_with_many_zeros_has_intervals_of_its_size() -> None:
    """A window of zeros has no changes that errors could be relative to."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        series = (rng.random(40) < 0.2) * rng.poisson(4.0, 40)
        ahead = plmu.Forecaster(4).fit(series.astype(float)).predict(level=[80, 95])
        assert (ahead.upper < 60).all()
