"""`CovariateForecast` against its formula, and with itself: whole, in pieces, with lengths and resets, step by step."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import plmu
from plmu.nn import CovariateForecast, LookbackForecast
from plmu.runtime.frozen import FrozenModel

CHANNELS, COVARIATES, HORIZON, LOOKBACK = 2, 3, 4, 9
WIDTH = CHANNELS + COVARIATES * (1 + HORIZON)
CASES: dict[str, dict[str, Any]] = {
    "present": {},
    "lags": {"lags": 5, "lag_order": 3, "season": 4, "phase": 2, "individual": True},
    "relative": {"lags": 3, "lag_order": 2, "relative": True},
}


def build(name: str, **options: Any) -> CovariateForecast:
    torch.manual_seed(0)
    sizes = (CHANNELS, COVARIATES, HORIZON, 6, 8.0, LOOKBACK)
    layer = CovariateForecast(*sizes, **CASES[name], **options).double()
    with torch.no_grad():
        for one in (layer.weight, layer.effect_weight, layer.season_pattern):
            one.normal_()
    return layer


def samples(values: Tensor, covariates: Tensor) -> Tensor:
    """Of series (batch, time, channels) and covariates (batch, time + horizon, covariates), what the layer takes."""
    time = values.shape[1]
    ahead = [covariates[:, k : k + time] for k in range(HORIZON + 1)]
    return torch.cat([values, *ahead], dim=2)


def random(batch: int, time: int) -> tuple[Tensor, Tensor]:
    return (
        torch.randn(batch, time, CHANNELS, dtype=torch.float64),
        torch.randn(batch, time + HORIZON, COVARIATES, dtype=torch.float64),
    )


@pytest.mark.parametrize("name", CASES)
def test_forecasts_follow_the_formula(name: str) -> None:
    """The rest is forecast by a LookbackForecast, and the effect is a sum over lags."""
    layer = build(name)
    values, covariates = random(1, 25)
    found = layer(samples(values, covariates))[0].unflatten(-1, (HORIZON, CHANNELS))[0]
    plain = {
        key: one for key, one in layer.config.items() if key not in ("covariates", "lags", "lag_order", "relative")
    }
    rest = LookbackForecast(**plain).double()
    rest.load_state_dict({key: one for key, one in layer.state_dict().items() if key != "effect_weight"})
    effect = torch.zeros(25 + HORIZON, CHANNELS, dtype=torch.float64)
    response = plmu.DelayNetwork(max(layer.lag_order, 1), float(layer.lags)).discretize().impulse_response(layer.lags)
    for at in range(len(effect)):
        for lag in range(layer.lags):
            weight = layer.effect_weight[..., 1:] @ response[:, lag] if layer.lag_order else torch.zeros(1)
            weight = weight + layer.effect_weight[..., 0] if lag == 0 else weight
            effect[at] += (weight * covariates[0, max(at - lag, 0)]).sum(1)
    for at in (0, 3, LOOKBACK - 1, 24):
        rows = torch.arange(at + 1 - LOOKBACK, at + 1).clamp(min=0)
        window = values[0, rows]
        size = (window - window.mean(0)).abs().mean(0) if layer.relative else torch.ones(())
        left = (window - size * effect[rows]).mT
        phase = torch.tensor((at + layer.phase) % max(layer.season, 1))
        expected = rest.read(left, phase).mT + size * effect[at + 1 : at + 1 + HORIZON]
        torch.testing.assert_close(found[at], expected)


@pytest.mark.parametrize("name", CASES)
def test_whole_pieces_steps_and_a_stream_agree(name: str) -> None:
    layer = build(name)
    x = samples(*random(2, 30))
    whole, end = layer(x)
    first, state = layer(x[:, :13])
    second, state = layer(x[:, 13:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    stepped, at = [], None
    for x_t in x.unbind(1):
        out, at = layer.step(x_t, at)
        stepped.append(out)
    torch.testing.assert_close(torch.stack(stepped, dim=1), whole)
    for one, other, third in zip(end, state, at, strict=True):
        torch.testing.assert_close(one, other)
        torch.testing.assert_close(one, third)
    stream, folded = plmu.Stream(layer), plmu.fold(layer)
    torch.testing.assert_close(torch.stack([stream.push(x_t) for x_t in x.unbind(1)], dim=1), whole)
    torch.testing.assert_close(folded.step(x[:, 13], layer(x[:, :13])[1])[0], whole[:, 13])
    last = build(name, return_sequences=False)
    torch.testing.assert_close(last(x, lengths=[30, 7])[0], torch.stack([whole[0, 29], whole[1, 6]]))


@pytest.mark.parametrize("name", CASES)
def test_lengths_and_resets(name: str) -> None:
    layer = build(name)
    x = samples(*random(3, 20))
    before = layer(samples(*random(3, 5)))[1]
    padded = x.clone()
    padded[1, 7:] = float("nan")
    padded[2] = float("nan")
    out, state = layer(padded, before, lengths=[20, 7, 0])
    expected, end = layer(x[1:2, :7], tuple(part[1:2] for part in before))
    torch.testing.assert_close(out[1:2, :7], expected)
    for one, other, unchanged in zip(state, end, before, strict=True):
        torch.testing.assert_close(one[1:2], other)
        torch.testing.assert_close(one[2], unchanged[2])
    resets = torch.zeros(3, 20, dtype=torch.bool)
    resets[:, 9] = True
    out, state = layer(x, before, resets=resets)
    expected, end = layer(x[:, 9:])
    torch.testing.assert_close(out[:, 9:], expected)
    torch.testing.assert_close(out[:, :9], layer(x[:, :9], before)[0])
    for one, other in zip(state, end, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", CASES)
def test_a_constant_added_to_a_covariate_changes_nothing(name: str) -> None:
    layer = build(name)
    values, covariates = random(1, 20)
    expected = layer(samples(values, covariates))[0]
    torch.testing.assert_close(layer(samples(values, covariates + 7))[0], expected)
    if layer.relative:
        torch.testing.assert_close(layer(samples(5 * values + 1, covariates))[0], 5 * expected + 1)


def test_it_is_saved_loaded_and_trained(tmp_path: Path) -> None:
    layer = build("lags").float()
    plmu.save(layer, tmp_path / "model.plmu")
    x = samples(*random(1, 20)).float()
    assert torch.equal(plmu.load(tmp_path / "model.plmu")(x)[0], layer(x)[0])
    layer(x)[0].square().mean().backward()
    for one in (layer.weight, layer.effect_weight):
        assert one.grad is not None
        assert bool(one.grad.abs().sum() > 0)
    plain = build("present").float()
    plain.reset_parameters()
    assert torch.equal(plain(x)[0].unflatten(-1, (HORIZON, CHANNELS))[..., 0, :], x[..., :CHANNELS])


@pytest.mark.parametrize("kind", ["covariates", "plain", "counts"])
def test_a_stream_is_saved_and_restored(kind: str, tmp_path: Path) -> None:
    """Of layers that keep a window or counts rather than a memory, too."""
    layer: Any = build("lags")
    if kind == "plain":
        layer = LookbackForecast(WIDTH, 2, 3, 4.0, 5).double()
    elif kind == "counts":
        layer = plmu.Sequential(plmu.DelayLayer(WIDTH, 2, 4.0).double(), plmu.nn.ThresholdShares(2 * WIDTH, 3).double())
    x = samples(*random(1, 20))[0]
    stream = plmu.Stream(layer)
    for x_t in x[:12]:
        stream.push(x_t)
    stream.save(tmp_path / "state")
    restored = plmu.Stream.restore(layer, tmp_path / "state")
    for x_t in x[12:]:
        assert torch.equal(restored.push(x_t), stream.push(x_t))
    with torch.no_grad():
        next(iter(layer.state_dict().values())).add_(1.0)
    with pytest.raises(ValueError, match="another model"):
        plmu.Stream.restore(layer, tmp_path / "state")


@pytest.mark.parametrize("wrong", [{"covariates": 0}, {"lags": 0}, {"lag_order": 4}, {"lag_order": -1}])
def test_wrong_arguments_are_named(wrong: dict[str, int]) -> None:
    options = {
        "channels": 1,
        "covariates": 1,
        "horizon": 2,
        "order": 3,
        "theta": 4.0,
        "lookback": 5,
        "lags": 4,
        **wrong,
    }
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CovariateForecast(**options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="13"):
        build("present")(torch.zeros(1, 5, 13, dtype=torch.float64))


@pytest.mark.parametrize("name", CASES)
def test_nan_stays_in_its_channel_while_it_is_in_the_window(name: str) -> None:
    """Whole, in steps and folded: the other channel has the same bits."""
    layer = build(name).eval()
    x = samples(*random(1, 30))
    spoiled = x.clone()
    spoiled[0, 8, 0] = torch.nan
    folded = FrozenModel(layer).folded.step
    for steps in (None, layer.step, folded):
        clean, out = (_outputs(layer, steps, one).unflatten(-1, (HORIZON, CHANNELS)) for one in (x, spoiled))
        assert torch.equal(out[..., 1], clean[..., 1])
        assert out[0, 8 : 8 + LOOKBACK, :, 0].isnan().all()
        assert torch.equal(out[0, :8], clean[0, :8])
        assert torch.equal(out[0, 8 + LOOKBACK :], clean[0, 8 + LOOKBACK :])


def _outputs(layer: CovariateForecast, step: Any, x: Tensor) -> Tensor:
    if step is None:
        return layer(x)[0]
    out, state = [], None
    for sample in x.unbind(1):
        ahead, state = step(sample, state)
        out.append(ahead)
    return torch.stack(out, 1)
