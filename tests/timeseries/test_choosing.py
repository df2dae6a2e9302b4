"""`plmu.timeseries.choosing`: fits against ridges in NumPy, what is chosen by the error, and folds row by row."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import plmu
from plmu.nn import CovariateForecast
from plmu.timeseries import choosing
from plmu.timeseries.choosing import Options, Summary, fit, rolling, standard_deviation
from plmu.timeseries.frames import as_list
from plmu.timeseries.scores import model_method
from plmu.timeseries.split import Split, Wanted, first_rows

LOOKBACK, HORIZON, ORDER, THETA = 8, 3, 4, 6.0


def noise(*shape: int) -> np.ndarray:
    """Normal numbers, which are the same whenever a test runs."""
    return torch.randn(*shape, dtype=torch.float64).numpy()


def split_of(series: list[np.ndarray], season: int = 0, names: str | None = None, **options: Any) -> Split:
    wanted = Wanted(HORIZON, LOOKBACK, ORDER, THETA, season, validation=0.25, test=options.pop("test", 0.1))
    return Split.of_tables(as_list(series, "X", options.get("columns", ())), options.get("columns", ()), wanted,
                           names=names)  # fmt: skip


def examples(rows: np.ndarray, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Features and targets of the windows whose horizon lies in these rows of one channel."""
    taps = plmu.DelayNetwork(ORDER, THETA).discretize().impulse_response(LOOKBACK).numpy()[:, ::-1].T
    x, y = [], []
    for begin in range(max(first, LOOKBACK), end - HORIZON + 1):
        window, last = rows[begin - LOOKBACK : begin], rows[begin - 1]
        x.append((window - last) @ taps)
        y.append(rows[begin : begin + HORIZON] - last)
    return np.array(x).reshape(-1, ORDER), np.array(y).reshape(-1, HORIZON)


def ridge(x: np.ndarray, y: np.ndarray, alpha: float) -> np.ndarray:
    scale = np.sqrt((x**2).mean(0))
    gram = (x / scale).T @ (x / scale) / len(x) + alpha * np.eye(ORDER)
    weight: np.ndarray = np.linalg.solve(gram, (x / scale).T @ y / len(x)) / scale[:, None]
    return weight


def test_the_standard_deviation_of_what_varies() -> None:
    rows = np.stack([np.arange(9.0), np.full(9, 1e9), 1e9 + 1e-5 * np.arange(9), np.zeros(9), 1e5 + np.arange(9)], 1)
    deviation = standard_deviation(rows)
    np.testing.assert_allclose(deviation[[0, 4]], np.arange(9).std())
    assert deviation[[1, 2, 3]].tolist() == [1, 1, 1]


@pytest.mark.parametrize("refit", [False, True])
@pytest.mark.parametrize("names", ["ab", "aa"])
def test_a_fit_without_season_is_a_ridge_of_scaled_series(names: str, refit: bool) -> None:
    """Each series in units of its own deviation before the validation rows; parts of one series in those of all."""
    series = [noise(70, 1).cumsum(0), 50 + 20 * noise(40, 1).cumsum(0)]
    split = split_of(series, names=names)
    chosen, mean, scale = fit(split, Options(individual=False, refit=refit))
    past = [rows[:begin] for rows, (begin, _) in zip(series, split.cuts, strict=True)]
    together = np.concatenate(past)
    np.testing.assert_allclose([mean, scale], [together.mean(0), together.std(0)])
    sizes = [rows.std() for rows in past] if names == "ab" else [together.std()] * 2
    scaled = [rows[:, 0] / size for rows, size in zip(series, sizes, strict=True)]
    parts = {}
    for kind in ("train", "valid", "all"):
        spans = [{"train": (0, a), "valid": (a, b), "all": (0, b)}[kind] for a, b in split.cuts]
        pairs = [examples(rows, *span) for rows, span in zip(scaled, spans, strict=True)]
        parts[kind] = tuple(np.concatenate(rows) for rows in zip(*pairs, strict=True))
    x, y = parts["valid"]
    errors = {a: ((y - x @ ridge(*parts["train"], a)) ** 2).mean() for a in choosing.ALPHAS}
    alpha = min(errors, key=lambda a: errors[a])
    assert chosen.summary["alpha"] == alpha
    assert chosen.summary["mse"] == pytest.approx(errors[alpha], rel=1e-3)
    np.testing.assert_allclose(
        chosen.unrefitted.weight[0].detach().mT, ridge(*parts["train"], alpha), rtol=1e-3, atol=1e-3
    )
    expected = ridge(*parts["all" if refit else "train"], alpha)
    np.testing.assert_allclose(chosen.model.weight[0].detach().mT, expected, rtol=1e-3, atol=1e-3)
    assert (chosen.model is chosen.unrefitted) == (not refit)
    assert {key: chosen.summary[key] for key in ("lookback", "season", "amplitude", "calendar", "pull", "tried")} == {
        "lookback": LOOKBACK, "season": 0, "amplitude": None, "calendar": False, "pull": float("inf"), "tried": [],
    }  # fmt: skip


