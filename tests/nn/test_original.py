"""The original LMU: equations 15 to 17 against a plain float64 loop, its switches and its initial values."""

import copy
import pickle
from functools import partial

import closeness
import pytest
import torch
from closeness import within
from torch import Tensor, nn

import plmu
from plmu import LMU, LMUCell

INPUTS, HIDDEN, ORDER, THETA, TIME = 3, 4, 5, 9.0, 13
SWITCHES = {
    "hidden_to_memory": "hidden_encoder",
    "memory_to_memory": "memory_encoder",
    "input_to_hidden": "input_weight",
    "hidden_to_hidden": "hidden_weight",
}
FORMS = {
    "all": {},
    "biased": {"bias": True},
    "bias alone": {"bias": True, "input_to_hidden": False},
    "two channels": {"memory_size": 2},
    "two channels, two theta": {"memory_size": 2, "theta": [4.0, 9.0]},
    "relu": {"hidden_activation": "relu"},
    "linear": {"hidden_activation": None},
    "nothing optional": dict.fromkeys(SWITCHES, False),
    **{f"no {switch}": {switch: False, "memory_size": 2} for switch in SWITCHES},
}


assert_same = partial(closeness.assert_same, terms=TIME * (ORDER + HIDDEN + INPUTS), size=0.0)


def build(kind: type[nn.Module] = LMU, **options) -> nn.Module:
    """A layer with all weights at random, where a connection that starts at zero would not show."""
    layer = kind(INPUTS, HIDDEN, **{"order": ORDER, "theta": THETA} | options)
    with torch.no_grad():
        for value in layer.parameters():
            value.copy_(0.3 * torch.randn_like(value))
    return layer


