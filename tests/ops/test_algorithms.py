"""Every algorithm against the float64 recurrence: outputs, final states and every gradient, at every precision.

The tolerance is derived, not picked. The plain method is the recurrence run at the precision of the result. The error
of an algorithm, as a norm over all numbers of a result, may be

    chance · ((1 + R) · plain + floor + sums) · ‖exact‖ + faded

plain   the relative error of the plain method against float64. For float32 results (the states of half-precision input
        and their gradients too) it is that of the recurrence in float32. For bfloat16 and float16 the inputs are
        rounded to that type, the recurrence runs in float64 and its result is rounded to that type. For float64 there
        is nothing wider to measure with: it is the float32 error scaled by the ratio of the two eps.
R       1: no worse than twice the plain method.
chance  1 + 4 / √N for a result of N numbers. The norm of N independent roundings spreads by 1 / √(2 N) of itself, the
        ratio of two such norms by 1 / √N: four deviations, for the thousands of comparisons here.
floor   4 eps, for what the plain method happens to hit exactly. In float64 5e-14, measured for impulse
        responses built by doubling: at lower precision they are exact, here they are as rounded as the rest.
sums    √(K / 24) · eps, for K products that are summed one after another: a partial sum rounds by eps / √12 of itself,
        and partial sums grow as the root of their number of terms. A processor that sums in several lanes makes less of
        it, in one method or in both. A state sums over all steps and the orders of the first; the gradient of an input
        or a state over all steps and the orders of each, that of a weight over all steps, sequences and channels. Sums
        are float32 or wider, whatever the result is.
faded   for what has decayed to less than 1 % of its source, the inputs or the gradients that flow in: one
        eps · ‖source‖ for each of the log₂ n squarings by which a power of Ā is made. They round relative to what
        they multiply, and what decays later does not take that away again, as it does in the recurrence.

A case whose results are a few numbers is drawn several times, so that one lucky rounding is not taken for the rule.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import pytest
import torch
from closeness import within
from operations import ALGORITHMS, RESETTING
from pairwise import pairwise, product
from reference import at_end, masked, recurrence
from torch import Tensor

import plmu
from plmu.ops import blocks, fft

R = 1.0
FADED = 0.01
HALVES = (torch.bfloat16, torch.float16)
THETA = {1: 5.0, 2: 3.0, 15: 15.0, 40: 50.0, 256: 500.0, 468: 784.0}
OUT = 3
DRAWN = 64  # numbers, at least, that a result has over all draws (a quarter of it where a draw is long)

Results = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    order: int
    time: int
    channels: int
    batch: int
    dtype: torch.dtype
    state: bool = True
    lengths: bool = True
    resets: bool = False

    def __str__(self) -> str:
        names = [name for name in ("state", "lengths", "resets") if getattr(self, name)]
        return f"d{self.order}-n{self.time}-c{self.channels}-b{self.batch}-{str(self.dtype)[6:]}-{'+'.join(names)}"

    @property
    def wide(self) -> torch.dtype:
        return torch.float64 if self.dtype == torch.float64 else torch.float32


@dataclass
class Problem:
    """The arguments of a case and the gradients that flow into its results, all rounded to the case's precision."""

    u: Tensor
    system: plmu.LinearSystem
    weight: Tensor
    state: Tensor | None
    lengths: Tensor | None
    resets: Tensor | None
    trained: dict[str, Tensor]
    grad_m: Tensor
    grad_o: Tensor
    grad_last: Tensor


