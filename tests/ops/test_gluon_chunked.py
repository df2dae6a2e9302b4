"""The kernels for Hopper GPUs, emulated on a CPU, against the float64 recurrence."""

from collections.abc import Iterator
from typing import Any

import gluon_emulator
import pytest
import torch
from closeness import within
from operations import needs_kernels
from torch import Tensor

import plmu
from plmu.ops import check, routes
from plmu.ops.gpu import division

pytestmark = [needs_kernels, pytest.mark.skipif(torch.cuda.is_available(), reason="other tests run them on the GPU")]
# As in test_fused.py: constants, states between chunks, each tile of m and the result are rounded once.
ERROR = 4 * torch.finfo(torch.float16).eps / 2
SHAPES = {
    # batch, time, channels, out, order, windows
    "inputs before chunks": (3, 70, 24, 16, 3, [4.0]),
    "states before chunks": (1, 130, 72, 8, 2, [300.0]),
    "windows": (1, 66, 24, 8, 2, [3.0, 2.0, 4.0]),
    "windows that end within a tile": (1, 9, 136, 8, 1, [2.0, 3.0]),
    "windows of few channels": (1, 20, 24, 8, 2, [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]),
    "windows that need one more tile": (1, 9, 488, 8, 1, [2.0, 3.0, 40.0, 5.0, 6.0, 70.0, 8.0, 9.0]),
    "short and long windows": (2, 70, 24, 16, 3, [4.0, 90.0]),
}
# With resets: sequences without any, with some where chunks meet, with several in a chunk, and with some anywhere.
SEGMENTED = {
    "inputs before chunks": (4, 150, 24, 16, 3, [4.0], False),
    "64 inputs before chunks": (4, 150, 24, 8, 2, [9.0], False),
    "states before chunks": (4, 150, 72, 8, 2, [300.0], True),
    "windows": (4, 131, 24, 8, 1, [3.0, 2.0, 4.0], False),
    "windows that end within a tile": (4, 65, 136, 8, 1, [2.0, 90.0], True),
}
# Whole layers: features of x, channels, outputs, order, windows, where sequences stop, and options.
LAYERS = {
    "bias and ReLU": (72, 72, 264, 2, [4.0], "", {"encoder": False, "input_to_output": False}),
    "ReLU": (24, 24, 16, 1, [4.0], "", {"encoder": False, "input_to_output": False, "bias": False}),
    "W_x of what enters the memory": (264, 264, 264, 1, [90.0], "", {"encoder": False}),
    "W_x of the encoder's input": (72, 24, 16, 3, [4.0], "", {}),
    "W_x and bias, then tanh": (24, 24, 16, 2, [300.0], "", {"encoder": False, "output_activation": "tanh"}),
    "windows": (24, 24, 16, 1, [3.0, 2.0, 4.0], "", {"encoder": False}),
    "resets": (24, 72, 16, 2, [4.0], "resets", {}),
    "resets and windows": (72, 72, 8, 1, [2.0, 90.0], "resets", {"encoder": False}),
    "lengths": (24, 72, 16, 2, [4.0], "lengths", {}),
}
HALVED = ("bias and ReLU", "W_x of what enters the memory")  # layers that are also tried with tiles in two halves


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from gluon_emulator.in_place(monkeypatch)


