"""`Forecaster` with covariates: gains where they drive the series, no harm where they are noise, and no look ahead."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import plmu
from plmu.nn import CovariateForecast

HORIZON = 8
Array = NDArray[np.float64]


def noise(rows: int, seed: int, memory: float = 0.8) -> Array:
    """An autoregressive series."""
    found = np.random.default_rng(seed).standard_normal(rows)
    for row in range(1, rows):
        found[row] += memory * found[row - 1]
    return found


def driven(rows: int = 600, seed: int = 0) -> Array:
    """A series with a season of 12 that a price and a rare event move, and these two."""
    rng = np.random.default_rng(seed)
    price, event = rng.standard_normal(rows), (rng.random(rows) < 0.1).astype(float)
    load = 20 + 3 * np.sin(2 * np.pi * np.arange(rows) / 12) + 2 * price - 5 * event + 0.3 * noise(rows, seed + 100)
    return np.column_stack([load, price, event])


def fitted(data: Any, **options: Any) -> plmu.Forecaster:
    return plmu.Forecaster(HORIZON, **{"lookback": 36, "season": 12, "covariates": (1, 2), **options}).fit(data)


def test_a_series_that_covariates_drive_is_forecast_far_better_with_them() -> None:
    data = driven(800)
    known, plain = fitted(data[:600]), fitted(data[:600, 0], covariates=())
    errors = [one.evaluate(rows[500:], start=500)["mse"] for one, rows in ((known, data), (plain, data[:, 0]))]
    assert errors[0] < 0.1 * errors[1]
    assert known.score(data[500:], start=500) > 0.95 > 0.5 > plain.score(data[500:, 0], start=500)
    assert known.validation_["covariates"]
    present = fitted(data[:600], lags=1).model.kernel().detach()[0, :, 0]  # type: ignore[operator]
    left = 0.3 / np.sqrt(1 - 0.8**2)  # standard deviation of what covariates do not explain
    for weight, expected, rows in zip(present.tolist(), (2, -5), data[:480, 1:].T, strict=True):
        assert weight == pytest.approx(expected, abs=4 * left / rows.std() / np.sqrt(480))  # 4 standard errors


def test_the_effect_may_come_later_and_last() -> None:
    rain = np.random.default_rng(1).exponential(1, 2000) * (np.random.default_rng(2).random(2000) < 0.1)
    level = np.convolve(rain, np.exp(-np.arange(40) / 10))[:2000] + 0.05 * noise(2000, 3)
    data = np.column_stack([level, rain])
    found = plmu.Forecaster(HORIZON, season=0, lookback=48, covariates=[1]).fit(data[:1600])
    assert found.model.lags == 48  # type: ignore[union-attr]
    plain = plmu.Forecaster(HORIZON, season=0, lookback=48).fit(level[:1600])
    assert found.evaluate(data[1500:])["mse"] < 0.1 * plain.evaluate(level[1500:])["mse"]
    now = plmu.Forecaster(HORIZON, season=0, lookback=48, covariates=[1], lags=1).fit(data[:1600])
    assert found.evaluate(data[1500:])["mse"] < now.evaluate(data[1500:])["mse"]


@pytest.mark.parametrize("memory", [0.0, 1.0])
def test_covariates_of_noise_do_no_harm(memory: float) -> None:
    """White noise, and random walks, which correlate with anything."""
    series = noise(1200, 4, 0.95)
    more = np.column_stack([noise(1200, seed, memory) for seed in (5, 6, 7)])
    data = np.column_stack([series, more])
    found = plmu.Forecaster(HORIZON, lookback=48, season=0, covariates=[1, 2, 3]).fit(data[:1000])
    plain = plmu.Forecaster(HORIZON, lookback=48, season=0).fit(series[:1000])
    assert found.evaluate(data[900:])["mse"] <= 1.02 * plain.evaluate(series[900:])["mse"]


def test_the_future_of_the_series_does_not_enter() -> None:
    """Neither what comes after the rows of fit, nor the scale of the validation rows, nor any future value."""
    data = driven(300)
    ahead = data[250:258].copy()
    given = data[:258].copy()
    given[250:, 0] = np.nan
    found = fitted(data[:250])
    expected = found.predict(data[:250], start=0, future=ahead[:, 1:])
    np.testing.assert_array_equal(found.predict(given, start=0), expected)
    np.testing.assert_array_equal(fitted(given).predict(), found.predict(future=ahead[:, 1:]))
    changed = data[:250].copy()
    changed[200:] *= 100  # the validation rows
    options = {"alpha": 1e-3, "individual": False, "lags": 1, "season": 0}
    one, other = (fitted(rows, **options) for rows in (data[:250], changed))
    assert one.scale_ == pytest.approx(other.scale_)
    shifted = found.predict(data[:250], start=0, future=np.roll(ahead[:, 1:], 1, axis=0))
    assert np.abs(shifted - expected).max() > 1


def test_rows_ahead_a_separate_table_and_a_stream_agree() -> None:
    data = driven(320)
    found = fitted(data[:300])
    assert isinstance(found.model, CovariateForecast)
    expected = found.predict(future=data[300:308, 1:])
    np.testing.assert_allclose(found.predict(data[:300], start=0, future=data[300:, 1:]), expected, rtol=1e-6)
    stream = found.stream()
    sample = np.concatenate([data[300, :1], data[300:309, 1:].ravel()])
    out = stream.push(sample).unflatten(0, (HORIZON, 1)).numpy()
    np.testing.assert_allclose(out, found.predict(data[:301], start=0, future=data[301:309, 1:]), rtol=1e-5)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(found)).predict(future=data[300:, 1:]), expected)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_frames(kind: str) -> None:
    library = pytest.importorskip(kind)
    data = driven(300)
    times = np.datetime64("2026-01-01T05", "ns") + np.arange(300) * np.timedelta64(3600 * 10**9, "ns")
    frame = library.DataFrame({"price": data[:, 1], "time": times, "load": data[:, 0], "event": data[:, 2] > 0})
    found = fitted(frame[:280], covariates=frame[["price", "event"]].columns)  # an index of pandas, a list of polars
    assert found.feature_names_in_.tolist() == ["price", "load", "event"]
    plan = frame[280:290][["event", "time", "price"]]  # in another order
    out = found.predict(future=plan)
    assert list(out.columns) == ["load"]
    expected = fitted(data[:280]).predict(future=data[280:290, 1:])
    np.testing.assert_allclose(out.to_numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(found.predict(frame[200:280], future=plan).to_numpy(), expected, rtol=1e-6)
    with pytest.raises(ValueError, match="future must begin one step after the last row of the series, got 3 steps"):
        found.predict(frame[:280], future=frame[282:290])
    with pytest.raises(ValueError, match="future has no column 'price'"):
        found.predict(frame[:280], future=frame[280:290][["event"]])
    with pytest.raises(ValueError, match="X has no column 'prize': it has 'price', 'load', 'event'"):
        fitted(frame, covariates=["prize"])


def test_several_series_of_different_size() -> None:
    """Each has an effect of its size, those that were not fitted, too."""
    sizes = (1.0, 30.0, 1000.0)
    series = [size * driven(400, seed) / [1, size, size] for seed, size in enumerate(sizes)]
    found = fitted([one[:360] for one in series], lookback=48)
    plain = fitted([one[:360, 0] for one in series], lookback=48, covariates=())
    assert found.model.relative  # type: ignore[union-attr]
    new = 7 * driven(400, 9) / [1, 7, 7]
    for one, size in zip([*series, new], [*sizes, 7.0], strict=True):
        error, other = (
            np.concatenate(
                [
                    fit.predict(rows[:end], start=0, **({"future": one[end:, 1:]} if known else {})).ravel()
                    - one[end : end + HORIZON, 0]
                    for end in range(360, 390, 5)
                ]
            )
            for fit, rows, known in ((found, one, True), (plain, one[:, 0], False))
        )
        assert np.sqrt(np.mean(error**2)) < 0.6 * np.sqrt(np.mean(other**2))
        assert np.sqrt(np.mean(error**2)) < 1.5 * size
    ahead = [one[360:370, 1:] for one in series]
    assert [one.shape for one in found.predict(future=ahead)] == [(HORIZON, 1)] * 3
    with pytest.raises(ValueError, match="future must be a list with covariates for each of the 3 series"):
        found.predict(future=ahead[:2])


def test_missing_values_ahead_are_counted() -> None:
    data = driven(200)
    found = fitted(data[:180])
    with pytest.raises(ValueError, match=r"covariate 1 must be known for 8 rows after the last row of X, got 0: give"):
        found.predict()
    with pytest.raises(ValueError, match=r"covariate 1 must be known for 8 rows .* got 5"):
        found.predict(future=data[180:185, 1:])
    ahead = data[180:188, 1:].copy()
    ahead[3, 1] = np.nan
    with pytest.raises(ValueError, match=r"covariate 2 must be known for 8 rows .* got 3"):
        found.predict(future=ahead)
    data[7, 2] = np.nan
    with pytest.raises(ValueError, match="X has NaN in row 7, column 2: fill missing values first"):
        fitted(data)
    data[7, 2], data[9, 0] = 0.0, np.inf
    with pytest.raises(ValueError, match="X has infinity in row 9, column 0"):
        fitted(data)


def test_wrong_arguments_are_named() -> None:
    data = driven(100)
    for wrong, message in (
        ("load", "covariates must be a list of columns, got 'load'"),
        (["load"], "covariates must be numbers of columns for X, which is no data frame: got 'load'"),
        ([3], "covariates must be names or numbers of the 3 columns of X, got 3"),
        ([1, 1], "covariates names a column twice"),
        ([0, 1, 2], "covariates leaves no column of X to forecast"),
    ):
        with pytest.raises(ValueError, match=message):
            fitted(data, covariates=wrong)
    with pytest.raises(ValueError, match="lags must be an integer of at least 1, got 0"):
        fitted(data, lags=0)
    found = fitted(data)
    with pytest.raises(ValueError, match="future must have a column for each of the 2 covariates, got 3"):
        found.predict(future=data)
    with pytest.raises(ValueError, match=r"future is for covariates: give their columns as Forecaster\(covariates"):
        fitted(data[:, 0], covariates=()).predict(future=data[:, 1])
    with pytest.raises(ValueError, match="X has 4 features, but Forecaster is expecting 3"):
        found.predict(np.column_stack([data, data[:, 0]]), future=data[:, 1:])


@pytest.mark.parametrize("rows", [1, 5, 36, 40, 47, 48])
def test_series_of_few_rows_are_forecast_as_a_stream_of_them(rows: int) -> None:
    """Lookback and lags take 36 + 11 rows. What a series lacks of them is its first row."""
    data = driven(300)
    forecaster = fitted(data[:200], lags=12)
    assert forecaster.validation_["covariates"]
    series = data[200 : 200 + rows + HORIZON]
    found = forecaster.predict(series[:rows], start=200, future=series[rows:, 1:])
    stream = forecaster.stream(start=200)
    for row in range(rows):
        ahead = np.minimum(np.arange(row, row + HORIZON + 1), len(series) - 1)
        expected = stream.push(np.concatenate([series[row, :1], series[ahead, 1:].ravel()]))
    scale = float(np.abs(data).max())
    terms = 36 + 2 * 47  # of a forecast: the window, and two covariates over all rows
    bound = 2 * terms * np.finfo(np.float32).eps * scale
    torch.testing.assert_close(torch.tensor(found[:, 0]), expected.double(), rtol=0, atol=bound)


def test_a_stream_that_continues_the_fit_has_read_all_that_a_forecast_takes() -> None:
    data = driven(300)
    forecaster = fitted(data[:200], lags=12)
    stream = forecaster.stream()
    out = stream.push(np.concatenate([data[200, :1], data[200 : 201 + HORIZON, 1:].ravel()]))
    whole = forecaster.stream(start=0)
    for row in range(201):
        expected = whole.push(np.concatenate([data[row, :1], data[row : row + 1 + HORIZON, 1:].ravel()]))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=0)


def test_short_and_constant_data() -> None:
    rng = np.random.default_rng(0)
    for rows in (4, 9, 40):
        found = plmu.Forecaster(2, covariates=[1]).fit(rng.standard_normal((rows, 2)))
        assert np.isfinite(found.predict(future=[1.0, 2.0])).all()
    constant = np.column_stack([driven(100)[:, 0], np.full(100, 7.0)])
    found = plmu.Forecaster(2, covariates=[1]).fit(constant)
    np.testing.assert_allclose(found.predict(future=[7.0, 7.0]), found.predict(future=[8.0, 9.0]))


def test_grid_search() -> None:
    pytest.importorskip("sklearn")
    from sklearn.model_selection import GridSearchCV, TimeSeriesSplit

    data = driven(400)
    search = GridSearchCV(
        plmu.Forecaster(4, lookback=24, season=12), {"covariates": [(2,), (1, 2)]}, cv=TimeSeriesSplit(2, test_size=80)
    )
    assert search.fit(data).best_params_ == {"covariates": (1, 2)}
    assert search.best_score_ > 0.9