def problem_of(case: Case, system: plmu.LinearSystem, draw: int, trained: dict[str, Tensor]) -> Problem:
    generator = torch.Generator().manual_seed(case.order + 1000 * case.time + 1_000_000 * draw)

    def random(*shape: int, dtype: torch.dtype = case.dtype) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    copies = case.channels if system.inputs is None else 1
    held = (case.batch, system.order, copies)
    lengths = torch.tensor([case.time // 2, 0, case.time])[: case.batch]
    resets = torch.rand(case.batch, case.time, generator=generator) < 0.15
    return Problem(
        u=random(case.batch, case.time, case.channels).requires_grad_(),
        system=system,
        weight=random(OUT, system.order, copies).requires_grad_(),
        state=random(*held, dtype=case.wide).requires_grad_() if case.state else None,
        lengths=lengths if case.lengths else None,
        resets=resets if case.resets else None,
        trained=trained,
        grad_m=random(case.batch, case.time, system.order, copies),
        grad_o=random(case.batch, case.time, OUT),
        grad_last=random(*held, dtype=case.wide),
    )


def expected(problem: Problem, dtype: torch.dtype) -> Results:
    """Everything the three functions return and every gradient, from the recurrence in `dtype`."""
    u, weight = problem.u.to(dtype), problem.weight.to(dtype)
    m = recurrence(u, problem.system, problem.state, problem.resets, dtype)
    last = at_end(m, problem.state, problem.lengths)
    m = masked(m, problem.lengths)
    o = m.flatten(2) @ weight.flatten(1).T
    return {
        **_results("states", problem, {"m": (m, problem.grad_m), "last": (last, problem.grad_last)}),
        **_results("project", problem, {"o": (o, problem.grad_o), "last": (last, problem.grad_last)}),
        **_results("final_state", problem, {"last": (last, problem.grad_last)}),
    }


def computed(problem: Problem, algorithm: str) -> Results:
    """The same from plmu."""
    u, system, state = problem.u, problem.system, problem.state
    options = {"lengths": problem.lengths, "resets": problem.resets}
    m, last = plmu.states(u, system, state, algorithm=algorithm, **options)
    found = _results("states", problem, {"m": (m, problem.grad_m), "last": (last, problem.grad_last)})
    o, last = plmu.project(u, system, problem.weight, state, algorithm=algorithm, **options)
    found |= _results("project", problem, {"o": (o, problem.grad_o), "last": (last, problem.grad_last)})
    last = plmu.final_state(u, system, state, **options)
    return found | _results("final_state", problem, {"last": (last, problem.grad_last)})


def _results(kind: str, problem: Problem, outputs: dict[str, tuple[Tensor, Tensor]]) -> Results:
    """The outputs of a function and, from the gradients that flow into them, those of all its arguments."""
    leaves = {"u": problem.u, "state": problem.state, "weight": problem.weight, **problem.trained}
    if kind != "project":
        del leaves["weight"]
    leaves = {name: leaf for name, leaf in leaves.items() if leaf is not None}
    values = [value for value, _ in outputs.values()]
    incoming = [gradient.to(value.dtype) for value, gradient in outputs.values()]
    gradients = torch.autograd.grad(values, list(leaves.values()), incoming, retain_graph=True)
    found = {f"{kind} {name}": value.detach() for name, (value, _) in outputs.items()}
    return found | {f"{kind} gradient of {name}": value for name, value in zip(leaves, gradients, strict=True)}


class Comparison:
    """A case prepared once, for all algorithms: problems, their exact results and the plain method's in float32."""

    def __init__(
        self, case: Case, system: plmu.LinearSystem, trained: dict[str, Tensor] | None = None, draws: int = 1
    ) -> None:
        self.case = case
        self.problems = [problem_of(case, system, draw, trained or {}) for draw in range(draws)]
        self.exact = [self._without_padding(p, expected(p, torch.float64)) for p in self.problems]
        self.float32 = [self._without_padding(p, expected(p, torch.float32)) for p in self.problems]

    def check(self, algorithm: str) -> None:
        results = [computed(problem, algorithm) for problem in self.problems]
        for name in self.exact[0]:
            self._check_type(name, results[0][name].dtype)
        results = [self._without_padding(*both) for both in zip(self.problems, results, strict=True)]
        for name in self.exact[0]:
            self._check_values(name, results)

    def _check_type(self, name: str, dtype: torch.dtype) -> None:
        """m and o have the input's type, states are float32 or float64, a gradient has its argument's type."""
        right = self.case.wide if name.endswith(("last", "of state")) else self.case.dtype
        right = torch.float64 if name.endswith(tuple(self.problems[0].trained)) else right
        assert dtype == right, f"{name} is {dtype} instead of {right}"

    def _check_values(self, name: str, results: list[Results]) -> None:
        """Within the tolerance that is derived at the top of this file."""
        value, exact, float32 = (_pooled(draws, name) for draws in (results, self.exact, self.float32))
        precision = self.case.dtype if results[0][name].dtype in HALVES else self.case.wide
        eps = torch.finfo(precision).eps
        if precision in HALVES:
            plain = _norm(exact.to(precision).double() - exact) / _norm(exact)
        else:
            plain = _norm(float32 - exact) / _norm(exact) * eps / torch.finfo(torch.float32).eps
        floor = 5e-14 if precision == torch.float64 else 4 * eps
        source = math.hypot(*[_norm(p.grad_last if "gradient" in name else p.u) for p in self.problems])
        error = (value - exact).double().norm().item()
        chance = 1 + 4 / math.sqrt(exact.numel())
        time, order = self.case.time, self.case.order
        terms = time * max(order, self.case.batch * self.case.channels) if "gradient" in name else time + order
        sums = math.sqrt(terms / 24) * torch.finfo(self.case.wide).eps
        squarings = math.ceil(math.log2(time))
        faded = squarings * eps * source if _norm(exact) < FADED * source else 0.0
        bound = chance * ((1 + R) * plain + floor + sums) * _norm(exact) + faded
        within(error, bound, name)

    def _without_padding(self, problem: Problem, results: Results) -> Results:
        """What lies in the padding is exactly zero."""
        if problem.lengths is not None:
            padding = torch.arange(self.case.time) >= problem.lengths[:, None]
            for name, value in results.items():
                if name.endswith((" m", " o", "of u")):
                    assert (value[padding] == 0).all(), f"{name} is not zero in the padding"
        return results


def _pooled(draws: list[Results], name: str) -> Tensor:
    return torch.cat([results[name].double().flatten() for results in draws])


def _norm(value: Tensor) -> float:
    """Never zero, so that it divides; NaN stays NaN and fails every comparison."""
    return value.double().norm().item() + 1e-300


SEVERAL_INPUTS = "several inputs"
TRAINED = "trained A and B"
TRAINED_INPUTS = "trained A and B of several inputs"
TRAINED_THETA = "trained theta"


def system_of(name: str, case: Case) -> tuple[plmu.LinearSystem, dict[str, Tensor]]:
    """The system of that name, and what is trained of it."""
    if name == "delay network":
        return plmu.DelayNetwork(case.order, THETA[case.order]).discretize(), {}
    if name == "cumulative sum":
        return plmu.LinearSystem([[1.0]], [1.0]), {}
    if name == "rotation":
        cosine, sine = math.cos(0.3), math.sin(0.3)
        return plmu.LinearSystem([[cosine, -sine], [sine, cosine]], [1.0, 0.0]), {}
    if name == TRAINED_THETA:
        theta = torch.tensor(20.0, dtype=torch.float64, requires_grad=True)
        return plmu.DelayNetwork(case.order, theta).discretize(), {"theta": theta}
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(case.order, case.order, generator=generator, dtype=torch.float64)
    A = (0.05 if name == "short memory" else 0.95) * A / torch.linalg.eigvals(A).abs().max()
    inputs = (case.channels,) if name in (SEVERAL_INPUTS, TRAINED_INPUTS) else ()
    B = torch.randn(case.order, *inputs, generator=generator, dtype=torch.float64)
    if name not in (TRAINED, TRAINED_INPUTS):
        return plmu.LinearSystem(A, B), {}
    A, B = A.requires_grad_(), B.requires_grad_()
    return plmu.LinearSystem(A, B), {"A": A, "B": B}


@lru_cache(maxsize=2)
def comparison(case: Case, name: str = "delay network") -> Comparison:
    fewest = case.batch * case.channels * min(case.time, case.order)
    trained = {TRAINED_THETA: 1, TRAINED: case.order, TRAINED_INPUTS: case.order * case.channels}
    drawn = DRAWN if case.time < 20 else DRAWN // 4
    draws = math.ceil(drawn / min(fewest, trained.get(name, fewest)))
    return Comparison(case, *system_of(name, case), draws=draws)


FACTORS = {
    "order": tuple(THETA),
    "time": (1, 2, 63, 129, 785),
    "channels": (1, 7, 40),
    "batch": (3, 1),
    "dtype": (torch.float32, torch.float64, torch.bfloat16, torch.float16),
    "state": (True, False),
    "lengths": (True, False),
}


def fits(largest: int) -> Callable[[dict], bool]:
    """Whether m has at most `largest` numbers."""
    return lambda case: case["batch"] * case["time"] * case["order"] * case["channels"] <= largest


def runs(case: Case, algorithm: str) -> bool:
    """The matrix of toeplitz grows with time² · order: past 16 M numbers it is not for a test."""
    return algorithm != "toeplitz" or case.time**2 * case.order <= 1 << 24


def with_algorithms(cases: list[dict], algorithms: tuple[str, ...] = ALGORITHMS) -> list[tuple[Case, str]]:
    return [(Case(**case), name) for case in cases for name in algorithms if runs(Case(**case), name)]


@pytest.mark.parametrize(("case", "algorithm"), with_algorithms(pairwise(FACTORS, fits(400_000))), ids=str)
def test_against_the_recurrence(case: Case, algorithm: str) -> None:
    """Each algorithm sees every pair of precision, sizes, initial state and lengths."""
    comparison(case).check(algorithm)


@pytest.mark.full
@pytest.mark.parametrize("case", [Case(**case) for case in product(FACTORS, fits(16_000_000))], ids=str)
def test_against_the_recurrence_in_full(case: Case) -> None:
    for algorithm in ALGORITHMS:
        if runs(case, algorithm):
            comparison(case).check(algorithm)


RESET_FACTORS = FACTORS | {"order": (1, 15, 40), "time": (1, 16, 63, 129), "resets": (True,)}


@pytest.mark.parametrize(
    ("case", "algorithm"), with_algorithms(pairwise(RESET_FACTORS, fits(200_000)), RESETTING), ids=str
)
def test_resets(case: Case, algorithm: str) -> None:
    comparison(case).check(algorithm)


@pytest.mark.full
@pytest.mark.parametrize("case", [Case(**case) for case in product(RESET_FACTORS)], ids=str)
def test_resets_in_full(case: Case) -> None:
    for algorithm in RESETTING:
        comparison(case).check(algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", FACTORS["dtype"], ids=str)
@pytest.mark.parametrize(("time", "inputs"), [(1, 2), (63, 1), (129, 5)])
def test_several_inputs_drive_one_system(time: int, inputs: int, dtype: torch.dtype, algorithm: str) -> None:
    comparison(Case(4, time, inputs, 3, dtype), SEVERAL_INPUTS).check(algorithm)


@pytest.mark.parametrize("inputs", [1, 3])
@pytest.mark.parametrize("algorithm", RESETTING)
def test_several_inputs_with_resets(inputs: int, algorithm: str) -> None:
    comparison(Case(4, 129, inputs, 3, torch.float32, resets=True), SEVERAL_INPUTS).check(algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("time", "name"), [(7, TRAINED), (129, TRAINED), (63, TRAINED_INPUTS), (31, TRAINED_THETA)])
def test_gradients_of_a_trained_system(time: int, name: str, dtype: torch.dtype, algorithm: str) -> None:
    trained = comparison(Case(4, time, 3, 3, dtype), name)
    assert trained.problems[0].system.trained
    trained.check(algorithm)


@pytest.mark.parametrize("algorithm", RESETTING)
@pytest.mark.parametrize("name", [TRAINED, TRAINED_INPUTS, TRAINED_THETA])
def test_gradients_of_a_trained_system_with_resets(name: str, algorithm: str) -> None:
    comparison(Case(4, 31, 3, 3, torch.float32, resets=True), name).check(algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", FACTORS["dtype"], ids=str)
@pytest.mark.parametrize(("order", "name"), [(1, "cumulative sum"), (2, "rotation")])
def test_systems_that_never_forget(order: int, name: str, dtype: torch.dtype, algorithm: str) -> None:
    """ρ(A) = 1: nothing decays."""
    comparison(Case(order, 129, 2, 3, dtype), name).check(algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", FACTORS["dtype"], ids=str)
def test_systems_that_forget_at_once(dtype: torch.dtype, algorithm: str) -> None:
    """ρ(A) = 0.05: what an initial state leaves behind is small, and as exact as the rest."""
    comparison(Case(4, 63, 2, 3, dtype, lengths=False), "short memory").check(algorithm)


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("largest", [1, 40])
@pytest.mark.parametrize("name", ["delay network", SEVERAL_INPUTS, TRAINED])
def test_a_final_state_in_blocks(name: str, largest: int, resets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for sequences whose impulse response is too large for one product."""
    monkeypatch.setattr("plmu.ops.final.LARGEST_PRODUCT", largest)
    comparison(Case(2, 129, 3, 3, torch.float32, resets=resets), name).check("chunked")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_cumulative_sum_is_one(algorithm: str) -> None:
    u = torch.randn(2, 200, 3, dtype=torch.float64)
    m, last = plmu.states(u, plmu.LinearSystem([[1.0]], [1.0]), algorithm=algorithm)
    torch.testing.assert_close(m, u.cumsum(1)[:, :, None], rtol=0, atol=1e-12)
    torch.testing.assert_close(last, u.sum(1)[:, None], rtol=0, atol=1e-12)


def test_pairwise_leaves_no_pair_out() -> None:
    cases = pairwise(FACTORS, fits(400_000))
    assert cases == pairwise(FACTORS, fits(400_000))
    covered = {pair for case in cases for pair in _pairs(case)}
    assert covered == {pair for case in product(FACTORS, fits(400_000)) for pair in _pairs(case)}
    assert len(cases) < 50


def _pairs(case: dict) -> list[tuple]:
    items = list(case.items())
    return [(items[i], items[j]) for i in range(len(items)) for j in range(i)]


@pytest.mark.parametrize("algorithm", ["recurrent", "chunked", "auto"])
@pytest.mark.parametrize("with_resets", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_growth_in_the_padding_reaches_no_gradient(algorithm: str, with_resets: bool, trained: bool) -> None:
    A = torch.tensor([[1.5]], dtype=torch.float64, requires_grad=trained)
    system = plmu.LinearSystem(A, torch.ones(1, dtype=torch.float64))
    u, weight = torch.randn(2, 400, 3, requires_grad=True), torch.randn(2, 1, 3, requires_grad=True)
    options = {"lengths": [10, 5], "algorithm": algorithm}
    options["resets"] = torch.zeros(2, 400, dtype=torch.bool) if with_resets else None
    m, last = plmu.states(u, system, **options)
    o, same = plmu.project(u, system, weight, **options)
    total = m.sum() + last.sum() + o.sum() + same.sum()
    for value in torch.autograd.grad(total, [u, weight, A] if trained else [u, weight]):
        assert value.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("algorithm", ["fft", "chunked"])
def test_a_memory_that_dies_out_needs_little_of_the_past(algorithm: str, dtype: torch.dtype) -> None:
    """A transform not twice as long, states carried over few chunks; and the same result, as far as it can be told."""
    system = plmu.DelayNetwork(4, 6.0).discretize()
    time = 3000
    assert 20 < fft.span(system, time, dtype) < 100
    assert not system.vanishes(16, dtype)
    assert system.vanishes(2048, dtype)
    assert fft.span(plmu.DelayNetwork(1, 1e5).discretize(), time, dtype) == time
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(2, time, 3, dtype=dtype, generator=generator).requires_grad_()
    u.data[:, 1000:2000] *= 1e-3  # quiet after loud
    grad_m = torch.randn(2, time, 4, 3, dtype=dtype, generator=generator)
    m, last = plmu.states(u, system, algorithm=algorithm)
    (grad_u,) = torch.autograd.grad(m, u, grad_m)
    exact_u = u.detach().double().requires_grad_()
    exact = recurrence(exact_u, system)
    (exact_grad_u,) = torch.autograd.grad(exact, exact_u, grad_m.double())
    pairs = [(m, exact), (last, exact[:, -1]), (grad_u, exact_grad_u)]
    if algorithm == "chunked":  # where it is quiet, as exact as that is
        pairs.append((m[:, 1500:2000], exact[:, 1500:2000]))
    for value, known in pairs:
        # A number sums at most `terms` products, and each partial sum rounds by at most eps / 2 of the largest number.
        terms = fft.span(system, time, dtype) * system.order
        bound = terms * torch.finfo(dtype).eps / 2 * known.abs().max().item()
        torch.testing.assert_close(value.double(), known, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_states_are_carried_no_further_than_they_last(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    apply = blocks.apply
    monkeypatch.setattr(blocks, "apply", lambda matrix, x: asked.append(1) or apply(matrix, x))
    values = torch.randn(1, 1000, 4, 2).to(dtype)
    for theta, rounds in ((6.0, {torch.float32: 4, torch.float16: 10}[dtype]), (1e6, 10)):
        asked.clear()
        blocks.carry(values, None, plmu.DelayNetwork(4, theta).discretize(), 16)
        assert len(asked) == rounds


def test_a_system_that_grows_keeps_all_of_its_past() -> None:
    system = plmu.LinearSystem([[1.5]], [1.0])
    assert fft.span(system, 2000, torch.float32) == 2000  # whose squares overflow
    assert not system.vanishes(2000, torch.float32)
