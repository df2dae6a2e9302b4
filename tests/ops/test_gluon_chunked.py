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
from plmu.ops.gpu import launch

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
# Whole layers: features of x, channels, outputs, order, windows, whether there are resets, and options.
LAYERS = {
    "bias and ReLU": (72, 72, 264, 2, [4.0], False, {"encoder": False, "input_to_output": False}),
    "ReLU": (24, 24, 16, 1, [4.0], False, {"encoder": False, "input_to_output": False, "bias": False}),
    "W_x of what enters the memory": (264, 264, 264, 1, [90.0], False, {"encoder": False}),
    "W_x of the encoder's input": (72, 24, 16, 3, [4.0], False, {}),
    "W_x and bias, then tanh": (24, 24, 16, 2, [300.0], False, {"encoder": False, "output_activation": "tanh"}),
    "windows": (24, 24, 16, 1, [3.0, 2.0, 4.0], False, {"encoder": False}),
    "resets": (24, 72, 16, 2, [4.0], True, {}),
    "resets and windows": (72, 72, 8, 1, [2.0, 90.0], True, {"encoder": False}),
}
HALVED = ("bias and ReLU", "W_x of what enters the memory")  # layers that are also tried with tiles in two halves


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    prepared = (launch._hopper_project, launch._hopper_weight_gradient, launch._finish, launch._through_output)
    monkeypatch.setattr(launch, "Launch", gluon_emulator.Launch)
    monkeypatch.setattr(launch, "has_hopper", lambda _: True)
    for one in prepared:
        one.cache_clear()
    yield
    for one in prepared:
        one.cache_clear()


def error(value: Tensor, exact: Tensor) -> float:
    return ((value.detach().double() - exact.detach()).norm() / exact.detach().norm()).item()


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("programs", [2, 132], ids=["several tiles a program", "one tile, or half of one"])
@pytest.mark.parametrize("name", SHAPES)
def test_against_the_recurrence(name: str, programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_multiprocessors", lambda _: programs)
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
    monkeypatch.setattr(launch, "_multiprocessors", lambda _: 3)
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
        (of_u,) = torch.autograd.grad(o, inputs, torch.ones_like(o))
        turned = plmu.project(inputs, system, weight.to(dtype), algorithm=algorithm, resets=resets.flip(1))[0]
        (of_turned,) = torch.autograd.grad(turned, inputs, torch.ones_like(o))
        return [o[:, at:], last, of_u[:, at:], of_turned[:, : 255 - at]]

    for value, right in zip(results("fused", torch.float16), results("recurrent", torch.float64), strict=True):
        within(error(value, right), ERROR + 1e-6)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("name", "programs"), [*((name, 2) for name in LAYERS), *((name, 132) for name in HALVED)])
def test_layers_in_one_launch(name: str, programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and gradients beside those of the recurrence. These have their zeros where ours do: near zero, which side
    of it a sum falls on is a matter of rounding."""
    monkeypatch.setattr(launch, "_multiprocessors", lambda _: programs)
    features, channels, out, order, windows, stopped, options = LAYERS[name]
    sizes: dict[str, Any] = {"order": order, "theta": windows if len(windows) > 1 else windows[0]}
    layer = plmu.ParallelLMU(features, out, memory_size=channels, **sizes, **options, algorithm="fused")
    torch.nn.init.normal_(layer.memory_weight, std=(order * channels) ** -0.5)
    if layer.bias is not None:
        torch.nn.init.normal_(layer.bias)
    layer.half()
    x = torch.randn(3, 70, features).half()
    resets = torch.rand(3, 70) < 0.05 if stopped else None
    gradients = (torch.randn(3, 70, out).half(), torch.randn(3, order, channels))

    def results(one: plmu.ParallelLMU, x: Tensor) -> list[Tensor]:
        x = x.clone().requires_grad_()
        answer = one(x, resets=resets)
        of_answer = [given.to(value) for given, value in zip(gradients, answer, strict=True)]
        return [*answer, *torch.autograd.grad(answer, (x, *one.parameters()), of_answer)]

    with monkeypatch.context() as alone:
        alone.delattr(plmu.ParallelLMU, "_from_input")  # so that nothing is added by itself
        ours = results(layer, x)
        assert all(torch.equal(a, b) for a, b in zip(ours, results(layer, x), strict=True)), "bit for bit"
        with torch.no_grad():
            assert torch.equal(layer(x, resets=resets)[0], ours[0])
    exact = plmu.ParallelLMU(features, out, memory_size=channels, **sizes, **options, algorithm="recurrent").double()
    exact.load_state_dict(layer.state_dict())
    encoded = 0 if layer.encoder is None else 3  # roundings more: u, its gradient, and the sum of both gradients of x
    bound = ERROR + encoded * torch.finfo(torch.float16).eps / 2 + 1e-6
    within(error(ours[0], exact(x.double(), resets=resets)[0]), bound)
    if layer.f2 is torch.relu:
        exact.f2 = lambda total: torch.where(ours[0] > 0, total, 0.0)
    for value, right in zip(ours, results(exact, x.double()), strict=True):
        within(error(value, right), bound)


@pytest.mark.usefixtures("emulated")
def test_nan_passes_through_a_layer_in_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does through torch's ReLU, forwards and backwards."""
    monkeypatch.delattr(plmu.ParallelLMU, "_from_input")
    layer = plmu.ParallelLMU(8, 8, order=2, theta=3.0, encoder=False, algorithm="fused").half()
    torch.nn.init.constant_(layer.bias, float("nan"))
    out, _ = layer(torch.randn(1, 10, 8).half())
    (of_bias,) = torch.autograd.grad(out, layer.bias, torch.ones_like(out))
    assert out.isnan().all()
    assert (of_bias == 10).all()


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
    real = kernels["_past_of"]
    monkeypatch.setitem(kernels, "_past_of", lambda *given: (real(*given)[0], real(*given)[1] + 1))
    assert error(plmu.project(u, system, weight, algorithm="fused")[0], exact) > 10 * ERROR
    monkeypatch.setitem(kernels, "_past_of", real)
    kernels["mbarrier"].arrive = lambda barrier, count: None
    monkeypatch.setattr(launch, "_multiprocessors", lambda _: 1)  # so that buffers are used again
    with pytest.raises(RuntimeError, match="deadlock"):
        plmu.project(torch.randn(8, 300, 8).half(), system, weight, algorithm="fused")
