"""The float32 kernels for Hopper GPUs against the float64 recurrence: on such a GPU, or emulated on a CPU."""

from collections.abc import Iterator

import gluon_emulator
import pytest
import torch
from operations import needs_kernels
from test_split import DEVICE, check

import plmu
from plmu.ops.gpu import division, launch
from plmu.ops.gpu.float32 import split, split_hopper

pytestmark = needs_kernels
SHAPES = {
    # batch, time, channels, out, order, window, whether there is a first state
    "a chunk without a partner": (3, 70, 24, 16, 3, 4.0, False),
    "several tiles of channels and outputs": (1, 130, 136, 264, 2, 40.0, True),
    "tables that do not stay": (2, 66, 72, 8, 5, 9.0, True),
    "rows of the state": (1, 65, 8, 72, 17, 30.0, False),
}


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    prepared = (split_hopper._project, split_hopper._weight_gradient)
    if DEVICE == "cpu":
        monkeypatch.setattr(split_hopper, "Launch", gluon_emulator.Launch)
        monkeypatch.setattr(launch, "has_hopper", lambda _: True)
    elif not launch.has_hopper(torch.device(DEVICE)):
        pytest.skip("needs a Hopper GPU")
    for name in ("_project", "_weight_gradient"):  # so that nothing else runs
        monkeypatch.delattr(split, name)
    for one in prepared:
        one.cache_clear()
    yield
    for one in prepared:
        one.cache_clear()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("programs", [3, 132], ids=["several tiles a program", "one tile a program"])
