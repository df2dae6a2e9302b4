"""`plmu.timeseries.pooled` against plain NumPy: its ridge, classical members, choice of members and windows; and what a
fit to series keeps: values that it must not see, scale, and the forecasts of streams and exports."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from closeness import within
from exported import program

import plmu
from plmu.exports.evaluate import Evaluator
from plmu.folded.pooled import Member
from plmu.nn import PooledForecast
from plmu.nn.pooled import PooledMember
from plmu.timeseries import pooled, pooled_choice, pooled_windows
from plmu.timeseries.pooled_choice import Tried
from plmu.timeseries.pooled_members import LEAST, Candidates, Classical
from plmu.timeseries.pooled_readouts import Sums, fit_readout, fit_readouts, train
from plmu.timeseries.pooled_windows import Error, Limits, Panel, Places, Windows, validation_places

EPS32 = torch.finfo(torch.float32).eps
HORIZON, SEASON = 4, 6


def panel(count: int = 12, rows: int = 60, seed: int = 0) -> list[np.ndarray]:
    """Positive series of unequal length, level and season."""
    rng = np.random.default_rng(seed)
    series = []
    for number in range(count):
        k = np.arange(rows - 3 * (number % 4))
        wave = 1 + 0.3 * np.sin(2 * np.pi * k / SEASON + number)
        series.append(10 * (number + 1) * (1 + 0.01 * k) * wave * np.exp(0.05 * rng.standard_normal(len(k))))
    return series


def fitted(series: list[np.ndarray], season: int = SEASON, validation: int = 8) -> pooled.PooledFit:
    lengths = [len(values) for values in series]
    rows = [validation if len(values) >= validation + 2 * HORIZON else 0 for values in series]
    return pooled.fit(series, lengths, rows, HORIZON, season)


def test_the_ridge_is_numpys() -> None:
    """Weighted, in several parts, for features divided by the root of their weighted power."""
    rng = np.random.default_rng(1)
    rows, alphas = 900, (1e-3, 1e-1)
    x = rng.standard_normal((rows, 5)) @ np.diag([1, 10, 0.1, 3, 1])
    y, weight = rng.standard_normal((rows, 3)) + x[:, :3], rng.random((rows, 1))
    float32 = [torch.tensor(values, dtype=torch.float32) for values in (x, y, weight)]
    x, y, weight = (values.double().numpy() for values in float32)
    sums = Sums(5, 3)
    for part in zip(*(values.split(400) for values in float32), strict=True):
        sums.add(*part)
    result = sums.solve(alphas).double().numpy()
    weight = weight / weight.sum()
    gram, cross = x.T @ (weight * x), x.T @ (weight * y)
    scale = np.sqrt(np.diag(gram))
    for place, alpha in enumerate(alphas):
        solved = np.linalg.solve(gram / scale / scale[:, None] + alpha * np.eye(5), cross / scale[:, None])
        expected = solved / scale[:, None]
        # Features and targets are weighted in float32; the condition of the system is at most 1 / alpha.
        bound = 8 * EPS32 / alpha * np.abs(solved).max() / scale[:, None]
        within(float((np.abs(result[place] - expected) / bound).max()), 1.0)


@pytest.mark.parametrize(("rate", "slope"), list(product([0.2, 0.6, 1.0], [0.0, 0.5, 1.0])))
def test_a_classical_member_is_smoothing_with_a_trend(rate: float, slope: float) -> None:
    """In plain loops: the level of exponential smoothing that begins with the first value, and a share of the slope of
    the least-squares line. With the whole window and half of the slope it is the method Theta."""
    rng = np.random.default_rng(2)
    size = 9
    values = 20 + rng.standard_normal(size).cumsum()
    level, late = values[0], 0.0
    for value in values:
        level = rate * value + (1 - rate) * level
    ages = np.arange(size)[::-1]
    smoothing = rate * (1 - rate) ** ages
    smoothing[0] += (1 - rate) ** size
    late = (smoothing * ages).sum()
    line = np.polyfit(np.arange(size), values, 1)[0]
    expected = [level + slope * line * (step + late) for step in range(1, HORIZON + 1)]
    member = Classical(Member(size, 0, False, False), rate, slope)
    layer = PooledForecast(1, HORIZON, size, [member.kind]).requires_grad_(False)
    layer.readouts[0].weight.copy_(member.weight(HORIZON))
    with torch.no_grad():
        result = layer.read(torch.tensor(values)[None, None], torch.tensor([[size]]))[0, 0]
    # Weights are rounded to float32; the forecast is a sum of `size` changes with weights below 2.
    within(np.abs(result.numpy() - expected).max(), 2 * size * EPS32 * np.ptp(values))


def test_theta_is_the_mean_of_its_two_lines() -> None:
    """With a rate of one, whose smoothed level is the last value: the mean of the last value and of the last value with
    the whole slope."""
    values = torch.tensor(np.random.default_rng(3).standard_normal(12).cumsum() + 9)[None, None]
    forecasts = []
    for slope in (0.0, 0.5, 1.0):
        member = Classical(Member(12, 0, False, False), 1.0, slope)
        layer = PooledForecast(1, HORIZON, 12, [member.kind]).requires_grad_(False)
        layer.readouts[0].weight.copy_(member.weight(HORIZON))
        forecasts.append(layer.read(values, torch.tensor([[12]])))
    within(
        (forecasts[1] - (forecasts[0] + forecasts[2]) / 2).abs().max(), 24 * EPS32 * float(values.max() - values.min())
    )


def candidates(count: int, seed: int) -> tuple[list[Tried], Error, torch.Tensor]:
    """Forecasts near the future, of which some are not available for all windows."""
    torch.manual_seed(seed)
    windows = 10
    future = torch.randn(windows, HORIZON, dtype=torch.float64)
    tried = []
    for number in range(count):
        member = PooledMember(Member(4, 0, number == 6, adaptive=2 * (number == 3)), HORIZON)
        available = (torch.rand(windows, 1) < (0.7 if number % 2 else 1.1)).double()
        forecasts = available * (future + (0.5 + 0.1 * number) * torch.randn_like(future))
        tried.append(Tried(member, 0.1 * (number % 3 > 0), forecasts, available))
    return tried, Error(future, torch.rand(windows, 1, dtype=torch.float64) / windows), torch.zeros_like(future)


@pytest.mark.parametrize("seed", range(6))
def test_the_mean_has_all_candidates_near_the_best(seed: int) -> None:
    """Against loops: twice the fitted ones, once the classical ones, if none of the two kinds is far behind; fewer
    while the mean is worse than the best simple one."""
    tried, error, fallback = candidates(9, seed)

    def error_of(counts: list[int]) -> float:
        total = 0.0
        for window in range(len(fallback)):
            there = [(tried[place].forecasts[window], count) for place, count in enumerate(counts)
                     if count and tried[place].available[window]]  # fmt: skip
            mean = fallback[window]
            if there:
                mean = sum(count * values for values, count in there) / sum(count for _, count in there)
            total += float(error.scales[window] * (mean - error.future[window]).abs().mean())
        return total

    alone = [error_of([int(place == only) for place in range(9)]) for only in range(9)]
    best_of = {classical: min(a for a, t in zip(alone, tried, strict=True) if t.classical == classical)
               for classical in (False, True)}  # fmt: skip
    simple = min(alone[place] for place, candidate in enumerate(tried) if candidate.simple)
    expected = [int(alone[place] == min(alone)) for place in range(9)]
    for most in (12, 6, 3):
        counts = [0] * 9
        for place, candidate in enumerate(tried):
            same = sorted(alone[other] for other in range(9) if tried[other].classical == candidate.classical)
            if best_of[candidate.classical] > 1.1 * min(alone):
                continue
            if candidate.classical:
                counts[place] = int(same.index(alone[place]) < max(min(most, 4), most // 2))
            elif alone[place] <= 1.2 * same[0]:
                counts[place] = 2 * int(same.index(alone[place]) < most)
        if error_of(counts) <= simple:
            expected = counts
            break
    result = pooled_choice.blended(tried, error, fallback)
    assert result[0] == expected
    assert result[1] == pytest.approx(error_of(expected), rel=1e-12)
    assert result[1] <= simple * (1 + 1e-12)


def test_twins_from_one_gram_matrix_are_fits_of_their_own() -> None:
    """A member that starts from classical forecasts, and one that does not: without reweighting as fitted alone."""
    series = panel(20, 60)
    lengths = torch.tensor([len(values) for values in series])
    candidates = Candidates.of(lengths, HORIZON, SEASON)
    places = Places(torch.arange(20).repeat_interleave(8), torch.arange(30, 46, 2).repeat(20))
    windows = Windows.of(Panel.of(series, lengths, SEASON), places, candidates, HORIZON)
    for log in (False, True):
        kind = Member(9, SEASON, log, True, (5,), adaptive=4)
        both = fit_readouts(PooledMember(kind, HORIZON).requires_grad_(False), windows, (1e-2, 1e-1), rounds=0)
        for weights, power in zip(both, (4, 0), strict=True):
            member = PooledMember(kind._replace(adaptive=power), HORIZON).requires_grad_(False)
            alone = fit_readout(member, windows, (1e-2, 1e-1), rounds=0)
            torch.testing.assert_close(weights, alone, rtol=1e-3, atol=1e-4)
        assert not torch.allclose(both[0], both[1], atol=1e-2)


def test_windows_end_where_they_may() -> None:
    """Validation windows have their horizon in the validation rows, fitted windows before them; the last of each
    series is among them, and none is taken twice."""
    lengths, rows = torch.tensor([40, 9, 25, 3, 60]), torch.tensor([10, 0, 4, 0, 3])
    checked = pooled_windows.validation_places(lengths, rows, HORIZON)
    ends = {(number, end) for number, end in zip(checked.series.tolist(), checked.ends.tolist(), strict=True)}
    assert len(ends) == len(checked.series)
    allowed = {(number, end) for number in range(5) for end in range(int(lengths[number]) + 1)
               if end >= lengths[number] - rows[number] and end + HORIZON <= lengths[number]}  # fmt: skip
    assert ends == allowed  # of few series, all
    past = lengths - rows
    for limit, stride in ((8_000, 1), (8_000, 3), (20, 1), (4, 2)):
        taken = pooled_windows.latest_places(past, HORIZON, Limits(24, 100, limit), stride)
        ends = {(number, end) for number, end in zip(taken.series.tolist(), taken.ends.tolist(), strict=True)}
        assert len(ends) == len(taken.series) <= max(limit, 4)
        assert all(LEAST <= end <= past[number] - HORIZON for number, end in ends)
        if limit > 20:
            assert {(n, int(past[n]) - HORIZON) for n in (0, 1, 2, 4)} <= ends


def test_all_validation_windows_are_judged_where_they_are_few() -> None:
    places = validation_places(torch.tensor([50, 40]), torch.tensor([20, 0]), 8)
    assert sorted(places.ends.tolist()) == [*range(30, 43)]
    assert set(places.series.tolist()) == {0}


def test_what_follows_a_window_is_what_was_measured() -> None:
    """In units of the mean absolute value of its window; with the season divided out, which is that of the layer."""
    series = panel(3, 40)
    series[1] *= 1e12  # sums over all series would have no digits of the others
    counted = (40, 33, 30)
    places = Places(torch.tensor([0, 1, 2, 2]), torch.tensor([36, 4, 26, 25]))
    candidates = Candidates.of(torch.tensor(counted), HORIZON, SEASON)
    windows = Windows.of(Panel.of(series, torch.tensor(counted), SEASON), places, candidates, HORIZON)
    layer = PooledForecast(1, HORIZON, candidates.window, [Member(2, SEASON, False)])
    changes = [np.abs(v[SEASON:n] - v[: n - SEASON]).mean() for v, n in zip(series, counted, strict=True)]
    assert windows.share[:, 0].tolist() == [1, 1, 0.5, 0.5]
    for number, (place, end) in enumerate(zip(places.series.tolist(), places.ends.tolist(), strict=True)):
        steps = int(windows.steps[number])
        assert steps == min(candidates.window, end)
        values = series[place][end - steps : end]
        level = np.abs(values).mean()
        np.testing.assert_allclose(windows.level[number], level, rtol=1e-12)
        np.testing.assert_allclose(windows.unit[number], changes[place] / level, rtol=1e-6)
        np.testing.assert_allclose(windows.future[number], series[place][end : end + HORIZON] / level, rtol=1e-6)
        padded = torch.zeros(candidates.window, dtype=torch.float64)
        padded[-steps:] = torch.from_numpy(values / level)
        for season in (0, SEASON):
            without, ahead = layer.adjusted(padded, torch.tensor(steps), season)
            kind = Member(candidates.longest, season, False)
            past, following = windows.values(kind, torch.tensor([number]))
            np.testing.assert_allclose(past[0], without[-candidates.longest :], rtol=1e-6)
            np.testing.assert_allclose(following[0], ahead, rtol=1e-6)


def test_hidden_layers_are_trained_where_that_helps() -> None:
    """What follows a window is 1 if its values have risen by more than 0.1, else 0: no linear readout tells. Training
    repeats, and leaves the random numbers alone."""
    rng = np.random.default_rng(6)
    past = 1 + 0.1 * rng.standard_normal((600, 6))
    steps = past[:, -1:] - past[:, -2:-1]
    series = list(np.concatenate([past, np.where(np.abs(steps) > 0.1, 2, 1) * np.ones((600, HORIZON))], axis=1))
    lengths = torch.full((600,), 6 + HORIZON)
    candidates = Candidates.of(lengths, HORIZON, 0)
    places = Places(torch.arange(600), torch.full((600,), 6))
    windows = Windows.of(Panel.of(series, lengths, 0), places, candidates, HORIZON)
    error = Error.of(windows, windows.fallback(0))
    errors, weights = [], []
    for hidden in ((), (24, 24), (24, 24)):
        member = PooledMember(Member(6, 0, False, False, hidden), HORIZON)
        before = torch.get_rng_state()
        train(member, windows, windows.fallback(0))
        assert torch.equal(torch.get_rng_state(), before)
        assert not any(parameter.requires_grad for parameter in member.parameters())
        forecasts = pooled_choice.forecasts_of(member, member.weight[None], windows)[0]
        errors.append(error(forecasts))
        weights.append(member.weight)
    assert errors[1] == errors[2] < 0.8 * errors[0]
    assert torch.equal(weights[1], weights[2])


def test_trained_members_are_candidates_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooled, "HIDDEN", ((0, (8, 4)),))
    series = panel(12, 90)
    assert not any(len(kind.hidden) > 1 for kind, _, _ in fitted(series).members)
    monkeypatch.setattr(pooled, "TRAINED_ROWS", 500)
    monkeypatch.setattr(pooled, "blended", lambda tried, *_: ([int(candidate.trained) for candidate in tried], 0.5))
    fit = fitted(series)
    assert [kind.hidden for kind, _, _ in fit.members] == [(8, 4)] * len(fit.members)
    assert {kind.season for kind, _, _ in fit.members} == {0, SEASON}
    assert not torch.equal(fit.model.readouts[0].weight, fit.unrefitted.readouts[0].weight)


def test_candidates_do_not_see_the_validation_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where these change, the weights of all candidates stay; and rows after those that count are not read."""
    series = panel()
    longer = [np.append(values, np.full(5, 1e6)) for values in series]
    lengths, rows = [len(values) for values in series], [8] * len(series)
    expected, again = (pooled.fit(values, lengths, rows, HORIZON, SEASON) for values in (series, longer))
    assert again.members == expected.members
    assert all(map(torch.equal, again.model.state_dict().values(), expected.model.state_dict().values()))
    monkeypatch.setattr(pooled, "ALPHAS", (0.1,))
    monkeypatch.setattr(pooled, "blended", lambda tried, error, fallback: ([1] * len(tried), 1.0))
    other = [np.concatenate([values[:-8], 3 * values[-8:][::-1]]) for values in series]
    first, second = (pooled.fit(values, lengths, rows, HORIZON, SEASON) for values in (series, other))
    assert len(first.members) == len(second.members) > 20
    assert all(map(torch.equal, first.unrefitted.state_dict().values(), second.unrefitted.state_dict().values()))
    assert not all(map(torch.equal, first.model.state_dict().values(), second.model.state_dict().values()))