@pytest.mark.parametrize(("individual", "pulls"), [(None, choosing.PULLS), (True, choosing.PULLS[1:]),
                                                   (False, choosing.PULLS[:1])])  # fmt: skip
def test_the_readouts_that_are_tried(
    individual: bool | None, pulls: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = choosing.best_ridge
    monkeypatch.setattr(choosing, "best_ridge", lambda *values: asked.append(values[2:]) or real(*values))
    split = split_of([noise(80, 2).cumsum(0)])
    chosen, *_ = fit(split, Options(individual=individual, alpha=0.5, refit=True))
    assert asked == [((0.5,), pulls), ((0.5,), (chosen.summary["pull"],))]
    assert chosen.summary["alpha"] == 0.5
    assert chosen.model.config["individual"] == (chosen.summary["pull"] < float("inf"))


def profile(rows: np.ndarray, steps: int) -> np.ndarray:
    """The mean of each phase, less the mean of these."""
    means = np.stack([rows[phase::steps].mean(0) for phase in range(steps)])
    centred: np.ndarray = means - means.mean(0)
    return centred


def test_a_season_that_does_not_help_is_left_out() -> None:
    wave = np.sin(2 * np.pi * np.arange(120) / 5)[:, None]
    wave[81:] *= -1  # in the validation rows it is reversed
    split = split_of([wave + 0.1 * noise(120, 1)], 5)
    assert split.cuts == [(81, 108)]
    chosen, *_ = fit(split, Options(refit=True))
    errors = {option["amplitude"]: option["mse"] for option in chosen.summary["tried"]}
    assert errors[None] < min(errors[amplitude] for amplitude in choosing._AMPLITUDES)
    assert (chosen.summary["amplitude"], chosen.summary["season"], chosen.model.season) == (None, 0, 0)
    assert chosen.summary["mse"] == errors[None]


def test_a_season_is_the_profile_of_the_rows_that_are_fitted() -> None:
    season = 5
    t = np.arange(120)[:, None]
    rows = 7 * np.sin(2 * np.pi * (t + np.arange(2)) / season) * np.array([1.0, 10.0]) + noise(120, 2)
    split = split_of([rows], season)
    chosen, _, scale = fit(split, Options())
    (begin, end), model = split.cuts[0], chosen.model
    assert model.season == chosen.summary["season"] == season
    shape = profile(rows[:begin], season)
    np.testing.assert_allclose(model.season_pattern, shape, rtol=1e-3, atol=1e-4)
    amplitude = chosen.summary["amplitude"]
    assert amplitude in choosing._AMPLITUDES
    np.testing.assert_allclose(model.prior, amplitude * LOOKBACK * (shape**2).mean(0), rtol=1e-3)
    tried = chosen.summary["tried"]
    assert [(o["amplitude"], o["season"]) for o in tried] == [(None, 0), *((a, season) for a in choosing._AMPLITUDES)]
    assert min(o["mse"] for o in tried) == chosen.summary["mse"]
    assert next(o["amplitude"] for o in tried if o["mse"] == chosen.summary["mse"]) == amplitude
    origins = split.origins("valid")
    assert origins[-1] == end - HORIZON - 1
    windows = split.windows.take(origins, LOOKBACK, HORIZON)
    error = (model_method(chosen.unrefitted)(windows) - windows.future) / torch.tensor(scale)[:, None]
    assert chosen.summary["mse"] == pytest.approx(float(error.detach().square().mean()), rel=1e-3)


def test_the_season_of_several_series_has_a_free_amplitude() -> None:
    """It may be 100 times as large as in the largest series, and hardly anything pulls it towards 1."""
    t = np.arange(100)[:, None]
    wave = np.sin(2 * np.pi * t / 5)
    series = [3 * wave + 0.1 * noise(100, 1), 20 * wave + 0.1 * noise(100, 1)]
    split = split_of(series, 5)
    chosen, *_ = fit(split, Options())
    begin, _ = split.cuts[0]
    scaled = [rows[:begin] / rows[:begin].std() for rows in series]
    shape = np.mean([profile(rows, 5) for rows in scaled], axis=0)
    unit = max(rows[:begin].std() for rows in series)
    assert [option["amplitude"] for option in chosen.summary["tried"]] == [None, 0.0]
    assert chosen.summary["amplitude"] == 0
    np.testing.assert_allclose(chosen.model.season_pattern, 100 * unit * shape, rtol=1e-2, atol=1e-2 * unit)
    power = LOOKBACK * (shape**2).mean(0)
    np.testing.assert_allclose(chosen.model.prior, 1e-7 * power * unit**2, rtol=1e-2)
    short = replace(split, settings=replace(split.settings, lookback=4, theta=4.0))
    assert fit(short, Options())[0].summary["tried"] == []  # a window without a whole season shows no amplitude


def test_a_season_without_validation_rows_is_taken() -> None:
    rows = np.sin(2 * np.pi * np.arange(60) / 5)[:, None] + 0.1 * noise(60, 1)
    split = Split.of_tables(as_list(rows, "X"), (), Wanted(HORIZON, LOOKBACK, ORDER, THETA, 5))
    chosen, *_ = fit(split, Options(refit=True))
    assert chosen.summary["season"] == 5
    assert chosen.summary["amplitude"] == choosing._AMPLITUDES[-1]
    assert chosen.summary["alpha"] == sorted(choosing.ALPHAS)[len(choosing.ALPHAS) // 2]
    assert chosen.model is chosen.unrefitted
    constant = Split.of_tables(as_list(np.ones((60, 1)), "X"), (), Wanted(HORIZON, LOOKBACK, ORDER, THETA, 5))
    assert fit(constant, Options())[0].summary["season"] == 0


def covariate_split() -> Split:
    drive = noise(120, 1)
    moved = np.concatenate([5 * noise(120, 2).cumsum(0) + 4 * drive * np.array([1.0, -3.0]), 100 + 30 * drive], axis=1)
    return split_of([moved], columns=[2])


def test_covariates_are_used_if_the_gain_is_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a share of the error that is the larger the fewer horizons the validation rows hold."""
    split = covariate_split()
    chosen, _, scale = fit(split, Options(lags=1))
    without, with_ = (chosen.summary[f"mse {word} covariates"] for word in ("without", "with"))
    assert chosen.summary["covariates"]
    assert chosen.summary["mse"] == with_ < without
    origins = split.origins("valid")
    windows = split.windows.take(origins, split.length, HORIZON)
    assert chosen.without_covariates is not None
    for model, expected in ((chosen.unrefitted, with_), (chosen.without_covariates, without)):
        error = (model_method(model)(windows) - windows.future) / torch.tensor(scale)[:, None]
        assert float(error.detach().square().mean()) == pytest.approx(expected, rel=1e-3)
    horizons = split.validation_rows[0] / HORIZON
    assert horizons > 2
    for factor, used in ((0.99, True), (1.01, False)):
        monkeypatch.setattr(choosing, "GAIN", factor * horizons * (1 - with_ / without))
        again = fit(split, Options(lags=1))[0]
        assert again.summary["covariates"] == used
        assert again.summary["mse"] == (with_ if used else without)
        assert isinstance(again.model, CovariateForecast)
        assert bool(again.model.effect_weight.any()) == used
        assert again.summary["lags"] == again.model.lags == 1


def test_an_effect_is_in_the_units_of_the_data() -> None:
    split = covariate_split()
    model = fit(split, Options(lags=1))[0].model
    piece = split.data.pieces[0]
    data = replace(split.data, pieces=[replace(piece, values=7 * piece.values, covariates=piece.covariates / 5)])
    other = fit(replace(split, data=data), Options(lags=1))[0].model
    torch.testing.assert_close(other.effect_weight, 35 * model.effect_weight, rtol=1e-3, atol=1e-4)
    expected = torch.tensor([4.0, -12.0]) / 30
    torch.testing.assert_close(model.effect_weight.flatten(), expected, rtol=0.4, atol=0)


@pytest.mark.parametrize("folds", [1, 2, 4])
def test_folds_are_fits_to_growing_shares(folds: int) -> None:
    split = split_of([noise(90, 1).cumsum(0), noise(50, 1).cumsum(0)], names="ab")
    rows = [80, 44]
    made = list(rolling(split, Options(individual=False, refit=True), rows, folds))
    assert len(made) == folds
    for number, fold in enumerate(made):
        share, following = (0.5 + 0.5 * (number + k) / folds for k in (0, 1))
        ends, after = (first_rows(split.data, rows, part) for part in (share, following))
        assert [end for _, end in fold.split.cuts] == ends
        assert [begin for begin, _ in fold.split.cuts] == first_rows(split.data, ends, 0.8)
        expected = [
            offset + origin
            for offset, end, last in zip((0, 90), ends, after, strict=True)
            for origin in range(end - 1, last - HORIZON)
        ]
        assert fold.origins.tolist() == expected
        alone, *_ = fit(split.until(ends, 0.2), Options(individual=False))
        torch.testing.assert_close(fold.model.weight, alone.unrefitted.weight)


def test_folds_with_too_few_rows_are_left_out() -> None:
    split = split_of([noise(60, 1)])
    for rows in range(10, 60):
        made = list(rolling(split, Options(alpha=0.1), [rows], 2))
        expected = []
        for end, after in ((round(rows / 2), round(0.75 * rows)), (round(0.75 * rows), rows)):
            origins = [origin for origin in range(LOOKBACK - 1, rows) if end <= origin + 1 and origin + HORIZON < after]
            if origins and round(0.8 * end) - HORIZON > LOOKBACK:
                expected.append(origins)
        assert [fold.origins.tolist() for fold in made] == expected


def test_a_summary_has_the_old_name_of_alpha() -> None:
    summary = Summary(alpha=0.5)
    with pytest.warns(DeprecationWarning, match="now validation_"):
        assert summary["strength"] == 0.5
    with pytest.raises(KeyError, match="beta"):
        summary["beta"]