@pytest.mark.parametrize("name", SHAPES)
def test_against_the_recurrence(name: str, programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(division, "multiprocessors", lambda _: programs)
    batch, time, channels, out, order, window, started = SHAPES[name]
    given = [torch.randn(batch, time, channels), torch.randn(out, order, channels) / (order * channels) ** 0.5]
    if started:
        given.append(torch.randn(batch, order, channels))
    check(plmu.DelayNetwork(order, window).discretize(), given, torch.randn(batch, time, out))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("order", [2, 5], ids=["tables that stay", "tables that do not stay"])
def test_resets_against_the_recurrence(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences without any, with some where chunks meet, with several in a chunk, and with some anywhere."""
    monkeypatch.setattr(division, "multiprocessors", lambda _: 3)
    resets = torch.zeros(4, 150, dtype=torch.bool)
    resets[1, [0, 63, 64, 128]] = True
    resets[2, [5, 6, 40, 62, 149]] = True
    resets[3] = torch.rand(150) < 0.03
    given = [torch.randn(4, 150, 24), torch.randn(16, order, 24) / 8, torch.randn(4, order, 24)]
    check(plmu.DelayNetwork(order, 90.0).discretize(), given, torch.randn(4, 150, 16), resets)


@pytest.mark.usefixtures("kernels")
def test_nan_ends_at_a_reset() -> None:
    """Forwards; and backwards, where it may spread within its chunk."""
    system = plmu.DelayNetwork(2, 6.0).discretize()
    u, weight = torch.randn(1, 200, 8, device=DEVICE), torch.randn(8, 2, 8, device=DEVICE)
    resets = torch.zeros(1, 200, dtype=torch.bool, device=DEVICE)
    resets[:, [70, 135]] = True
    u[:, 20] = torch.nan
    o = plmu.project(u, system, weight, algorithm="fused", resets=resets)[0]
    assert o[:, 20:70].isnan().all()
    assert o[:, 70:].isfinite().all()
    u.nan_to_num_().requires_grad_()
    o = plmu.project(u, system, weight, algorithm="fused", resets=resets)[0]
    grad_o = torch.randn_like(o)
    grad_o[:, 180] = torch.nan
    (grad_u,) = torch.autograd.grad(o, u, grad_o)
    assert grad_u[:, 135:181].isnan().any()
    assert grad_u[:, :128].isfinite().all()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_numbers_of_any_size(size: float) -> None:
    """All small or large, and channels, outputs and moments that differ by a factor of 10⁴."""
    u, weight, grad_o = torch.randn(1, 100, 16), torch.randn(8, 3, 16), torch.randn(1, 100, 8)
    u, grad_o = (one * 10 ** (4 * torch.rand(one.shape[-1])) for one in (u, grad_o))
    u = size * u * 10 ** (-4 * torch.rand(100, 1))
    check(plmu.DelayNetwork(3, 6.0).discretize(), [u, weight / size], grad_o)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("options", ["state", "resets"])
def test_channels_and_outputs_in_units_of_their_own(options: str) -> None:
    """They differ by a factor of 10¹⁰, and the weight makes up for that."""
    of_channel, of_output = 10 ** torch.linspace(-5, 5, 16), 10 ** torch.linspace(5, -5, 8)
    given = [torch.randn(1, 100, 16) * of_channel, torch.randn(8, 3, 16) / of_channel / of_output[:, None, None]]
    resets = torch.rand(1, 100) < 0.03 if options == "resets" else None
    if options == "state":
        given.append(torch.randn(1, 3, 16) * of_channel)
    check(plmu.DelayNetwork(3, 6.0).discretize(), given, torch.randn(1, 100, 8) * of_output, resets)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("sizes", [(1e-36, 1e36, 1.0), (1e36, 1e-36, 1.0), (1e-36, 1.0, 1e36), (1e17, 1e17, 1e-17)])
def test_products_of_small_and_large_numbers(sizes: tuple[float, float, float]) -> None:
    u, weight, grad_o = torch.randn(1, 70, 8) * sizes[0], torch.randn(8, 2, 8) * sizes[1], torch.randn(1, 70, 8)
    check(plmu.DelayNetwork(2, 6.0).discretize(), [u, weight], grad_o * sizes[2])


@pytest.mark.usefixtures("kernels")
def test_a_launch_for_some_outputs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "MOST", 1 << 20)
    given = [torch.randn(1, 70, 264), torch.randn(200, 2, 264) / 16]
    check(plmu.DelayNetwork(2, 6.0).discretize(), given, torch.randn(1, 70, 200))


@pytest.mark.parametrize("steps", [1, 63, 64, 128, 150])
@pytest.mark.parametrize("order", [1, torch.inf])
def test_norms_over_steps(steps: int, order: float) -> None:
    values = torch.randn(2, steps, 3)
    torch.testing.assert_close(
        split_hopper.norm_over_steps(values, order), torch.linalg.vector_norm(values, order, (0, 1))
    )
    values[1, steps // 2, 1] = torch.nan
    assert split_hopper.norm_over_steps(values, order).isnan().tolist() == [False, True, False]


@pytest.mark.skipif(DEVICE == "cuda", reason="without a GPU anything may be said to be one")
def test_what_it_leaves_to_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that the copy engine cannot read, of which answers are right too, and groups of channels."""
    monkeypatch.setattr(launch, "has_hopper", lambda _: True)
    monkeypatch.delattr(split_hopper, "project")
    monkeypatch.delattr(split_hopper, "weight_gradient")
    system = plmu.DelayNetwork(2, 6.0).discretize()
    check(system, [torch.randn(1, 70, 12), torch.randn(8, 2, 12)], torch.randn(1, 70, 8))
    assert not split_hopper.fits(torch.zeros(1, 70, 16), torch.zeros(8, 2, 16), 2)


@pytest.mark.usefixtures("kernels")
@pytest.mark.skipif(DEVICE == "cuda", reason="of the emulator")
def test_a_broken_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator is no rubber stamp: parts that are left out and a lost arrival are seen."""
    kernels = gluon_emulator.kernels("float32/gluon_split.py")
    both = gluon_emulator.kernels("float32/gluon_split_weight.py") | kernels
    monkeypatch.setattr(gluon_emulator.Launch, "emulated", both)
    monkeypatch.setattr(gluon_emulator, "PATIENCE", 0.5)
    given, grad_o = [torch.randn(1, 200, 8), torch.randn(8, 2, 8)], torch.randn(1, 200, 8)
    system = plmu.DelayNetwork(2, 6.0).discretize()
    check(system, given, grad_o)
    real = kernels["halves"]
    monkeypatch.setitem(kernels, "halves", lambda value: (real(value)[0], 0 * real(value)[1]))
    with pytest.raises(AssertionError):
        check(system, given, grad_o)
    monkeypatch.setitem(kernels, "halves", real)
    kernels["mbarrier"].arrive = lambda barrier, count: None
    monkeypatch.setattr(division, "multiprocessors", lambda _: 1)  # so that buffers are used again
    with pytest.raises(RuntimeError, match="deadlock"):
        check(system, given, grad_o)
