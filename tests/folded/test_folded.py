"""Folded models: the same steps as the model's, from arrays alone that nothing changes any more."""

import dataclasses
import pickle
from typing import Any

import pytest
import torch
from closeness import assert_same
from layers import LAYERS, SMALL, assert_equal, build, flat, random_state
from torch import Tensor, nn

import plmu
from plmu import LMU, DelayLayer, Gated, ParallelLMU, Residual, Sequential
from plmu.folded import Affine, Applied, Folded, LinearMemory
from plmu.nn.stacking import PER_STEP

STEPS, BATCH = 6, 2

# Beside those of every layer: options that fold in another way.
MORE = {
    "one input": lambda: ParallelLMU(1, 4, **SMALL),
    "near identity": lambda: ParallelLMU(3, 4, order=1, theta=1e5),
    "near identity, two channels": lambda: ParallelLMU(3, 4, order=1, theta=[3.0, 1e5], memory_size=2),
    "several inputs": lambda: ParallelLMU(3, 4, system=plmu.LinearSystem(0.9 * torch.eye(5), torch.randn(5, 2))),
    "f1": lambda: ParallelLMU(3, 4, **SMALL, input_activation="tanh"),
    "a function": lambda: ParallelLMU(3, 4, **SMALL, output_activation=torch.sin),
    "a module as f2": lambda: ParallelLMU(3, 4, **SMALL, output_activation=nn.PReLU()),
    "hold": lambda: ParallelLMU(3, 4, **SMALL, missing="hold"),
    "zero": lambda: Sequential(nn.Linear(3, 4), DelayLayer(4, **SMALL), missing="zero"),
    "original, several theta": lambda: LMU(3, 4, order=4, theta=[3.0, 1e4], memory_size=4, hidden_activation=None),
    "original, several inputs": lambda: LMU(
        3, 4, system=plmu.LinearSystem(0.9 * torch.eye(5), torch.randn(5, 2)), memory_size=2, hidden_to_memory=False,
        memory_to_memory=False, input_to_hidden=False, hidden_to_hidden=False,
    ),
    "linear in a row": lambda: Sequential(
        nn.Linear(3, 5), nn.Linear(5, 4), nn.Dropout(0.1), nn.Linear(4, 3),
        ParallelLMU(3, 6, **SMALL, output_activation=None), nn.Linear(6, 4), nn.Linear(4, 2, bias=False),
    ),
    "standardised": lambda: ParallelLMU(3, 4, **SMALL, standardize=True),
    "standardised channels": lambda: ParallelLMU(3, 4, **SMALL, standardize=True, memory_size=2),
    "standardised features": lambda: Sequential(
        plmu.Standardize(3), nn.Tanh(), plmu.Standardize(3), nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 3),
        plmu.Standardize(3), ParallelLMU(3, 4, **SMALL), plmu.Standardize(4),
    ),
    "norm and gates": lambda: Sequential(
        nn.RMSNorm(3), Gated(ParallelLMU(3, 4, 3, [3.0, 9.0, 1e4], encoder=False), nn.Linear(3, 4)),
        nn.RMSNorm(4), Gated(nn.Linear(4, 4, bias=False), nn.Sequential(nn.Linear(4, 4), nn.SiLU())),
        nn.RMSNorm(4),
        Gated(ParallelLMU(4, 4, 3, [3.0, 9.0], memory_size=2), nn.Sequential(nn.Linear(4, 4), nn.GELU())),
        nn.RMSNorm(4, eps=0.3), ParallelLMU(4, 4, **SMALL, encoder=False, output_activation=None),
    ),
    "norm before what cannot take it": lambda: Sequential(
        nn.RMSNorm(3), nn.Tanh(),
        nn.RMSNorm(3), ParallelLMU(3, 3, **SMALL, memory_size=3, gated=True),
        nn.RMSNorm(3), Gated(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Identity()),
        nn.RMSNorm(3), plmu.CausalConvolution(3, 2), nn.RMSNorm(3),
    ),
    "sums": lambda: Sequential(
        Residual(nn.Linear(3, 3, bias=False)),
        Residual(nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 3, bias=False))),
        Residual(Sequential(ParallelLMU(3, 5, **SMALL), nn.Linear(5, 3, bias=False))), Residual(nn.Linear(3, 3)),
    ),
    "nested": lambda: Sequential(
        nn.Sequential(nn.LayerNorm(3), nn.Sequential(nn.Linear(3, 3), nn.Identity())),
        Residual(nn.Sequential(nn.RMSNorm(3), nn.Linear(3, 3))),
        Sequential(ParallelLMU(3, 4, **SMALL), nn.GELU(approximate="tanh"), Residual(LMU(4, 4, **SMALL))),
        nn.Softmax(-1),
        nn.GLU(-1),
    ),
}  # fmt: skip


