"""The gradient of u with several windows, by a kernel of its own for Hopper GPUs: emulated where there is no GPU."""

from collections.abc import Iterator
from typing import Any

import gluon_emulator
import pytest
import torch
from closeness import within
from operations import needs_kernels
from torch import Tensor

import plmu
from plmu.ops.gpu import division, hopper_launch, launch, projection
from plmu.ops.gpu.division import Sizes
from plmu.ops.gpu.tables import by_order
from plmu.ops.groups import SystemGroups

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
pytestmark = [
    needs_kernels,
    pytest.mark.skipif(DEVICE.type == "cuda" and not launch.has_hopper(DEVICE), reason="no Hopper GPU"),
]
HALF = (torch.bfloat16, torch.float16)
SHAPES = {
    # batch, time, channels, out, order, windows
    "groups that end within a tile": (3, 200, 104, 72, 4, [4.0, 256.0]),
    "groups of few channels, order 1": (2, 130, 24, 8, 1, [4.0, 30.0, 90.0]),
    "groups of more than a tile": (1, 300, 144, 136, 8, [3.0, 200.0]),
    "responses that fade within a chunk": (1, 129, 144, 136, 3, [3.0, 4.0]),
    "many outputs": (2, 65, 136, 264, 2, [20.0, 256.0]),
    "a high order": (1, 260, 16, 16, 16, [100.0, 256.0]),
    "one step": (1, 1, 16, 24, 2, [4.0, 9.0]),
}


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(hopper_launch, "LEAST_BUSY", (0.0, 0.0))
    hopper_launch.input_gradient.cache_clear()
    yield from gluon_emulator.in_place(monkeypatch) if DEVICE.type == "cpu" else [None]
    hopper_launch.input_gradient.cache_clear()


def plain(grad_o: Tensor, weight: Tensor, systems: SystemGroups) -> Tensor:
    """What the kernel makes: of each order the product, and then the filter, of all steps at once."""
    found = []
    for part, system in zip(weight.chunk(len(systems.systems), dim=2), systems.systems, strict=True):
        grad_m = torch.einsum("bto,oic->btic", grad_o, part)
        found.append(torch.einsum("its,btic->bsc", by_order(system, grad_o.shape[1]).to(grad_o), grad_m))
    return torch.cat(found, dim=2)


def relative_error(value: Tensor, exact: Tensor) -> float:
    return ((value.double() - exact).norm() / exact.norm()).item()


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("direct", [False, True], ids=["", "with W_x"])
@pytest.mark.parametrize("name", SHAPES)
def test_against_float64(name: str, direct: bool, dtype: torch.dtype) -> None:
    batch, time, channels, out, order, windows = SHAPES[name]
    systems = SystemGroups([plmu.DelayNetwork(order, theta).discretize() for theta in windows])
    shapes = (batch, time, out), (out, channels), (out, order, channels)
    grad_o, input_weight, weight = (torch.randn(*shape, device=DEVICE).to(dtype) for shape in shapes)
    given = projection.constants_for(grad_o.new_empty(batch, time, channels), systems, None)
    toeplitz, _, _, taps, advance, _, _, _, from_state = given.tables
    sizes = Sizes(grad_o.device, dtype, batch, time, out, channels, order, 16, len(windows), False, False, True)
    ready = hopper_launch.input_gradient(sizes, direct)
    if direct and out <= 64:  # too few turns for a ring of buffers
        assert ready is None
        return
    assert ready is not None
    found = ready(grad_o, weight, toeplitz, from_state, taps, advance, input_weight if direct else None)
    if DEVICE.type == "cuda":
        again = ready(grad_o, weight, toeplitz, from_state, taps, advance, input_weight if direct else None)
        assert torch.equal(found, again), "not bit for bit"
    exact = plain(grad_o.double(), weight.double(), systems)
    if direct:
        exact += grad_o.double() @ input_weight.double()
    # Constants, each product and the result are rounded once.
    within(relative_error(found, exact), 3 * torch.finfo(dtype).eps / 2 + 1e-6)


