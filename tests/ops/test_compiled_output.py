"""Whole layers under torch.compile on a Hopper GPU: one operator forward, one backward, and the bits of an eager call.

Here a CPU counts as such a GPU, and its kernels are emulated.
"""

from collections.abc import Callable, Iterator
from typing import Any

import gluon_emulator
import pytest
import torch
from closeness import within
from operations import needs_kernels
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

import plmu
from plmu.ops.check import Epilogue
from plmu.ops.gpu import compiled_output, output, projection
from plmu.ops.gpu.tables import Constants, segments_of

pytestmark = [needs_kernels, pytest.mark.skipif(torch.cuda.is_available(), reason="other tests run them on the GPU")]
# As in test_gluon_chunked.py: constants, states between chunks, each tile of m and the result are rounded once.
ERROR = 4 * torch.finfo(torch.float16).eps / 2
OPERATORS = [["plmu.output.default"], ["plmu.output_backward.default"]]  # forward and backward, for the output alone
WITH_STATE = [["plmu.output.default", "plmu.final_state.default"], OPERATORS[1]]
# Options of layers, and what is given beside x.
LAYERS: dict[str, tuple[dict[str, Any], str]] = {
    "bias and ReLU": ({"encoder": False, "input_to_output": False}, ""),
    "W_x": ({"encoder": False}, ""),
    "W_x and bias, then tanh": ({"encoder": False, "output_activation": "tanh"}, ""),
    "bias": ({"encoder": False, "input_to_output": False, "output_activation": None}, ""),
    "encoder": ({}, ""),
    "windows": ({"encoder": False, "theta": [2.0, 80.0]}, ""),
    "first state": ({"encoder": False, "theta": 200.0}, "state"),
    "first state of windows with resets": ({"encoder": False, "theta": [2.0, 80.0]}, "state and resets"),
    "resets": ({"encoder": False}, "resets"),
    "lengths": ({"encoder": False}, "lengths"),
    "standardised": ({"encoder": False, "standardize": True}, ""),
}
MORE = ("bias", "windows", "resets", "standardised")  # `make test-all` has these


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    yield from gluon_emulator.in_place(monkeypatch)
    torch._dynamo.reset()


def recorder() -> tuple[Any, list[list[str]]]:
    """A backend for torch.compile that runs graphs as they are, and the operators of each: forward and backward."""
    graphs: list[list[str]] = []

    def record(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=record), graphs


def ours_in(graphs: list[list[str]]) -> list[list[str]]:
    """The operators of our own."""
    return [[one for one in graph if "plmu" in one] for graph in graphs]


def layer_of(name: str, **more: Any) -> plmu.ParallelLMU:
    options = {"theta": 5.0, "memory_size": 24, "algorithm": "fused", **LAYERS[name][0], **more}
    layer = plmu.ParallelLMU(24, 16, order=2, **options)
    for value in layer.parameters():
        torch.nn.init.normal_(value, std=0.2)
    return layer


def given_to(name: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    if "state" in LAYERS[name][1]:
        found["state"] = torch.randn(2, 2, 24, requires_grad=True)
    if "resets" in LAYERS[name][1]:
        found["resets"] = torch.rand(2, 70) < 0.05
    if "lengths" in LAYERS[name][1]:
        found["lengths"] = torch.tensor([70, 9])
    return found


def results(call: Callable[..., Any], x: Tensor, given: dict[str, Tensor], *leaves: Tensor) -> list[Tensor]:
    """The answer, and all gradients."""
    x = x.clone().requires_grad_()
    answer = call(x, **given)
    torch.manual_seed(1)
    of_answer = [torch.randn(one.shape).to(one) for one in answer]
    leaves = (x, *leaves, *(one for one in given.values() if one.requires_grad))
    return [one.detach() for one in (*answer, *torch.autograd.grad(answer, leaves, of_answer))]


def error(value: Tensor, exact: Tensor) -> float:
    return float((value.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.full] if one in MORE else []) for one in LAYERS])
def test_the_same_bits_as_eagerly_and_right(name: str) -> None:
    layer, x, given = layer_of(name).half(), torch.randn(2, 70, 24).half(), given_to(name)
    backend, graphs = recorder()
    ours = results(torch.compile(layer, fullgraph=True, backend=backend), x, given, *layer.parameters())
    assert ours_in(graphs) == (OPERATORS if "lengths" in given else WITH_STATE)  # whose state is made by torch
    encoded = 0 if layer.encoder is None else 3  # roundings more: u, its gradient, and the sum of both gradients of x
    bound = ERROR + encoded * torch.finfo(torch.float16).eps / 2 + 1e-6
    for value, eager in zip(ours, results(layer, x, given, *layer.parameters()), strict=True):
        if encoded:
            within(error(value, eager.double()), bound)
        else:
            assert torch.equal(value, eager)
    exact = layer_of(name, algorithm="recurrent").double()
    exact.load_state_dict(layer.state_dict())
    if layer.f2 is torch.relu:  # near zero, which side of it a sum falls on is a matter of rounding
        exact.f2 = lambda total: torch.where(ours[0] > 0, total, 0.0)
    wide = {key: one.detach().double().requires_grad_() if key == "state" else one for key, one in given.items()}
    for value, right in zip(ours, results(exact, x.double(), wide, *exact.parameters()), strict=True):
        within(error(value, right), bound)


