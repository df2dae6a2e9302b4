"""Our own kernels for `project` and `states`, against the float64 recurrence: interpreted where there is no GPU."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from closeness import within
from operations import needs_kernels
from pairwise import pairwise
from torch import Tensor

import plmu
from plmu.ops import Option, fused
from plmu.ops.gpu import all_states, division, launch, projection, tables, triton_launch
from plmu.ops.plan import known_plan

pytestmark = needs_kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Relative error against float64. In half precision the constants, the states between chunks, every tile of m and the
# result are rounded once, each by at most eps / 2; sums are float32. To it comes twice the error of the plain method in
# float32, which grows with the number of terms.
ERROR = {torch.float32: 1e-6, torch.float16: 4 * torch.finfo(torch.float16).eps / 2}
if DEVICE == "cuda":  # the interpreter has no bfloat16
    ERROR[torch.bfloat16] = 4 * torch.finfo(torch.bfloat16).eps / 2

SHAPES = {
    # batch, time, channels, out, order, theta
    "three chunks": (2, 150, 20, 12, 4, 6.0),
    "one chunk, a few steps": (2, 5, 3, 7, 16, 15.0),
    "two tiles of outputs and of channels": (1, 70, 130, 70, 3, 10.0),
    "a long memory over groups of chunks": (1, 200, 9, 5, 20, 300.0),
}
ONCE = {  # with all options alone
    "four groups": (2, 400, 2, 3, 2, 500.0),
    "small tiles": (1, 70, 40, 4, 33, 100.0),
}
OPTIONS = ["plain", "final state used", "state and lengths", "resets", "state, lengths and resets"]
if DEVICE == "cuda":  # sizes that the kernels for Hopper take
    SHAPES |= {
        "an odd number of chunks": (3, 150, 24, 16, 4, 6.0),
        "tiles that are not full": (1, 70, 136, 264, 3, 10.0),
        "whole tiles": (2, 192, 128, 512, 16, 15.0),
        "order 1": (2, 100, 64, 64, 1, 30.0),
        "a large order": (2, 300, 72, 80, 40, 300.0),
        "states in padded rows": (2, 2500, 64, 128, 20, 3000.0),
        "a last round of halves": (9, 2000, 72, 16, 4, 6.0),
    }
FACTORS = {"options": OPTIONS, "name": list(SHAPES), "dtype": list(ERROR)}
SOONER = {tuple(case.values()) for case in pairwise(FACTORS)}
SOONER |= {(OPTIONS[-1], name, dtype) for name, dtype in zip(ONCE, ERROR, strict=False)}
CASES = [
    pytest.param(*case, marks=[] if DEVICE == "cuda" or case in SOONER else pytest.mark.full)
    for case in [*itertools.product(*FACTORS.values()), *itertools.product(OPTIONS[-1:], ONCE, ERROR)]
]


def error(value: Tensor, exact: Tensor) -> float:
    return ((value.detach().cpu().double() - exact.detach()).norm() / exact.detach().norm()).item()


@pytest.mark.parametrize(("options", "name", "dtype"), CASES, ids=str)
def test_against_the_recurrence(options: str, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SECOND_LAUNCH", -99)  # so that states are carried in groups
    if name == "small tiles":  # as on GPUs with less shared memory
        monkeypatch.setattr(division, "has_large_memory", lambda _: False)
    batch, time, channels, out, order, theta = {**SHAPES, **ONCE}[name]
    system = plmu.DelayNetwork(order, theta).discretize()
    u = torch.randn(batch, time, channels).to(dtype)
    weight = (torch.randn(out, order, channels) / (order * channels) ** 0.5).to(dtype)
    state = torch.randn(batch, order, channels) if "state" in options else None
    lengths = [max(1, (time - 1) >> i) for i in range(batch)] if "lengths" in options else None
    resets = None
    if "resets" in options:  # some anywhere, the first sequence's where chunks and groups meet, a quiet one between
        resets = torch.rand(batch, time) < 2 / time
        resets[0, [step for step in (0, 63, 128, 320) if step < time]] = True
        resets[0, 129:320] = False
        resets[-1, : time // 2] = False
    grad_m = torch.randn(batch, time, order, channels).to(dtype)
    grad_o, grad_last = torch.randn(batch, time, out).to(dtype), torch.randn(batch, order, channels)

    def gradients(values: tuple[Tensor, ...], leaves: list[Tensor], given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        used = 1 if options == "plain" else 2
        given = tuple(one.to(value) for one, value in zip(given, values, strict=True))
        return torch.autograd.grad(values[:used], leaves, given[:used])

    def results(algorithm: str, *given: Tensor | None) -> list[Tensor]:
        leaves = [one.clone().requires_grad_() for one in given if one is not None]
        marks = None if resets is None else resets.to(leaves[0].device)
        o, last = plmu.project(leaves[0], system, *leaves[1:], lengths=lengths, algorithm=algorithm, resets=marks)
        found = [o, last, *gradients((o, last), leaves, (grad_o, grad_last))]
        del leaves[1]
        m, same = plmu.states(leaves[0], system, *leaves[1:], lengths=lengths, algorithm=algorithm, resets=marks)
        return [*found, m, same, *gradients((m, same), leaves, (grad_m, grad_last))]

    exact = results("recurrent", *(None if one is None else one.double() for one in (u, weight, state)))
    ours = results("fused", *(None if one is None else one.to(DEVICE) for one in (u, weight, state)))
    plain = results("recurrent", *(None if one is None else one.float() for one in (u, weight, state)))
    for value, right, float32 in zip(ours, exact, plain, strict=True):
        within(error(value, right), ERROR[dtype] + 2 * error(float32, right))
    within(error(ours[1], exact[1]), ERROR[torch.float32] + 2 * error(plain[1], exact[1]))  # carried in float32


def problem() -> tuple[Tensor, plmu.LinearSystem, Tensor]:
    u = torch.randn(2, 70, 5, device=DEVICE, requires_grad=True)
    weight = torch.randn(3, 4, 5, device=DEVICE, requires_grad=True)
    return u, plmu.DelayNetwork(4, 6.0).discretize(), weight


def test_repeats_bit_for_bit() -> None:
    u, system, weight = problem()
    first, again = (
        torch.autograd.grad(plmu.project(u, system, weight, algorithm="fused")[0].sin().sum(), (u, weight))
        for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.skipif(DEVICE != "cuda", reason="Gluon has no interpreter")
@pytest.mark.parametrize("every", [None, 20, 500], ids=["", "many resets", "few resets"])
@pytest.mark.parametrize("theta", [6.0, 300.0], ids=["inputs before chunks", "states before chunks"])
def test_the_kernels_for_hopper_agree_with_their_twins_and_repeat(
    theta: float, every: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = plmu.DelayNetwork(4, theta).discretize()
    u = torch.randn(67, 200, 192, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(320, 4, 192, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    resets = None if every is None else torch.rand(67, 200, device=DEVICE) < 1 / every

    def results() -> tuple[Tensor, ...]:
        o = plmu.project(u, system, weight, algorithm="fused", resets=resets)[0]
        return (o, *torch.autograd.grad(o, (u, weight), o.detach().sin()))

    ours, again = results(), results()
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))
    if not launch.for_hopper(u, weight):
        pytest.skip("not a Hopper GPU")
    monkeypatch.setattr(launch, "has_hopper", lambda _: False)
    for value, twin in zip(ours, results(), strict=True):
        within(error(value, twin.cpu().double()), 2.0**-9)  # sums in another order, rounded once


def test_only_what_is_needed_is_computed() -> None:
    u, system, weight = problem()
    both = torch.autograd.grad(plmu.project(u, system, weight, algorithm="fused")[0].sum(), (u, weight))
    (grad_u,) = torch.autograd.grad(plmu.project(u, system, weight.detach(), algorithm="fused")[0].sum(), u)
    (grad_weight,) = torch.autograd.grad(plmu.project(u.detach(), system, weight, algorithm="fused")[0].sum(), weight)
    assert torch.equal(grad_u, both[0])
    assert torch.equal(grad_weight, both[1])


def test_gradients_of_the_state_and_the_weight_alone() -> None:
    u, system, weight = problem()
    state = torch.randn(2, 4, 5, device=DEVICE, requires_grad=True)

    def gradients(algorithm: str, u: Tensor, weight: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        weight, state = weight.detach().requires_grad_(), state.detach().requires_grad_()
        o, last = plmu.project(u.detach(), system, weight, state, algorithm=algorithm)
        both = torch.autograd.grad(o.sin().sum() + last.sin().sum(), (weight, state))
        _, last = plmu.project(u.detach(), system, weight.detach(), state, algorithm=algorithm)
        return *both, *torch.autograd.grad(last.sin().sum(), state)

    exact = [value.cpu() for value in gradients("recurrent", u.double(), weight.double(), state.double())]
    plain = gradients("recurrent", u, weight, state)
    for value, right, float32 in zip(gradients("fused", u, weight, state), exact, plain, strict=True):
        within(error(value, right), ERROR[torch.float32] + 2 * error(float32, right))


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_a_growing_system_has_finite_gradients() -> None:
    system = plmu.LinearSystem([[1.5]], [1.0])
    u = torch.randn(2, 700, 3, device=DEVICE, requires_grad=True)
    weight = torch.randn(2, 1, 3, device=DEVICE, requires_grad=True)
    m = plmu.states(u, system, lengths=[10, 20], algorithm="fused")[0]
    (grad_u,) = torch.autograd.grad(m.sum(), u)
    assert grad_u.isfinite().all()
    by_name = []
    for algorithm in ("fused", "recurrent"):
        o, last = plmu.project(u, system, weight, lengths=[10, 20], algorithm=algorithm)
        by_name.append([o, last, *torch.autograd.grad(o.sum() + last.sum(), (u, weight))])
    torch.testing.assert_close(by_name[0], by_name[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("time", "launches"), [(64, 1), (400, 2)])
def test_states_are_carried_in_one_launch_or_two(time: int, launches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SECOND_LAUNCH", -99)
    real, grids = triton_launch.kernels(), []

    class Counted:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            grids.append(grid)
            return real.carry[grid]

        def __getattr__(self, name: str) -> Any:
            return getattr(real.carry, name)

    monkeypatch.setattr(triton_launch, "kernels", lambda: SimpleNamespace(**vars(real) | {"carry": Counted()}))
    u = torch.randn(2, time, 3, device=DEVICE)
    plmu.project(u, plmu.DelayNetwork(4, 500.0).discretize(), torch.randn(2, 4, 3, device=DEVICE), algorithm="fused")
    assert len(grids) == launches


def test_chunks_are_divided_only_where_sequences_and_channels_do_not_fill_a_gpu() -> None:
    for batch, channels in ((16, 512), (512, 256)):
        assert tables.grouping(batch, 2048, channels)[0] == 32, "all chunks of a sequence"
    assert tables.grouping(1, 1000, 64)[0] == 16, "too few to be worth a second launch"
    size, cost = tables.grouping(1, 1 << 20, 64)
    assert 64 <= size <= 256
    assert cost < 16384 / 20, "of passing all in a row"
    for time in (1, 64, 65, 5000):
        size, _ = tables.grouping(2, time, 3)
        assert 1 <= size <= -(-time // 64)


def test_no_sequences() -> None:
    _, system, weight = problem()
    u = torch.zeros(0, 70, 5, device=DEVICE, requires_grad=True)
    o, last = plmu.project(u, system, weight, algorithm="fused")
    grad_u, grad_weight = torch.autograd.grad(o.sum() + last.sum(), (u, weight))
    assert o.shape == (0, 70, 3)
    assert grad_u.shape == u.shape
    assert not grad_weight.any()


def test_transformations_are_refused_by_name_and_avoided_by_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    u, system, weight = problem()

    def loss(u: Tensor, algorithm: str) -> Tensor:
        return plmu.project(u, system, weight.detach(), algorithm=algorithm)[0].sin().sum()

    with pytest.raises(ValueError, match=r"neither under torch\.func nor with forward-mode"):
        torch.func.grad(loss)(u.detach(), "fused")
    monkeypatch.setattr(launch, "has_hopper", lambda _: True)
    monkeypatch.setattr(fused.ALGORITHM, "options", lambda case: [Option("fused", 0.0, tables.CHUNK)])
    known_plan.cache_clear()
    asked = {"batch": 2, "time": 70, "channels": 5, "out": 3, "system": system, "device": DEVICE}
    assert plmu.plan("project", **asked).algorithm == "fused"
    (expected,) = torch.autograd.grad(loss(u, "chunked"), u)
    torch.testing.assert_close(torch.func.grad(loss)(u.detach(), "auto"), expected)
    known_plan.cache_clear()


@pytest.mark.parametrize("dtype", [one for one in ERROR if one != torch.float32], ids=str)
def test_the_final_state_of_a_very_long_memory(dtype: torch.dtype) -> None:
    system = plmu.DelayNetwork(1, 1e5).discretize()
    u = torch.ones(1, 300, 2, dtype=dtype)
    exact = plmu.final_state(u.double(), system)
    weight = torch.ones(1, 1, 2, dtype=dtype, device=DEVICE)
    within(error(plmu.project(u.to(DEVICE), system, weight, algorithm="fused")[1], exact), 1e-6)


def test_a_second_derivative_raises() -> None:
    u, system, weight = problem()
    (grad_u,) = torch.autograd.grad(
        plmu.project(u, system, weight, algorithm="fused")[0].sin().sum(), u, create_graph=True
    )
    with pytest.raises(RuntimeError, match="no second derivative: use algorithm='chunked'"):
        grad_u.sum().backward()
    m = plmu.states(u, system, algorithm="fused")[0]
    (grad_u,) = torch.autograd.grad(m.sin().sum(), u, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative: use algorithm='chunked'"):
        grad_u.sum().backward()


def test_torch_accepts_the_operators() -> None:
    u, system, weight = problem()
    first = torch.randn(2, 4, 5, device=DEVICE, requires_grad=True)
    powers, matrices = system.powers(70).float().to(DEVICE), tables.tables(u, system, 0, 2)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    segments = (torch.rand(u.shape[:2], device=DEVICE) < 0.1).cumsum(1, dtype=torch.int32)
    for marks in (None, segments):
        given = (u, weight, first, marks, powers, *matrices[:8], 0, 2, 1)
        torch.library.opcheck(projection._project, given, test_utils=checks)  # as exported before it took one more
        torch.library.opcheck(projection._project, (*given, matrices.from_state), test_utils=checks)
        torch.library.opcheck(all_states._states, (u, first, marks, *matrices[:8], 2), test_utils=checks)
    steps = tables.history(system, torch.float16)
    assert steps == 32
    given = (u, weight, None, None, None, *tables.tables(u, system, steps, 2)[:8], steps, 2, 1)
    torch.library.opcheck(projection._project, given, test_utils=checks)


def test_compiled() -> None:
    u, system, weight = problem()

    def run(u: Tensor, weight: Tensor) -> Tensor:
        return plmu.project(u, system, weight, algorithm="fused")[0].tanh()

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(run(u, weight).sum(), (u, weight))
    for value, right in zip(torch.autograd.grad(compiled(u, weight).sum(), (u, weight)), expected, strict=True):
        torch.testing.assert_close(value, right)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": torch.float64}, "no float64"),
        ({"system": plmu.LinearSystem([[0.5]], [[1.0, 2.0]]), "channels": 2}, "not a system with several"),
        ({"system": plmu.DelayNetwork(65, 70.0).discretize()}, "orders up to 64, not 65"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_cannot_do_is_said(change: dict, message: str) -> None:
    asked = {"kind": "project", "batch": 2, "time": 9, "channels": 3, "out": 4, "device": DEVICE} | change
    asked.setdefault("system", plmu.DelayNetwork(4, 6.0).discretize())
    with pytest.raises(ValueError, match=f"algorithm='fused' .*{message}.*: use chunked or auto"):
        plmu.plan(asked.pop("kind"), algorithm="fused", **asked)


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    known_plan.cache_clear()
    with pytest.raises(ValueError, match="runs on a GPU alone, not on cpu: use chunked or auto"):
        plmu.project(
            torch.randn(2, 9, 3), plmu.DelayNetwork(4, 6.0).discretize(), torch.randn(5, 4, 3), algorithm="fused"
        )


@pytest.mark.parametrize("shares", [2, 5, 64, 65, 200])
def test_shares_are_added_up(shares: int) -> None:
    partial = torch.randn(shares, 3, 5, 41, device=DEVICE)
    added = triton_launch.sum_shares(partial, torch.float32)
    exact = partial.double().sum(0)
    rounding = torch.finfo(torch.float32).eps / 2 * shares * partial.double().abs().sum(0)
    assert ((added.double() - exact).abs() <= rounding).all()
    assert torch.equal(triton_launch.sum_shares(partial, torch.float16), added.half()), "rounded once"
    assert torch.equal(added, triton_launch.sum_shares(partial, torch.float32))