def error(value: Tensor, exact: Tensor) -> float:
    return ((value.detach().double() - exact.detach()).norm() / exact.detach().norm()).item()


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("programs", [2, 132], ids=["several tiles a program", "one tile, or half of one"])
@pytest.mark.parametrize("name", SHAPES)
def test_against_the_recurrence(name: str, programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(division, "multiprocessors", lambda _: programs)
    batch, time, channels, out, order, windows = SHAPES[name]
    compare(torch.randn(batch, time, channels), out, order, windows, None, None)


def compare(x: Tensor, out: int, order: int, windows: list[float], state: Tensor | None, resets: Tensor | None) -> None:
    """A layer's results and gradients beside those of the recurrence."""
    batch, time, channels = x.shape
    gradients = (torch.randn(batch, time, out).half(), torch.randn(batch, order, channels))
    layers = [
        plmu.ParallelLMU(
            channels, out, order, windows, encoder=False, input_to_output=False, output_activation=None,
            bias=False, algorithm=algorithm,
        )
        for algorithm in ("fused", "recurrent")
    ]  # fmt: skip
    layers[0].half()
    layers[1].load_state_dict(layers[0].state_dict())
    assert layers[0].plan(batch=batch, time=time, resets=resets is not None).kernel == "Hopper"

    def results(layer: plmu.ParallelLMU, *given: Tensor) -> list[Tensor]:
        leaves = [one.clone().requires_grad_() for one in given]
        answer = layer(*leaves, resets=resets)
        of_answer = [one.to(value) for one, value in zip(gradients, answer, strict=True)]
        return [*answer, *torch.autograd.grad(answer, (*leaves, *layer.parameters()), of_answer)]

    first = [] if state is None else [state]
    ours = results(layers[0], x.half(), *first)
    exact = results(layers[1].double(), x.half().double(), *(one.double() for one in first))
    for value, right in zip(ours, exact, strict=True):
        within(error(value, right), ERROR + 1e-6)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("name", SEGMENTED)
def test_resets_against_the_recurrence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(division, "multiprocessors", lambda _: 3)
    batch, time, channels, out, order, windows, started = SEGMENTED[name]
    resets = torch.zeros(batch, time, dtype=torch.bool)
    resets[1, [step for step in (0, 63, 64, 128) if step < time]] = True
    resets[2, [5, 6, 40, 62, time - 1]] = True
    resets[3] = torch.rand(time) < 0.03
    state = torch.randn(batch, order, channels) if started else None
    compare(torch.randn(batch, time, channels), out, order, windows, state, resets)


@pytest.mark.usefixtures("emulated")
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
@pytest.mark.parametrize("at", [140, 128], ids=["within a chunk", "where one begins"])
def test_a_state_that_overflows_ends_at_a_reset(at: int) -> None:
    """Forwards; and backwards for the gradient of u, whose state comes from the other side."""
    system = plmu.LinearSystem(torch.tensor([[1.1]]), torch.tensor([1.0]))  # 446 times as large after 64 steps
    u, weight = torch.randn(1, 256, 8).half(), torch.randn(8, 1, 8).half()
    resets = torch.zeros(1, 256, dtype=torch.bool)
    resets[:, [at, at + 9]] = True
    resets[:, at + 18 :] = True

    def results(algorithm: str, dtype: torch.dtype) -> list[Tensor]:
        inputs = u.to(dtype, copy=True).requires_grad_()
        o, last = plmu.project(inputs, system, weight.to(dtype), algorithm=algorithm, resets=resets)
        (grad_u,) = torch.autograd.grad(o, inputs, torch.ones_like(o))
        turned = plmu.project(inputs, system, weight.to(dtype), algorithm=algorithm, resets=resets.flip(1))[0]
        (of_turned,) = torch.autograd.grad(turned, inputs, torch.ones_like(o))
        return [o[:, at:], last, grad_u[:, at:], of_turned[:, : 255 - at]]

    for value, right in zip(results("fused", torch.float16), results("recurrent", torch.float64), strict=True):
        within(error(value, right), ERROR + 1e-6)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("name", "programs"), [*((name, 2) for name in LAYERS), *((name, 132) for name in HALVED)])
