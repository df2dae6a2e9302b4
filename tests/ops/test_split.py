"""Float32 in parts on tensor cores, against the float64 recurrence: interpreted where there is no GPU."""

import pytest
import torch
from closeness import within
from operations import needs_kernels
from torch import Tensor

import plmu
from plmu.ops.gpu import launch, projection, tables
from plmu.ops.gpu.float32 import split
from plmu.ops.plan import known_plan

pytestmark = needs_kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EITHER = [2, pytest.param(3, marks=pytest.mark.full)]
# Two products one after the other, each with two operands and a product of small parts left out: 22 bits of each.
ROUNDED = 6 * 2.0**-22
OPTIONS = ["plain", "state", "resets", "state and resets"]
SOONER = [(3, "plain"), (2, "state and resets")]  # the others with all tests only
ALL = [
    pytest.param(*case, marks=[] if case in SOONER else pytest.mark.full)
    for case in ((parts, options) for parts in (0, 2, 3) for options in OPTIONS)
]


def results(algorithm: str, system: plmu.LinearSystem, given: list[Tensor], grad_o: Tensor, **options: object) -> list:
    """o, the final state, and the gradients of u, the weight and the state if there is one."""
    leaves = [one.clone().requires_grad_() for one in given]
    o, last = plmu.project(leaves[0], system, *leaves[1:], algorithm=algorithm, **options)
    return [o, last, *torch.autograd.grad((o, last), leaves, (grad_o.to(o), torch.ones_like(last)))]


def check(system: plmu.LinearSystem, given: list[Tensor], grad_o: Tensor, resets: Tensor | None = None) -> None:
    """The error of float32 in parts is at most twice that of plain float32 in chunks, of any result; or that of its
    parts, where plain float32 happens to be better."""
    exact = results("recurrent", system, [one.double() for one in given], grad_o, resets=resets)
    plain = results("chunked", system, given, grad_o, resets=resets)
    options = {"resets": None if resets is None else resets.to(DEVICE)}
    ours = results("fused", system, [one.to(DEVICE) for one in given], grad_o.to(DEVICE), **options)
    for value, other, right in zip(ours, plain, exact, strict=True):
        size = right.detach().norm()
        found, bound = ((one.detach().cpu().double() - right.detach()).norm() / size for one in (value, other))
        within(found, max(2 * bound, ROUNDED))


@pytest.mark.parametrize(("parts", "options"), ALL)
def test_against_the_recurrence(parts: int, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "PARTS", parts)
    if parts:
        monkeypatch.delattr(launch, "project")  # so that nothing else runs
        monkeypatch.delattr(launch, "weight_gradient")
    given = [torch.randn(2, 135, 20), torch.randn(18, 5, 20) / 10]
    if "state" in options:
        given.append(torch.randn(2, 5, 20))
    resets = torch.rand(2, 135) < 0.03 if "resets" in options else None
    check(plmu.DelayNetwork(5, 40.0).discretize(), given, torch.randn(2, 135, 18), resets)


