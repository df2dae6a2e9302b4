"""`LookbackForecast` against its formula, and with itself: whole, in pieces, with lengths and resets, step by step."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import plmu
from plmu.nn import LookbackForecast
from plmu.runtime.frozen import FrozenModel

SEASONS = (0, 5)


def build(season: int = 5, individual: bool = True, **options: object) -> LookbackForecast:
    torch.manual_seed(0)
    layer = LookbackForecast(3, 4, 6, 11.0, 12, season=season, individual=individual, **options).double()  # type: ignore[arg-type]
    with torch.no_grad():
        layer.weight.normal_()
        layer.season_pattern.normal_()
        layer.prior.uniform_(0.5, 2)
    return layer


def by_formula(layer: LookbackForecast, window: Tensor, phase: int) -> Tensor:
    """One forecast (horizon, channels) of a window (lookback, channels), by loops over channels."""
    response = plmu.DelayNetwork(6, 11.0).discretize().impulse_response(12)
    out = torch.empty(4, 3, dtype=torch.float64)
    for c in range(3):
        past, future = window[:, c], torch.zeros(4, dtype=torch.float64)
        if layer.season:
            pattern = layer.season_pattern[:, c]
            seen = torch.stack([pattern[(phase - 11 + k) % layer.season] for k in range(12)])
            ahead = torch.stack([pattern[(phase + 1 + k) % layer.season] for k in range(4)])
            around = seen - seen.mean()
            amplitude = ((past - past.mean()) @ around + layer.prior[c]) / (around @ around + layer.prior[c])
            past, future = past - amplitude.clamp(0, 2) * seen, amplitude.clamp(0, 2) * ahead
        state = sum(response[:, k] * (past[11 - k] - past[11]) for k in range(12))
        weight = layer.weight[c if layer.individual else 0]
        out[:, c] = past[11] + weight @ state + future
    return out.detach()


@pytest.mark.parametrize("season", SEASONS)
@pytest.mark.parametrize("individual", [False, True])
def test_forecasts_follow_the_formula(season: int, individual: bool) -> None:
    layer = build(season, individual, phase=3 if season else 0)
    x = torch.randn(2, 30, 3, dtype=torch.float64)
    out, _ = layer(x)
    forecasts = out.unflatten(-1, (4, 3))
    for at in (0, 4, 11, 12, 29):  # the first value fills the window before it
        filled = torch.cat([x[:, :1].expand(-1, 12, -1), x[:, : at + 1]], dim=1)[:, -12:] if at < 11 else None
        for row in range(2):
            window = x[row, at - 11 : at + 1] if filled is None else filled[row]
            expected = by_formula(layer, window, (at + 3) % season if season else 0)
            torch.testing.assert_close(forecasts[row, at], expected)


@pytest.mark.parametrize("season", SEASONS)
def test_whole_pieces_steps_and_a_stream_agree(season: int) -> None:
    layer = build(season, phase=2 if season else 0)
    x = torch.randn(2, 40, 3, dtype=torch.float64)
    whole, end = layer(x)
    first, state = layer(x[:, :17])
    second, state = layer(x[:, 17:], state)
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
    torch.testing.assert_close(folded.step(x[:, 17], layer(x[:, :17])[1])[0], whole[:, 17])


@pytest.mark.parametrize("season", SEASONS)
def test_lengths_and_resets(season: int) -> None:
    layer = build(season)
    x = torch.randn(3, 20, 3, dtype=torch.float64)
    before = layer(torch.randn(3, 5, 3, dtype=torch.float64))[1]
    padded = x.clone()
    padded[1, 7:] = float("nan")
    padded[2] = float("nan")
    for start in (None, before):
        out, state = layer(padded, start, lengths=[20, 7, 0])
        alone = None if start is None else tuple(part[1:2] for part in start)
        expected, end = layer(x[1:2, :7], alone)
        torch.testing.assert_close(out[1:2, :7], expected)
        assert not out[1, 7:].any()
        assert not out[2].any()
        kept = layer.initial_state(3, x.dtype, x.device) if start is None else start
        for one, other, unchanged in zip(state, end, kept, strict=True):
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


def test_only_the_last_forecast() -> None:
    layer, last = build(), build(return_sequences=False)
    x = torch.randn(2, 20, 3, dtype=torch.float64)
    whole, _ = layer(x, lengths=[20, 6])
    torch.testing.assert_close(last(x, lengths=[20, 6])[0], torch.stack([whole[0, 19], whole[1, 5]]))
    torch.testing.assert_close(last(x)[0], layer(x)[0][:, -1])


def test_a_shifted_and_scaled_series_has_a_shifted_and_scaled_forecast() -> None:
    layer = build(season=0)
    x = torch.randn(1, 20, 3, dtype=torch.float64)
    torch.testing.assert_close(layer(5 * x + 7)[0], 5 * layer(x)[0] + 7)


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    layer = build().float()
    model = plmu.Sequential(plmu.Standardize(3), layer)
    plmu.save(model, tmp_path / "model.plmu")
    x = torch.randn(1, 20, 3)
    assert torch.equal(plmu.load(tmp_path / "model.plmu")(x)[0], model(x)[0])


def test_it_can_be_trained() -> None:
    layer = build()
    layer(torch.randn(2, 20, 3, dtype=torch.float64))[0].square().mean().backward()
    assert layer.weight.grad is not None
    assert bool(layer.weight.grad.abs().sum() > 0)


@pytest.mark.parametrize("wrong", [{"phase": 5}, {"phase": -1}, {"season": -1}, {"horizon": 0}, {"lookback": 0}])
def test_wrong_arguments_are_named(wrong: dict[str, int]) -> None:
    options = {"horizon": 2, "order": 3, "theta": 4.0, "lookback": 5, "season": 5, **wrong}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LookbackForecast(1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("season", SEASONS)
def test_a_batch_without_series(season: int) -> None:
    for last in (False, True):
        layer, x = build(season, return_sequences=not last), torch.zeros(0, 5, 3, dtype=torch.float64)
        out, state = layer(x)
        assert out.shape == (0, *(() if last else (5,)), 12)
        assert layer(x, state, torch.zeros(0, dtype=torch.int64))[0].shape == out.shape
        assert plmu.fold(layer).step(x[:, 0])[0].shape == layer.step(x[:, 0])[0].shape == (0, 12)


class Doubled(LookbackForecast):
    def step(self, x: Tensor, state: object = None) -> tuple[Tensor, object]:
        out, state = super().step(x, state)
        return 2 * out, state


def test_a_subclass_folds_into_its_own_step() -> None:
    x = torch.randn(2, 3)
    assert torch.equal(plmu.fold(Doubled(3, 4, 6, 11.0, 12)).step(x)[0], 2 * x.repeat(1, 4))


@pytest.mark.parametrize("season", SEASONS)
@pytest.mark.parametrize("individual", [False, True])
def test_nan_stays_in_its_channel_while_it_is_in_the_window(season: int, individual: bool) -> None:
    """Whole, in steps and folded: the other channels have the same bits."""
    layer = build(season, individual).eval()
    x = torch.randn(1, 30, 3, dtype=torch.float64)
    spoiled = x.clone()
    spoiled[0, 8, 1] = torch.nan

    def stepped(step: Any, x: Tensor) -> Tensor:
        out, state = [], None
        for sample in x.unbind(1):
            ahead, state = step(sample, state)
            out.append(ahead)
        return torch.stack(out, 1)

    folded = FrozenModel(layer).folded.step
    for run in (lambda x: layer(x)[0], partial(stepped, layer.step), partial(stepped, folded)):
        clean, out = (run(values).unflatten(-1, (4, 3)) for values in (x, spoiled))
        assert torch.equal(out[..., [0, 2]], clean[..., [0, 2]])
        assert out[0, 8:20, :, 1].isnan().all()
        for steps in (slice(8), slice(20, None)):
            assert torch.equal(out[0, steps], clean[0, steps])
