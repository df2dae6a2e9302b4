"""`plmu.timeseries.ridge` against ridge regressions in NumPy, on windows that a plain loop makes."""

import numpy as np
import pytest
import torch

import plmu
from plmu.nn import LookbackForecast
from plmu.timeseries.ridge import ALPHAS, PULLS, ScaledSeries, Sums, best_ridge, solve
from plmu.timeseries.windows import Part

CHANNELS, LOOKBACK, HORIZON, ORDER, THETA, SEASON = 2, 8, 3, 4, 6.0, 5


def noise(*shape: int) -> np.ndarray:
    """Normal numbers, which are the same whenever a test runs."""
    return torch.randn(*shape, dtype=torch.float64).numpy()


def layer_of(season: int, phase: int = 0) -> LookbackForecast:
    layer = LookbackForecast(CHANNELS, HORIZON, ORDER, THETA, LOOKBACK, season=season, phase=phase)
    layer.requires_grad_(False)
    layer.season_pattern.normal_()
    layer.prior.copy_(torch.tensor([0.5, 2.0]))
    return layer


def examples(layer: LookbackForecast, parts: list[Part], stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Features (channels, windows, order) and targets (channels, windows, horizon): window after window."""
    taps = plmu.DelayNetwork(ORDER, THETA).discretize().impulse_response(LOOKBACK).numpy()[:, ::-1].T
    features: list[list[np.ndarray]] = [[], []]
    targets: list[list[np.ndarray]] = [[], []]
    for part in parts:
        rows = part.values.double().numpy()
        for first in range(0, rows.shape[1] - LOOKBACK - HORIZON + 1, stride):
            for channel in range(CHANNELS):
                window = rows[channel, first : first + LOOKBACK]
                ahead = rows[channel, first + LOOKBACK : first + LOOKBACK + HORIZON]
                change, target = window - window[-1], ahead - window[-1]
                if layer.season:
                    steps = part.start + first + np.arange(LOOKBACK + HORIZON) + layer.phase
                    shape = layer.season_pattern[steps % layer.season, channel].double().numpy()
                    shape = shape - shape[LOOKBACK - 1]
                    centred, prior = shape[:LOOKBACK] - shape[:LOOKBACK].mean(), float(layer.prior[channel])
                    amplitude = np.clip((change @ centred + prior) / (centred @ centred + prior), 0, 2)
                    change = change - amplitude * shape[:LOOKBACK]
                    target = target - amplitude * shape[LOOKBACK:]
                features[channel].append(change @ taps)
                targets[channel].append(target)
    return np.array(features), np.array(targets)


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("season", [0, SEASON])
def test_sums_are_means_over_all_windows(season: int, stride: int) -> None:
    layer = layer_of(season, phase=2 if season else 0)
    parts = [Part(torch.randn(CHANNELS, rows), start) for rows, start in ((30, 4), (6, 0), (14, 23))]
    x, y = examples(layer, parts, stride)
    sums = Sums.of(layer, parts, stride)
    assert sums.count == x.shape[1] == (24 if stride == 1 else 9)
    np.testing.assert_allclose(sums.gram, x.mT @ x / sums.count, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(sums.cross, x.mT @ y / sums.count, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(sums.square, (y**2).sum((1, 2)) / sums.count, rtol=1e-4, atol=1e-4)
    weight = noise(CHANNELS, ORDER, HORIZON)
    assert sums.error(torch.tensor(weight)) == pytest.approx(((y - x @ weight) ** 2).mean(), rel=1e-4)
    assert sums.error(torch.tensor(weight[:1])) == pytest.approx(((y - x @ weight[0]) ** 2).mean(), rel=1e-4)
    scale = 0.5 + torch.rand(ORDER).numpy()
    scaled = sums.scaled(torch.tensor(scale))
    np.testing.assert_allclose(scaled.gram, (x / scale).mT @ (x / scale) / sums.count, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(scaled.cross, (x / scale).mT @ y / sums.count, rtol=1e-4, atol=1e-4)
    assert scaled.count == sums.count
    assert torch.equal(scaled.square, sums.square)


def test_sums_without_windows_are_zero() -> None:
    sums = Sums.of(layer_of(0), [Part(torch.randn(CHANNELS, LOOKBACK), 0)])
    assert (sums.count, float(sums.gram.abs().sum() + sums.cross.abs().sum() + sums.square.abs().sum())) == (0, 0)


def stacked(x: np.ndarray, y: np.ndarray, penalty: float, towards: np.ndarray) -> np.ndarray:
    """The weight of least mean square error plus penalty · |weight − towards|², by least squares with further rows."""
    root = np.sqrt(penalty)
    rows = np.concatenate([x / np.sqrt(len(x)), root * np.eye(x.shape[1])])
    targets = np.concatenate([y / np.sqrt(len(x)), root * towards])
    return np.linalg.lstsq(rows, targets, rcond=None)[0]


def random_examples(seed: int, count: int = 40) -> tuple[np.ndarray, np.ndarray, Sums]:
    """Channels with readouts that differ a little, and their sums."""
    rng = np.random.default_rng(seed)
    shared = np.random.default_rng(0).standard_normal((ORDER, HORIZON))
    own = shared + 0.6 * np.random.default_rng(1).standard_normal((CHANNELS, ORDER, HORIZON))
    x = rng.standard_normal((CHANNELS, count, ORDER)) * np.array([1.0, 3.0, 0.2, 1.0])
    y = x @ own + 2.0 * rng.standard_normal((CHANNELS, count, HORIZON))
    gram, cross = (torch.tensor(x.mT @ other / count) for other in (x, y))
    return x, y, Sums(gram, cross, torch.tensor((y**2).sum((1, 2)) / count), count)


@pytest.mark.parametrize("alpha", [1e-3, 0.7])
@pytest.mark.parametrize("pull", [float("inf"), 0.4])
def test_a_ridge_is_least_squares_with_penalties(alpha: float, pull: float) -> None:
    x, y, sums = random_examples(2)
    shared, weight = solve(sums, alpha, pull)
    together = stacked(np.concatenate(x), np.concatenate(y), alpha, np.zeros((ORDER, HORIZON)))
    np.testing.assert_allclose(shared, together, rtol=1e-8)
    if pull == float("inf"):
        np.testing.assert_allclose(weight, together[None], rtol=1e-8)
    else:
        expected = [stacked(x[channel], y[channel], pull, together) for channel in range(CHANNELS)]
        np.testing.assert_allclose(weight, np.stack(expected), rtol=1e-8)
    other = torch.randn(ORDER, HORIZON, dtype=torch.float64)
    assert solve(sums, alpha, pull, other)[0] is other


@pytest.mark.parametrize("options", [(ALPHAS, PULLS), ((0.3, 1e-3), (0.5,)), ((1e-2, 1e-1, 1.0), PULLS[:1])])
def test_the_best_ridge_has_the_smallest_validation_error(options: tuple[tuple[float, ...], ...]) -> None:
    """Alpha first, for one readout; then the pull, with that alpha."""
    alphas, pulls = options
    x, y, train = random_examples(3)
    x_valid, y_valid, valid = random_examples(4, 30)
    scale = np.sqrt((x**2).mean((0, 1)))
    z, z_valid = x / scale, x_valid / scale
    zero = np.zeros((ORDER, HORIZON))
    tried = []
    for alpha in alphas:
        shared = stacked(np.concatenate(z), np.concatenate(y), alpha, zero)
        tried.append((((y_valid - z_valid @ shared) ** 2).mean(), alpha, float("inf"), shared[None]))
    best = min(tried, key=lambda option: option[0])
    for pull in pulls:
        if pull < float("inf"):
            own = np.stack([stacked(z[c], y[c], pull, best[3][0]) for c in range(2)])
            tried.append((((y_valid - z_valid @ own) ** 2).mean(), best[1], pull, own))
    error, alpha, pull, weight = min(tried, key=lambda option: option[0])
    ridge = best_ridge(train, valid, alphas, pulls)
    assert (ridge.alpha, ridge.pull) == (alpha, pull)
    assert ridge.error == pytest.approx(error)
    assert (pull < float("inf")) == (pulls != PULLS[:1])
    np.testing.assert_allclose(ridge.weight, weight / scale[:, None], rtol=1e-6, atol=1e-12)


def test_the_median_alpha_where_there_is_no_validation_data() -> None:
    x, y, train = random_examples(5)
    scale = np.sqrt((x**2).mean((0, 1)))
    ridge = best_ridge(train, None, (1.0, 1e-4, 0.1))
    assert (ridge.alpha, ridge.pull) == (0.1, float("inf"))
    assert np.isnan(ridge.error)
    weight = stacked(np.concatenate(x / scale), np.concatenate(y), 0.1, np.zeros((ORDER, HORIZON)))
    np.testing.assert_allclose(ridge.weight, weight[None] / scale[:, None], rtol=1e-8)


def test_a_feature_that_is_always_zero_has_no_weight() -> None:
    x, y, _ = random_examples(6)
    x[:, :, 2] = 0
    sums = Sums(*(torch.tensor(x.mT @ other / 40) for other in (x, y)), torch.tensor((y**2).sum((1, 2)) / 40), 40)
    ridge = best_ridge(sums, sums)
    assert float(ridge.weight[:, 2].abs().max()) == 0
    assert ridge.error == pytest.approx(((y - x @ ridge.weight.numpy()) ** 2).mean())


def test_a_single_channel_has_the_shared_readout_alone() -> None:
    _, _, sums = random_examples(8)
    alone = Sums(sums.gram[:1], sums.cross[:1], sums.square[:1], sums.count)
    assert best_ridge(alone, alone).pull == float("inf")


def test_sums_of_train_and_validation_rows() -> None:
    """Windows to fit end before the validation rows; horizons to validate on lie in them. `limit` counts channels."""
    layer = layer_of(0)
    series, starts = [torch.randn(CHANNELS, 40), torch.randn(CHANNELS, 25)], [3, 9]
    data = ScaledSeries(series, [10, 0], starts, CHANNELS, HORIZON)
    everything = [Part(rows, start) for rows, start in zip(series, starts, strict=True)]
    expected = {
        "train": [Part(series[0][:, :30], 3), everything[1]],
        "valid": [Part(series[0][:, 30 - LOOKBACK :], 3 + 30 - LOOKBACK)],
        "all": everything,
    }
    windows = {name: sum(part.windows(layer) for part in parts) for name, parts in expected.items()}
    assert windows == {"train": 20 + 15, "valid": 8, "all": 30 + 15}
    for limit, strides in ((1000, (1, 1, 1)), (2 * 34, (2, 1, 2)), (2 * 7, (5, 2, 7)), (2 * 45, (1, 1, 1))):
        train, valid = data.sums(layer, limit)
        for sums, parts, stride in zip((train, valid, data.all_sums(layer, limit)), expected.values(), strides,
                                       strict=True):  # fmt: skip
            other = Sums.of(layer, parts, stride)
            assert sums is not None
            assert sums.count == other.count
            torch.testing.assert_close(sums.gram, other.gram)
            torch.testing.assert_close(sums.cross, other.cross)
    for rows in ([0, 0], [2, 1], [35, 0]):  # none; fewer than a horizon; no window before them
        assert ScaledSeries(series, rows, starts, CHANNELS, HORIZON).sums(layer, 1000)[1] is None
