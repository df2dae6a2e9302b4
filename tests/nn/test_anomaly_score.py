"""`plmu.nn.AnomalyScore`: against the recurrence in plain Python, its calibration, and each kind of anomaly."""

import math

import numpy as np
import pytest
import torch
from anomaly_reference import Reference

import plmu

SIZES = {"half_life": 40.0, "order": 3, "theta": 6.0, "level": 0.9}


def stream(rows: int, seed: int = 0, season: int = 12) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return 50 + 4 * np.sin(2 * np.pi * np.arange(rows) / season) + generator.standard_normal(rows)


def tensor(*streams: np.ndarray) -> torch.Tensor:
    """(streams, time, 1)."""
    return torch.from_numpy(np.stack(streams))[:, :, None]


@pytest.mark.parametrize("season", [0, 12])
def test_the_layer_computes_the_recurrence(season: int) -> None:
    values = stream(400)
    values[200:203] = math.nan
    values[250] = 1e9
    values[300:330] = values[300]
    values[:2] = [math.nan, math.inf]
    layer = plmu.nn.AnomalyScore(1, season=season, **SIZES)
    reference = Reference(season, *SIZES.values())
    expected = np.array([reference.push(float(value)) for value in values])
    out, _ = layer(tensor(values))
    # Sums of up to 400 terms of errors up to 1e9, which the forecast divides by the mean change.
    np.testing.assert_allclose(out[0, :, 1:].numpy(), expected, rtol=1e-7, atol=1e-7)


def test_whole_pieces_steps_and_streams_are_equal() -> None:
    torch.manual_seed(0)
    layer = plmu.nn.AnomalyScore(2, season=7, **SIZES)
    x = torch.randn(3, 60, 2, dtype=torch.float64)
    whole, last = layer(x)
    first, state = layer(x[:, :23])
    second, state = layer(x[:, 23:], state)
    assert torch.equal(torch.cat([first, second], dim=1).nan_to_num(), whole.nan_to_num())
    assert all(torch.equal(a, b) for a, b in zip(state, last, strict=True))
    folded, state = plmu.fold(layer), None
    for t, row in enumerate(x.unbind(1)):
        out, state = folded.step(row, state)
        assert torch.equal(out.nan_to_num(), whole[:, t].nan_to_num())
    pushed = plmu.Stream(layer)
    assert all(torch.equal(pushed.push(row)[:, 0], whole[:, t, 0]) for t, row in enumerate(x.unbind(1)))
    alone, _ = layer(x[1:2])
    torch.testing.assert_close(alone, whole[1:2], equal_nan=True)


def test_lengths_and_resets() -> None:
    layer = plmu.nn.AnomalyScore(1, season=5, **SIZES)
    x = torch.randn(2, 40, 1, dtype=torch.float64)
    out, state = layer(x, lengths=[40, 25])
    assert not out[1, 25:].any()
    short, last = layer(x[1:, :25])
    torch.testing.assert_close(out[1:, :25], short, equal_nan=True)
    for part, expected in zip(state, last, strict=True):
        torch.testing.assert_close(part[1:], expected)
    resets = torch.zeros(2, 40, dtype=torch.bool)
    resets[:, 15] = True
    torch.testing.assert_close(layer(x, resets=resets)[0][:, 15:], layer(x[:, 15:])[0], equal_nan=True)
    only = plmu.nn.AnomalyScore(1, season=5, return_sequences=False, **SIZES)
    torch.testing.assert_close(only(x, lengths=[40, 25])[0][1], short[0, -1])


def test_a_missing_value_waits() -> None:
    layer = plmu.nn.AnomalyScore(2, **SIZES)
    x = torch.randn(1, 30, 2, dtype=torch.float64)
    x[0, 10, 1], x[0, 20] = math.nan, math.inf
    out, state = layer(x)
    scores = out[0, :, [0, 1, 5]]
    assert scores[10].isnan().tolist() == [False, False, True]
    assert scores[20].isnan().all()
    assert scores.isnan().sum() == 4
    assert out[0, 11:, 2:5].isfinite().all()  # something is expected where a value is missing
    assert state.clock[0].tolist() == [[30.0, 29.0], [30.0, 28.0]]
    assert all(part.isfinite().all() for part in state)


def test_a_value_of_absurd_size_is_an_anomaly_and_is_soon_forgotten() -> None:
    values = stream(3000)
    values[1500] = 1e300
    layer = plmu.nn.AnomalyScore(1, season=12)
    clean, (out, state) = layer(tensor(stream(3000)))[0][0], layer(tensor(values))
    assert out[0, 1500, 0] > 0.9999
    assert all(part.isfinite().all() for part in state)
    errors = (out[0, 1600:, 2] - torch.from_numpy(values[1600:])).abs().mean()
    assert errors < 1.1 * (clean[1600:, 2] - torch.from_numpy(values[1600:])).abs().mean()


ROWS, START = 4000, 3500


