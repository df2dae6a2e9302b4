"""ParallelLMU: equations 18 to 20 against a plain float64 loop, its options, its parameters and its errors."""

import copy
import pickle
from functools import partial

import closeness
import pytest
import torch
from reference import recurrence
from torch import Tensor, nn

import plmu
from plmu import ParallelLMU

INPUTS, HIDDEN, ORDER, THETA, TIME = 3, 4, 5, 9.0, 23
FUNCTIONS = {None: lambda v: v, "relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}

FORMS = {
    "plain": {},
    "gated": {"gated": True, "input_activation": "tanh"},
    "no encoder": {"encoder": False},
    "no input to output": {"input_to_output": False},
    "no bias": {"bias": False},
    "gated, no bias": {"gated": True, "bias": False},
    "memory alone": {"encoder": False, "input_to_output": False, "bias": False, "output_activation": None},
    "two channels": {"memory_size": 2, "input_activation": "sigmoid", "output_activation": "tanh"},
    "more channels than inputs": {"memory_size": 7},
}


assert_same = partial(closeness.assert_same, terms=TIME * ORDER, size=0.0)


def equations(layer: ParallelLMU, x: Tensor, system: plmu.LinearSystem | None = None) -> tuple[Tensor, Tensor]:
    """Outputs and final state by equations 18 to 20 in float64, one step after another, from the weights alone."""
    system = system or plmu.DelayNetwork(ORDER, THETA).discretize()
    weights = {name: value.double() for name, value in layer.state_dict().items()}
    f1, f2 = FUNCTIONS[layer.config["input_activation"]], FUNCTIONS[layer.config["output_activation"]]
    m, outputs = torch.zeros(x.shape[0], system.order, layer.memory_size, dtype=torch.float64), []
    for x_t in x.double().unbind(1):
        u = x_t
        if "encoder.weight" in weights:
            u = f1(x_t @ weights["encoder.weight"].T + weights.get("encoder.bias", 0.0))
        if "gate.weight" in weights:
            g = torch.sigmoid(x_t @ weights["gate.weight"].T + weights["gate.bias"])
            u = g * u + (1 - g) * x_t
        driven = (u @ system.B.T)[:, :, None] if system.inputs else system.B[None, :, None] * u[:, None, :]
        m = system.A @ m + driven
        o = torch.einsum("odc,bdc->bo", weights["memory_weight"], m) + weights.get("bias", 0.0)
        if "input_weight" in weights:
            o = o + x_t @ weights["input_weight"].T
        outputs.append(f2(o))
    return torch.stack(outputs, dim=1), m


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_equations_18_to_20(form: str, dtype: torch.dtype) -> None:
    layer = _shaken(ParallelLMU(INPUTS, HIDDEN, order=ORDER, theta=THETA, **FORMS[form])).to(dtype)
    x = torch.randn(2, TIME, INPUTS, dtype=dtype)
    out, state = layer(x)
    expected_out, expected_state = equations(layer, x)
    assert out.dtype == state.dtype == dtype
    assert out.shape == (2, TIME, HIDDEN)
    assert_same(out, expected_out)
    assert_same(state, expected_state)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"input_to_output": False}, {"encoder": False}], ids=str)
