"""`plmu.timeseries.threshold_features`: each layer it builds, against NumPy on the training series."""

import numpy as np
import pytest
import torch

import plmu
from plmu.timeseries import threshold_features
from plmu.timeseries.threshold_features import build, outputs, padded, scales

ORDER, WINDOWS, PROJECTIONS, THRESHOLDS, CHANNELS = 3, (4.0, 9.0), 2, 5, 2


def series(count: int = 6, channels: int = CHANNELS) -> list[np.ndarray]:
    """Series of unequal length, whose channels have another level and size."""
    rng = np.random.default_rng(0)
    return [
        np.array([5.0, -2.0])[:channels] + np.array([3.0, 0.1])[:channels] * rng.standard_normal((10 + 3 * k, channels))
        for k in range(count)
    ]


@pytest.mark.parametrize("normalize", [True, False, "both"])
def test_padding_and_normalisation(normalize: bool | str) -> None:
    arrays = series()
    arrays[1][:, 1] = 1e6  # a channel that does not vary has only its mean subtracted
    x, lengths = padded(arrays, normalize)
    assert lengths.tolist() == [10, 13, 16, 19, 22, 25]
    assert x.shape == (6, 25, CHANNELS * (2 if normalize == "both" else 1))
    for row, array in zip(x, arrays, strict=True):
        deviation = array.std(0)
        deviation[deviation == 0] = 1
        scaled = (array - array.mean(0)) / deviation
        expected = {True: scaled, False: array, "both": np.concatenate([scaled, array], axis=1)}[normalize]
        np.testing.assert_allclose(row[: len(array)], expected, rtol=1e-5, atol=1e-6)
        assert not row[len(array) :].any()
    with pytest.raises(ValueError, match="too large for float32"):
        padded([np.full((3, 1), 1e39)], False)


@pytest.mark.parametrize("sources", [1, 2])
def test_each_layer_is_fitted_to_the_training_series(sources: int) -> None:
    arrays = series()
    x, lengths = padded(arrays, "both" if sources == 2 else False)
    whole = torch.Generator().manual_seed(3)
    front = build(x, lengths, sources, order=ORDER, windows=WINDOWS, projections=PROJECTIONS, thresholds=THRESHOLDS,
                  generator=whole)  # fmt: skip
    inputs, _, _, projection, counts = front
    groups = 2 * sources * len(WINDOWS)
    valid = [row[:length].double().numpy() for row, length in zip(x, lengths.tolist(), strict=True)]
    steps = np.concatenate(valid)
    scaled = [(rows - steps.mean(0)) / steps.std(0) for rows in valid]
    states: list[np.ndarray] = []
    for rows, values in zip(valid, scaled, strict=True):
        before = np.concatenate([np.zeros((1, rows.shape[1])), values[:-1]])
        parts = []  # each window has the sources, each of these the signal and its differences
        for window in WINDOWS:
            system = plmu.DelayNetwork(ORDER, window).discretize()
            a, b = system.A.numpy(), system.B.numpy()
            for source in range(sources):
                columns = slice(source * CHANNELS, (source + 1) * CHANNELS)
                for signal in (values[:, columns], (values - before)[:, columns]):
                    state, run = np.zeros((ORDER, CHANNELS)), []
                    for value in signal:
                        state = a @ state + b[:, None] * value
                        run.append(state)
                    parts.append(np.array(run))
        states.append(np.stack(parts, axis=2))  # (time, order, groups, channels)
        out, _ = front[:3](torch.tensor(rows, dtype=torch.float32)[None])
        np.testing.assert_allclose(out[0], states[-1].reshape(len(rows), -1), rtol=1e-3, atol=1e-4)
    assert inputs.weight.shape == (groups * CHANNELS, CHANNELS * sources)
    every = np.concatenate(states)
    mean, deviation = every.mean(0), every.std(0)
    weight = projection.weight.double().numpy().reshape(groups, PROJECTIONS, ORDER, groups, CHANNELS)
    for group in range(groups):
        own = weight[group, :, :, group] * deviation[:, group]
        np.testing.assert_allclose(np.sqrt((own**2).sum((1, 2))), 1, rtol=1e-3)  # of random directions
        assert not np.delete(weight[group], group, axis=2).any()
    flat = weight.reshape(groups * PROJECTIONS, -1)
    np.testing.assert_allclose(projection.bias, -flat @ mean.ravel(), rtol=1e-3, atol=1e-4)
    projected = every.reshape(len(every), -1) @ flat.T + projection.bias.double().numpy()
    golden = (np.sqrt(5) - 1) / 2
    for number, values in enumerate(np.sort(projected, axis=0).T):
        for k in range(THRESHOLDS):
            level = (k + number * golden % 1) / THRESHOLDS
            place = int(level * (len(values) - 1))
            expected = (values[place] + values[min(place + 1, len(values) - 1)]) / 2
            np.testing.assert_allclose(counts.thresholds[k, number], expected, rtol=1e-3, atol=2e-4)
    assert not any(parameter.requires_grad for parameter in front.parameters())
    generator = torch.Generator().manual_seed(3)
    again = build(x, lengths, sources, order=ORDER, windows=WINDOWS, projections=PROJECTIONS, thresholds=THRESHOLDS,
                  generator=generator)  # fmt: skip
    torch.testing.assert_close(again[3].weight, projection.weight, rtol=0, atol=0)


