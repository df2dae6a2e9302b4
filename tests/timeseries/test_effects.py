"""`plmu.timeseries.effects` against the same alternation in NumPy, on windows that a plain loop makes."""

from typing import Any

import numpy as np
import pytest
import torch

import plmu
from plmu.nn import LookbackForecast
from plmu.timeseries import effects
from plmu.timeseries.effects import best_effect, effects_of, lag_order, padded
from plmu.timeseries.ridge import ALPHAS, ScaledSeries

LOOKBACK, HORIZON, ORDER, THETA = 6, 5, 4, 5.0


def taps(order: int, theta: float, length: int) -> Any:
    """The impulse response, the oldest step first: (length, order)."""
    return plmu.DelayNetwork(order, theta).discretize().impulse_response(length).numpy()[:, ::-1].T


def features_of(rows: np.ndarray, lags: int) -> np.ndarray:
    """The present value and the Legendre coefficients of the lags, (covariates · columns, time)."""
    order, out = min(8, lags - 1), []
    for row in rows:
        out.append(row)
        filled = np.concatenate([np.repeat(row[:1], lags - 1), row])
        for k in range(order):
            response = taps(order, lags, lags)[:, k]
            out.append(np.array([filled[t : t + lags] @ response for t in range(len(row))]))
    return np.stack(out)


def spread(window: np.ndarray) -> Any:
    return np.abs(window - window.mean()).mean()


def windows_of(data: ScaledSeries, valid: bool) -> list[tuple[int, int]]:
    """Series and first row of each window to fit or, whose horizon lies in the validation rows, to validate."""
    out = []
    for place, (series, rows) in enumerate(zip(data.series, data.validation_rows, strict=True)):
        end = series.shape[1] - rows
        for first in range(series.shape[1] - LOOKBACK - HORIZON + 1):
            begin, last = first + LOOKBACK, first + LOOKBACK + HORIZON
            if (begin >= end) if valid else (last <= end):
                out.append((place, first))
    return out