def test_a_fit_repeats_and_leaves_the_random_numbers_alone() -> None:
    torch.manual_seed(4)
    first = fitted(panel())
    torch.manual_seed(5)
    before = torch.get_rng_state()
    second = fitted(panel())
    assert torch.equal(torch.get_rng_state(), before)
    assert first.members == second.members
    for name, values in first.model.state_dict().items():
        assert torch.equal(values, second.model.state_dict()[name])


@pytest.mark.parametrize("factor", [2.0**-10, 2.0**20])
def test_scaled_series_have_scaled_forecasts(factor: float) -> None:
    """Exactly, by powers of two, with the same members; also where one series alone is scaled."""
    series = panel()
    forecaster = plmu.Forecaster(HORIZON, season=SEASON, pooled=True)
    expected = np.stack(forecaster.fit(series).predict())
    members = forecaster.validation_["members"]
    every = np.stack(forecaster.fit([factor * values for values in series]).predict())
    assert forecaster.validation_["members"] == members
    np.testing.assert_allclose(every, factor * expected, rtol=1e-4)
    few = [factor * values if number == 3 else values for number, values in enumerate(series)]
    result = np.stack(forecaster.fit(few).predict())
    result[3] /= factor
    np.testing.assert_allclose(result, expected, rtol=1e-4)