def test_features_are_shares_of_time_above_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """And their positions; in blocks of any size, and window by window as by the whole model."""
    x, lengths = padded(series(), False)
    front = build(x, lengths, 1, order=ORDER, windows=WINDOWS, projections=PROJECTIONS, thresholds=THRESHOLDS,
                  generator=torch.Generator().manual_seed(3))  # fmt: skip
    features = outputs(front, x, lengths)
    width = 2 * len(WINDOWS) * PROJECTIONS
    for row, length, expected in zip(x, lengths.tolist(), features, strict=True):
        projected = front[:4](row[None, :length])[0][0]
        above = projected[:, None] > front[4].thresholds  # (time, thresholds, projections)
        torch.testing.assert_close(expected.unflatten(0, (-1, THRESHOLDS, width))[0], above.float().mean(0))
    assert features.shape == (6, 4 * THRESHOLDS * width)
    for size in (1, 25 * width * 2, 25 * width * 5):
        monkeypatch.setattr(threshold_features, "_BLOCK", size)
        torch.testing.assert_close(outputs(front, x, lengths), features)
    torch.testing.assert_close(front(x, lengths=lengths)[0], features)
    assert len(threshold_features._by_windows(front)) == len(WINDOWS)  # which is less work
    front[3].weight[0, -1] = 1.0
    assert threshold_features._by_windows(front) == []  # a projection that sees several windows


def test_a_sample_of_series_and_steps_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales and thresholds come from a bounded number of series and steps, drawn at random."""
    monkeypatch.setattr(threshold_features, "_SAMPLED_SERIES", 2)
    monkeypatch.setattr(threshold_features, "_SAMPLED_STEPS", 7)
    arrays = series()
    x, lengths = padded(arrays, False)
    front = build(x, lengths, 1, order=ORDER, windows=WINDOWS, projections=PROJECTIONS, thresholds=1,
                  generator=torch.Generator().manual_seed(3))  # fmt: skip
    deviations = 1 / front[0].weight.double().numpy()[:CHANNELS].diagonal()
    pairs = [np.concatenate([a, b]).std(0) for k, a in enumerate(arrays) for b in arrays[:k]]
    assert any(np.allclose(deviations, pair, rtol=1e-4) for pair in pairs)


def test_what_does_not_vary_moves_no_projection() -> None:
    arrays = series()
    for array in arrays:
        array[:, 1] = 7.0
    x, lengths = padded(arrays, False)
    front = build(x, lengths, 1, order=ORDER, windows=WINDOWS[:1], projections=PROJECTIONS, thresholds=2,
                  generator=torch.Generator().manual_seed(0))  # fmt: skip
    torch.testing.assert_close(front[0](x)[..., 1], torch.where(torch.arange(25) < lengths[:, None], 0.0, -7.0))
    assert not front[3].weight.view(2, PROJECTIONS, ORDER, 2, CHANNELS)[..., 1].any()


def test_positions_weigh_half_as_much_as_shares() -> None:
    assert scales(12).tolist() == pytest.approx([1.0] * 3 + [0.5**0.5] * 9)
