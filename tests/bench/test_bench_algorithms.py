"""`plmu bench algorithms`: what is held against what, which algorithms are tried, and what runs as CUDA graphs."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plmu.bench import algorithms, measure
from plmu.bench.measure import Times, random_like
from plmu.bench.problems import Problem, Shape

TINY = Shape(2, 20, 4, 3, 2, 5.0)
SECONDS = {"GEMM": 1.0, "auto": 2.0, "chunked": 3.0, "FFT": 8.0}

Calls = dict[str, Callable[[], Any]]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[Calls]:
    """What was timed, without timing it: a candidate takes the seconds above, or 4; in the second round ten times."""
    found: list[Calls] = []

    def times(calls: Calls, *, device: str, rounds: int) -> Times:
        found.append(calls)
        return Times({name: [SECONDS.get(name, 4.0) * 10**k for k in range(rounds)] for name in calls})

    monkeypatch.setattr(algorithms, "timed", times)
    return found


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems on the device "meta", whose answers have no numbers, pass for a GPU's; a graph is marked as one."""
    monkeypatch.setattr(Problem, "errors", lambda self, calls: dict.fromkeys(calls, 0.0))
    monkeypatch.setattr(measure, "graphed", lambda call: ("graph", call))
    monkeypatch.setattr(algorithms, "peak_memory", lambda call: 4 * (280 + 24 + 700))