@pytest.mark.parametrize("level", [1e6, 1e9])
def test_small_changes_far_from_zero_are_forecast(level: float) -> None:
    """A trend and noise, as near zero: float32 at 1e9 has no digits of them."""
    k, noise = np.arange(160), np.random.default_rng(0).standard_normal((2, 160))
    series = [size * (0.5 * k + noise[place]) for place, size in enumerate((1.0, 3.0))]
    forecaster = plmu.Forecaster(HORIZON, season=0, pooled=True).fit([level + values for values in series])
    assert forecaster.model.shares.dtype == (torch.float32 if level < 1e5 else torch.float64)
    for size, forecast in zip((1.0, 3.0), forecaster.predict(), strict=True):
        expected = level + size * 0.5 * np.arange(160, 160 + HORIZON)
        assert np.abs(forecast - expected).max() < 3 * size  # the last value errs by half the horizon and its noise


def test_a_fitted_panel_streams_and_exports_its_forecasts(tmp_path: Path) -> None:
    series = panel()
    forecaster = plmu.Forecaster(HORIZON, season=SEASON, pooled=True).fit(series)
    plmu.save(forecaster.model, tmp_path / "model.plmu")
    for model in (forecaster.model, plmu.load(tmp_path / "model.plmu")):
        for values, expected in zip(series[:3], forecaster.predict()[:3], strict=True):
            stream, evaluator = plmu.Stream(model), Evaluator(program(model))
            for value in values:
                ahead = stream.push([value])
                lowered = evaluator.step(torch.tensor([[value]], dtype=torch.float32))
            # Streams and exports compute features and products in float32: sums of some hundred terms.
            bound = 50 * EPS32 * np.abs(values).max()
            within(np.abs(np.asarray(ahead) - expected).max(), bound)
            within(np.abs(lowered[0].numpy() - expected).max(), bound)


def test_short_series_are_forecast_by_what_they_have() -> None:
    """The last value of a single row; a constant series by its constant."""
    series = [*panel(), np.array([7.0]), np.full(40, 5.0), np.zeros(40)]
    forecaster = plmu.Forecaster(HORIZON, season=SEASON, pooled=True).fit(series)
    *_, single, constant, zeros = forecaster.predict()
    assert single.tolist() == [7.0] * HORIZON
    np.testing.assert_allclose(constant, 5.0, rtol=0.05)
    np.testing.assert_allclose(zeros, 0.0, atol=1e-12)