def reference(
    data: ScaledSeries, covariates: list[torch.Tensor], lags: int, alpha: float | None, ahead: list[int]
) -> tuple[np.ndarray, float]:
    """The weights (channels, features) after two rounds, and their validation error."""
    series = [rows.double().numpy() for rows in data.series]
    features = [features_of(rows.double().numpy(), lags) for rows in covariates]
    response = taps(ORDER, THETA, LOOKBACK)
    places = [windows_of(data, valid) for valid in (False, True)]
    readout, weight = np.zeros((ORDER, HORIZON)), np.zeros((data.channels, len(features[0])))
    for number in range(3):
        if number:  # the readout of the series without the effect
            examples: list[Any] = []
            for part in places:
                x, y = [], []
                for place, first in part:
                    rows, effect = (r[:, first : first + LOOKBACK + HORIZON] for r in (series[place], features[place]))
                    for channel in range(data.channels):
                        size = spread(rows[channel, :LOOKBACK]) if data.relative else 1.0
                        rest = rows[channel] - size * (weight[channel] @ effect)
                        rest = rest - rest[LOOKBACK - 1]
                        x.append(rest[:LOOKBACK] @ response)
                        y.append(rest[LOOKBACK:])
                examples.append((np.array(x), np.array(y)))
            (x, y), (x_valid, y_valid) = examples
            scale = np.sqrt((x**2).mean(0))
            gram, cross = (x / scale).T @ (x / scale) / len(x), (x / scale).T @ y / len(x)
            alphas = ALPHAS if alpha is None else (alpha,)
            options = [np.linalg.solve(gram + a * np.eye(ORDER), cross) / scale[:, None] for a in alphas]
            if len(x_valid):
                readout = min(options, key=lambda option: ((y_valid - x_valid @ option) ** 2).mean())
            else:
                readout = options[len(alphas) // 2]
        errors: list[Any] = []
        for part in places:  # the effect on the errors of the readout
            x, y = [], []
            for place, first in part:
                rows = np.concatenate([series[place], features[place]])[:, first : first + LOOKBACK + HORIZON]
                change = rows - rows[:, LOOKBACK - 1 : LOOKBACK]
                error = change[:, LOOKBACK:] - change[:, :LOOKBACK] @ response @ readout
                sizes = [spread(row[:LOOKBACK]) if data.relative else 1.0 for row in rows[: data.channels]]
                for step in ahead:
                    x.append([size * error[data.channels :, step] for size in sizes])
                    y.append(error[: data.channels, step])
            errors.append((np.array(x), np.array(y)))
        (x, y), (x_valid, y_valid) = errors
        options = []
        for option in effects._ALPHAS:
            weights = []
            for channel in range(data.channels):
                scale = np.sqrt((x[:, channel] ** 2).mean(0))
                gram = (x[:, channel] / scale).T @ (x[:, channel] / scale) / len(x) + option * np.eye(len(scale))
                weights.append(np.linalg.solve(gram, (x[:, channel] / scale).T @ y[:, channel] / len(x)) / scale)
            left = (y_valid - np.einsum("ncf,cf->nc", x_valid, weights)) ** 2 if len(x_valid) else np.full(1, np.nan)
            options.append((left.mean(), np.array(weights)))
        best = min(options, key=lambda o: o[0]) if len(x_valid) else options[len(options) // 2]
        error, weight = best
    return weight, error


def case(
    relative: bool = False, validation: bool = True, channels: int = 2, noise: float = 0.3
) -> tuple[ScaledSeries, list[torch.Tensor], LookbackForecast]:
    """Two series that two covariates move at once and for some steps."""
    lengths = (60, 45)
    covariates = [torch.randn(2, rows) for rows in lengths]
    series = []
    for rows in covariates:
        late = torch.cat([torch.zeros(2, 1), rows[:, :-1]], dim=1)
        moved = torch.tensor([[0.8, -0.5], [0.1, 1.0]])[:channels] @ (rows + 0.5 * late)
        series.append(moved + noise * torch.randn(channels, rows.shape[1]).cumsum(1))
    validation_rows = [15, 10] if validation else [0, 0]
    data = ScaledSeries(series, validation_rows, [0, 3], channels, HORIZON, relative=relative)
    layer = LookbackForecast(channels, HORIZON, ORDER, THETA, LOOKBACK).requires_grad_(False)
    return data, covariates, layer


@pytest.mark.parametrize(("lags", "relative", "validation", "alpha"), [
    (1, False, True, None), (3, False, True, 0.1), (3, True, True, None), (1, True, False, 0.1),
    (12, False, False, None),
])  # fmt: skip
def test_the_effect_is_what_the_alternation_in_numpy_gives(
    lags: int, relative: bool, validation: bool, alpha: float | None
) -> None:
    data, covariates, layer = case(relative, validation)
    effect = best_effect(data, covariates, layer, lags, alpha)
    weight, error = reference(data, covariates, lags, alpha, list(range(HORIZON)))
    assert effect.lag_order == min(8, lags - 1) == lag_order(lags)
    np.testing.assert_allclose(effect.weight.flatten(1), weight, rtol=2e-3, atol=2e-3 * np.abs(weight).max())
    assert effect.error == pytest.approx(error, rel=1e-3, nan_ok=True)
    assert np.isnan(effect.error) != validation


def test_few_steps_ahead_stand_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "_STEPS", 2)
    data, covariates, layer = case()
    weight, _ = reference(data, covariates, 1, 0.1, [0, HORIZON - 1])
    effect = best_effect(data, covariates, layer, 1, 0.1)
    np.testing.assert_allclose(effect.weight.flatten(1), weight, rtol=2e-3, atol=1e-3)


def test_a_bounded_number_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted over channels and features, but some of each; with every other window the effect is another."""
    data, covariates, layer = case()
    expected = best_effect(data, covariates, layer, 1, 0.1).weight
    windows = {len(windows_of(data, valid)) for valid in (False, True)}
    columns = 2 + 2
    monkeypatch.setattr(effects, "_WINDOWS", 0)
    monkeypatch.setattr(effects, "_LEAST", max(windows))
    torch.testing.assert_close(best_effect(data, covariates, layer, 1, 0.1).weight, expected)
    monkeypatch.setattr(effects, "_LEAST", max(windows) - 1)
    assert not torch.allclose(best_effect(data, covariates, layer, 1, 0.1).weight, expected, rtol=1e-3)
    monkeypatch.setattr(effects, "_LEAST", 0)
    monkeypatch.setattr(effects, "_WINDOWS", columns * max(windows))
    torch.testing.assert_close(best_effect(data, covariates, layer, 1, 0.1).weight, expected)
    monkeypatch.setattr(effects, "_WINDOWS", columns * max(windows) - 1)
    assert not torch.allclose(best_effect(data, covariates, layer, 1, 0.1).weight, expected, rtol=1e-3)


def test_the_lags_are_chosen_by_the_validation_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those of which the longest series has at least 20 times as many rows to fit."""
    monkeypatch.setattr(effects, "LAGS", (1, 2, 3))
    data, covariates, layer = case(noise=0.1)
    longest = 60 - 15
    each = {lags: best_effect(data, covariates, layer, lags, None) for lags in (1, 2, 3)}
    assert each[2].error < each[1].error
    for repeats, options in ((longest // 3, (1, 2, 3)), (longest // 3 + 1, (1, 2)), (longest // 2 + 1, (1,)),
                             (longest + 1, (1,))):  # fmt: skip
        monkeypatch.setattr(effects, "REPEATS", repeats)
        best = best_effect(data, covariates, layer, None, None)
        expected = min((each[lags] for lags in options), key=lambda effect: effect.error)
        assert (best.lags, best.error) == (expected.lags, expected.error)
    monkeypatch.setattr(effects, "REPEATS", 1)
    without, covariates, layer = case(validation=False)
    assert best_effect(without, covariates, layer, None, None).lags == 1


@pytest.mark.parametrize("lags", [1, 4])
def test_the_effect_on_a_series_is_linear_in_its_features(lags: int) -> None:
    covariates = [torch.randn(2, 9), torch.randn(2, 5)]
    weight = torch.randn(3, 2, lags)
    moved = effects_of(effects.Effect(weight, lags, 0.0), covariates)
    for rows, change in zip(covariates, moved, strict=True):
        expected = weight.double().flatten(1).numpy() @ features_of(rows.double().numpy(), lags)
        np.testing.assert_allclose(change, expected, rtol=1e-4, atol=1e-5)
    assert padded(torch.tensor([[3.0, 4.0]]), 2).tolist() == [[3.0, 3.0, 3.0, 4.0]]


def test_long_series_are_cut_to_their_last_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose validation rows are at most a quarter; at least ten windows with horizons of each are kept."""
    monkeypatch.setattr(effects, "_ROWS", 2 * 40)
    monkeypatch.setattr(effects, "_WHOLE", 3)
    data, covariates, layer = case()
    cut, rows = effects._recent(data, covariates, layer)
    assert cut.validation_rows == [10, 10]
    spans = [slice(60 - 5 - 40, 60 - 5), slice(45 - 40, 45)]
    for place, span in enumerate(spans):
        torch.testing.assert_close(cut.series[place], data.series[place][:, span])
        torch.testing.assert_close(rows[place], covariates[place][:, span])
        assert cut.start_rows[place] == data.start_rows[place] + span.start
    monkeypatch.setattr(effects, "_WHOLE", 5)
    assert [series.shape[1] for series in effects._recent(data, covariates, layer)[0].series] == [55, 45]
    assert effects._recent(data, covariates, layer)[0].validation_rows == [13, 10]
    monkeypatch.setattr(effects, "_WHOLE", 6)
    assert [series.shape[1] for series in effects._recent(data, covariates, layer)[0].series] == [60, 45]


def test_a_covariate_that_never_changes_has_no_effect() -> None:
    data, covariates, layer = case()
    constant = [torch.cat([rows, torch.ones(1, rows.shape[1])]) for rows in covariates]
    effect = best_effect(data, constant, layer, 1, 0.1)
    assert float(effect.weight[:, 2].abs().max()) == 0
    torch.testing.assert_close(effect.weight[:, :2], best_effect(data, covariates, layer, 1, 0.1).weight)
