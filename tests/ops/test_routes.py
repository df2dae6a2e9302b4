"""Repeated calls of `project` take the route of the first, and answer alike; whatever else may differ is seen.

Routes are for GPUs. Here a CPU counts as one, with kernels in Triton's interpreter.
"""

from collections.abc import Iterator

import pytest
import torch
from operations import needs_kernels
from torch import Tensor

import plmu
from plmu.core import derived
from plmu.ops import check, dispatch, nonfinite, routes
from plmu.ops.gpu import projection

pytestmark = needs_kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "DEVICES", ("cuda", "cpu"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A word for each call whose arguments are checked."""
    found: list[str] = []
    real = check.problem_of

    for module in (check, dispatch):  # for public functions, and for layers
        monkeypatch.setattr(module, "problem_of", lambda *given: found.append("checked") or real(*given))
    return found


def problem(theta: float | tuple = 6.0) -> tuple[Tensor, plmu.LinearSystem, Tensor]:
    u = torch.randn(2, 9, 4, device=DEVICE, requires_grad=True)
    weight = torch.randn(3, 2, 4, device=DEVICE, requires_grad=True)
    return u, plmu.DelayNetwork(2, theta).discretize(), weight


@pytest.mark.parametrize("theta", [6.0, 300.0])
def test_a_repeated_call_is_not_checked_again_and_answers_alike(theta: float, checks: list[str]) -> None:
    u, system, weight = problem(theta)
    found = []
    for _ in range(3):
        o, last = plmu.project(u, system, weight, algorithm="fused")
        found.append([o, last, *torch.autograd.grad(o.sin().sum() + last.sin().sum(), (u, weight))])
    assert len(checks) == 1
    assert all(torch.equal(a, b) for one in found[1:] for a, b in zip(one, found[0], strict=True))
    with torch.no_grad():
        assert torch.equal(plmu.project(u, system, weight, algorithm="fused")[0], found[0][0])
    other = torch.randn_like(u)
    expected = plmu.project(other, system, weight, algorithm="chunked")[0]
    torch.testing.assert_close(
        plmu.project(other, system, weight, algorithm="fused")[0], expected, rtol=1e-4, atol=1e-4
    )


def test_a_state_is_carried_and_trained(checks: list[str]) -> None:
    u, system, weight = problem(90.0)
    state = torch.randn(2, 2, 4, device=DEVICE, requires_grad=True)

    def results(algorithm: str) -> list[Tensor]:
        o, last = plmu.project(u, system, weight, state, algorithm=algorithm)
        return [o, last, *torch.autograd.grad(o.sin().sum() + last.sin().sum(), (u, weight, state))]

    first, again = results("fused"), results("fused")
    assert len(checks) == 1
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    torch.testing.assert_close(again, results("chunked"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("theta", [6.0, 300.0])
def test_resets_are_those_of_each_call(theta: float, checks: list[str]) -> None:
    u, system, weight = problem(theta)

    def results(resets: Tensor, algorithm: str) -> list[Tensor]:
        o, last = plmu.project(u, system, weight, algorithm=algorithm, resets=resets)
        return [o, last, *torch.autograd.grad(o.sin().sum() + last.sin().sum(), (u, weight))]

    first, others = torch.rand(2, 9, device=DEVICE) < 0.3, torch.rand(2, 9, device=DEVICE) < 0.3
    results(first, "fused")
    again, found = results(first, "fused"), results(others, "fused")
    assert len(checks) == 1
    torch.testing.assert_close(again, results(first, "chunked"), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found, results(others, "chunked"), rtol=1e-4, atol=1e-4)


def test_a_layer_with_several_windows_has_a_route_too(checks: list[str]) -> None:
    layer = plmu.ParallelLMU(4, 3, order=2, theta=[6.0, 90.0], encoder=False, algorithm="fused").to(DEVICE)
    x = torch.randn(2, 9, 4, device=DEVICE)
    first, again = layer(x)[0], layer(x)[0]
    assert len(checks) == 1
    assert torch.equal(first, again)


def test_what_differs_is_checked(checks: list[str]) -> None:
    u, system, weight = problem()
    plmu.project(u, system, weight, algorithm="fused")
    for changed in (u[:1], u[:, :4], u.to(torch.float16)):
        before = len(checks)
        plmu.project(changed, system, weight.to(changed.dtype), algorithm="fused")
        assert len(checks) == before + 1
    with pytest.raises(ValueError, match="weight must have shape"):
        plmu.project(u, system, weight[:, :1], algorithm="fused")
    with pytest.raises(ValueError, match="u must have at least one time step"):
        plmu.project(u[:, :0], system, weight, algorithm="fused")
    with pytest.raises(ValueError, match="algorithm must be"):
        plmu.project(u, system, weight, algorithm="none")
    with pytest.raises(TypeError, match="system must be"):
        plmu.project(u, None, weight)
    state = torch.zeros(2, 2, 4, device=DEVICE)
    lengths, resets = [9, 3], torch.zeros(2, 9, dtype=torch.bool, device=DEVICE)
    before = len(checks)
    plmu.project(u, system, weight, state, algorithm="fused")
    plmu.project(u, system, weight, state.clone().requires_grad_(), algorithm="fused")
    assert len(checks) == before + 2
    with pytest.raises(TypeError, match=r"state must be torch\.float32"):
        plmu.project(u, system, weight, state.double(), algorithm="fused")
    before = len(checks)
    for _ in range(2):
        plmu.project(u, system, weight, algorithm="fused", lengths=lengths)
    assert len(checks) == before + 2
    plmu.project(u, system, weight, algorithm="fused", resets=resets)
    for wrong in (resets[:1], resets.int(), resets.tolist()):
        with pytest.raises((TypeError, ValueError), match="resets must"):
            plmu.project(u, system, weight, algorithm="fused", resets=wrong)


def test_bad_numbers_are_looked_for_where_that_is_asked() -> None:
    u, system, weight = problem()
    plmu.project(u, system, weight, algorithm="fused")
    bad = u.detach().clone()
    bad[0, 5] = torch.nan
    with plmu.isolate_nonfinite():
        o, _ = plmu.project(bad, system, weight, algorithm="fused")
    assert nonfinite.isolates() is False
    assert o[0, :5].isfinite().all()
    assert o[0, 5:].isnan().all()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")
def test_compiled_and_transformed_calls_have_none(checks: list[str]) -> None:
    u, system, weight = problem()

    def run(u: Tensor) -> Tensor:
        return plmu.project(u, system, weight, algorithm="fused")[0]

    expected = run(u)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(u), expected)
    with pytest.raises(ValueError, match=r"neither under torch\.func"):
        torch.func.grad(lambda u: run(u).sum())(u.detach())
    with torch.autograd.forward_ad.dual_level(), pytest.raises(ValueError, match="forward-mode"):
        run(torch.autograd.forward_ad.make_dual(u.detach(), torch.ones_like(u)))


def test_a_new_algorithm_is_considered_by_calls_that_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    u, _, weight = problem()
    before = routes.key_of(u, weight, None, None, "auto")
    assert routes.key_of(u, weight, None, None, "auto") == before
    monkeypatch.setitem(plmu.ops.ALGORITHMS, "new", plmu.ops.ALGORITHMS["chunked"])
    assert routes.key_of(u, weight, None, None, "auto") != before
    with plmu.for_graphs():
        assert routes.key_of(u, weight, None, None, "auto") not in (None, before)


def test_autocast_has_a_route_of_its_own() -> None:
    u, system, weight = problem()
    for _ in range(2):
        assert plmu.project(u, system, weight, algorithm="fused")[0].dtype == torch.float32
        with torch.autocast(DEVICE, torch.float16):
            o, last = plmu.project(u, system, weight, algorithm="fused")
        assert (o.dtype, last.dtype) == (torch.float16, torch.float32)


def test_a_route_goes_with_its_constants(checks: list[str]) -> None:
    """And keeps nothing alive that the cache has dropped."""
    u, system, weight = problem(7.0)
    plmu.project(u, system, weight, algorithm="fused")
    plmu.project(u, system, weight, algorithm="fused")
    assert len(checks) == 1
    before = plmu.set_cache_limit(0)
    try:
        plmu.project(u, system, weight, algorithm="chunked")  # its constants take the others' place
        assert system._cache is not None
        assert not system._cache._routes
    finally:
        plmu.set_cache_limit(before)
    expected = plmu.project(u, system, weight, algorithm="chunked")[0]
    torch.testing.assert_close(plmu.project(u, system, weight, algorithm="fused")[0], expected, rtol=1e-4, atol=1e-4)


def test_constants_that_routes_use_are_not_the_oldest() -> None:
    u, system, weight = problem(8.0)
    plmu.project(u, system, weight, algorithm="fused")
    assert system._cache is not None
    used = {id(one) for route in system._cache._routes.values() for one in route.uses}
    other = plmu.DelayNetwork(5, 9.0).discretize()
    kept = other.derive(projection.all_powers, 3, dtype=torch.float32, device=torch.device("cpu"))
    plmu.project(u, system, weight, algorithm="fused")
    assert other._cache is not None
    (later,) = (when for when, _, value in other._cache.entries() if value is kept)
    assert all(when > later for when, _, value in system._cache.entries() if id(value) in used)
    assert len(system._cache._routes) < derived.MOST_ROUTES
