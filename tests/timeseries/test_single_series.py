"""A single series: the look-back, the linear maps of windows and the simple methods that are compared on the validation
rows; and that the model that wins is an ordinary one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from closeness import within
from exported import program

import plmu
from plmu.exports.evaluate import Evaluator
from plmu.nn import LookbackForecast, PooledForecast
from plmu.timeseries import pooled, pooled_choice
from plmu.timeseries.choosing import fit
from plmu.timeseries.comparing import CLEAR, SURE, Options
from plmu.timeseries.forecast_files import model_summary
from plmu.timeseries.pooled_choice import Tried, averaged, mean_of
from plmu.timeseries.pooled_windows import SingleError
from plmu.timeseries.window_linear import LinearMap, seasonal_map

SIMPLE = ("seasonal last value", "linear", "Theta")
EPS32 = torch.finfo(torch.float32).eps


def spikes(rows: int = 900, period: int = 24, seed: int = 0) -> np.ndarray:
    """Near zero, with high peaks: far more than three mean levels above the last value."""
    rng = np.random.default_rng(seed)
    day = np.where(np.arange(period) == 9, 20.0, 0.1)
    return np.resize(day, rows) * (1 + 0.1 * rng.standard_normal(rows)) + 0.01 * rng.random(rows)


def weeks(rows: int = 700, seed: int = 0) -> np.ndarray:
    """A level that wanders, and a week."""
    rng = np.random.default_rng(seed)
    profile = np.array([0, 1, 3, 2, 1, -4, -3.0])
    return 50 + np.resize(profile, rows) + 0.3 * rng.standard_normal(rows).cumsum() + rng.standard_normal(rows)


def walk(rows: int = 500, seed: int = 0) -> np.ndarray:
    return 100 + np.random.default_rng(seed).standard_normal(rows).cumsum()


@pytest.mark.parametrize("series", [spikes(), weeks(), walk(), np.stack([weeks(), walk(700)], axis=1)])
def test_the_saved_model_is_not_worse_than_the_simple_methods(series: np.ndarray) -> None:
    forecaster = plmu.Forecaster(12, test=0.2).fit(series)
    summary = forecaster.validation_
    errors = summary["errors"]
    assert set(errors) >= {"pooled", "look-back", "last value", "linear", "Theta"}
    simple = min(errors[name] for name in SIMPLE if name in errors)
    chosen, other = (errors[name] for name in ("pooled", "look-back"))
    if summary["model"] == "look-back":
        chosen, other = other, chosen
    assert chosen <= simple * (1 if series.ndim == 1 else 1 / SURE)
    assert chosen <= other * (1 if series.ndim == 1 else 1 / CLEAR)
    line = model_summary(summary)[0]
    assert all(f"{name}: {errors[name]:.3g}" in line for name in errors if name in SIMPLE)
    assert {"linear mse", "Theta mse"} <= set(forecaster.evaluate())


def test_a_linear_map_and_the_season_before_are_members_that_reach_peaks() -> None:
    """Peaks are further from the last value than the members of panels forecast."""
    series, horizon, period = spikes(), 12, 24
    rng = np.random.default_rng(1)
    linear = LinearMap(*(torch.tensor(rng.standard_normal((30, horizon)) / 5, dtype=torch.float32) for _ in "ab"), 0.1)
    fit = pooled.fit([series], [len(series)], [100], horizon, period, maps=[linear, seasonal_map(horizon, period)])
    for known in (linear, seasonal_map(horizon, period)):
        tried = pooled._linear(known, fit.checked)
        assert tried.refitted is not None
        for weight, member in ((known.weight, tried.member), (known.refitted, tried.refitted)):
            forecasts = pooled_choice.forecasts_of(member, member.weight[None], fit.checked)[0].double()
            for place in range(0, len(forecasts), 7):
                end = int(fit.checked.places.ends[place])
                window = series[end - len(weight) : end]
                expected = window[-1] + (window - window[-1]) @ weight.double().numpy()
                ahead = forecasts[place].numpy() * float(fit.checked.level[place])
                np.testing.assert_allclose(ahead, expected, atol=2e-5 * np.abs(series).max())
    naive = pooled._linear(seasonal_map(horizon, period), fit.checked)
    assert (naive.forecasts.max() > 3 * fit.checked.future.mean()).all()


def test_the_mean_of_a_single_series_is_of_the_best_and_no_worse_than_a_simple_one() -> None:
    series = weeks()
    fit = pooled.fit([series], [len(series)], [120], 6, 7, maps=[seasonal_map(6, 7)])
    checked, fallback = fit.checked, fit.checked.fallback(7)
    error = SingleError.of(checked, fallback)
    assert error(fallback) == pytest.approx(1)
    half = fallback + (checked.future - fallback) / 2
    assert error(half) == pytest.approx(0.5)
    rng = np.random.default_rng(0)
    member = pooled._linear(seasonal_map(6, 7), checked).member
    noise = [torch.tensor(rng.standard_normal(half.shape), dtype=torch.float32) for _ in range(24)]
    there = torch.ones(len(half), 1)
    tried = [Tried(member, 0.1, half + (0.1 + 0.02 * place) * noise[place], there) for place in range(24)]
    single = [error(mean_of([candidate], [1], fallback)) for candidate in tried]
    counts, best = averaged(tried, error, fallback, [23])
    taken = [place for place, count in enumerate(counts) if count]
    assert len(taken) <= pooled_choice.MOST
    assert max(single[place] for place in taken) <= pooled_choice.NEAR * min(single)
    assert best == error(mean_of(tried, counts, fallback)) <= single[23]
    bias = [Tried(member, 0.1, half + place / 50, there) for place in range(4)]  # a mean is worse than the first
    assert averaged(bias, error, fallback, [0])[0] == [1, 0, 0, 0]


def test_the_look_back_of_a_single_series_is_chosen_by_validation() -> None:
    """Much of what comes depends on the last 24 steps alone, and a longer window has more noise than rows to fit."""
    rng = np.random.default_rng(0)
    series = np.zeros(1000)
    for step in range(12, 1000):
        series[step] = 0.9 * series[step - 12] + rng.standard_normal()
    split = plmu.Forecaster(6, season=0).fit(series).fitted_.series("split")
    assert (split.settings.lookback, split.settings.lookbacks) == (336, (12, 24))
    chosen, _, _ = fit(split, Options(individual=False))
    data = chosen.summary["lookbacks"] if chosen.summary["model"] == "look-back" else None
    assert data is None or chosen.summary["lookback"] == min(data, key=data.__getitem__) < 336
    assert chosen.summary["errors"]["look-back"] < chosen.summary["errors"]["linear"]  # of 336 steps
    explicit = plmu.Forecaster(6, lookback=50).fit(series)
    assert isinstance(explicit.model, LookbackForecast)
    assert not explicit.settings_.lookbacks


def test_the_winner_streams_saves_and_exports(tmp_path: Path) -> None:
    series = spikes(500)
    forecaster = plmu.Forecaster(12).fit(series)
    assert isinstance(forecaster.model, PooledForecast)
    assert any(member.kind.largest_change > 3 for member in forecaster.model.readouts)
    plmu.save(forecaster.model, tmp_path / "model.plmu")
    for model in (forecaster.model, plmu.load(tmp_path / "model.plmu")):
        stream, evaluator = plmu.Stream(model), Evaluator(program(model))
        for value in series[-forecaster.model.window :]:
            ahead = stream.push([value])
            lowered = evaluator.step(torch.tensor([[value]], dtype=torch.float32))
        bound = 100 * EPS32 * np.abs(series).max()
        within(np.abs(np.asarray(ahead) - forecaster.predict()).max(), bound)
        within(np.abs(lowered[0].numpy() - forecaster.predict()).max(), bound)


def test_one_fit_is_refitted_to_all_rows_unless_asked_not_to() -> None:
    series = weeks()
    kept = plmu.Forecaster(12, refit=False).fit(series)
    again = plmu.Forecaster(12).fit(series)
    for forecaster, same in ((kept, True), (again, False)):
        pairs = zip(forecaster.model.state_dict().values(), forecaster.fitted_.unrefitted.state_dict().values(),
                    strict=True)  # fmt: skip
        assert all(torch.equal(one, two) for one, two in pairs) == same


def test_series_too_short_for_half_of_the_members_are_noted(caplog: pytest.LogCaptureFixture) -> None:
    forecaster = plmu.Forecaster(12, pooled=True).fit(weeks())
    members = forecaster.model.readouts
    reached = [sum(member.kind.lookback <= rows for member in members) for rows in range(len(weeks()))]
    least = next(rows for rows, count in enumerate(reached) if 2 * count >= len(members))
    with caplog.at_level("INFO", "plmu"):
        forecaster.predict(weeks()[-least:])
        assert "less certain" not in caplog.text
        forecaster.predict(weeks()[-least + 1 :])
    assert f"1 series shorter than {least} steps: less certain" in caplog.text
