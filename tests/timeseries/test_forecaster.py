"""`plmu.Forecaster`: what it learns, chooses and accepts; its model is the same forecast."""

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from closeness import assert_same

import plmu
from plmu.nn import LookbackForecast
from plmu.timeseries.forecaster import _levels
from plmu.timeseries.ridge import Sums
from plmu.timeseries.season import aligned, pattern, period
from plmu.timeseries.windows import Part, blocks

RNG = np.random.default_rng(0)


def course(rows: int = 700, channels: int = 2, noise: float = 0.1, seed: int = 0) -> np.ndarray:
    """A daily course of 24 steps, of another shape in each channel, on a slow wave."""
    rng = np.random.default_rng(seed)
    t = np.arange(rows)[:, None]
    shift = np.arange(channels)
    wave = np.sin(2 * np.pi * (t + 3 * shift) / 24) + 0.5 * np.sin(2 * np.pi * t * (2 + shift) / 24)
    return 10 * (1 + shift) + wave + np.sin(t / 90) + noise * rng.standard_normal((rows, channels))


def test_it_beats_the_last_value_and_finds_the_season() -> None:
    data = course()
    forecaster = plmu.Forecaster(horizon=12, lookback=48).fit(data[:600])
    assert forecaster.validation_["season"] == 24
    found = forecaster.evaluate(data[600 - 48 :], start=600 - 48)
    assert found["mse"] < 0.1 * found["last value mse"]
    assert forecaster.score(data[600 - 48 :], start=600 - 48) > 0.9


def test_the_fit_is_the_least_squares_solution() -> None:
    data = RNG.standard_normal((300, 1)).cumsum(0)
    forecaster = plmu.Forecaster(5, lookback=20, order=4, season=0, alpha=1e-9, validation=0).fit(data)
    windows = np.lib.stride_tricks.sliding_window_view(data[:, 0], 25)
    last = windows[:, 19:20]
    response = plmu.DelayNetwork(4, 20.0).discretize().impulse_response(20).numpy()[:, ::-1]
    features = (windows[:, :20] - last) @ response.T
    expected, *_ = np.linalg.lstsq(features, windows[:, 20:] - last, rcond=None)
    np.testing.assert_allclose(forecaster.model.weight[0].detach().numpy(), expected.T, rtol=2e-3, atol=2e-3)


def test_sums_over_blocks_and_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = LookbackForecast(2, 3, 4, 10.0, 10, season=4).requires_grad_(False)
    layer.season_pattern.normal_()
    parts = [Part(torch.randn(2, 60), 0), Part(torch.randn(2, 12), 0), Part(torch.randn(2, 31), 5)]
    whole = Sums.of(layer, parts)
    assert whole.count == sum(part.windows(layer) for part in parts) == 48 + 0 + 19
    monkeypatch.setattr("plmu.timeseries.windows.BLOCK", 7 * 13 * 2)
    cut = Sums.of(layer, parts)
    terms = 3 * whole.count  # sums over windows and the 3 steps ahead, in float32
    assert_same(cut.gram.float(), whole.gram, terms)
    assert_same(cut.cross.float(), whole.cross, terms, float(whole.gram.max() * whole.square.max()) ** 0.5)
    assert_same(cut.square.float(), whole.square, terms)
    _, _, phases = zip(*blocks(layer, parts[2:], 3), strict=True)
    assert torch.cat(phases).tolist() == [(5 + 9 + 3 * k) % 4 for k in range(7)]
    weight = torch.randn(2, 4, 3, dtype=torch.float64)
    with torch.no_grad():
        layer = LookbackForecast(2, 3, 4, 10.0, 10, season=4, individual=True)
        layer.weight.copy_(weight.mT)
        errors = [(layer.read(w, p) - y).square().mean((1, 2)) for w, y, p in blocks(layer, parts)]
    plain = Sums.of(layer.requires_grad_(False), parts)
    assert plain.error(weight) == pytest.approx(float(torch.cat(errors).mean()), rel=1e-4)


