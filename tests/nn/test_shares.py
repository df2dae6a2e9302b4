"""`ThresholdShares` against its formula, and with itself: whole, in pieces, with lengths and resets, step by step."""

from pathlib import Path

import numpy as np
import pytest
import torch
from closeness import assert_same
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import plmu
from plmu.nn import ThresholdShares


def build(last: bool = False, positions: int = 0) -> ThresholdShares:
    torch.manual_seed(0)
    layer = ThresholdShares(3, 4, positions=positions, return_sequences=not last).double()
    layer.thresholds.normal_()
    return layer


both = pytest.mark.parametrize("positions", [0, 1, 3], ids=["shares", "positions", "degree 3"])


@both
def test_shares_are_means_over_the_steps_so_far(positions: int) -> None:
    layer, last = build(False, positions), build(True, positions)
    x = torch.randn(2, 5000, 3, dtype=torch.float64)  # more than one piece
    out, state = layer(x)
    for at in (0, 7, 299, 4999):
        above = torch.stack([(x[:, : at + 1] > t).double() for t in layer.thresholds], dim=1)
        place = (np.arange(at + 1) + 0.5) * 2 / (at + 1) - 1
        ramps = torch.from_numpy(np.polynomial.legendre.legvander(place, positions).T)
        expected = torch.stack([(above * ramp[:, None]).mean(2) for ramp in ramps], dim=1)
        torch.testing.assert_close(out[:, at].unflatten(1, (-1, 4, 3)), expected)
    final, other = last(x)
    torch.testing.assert_close(final, out[:, -1])
    assert torch.equal(state, other)


@both
def test_float32_agrees_with_float64(positions: int) -> None:
    layer, x = build(True, positions), torch.randn(2, 5000, 3)
    layer.thresholds.copy_(layer.thresholds.float())
    expected = layer(x.double())[0]
    torch.testing.assert_close(layer.float()(x)[0], expected.float())


@pytest.mark.parametrize("positions", [-1, 9, 1.5])
def test_a_wrong_degree_is_named(positions: object) -> None:
    with pytest.raises(ValueError, match=f"positions must be an integer from 0 to 8, got {positions}"):
        ThresholdShares(3, 4, positions=positions)  # type: ignore[arg-type]