@pytest.mark.parametrize("parts", EITHER)
def test_tiles_of_channels_and_outputs(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one tile each way, the last not full, two pieces of outputs, and a launch for each two pieces."""
    monkeypatch.setattr(split, "PARTS", parts)
    monkeypatch.setattr(split, "MOST", 1 << 20)
    monkeypatch.setattr(split, "PROJECT", split.Tile(16, 16, 2, 4, 1))
    monkeypatch.setattr(split, "WEIGHT_GRADIENT", split.Tile(16, 16, 1, 4, 1))
    given = [torch.randn(1, 70, 41), torch.randn(39, 2, 41) / 8]
    check(plmu.DelayNetwork(2, 6.0).discretize(), given, torch.randn(1, 70, 39))


@pytest.mark.parametrize("parts", EITHER)
@pytest.mark.parametrize("size", [1e-25, pytest.param(1.0, marks=pytest.mark.full), 1e25])
def test_numbers_of_any_size(parts: int, size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """All small or large, and channels, outputs and moments that differ by a factor of 10⁴."""
    monkeypatch.setattr(split, "PARTS", parts)
    u, weight, grad_o = torch.randn(1, 100, 12), torch.randn(9, 3, 12), torch.randn(1, 100, 9)
    u, grad_o = (one * 10 ** (4 * torch.rand(one.shape[-1])) for one in (u, grad_o))
    u = size * u * 10 ** (-4 * torch.rand(100, 1))
    check(plmu.DelayNetwork(3, 6.0).discretize(), [u, weight / size], grad_o)


@pytest.mark.parametrize("parts", EITHER)
@pytest.mark.parametrize("options", ["state", "resets"])
def test_channels_and_outputs_in_units_of_their_own(parts: int, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They differ by a factor of 10¹⁰, and the weight makes up for that."""
    monkeypatch.setattr(split, "PARTS", parts)
    of_channel, of_output = 10 ** torch.linspace(-5, 5, 12), 10 ** torch.linspace(5, -5, 9)
    given = [torch.randn(1, 100, 12) * of_channel, torch.randn(9, 3, 12) / of_channel / of_output[:, None, None]]
    resets = torch.rand(1, 100) < 0.03 if options == "resets" else None
    if options == "state":
        given.append(torch.randn(1, 3, 12) * of_channel)
    check(plmu.DelayNetwork(3, 6.0).discretize(), given, torch.randn(1, 100, 9) * of_output, resets)


@pytest.mark.parametrize("parts", EITHER)
def test_a_channel_that_is_zero_but_for_its_first_state(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "PARTS", parts)
    given = [torch.zeros(1, 70, 3), torch.randn(3, 2, 3), 1e4 * torch.randn(1, 2, 3)]
    check(plmu.DelayNetwork(2, 300.0).discretize(), given, torch.randn(1, 70, 3))


@pytest.mark.parametrize("sizes", [(1e-36, 1e36, 1.0), (1e36, 1e-36, 1.0), (1e-36, 1.0, 1e36), (1e17, 1e17, 1e-17)])
def test_products_of_small_and_large_numbers(sizes: tuple[float, float, float]) -> None:
    """Of u, the weight and the gradient of o: no product overflows on its way to a result that does not."""
    u, weight, grad_o = torch.randn(1, 70, 3) * sizes[0], torch.randn(3, 2, 3) * sizes[1], torch.randn(1, 70, 3)
    check(plmu.DelayNetwork(2, 6.0).discretize(), [u, weight], grad_o * sizes[2])


@pytest.mark.parametrize("parts", EITHER)
def test_groups_of_channels(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "PARTS", parts)
    layers = [
        plmu.ParallelLMU(12, 10, order=3, theta=[4.0, 9.0, 70.0], encoder=False, algorithm=algorithm)
        for algorithm in ("fused", "recurrent")
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    x = torch.randn(2, 70, 12)
    grad_o = torch.randn(2, 70, 10)
    found = []
    for layer, kind in zip(layers, (torch.float32, torch.float64), strict=True):
        layer.to(DEVICE, kind)
        given = x.to(DEVICE, kind).requires_grad_()
        o, _ = layer(given)
        found.append([o, *torch.autograd.grad(o, (given, *layer.parameters()), grad_o.to(o))])
    for value, right in zip(*found, strict=True):
        within((value.double() - right).norm() / right.norm(), 10 * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.filterwarnings("ignore:(invalid value|All-NaN slice) encountered")
def test_a_bad_number_stays_in_its_sequence(bad: float) -> None:
    """And in its chunk before it. Its channel keeps its bits in other sequences."""
    system = plmu.DelayNetwork(2, 6.0).discretize()
    u, weight = torch.randn(2, 140, 3, device=DEVICE), torch.randn(3, 2, 3, device=DEVICE)
    right = plmu.project(u.double(), system, weight.double(), algorithm="recurrent")[0]
    u[0, 70, 1] = bad
    o, _ = projection.project(u, system, weight, None)
    assert o[0, 70:].isnan().all()
    for value, exact in ((o[0, :64], right[0, :64]), (o[1], right[1])):
        within((value.double() - exact).norm() / exact.norm(), ROUNDED)
    u, grad_o = u.nan_to_num(0, 0, 0).requires_grad_(), torch.ones_like(o)
    grad_o[0, 70, 1] = bad
    o, _ = projection.project(u, system, weight.requires_grad_(), None)
    grad_u, grad_weight = torch.autograd.grad(o, (u, weight), grad_o)
    assert grad_u[0, 64:71].isnan().all()
    assert grad_u[0, 128:].isfinite().all()
    assert grad_u[1].isfinite().all()
    assert grad_weight[1].isnan().all()
    assert grad_weight[[0, 2]].isfinite().all()


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
def test_an_output_that_overflows_stays_in_its_sequence() -> None:
    system = plmu.DelayNetwork(2, 6.0).discretize()
    u, weight = torch.randn(2, 70, 3, device=DEVICE), 1e8 * torch.randn(3, 2, 3, device=DEVICE)
    u[0, 0, 1] = 1e37
    o, _ = plmu.project(u, system, weight, algorithm="fused")
    assert not o[0, :9].isfinite().any()
    assert o[1].isfinite().all()


def test_one_channel_and_one_output() -> None:
    """Sizes of 1 are constants to the compiler."""
    for channels, out in ((1, 3), (3, 1)):
        given = [torch.randn(1, 70, channels), torch.randn(out, 2, channels)]
        check(plmu.DelayNetwork(2, 6.0).discretize(), given, torch.randn(1, 70, out))


def test_constants_in_parts_add_up() -> None:
    whole = torch.randn(3, 5, dtype=torch.float64)
    for parts, scale, bits in ((2, tables.SCALE, 22), (3, 1.0, 24)):
        divided = tables.in_parts(whole, parts)
        assert torch.equal(divided, divided.to(tables.half(parts)).double())
        assert ((divided.sum(0) / scale - whole).abs() <= 2.0**-bits * whole.abs()).all()


def test_a_growing_system_is_not_divided() -> None:
    u = torch.zeros(1, 10, 2, device=DEVICE)
    assert split.parts_for(u, plmu.DelayNetwork(4, 6.0).discretize()) == split.PARTS
    assert split.parts_for(u, plmu.LinearSystem(torch.tensor([[1.5]]), torch.tensor([1.0]))) == 0
    assert split.parts_for(u.half(), plmu.DelayNetwork(4, 6.0).discretize()) == 0


def test_auto_takes_it_on_hopper_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    system = plmu.DelayNetwork(4, 6.0).discretize()
    sizes = {"batch": 64, "time": 512, "channels": 512, "out": 512, "device": "cuda"}
    for hopper, parts, algorithm in ((True, 2, "fused"), (False, 2, "chunked"), (True, 0, "chunked")):
        known_plan.cache_clear()
        monkeypatch.setattr(launch, "has_hopper", lambda _, hopper=hopper: hopper)
        monkeypatch.setattr(split, "PARTS", parts)
        assert plmu.plan("project", system=system, **sizes).algorithm == algorithm
    known_plan.cache_clear()
