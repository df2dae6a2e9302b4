"""The shapes that are measured, and the problem that all candidates of a shape solve."""

import json
import math
from pathlib import Path

import pytest
import torch
from closeness import within

import plmu
from plmu.bench import problems
from plmu.bench.problems import Problem, Shape

RESULTS = Path(__file__).parents[2] / "results"
TINY = Shape(2, 20, 4, 3, 2, 5.0)
WIDE = Shape(3, 50, 128, 96, 2, 5.0)


def test_shapes_on_a_gpu_are_those_of_the_committed_results() -> None:
    written = json.loads((RESULTS / "bench-algorithms-cuda.json").read_text(encoding="utf-8"))
    shapes = [row["shape"] for row in written["with resets, as graphs"]]
    assert [str(shape) for shape in problems.GPU_SHAPES] == shapes
    choices = [row["shape"] for row in written["auto against every algorithm"]]
    assert [str(shape) for shape in problems.GPU_CHOICES] == choices


def test_cases_on_a_cpu_are_those_of_the_committed_results() -> None:
    written = json.loads((RESULTS / "bench-cpu.json").read_text(encoding="utf-8"))
    names = [f"{shape.name}, forward + backward" for shape in problems.CPU_SHAPES[:2]]
    names += [f"{kind}: {shape.name}" for kind, shape in problems.CPU_CHOICES]
    assert [row["name"] for row in written["rows"]][: len(names)] == names
    for shape in (*problems.CPU_SHAPES, *(shape for _, shape in problems.CPU_CHOICES)):
        for word, value in (("order", shape.order), ("θ", shape.theta)):
            if f"{word} " in shape.name:
                assert f"{word} {value:g}" in shape.name


def test_shapes_on_a_cpu() -> None:
    """Small enough for a few cores."""
    assert [str(shape) for shape in problems.CPU_SHAPES] == [
        "b8 n512 128→128 d4 θ6",
        "b8 n180 128→128 d16 θ15",
        "b2 n1024 64→64 d4 θ8",
        "b2 n512 64→64 d32 θ128",
    ]
    by_kind = {
        kind: [str(shape) for one, shape in problems.CPU_CHOICES if one == kind]
        for kind in ("states", "project", "final_state")
    }
    both = ["b8 n512 64→64 d4 θ6", "b8 n180 64→64 d16 θ15", "b8 n500 300→2 d1 θ500"]
    digits = "b8 n784 1→346 d468 θ784"
    further = ["b2 n1000 8→32 d256 θ500", "b2 n2048 64→64 d32 θ128", "b1 n4 16→16 d8 θ20"]
    assert by_kind["states"] == [*both, "b4 n20000 1→16 d12 θ1000", digits, *further]
    assert by_kind["project"] == [*both, "b8 n5000 1→140 d40 θ50", digits, "b32 n20 32→32 d8 θ20"]
    assert by_kind["final_state"] == ["b32 n500 300→2 d1 θ500", "b32 n784 1→346 d468 θ784"]


def test_a_name_does_not_make_another_shape() -> None:
    assert Shape(1, 2, 3, 4, 5, 6.5, "one") == Shape(1, 2, 3, 4, 5, 6.5)
    assert str(Shape(1, 2, 3, 4, 5, 6.5, "one")) == "b1 n2 3→4 d5 θ6.5"


def test_inputs_and_outputs_are_of_size_one() -> None:
    problem = Problem(WIDE)
    assert problem.u.shape == (3, 50, 128)
    assert problem.weight.shape == (96, 2, 128)
    assert problem.u.requires_grad
    assert problem.weight.requires_grad
    for values, variance in ((problem.u, 1.0), (problem.weight, 1 / (2 * 128))):
        count = values.numel()
        within(abs(float(values.detach().square().mean()) / variance - 1), 8 * math.sqrt(2 / count))
    torch.manual_seed(5)
    again = Problem(WIDE, torch.bfloat16)
    assert again.u.dtype == again.weight.dtype == torch.bfloat16
    assert torch.equal(again.u, problem.u.bfloat16()), "the same numbers every time, in any precision"
    assert torch.equal(again.weight, problem.weight.bfloat16())


def test_resets_come_once_in_so_many_steps() -> None:
    problem = Problem(Shape(100, 500, 1, 1, 2, 5.0), reset_interval=10)
    assert problem.resets is not None
    assert problem.resets.shape == (100, 500)
    within(abs(float(problem.resets.double().mean()) - 0.1), 8 * math.sqrt(0.1 * 0.9 / 50_000))
    assert Problem(TINY).resets is None