@both
def test_whole_pieces_steps_and_a_stream_agree(positions: int) -> None:
    layer, last = build(False, positions), build(True, positions)
    x = torch.randn(2, 40, 3, dtype=torch.float64)
    whole, end = layer(x)
    first, state = layer(x[:, :17])
    second, state = layer(x[:, 17:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    assert torch.equal(state, end)
    torch.testing.assert_close(last(x[:, 17:], layer(x[:, :17])[1])[0], whole[:, -1])
    at, stepped = None, []
    for x_t in x.unbind(1):
        out, at = layer.step(x_t, at)
        stepped.append(out)
    torch.testing.assert_close(torch.stack(stepped, dim=1), whole)
    assert torch.equal(at, end)
    stream, folded = plmu.Stream(layer), plmu.fold(layer)
    torch.testing.assert_close(torch.stack([stream.push(x_t) for x_t in x.unbind(1)], dim=1), whole)
    torch.testing.assert_close(folded.step(x[:, 17], layer(x[:, :17])[1])[0], whole[:, 17])


@both
def test_lengths_and_resets(positions: int) -> None:
    x = torch.randn(3, 20, 3, dtype=torch.float64)
    padded = x.clone()
    padded[1, 7:] = padded[2] = float("nan")
    resets = torch.zeros(3, 20, dtype=torch.bool)
    resets[:, 9] = resets[:, 12] = True
    for layer in (build(False, positions), build(True, positions)):
        before = layer(torch.randn(3, 5, 3, dtype=torch.float64))[1]
        out, state = layer(padded, before, lengths=[20, 7, 0])
        expected, end = layer(x[1:2, :7], before[1:2])
        torch.testing.assert_close(out[1:2, :7] if layer.returns_sequences else out[1:2], expected)
        assert not out[2].any()
        assert not layer.returns_sequences or not out[1, 7:].any()
        torch.testing.assert_close(state[1:2], end)
        assert torch.equal(state[2], before[2])
        out, state = layer(x, before, resets=resets)
        expected, end = layer(x[:, 12:])
        torch.testing.assert_close(out[:, 12:] if layer.returns_sequences else out, expected)
        torch.testing.assert_close(state, end)  # summed in another order
        assert torch.equal(state[:, :12], end[:, :12])  # counts are exact
        if layer.returns_sequences:
            torch.testing.assert_close(out[:, :9], layer(x[:, :9], before)[0])
            torch.testing.assert_close(out[:, 9:12], layer(x[:, 9:12])[0])
        out, state = layer(x, before, lengths=[20, 15, 10], resets=resets)
        torch.testing.assert_close(state[1:2], layer(x[1:2, 12:15])[1])
        torch.testing.assert_close(state[2:], layer(x[2:, 9:10])[1])


@both
def test_it_is_saved_and_loaded(tmp_path: Path, positions: int) -> None:
    layer = build(True, positions).float()
    model = plmu.Sequential(layer, torch.nn.Linear(layer.output_size, 2))
    plmu.save(model, tmp_path / "model.plmu")
    x = torch.randn(2, 20, 3)
    assert torch.equal(plmu.load(tmp_path / "model.plmu")(x)[0], model(x)[0])


def shares(x: Tensor, layer: ThresholdShares) -> Tensor:
    """The shares and positions over all steps of x (batch, time, features), by the formula: (batch, outputs)."""
    time = x.shape[1]
    above = torch.stack([(x.double() > threshold).double() for threshold in layer.thresholds.double()], dim=1)
    place = (np.arange(time) + 0.5) * 2 / time - 1
    ramps = torch.from_numpy(np.polynomial.legendre.legvander(place, layer.positions).T)
    return torch.stack([(above * ramp[:, None]).mean(2) for ramp in ramps], dim=1).flatten(1)


@pytest.mark.parametrize("positions", [0, 3, 8])
@pytest.mark.parametrize("time", [300, 1025, 5000])
def test_float32_after_a_reset_is_that_of_the_formula(positions: int, time: int) -> None:
    """Far from the start: sums from the beginning have no digits left for the steps since the reset."""
    x = torch.randn(1, time, 3)
    resets = torch.zeros(1, time, dtype=torch.bool)
    resets[0, time - 20] = True
    for last in (False, True):
        layer = build(last, positions).float()
        out = layer(x, resets=resets)[0]
        assert_same(out if last else out[:, -1], shares(x[:, -20:], layer).float(), terms=4)


@pytest.mark.parametrize("time", [1025, 30_000])
def test_long_sequences_of_a_high_degree(time: int) -> None:
    """Sums of (t + 1/2)^8 are beyond float32."""
    x = torch.randn(1, time, 3)
    expected = shares(x, build(True, 8).float()).float()
    assert_same(build(True, 8).float()(x)[0], expected, terms=40)  # sums of 1024 products of the size 1 in float32
    if time < 2000:
        assert_same(build(False, 8).float()(x)[0][:, -1], expected, terms=4)


def test_steps_keep_their_digits() -> None:
    layer, x, state = build(False, 8).float(), torch.randn(1, 1000, 3), None
    for x_t in x.unbind(1):
        out, state = layer.step(x_t, state)
    assert_same(out, shares(x, layer).float(), terms=4)


@both
def test_nan_stays_until_a_reset(positions: int) -> None:
    x = torch.randn(2, 30, 3)
    x[0, 7, 1] = torch.nan
    resets = torch.zeros(2, 30, dtype=torch.bool)
    resets[:, 20] = True
    every, last = build(False, positions).float(), build(True, positions).float()
    spoilt = torch.zeros(2, 30, 3, dtype=torch.bool)
    spoilt[0, 7:, 1] = True
    out, end = every(x)
    assert torch.equal(out.unflatten(2, (-1, 3)).isnan(), spoilt[:, :, None].expand(-1, -1, 4 * (1 + positions), -1))
    assert torch.equal(last(x)[0].isnan(), out[:, -1].isnan())
    assert torch.equal(last(x)[1].isnan(), end.isnan())
    assert not last(x, None, [7, 30])[0].isnan().any()
    assert last(x, None, [8, 30])[0][0].isnan().any()
    assert not every(x[:, 8:])[0].isnan().any()
    folded, states = plmu.fold(every), [None, None]
    for t, x_t in enumerate(x.unbind(1)):
        for way, step in enumerate((every.step, folded.step)):
            now, states[way] = step(x_t, states[way])
            torch.testing.assert_close(now, out[:, t], equal_nan=True)
    afterwards = every(x, resets=resets)[0]
    assert torch.equal(afterwards[:, :20].isnan(), out[:, :20].isnan())
    torch.testing.assert_close(afterwards[:, 20:], every(x[:, 20:])[0])
    torch.testing.assert_close(last(x, resets=resets)[0], last(x[:, 20:])[0])


@both
def test_without_values_and_in_other_modes(positions: int) -> None:
    x = torch.randn(3, 9, 3, dtype=torch.float64)
    for last in (False, True):
        layer = build(last, positions)
        out, state = layer(x)
        there, meta_state = layer.to("meta")(x.to("meta"))
        assert (there.shape, meta_state.shape) == (out.shape, state.shape)
        with FakeTensorMode():
            assert ThresholdShares(3, 4, positions=positions)(torch.randn(3, 9, 3))[0].shape[0] == 3
        layer = build(last, positions)
        torch.testing.assert_close(torch.func.vmap(lambda row, one=layer: one(row[None])[0][0])(x), out)