@pytest.mark.parametrize("season", [0, 24])
def test_the_model_streams_saves_and_folds_to_the_same_forecast(season: int, tmp_path: Path) -> None:
    data = course(400)
    forecaster = plmu.Forecaster(6, lookback=30, season=season, individual=True).fit(data)
    later = course(95, seed=3)
    expected = forecaster.predict(later, start=0)
    assert expected.shape == (6, 2)
    stream = plmu.Stream(forecaster.model)
    for row in later:
        out = stream.push(row)
    np.testing.assert_allclose(out.unflatten(0, (6, 2)).numpy(), expected, rtol=1e-5)
    plmu.save(forecaster.model, tmp_path / "f.plmu")
    whole, _ = plmu.load(tmp_path / "f.plmu")(torch.tensor(later, dtype=torch.float32)[None])
    np.testing.assert_allclose(whole[0, -1].unflatten(0, (6, 2)).detach().numpy(), expected, rtol=1e-5)
    folded, state = plmu.fold(forecaster.model), None
    for row in torch.tensor(later, dtype=torch.float32):
        out, state = folded.step(row[None], state)
    np.testing.assert_allclose(out[0].unflatten(0, (6, 2)).numpy(), expected, rtol=1e-5)
    again = pickle.loads(pickle.dumps(forecaster))
    np.testing.assert_array_equal(again.predict(), forecaster.predict())


def test_predict_and_stream_continue_the_series_of_fit() -> None:
    data = course(400)
    forecaster = plmu.Forecaster(6, lookback=30, season=24).fit(data)
    np.testing.assert_allclose(forecaster.predict(), forecaster.predict(data, start=0))
    new = course(401)[400]
    out = forecaster.stream().push(new).unflatten(0, (6, 2)).numpy()
    np.testing.assert_allclose(out, forecaster.predict(np.concatenate([data, new[None]]), start=0), rtol=1e-5)
    np.testing.assert_allclose(forecaster.predict(data[37:]), forecaster.predict(data[37:], start=37))


def test_forms_of_data() -> None:
    data = course(300)
    options: dict[str, Any] = {"horizon": 4, "lookback": 24, "season": 24}
    flat = plmu.Forecaster(**options).fit(data[:, 0]).predict()
    assert flat.shape == (4,)
    np.testing.assert_allclose(plmu.Forecaster(**options).fit(data[:, :1]).predict()[:, 0], flat)
    np.testing.assert_allclose(plmu.Forecaster(**options).fit(torch.tensor(data[:, 0])).predict(), flat)
    several = plmu.Forecaster(**options).fit([data[:200], data[:150]])
    assert [one.shape for one in several.predict()] == [(4, 2), (4, 2)]
    assert [one.shape for one in several.predict([data[:70]])] == [(4, 2)]
    with pytest.raises(ValueError, match="start"):
        several.stream()


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_frames_and_their_time_stamps(kind: str) -> None:
    library = pytest.importorskip(kind)
    data = course(400)
    times = np.datetime64("2026-01-01T05", "ns") + np.arange(400) * np.timedelta64(3600 * 10**9, "ns")
    frame = library.DataFrame({"time": times, "a": data[:, 0], "b": data[:, 1]})
    forecaster = plmu.Forecaster(6, lookback=30, season=24).fit(frame)
    assert forecaster.feature_names_in_.tolist() == ["a", "b"]
    later = frame[41:80]
    out = forecaster.predict(later)
    assert list(out.columns) == ["a", "b"]
    np.testing.assert_allclose(out.to_numpy(), forecaster.predict(data[41:80], start=41))
    words = library.DataFrame({"a": ["1", "x"] * 200})
    with pytest.raises(ValueError, match="column 'a'"):
        plmu.Forecaster().fit(words)


def test_refit_uses_the_validation_rows() -> None:
    data = course(300)
    data[240:] += 0.3 * RNG.standard_normal((60, 2))
    kept = plmu.Forecaster(4, lookback=24, season=24).fit(data)
    again = plmu.Forecaster(4, lookback=24, season=24, refit=True).fit(data)
    assert kept.validation_["alpha"] == again.validation_["alpha"]
    assert not torch.equal(kept.model.weight, again.model.weight)


def test_what_cannot_be_fitted_is_named() -> None:
    data = course(60)
    for wrong, name in (({"horizon": 0}, "horizon"), ({"lookback": 59}, "lookback"), ({"theta": -1.0}, "theta"),
                        ({"alpha": math.nan}, "alpha"), ({"validation": -1}, "validation")):  # fmt: skip
        with pytest.raises(ValueError, match=name):
            plmu.Forecaster(**{"horizon": 4, **wrong}).fit(data)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rows for horizon=24"):
        plmu.Forecaster().fit(data[:20])
    data[7, 1] = math.nan
    with pytest.raises(ValueError, match="NaN in row 7, column 1"):
        plmu.Forecaster(4).fit(data)
    with pytest.raises(ValueError, match="not fitted"):
        plmu.Forecaster().predict(data)
    with pytest.raises(ValueError, match="features"):
        plmu.Forecaster(4).fit(course(60)).predict(course(60)[:, :1])
    with pytest.raises(ValueError, match="no parameter 'horizont'"):
        plmu.Forecaster().set_params(horizont=3)