@pytest.mark.parametrize("name", ["bias and ReLU", "W_x"])
def test_nothing_else_runs(name: str) -> None:
    """Neither bias, ReLU and their gradients nor products are left to the compiler."""
    layer, x = layer_of(name).half(), torch.randn(2, 70, 24).half().requires_grad_()
    backend, graphs = recorder()
    out = torch.compile(lambda x: layer(x)[0], fullgraph=True, backend=backend)(x)
    torch.autograd.grad(out, (x, *layer.parameters()), torch.randn_like(out))
    views = ("<built-in function getitem>", "aten.detach", "aten.alias", "aten.unsqueeze", "aten.squeeze")
    assert [[one for one in graph if not one.startswith(views)] for graph in graphs] == OPERATORS


def test_other_sizes_and_autocast() -> None:
    """Sizes that change are symbols to the compiler. Gradients have the precision of the weights."""
    layer, (backend, graphs) = layer_of("W_x"), recorder()

    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.float16):
            return layer(x)

    compiled = torch.compile(call, fullgraph=True, backend=backend)
    for time in (66, 70):
        x = torch.randn(2, time, 24)
        ours, eager = (results(one, x, {}, *layer.parameters()) for one in (compiled, call))
        assert ours[0].dtype == torch.float16
        assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, eager, strict=True))
    assert ours_in(graphs) == 2 * WITH_STATE


def test_without_gradients() -> None:
    layer, x, (backend, graphs) = layer_of("encoder").half(), torch.randn(2, 70, 24).half(), recorder()
    with torch.no_grad():
        found = torch.compile(layer, fullgraph=True, backend=backend)(x)
        assert all(torch.equal(a, b) for a, b in zip(found, layer(x), strict=True))
    assert ours_in(graphs) == WITH_STATE[:1]


def test_a_layer_that_takes_several_launches() -> None:
    """W_x of features that the copy engine cannot read."""
    layer = plmu.ParallelLMU(12, 16, order=2, theta=5.0, memory_size=24, algorithm="fused").half()
    x, (backend, graphs) = torch.randn(2, 70, 12).half(), recorder()
    ours = results(torch.compile(layer, fullgraph=True, backend=backend), x, {}, *layer.parameters())
    assert ours_in(graphs) == [["plmu.project.default"], ["plmu.project_backward.default"]]
    for value, eager in zip(ours, results(layer, x, {}, *layer.parameters()), strict=True):
        within(error(value, eager.double()), 2 * ERROR)


# What the operators are called with: u, W_m, the first state, segments, x, W_x and the bias.
GIVEN = ("u", "weight", "first", "x", "input_weight", "bias")
CALLS = {
    # window, whether there is ReLU, operands
    "all": (200.0, True, GIVEN),
    "W_x of u": (5.0, False, ("u", "weight", "input_weight", "bias")),
    "bias": (5.0, True, ("u", "weight", "bias")),
}


def operands(name: str) -> tuple[dict[str, Tensor | None], Constants]:
    theta, _, names = CALLS[name]
    shapes = {"u": (1, 66, 24), "weight": (16, 2, 24), "x": (1, 66, 8), "bias": (16,)}
    shapes["input_weight"] = (16, 8 if "x" in names else 24)
    found: dict[str, Tensor | None] = {one: torch.randn(shape).half() for one, shape in shapes.items() if one in names}
    if "first" in names:
        found["first"] = torch.randn(1, 2, 24)
    for one in found.values():
        assert one is not None
        one.requires_grad_()
    system = plmu.DelayNetwork(2, theta).discretize()
    u = found["u"]
    assert u is not None
    constants = projection.constants_for(u, system, found.get("first"))
    return {one: found.get(one) for one in GIVEN}, constants