def model_of(name: str, dtype: torch.dtype = torch.float64) -> Any:
    if name in LAYERS:
        return build(name, dtype).eval()
    torch.manual_seed(1)
    model = MORE[name]()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.1 * torch.randn_like(value))  # biases that would show
        for key, value in model.named_buffers():
            value.add_(torch.rand_like(value) if "std" in key else torch.randn_like(value))
    return model.to(dtype).eval()


def samples(model: Any, dtype: torch.dtype) -> Tensor:
    return torch.randn(STEPS, BATCH, model.input_size if hasattr(model, "input_size") else 3, dtype=dtype)


def roundings(folded: Folded) -> int:
    """How many roundings can meet in an output: each of all products that are summed, of both ways, at each step."""
    return 2 * STEPS * sum(array.shape[-1] for array in folded.arrays().values()) + STEPS


every_model = pytest.mark.parametrize("name", [*LAYERS, *MORE])


# ---------------------------------------------------------------- the same steps


@every_model
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_folded_step_is_the_step(name: str, dtype: torch.dtype) -> None:
    model = model_of(name, dtype)
    folded = plmu.fold(model)
    for start in (None, random_state(model, BATCH, dtype)):
        state = expected_state = start
        with torch.no_grad():
            for x in samples(model, dtype):
                expected, expected_state = model.step(x, expected_state)
                out, state = folded.step(x, state)
                assert_same(out, expected, roundings(folded))
                assert_same(state, expected_state, roundings(folded))


@every_model
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_in_half_precision_no_further_from_the_truth(name: str, dtype: torch.dtype) -> None:
    """Than the step of the model, but for one rounding of an output."""
    model = model_of(name, dtype)
    exact = model_of(name, dtype).double()
    folded = plmu.fold(model)
    state = stepped = truth = None
    errors = torch.zeros(2)
    with torch.no_grad():
        for x in samples(model, dtype):
            out, state = folded.step(x, state)
            expected, stepped = model.step(x, stepped)
            right, truth = exact.step(x.double(), truth)
            assert out.dtype == expected.dtype
            assert [one.dtype for one in flat(state)] == [one.dtype for one in flat(stepped)]
            found = torch.stack([(one.double() - right).abs().max() for one in (out, expected)])
            errors = torch.maximum(errors, found / right.abs().max())
    assert errors[0] <= errors[1] + torch.finfo(dtype).eps, errors


@every_model
def test_states_are_the_models(name: str) -> None:
    """It starts alike, and goes on from the state that the whole sequence left."""
    model = model_of(name)
    folded = plmu.fold(model)
    assert_same(
        folded.initial_state(BATCH, torch.float64, torch.device("cpu")),
        model.initial_state(BATCH, torch.float64, torch.device("cpu")),
        terms=0,
    )
    x = samples(model, torch.float64)
    with torch.no_grad():
        _, state = model(x[:-1].transpose(0, 1))
        expected, _ = model.step(x[-1], state)
    assert_same(folded.step(x[-1], state)[0], expected, roundings(folded))


TORCH = [
    nn.Linear(4, 3), nn.Linear(4, 3, bias=False), nn.LayerNorm(4), nn.LayerNorm(4, elementwise_affine=False),
    nn.LayerNorm(4, bias=False, eps=0.1), nn.RMSNorm(4), nn.RMSNorm(4, eps=0.1, elementwise_affine=False),
    nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.3), nn.PReLU(), nn.ELU(0.5), nn.CELU(0.5), nn.SELU(),
    nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU(), nn.Mish(), nn.Sigmoid(), nn.Tanh(), nn.Softplus(2.0, 0.5),
    nn.Softsign(), nn.Hardtanh(-0.5, 0.25), nn.Hardsigmoid(), nn.Hardswish(), nn.LogSigmoid(), nn.Tanhshrink(),
    nn.Softmax(-1), nn.LogSoftmax(-1), nn.GLU(-1), nn.Identity(), nn.Dropout(0.5), nn.AlphaDropout(0.5),
    nn.Embedding(9, 4), nn.Embedding(9, 4, max_norm=1.5, norm_type=1.0),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("module", TORCH, ids=str)