def _changed(kind: str, values: np.ndarray) -> np.ndarray:
    """The stream with an anomaly from START on."""
    values, noise = values.copy(), np.random.default_rng(9).standard_normal(ROWS)
    if kind == "value":
        values[START] += 12
    elif kind == "level":
        values[START:] += 8
    elif kind == "variance":
        values[START:] += 5 * noise[START:]
    elif kind == "flat line":
        values[START:] = values[START]
    elif kind == "missing beat":
        values[START : START + 12] = 50 + noise[START : START + 12]
        values[START : START + 12] -= 4 * np.sin(2 * np.pi * np.arange(START, START + 12) / 12)
    return values


KINDS = ["value", "level", "variance", "flat line", "missing beat"]


def test_each_kind_of_anomaly_is_seen_within_a_season() -> None:
    layer = plmu.nn.AnomalyScore(1, season=12)
    normal = [stream(ROWS, seed) for seed in range(3)]
    streams = normal + [_changed(kind, values) for kind in KINDS for values in normal]
    scores = layer(tensor(*streams))[0][:, :, 0].numpy()
    alarms = scores > 1 - 0.001
    assert alarms[:3].sum(1).max() <= 12  # 4 are expected
    assert alarms[:3, :500].sum(1).max() <= 2
    missed = {kind for place, kind in enumerate(KINDS)
              for row in alarms[3 + 3 * place :][:3] if not row[START : START + 12].any()}  # fmt: skip
    assert not missed


def test_a_share_of_normal_samples_that_the_threshold_says_has_alarms() -> None:
    generator = np.random.default_rng(1)
    rows, each = 8000, 3
    ar = np.zeros((each, rows))
    for t in range(1, rows):
        ar[:, t] = 0.9 * ar[:, t - 1] + generator.standard_normal(each)
    kinds = {
        "white": generator.standard_normal((each, rows)),
        "autoregressive": ar,
        "season": 5 * np.sin(2 * np.pi * np.arange(rows) / 24) + generator.standard_normal((each, rows)),
        "heavy tails": generator.standard_t(3, (each, rows)),
        "counts": generator.poisson(5, (each, rows)).astype(float),
    }
    layer = plmu.nn.AnomalyScore(1, season=24)
    scores = layer(tensor(*np.concatenate(list(kinds.values()))))[0][:, 4000:, 0].numpy()
    for place, kind in enumerate(kinds):
        rows_of = scores[each * place :][:each]
        # 600 and 120 alarms are expected; neighbours depend on each other.
        for share in (0.05, 0.01):
            rate = float((rows_of > 1 - share).mean())
            assert rate < 1.6 * share, (kind, share, rate)
            assert rate > 0.3 * share or kind == "counts", (kind, share, rate)  # which are seldom new
        assert (rows_of > 1 - 0.001).mean() < 2 * 0.001, kind


@pytest.mark.full
def test_intervals_contain_their_share_after_a_shift() -> None:
    values = stream(3000)
    values[1500:] += 5
    out, _ = plmu.nn.AnomalyScore(1, season=12, level=0.9)(tensor(values))
    inside = (values >= out[0, :, 3].numpy()) & (values <= out[0, :, 4].numpy())
    assert abs(inside[500:1500].mean() - 0.9) < 0.02
    assert abs(inside[1800:].mean() - 0.9) < 0.02
    assert (out[0, 1:, 3] <= out[0, 1:, 2]).all()


def test_covariances_stay_symmetric_and_positive() -> None:
    layer = plmu.nn.AnomalyScore(1, half_life=20.0, order=3, theta=6.0)
    _, state = layer(tensor(np.random.default_rng(0).standard_normal(4000)))
    covariance = state.covariance[0, 0]
    assert torch.equal(covariance, covariance.mT)
    assert torch.linalg.eigvalsh(covariance).min() > 0


def test_a_constant_has_no_anomalies_and_its_first_change_is_one() -> None:
    values = np.full(900, 0.1)
    values[800:] = 0.2
    out, _ = plmu.nn.AnomalyScore(1)(tensor(values))
    assert out[0, :800, 0].max() < 0.99
    assert out[0, 800, 0] > 0.9999


def test_it_is_saved_whole(tmp_path: object) -> None:
    layer = plmu.nn.AnomalyScore(2, season=24, half_life=100.0, level=0.8)
    plmu.save(layer, f"{tmp_path}/layer.plmu")
    again = plmu.load(f"{tmp_path}/layer.plmu")
    assert repr(again) == repr(layer) == "AnomalyScore(2, season=24, half_life=100.0, level=0.8)"
    x = torch.randn(1, 20, 2)
    assert torch.equal(again(x)[0].nan_to_num(), layer(x)[0].nan_to_num())
    assert layer(x)[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"season": -1}, "season must be an integer of at least 1, got -1"),
        ({"half_life": 0}, "half_life must be a number of at least 1"),
        ({"level": 1.0}, "level must be a share between 0 and 1"),
        ({"channels": 0}, "channels must be"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plmu.nn.AnomalyScore(**{"channels": 1, **options})


def test_a_state_that_does_not_fit_is_refused() -> None:
    layer, other = plmu.nn.AnomalyScore(1), plmu.nn.AnomalyScore(1, season=4)
    x = torch.randn(1, 3, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="state"):
        layer(x, other(x)[1])
    with pytest.raises(ValueError, match="state must be the 11 tensors"):
        layer(x, (x,))
