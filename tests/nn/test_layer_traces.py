"""Layers under torch's other modes: compiled for several sizes, traced, differentiated many times at once, without
values; and outputs that belong to the caller alone."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from closeness import assert_same
from layers import INPUTS, LAYERS, SMALL, build, flat, random_state
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.autograd.functional import hessian, jacobian
from torch.fx.experimental.proxy_tensor import make_fx

import plmu
from plmu import LMU

every_layer = pytest.mark.parametrize("name", LAYERS)
LAST = [name for name in LAYERS if not name.startswith("residual")]


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def original(**options: Any) -> LMU:
    """With one memory channel, which takes one product a step."""
    torch.manual_seed(1)
    return LMU(INPUTS, 4, **SMALL, bias=True, **options).double()


def sequence(*shape: int) -> Tensor:
    return torch.randn(*shape, INPUTS, dtype=torch.float64)


# ---------------------------------------------------------------- torch.compile


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize(("name", "last"), [("plain", False), ("delay", True)])
def test_compiled_for_several_lengths_and_batches(name: str, last: bool) -> None:
    layer = build(name, return_sequences=not last)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    for batch, time in [(2, 6), (2, 9), (3, 70)]:
        x = sequence(batch, time)
        assert_same(compiled(x), layer(x))


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("name", ["plain", pytest.param("original", marks=pytest.mark.full)])
def test_bad_lengths_raise_when_compiled(name: str) -> None:
    """Their values cannot be looked at before."""
    layer = build(name)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = sequence(2, 6)
    good = torch.tensor([0, 6])
    assert_same(compiled(x, None, good), layer(x, None, good))
    for wrong in (-1, 7):
        with pytest.raises(RuntimeError, match="lengths must lie between 0 and the number of time steps"):
            compiled(x, None, torch.tensor([2, wrong]))


@pytest.mark.parametrize("wrong", [-1, 7])
def test_bad_lengths_raise_under_vmap(wrong: int) -> None:
    layer, x = build("plain"), sequence(3, 1, 6)

    def last(x: Tensor, lengths: Tensor) -> Tensor:
        return layer(x, None, lengths)[1]

    good = torch.tensor([[2], [0], [6]])
    expected = torch.stack([last(*one) for one in zip(x, good, strict=True)])
    assert_same(torch.func.vmap(last)(x, good), expected)
    with pytest.raises(ValueError, match=f"lengths must lie between 0 and the 6 time steps, got {wrong}"):
        torch.func.vmap(last)(x, torch.tensor([[2], [wrong], [6]]))


# ---------------------------------------------------------------- traced, and without values


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
@pytest.mark.filterwarnings("ignore:Converting a tensor to a Python")
@pytest.mark.parametrize("last", [False, True], ids=["sequence", "last"])
@pytest.mark.parametrize("name", ["plain", "chunked", "several theta", "multi-input", "delay", "original"])
def test_traced(name: str, last: bool) -> None:
    layer, lengths = build(name, return_sequences=not last).requires_grad_(False), torch.tensor([20, 3])
    traced = torch.jit.trace(lambda x, lengths: layer(x, None, lengths), (sequence(2, 20), lengths))
    x, lengths = sequence(2, 20), torch.tensor([0, 17])
    assert_same(traced(x, lengths), layer(x, None, lengths))
    # A trace has no check of lengths, but reads nothing out of range: a bad one counts as the nearest good one.
    assert_same(traced(x, torch.tensor([-3, 21])), layer(x, None, torch.tensor([0, 20])))


# Made for one memory channel, biases of encoders, and parts without a state.
TRACED: dict[str, Callable[[], plmu.nn.Steppable]] = {
    "one channel": lambda: plmu.ParallelLMU(1, 2, order=2, theta=4.0),
    "encoder after": lambda: plmu.ParallelLMU(3, 4, **SMALL, memory_size=5),
    "encoder after, last": lambda: plmu.ParallelLMU(3, 4, **SMALL, memory_size=5, return_sequences=False),
    "tokens": lambda: plmu.TokenDelayLayer(7, 3, 2, 5.0),
    "all tokens": lambda: plmu.TokenDelayLayer(7, 3, 2, 5.0, return_sequences=True),
    "stateless part": lambda: plmu.Sequential(nn.Linear(3, 4), nn.ReLU(), plmu.ParallelLMU(4, 2, **SMALL)),
    "stateless": lambda: plmu.Residual(nn.Linear(3, 3)),
    "weighted": lambda: plmu.WeightedStack(nn.Linear(3, 3), plmu.ParallelLMU(3, 3, **SMALL)),
    "shares": lambda: plmu.nn.ThresholdShares(3, 2, positions=2, return_sequences=False),
    "timed": lambda: plmu.TimedDelayLayer(2, 3, 5.0),
    "trained": lambda: plmu.ParallelLMU(3, 4, **SMALL, trainable="theta"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
@pytest.mark.filterwarnings("ignore:Converting a tensor to a")
@pytest.mark.filterwarnings("ignore:.*torch.tensor results are registered as constants")
@pytest.mark.filterwarnings("ignore:.*Iterating over a tensor")
@pytest.mark.parametrize("name", TRACED)
def test_traced_as_modules(name: str) -> None:
    torch.manual_seed(1)
    model = TRACED[name]().double()

    def inputs(*shape: int) -> Tensor:
        if "tokens" in name:
            return torch.randint(7, shape)
        return torch.rand(*shape, model.input_sizes()[0], dtype=torch.float64)

    x, lengths = inputs(2, 20), torch.tensor([20, 7])
    traced = torch.jit.trace(model, (x,), check_trace=False)
    out, state = traced(inputs(2, 20))
    x = inputs(2, 20)
    out, state = traced(x)
    expected, end = model(x)
    assert_same(out, expected)
    assert_same(flat(state), flat(end))

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            return self.model(x, None, lengths)[0]

    padded = torch.jit.trace(Padded(), (inputs(2, 20), torch.tensor([3, 20])), check_trace=False)
    assert_same(padded(x, lengths), model(x, None, lengths)[0])


def left_behind(value: Any, where: str = "layer", done: set[int] | None = None) -> list[str]:
    """Where an object keeps tensors of a mode: tracers, wrappers of transforms, fake tensors; or tensors as sizes."""
    done = set() if done is None else done
    if id(value) in done:
        return []
    done.add(id(value))
    if isinstance(value, Tensor):
        wrapped = type(value) not in (Tensor, nn.Parameter) or torch.func.debug_unwrap(value) is not value
        return [where] if wrapped else []
    if isinstance(value, dict):
        inner = [(f"{where}[{key!r}]", part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        inner = [(f"{where}[{i}]", part) for i, part in enumerate(value)]
    elif type(value).__module__.startswith("plmu."):
        inner = [(f"{where}.{key}", part) for key, part in vars(value).items()]
        inner = [(key, torch.zeros(()).as_subclass(Kept)) if sized(key, part) else (key, part) for key, part in inner]
    else:
        return []
    return [path for key, part in inner for path in left_behind(part, key, done)]


def output_of(run: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    return lambda x: run(x)[0]


class Kept(Tensor):
    """Stands for a size that is a tensor."""


def sized(key: str, value: Any) -> bool:
    return key.endswith((".order", ".inputs")) and isinstance(value, Tensor)


MODES: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "jacrev": lambda run, x: torch.func.jacrev(run)(x),
    "jvp": lambda run, x: torch.func.jvp(run, (x,), (x,)),
    "vmap": lambda run, x: torch.func.vmap(lambda row: run(row[None]))(x),
    "make_fx": lambda run, x: make_fx(run)(x),
    "hessian": lambda run, x: torch.func.hessian(lambda x: run(x).sum())(x),
    "trace": lambda run, x: torch.jit.trace(run, (x,), check_trace=False),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
@pytest.mark.filterwarnings("ignore:Converting a tensor to a")
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated")  # torch's own doing
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "name", ["plain", "delay", "several theta", "trained theta", "trained system", "original, trained"]
)
def test_nothing_of_a_mode_stays(name: str, mode: str) -> None:
    """Afterwards the layer runs, is copied and streams as before."""
    layer, x = build(name), sequence(2, 5)
    with torch.no_grad():
        expected, step = layer(x), layer.step(x[:, 0])
    for fresh in (build(name), layer):  # with empty caches, and with full ones
        if mode == "trace":
            fresh.requires_grad_(False)
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                MODES[mode](output_of(fresh), x)
                MODES[mode](output_of(fresh.step), x[:, 0])
        assert left_behind(fresh) == []
        with torch.no_grad():
            assert_same(fresh(x), expected)
            assert_same(fresh.step(x[:, 0]), step)
        assert_same(copy.deepcopy(fresh)(x), expected)
        stream = plmu.Stream(fresh)
        assert_same(stream.push(x[:, 0]), step[0])
        folded = plmu.fold(fresh)
        MODES["vmap"](output_of(folded.step), x[:, 1])
        assert left_behind(folded) == []


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("name", ["chunked", "original, trained"])
def test_make_fx(name: str, mode: str) -> None:
    layer = build(name)
    graph = make_fx(lambda x: layer(x)[0], tracing_mode=mode, _allow_non_fake_inputs=True)(sequence(2, 6))
    x = sequence(2, 6)
    assert_same(graph(x), layer(x)[0])


def test_make_fx_of_a_gradient() -> None:
    gradient = torch.func.grad(lambda x: layer(x)[0].square().sum())
    layer, x = original(), sequence(2, 5)
    assert_same(make_fx(gradient)(sequence(2, 5))(x), gradient(x))


def shapes(state: Any) -> list[tuple[int, ...]]:
    return [tuple(part.shape) for part in flat(state)]


@every_layer
def test_without_values(name: str) -> None:
    """On the meta device, and made and called under fake tensors: shapes, and gradients of the right shapes."""
    layer = build(name, torch.float32)
    expected, end = layer(torch.randn(2, 20, INPUTS))
    there = copy.deepcopy(layer).to("meta")
    repr(there)
    x = torch.randn(2, 20, INPUTS, device="meta", requires_grad=True)
    out, state = there(x, None, torch.tensor([20, 3]))
    assert out.is_meta
    assert shapes((out, state)) == shapes((expected, end))
    out.sum().backward()
    assert x.grad.shape == x.shape
    step, _ = there.step(x[:, 0].detach())
    assert shapes(step) == [(2, *expected.shape[2:])]
    with FakeTensorMode():
        out, state = LAYERS[name]()(torch.randn(2, 20, INPUTS))
    assert shapes((out, state)) == shapes((expected, end))


@pytest.mark.parametrize("name", LAST)
def test_the_last_output_without_values(name: str) -> None:
    with FakeTensorMode():
        assert LAYERS[name](return_sequences=False)(torch.randn(2, 20, INPUTS))[0].shape[0] == 2
    assert build(name, torch.float32, return_sequences=False).to("meta")(torch.randn(2, 9, 3, device="meta"))[0].is_meta


# ---------------------------------------------------------------- gradients, many at once and forwards


@every_layer
def test_many_gradients_at_once(name: str) -> None:
    layer, x = build(name), sequence(1, 4).requires_grad_()
    out = layer(x)[0]
    many = torch.randn(3, *out.shape, dtype=out.dtype)
    inputs = [x, *layer.parameters()]
    found = torch.autograd.grad(out, inputs, many, is_grads_batched=True, retain_graph=True)
    for i, one in enumerate(many):
        assert_same([value[i] for value in found], list(torch.autograd.grad(out, inputs, one, retain_graph=True)))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")  # torch's own use of it
@pytest.mark.parametrize("lengths", [None, torch.tensor([2, 4])], ids=["full", "lengths"])
def test_jacobians_of_the_original(lengths: Tensor | None) -> None:
    layer, x = original(), sequence(2, 4)

    def out(x: Tensor) -> Tensor:
        return layer(x, None, lengths)[0]

    expected = jacobian(out, x)
    assert_same(jacobian(out, x, vectorize=True), expected)
    assert_same(torch.func.jacfwd(out)(x), expected)
    tangent = sequence(2, 4)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(out(forward_ad.make_dual(x, tangent))).tangent
    assert_same(found, torch.einsum("abcxyz,xyz->abc", expected, tangent))


def test_hessian_of_the_original() -> None:
    layer, x = original(), sequence(1, 3)

    def loss(x: Tensor) -> Tensor:
        return layer(x)[0].square().sum()

    assert_same(hessian(loss, x, vectorize=True), hessian(loss, x))


# ---------------------------------------------------------------- what belongs to whom


def ways(name: str) -> list[tuple[str, Callable[[], tuple[Any, Any, Any]]]]:
    def run(last: bool, lengths: Tensor | None) -> tuple[Any, Any, Any]:
        layer = build(name, torch.float32, **({"return_sequences": False} if last else {}))
        x, before = torch.randn(2, 20, INPUTS), random_state(layer, 2, torch.float32)
        return *layer(x, before, lengths), (x, before)

    def step() -> tuple[Any, Any, Any]:
        layer = build(name, torch.float32)
        x, before = torch.randn(2, INPUTS), random_state(layer, 2, torch.float32)
        return *layer.step(x, before), (x, before)

    found = [("whole", lambda: run(False, None)), ("padded", lambda: run(False, torch.tensor([0, 9]))), ("step", step)]
    if name in LAST:
        found += [("last", lambda: run(True, None)), ("last, padded", lambda: run(True, torch.tensor([0, 9])))]
    return found


@torch.no_grad()
@every_layer
def test_outputs_states_and_inputs_share_no_memory(name: str) -> None:
    """What becomes of one in place must not reach another."""
    for way, run in ways(name):
        out, state, given = run()
        parts = [out, *flat(state), *flat(given)]
        for part in parts:
            kept = [other.clone() for other in parts]
            part.fill_(torch.nan)
            for other, before in zip(parts, kept, strict=True):
                assert other is part or torch.equal(other, before), way
            part.zero_()


@pytest.mark.parametrize("name", ["bare", "delay", "original", "original, trained", "residual of steps"])
def test_in_place_on_an_output(name: str) -> None:
    """Where torch's own activation at the end, such as relu, does not need its output again."""
    layer, x = build(name), sequence(2, 9).requires_grad_()
    expected = torch.autograd.grad(layer(x)[0].sum(), x)[0]
    out = layer(x)[0]
    out += 1.0
    assert_same(torch.autograd.grad(out.sum(), x)[0], expected)