def test_modules_of_torch(module: nn.Module, dtype: torch.dtype) -> None:
    model = Sequential(module).to(dtype).eval()
    x = torch.randint(9, (7,)) if isinstance(module, nn.Embedding) else 2 * torch.randn(7, 4).to(dtype)
    folded = plmu.fold(model)
    out, expected = folded.step(x)[0], model.step(x)[0].detach()
    if isinstance(module, nn.RMSNorm):  # in other calls of torch
        assert_same(out, expected, terms=x.shape[-1] + 4)
    else:
        assert torch.equal(out, expected)
    assert not any(isinstance(part, Applied) for part in folded.parts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_tokens(dtype: torch.dtype) -> None:
    """A table with a memory, whose state is the memory's alone."""
    model = Sequential(
        plmu.TokenDelayLayer(9, 3, **SMALL, token_dropout=0.5, dtype=dtype), nn.Linear(12, 2, dtype=dtype)
    )
    folded = plmu.fold(model.eval())
    assert sorted(folded.arrays()) == ["0.first.table", "0.inner.matrix", "1.bias", "1.weight"]
    state = expected_state = None
    for tokens in torch.randint(9, (STEPS, BATCH)):
        expected, expected_state = model.step(tokens, expected_state)
        out, state = folded.step(tokens, state)
        assert_same(out, expected.detach(), roundings(folded))
        assert_same(state, plmu.nn.detached(expected_state), roundings(folded))


def test_every_module_of_torch_that_a_stack_takes_has_a_kind() -> None:
    assert set(PER_STEP) <= {type(module) for module in TORCH} | {nn.Dropout1d, plmu.Standardize}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@every_model
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    model = model_of(name, dtype).cuda()
    folded = plmu.fold(model)
    state = expected_state = None
    with torch.no_grad():
        for x in samples(model, dtype).cuda():
            expected, expected_state = model.step(x, expected_state)
            out, state = folded.step(x, state)
            assert_same(out, expected, roundings(folded))
            assert_same(state, expected_state, roundings(folded))


# ---------------------------------------------------------------- arrays


@every_model
def test_nothing_but_arrays_and_plain_options(name: str) -> None:
    plain = (str, int, float, bool, torch.dtype, torch.device)

    def look(value: Any) -> int:
        """How many arrays there are inside."""
        if isinstance(value, Folded):
            return sum(look(getattr(value, one.name)) for one in dataclasses.fields(value))
        if isinstance(value, tuple):
            return sum(map(look, value))
        assert value is None or isinstance(value, (*plain, Tensor)) or value is torch.sin, value
        return int(isinstance(value, Tensor))

    folded = plmu.fold(model_of(name))
    assert look(folded) == len(folded.arrays()) > 0
    again = pickle.loads(pickle.dumps(folded))
    x = samples(model_of(name), torch.float64)[0]
    assert torch.equal(again.step(x)[0], folded.step(x)[0])


def test_names_of_arrays() -> None:
    model = Sequential(
        nn.Embedding(9, 3), Residual(ParallelLMU(3, 3, **SMALL)), nn.Dropout(0.1), nn.Linear(3, 2),
        ParallelLMU(2, 4, **SMALL, gated=True), nn.PReLU(), DelayLayer(4, **SMALL),
    )  # fmt: skip
    shapes = {name: tuple(array.shape) for name, array in plmu.fold(model).arrays().items()}
    assert shapes == {
        "0.table": (9, 3),
        "1.inner.matrix": (7, 7),
        "1.inner.constant": (7,),
        "2.weight": (2, 3),
        "2.bias": (2,),
        "3.encoder.weight": (2, 2),
        "3.encoder.bias": (2,),
        "3.gate.weight": (2, 2),
        "3.gate.bias": (2,),
        "3.memory.matrix": (1, 4, 5),
        "3.readout": (4, 8),
        "3.input_weight": (4, 2),
        "3.bias": (4,),
        "4.weight": (1,),
        "5.matrix": (1, 4, 5),
    }


def test_the_function_from_arrays_and_options_alone() -> None:
    """[m ; y] = M [m ; x] + c, and W x + b."""
    model = model_of("linear in a row", torch.float32)
    model = Sequential(*model.layers, nn.Tanh(), nn.Linear(2, 3))
    folded = plmu.fold(model)
    arrays, (memory, activation, last) = folded.arrays(), folded.parts
    assert (type(memory), activation.function, type(last)) == (LinearMemory, "tanh", Affine)
    assert sorted(arrays) == ["0.constant", "0.matrix", "2.bias", "2.weight"]
    order, m, state = memory.order, torch.zeros(4), None
    for x in samples(model, torch.float32):
        both = arrays["0.matrix"] @ torch.cat([m, x[0]]) + arrays["0.constant"]
        m = both[:order] + (m if memory.near_identity else 0)
        y = arrays["2.weight"] @ both[order:].tanh() + arrays["2.bias"]
        out, state = folded.step(x, state)
        assert_same(out[0], y, roundings(folded))
        assert_same(state[4][0, :, 0], m, roundings(folded))


def test_products_are_made_in_float64_and_cast_once() -> None:
    first, second, third = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5, bias=False)
    (part,) = plmu.fold(Sequential(first, nn.Dropout(0.5), second, nn.Sequential(nn.Identity(), third))).parts
    W = [one.weight.detach().double() for one in (first, second, third)]
    b = [one.bias.detach().double() for one in (first, second)]
    assert part.weight.dtype == torch.float32
    assert torch.equal(part.weight, (W[2] @ (W[1] @ W[0])).float())
    assert torch.equal(part.bias, (W[2] @ (W[1] @ b[0] + b[1])).float())