def test_layers_in_one_launch(name: str, programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and gradients beside those of the recurrence. These have their zeros where ours do: near zero, which side
    of it a sum falls on is a matter of rounding."""
    monkeypatch.setattr(division, "multiprocessors", lambda _: programs)
    features, channels, out, order, windows, stopped, options = LAYERS[name]
    sizes: dict[str, Any] = {"order": order, "theta": windows if len(windows) > 1 else windows[0]}
    layer = plmu.ParallelLMU(features, out, memory_size=channels, **sizes, **options, algorithm="fused")
    torch.nn.init.normal_(layer.memory_weight, std=(order * channels) ** -0.5)
    if layer.bias is not None:
        torch.nn.init.normal_(layer.bias)
    layer.half()
    x = torch.randn(3, 70, features).half()
    given = {"resets": torch.rand(3, 70) < 0.05, "lengths": torch.tensor([70, 9, 66])}
    stops = {stopped: given[stopped]} if stopped else {}
    gradients = (torch.randn(3, 70, out).half(), torch.randn(3, order, channels))

    def results(one: plmu.ParallelLMU, x: Tensor) -> list[Tensor]:
        x = x.clone().requires_grad_()
        answer = one(x, **stops)
        of_answer = [gradient.to(value) for gradient, value in zip(gradients, answer, strict=True)]
        return [*answer, *torch.autograd.grad(answer, (x, *one.parameters()), of_answer)]

    with monkeypatch.context() as alone:
        alone.delattr(plmu.ParallelLMU, "_from_input")  # so that nothing is added by itself
        ours = results(layer, x)
        assert all(torch.equal(a, b) for a, b in zip(ours, results(layer, x), strict=True)), "bit for bit"
        with torch.no_grad():
            assert torch.equal(layer(x, **stops)[0], ours[0])
    exact = plmu.ParallelLMU(features, out, memory_size=channels, **sizes, **options, algorithm="recurrent").double()
    exact.load_state_dict(layer.state_dict())
    encoded = 0 if layer.encoder is None else 3  # roundings more: u, its gradient, and the sum of both gradients of x
    bound = ERROR + encoded * torch.finfo(torch.float16).eps / 2 + 1e-6
    within(error(ours[0], exact(x.double(), **stops)[0]), bound)
    if layer.f2 is torch.relu:
        exact.f2 = lambda total: torch.where(ours[0] > 0, total, 0.0)
    for value, right in zip(ours, results(exact, x.double()), strict=True):
        within(error(value, right), bound)


def small_layer(**options: Any) -> plmu.ParallelLMU:
    options = {"encoder": False, **options}
    layer = plmu.ParallelLMU(8, 8, order=2, theta=3.0, memory_size=8, algorithm="fused", **options)
    torch.nn.init.normal_(layer.bias)
    return layer


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("encoder", [False, True])
def test_gradients_of_a_layer_in_one_launch_in_other_ways(encoder: bool) -> None:
    """Several at once, and such as could be differentiated again, which raises."""
    layer, x = small_layer(encoder=encoder).half(), torch.randn(1, 70, 8).half().requires_grad_()
    leaves = (x, *layer.parameters())
    out, _ = layer(x)
    several = torch.randn(2, *out.shape).half()
    alone = [torch.autograd.grad(out, leaves, one, retain_graph=True) for one in several]
    together = torch.autograd.grad(out, leaves, several, is_grads_batched=True, retain_graph=True)
    for first, second, both in zip(*alone, together, strict=True):
        within(error(both, torch.stack([first, second]).double()), ERROR + 1e-6)
    again = torch.autograd.grad(out, leaves, several[0], create_graph=True)
    for value, right in zip(again, alone[0], strict=True):
        within(error(value, right.double()), ERROR + 1e-6)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(again[0].sum(), layer.memory_weight)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("encoder", [False, True])
def test_a_layer_in_one_launch_is_called_again_under_autocast(encoder: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its route, as on a GPU; in the precision of autocast, with gradients in that of the weights."""
    monkeypatch.setattr(routes, "DEVICES", ("cuda", "cpu"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.delattr(check.Epilogue, "after")
    layer = small_layer(encoder=encoder)
    half = small_layer(encoder=encoder).half()
    half.load_state_dict(layer.state_dict())
    x = torch.randn(2, 70, 8)
    expected, state = half(x.half())
    found = []
    for _ in range(2):
        with torch.autocast("cpu", torch.float16):
            found.append(layer(x))
    for out, last in found:
        assert torch.equal(out, expected)
        assert torch.equal(last, state)
    grad_bias, grad_weight = torch.autograd.grad(out, (layer.bias, layer.input_weight), torch.ones_like(out))
    assert grad_bias.dtype == grad_weight.dtype == torch.float32
    torch.testing.assert_close(grad_bias, (out > 0).sum((0, 1)).float(), rtol=torch.finfo(torch.float16).eps, atol=0)


@pytest.mark.usefixtures("emulated")
def test_a_layer_that_takes_several_launches() -> None:
    """With an x that the copy engine cannot read answers are right too."""
    features, options = 12, {"order": 2, "theta": 3.0, "memory_size": 8}
    layers = [
        plmu.ParallelLMU(features, 8, **options, algorithm=name) for name in ("fused", "recurrent")
    ]  # fmt: skip
    layers[1].load_state_dict(layers[0].half().state_dict())
    x = torch.randn(2, 70, features).half()
    out, _ = layers[0](x)
    exact, _ = layers[1].double()(x.double())
    within(error(out, exact), 2 * ERROR + 1e-6)  # sums and u are rounded too


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("trained", ["weights", "x", "encoder's weight"])
def test_an_encoder_with_gradients_of_some_tensors(trained: str) -> None:
    """They are those that all have together; and x, where it is data, gets none."""
    layer = small_layer(encoder=True, input_activation="tanh").half()
    x = torch.randn(2, 70, 8).half()
    assert layer.encoder is not None
    some = {"weights": [*layer.parameters()], "x": [x], "encoder's weight": [layer.encoder.weight]}[trained]
    x.requires_grad_()
    out, last = layer(x)
    right = torch.autograd.grad((out, last), some, (torch.ones_like(out), torch.ones_like(last)))
    for one in (x, *layer.parameters()):
        one.requires_grad_(any(one is other for other in some))
    out, last = layer(x)
    found = torch.autograd.grad((out, last), some, (torch.ones_like(out), torch.ones_like(last)))
    assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("watching", ["its own hook", "a hook of all modules"])
def test_an_encoder_that_is_watched_is_called(watching: str) -> None:
    layer, seen = small_layer(encoder=True).half(), []

    def hook(module: torch.nn.Module, *_: object) -> None:
        seen.append(module)

    kind = torch.nn.modules.module
    watch = layer.encoder.register_forward_hook if watching == "its own hook" else kind.register_module_forward_hook
    handle = watch(hook)
    layer(torch.randn(1, 10, 8).half())
    handle.remove()
    assert layer.encoder in seen


@pytest.mark.usefixtures("emulated")
def test_nan_passes_through_a_layer_in_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does through torch's ReLU, forwards and backwards."""
    monkeypatch.delattr(check.Epilogue, "after")
    layer = small_layer().half()
    torch.nn.init.constant_(layer.bias, float("nan"))
    out, _ = layer(torch.randn(1, 10, 8).half())
    (grad_bias,) = torch.autograd.grad(out, layer.bias, torch.ones_like(out))
    assert out.isnan().all()
    assert (grad_bias == 10).all()


@pytest.mark.usefixtures("emulated")
def test_a_broken_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator is no rubber stamp: a wrong index and a lost arrival are seen."""
    kernels = gluon_emulator.kernels()
    monkeypatch.setattr(gluon_emulator.Launch, "emulated", kernels)
    monkeypatch.setattr(gluon_emulator, "PATIENCE", 0.5)
    system = plmu.DelayNetwork(2, 3.0).discretize()
    u, weight = torch.randn(1, 66, 8).half(), torch.randn(8, 2, 8).half()
    right = plmu.project(u, system, weight, algorithm="fused")[0]
    exact = plmu.project(u.double(), system, weight.double(), algorithm="recurrent")[0]
    within(error(right, exact), ERROR + 1e-6)
    real = kernels["past_of"]
    monkeypatch.setitem(kernels, "past_of", lambda *given: (real(*given)[0], real(*given)[1] + 1))
    assert error(plmu.project(u, system, weight, algorithm="fused")[0], exact) > 10 * ERROR
    monkeypatch.setitem(kernels, "past_of", real)
    kernels["mbarrier"].arrive = lambda barrier, count: None
    monkeypatch.setattr(division, "multiprocessors", lambda _: 1)  # so that buffers are used again
    with pytest.raises(RuntimeError, match="deadlock"):
        plmu.project(torch.randn(8, 300, 8).half(), system, weight, algorithm="fused")