def equations(
    cell: LMUCell, x: Tensor, state: tuple[Tensor, Tensor] | None = None, resets: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """h (batch, time, hidden) and m (batch, time, order, channels) by equations 15 to 17 in float64, step by step."""
    weights = {name: value.detach().double() for name, value in cell.named_parameters()}
    f = {"tanh": torch.tanh, "relu": torch.relu, None: lambda v: v}[cell.config["hidden_activation"]]
    given = cell.config["theta"]
    channels = cell.config["memory_size"]
    thetas = given if isinstance(given, list) else [given]
    systems = [plmu.DelayNetwork(ORDER, t).discretize() for t in thetas for _ in range(channels // len(thetas))]

    def connection(name: str, values: Tensor) -> Tensor | float:
        return values @ weights[name].T if name in weights else 0.0

    h = torch.zeros(x.shape[0], HIDDEN, dtype=torch.float64)
    m = torch.zeros(x.shape[0], ORDER, channels, dtype=torch.float64)
    if state is not None:
        h, m = state[0].double(), state[1].double()
    hidden, memories = [], []
    for t in range(x.shape[1]):
        x_t = x[:, t].double()
        if resets is not None:
            h, m = torch.where(resets[:, t, None], 0.0, h), torch.where(resets[:, t, None, None], 0.0, m)
        u = connection("input_encoder", x_t) + connection("hidden_encoder", h)
        u = u + connection("memory_encoder", m.flatten(1))
        m = torch.stack([m[:, :, j] @ s.A.T + u[:, j, None] * s.B for j, s in enumerate(systems)], dim=2)
        total = connection("input_weight", x_t) + connection("hidden_weight", h)
        h = f(total + connection("memory_weight", m.flatten(1)) + weights.get("bias", 0.0))
        hidden.append(h)
        memories.append(m)
    return torch.stack(hidden, dim=1), torch.stack(memories, dim=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_equations_15_to_17(form: str, dtype: torch.dtype) -> None:
    lmu = build(**FORMS[form]).to(dtype)
    x = torch.randn(2, TIME, INPUTS, dtype=dtype)
    out, (h, m) = lmu(x)
    expected_h, expected_m = equations(lmu.cell, x)
    assert out.dtype == h.dtype == m.dtype == dtype
    assert_same(out, expected_h)
    assert_same(h, expected_h[:, -1])
    assert_same(m, expected_m[:, -1])


@pytest.mark.parametrize("form", FORMS)
def test_the_cell_is_one_step(form: str) -> None:
    cell = build(LMUCell, **FORMS[form]).double()
    x = torch.randn(2, TIME, INPUTS, dtype=torch.float64)
    expected_h, expected_m = equations(cell, x)
    state = None
    for t in range(TIME):
        out, state = cell(x[:, t], state)
        assert_same(out, expected_h[:, t])
        assert torch.equal(out, state[0])
        assert_same(state[1], expected_m[:, t])


@pytest.mark.parametrize(("switch", "weight"), SWITCHES.items())
def test_each_switch_takes_one_connection_away(switch: str, weight: str) -> None:
    every = dict(build(LMUCell).named_parameters())
    without = dict(build(LMUCell, **{switch: False}).named_parameters())
    assert set(every) - set(without) == {weight}
    assert "bias" not in every
    assert "bias" in dict(build(LMUCell, bias=True).named_parameters())


def test_initial_values_of_the_memory_kind() -> None:
    cell = LMUCell(1, 200, order=100, theta=THETA, bias=True, init="memory")
    assert torch.equal(cell.input_encoder, torch.ones(1, 1))
    for weight in (cell.hidden_encoder, cell.memory_encoder, cell.input_weight, cell.hidden_weight, cell.bias):
        assert not weight.any()
    # Glorot-normal: variance 2 / (fan in + fan out). Of 20,000 draws the deviation is known to 0.5 %, five times that
    # is certain; and 4.6 % of a normal distribution lie beyond two deviations.
    deviation = (2 / 300) ** 0.5
    assert cell.memory_weight.std().item() == pytest.approx(deviation, rel=0.025)
    within(abs(cell.memory_weight.mean().item()), 5 * deviation / 20_000**0.5)
    assert (cell.memory_weight.abs() > 2 * deviation).double().mean().item() == pytest.approx(0.0455, abs=0.0075)


def test_initial_values() -> None:
    cell = LMUCell(300, 200, order=100, theta=THETA, memory_size=100, bias=True)
    for weight in (cell.memory_encoder, cell.bias):
        assert not weight.any()
    # Variances of 20,000 draws and more are known to 1 %; five times that is certain.
    for weight, variance in (
        (cell.input_encoder, 1 / 300),
        (cell.hidden_encoder, 1 / 200),
        (cell.input_weight, 2 / 500),
        (cell.hidden_weight, 2 / 400),
        (cell.memory_weight, 2 / 10_200),
    ):
        assert weight.var().item() == pytest.approx(variance, rel=0.05)
    assert cell.input_encoder.abs().max() <= (3 / 300) ** 0.5  # uniform
    assert torch.equal(LMUCell(1, 4, order=3, theta=THETA).input_encoder, torch.ones(1, 1))


def test_several_inputs_enter_the_memory_at_unit_variance() -> None:
    cell = LMUCell(400, 2, order=2, theta=THETA, memory_size=50)
    assert cell.input_encoder.square().sum(dim=1).mean().item() == pytest.approx(1.0, rel=0.05)


def test_parameters_of_the_original_on_psmnist() -> None:
    layer = LMU(1, 212, order=256, theta=784)
    assert sum(value.numel() for module in (layer, nn.Linear(212, 10)) for value in module.parameters()) == 102_027


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("with_resets", [False, True])
@pytest.mark.parametrize("lengths", [None, [TIME, 0, 1, 7]], ids=["full", "lengths"])
def test_lengths_resets_and_the_last_output(lengths: list[int] | None, with_resets: bool, with_state: bool) -> None:
    every = build(memory_size=2).double()
    last = build(memory_size=2, return_sequences=False).double()
    last.load_state_dict(every.state_dict())
    x = torch.randn(4, TIME, INPUTS, dtype=torch.float64)
    state = (torch.randn(4, HIDDEN).double(), torch.randn(4, ORDER, 2).double()) if with_state else None
    resets = torch.rand(4, TIME) < 0.2 if with_resets else None
    expected_h, expected_m = equations(every.cell, x, state, resets)
    out, (h, m) = every(x, state, lengths, resets=resets)
    only, only_state = last(x, state, lengths, resets=resets)
    initial = state or every.initial_state(4, torch.float64, x.device)
    for i, length in enumerate(lengths or [TIME] * 4):
        assert not out[i, length:].any()
        if length == 0:
            assert torch.equal(h[i], initial[0][i])
            assert torch.equal(m[i], initial[1][i])
            assert not only[i].any()
            continue
        assert_same(out[i, :length], expected_h[i, :length])
        assert_same(h[i], expected_h[i, length - 1])
        assert_same(m[i], expected_m[i, length - 1])
        assert torch.equal(only[i], out[i, length - 1])
    assert torch.equal(only_state[0], h)
    assert torch.equal(only_state[1], m)


@pytest.mark.parametrize("trainable", ["theta", "system"])
def test_the_memory_can_be_trained(trainable: str) -> None:
    lmu = LMU(INPUTS, HIDDEN, order=ORDER, theta=THETA, trainable=trainable)
    lmu(torch.randn(2, TIME, INPUTS))[0].square().sum().backward()
    own = list(lmu.cell.memory.parameters())
    assert own
    assert all(value.grad.isfinite().all() and value.grad.any() for value in own)


def test_a_multi_input_system() -> None:
    system = plmu.LinearSystem([[0.9, 0.2], [-0.2, 0.9]], [[1.0, 0.3], [0.5, -1.0]])
    lmu = LMU(INPUTS, HIDDEN, system=system, memory_size=2).double()
    out, (h, m) = lmu(torch.randn(2, TIME, INPUTS, dtype=torch.float64))
    assert (out.shape, h.shape, m.shape) == ((2, TIME, HIDDEN), (2, HIDDEN), (2, 2, 1))


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_has_a_float32_memory(narrow: torch.dtype) -> None:
    lmu = build().to(narrow)
    out, (h, m) = lmu(torch.randn(2, TIME, INPUTS, dtype=narrow))
    assert (out.dtype, h.dtype, m.dtype) == (narrow, torch.float32, torch.float32)
    again, _ = lmu.step(torch.randn(2, INPUTS, dtype=narrow), (h, m))
    assert again.dtype == narrow


def test_a_checkpoint_holds_parameters_alone_and_copies_are_equal() -> None:
    lmu = build()
    x = torch.randn(2, TIME, INPUTS)
    out, _ = lmu(x)
    assert set(lmu.state_dict()) == {name for name, _ in lmu.named_parameters()}
    for other in (copy.deepcopy(lmu), pickle.loads(pickle.dumps(lmu))):
        assert torch.equal(other(x)[0], out)


STATE_ERRORS = [
    (torch.zeros(2, HIDDEN), TypeError, r"state must be the pair \(h, m\)"),
    ((torch.zeros(2, HIDDEN),), TypeError, r"state must be the pair \(h, m\)"),
    ((torch.zeros(2, HIDDEN + 1), torch.zeros(2, ORDER, 1)), ValueError, "h of state must have shape"),
    ((torch.zeros(2, HIDDEN), torch.zeros(2, ORDER)), ValueError, "m of state must have shape"),
    ((torch.zeros(2, HIDDEN).double(), torch.zeros(2, ORDER, 1)), TypeError, "h of state must be torch.float32"),
    ((torch.zeros(2, HIDDEN), torch.zeros(2, ORDER, 1).half()), TypeError, "m of state must be torch.float32"),
    ((None, torch.zeros(2, ORDER, 1)), TypeError, "h of state must be a tensor"),
]


@pytest.mark.parametrize(("state", "error", "message"), STATE_ERRORS, ids=range(len(STATE_ERRORS)))
def test_a_bad_state_is_named(state: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()(torch.zeros(2, TIME, INPUTS), state)
    with pytest.raises(error, match=message):
        build(LMUCell)(torch.zeros(2, INPUTS), state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_size": 0}, "input_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"memory_size": 0}, "memory_size"),
        ({"order": None}, "order and theta"),
        ({"theta": [1.0, 2.0]}, "theta"),
        ({"system": plmu.LinearSystem([[0.5]], [1.0])}, "not both"),
        ({"hidden_activation": "swash"}, "hidden_activation .*relu, tanh.*'swash'"),
        ({"trainable": "order"}, "trainable"),
        ({"init": "zero"}, "init must be one of general, memory, got 'zero'"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [LMU, LMUCell])
def test_bad_options_are_named(kind: type[nn.Module], options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**{"input_size": INPUTS, "hidden_size": HIDDEN, "order": ORDER, "theta": THETA} | options)
