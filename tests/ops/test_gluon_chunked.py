"""The kernels for Hopper GPUs, emulated on a CPU, against the float64 recurrence."""

from collections.abc import Iterator

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


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    prepared = (launch._hopper_project, launch._hopper_weight_gradient, launch._finish)
    monkeypatch.setattr(launch, "Launch", gluon_emulator.Launch)
    monkeypatch.setattr(launch, "_has_hopper", lambda _: True)
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
    x = torch.randn(batch, time, channels).half()
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
    assert layers[0].plan(batch=batch, time=time).kernel == "Hopper"

    def results(layer: plmu.ParallelLMU, x: Tensor) -> list[Tensor]:
        x = x.clone().requires_grad_()
        answer = layer(x)
        given = [one.to(value) for one, value in zip(gradients, answer, strict=True)]
        return [*answer, *torch.autograd.grad(answer, (x, *layer.parameters()), given)]

    ours, exact = results(layers[0], x), results(layers[1].double(), x.double())
    for value, right in zip(ours, exact, strict=True):
        within(error(value, right), ERROR + 1e-6)


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