@pytest.mark.parametrize("inputs", [1, 3])
def test_a_thin_memory_is_stored_and_meets_its_weight_beside_the_input(
    inputs: int, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One channel and more outputs than orders: the values of equations 18 to 20, the gradients of the way that an
    algorithm by name takes, and no call of `project`."""
    if not options.get("encoder", True) and inputs > 1:
        options = {**options, "system": plmu.LinearSystem(torch.eye(ORDER) / 2, torch.randn(ORDER, inputs))}
    sizes = () if "system" in options else (ORDER, THETA)
    torch.manual_seed(0)
    layer = ParallelLMU(inputs, 2 * ORDER, *sizes, **options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(3, TIME, inputs, dtype=torch.float64, requires_grad=True)
    state = torch.randn(3, ORDER, 1, dtype=torch.float64)
    for given in ({}, {"state": state}, {"lengths": [TIME, 0, 4]}, {"resets": torch.rand(3, TIME) < 0.2}):
        results = []
        for algorithm in ("auto", "chunked"):
            layer.memory.algorithm = algorithm
            with monkeypatch.context() as patch:
                if algorithm == "auto":
                    patch.delattr(plmu.ops, "project")
                out, last = layer(x, **given)
            loss = out.square().sum() + last.square().sum()
            gradients = torch.autograd.grad(loss, [*layer.parameters(), x])
            results.append([out, last, *gradients])
        for one, other in zip(*results, strict=True):
            assert_same(one, other, terms=100 * TIME * ORDER)
    layer.memory.algorithm = "auto"
    out, last = layer(x)
    exact, final = equations(layer, x.detach(), options.get("system"))
    assert_same(out, exact)
    assert_same(last, final)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({"memory_size": 2}, torch.float32),
        ({"hidden_size": ORDER - 1}, torch.float32),
        ({"algorithm": "chunked"}, torch.float32),
        ({}, torch.bfloat16),
    ],
    ids=str,
)
def test_other_memories_are_projected_without_being_stored(options: dict, dtype: torch.dtype) -> None:
    sizes = {"input_size": 2, "hidden_size": 2 * ORDER, "order": ORDER, "theta": THETA}
    assert ParallelLMU(**{**sizes, **options}).to(dtype).plan(batch=1, time=TIME).kind == "project"
    plain = ParallelLMU(**sizes)
    assert plain.plan(batch=1, time=TIME).kind == "states"
    assert plain.plan(batch=1, time=1 << 20).kind == "project"
    with torch.autocast("cpu", torch.bfloat16):
        assert plain.plan(batch=1, time=TIME).kind == "project"


@pytest.mark.parametrize("algorithm", ["auto", "recurrent", "toeplitz", "fft", "chunked"])
def test_a_state_is_its_owners(algorithm: str) -> None:
    """Writing to it leaves the output as it is, and it keeps nothing else alive."""
    for layer in (ParallelLMU(1, 2 * ORDER, ORDER, THETA, algorithm=algorithm), plmu.DelayLayer(1, ORDER, THETA)):
        out, state = layer(torch.randn(2, 200, 1))
        before = out.clone()
        state.detach().zero_()
        assert torch.equal(out, before)
        assert state.untyped_storage().nbytes() == state.nbytes


@pytest.mark.parametrize("algorithm", ["recurrent", "toeplitz", "fft", "chunked"])
def test_every_algorithm_gives_the_same_outputs(algorithm: str) -> None:
    layer = ParallelLMU(INPUTS, HIDDEN, order=ORDER, theta=THETA, memory_size=2, algorithm=algorithm).double()
    x = torch.randn(2, 70, INPUTS, dtype=torch.float64)
    assert_same(layer(x)[0], equations(layer, x)[0], terms=70 * ORDER)


def test_the_gate_starts_low() -> None:
    layer = ParallelLMU(INPUTS, HIDDEN, order=ORDER, theta=THETA, gated=True)
    assert torch.equal(layer.gate.bias, torch.full((INPUTS,), -1.0))
    assert layer.memory_size == INPUTS


def test_a_single_input_enters_the_memory_unscaled() -> None:
    layer = ParallelLMU(1, HIDDEN, order=ORDER, theta=THETA)
    assert torch.equal(layer.encoder.weight, torch.ones(1, 1))
    assert not layer.encoder.bias.any()
    assert not layer.bias.any()


@pytest.mark.parametrize(
    ("options", "memory_size"),
    [({}, 1), ({"gated": True}, INPUTS), ({"encoder": False}, INPUTS), ({"memory_size": 2}, 2)],
)
def test_memory_size_by_default(options: dict, memory_size: int) -> None:
    layer = ParallelLMU(INPUTS, HIDDEN, order=ORDER, theta=THETA, **options)
    assert layer.memory_size == memory_size
    assert layer(torch.randn(2, 6, INPUTS))[1].shape == (2, ORDER, memory_size)


@pytest.mark.parametrize("name", sorted(plmu.nn.ACTIVATIONS))
def test_activations_by_name_and_as_callables(name: str) -> None:
    x = torch.randn(2, 6, INPUTS)
    options = {"order": ORDER, "theta": THETA}
    named = ParallelLMU(INPUTS, HIDDEN, **options, input_activation=name, output_activation=name)
    function = plmu.nn.ACTIVATIONS[name]
    called = ParallelLMU(INPUTS, HIDDEN, **options, input_activation=function, output_activation=function)
    called.load_state_dict(named.state_dict())
    plain = ParallelLMU(INPUTS, HIDDEN, **options, input_activation=name, output_activation=None)
    plain.load_state_dict(named.state_dict())
    assert torch.equal(named(x)[0], called(x)[0])
    assert torch.equal(named(x)[0], function(plain(x)[0]))


@pytest.mark.parametrize("argument", ["input_activation", "output_activation"])
def test_an_unknown_activation_lists_the_known_ones(argument: str) -> None:
    with pytest.raises(ValueError, match=rf"{argument} .*relu, tanh.*'swash'"):
        ParallelLMU(INPUTS, HIDDEN, order=ORDER, theta=THETA, **{argument: "swash"})


def test_several_theta_are_separate_memories() -> None:
    thetas = [4.0, 9.0, 30.0]
    layer = ParallelLMU(
        6, HIDDEN, order=ORDER, theta=thetas, encoder=False, output_activation=None, bias=False
    ).double()
    x = torch.randn(2, TIME, 6, dtype=torch.float64)
    out, state = layer(x)
    parts = [
        recurrence(u, plmu.DelayNetwork(ORDER, t).discretize()) for t, u in zip(thetas, x.split(2, 2), strict=True)
    ]
    m = torch.cat(parts, dim=3)
    assert_same(state, m[:, -1])
    expected = torch.einsum("odc,btdc->bto", layer.memory_weight, m) + x @ layer.input_weight.T
    assert_same(out, expected, terms=TIME * ORDER * 6)


def test_a_system_in_place_of_order_and_theta() -> None:
    system = plmu.LinearSystem([[0.9, 0.1], [-0.1, 0.9]], [1.0, 0.5])
    layer = ParallelLMU(INPUTS, HIDDEN, system=system, memory_size=2).double()
    x = torch.randn(2, TIME, INPUTS, dtype=torch.float64)
    expected_out, expected_state = equations(layer, x, system)
    out, state = layer(x)
    assert_same(out, expected_out)
    assert_same(state, expected_state)


@pytest.mark.parametrize("options", [{}, {"encoder": False}], ids=str)
def test_a_multi_input_system_takes_all_channels(options: dict) -> None:
    system = plmu.LinearSystem(0.4 * torch.randn(4, 4, dtype=torch.float64), torch.randn(4, INPUTS))
    layer = ParallelLMU(INPUTS, HIDDEN, system=system, **options).double()
    x = torch.randn(2, TIME, INPUTS, dtype=torch.float64)
    expected_out, expected_state = equations(layer, x, system)
    out, state = layer(x)
    assert state.shape == (2, 4, 1)
    assert_same(out, expected_out, terms=TIME * 4 * INPUTS)
    assert_same(state, expected_state, terms=TIME * 4 * INPUTS)


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("with_resets", [False, True])
@pytest.mark.parametrize("lengths", [None, [TIME, 0, 1, 11]], ids=["full", "lengths"])
@pytest.mark.parametrize("form", ["plain", "gated", "no encoder"])
def test_the_last_output_alone(form: str, lengths: list[int] | None, with_resets: bool, with_state: bool) -> None:
    every = _shaken(ParallelLMU(INPUTS, HIDDEN, order=ORDER, theta=THETA, **FORMS[form])).double()
    last = ParallelLMU(INPUTS, HIDDEN, order=ORDER, theta=THETA, return_sequences=False, **FORMS[form]).double()
    last.load_state_dict(every.state_dict())
    x = torch.randn(4, TIME, INPUTS, dtype=torch.float64)
    state = torch.randn(4, ORDER, every.memory_size, dtype=torch.float64) if with_state else None
    resets = torch.rand(4, TIME) < 0.1 if with_resets else None
    outs, end = every(x, state, lengths, resets=resets)
    out, same_end = last(x, state, lengths, resets=resets)
    steps = torch.tensor(lengths or [TIME] * 4)
    expected = torch.where((steps > 0)[:, None], outs[torch.arange(4), steps - 1], 0.0)
    assert_same(out, expected)
    assert_same(same_end, end)


@pytest.mark.parametrize(("with_input", "count"), [(True, 166_092), (False, 165_746)])
def test_parameters_of_the_papers_psmnist_model(with_input: bool, count: int) -> None:
    layer = ParallelLMU(1, 346, order=468, theta=784, input_to_output=with_input)
    assert _parameters(layer, nn.Linear(346, 10)) == count


@pytest.mark.parametrize(("with_input", "count"), [(True, 17_243), (False, 17_103)])
def test_parameters_of_the_papers_mackey_glass_model(with_input: bool, count: int) -> None:
    layer = ParallelLMU(1, 140, order=40, theta=50, input_to_output=with_input)
    assert _parameters(layer, nn.Linear(140, 80), nn.Linear(80, 1)) == count


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_holds_parameters_alone(form: str) -> None:
    layer = ParallelLMU(INPUTS, HIDDEN, order=ORDER, theta=THETA, **FORMS[form])
    for time in (2, 40):
        layer(torch.randn(2, time, INPUTS))
        layer.step(torch.randn(2, INPUTS))
    assert set(layer.state_dict()) == {name for name, _ in layer.named_parameters()}
    assert not list(layer.buffers())


def test_any_length_after_784() -> None:
    layer = ParallelLMU(1, HIDDEN, order=12, theta=784.0).double()
    layer(torch.randn(1, 784, 1, dtype=torch.float64))
    for time in (1, 63, 785, 1000):
        x = torch.randn(1, time, 1, dtype=torch.float64)
        out, _ = layer(x)
        assert_same(out, equations(layer, x, plmu.DelayNetwork(12, 784.0).discretize())[0], terms=time * 12)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("trainable", ["none", "theta", "system"])
def test_a_layer_cast_to_float64_is_exact_whatever_it_was_before(narrow: torch.dtype, trainable: str) -> None:
    layer = ParallelLMU(1, HIDDEN, order=ORDER, theta=8.0, trainable=trainable).to(narrow)
    out, state = layer(torch.randn(2, TIME, 1, dtype=narrow))
    assert (out.dtype, state.dtype) == (narrow, torch.float32)
    with torch.no_grad():
        layer.step(torch.randn(2, 1, dtype=narrow))
    layer.double()
    x = torch.randn(2, TIME, 1, dtype=torch.float64)
    system = plmu.DelayNetwork(ORDER, 8.0).discretize()
    if trainable == "theta":  # kept as log θ in float32
        system = plmu.DelayNetwork(ORDER, layer.memory.log_theta.detach().exp()[0]).discretize()
    if trainable == "system":
        system = plmu.LinearSystem(layer.memory.A[0].detach(), layer.memory.B[0].detach())
    expected = equations(layer, x, system)[0]
    bound = 1e-12 * expected.abs().max().item()
    torch.testing.assert_close(layer(x)[0], expected, rtol=0, atol=bound)
    with torch.no_grad():
        torch.testing.assert_close(layer(x)[0], expected, rtol=0, atol=bound)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_rounds_inputs_weights_and_outputs_only(narrow: torch.dtype) -> None:
    layer = ParallelLMU(1, HIDDEN, order=ORDER, theta=500.0, memory_size=2).to(narrow)
    x = torch.randn(2, 400, 1, dtype=narrow)
    out, state = layer(x)
    expected_out, expected_state = equations(layer, x, plmu.DelayNetwork(ORDER, 500.0).discretize())
    # u and o round to half precision once each, with every value of u as its own error; the state does not.
    assert_same(out, expected_out, terms=8)
    assert_same(state.to(narrow), expected_state, terms=4)


@pytest.mark.parametrize("trainable", ["none", "theta", "system"])
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))], ids=["deep", "pickle"]
)
def test_copies_are_equal_and_independent(copied, trainable: str) -> None:
    layer = ParallelLMU(INPUTS, HIDDEN, order=ORDER, theta=THETA, trainable=trainable)
    x = torch.randn(2, TIME, INPUTS)
    with torch.no_grad():
        before = layer(x)[0]
        other = copied(layer)
        assert torch.equal(other(x)[0], before)
        for value in other.parameters():
            value.mul_(0.5)
        assert torch.equal(layer(x)[0], before)
        assert not torch.equal(other(x)[0], before)


BAD_OPTIONS = [
    ({"input_size": 0}, ValueError, "input_size"),
    ({"hidden_size": 0}, ValueError, "hidden_size"),
    ({"hidden_size": 2.0}, ValueError, "hidden_size"),
    ({"memory_size": 0}, ValueError, "memory_size"),
    ({"memory_size": True}, ValueError, "memory_size"),
    ({"order": 0}, ValueError, "order"),
    ({"order": 2.5}, ValueError, "order"),
    ({"theta": -1.0}, ValueError, "theta"),
    ({"theta": float("nan")}, ValueError, "theta"),
    ({"theta": []}, ValueError, "theta must be a number or several, got none"),
    (
        {"theta": [2.0, 3.0], "memory_size": 3},
        ValueError,
        "theta has 2 values, which do not divide .* 3: make memory_size",
    ),
    ({"order": None}, ValueError, "pass order and theta, or system"),
    ({"theta": None}, ValueError, "pass order and theta, or system"),
    ({"system": plmu.LinearSystem([[0.5]], [1.0])}, ValueError, "order and theta, or a system"),
    ({"order": None, "theta": None, "system": "dn"}, TypeError, "system"),
    ({"order": None, "theta": None, "system": plmu.DelayNetwork(2, 3.0)}, TypeError, "system"),
    ({"gated": True, "memory_size": 2}, ValueError, "memory_size must be input_size = 3"),
    ({"encoder": False, "memory_size": 2}, ValueError, "memory_size must be input_size = 3"),
    ({"gated": True, "encoder": False}, ValueError, "gated"),
    ({"trainable": "all"}, ValueError, "trainable must be one of none, theta, system"),
    ({"algorithm": "magic"}, ValueError, "algorithm must be auto or one of"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_OPTIONS, ids=lambda value: str(value)[:40])
def test_bad_options_are_named(options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ParallelLMU(**{"input_size": INPUTS, "hidden_size": HIDDEN, "order": ORDER, "theta": THETA} | options)


def test_a_system_must_fit_the_memory_and_its_training() -> None:
    two_inputs = plmu.LinearSystem([[0.5]], [[1.0, 1.0]])
    with pytest.raises(ValueError, match=r"2 inputs.* 3 channels"):
        ParallelLMU(INPUTS, HIDDEN, system=two_inputs, memory_size=3)
    with pytest.raises(ValueError, match="trainable='theta' needs order and theta"):
        ParallelLMU(INPUTS, HIDDEN, system=two_inputs, trainable="theta")
    trained = plmu.LinearSystem(torch.full((1, 1), 0.5, requires_grad=True), torch.ones(1))
    with pytest.raises(ValueError, match="trainable='system'"):
        ParallelLMU(INPUTS, HIDDEN, system=trained)


def _shaken(layer: nn.Module) -> nn.Module:
    """With no bias left at zero, where a forgotten one would not show."""
    with torch.no_grad():
        for value in layer.parameters():
            value.add_(0.3 * torch.randn_like(value))
    return layer


def _parameters(*modules: nn.Module) -> int:
    return sum(value.numel() for module in modules for value in module.parameters())


def test_another_precision_than_the_layers_is_named():
    with pytest.raises(TypeError, match=r"x is torch\.float64 and the layer torch\.float32"):
        plmu.ParallelLMU(1, 3, order=4, theta=9.0)(torch.randn(2, 5, 1, dtype=torch.float64))


def test_a_layer_can_be_made_on_the_meta_device():
    with torch.device("meta"):
        layer = plmu.ParallelLMU(1, 3, order=4, theta=9.0)
    layer = layer.to_empty(device="cpu")
    layer.reset_parameters()
    assert layer(torch.randn(2, 5, 1))[0].isfinite().all()