@pytest.mark.usefixtures("emulated")
def test_a_state_in_float16_may_exceed_its_range() -> None:
    """λ grows with the window; it is not rounded to the operands' precision."""
    system = plmu.LinearSystem(torch.tensor([[1.0]]), torch.tensor([2.0**-12]))  # a sum of all inputs
    systems = SystemGroups([system, system])
    grad_o, weight = torch.full((1, 300, 8), 64.0).half().to(DEVICE), torch.full((8, 1, 16), 1.0).half().to(DEVICE)
    tables = projection.constants_for(grad_o.new_empty(1, 300, 16), systems, None).tables
    ready = hopper_launch.input_gradient(
        Sizes(grad_o.device, torch.float16, 1, 300, 8, 16, 1, 16, 2, False, False, True)
    )
    assert ready is not None
    found = ready(grad_o, weight, tables.toeplitz, tables.from_state, tables.taps, tables.advance)
    exact = plain(grad_o.double(), weight.double(), systems)
    assert torch.finfo(torch.float16).max < (300 - 64) * 8 * 64
    within(relative_error(found, exact), 3 * torch.finfo(torch.float16).eps / 2 + 1e-6)


def used(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A note of each launch."""
    found: list[Any] = []
    real = hopper_launch.InputGradient.__call__

    def noted(*given: Any) -> Tensor:
        found.append(given)
        return real(*given)

    monkeypatch.setattr(hopper_launch.InputGradient, "__call__", noted)
    return found


KINDS = ["W_m", "with W_x of what enters the memory", "with W_x of x", "in several launches"]


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("kind", "compiled", "windows"),
    [(kind, False, [4.0, 90.0]) for kind in KINDS]
    + [(kind, True, windows) for kind in (KINDS[0], KINDS[3]) for windows in ([3.0, 4.0], [4.0, 90.0])],
)
def test_layers_with_several_windows_use_it(
    kind: str, compiled: bool, windows: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all windows fade within a chunk, tables of the past and of the state differ."""
    launches = used(monkeypatch)
    features = 12 if kind == "in several launches" else 72
    options: dict[str, Any] = {"encoder": "W_x of x" in kind or "several" in kind, "input_to_output": "W_x" in kind}
    sizes: dict[str, Any] = {"order": 2, "theta": windows, "memory_size": 72, "output_activation": None}
    layers = [plmu.ParallelLMU(features, 72, **sizes, **options, algorithm=name) for name in ("fused", "recurrent")]
    layers[1].load_state_dict(layers[0].half().state_dict())
    x, grad_o = (torch.randn(3, 140, one, device=DEVICE).half() for one in (features, 72))
    layers[0].to(DEVICE), layers[1].to(DEVICE)

    def gradient(layer: plmu.ParallelLMU, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        out = layer(x)[0]
        return torch.autograd.grad(out, x, grad_o.to(out))[0]

    torch.compiler.reset()
    found = gradient(torch.compile(layers[0], backend="aot_eager") if compiled else layers[0], x)
    assert len(launches) == 1
    exact = gradient(layers[1].double(), x.double())
    # Behind an encoder also u, its gradient, and the sum of both gradients of x.
    within(relative_error(found, exact), (3 + 3 * options["encoder"]) * torch.finfo(torch.float16).eps / 2 + 1e-6)


@pytest.mark.parametrize(
    ("changed", "fits"),
    [
        ({}, True),
        ({"groups": 1}, False),
        ({"segmented": True}, False),
        ({"order": 17}, False),
        ({"inputs": 576}, True),
        ({"inputs": 584}, False),
        ({"batch": 8}, False),
        ({"batch": 70}, True),
        ({"batch": 28}, False),
        ({"batch": 40, "outputs": 512}, False),
    ],
)
def test_where_it_is_used(changed: dict[str, Any], fits: bool) -> None:
    """Not where its memory would not fit, nor where much of a GPU would be idle, in any round."""
    usual = Sizes(torch.device("cpu"), torch.float16, 64, 512, 208, 208, 4, 16, 4, False, False, True)
    assert division.multiprocessors(usual.device) == 132
    assert (hopper_launch.input_gradient(usual._replace(**changed)) is not None) == fits