def considered(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Has `auto` consider these algorithms."""
    monkeypatch.setattr(Problem, "plan", lambda self: SimpleNamespace(algorithm="one", costs=dict.fromkeys(names, 1.0)))


def test_a_row_holds_ours_against_the_gemm_and_the_fft_against_ours(timed: list[Calls]) -> None:
    row = algorithms.over_the_gemm(TINY, torch.float32, "cpu", 1)
    errors = row.pop("error")
    assert errors.keys() == {"auto", "chunked", "FFT"}
    assert all(0 < error < 1e-5 for error in errors.values())
    forward, both = timed
    assert forward.keys() == both.keys() == SECONDS.keys()
    milliseconds = {name: 1e3 * SECONDS[name] for name in SECONDS}
    assert row == {
        "shape": "b2 n20 4→3 d2 θ5",
        "dtype": "float32",
        "milliseconds forward": milliseconds,
        "milliseconds forward and backward": milliseconds,
        "over the GEMM, forward": {"auto": 2.0, "chunked": 3.0},
        "over the GEMM, both": {"auto": 2.0, "chunked": 3.0},
        "times faster than the FFT, both": 4.0,
    }
    for name, call in forward.items():
        assert call().shape == ((40, 3) if name == "GEMM" else (2, 20, 3)), name
    for name, call in both.items():
        shapes = [tuple(one.shape) for one in call()]
        assert shapes == [(40, 8) if name == "GEMM" else (2, 20, 4), (3, 2, 4)], name


def test_forward_alone_is_timed_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def times(calls: Calls, *, device: str, rounds: int) -> Times:
        seen.append(torch.is_grad_enabled())
        return Times({name: [1.0] for name in calls})

    monkeypatch.setattr(algorithms, "timed", times)
    algorithms.over_the_gemm(TINY, torch.float32, "cpu", 1)
    assert seen == [False, True]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)], ids=str)
def test_memory_is_what_is_worked_with_beyond_the_results(
    dtype: torch.dtype, size: int, timed: list[Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over u and o, 160 and 120 numbers; o, and the gradients of u and of the 24 weights, are results."""
    asked: list[Any] = []
    monkeypatch.setattr(algorithms, "peak_memory", lambda call: asked.append(call) or size * (280 + 24 + 700))
    row = algorithms.over_the_gemm(TINY, dtype, "meta", 1)
    assert row["working memory over u + o"] == {"auto": 2.5, "chunked": 2.5}
    assert asked == [timed[1][name][1] for name in ("auto", "chunked")], "forward and backward, not as a graph"


@pytest.mark.usefixtures("gpu")
def test_all_run_as_graphs_on_a_gpu(timed: list[Calls]) -> None:
    algorithms.over_the_gemm(TINY, torch.float32, "meta", 1)
    assert len(timed) == 2
    for calls in timed:
        assert {call[0] for call in calls.values()} == {"graph"}
    timed.clear()
    algorithms.choice(TINY, torch.float32, "meta", 1)
    assert all(callable(call) for call in timed[0].values()), "unless asked"
    algorithms.choice(TINY, torch.float32, "meta", 1, graphs=True)
    assert {call[0] for call in timed[1].values()} == {"graph"}


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize("there", [True, False])
def test_fused_kernels_are_timed_where_auto_considers_them(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    considered(monkeypatch, "chunked", *["fused"] * there)
    monkeypatch.setattr(Problem, "project", lambda self, name, run=Problem.project: run(self, "chunked"))
    row = algorithms.over_the_gemm(TINY, torch.float32, "cpu", 1)
    for table in ("over the GEMM, forward", "over the GEMM, both"):
        assert list(row[table]) == ["auto", "chunked", *["fused"] * there]


@pytest.mark.parametrize(
    ("shape", "every", "fused", "names"),
    [
        (Shape(1, 64, 1, 1, 2, 5.0), None, False, "fft chunked toeplitz recurrent"),
        (Shape(1, 65, 1, 1, 2, 5.0), None, False, "fft chunked toeplitz"),
        (Shape(1, 1 << 11, 1, 1, 8, 5.0), None, False, "fft chunked toeplitz"),  # a matrix of 2^25 numbers
        (Shape(1, 1 << 11, 1, 1, 9, 5.0), None, False, "fft chunked"),
        (Shape(1, 64, 1, 1, 2, 5.0), 10, False, "chunked recurrent"),
        (Shape(1, 65, 1, 1, 2, 5.0), 10, True, "chunked fused"),
        (Shape(1, 65, 1, 1, 2, 5.0), None, True, "fft chunked toeplitz fused"),
    ],
    ids=str,
)
def test_algorithms_are_tried_where_they_suit(
    shape: Shape,
    every: int | None,
    fused: bool,
    names: str,
    timed: list[Calls],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    considered(monkeypatch, *["fused"] * fused)
    monkeypatch.setattr(Problem, "errors", lambda self, calls: {})
    monkeypatch.setattr(algorithms, "training", lambda call, *leaves: call)
    row = algorithms.choice(shape, torch.float32, "cpu", 1, reset_interval=every)
    assert list(timed[0]) == [*names.split(), "auto"]
    assert row == {
        "shape": str(shape),
        "dtype": "float32",
        "chosen": "one",
        "best": "chunked",
        "auto over best": pytest.approx(2 / 3),
        "milliseconds": {name: 1e3 * SECONDS.get(name, 4.0) for name in (*names.split(), "auto")},
    }


@pytest.mark.parametrize("every", [None, 10])
def test_a_choice_is_of_right_answers_and_of_gradients(every: int | None, timed: list[Calls]) -> None:
    row = algorithms.choice(TINY, torch.float32, "cpu", 1, reset_interval=every)
    for call in timed[0].values():
        assert [tuple(one.shape) for one in call()] == [(2, 20, 4), (3, 2, 4)]
    problem = Problem(TINY, torch.float32, "cpu", every)
    assert row["chosen"] == problem.plan().algorithm
    o = problem.project("recurrent")()
    exact = torch.autograd.grad(o, (problem.u, problem.weight), random_like(o))
    torch.testing.assert_close(timed[0]["auto"](), exact)


def test_a_wrong_answer_makes_no_choice(timed: list[Calls], monkeypatch: pytest.MonkeyPatch) -> None:
    right = Problem.project

    def wrong(self: Problem, algorithm: str) -> Callable[[], torch.Tensor]:
        return lambda: right(self, algorithm)() * (1.1 if algorithm == "auto" else 1.0)

    monkeypatch.setattr(Problem, "project", wrong)
    with pytest.raises(RuntimeError, match=r"wrong answers at b2 n20 .*: auto 1\.0e-01"):
        algorithms.choice(TINY, torch.float32, "cpu", 1)
    assert timed == []