@pytest.mark.parametrize("every", [None, 5])
def test_all_ways_give_the_same_answer(every: int | None) -> None:
    """W_m m of the recurrence, with the resets; the FFT knows none."""
    problem = Problem(TINY, torch.float32, "cpu", every)
    m, _ = plmu.states(problem.u, problem.system, algorithm="recurrent", resets=problem.resets)
    o = torch.einsum("btdc,odc->bto", m, problem.weight)
    for algorithm in ("auto", "chunked", "recurrent"):
        torch.testing.assert_close(problem.project(algorithm)(), o)
        torch.testing.assert_close(problem.states(algorithm)(), m)
    if every is None:
        torch.testing.assert_close(problem.fft()(), o)
        gradients = [
            torch.autograd.grad(call().square().sum(), (problem.u, problem.weight))
            for call in (problem.fft(), problem.project("recurrent"))
        ]
        torch.testing.assert_close(*gradients)


def test_the_algorithm_asked_for_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for name in ("project", "states"):
        real = getattr(plmu, name)

        def noted(*given, algorithm: str, real=real, **options):
            asked.append(algorithm)
            return real(*given, algorithm=algorithm, **options)

        monkeypatch.setattr(plmu, name, noted)
    problem = Problem(TINY)
    problem.project("chunked")()
    problem.states("toeplitz")()
    assert asked == ["chunked", "toeplitz"]


def test_the_fft_is_of_half_precision_outside_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(TINY, torch.bfloat16)
    transformed, real = [], torch.fft.rfft

    def rfft(x, n, dim):
        transformed.append((x.dtype, n))
        return real(x, n=n, dim=dim)

    monkeypatch.setattr(torch.fft, "rfft", rfft)
    assert problem.fft()().dtype == torch.bfloat16
    assert transformed == [(torch.float32, 40)] * 2, "twice the steps, so that nothing wraps around"


def test_the_limit_is_a_gemm_of_the_same_size() -> None:
    problem = Problem(WIDE, torch.bfloat16)
    gemm, operand = problem.gemm()
    assert (operand.shape, operand.dtype, operand.requires_grad) == ((150, 256), torch.bfloat16, True)
    assert gemm().shape == (150, 96)
    torch.testing.assert_close(gemm(), operand @ problem.weight.reshape(96, 256).mT)


@pytest.mark.parametrize(("kind", "out"), [("project", 3), ("states", None), ("final_state", None)])
@pytest.mark.parametrize("every", [None, 5])
def test_the_plan_is_of_this_problem(
    kind: str, out: int | None, every: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, asked = Problem(TINY, torch.bfloat16, "cpu", every), []
    monkeypatch.setattr(plmu, "plan", lambda kind, **given: asked.append((kind, given)))
    problem.plan(kind)
    assert asked == [
        (
            kind,
            {
                "batch": 2,
                "time": 20,
                "channels": 4,
                "out": out,
                "system": problem.system,
                "dtype": torch.bfloat16,
                "device": "cpu",
                "resets": every is not None,
            },
        )
    ]
    monkeypatch.undo()
    assert problem.plan().kind == "project"


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 4e-3)], ids=str
)
@pytest.mark.parametrize("every", [None, 5])
def test_answers_are_held_to_their_precision(dtype: torch.dtype, bound: float, every: int | None) -> None:
    problem = Problem(TINY, dtype, "cpu", every)
    right = problem.project("auto")
    found = problem.errors({"auto": right})
    assert found.keys() == {"auto"}
    assert 0 < found["auto"] <= bound
    m, _ = plmu.states(problem.u.double(), problem.system, algorithm="recurrent", resets=problem.resets)
    exact = torch.einsum("btdc,odc->bto", m, problem.weight.double()).detach()
    close = problem.errors({"close": lambda: exact * (1 + 0.99 * bound)})
    assert close["close"] == pytest.approx(0.99 * bound)
    for one in (lambda: exact * (1 + 1.01 * bound), lambda: exact * math.nan):
        with pytest.raises(RuntimeError, match=rf"wrong answers at b2 n20 4→3 d2 θ5, {dtype}: other"):
            problem.errors({"auto": right, "other": one})


def test_an_error_as_large_as_the_bound_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "relative_error", lambda value, exact: 1e-5)
    problem = Problem(TINY)
    assert problem.errors({"auto": problem.project("auto")}) == {"auto": 1e-5}
