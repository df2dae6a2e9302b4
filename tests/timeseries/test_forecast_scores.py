"""`plmu.timeseries.scores`: errors by a plain loop, intervals by exact ranks, baselines by hand."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import plmu
from plmu.clock import Clock
from plmu.errors import DataError
from plmu.nn import LookbackForecast
from plmu.timeseries import intervals, scores, window_linear
from plmu.timeseries.columns import Columns
from plmu.timeseries.intervals import Intervals, errors_of
from plmu.timeseries.scores import model_method, score, seasonal_value, variance
from plmu.timeseries.series import Piece, SeriesData
from plmu.timeseries.split import Split, Wanted
from plmu.timeseries.window_linear import WindowLinear
from plmu.timeseries.windows import Examples, Windows

LOOKBACK, HORIZON, CHANNELS = 6, 4, 2
# Quantiles of Student's t of intervals of 10, 20, 50, 80 and 95 %, by degrees of freedom, from scipy.stats.
STUDENT = {
    1: (0.1584, 0.3249, 1.0, 3.0777, 12.7062),
    2: (0.1421, 0.2887, 0.8165, 1.8856, 4.3027),
    4: (0.1338, 0.2707, 0.7407, 1.5332, 2.7764),
    9: (0.1293, 0.2610, 0.7027, 1.3830, 2.2622),
    39: (0.1265, 0.2551, 0.6808, 1.3036, 2.0227),
}
STUDENT |= dict.fromkeys(range(25, 39), STUDENT[39])  # within 1 %


def noise(*shape: int) -> np.ndarray:
    """Normal numbers, which are the same whenever a test runs."""
    return torch.randn(*shape, dtype=torch.float64).numpy()


def split_of(names: str = "ab", gaps: bool = False, season: int = 5, **wanted: Any) -> Split:
    """Two series of another level and size, of which the last rows are for tests."""
    pieces = []
    for place, (name, rows) in enumerate(zip(names, (50, 35), strict=True)):
        values = 100.0 * place + (1 + 3 * place) * noise(rows, CHANNELS).cumsum(0)
        measured = torch.rand(rows, CHANNELS).numpy() > (0.2 if gaps else -1)
        pieces.append(Piece(name, 20 * place, values, measured))
    data = SeriesData(Columns(None, ("a", "b"), None), Clock(), pieces)
    options = {"lookback": LOOKBACK, "season": season, "validation": 0.2, "test": 0.25} | wanted
    return Split.of_file(data, Wanted(HORIZON, **options))


def rows_of(split: Split, origin: int, rows: range) -> tuple[np.ndarray, np.ndarray, Piece]:
    """Values and which are measured, (channels, rows), relative to an origin; the first row for those before it."""
    for piece in split.data.pieces:
        if origin < len(piece):
            index = [max(0, origin + r) for r in rows]
            return piece.values[index].T - piece.values[:1].T, piece.measured[index].T, piece
        origin -= len(piece)
    raise IndexError


def line(examples: Examples) -> torch.Tensor:
    """A forecast by the difference of the last two rows."""
    windows = examples.windows
    return windows[..., -1:] + (windows[..., -1:] - windows[..., -2:-1]) * torch.arange(1, HORIZON + 1)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("names", ["ab", "aa"])
def test_scores_by_hand(gaps: bool, names: str) -> None:
    split = split_of(names, gaps)
    origins = split.origins("test")
    unit = Intervals.of(split, (0.9, 0.5))
    assert unit.levels == (0.5, 0.9)
    assert unit.relative == (names == "ab")
    sizes = torch.tensor([0.5, 2.0])[:, None, None] * torch.ones(2, CHANNELS, HORIZON)
    unit = replace(unit, low=-sizes, high=1.5 * sizes)
    result = score({"line": line, "last value": scores.last_value(HORIZON)}, split, origins, unit)
    errors, inside, counted = {"line": [], "last value": []}, [], []
    for origin in origins.tolist():
        window, _, _ = rows_of(split, origin, range(1 - LOOKBACK, 1))
        ahead, measured, _ = rows_of(split, origin, range(1, 1 + HORIZON))
        forecasts = {"last value": window[:, -1:].repeat(HORIZON, 1)}
        forecasts["line"] = window[:, -1:] + (window[:, -1:] - window[:, -2:-1]) * np.arange(1, HORIZON + 1)
        for name, forecast in forecasts.items():
            errors[name].append(np.where(measured, (forecast - ahead) / split.scale.numpy()[:, None], np.nan))
        unit = np.sqrt((np.diff(window) ** 2).sum(1, keepdims=True) / (LOOKBACK - 1)) if names == "ab" else 1.0
        part = (ahead - forecasts["line"]) / unit
        inside.append([measured & (-s <= part) & (part <= 1.5 * s) for s in (0.5, 2.0)])
        counted.append(measured)
    assert result.windows == len(origins)
    assert result.levels == (0.5, 0.9)
    shares = np.array(inside).sum((0, 2, 3)) / np.array(counted).sum()
    np.testing.assert_allclose(result.coverage, shares)
    assert 0.05 < shares[0] < shares[1] < 1
    for name, parts in errors.items():
        error, found = np.array(parts), result.errors[name]
        assert found.mse == pytest.approx(np.nanmean(error**2), rel=1e-4)
        assert found.mae == pytest.approx(np.nanmean(np.abs(error)), rel=1e-4)
        assert found.until(2) == pytest.approx(np.nanmean(error[..., :2] ** 2), rel=1e-4)
        np.testing.assert_allclose(found.by_step(), np.nanmean(error**2, axis=(0, 1)), rtol=1e-4)
        own = np.nanmean(np.abs(error), axis=(0, 2)) * split.scale.numpy()
        np.testing.assert_allclose(found.by_channel(split.scale), own, rtol=1e-4)


def test_what_was_never_measured() -> None:
    """The error of a column is not a number, since 0 would be perfect."""
    errors = scores.Errors(*(torch.zeros(CHANNELS, HORIZON) for _ in range(3)))
    assert errors.by_step() == [0.0] * HORIZON
    assert np.isnan(errors.by_channel(torch.ones(CHANNELS))).all()
    split = split_of()
    intervals = Intervals.of(split, (0.8,)).fitted(torch.randn(5, CHANNELS, HORIZON))
    with pytest.raises(DataError, match="the rows that are scored have no measured value"):
        score({"line": line}, split, split.origins("test")[:0], intervals)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("names", ["ab", "aa"])
def test_errors_in_units_of_the_changes_in_the_window(gaps: bool, names: str) -> None:
    """What was measured minus the forecast, one method after the other; NaN where a gap was filled."""
    split = split_of(names, gaps)
    origins = split.origins("valid")
    assert len(origins) > 8
    methods = [(line, origins[:8]), (scores.last_value(HORIZON), origins[8:])]
    errors = errors_of(Intervals.of(split, ()), methods, split.windows, split.length, HORIZON)
    for place, origin in enumerate(origins.tolist()):
        window, _, _ = rows_of(split, origin, range(1 - LOOKBACK, 1))
        ahead, measured, _ = rows_of(split, origin, range(1, 1 + HORIZON))
        slope = window[:, -1:] - window[:, -2:-1] if place < 8 else 0.0
        forecast = window[:, -1:] + slope * np.arange(1, HORIZON + 1)
        unit = np.sqrt((np.diff(window) ** 2).mean(1, keepdims=True)) if names == "ab" else 1.0
        expected = np.where(measured, (ahead - forecast) / unit, np.nan)
        np.testing.assert_allclose(errors[place].numpy(), expected, rtol=1e-3, atol=1e-4)


def test_the_spread_of_short_and_constant_windows() -> None:
    intervals = Intervals((0.8,), True, 4, torch.tensor([0.1, 0.2]))
    windows = torch.tensor([[[9.0, 1.0, 1.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0, 5.0]]])  # of 5 rows, the last 4 count
    torch.testing.assert_close(intervals.spread(windows), torch.tensor([[[(5 / 3) ** 0.5], [0.2]]]))
    for rows, divisor in ((4, 3), (9, 3), (3, 2), (2, 1), (1, 1)):
        expected = torch.tensor([[[(5 / divisor) ** 0.5], [0.2]]])
        torch.testing.assert_close(intervals.spread(windows, torch.tensor([rows])), expected)
    assert replace(intervals, relative=False).spread(windows).tolist() == [1.0]


@pytest.mark.parametrize("count", [1, 2, 4, 9, 39, 40, 90, 400])
def test_intervals_are_quantiles_of_errors(count: int) -> None:
    """The ⌈(n + 1) q⌉-th smallest of n errors, and the same from the largest; of too few for that, Student's t. An
    interval holds those of lower levels."""
    errors = noise(count, CHANNELS, HORIZON)
    errors[:, 1, 1] += 10  # all of one sign: the interval reaches to the forecast
    errors[:, 1, 2] -= 10
    missing = torch.rand(*errors.shape).numpy() < (0.2 if count > 40 else 0)
    missing[0] = False
    levels = (0.1, 0.2, 0.5, 0.8, 0.95)
    shown = torch.tensor(np.where(missing, np.nan, errors))
    fitted = Intervals(levels, False, 4, torch.zeros(CHANNELS)).fitted(shown)
    for channel in range(CHANNELS):
        for step in range(HORIZON):
            kept = errors[~missing[:, channel, step], channel, step]
            widest = [0.0, 0.0]
            for place, level in enumerate(levels):
                rank = math.ceil((len(kept) + 1) * (1 + Fraction(str(level))) / 2)
                if len(kept) >= 40 and rank <= len(kept):
                    ends = np.sort(kept)[-rank], np.sort(kept)[rank - 1]
                else:
                    largest = intervals.LARGEST * np.sort(np.abs(kept))[(len(kept) - 1) // 2]
                    squares = np.minimum(np.abs(kept), largest) ** 2
                    width = STUDENT[len(kept)][place] * np.sqrt(squares.mean() * (1 + 1 / len(kept)))
                    ends = -width, width
                widest = [min(widest[0], ends[0]), max(widest[1], ends[1])]
                low, high = (float(part[place, channel, step]) for part in (fitted.low, fitted.high))
                assert (low, high) == pytest.approx(widest, rel=0.01)
    assert fitted.errors == tuple((~missing).sum(0).min(0).tolist())
    assert Intervals((), False, 4, torch.zeros(CHANNELS)).fitted(shown).errors == fitted.errors


def test_errors_may_count_several_times() -> None:
    """As if there were so many of them. Of two series, whose windows differ in number, each counts alike."""
    errors = torch.randn(90, CHANNELS, HORIZON)
    errors[:5, 0, 0] = torch.nan
    share = torch.cat([torch.ones(60), 3 * torch.ones(30)])
    unit = Intervals((0.5, 0.8), False, 4, torch.zeros(CHANNELS))
    repeated = unit.fitted(torch.cat([errors, errors[60:], errors[60:]]))
    weighted = unit.fitted(errors, share / 7)
    for low, high in ((weighted.low, repeated.low), (weighted.high, repeated.high)):
        ordered = errors.nan_to_num(9.0).sort(0).values
        places = [(ordered == part[:, None]).double().argmax(1) for part in (low, high)]
        assert (places[0] - places[1]).abs().max() <= 1  # the correction is of 90 errors, not of 150
    split = split_of()
    unseen = intervals.unseen_errors(split, line)
    pieces = torch.searchsorted(split.windows.offsets, split.origins("valid"), right=True)
    assert torch.bincount(pieces)[1] != torch.bincount(pieces)[2]
    torch.testing.assert_close(torch.bincount(pieces, unseen.share)[1:], torch.ones(2, dtype=torch.float64))


def test_intervals_say_how_many_errors_they_rest_on() -> None:
    errors = torch.randn(45, 1, 2)
    fitted = Intervals((0.8, 0.99), False, 4, torch.zeros(1)).fitted(errors)
    few = "; too few for quantiles of 99 %, which are those of Student's t distribution"
    assert fitted.basis == f"intervals: from 45 errors of each step ahead{few}"
    assert fitted.only((0.8,)).basis == "intervals: from 45 errors of each step ahead"
    assert fitted.until(1).only((0.8,)).basis == "intervals: from 45 errors"
    errors[:9, 0, 1] = torch.nan
    fitted = Intervals((0.8,), False, 4, torch.zeros(1)).fitted(errors)
    assert fitted.basis.startswith("intervals: from 45 errors of the first step to 36 of the last; too few")


def test_an_event_counts_once() -> None:
    """A level shift is in the horizons of several windows: at each step the errors after the first are left out."""
    errors = torch.full((30, 1, 3), 0.5) * torch.tensor([1.0, -1.0]).repeat(15)[:, None, None]
    for step in range(3):
        errors[10 - step : 11, 0, step] = 100.0
        errors[20, 0, step] = -100.0
    errors[21] = 100.0  # another event, of the other sign
    once = intervals.without_repeats(errors)
    assert once.isnan().sum(0)[0].tolist() == [0, 1, 2]
    assert (once == 100).sum(0)[0].tolist() == [2, 2, 2]
    torch.testing.assert_close(once[11:], errors[11:])


def test_windows_without_changes_do_not_widen_intervals() -> None:
    """Their spread is next to nothing, and an error would count as thousands of it."""
    values = noise(120, 1)
    values[40:60] = 0.0
    data = SeriesData(Columns(None, ("a",), None), Clock(), [
        Piece(name, 0, values, np.ones(values.shape, bool)) for name in "ab"
    ])  # fmt: skip
    split = Split.of_file(data, Wanted(HORIZON, lookback=LOOKBACK, season=0, validation=0.6))
    origins = split.origins("valid")
    unit = Intervals.of(split, ())
    errors = errors_of(unit, [(scores.last_value(HORIZON), origins)], split.windows, split.length, HORIZON)
    still = torch.tensor([np.ptp(values[(row % 120) - LOOKBACK + 1 : (row % 120) + 1]) == 0 for row in origins])
    assert 0 < still.sum() < len(still)
    assert torch.equal(errors.isnan().all(2)[:, 0], still)
    assert errors[~still].abs().max() < 100
    only = errors_of(unit, [(scores.last_value(HORIZON), origins[still])], split.windows, split.length, HORIZON)
    assert only.isfinite().all()


def test_an_interval_of_no_errors_is_no_number_of_its_own() -> None:
    errors = torch.full((3, 1, 1), torch.nan)
    fitted = Intervals((0.8,), False, 4, torch.zeros(1)).fitted(errors)
    assert (float(fitted.low), float(fitted.high)) == (-float("inf"), float("inf"))


def test_some_levels_of_a_run() -> None:
    intervals = Intervals((0.5, 0.8, 0.95), False, 4, torch.zeros(1)).fitted(torch.randn(99, 1, 2))
    some = intervals.only((0.95, 0.5))
    assert some.levels == (0.95, 0.5)
    assert torch.equal(some.low, intervals.low[[2, 0]])
    assert torch.equal(some.high, intervals.high[[2, 0]])
    with pytest.raises(ValueError, match="level must be of those of the run: 50, 80, 95"):
        intervals.only((0.5, 0.9))


@pytest.mark.parametrize(("validation", "few", "least", "expected"), [
    (0.2, 1, 1, ["valid"]), (0.2, 30, 1, ["valid", "folds"]), (0.2, 30, 500, ["valid", "folds", "train"]),
    (0.2, 1, 500, ["valid", "train"]), (0.0, 30, 1, ["valid", "folds"]), (0.2, 2, 1, ["valid"]),
    (0.2, 3, 1, ["valid", "folds"]), (0.2, 1, 11, ["valid"]), (0.2, 1, 12, ["valid", "train"]),
])  # fmt: skip
def test_errors_count_more_where_the_validation_rows_are_few(
    validation: float, few: int, least: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intervals, "FEW", few)
    monkeypatch.setattr(intervals, "LEAST", least)
    split = split_of(validation=validation)
    of = {kind: split.origins(kind) for kind in ("valid", "train")}
    assert len(of["valid"]) == (11 if validation else 0)
    folds = [(scores.last_value(HORIZON), of["train"][:3])]
    parts = {"valid": [(line, of["valid"])], "folds": folds, "train": [(seasonal_value(HORIZON, 5), of["train"])]}
    forecasts = [part for name in expected for part in parts[name]]
    right = errors_of(Intervals.of(split, ()), forecasts, split.windows, split.length, HORIZON)
    torch.testing.assert_close(intervals.unseen_errors(split, line, lambda: folds).errors, right)
    if "folds" in expected and validation:
        without = [part for name in expected if name != "folds" for part in parts[name]]
        right = errors_of(Intervals.of(split, ()), without, split.windows, split.length, HORIZON)
        torch.testing.assert_close(intervals.unseen_errors(split, line).errors, right)


def test_errors_are_held_for_a_bounded_number_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    data = SeriesData(Columns(None, ("a",), None), Clock(), [Piece("a", 0, *_noise(1500))])
    split = Split.of_file(data, Wanted(HORIZON, lookback=LOOKBACK, season=0, validation=0.4))
    assert len(intervals.unseen_errors(split, line).errors) == 597
    monkeypatch.setattr(intervals, "HELD", HORIZON * 300)
    assert len(intervals.unseen_errors(split, line).errors) == 299  # every other
    monkeypatch.setattr(intervals, "HELD", HORIZON)
    assert len(intervals.unseen_errors(split, line).errors) == 199  # at least 200 at most, so every third


def _noise(rows: int) -> tuple[np.ndarray, np.ndarray]:
    return noise(rows, 1), np.ones((rows, 1), bool)


def test_the_variance_of_what_is_forecast() -> None:
    for gaps in (False, True):
        split = split_of("ab", gaps)
        mean = torch.tensor([3.0, -2.0])
        origins = split.origins("test")
        values = []
        for origin in origins.tolist():
            ahead, measured, piece = rows_of(split, origin, range(1, 1 + HORIZON))
            scaled = (ahead + piece.values[:1].T - mean.numpy()[:, None]) / split.scale.numpy()[:, None]
            values.append(scaled[measured])
        assert variance(split.windows, origins, split, mean) == pytest.approx(np.concatenate(values).var(), rel=1e-4)


@pytest.mark.parametrize("season", [1, 3, 4, 7])
def test_the_seasonal_baseline_is_the_same_phase_of_the_last_season(season: int) -> None:
    rows = noise(20, 8 + HORIZON)
    windows = torch.tensor(rows[:, None, :8])
    forecast = seasonal_value(HORIZON, season)(
        Examples(windows, windows, None, torch.zeros(20), torch.full((20,), 8), torch.zeros(20, 1))
    )
    for step in range(HORIZON):
        place = 8 + step
        while place >= 8:
            place -= season
        np.testing.assert_array_equal(forecast[:, 0, step].numpy(), rows[:, place])


def test_the_linear_baseline_is_a_ridge_on_the_windows_changes() -> None:
    split = split_of(season=0)
    methods = scores.baselines(split)
    assert list(methods) == ["last value", "linear"]
    assert list(scores.baselines(split_of(season=5))) == ["last value", "seasonal last value", "linear"]
    linear = methods["linear"]
    assert isinstance(linear, WindowLinear)
    parts: dict[str, Any] = {"train": ([], []), "valid": ([], [])}
    for piece, (a, b) in zip(split.data.pieces, split.cuts, strict=True):
        rows = (piece.values / split.scale.numpy()).T
        for name, first, end in (("train", 0, a), ("valid", max(0, a - LOOKBACK), b)):
            for begin in range(first, end - LOOKBACK - HORIZON + 1):
                window, ahead = np.split(rows[:, begin : begin + LOOKBACK + HORIZON], [LOOKBACK], axis=1)
                parts[name][0].append(window - window[:, -1:])
                parts[name][1].append(ahead - window[:, -1:])
    x, y = (np.concatenate(rows) for rows in parts["train"])
    z, w = (np.concatenate(rows) for rows in parts["valid"])
    scale = np.sqrt((x**2).mean(0))
    scale[scale == 0] = 1
    options = []
    for alpha in window_linear.ALPHAS:
        gram = (x / scale).T @ (x / scale) / len(x) + alpha * np.eye(LOOKBACK)
        weight = np.linalg.solve(gram, (x / scale).T @ y / len(x)) / scale[:, None]
        options.append((((w - z @ weight) ** 2).mean(), weight))
    expected = min(options, key=lambda option: option[0])[1]
    np.testing.assert_allclose(linear.weight, expected, rtol=1e-3, atol=1e-4)
    examples = split.windows.take(split.origins("test"), LOOKBACK + 2, HORIZON)
    windows = examples.windows.double().numpy()[..., 2:]
    forecast = windows[..., -1:] + (windows - windows[..., -1:]) @ expected
    np.testing.assert_allclose(linear(examples), forecast, rtol=1e-3, atol=1e-2)


def test_the_linear_baseline_is_fitted_to_a_bounded_number_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_linear, "_FITTED", 60)
    series = torch.randn(1, 100 + LOOKBACK + HORIZON - 1)
    linear = WindowLinear(1, HORIZON, LOOKBACK)
    linear.fit([series], [], torch.ones(1))
    assert linear.weight.abs().sum() > 0
    every_other = WindowLinear(1, HORIZON, LOOKBACK)
    monkeypatch.setattr(window_linear, "_FITTED", 50)
    every_other.fit([series], [], torch.ones(1))
    torch.testing.assert_close(linear.weight, every_other.weight)
    monkeypatch.setattr(window_linear, "_FITTED", 49)
    every_other.fit([series], [], torch.ones(1))
    assert not torch.allclose(linear.weight, every_other.weight)


def test_a_models_forecasts_take_the_phase_and_the_last_rows_alone() -> None:
    split = split_of(season=5)
    model = LookbackForecast(CHANNELS, HORIZON, 4, 6.0, LOOKBACK, season=5).requires_grad_(False)
    model.season_pattern.normal_()
    model.weight.normal_()
    origins = split.origins("test")
    forecast = model_method(model)(split.windows.take(origins, LOOKBACK + 3, HORIZON))
    for place, origin in enumerate(origins.tolist()):
        window, _, piece = rows_of(split, origin, range(1 - LOOKBACK, 1))
        row = origin if piece is split.data.pieces[0] else origin - len(split.data.pieces[0])
        x = torch.tensor(window.T, dtype=torch.float32)[None]
        out, _ = model(x, model.state_at(piece.start + row - LOOKBACK + 1))
        torch.testing.assert_close(forecast[place].mT.flatten(), out[0, -1], rtol=1e-4, atol=1e-4)


def test_a_forecast_is_evaluated_on_its_test_rows() -> None:
    """`Forecaster.evaluate` and `score`: R² is relative to the mean of the rows that were fitted."""
    rows = noise(300, 1).cumsum(0)
    forecaster = plmu.Forecaster(HORIZON, lookback=LOOKBACK, season=0, test=0.2).fit(rows)
    result = forecaster.evaluate()
    errors, values, last = [], [], []
    fitted_mean, scale = rows[:192].mean(), rows[:192].std()
    assert forecaster.scale_[0] == pytest.approx(scale)
    for origin in range(239, 300 - HORIZON):
        ahead = rows[origin + 1 : origin + 1 + HORIZON]
        errors.append(forecaster.predict(rows[: origin + 1]) - ahead)
        last.append(rows[origin] - ahead)
        values.append(ahead - fitted_mean)
    assert result["windows"] == len(errors)
    assert result["mse"] == pytest.approx((np.array(errors) ** 2).mean() / scale**2, rel=1e-3)
    assert result["mae"] == pytest.approx(np.abs(errors).mean() / scale, rel=1e-3)
    assert result["last value mse"] == pytest.approx((np.array(last) ** 2).mean() / scale**2, rel=1e-3)
    assert result["variance"] == pytest.approx(np.array(values).var() / scale**2, rel=1e-3)
    test = forecaster.score(rows[240 - LOOKBACK :])
    assert test == pytest.approx(1 - result["mse"] / result["variance"], rel=1e-3)


def test_windows_of_other_series_are_scored_in_the_units_of_the_fit() -> None:
    split = split_of("aa")
    other = Windows.of([Piece("x", 0, noise(30, CHANNELS), np.ones((30, CHANNELS), bool))])
    origins = other.origins([(0, 30)], LOOKBACK, HORIZON)
    result = score({"line": line}, split, origins, windows=other)
    error = torch.cat([line(e) - e.future for e in other.blocks(origins, LOOKBACK, HORIZON)]) / split.scale[:, None]
    assert result.errors["line"].mse == pytest.approx(float(error.square().mean()), rel=1e-5)
    assert result.coverage == []
