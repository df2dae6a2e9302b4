"""DelayLayer: equation 19 on each channel, flattened order-major."""

import copy
import pickle
from functools import partial

import closeness
import pytest
import torch
from reference import at_end, masked, recurrence, sine_error
from torch import Tensor

import plmu
from plmu import DelayLayer, DelayNetwork

ORDER, THETA, CHANNELS, TIME = 4, 7.0, 3, 19
TWO_INPUTS = plmu.LinearSystem([[0.9, 0.2], [-0.2, 0.9]], [[1.0, 0.3], [0.5, -1.0]])


assert_same = partial(closeness.assert_same, terms=TIME * ORDER, size=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("algorithm", ["auto", "recurrent", "toeplitz", "fft", "chunked"])
def test_equation_19(dtype: torch.dtype, algorithm: str) -> None:
    layer = DelayLayer(CHANNELS, order=ORDER, theta=THETA, algorithm=algorithm)
    x = torch.randn(2, TIME, CHANNELS, dtype=dtype)
    m = recurrence(x, DelayNetwork(ORDER, THETA).discretize())
    out, state = layer(x)
    assert out.shape == (2, TIME, ORDER * CHANNELS)
    assert layer.output_size == ORDER * CHANNELS
    assert_same(out.unflatten(-1, (ORDER, CHANNELS)), m)
    assert_same(state, m[:, -1])


def test_feature_i_channels_plus_j_is_order_i_of_channel_j() -> None:
    layer = DelayLayer(CHANNELS, order=ORDER, theta=THETA)
    x = torch.zeros(1, 1, CHANNELS)
    x[0, 0, 2] = 1.0
    out = layer(x)[0][0, 0]
    B = DelayNetwork(ORDER, THETA).discretize().B.float()
    assert torch.equal(out.nonzero().squeeze(1), torch.arange(ORDER) * CHANNELS + 2)
    assert_same(out[2::CHANNELS], B)


def test_nothing_is_learned_unless_asked() -> None:
    assert not DelayLayer(CHANNELS, order=ORDER, theta=THETA).state_dict()
    assert list(DelayLayer(CHANNELS, order=ORDER, theta=THETA, trainable="theta").state_dict()) == ["memory.log_theta"]
    assert list(DelayLayer(CHANNELS, order=ORDER, theta=THETA, trainable="system").state_dict()) == [
        "memory.A",
        "memory.B",
    ]


def test_decodes_the_input_of_a_while_ago() -> None:
    network = DelayNetwork(12, 100.0)
    t = torch.arange(700, dtype=torch.float64)
    signal = torch.sin(2 * torch.pi * 2 * t / 100)
    m = DelayLayer(1, order=12, theta=100.0)(signal[None, :, None])[0]
    for delay in (25, 50, 75, 100):
        decoded = (m @ network.decoder(float(delay)))[0, 500:]
        target = torch.sin(2 * torch.pi * 2 * (t - delay + 0.5) / 100)[500:]  # m_t includes u_t: half a step less
        exact, left = sine_error(network, 2 / 100, delay, 500)
        assert ((decoded - target).norm() / target.norm()).item() == pytest.approx(exact, abs=left)


def test_several_theta_and_systems() -> None:
    x = torch.randn(2, TIME, 2, dtype=torch.float64)
    out, _ = DelayLayer(2, order=ORDER, theta=(3.0, 11.0))(x)
    expected = [
        recurrence(u, DelayNetwork(ORDER, t).discretize()) for t, u in zip((3.0, 11.0), x.split(1, 2), strict=True)
    ]
    assert_same(out, torch.cat(expected, dim=3).flatten(2))
    out, state = DelayLayer(2, system=TWO_INPUTS)(x)
    assert out.shape == (2, TIME, 2)
    assert state.shape == (2, 2, 1)
    assert_same(out, recurrence(x, TWO_INPUTS).flatten(2))


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("lengths", [None, torch.tensor([TIME, 0, 6])], ids=["full", "lengths"])
def test_lengths_and_the_last_step_alone(lengths: Tensor | None, with_state: bool) -> None:
    x = torch.randn(3, TIME, CHANNELS, dtype=torch.float64)
    state = torch.randn(3, ORDER, CHANNELS, dtype=torch.float64) if with_state else None
    m = recurrence(x, DelayNetwork(ORDER, THETA).discretize(), state)
    out, end = DelayLayer(CHANNELS, order=ORDER, theta=THETA)(x, state, lengths)
    assert_same(out, masked(m, lengths).flatten(2))
    assert_same(end, at_end(m, state, lengths))
    last, end = DelayLayer(CHANNELS, order=ORDER, theta=THETA, return_sequences=False)(x, state, lengths)
    ends = at_end(m, state, lengths)
    assert_same(end, ends)
    ran = torch.ones(3) if lengths is None else (lengths > 0).double()
    assert_same(last, ends.flatten(1) * ran[:, None])


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_has_a_float32_state(narrow: torch.dtype) -> None:
    layer = DelayLayer(CHANNELS, order=ORDER, theta=THETA)
    x = torch.randn(2, TIME, CHANNELS, dtype=narrow)
    m = recurrence(x, DelayNetwork(ORDER, THETA).discretize())
    out, state = layer(x)
    assert (out.dtype, state.dtype) == (narrow, torch.float32)
    assert_same(out, m.flatten(2), terms=1)  # one rounding: the output's
    assert_same(state, m[:, -1])
    stepped, state = layer.step(x[:, 0])
    assert (stepped.dtype, state.dtype) == (narrow, torch.float32)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["deep", "pickle"])
def test_copies(copied) -> None:
    layer = DelayLayer(2, system=TWO_INPUTS)
    x = torch.randn(2, TIME, 2)
    assert torch.equal(copied(layer)(x)[0], layer(x)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 0}, "channels"),
        ({"channels": 2.0}, "channels"),
        ({"order": None}, "order and theta"),
        ({"theta": None}, "order and theta"),
        ({"system": TWO_INPUTS}, "not both"),
        ({"theta": [1.0, 2.0]}, "theta"),
        ({"trainable": "order"}, "trainable"),
        ({"algorithm": "none"}, "algorithm"),
    ],
    ids=str,
)
def test_bad_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DelayLayer(**{"channels": CHANNELS, "order": ORDER, "theta": THETA} | options)
