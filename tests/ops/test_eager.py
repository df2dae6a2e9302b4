"""Whole layers that are called eagerly and again on a Hopper GPU: the same answers by few operators and launches.

Here a CPU counts as one. Kernels are emulated, or launched as nothing where operators are counted.
"""

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import gluon_emulator
import pytest
import torch
import torch.utils.checkpoint
from closeness import within
from operations import needs_kernels
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import plmu
from plmu.core import derived
from plmu.ops import routes
from plmu.ops.gpu import direct

pytestmark = [needs_kernels, pytest.mark.skipif(torch.cuda.is_available(), reason="other tests run them on the GPU")]
# As in test_gluon_chunked.py: constants, states between chunks, each tile of m and the result are rounded once.
ERROR = 4 * torch.finfo(torch.float16).eps / 2
OPTIONS: dict[str, dict[str, Any]] = {
    "bias and ReLU": {"encoder": False, "input_to_output": False},
    "W_x": {"encoder": False},
    "encoder": {"input_to_output": False},
    "encoder and W_x": {},
    "encoder without biases": {"bias": False, "output_activation": None},
    "activations": {"input_activation": "tanh", "output_activation": "tanh"},
    "windows": {"theta": [3.0, 90.0]},
    "states": {"theta": 300.0},
}


def drop_routes() -> None:
    """Equal systems share routes, and those of another test launch other kernels."""
    for constants in list(derived._by_matrices.values()):
        constants._routes.clear()


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(routes, "DEVICES", ("cuda", "cpu"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    drop_routes()
    yield
    drop_routes()


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from gluon_emulator.in_place(monkeypatch)


class Nothing(direct.Launch):
    """A launch that is noted alone."""

    log: ClassVar[list[str]] = []

    def __call__(self, *tensors: Any) -> None:
        self.log.append(self._kernel)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    for _ in gluon_emulator.in_place(monkeypatch, Nothing):
        Nothing.log.clear()
        yield Nothing.log


def layer_of(name: str) -> plmu.ParallelLMU:
    options = {"theta": 4.0, "memory_size": 24, **OPTIONS[name]}
    layer = plmu.ParallelLMU(24, 16, order=2, algorithm="fused", **options)
    for value in layer.parameters():
        torch.nn.init.normal_(value, std=0.2)
    return layer.half()


def inputs() -> Tensor:
    return torch.randn(2, 70, 24).half().requires_grad_()


def nodes(value: Tensor) -> set[str]:
    """The names of all nodes of autograd's graph before it."""
    found, new = set(), [value.grad_fn]
    while new:
        node = new.pop()
        if node is not None:
            found.add(node.name())
            new += [one for one, _ in node.next_functions]
    return found


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("name", "given"),
    [
        *((name, "") for name in OPTIONS),
        *((name, given) for name in ("W_x", "encoder and W_x") for given in ("state", "resets")),
    ],
)
def test_a_repeated_call_answers_as_the_first(name: str, given: str) -> None:
    layer, x = layer_of(name), inputs()
    more: dict[str, Any] = {"state": torch.randn(2, 2, 24, requires_grad=True)} if given == "state" else {}
    more |= {"resets": torch.rand(2, 70) < 0.05} if given == "resets" else {}
    leaves = [x, *layer.parameters(), *(one for one in more.values() if one.requires_grad)]
    gradients = (torch.randn(2, 70, 16).half(), torch.randn(2, 2, 24))

    def results(asked: slice) -> list[Tensor]:
        answer = layer(x, **more)
        found = torch.autograd.grad(answer[asked], leaves, gradients[asked], allow_unused=True)
        return [*answer, *(torch.zeros(1) if one is None else one for one in found)]

    def without_routes(asked: slice) -> list[Tensor]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(routes, "DEVICES", ())
            return results(asked)

    right = results(slice(0, 1))
    for asked in (slice(0, 1), slice(0, 2), slice(1, 2)):  # gradients of the output, of both, and of the final state
        for a, b in zip(results(asked), without_routes(asked), strict=True):
            assert torch.equal(a, b)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(layer(x, **more), right[:2], strict=True))
    if layer.f1 is None:
        assert nodes(layer(x, **more)[0]) == {"_OutputBackward", "torch::autograd::AccumulateGrad"}