def test_short_and_constant_series() -> None:
    for rows in (4, 9, 40):
        out = plmu.Forecaster(2).fit(np.arange(rows, dtype=float)).predict()
        assert np.isfinite(out).all()
    constant = plmu.Forecaster(3).fit(np.full((50, 2), 7.0))
    np.testing.assert_allclose(constant.predict(), 7.0)
    assert constant.score(np.full((50, 2), 7.0)) == 1.0  # perfect, though nothing varies


def test_seasons() -> None:
    wave = torch.tensor(course(800).T, dtype=torch.float32)
    assert period([wave]) == 24
    assert period([torch.tensor(RNG.standard_normal((2, 800)).cumsum(1), dtype=torch.float32)]) == 0
    assert period([torch.ones(2, 800)]) == period([torch.ones(2, 3)]) == 0
    shape = pattern([wave], 24)
    torch.testing.assert_close(shape.mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    for phase in (0, 5, 23):
        assert aligned(wave.mT[240 + phase : 300], shape) == phase


def test_series_of_a_list_share_a_clock() -> None:
    """Series that begin at other times of the day share one season, by their time stamps or by `starts`."""
    rng = np.random.default_rng(3)
    hours = np.arange(600)
    wave = 10 * np.sin(2 * np.pi * hours / 24) + rng.standard_normal(600)
    parts = [wave[:300], wave[307:]]
    starts = [0, 307]
    known = plmu.Forecaster(6, lookback=30, season=24).fit(parts, starts=starts)
    together = plmu.Forecaster(6, lookback=30, season=24).fit(parts)
    assert known.validation_["mse"] < together.validation_["mse"]
    pattern = known.model.season_pattern[:, 0]
    pattern = pattern * (10 / pattern.max())  # of several series each has its own amplitude
    expected = torch.tensor(10 * np.sin(2 * np.pi * np.arange(24) / 24), dtype=torch.float32)
    assert float((pattern - expected).abs().max()) < 1.5
    with pytest.raises(ValueError, match="starts must have one value for each of the 2 series, got 1"):
        plmu.Forecaster(6).fit(parts, starts=[0])
    with pytest.raises(ValueError, match="validation_rows must have one value for each"):
        plmu.Forecaster(6).fit(parts, validation_rows=[60])


def test_a_stream_may_begin_anywhere_in_the_season() -> None:
    wave = 10 * np.sin(2 * np.pi * np.arange(400) / 24) + np.random.default_rng(4).standard_normal(400)
    forecaster = plmu.Forecaster(4, lookback=10, season=24).fit(wave)
    assert forecaster.model.season == 24
    stream = plmu.Stream(forecaster.model)
    stream.reset(forecaster.model.state_at(107))
    for value in wave[107:150]:
        ahead = stream.push([value])
    np.testing.assert_allclose(ahead, forecaster.predict(wave[107:150], start=107), rtol=1e-4, atol=1e-4)
    again = forecaster.stream(start=107)
    for value in wave[107:150]:
        later = again.push([value])
    torch.testing.assert_close(later, ahead)
    out, _ = forecaster.model(
        torch.tensor(wave[107:150, None], dtype=torch.float32)[None], forecaster.model.state_at(107)
    )
    torch.testing.assert_close(out[0, -1].double(), ahead, rtol=1e-5, atol=1e-4)


def test_series_of_different_size_have_seasons_of_their_size() -> None:
    k, rng = np.arange(254), np.random.default_rng(0)
    course = 10 + 3 * np.sin(2 * np.pi * k / 7)
    small, large = course + rng.standard_normal(254), 1000 * (course + rng.standard_normal(254))
    fitted = plmu.Forecaster(14, lookback=28, season=7).fit([small[:240], large[:240]])
    assert fitted.model.season == 7
    for series, unit in ((small, 1.0), (large, 1000.0), (20 * large, 20_000.0)):
        error = fitted.predict(series[:240], start=0) - unit * course[240:]
        assert np.sqrt(np.mean(error**2)) < unit  # the noise


def test_parts_of_one_series_have_one_scale() -> None:
    k, rng = np.arange(400), np.random.default_rng(0)
    load = 10 * np.sin(2 * np.pi * k / 12) + rng.standard_normal(400)
    parts = [load[:200], load[200:]]
    one, two = (
        plmu.Forecaster(6, lookback=24, season=12).fit(parts, starts=[0, 200], names=names) for names in ("aa", "ab")
    )
    assert [tried["amplitude"] for tried in one.validation_["tried"]] == [None, 0.3, 3.0]
    assert [tried["amplitude"] for tried in two.validation_["tried"]] == [None, 0.0]


def test_several_series_are_scaled_by_the_rows_that_are_fitted():
    steps = np.arange(300)
    series = [np.sin(steps / 5.0)[:, None], 10 * np.sin(steps / 9.0)[:, None]]
    other = [series[0], np.concatenate([series[1][:250], 1e3 * series[1][250:]])]
    plain, disturbed = (
        plmu.Forecaster(5, lookback=20, season=0, alpha=1e-3, individual=False).fit(given, validation_rows=[50, 50])
        for given in (series, other)
    )
    torch.testing.assert_close(plain.model.weight, disturbed.model.weight)  # the last 50 rows choose, and no more


def test_a_backtest_has_four_folds_unless_told() -> None:
    forecaster = plmu.Forecaster(2, lookback=6, season=0, covariates=[1], lags=1).fit(course(120))
    assert forecaster.n_features_in_ == 2
    rows = [fold["rows"] for fold in forecaster.backtest()]
    assert rows == [60, 75, 90, 105]
    assert [fold["rows"] for fold in forecaster.backtest(folds=1)] == [60]
    for folds in (0, True, 2.0):
        with pytest.raises(ValueError, match=f"folds must be an integer of at least 1, got {folds!r}"):
            forecaster.backtest(folds=folds)  # type: ignore[arg-type]


@pytest.mark.parametrize(("level", "levels"), [
    (80, (0.8,)), (95.5, (0.955,)), (np.float64(50), (0.5,)), ([95, 80, 80.0], (0.8, 0.95)), (None, None),
])  # fmt: skip
def test_levels_are_percentages(level: Any, levels: Any) -> None:
    assert _levels(level) == levels


@pytest.mark.parametrize("level", [0, 100, [], [80, 101], -5])
def test_levels_beyond_all_or_nothing_are_refused(level: Any) -> None:
    with pytest.raises(ValueError, match="level must be percentages between 0 and 100"):
        _levels(level)


@pytest.mark.parametrize(("option", "wrong", "right"), [
    ("horizon", (0, True, 1.5, None), (1, np.int64(2))), ("lookback", (0, False, 2.0), (1, None)),
    ("order", (0, "3"), (1, None)), ("season", (-1, 0.5), (0, 1, None)), ("lags", (0,), (1, None)),
    ("theta", (0, math.inf), (0.5, None)), ("alpha", (0.0, -1, math.nan), (1e-9, None)),
    ("calendar", ("month",), ("day", "weekday", "week", "none", None)),
    ("validation", (-0.1, math.inf), (0, 0.2, 7)), ("test", (-0.1, 1, 1.5), (0, 0.99)),
    ("covariates", ("holiday", 3), ([], ["holiday"], (0,))),
])  # fmt: skip
def test_which_options_are_refused(option: str, wrong: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    def check(value: Any) -> None:
        forecaster = plmu.Forecaster(**{option: value})
        forecaster._check_arguments()
        list(forecaster._columns)

    for value in right:
        check(value)
    for value in wrong:
        with pytest.raises(ValueError, match=rf"^{option} must be"):
            check(value)


@pytest.mark.parametrize("method", [
    lambda f: f.model, lambda f: f.predict(), lambda f: f.evaluate(), lambda f: f.score(np.ones(9)),
    lambda f: f.stream(), lambda f: f.stream(start=3), lambda f: f.backtest(), lambda f: f.plot("a.png"),
    lambda f: f.levels_, lambda f: f.settings_, lambda f: f.fitted_,
])  # fmt: skip
def test_fit_comes_first(method: Any) -> None:
    with pytest.raises(ValueError, match="this Forecaster is not fitted yet: call fit first"):
        method(plmu.Forecaster())