@pytest.mark.parametrize("name", CALLS)
def test_gradients_that_are_not_needed(name: str) -> None:
    """Those of each operand alone are those of all together, from gradients of the output or of the final state."""
    given, constants = operands(name)
    segments = segments_of(torch.rand(1, 66) < 0.03)
    leaves = [one for one in given.values() if one is not None]
    answers = []
    for run in (output.output, compiled_output.output):
        rest = Epilogue(given["x"], given["input_weight"], given["bias"], CALLS[name][1])
        answers.append(run(given["u"], given["weight"], given["first"], segments, constants, rest))
    of_answer = (torch.randn(1, 66, 16).half(), torch.randn(1, 2, 24))
    for asked in (slice(0, 1), slice(1, 2)):
        options = {"retain_graph": True, "allow_unused": True}
        right, found = (torch.autograd.grad(one[asked], leaves, of_answer[asked], **options) for one in answers)
        alone = [torch.autograd.grad(answers[1][asked], one, of_answer[asked], **options)[0] for one in leaves]
        for values in zip(right, found, alone, strict=True):
            if any(one is None for one in values):
                assert values == (None, None, None)
            else:
                assert torch.equal(values[0], values[1])
                assert torch.equal(values[0], values[2])


@pytest.mark.parametrize("name", CALLS)
def test_torch_accepts_the_operators(name: str) -> None:
    given, constants = operands(name)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    u, weight, first, *rest = given.values()
    how = (constants.steps, constants.run, constants.groups)
    for segments in (None, segments_of(torch.rand(1, 66) < 0.03)):
        arguments = (u, weight, first, segments, *rest, constants.powers, *constants.tables, True, *how)
        torch.library.opcheck(compiled_output._output, arguments, test_utils=checks)
        _, kept, last = (one.detach() for one in compiled_output._output(*arguments))
        carried = None if constants.steps else last
        _, _, _, taps, advance, _, *ends, _ = constants.tables
        arguments = (u, first, segments, carried, taps, advance, *ends, constants.groups)
        torch.library.opcheck(compiled_output._final_state, arguments, test_utils=checks)
        x, input_weight, _ = rest
        o = torch.randn(1, 66, 16).half()
        for needed in ([one is not None for one in (u, weight, *rest)], [False] * 4 + [True]):
            saved = [None if one is None else one.detach() for one in (u, weight, first, segments, x, input_weight, o)]
            arguments = (o, *saved, kept if kept.numel() else None, *constants.tables, *how, needed)
            torch.library.opcheck(compiled_output._output_backward, arguments, test_utils=checks)


def test_a_second_derivative_raises() -> None:
    layer, x = layer_of("W_x").half(), torch.randn(1, 9, 24).half().requires_grad_()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    (grad_x,) = torch.autograd.grad(compiled(x)[0].float().sin().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(grad_x.float().sum(), x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated", "ignore:.*should not be instantiated")
@pytest.mark.parametrize("name", ["jvp", "grad"])
def test_a_transform_that_is_compiled_is_planned_as_one(name: str) -> None:
    """`fused` has no rules for them, so another algorithm runs; by name it says so."""
    x = torch.randn(1, 9, 24).half()
    transforms = {
        "jvp": lambda layer, x: torch.func.jvp(lambda one: layer(one)[0], (x,), (x,))[1],
        "grad": lambda layer, x: torch.func.grad(lambda one: layer(one)[0].float().sin().sum())(x),
    }
    for algorithm in ("auto", "chunked"):
        layer = layer_of("W_x", algorithm=algorithm).half()
        call = torch.compile(lambda x, layer=layer: transforms[name](layer, x), fullgraph=True, backend="aot_eager")
        found, exact = call(x), transforms[name](layer.double(), x.double())
        within(error(found.detach(), exact.detach()), 8 * ERROR)
        torch._dynamo.reset()
    layer = layer_of("W_x").half()
    with pytest.raises(Exception, match=r"works neither under torch\.func nor with forward-mode"):
        torch.compile(lambda x: transforms[name](layer, x), fullgraph=True, backend="aot_eager")(x)


@pytest.mark.parametrize("strict", [False, True])
def test_an_export_may_run_on_another_gpu(strict: bool) -> None:
    layer, x = layer_of("W_x").half().eval(), torch.randn(1, 9, 24).half()
    graph = str(torch.export.export(layer, (x,), strict=strict).graph)
    assert "plmu.project" in graph
    assert "plmu.output" not in graph


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")
@pytest.mark.parametrize("name", ["bias and ReLU", "W_x", "encoder"])
def test_by_the_default_compiler(name: str) -> None:
    layer, x = layer_of(name).half(), torch.randn(2, 70, 24).half()

    def call(x: Tensor) -> tuple[Tensor]:
        return layer(x)[:1]

    ours = results(torch.compile(call, fullgraph=True), x, {}, *layer.parameters())
    for value, eager in zip(ours, results(call, x, {}, *layer.parameters()), strict=True):
        if layer.encoder is None:
            assert torch.equal(value, eager)
        else:
            within(error(value, eager.double()), 2 * ERROR)