@pytest.mark.usefixtures("emulated")
def test_gradients_that_are_not_needed_are_not_made() -> None:
    layer, x = layer_of("encoder and W_x"), inputs()
    grad_out = torch.randn(2, 70, 16).half()
    everything = [x, *layer.parameters()]
    layer(x)
    right = torch.autograd.grad(layer(x)[0], everything, grad_out)
    for i, one in enumerate(everything):
        for other in everything:
            other.requires_grad_(other is one)
        (found,) = torch.autograd.grad(layer(x)[0], one, grad_out)
        assert torch.equal(found, right[i])


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("name", ["W_x", "encoder and W_x"])
def test_a_repeated_call_has_no_second_derivative(name: str) -> None:
    layer, x = layer_of(name), inputs()
    layer(x)
    (grad_x,) = torch.autograd.grad(layer(x)[0].float().sin().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(grad_x.float().sum(), x)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("name", ["W_x", "encoder and W_x"])
def test_many_gradients_at_once(name: str) -> None:
    layer, x = layer_of(name), inputs()
    layer(x)
    leaves, many = (x, *layer.parameters()), torch.randn(2, 2, 70, 16).half()
    found = torch.autograd.grad(layer(x)[0], leaves, many, is_grads_batched=True)
    for i, grad_out in enumerate(many):
        right = torch.autograd.grad(layer(x)[0], leaves, grad_out)
        for value, exact in zip(found, right, strict=True):
            within(float((value[i] - exact).double().norm() / exact.double().norm()), 2 * ERROR)


@pytest.mark.usefixtures("launches")
def test_hooks_of_an_encoder_are_called() -> None:
    layer, x = layer_of("encoder and W_x"), inputs()
    layer(x), layer(x)
    called: list[str] = []
    for register in ("register_forward_hook", "register_full_backward_hook"):
        handle = getattr(layer.encoder, register)(lambda *_, register=register: called.append(register))
        layer(x)[0].sum().backward()
        handle.remove()
    assert called == ["register_forward_hook", "register_full_backward_hook"]


@pytest.mark.usefixtures("launches")
def test_what_is_prepared_goes_with_its_route() -> None:
    layer, x = layer_of("W_x"), inputs().detach()
    layer(x), layer(x)
    cache = layer.memory.systems()[0]._cache
    assert cache is not None
    (route,) = cache._routes.values()
    kept = [weakref.ref(one) for one in route.constants.prepared.values()]
    assert kept
    del route
    cache._routes.clear()
    assert all(one() is None for one in kept), "without waiting for the garbage collector"


def operators(call: Callable[[], object]) -> int:
    """Of torch, as Python calls them."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        call()
    found = [one for one in profiler.events() if one.name.startswith("aten::")]
    return sum(one.cpu_parent is None or not one.cpu_parent.name.startswith("aten::") for one in found)


def functions(call: Callable[[], object]) -> int:
    """Of our own in Python that are called."""
    ours, count = str(Path(plmu.__file__).parent), 0

    def note(frame: Any, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(ours)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


FORWARD, BACKWARD = ["project", "finish"], ["through_output", "add_up", "weight_gradient", "add_up", "project"]
# Operators and our functions forward; with gradients of all of it; and launches for these.
COUNTS: dict[str, tuple[tuple[int, int], tuple[int, int], list[str]]] = {
    "bias and ReLU": ((2, 52), (8, 80), BACKWARD),
    "W_x": ((2, 54), (12, 82), BACKWARD),
    "encoder and W_x": ((3, 44), (23, 80), [*BACKWARD, "through_output", "add_up"]),
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_repeated_call_takes_few_operators_and_launches(name: str, launches: list[str]) -> None:
    """What the host's time is made of."""
    layer, x = layer_of(name), inputs()
    leaves, grad_out = (x, *layer.parameters()), torch.randn(2, 70, 16).half()

    @torch.no_grad()
    def forward() -> object:
        return layer(x)

    def both() -> object:
        return torch.autograd.grad(layer(x)[0], leaves, grad_out)

    both(), both(), forward()
    of_forward, of_both, backward = COUNTS[name]
    assert (operators(forward), operators(both)) == (of_forward[0], of_both[0])
    assert functions(forward) <= of_forward[1]
    assert functions(both) <= of_both[1]
    launches.clear()
    forward()
    assert launches == FORWARD
    launches.clear()
    both()
    assert launches == [*FORWARD, *backward]


@pytest.mark.parametrize("encoder", [False, True])
@pytest.mark.parametrize(("order", "kept"), [(2, True), (32, True), (33, False)])
def test_states_between_chunks_are_kept_where_they_are_small(
    order: int, kept: bool, encoder: bool, launches: list[str]
) -> None:
    """For the gradient of the weight, at most half as many numbers as u has."""
    options = {"order": order, "theta": 300.0, "memory_size": 24, "encoder": encoder, "algorithm": "fused"}
    layer, x = plmu.ParallelLMU(24, 16, **options).half(), torch.randn(2, 128, 24).half().requires_grad_()
    for _ in range(2):  # the first call and one that repeats
        launches.clear()
        out = layer(x)[0]
        states = [one for one in saved(out) if one.dim() == 4]
        assert sum(one.numel() for one in states) == kept * 2 * 2 * max(16, order) * 24  # batch, chunks, rows, channels
        out.sum().backward()
        assert launches.count("carry") == (2 if kept else 3)
    assert not [one for one in saved(layer(x[:, :31])[0]) if one.dim() == 4]  # they would be larger than half of it
    layer.memory_weight.requires_grad_(False)
    assert not [one for one in saved(layer(x)[0]) if one.dim() == 4]


def saved(value: Tensor) -> list[Tensor]:
    """What the last node of autograd's graph keeps."""
    return [one for one in value.grad_fn.saved_tensors if one is not None]


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("name", ["states", "windows"])
def test_gradients_with_kept_states(name: str) -> None:
    """Against float64; also where hooks give back what was saved in another layout."""
    layer, x = layer_of(name), inputs()
    grad_out = torch.randn(2, 70, 16).half()
    exact = plmu.ParallelLMU(**layer.config | {"algorithm": "recurrent"}).double()
    exact.load_state_dict(layer.state_dict())
    leaves, wide = [x, *layer.parameters()], x.detach().double().requires_grad_()
    right = torch.autograd.grad(exact(wide)[0], [wide, *exact.parameters()], grad_out.double())

    def turned(one: Tensor) -> Tensor:
        return one.transpose(0, 1).contiguous().transpose(0, 1) if one.dim() > 2 else one

    for hooks in (contextlib.nullcontext(), torch.autograd.graph.saved_tensors_hooks(turned, lambda one: one)):
        with hooks:
            layer(x)
            out = layer(x)[0]
        assert any(one.dim() == 4 for one in saved(out))
        for value, other in zip(torch.autograd.grad(out, leaves, grad_out), right, strict=True):
            within(float((value.double() - other).norm() / other.norm()), 2 * ERROR)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("options", [{}, {"encoder": False, "input_to_output": False, "bias": False}])
def test_checkpoints_of_a_first_call(options: dict[str, Any]) -> None:
    """The first call, and the one that is made again for its gradients, save the same."""
    layer = plmu.ParallelLMU(24, 16, 2, 300.0, 24, output_activation=None, algorithm="fused", **options).half()
    x = inputs()
    found = torch.utils.checkpoint.checkpoint(lambda one: torch.tanh(layer(one)[0]), x, use_reentrant=False)
    (grad_x,) = torch.autograd.grad(found.sum(), x)
    assert torch.equal(grad_x, torch.autograd.grad(torch.tanh(layer(x)[0]).sum(), x)[0])


@pytest.mark.parametrize("given", ["a high order", "resets", "a weight in another layout"])
def test_what_is_read_is_held_until_all_is_launched(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The final state is written while the projection may still run: not to memory that this one reads."""
    read: list[weakref.ref[Tensor]] = []
    gone: list[bool] = []

    class Noted(direct.Launch):
        def __call__(self, *tensors: Any) -> None:
            if self._kernel == "project":
                read[:] = [weakref.ref(one) for one in tensors if one is not None]
            elif self._kernel == "finish":
                gone.append(any(one() is None for one in read))

    for _ in gluon_emulator.in_place(monkeypatch, Noted):
        memory: dict[str, Any] = {"order": 40 if given == "a high order" else 2, "theta": 300.0}
        layer = plmu.ParallelLMU(24, 16, **memory, memory_size=24, algorithm="fused").half()
        if given.startswith("a weight"):
            turned = layer.memory_weight.detach().permute(2, 1, 0).contiguous().permute(2, 1, 0)
            layer.memory_weight = torch.nn.Parameter(turned)
        resets = torch.rand(2, 70) < 0.05 if given == "resets" else None
        for _ in range(2):
            with torch.no_grad():
                layer(inputs(), resets=resets)
    assert gone == [False, False]