def test_what_is_multiplied_out() -> None:
    def kinds(*modules: nn.Module) -> list[str]:
        return [type(part).__name__ for part in plmu.fold(Sequential(*modules)).parts]

    assert kinds(nn.Identity(), nn.Dropout(0.5)) == []
    assert kinds(nn.Linear(100, 2), nn.Linear(2, 100)) == ["Affine", "Affine"]  # fewer numbers as they are
    assert kinds(nn.Linear(100, 1), ParallelLMU(1, 90, **SMALL)) == ["Affine", "LinearMemory"]
    narrow = ParallelLMU(90, 1, **SMALL, output_activation=None)
    assert kinds(narrow, nn.Linear(1, 90)) == ["LinearMemory", "Affine"]
    assert kinds(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)) == ["Affine", "Function", "Affine"]
    assert kinds(nn.Linear(3, 3), ParallelLMU(3, 4, **SMALL), nn.Linear(4, 4)) == ["LinearMemory", "Affine"]
    assert kinds(nn.Linear(3, 3), LMU(3, 4, **SMALL), nn.Linear(4, 4)) == ["CoupledMemory", "Affine"]
    assert kinds(nn.Linear(3, 3), ParallelLMU(3, 4, **SMALL, memory_size=2)) == ["Affine", "ParallelMemory"]
    assert kinds(nn.Linear(3, 3).double(), nn.Linear(3, 3)) == ["Affine", "Affine"]


def test_the_place_of_a_state_outlives_what_is_multiplied_out() -> None:
    model = model_of("linear in a row")
    _, state = plmu.fold(model).step(samples(model, torch.float64)[0])
    assert [one is None for one in state] == [True, True, True, True, False, True, True]


# ---------------------------------------------------------------- immutable


@every_model
def test_arrays_cannot_be_changed(name: str) -> None:
    folded = plmu.fold(model_of(name))
    for array in folded.arrays().values():
        for change in (array.zero_, lambda array=array: array.add_(1.0), lambda array=array: array.copy_(array)):
            with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
                change()
        assert not array.requires_grad
    with pytest.raises(dataclasses.FrozenInstanceError):
        folded.dtype = torch.float16


@every_model
def test_what_becomes_of_the_model_does_not_show(name: str) -> None:
    model = model_of(name)
    folded = plmu.fold(model)
    x = samples(model, torch.float64)[0]
    before, state = folded.step(x)
    arrays = {key: value.clone() for key, value in folded.arrays().items()}
    with torch.no_grad():
        for value in model.parameters():
            value.fill_(7.0)
    model.train()
    assert torch.equal(folded.step(x)[0], before)
    assert_equal(folded.step(x)[1], state)
    assert all(torch.equal(value, arrays[key]) for key, value in folded.arrays().items())


def test_what_becomes_of_an_output_does_not_reach_the_state() -> None:
    for name in (*LAYERS, *MORE):
        model = model_of(name)
        folded = plmu.fold(model)
        x = samples(model, torch.float64)[0]
        out, state = folded.step(x)
        expected = [one.clone() for one in flat(state)]
        out.fill_(7.0)
        x.fill_(7.0)
        assert all(torch.equal(one, other) for one, other in zip(flat(state), expected, strict=True)), name


@pytest.mark.parametrize("name", ["plain", "gated", "delay", "original", "stack"])
def test_neither_gradients_nor_autocast(name: str) -> None:
    model = model_of(name, torch.float32)
    folded = plmu.fold(model)
    x = samples(model, torch.float32)[0]
    expected = folded.step(x)
    with torch.autocast("cpu", torch.bfloat16):
        out, state = folded.step(x.clone().requires_grad_())
    assert torch.equal(out, expected[0])
    assert not out.requires_grad
    assert not out.is_inference()  # it may go into training
    assert_equal(state, expected[1])
