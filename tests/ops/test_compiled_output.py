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
from plmu.ops.gpu import compiled_output, projection
from plmu.ops.gpu.tables import segments_of

pytestmark = [needs_kernels, pytest.mark.skipif(torch.cuda.is_available(), reason="other tests run them on the GPU")]
# As in test_gluon_chunked.py: constants, states between chunks, each tile of m and the result are rounded once.
ERROR = 4 * torch.finfo(torch.float16).eps / 2
OPERATORS = [["plmu.output.default"], ["plmu.output_backward.default"]]  # forward and backward
# Options of layers, and what is given beside x.
LAYERS: dict[str, tuple[dict[str, Any], str]] = {
    "bias and ReLU": ({"encoder": False, "input_to_output": False}, ""),
    "ReLU": ({"encoder": False, "input_to_output": False, "bias": False}, ""),
    "W_x": ({"encoder": False}, ""),
    "W_x and bias, then tanh": ({"encoder": False, "output_activation": "tanh"}, ""),
    "bias": ({"encoder": False, "input_to_output": False, "output_activation": None}, ""),
    "encoder": ({}, ""),
    "windows": ({"encoder": False, "theta": [3.0, 90.0]}, ""),
    "states": ({"encoder": False, "theta": 300.0}, ""),
    "first state": ({"encoder": False, "theta": 300.0}, "state"),
    "first state of windows with resets": ({"encoder": False, "theta": [3.0, 90.0]}, "state and resets"),
    "resets": ({"encoder": False}, "resets"),
    "lengths": ({"encoder": False}, "lengths"),
    "standardised": ({"encoder": False, "standardize": True}, ""),
}


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    yield from gluon_emulator.in_place(monkeypatch)
    torch._dynamo.reset()


class Recorder:
    """A backend for torch.compile that runs graphs as they are, and has the operators of each: forward and backward."""

    def __init__(self) -> None:
        self.graphs: list[list[str]] = []
        self._backend = aot_autograd(fw_compiler=self._record)

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        return self._backend(graph, inputs)

    def _record(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        self.graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return make_boxed_func(graph.forward)


def layer_of(name: str, **more: Any) -> plmu.ParallelLMU:
    options = {"theta": 4.0, "memory_size": 24, "algorithm": "fused", **LAYERS[name][0], **more}
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


@pytest.mark.parametrize("name", LAYERS)
def test_the_same_bits_as_eagerly_and_right(name: str) -> None:
    layer, x, given = layer_of(name).half(), torch.randn(2, 70, 24).half(), given_to(name)
    recorder = Recorder()
    ours = results(torch.compile(layer, fullgraph=True, backend=recorder), x, given, *layer.parameters())
    assert [[one for one in graph if "plmu" in one] for graph in recorder.graphs] == OPERATORS
    encoded = 0 if layer.encoder is None else 3  # roundings more: u, its gradient, and the sum of both gradients of x
    bound = ERROR + encoded * torch.finfo(torch.float16).eps / 2 + 1e-6
    for value, eager in zip(ours, results(layer, x, given, *layer.parameters()), strict=True):
        assert torch.equal(value, eager) or (encoded and error(value, eager.double()) < bound)
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
    recorder = Recorder()
    out = torch.compile(lambda x: layer(x)[0], fullgraph=True, backend=recorder)(x)
    torch.autograd.grad(out, (x, *layer.parameters()), torch.randn_like(out))
    views = ("<built-in function getitem>", "aten.detach", "aten.alias", "aten.unsqueeze", "aten.squeeze")
    assert [[one for one in graph if not one.startswith(views)] for graph in recorder.graphs] == OPERATORS
