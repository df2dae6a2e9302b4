"""`plmu bench layers`: what is held against what, which algorithms are tried, and what runs as CUDA graphs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import plmu
from plmu.bench import layers
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

    monkeypatch.setattr(layers, "timed", times)
    return found


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems on the device "meta", whose answers have no numbers, pass for a GPU's; a graph is marked as one."""
    monkeypatch.setattr(Problem, "errors", lambda self, calls: dict.fromkeys(calls, 0.0))
    monkeypatch.setattr(layers, "graphed", lambda call: ("graph", call))
    monkeypatch.setattr(layers, "peak_memory", lambda call: 4 * (280 + 24 + 700))


def considered(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Has `auto` consider these algorithms."""
    monkeypatch.setattr(Problem, "plan", lambda self: SimpleNamespace(algorithm="one", costs=dict.fromkeys(names, 1.0)))


def test_a_row_holds_ours_against_the_gemm_and_the_fft_against_ours(timed: list[Calls]) -> None:
    row = layers.over_the_gemm(TINY, torch.float32, "cpu", 1)
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

    monkeypatch.setattr(layers, "timed", times)
    layers.over_the_gemm(TINY, torch.float32, "cpu", 1)
    assert seen == [False, True]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)], ids=str)
def test_memory_is_what_is_worked_with_beyond_the_results(
    dtype: torch.dtype, size: int, timed: list[Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over u and o, 160 and 120 numbers; o, and the gradients of u and of the 24 weights, are results."""
    asked: list[Any] = []
    monkeypatch.setattr(layers, "peak_memory", lambda call: asked.append(call) or size * (280 + 24 + 700))
    row = layers.over_the_gemm(TINY, dtype, "meta", 1)
    assert row["working memory over u + o"] == {"auto": 2.5, "chunked": 2.5}
    assert asked == [timed[1][name][1] for name in ("auto", "chunked")], "forward and backward, not as a graph"


@pytest.mark.usefixtures("gpu")
def test_all_run_as_graphs_on_a_gpu(timed: list[Calls]) -> None:
    layers.over_the_gemm(TINY, torch.float32, "meta", 1)
    assert len(timed) == 2
    for calls in timed:
        assert {call[0] for call in calls.values()} == {"graph"}
    timed.clear()
    layers.choice(TINY, torch.float32, "meta", 1)
    assert all(callable(call) for call in timed[0].values()), "unless asked"
    layers.choice(TINY, torch.float32, "meta", 1, graphs=True)
    assert {call[0] for call in timed[1].values()} == {"graph"}


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize("there", [True, False])
def test_fused_kernels_are_timed_where_auto_considers_them(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    considered(monkeypatch, "chunked", *["fused"] * there)
    monkeypatch.setattr(Problem, "project", lambda self, name, run=Problem.project: run(self, "chunked"))
    row = layers.over_the_gemm(TINY, torch.float32, "cpu", 1)
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
    monkeypatch.setattr(layers, "training", lambda call, *leaves: call)
    row = layers.choice(shape, torch.float32, "cpu", 1, every=every)
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
    row = layers.choice(TINY, torch.float32, "cpu", 1, every=every)
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
        layers.choice(TINY, torch.float32, "cpu", 1)
    assert timed == []


class Tables:
    """Measures nothing: notes what each row was asked for, and whether it was planned for graphs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.released, self.in_graphs = 0, False
        monkeypatch.setattr(plmu, "for_graphs", self.for_graphs)
        monkeypatch.setattr(layers, "over_the_gemm", self.row("gemm"))
        monkeypatch.setattr(layers, "choice", self.row("choice"))
        monkeypatch.setattr(layers, "tokens_per_second", self.row("length"))
        whole = self.row("whole")
        monkeypatch.setattr(layers.whole_layers, "compared", lambda *given: [whole(*given), {"layer": "other"}])
        monkeypatch.setattr(torch.cuda, "empty_cache", self.release)

    def row(self, name: str) -> Callable[..., dict[str, Any]]:
        def make(*given: Any, **options: Any) -> dict[str, Any]:
            self.asked.append((name, *map(str, given), options, self.in_graphs))
            return {"number": len(self.asked)}

        return make

    @contextmanager
    def for_graphs(self) -> Iterator[None]:
        self.in_graphs = True
        yield
        self.in_graphs = False

    def release(self) -> None:
        self.released += 1


def test_the_tables_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32. A language model's block and a long sequence have one number of parameters, the others two."""
    tables = Tables(monkeypatch)
    found = list(layers.measured("cpu", 3))
    names = [name for name, _ in found]
    assert [names.count(name) for name in dict.fromkeys(names)] == [12, 4, 6, 4]
    assert list(dict.fromkeys(names)) == ["whole layers", "over the GEMM", "auto against every algorithm", "length"]
    first, second, third, fourth = (str(shape) for shape in layers.CPU_SHAPES)
    budgets = [(first, 1 << 16), (second, 1 << 16), (second, 1 << 18), (third, 1 << 14), (fourth, 1 << 14)]
    budgets.append((fourth, 1 << 17))
    projected = [str(shape) for kind, shape in layers.CPU_CHOICES if kind == "project"]
    given = ("torch.float32", "cpu", "3", {})
    assert tables.asked == [
        *(("whole", shape, str(budget), *given, True) for shape, budget in budgets),
        *(("gemm", shape, *given, True) for shape in (first, second, third, fourth)),
        *(("choice", shape, *given, False) for shape in projected),
        *(("length", str(time), "8192", *given, True) for time in (1024, 2048, 4096, 8192)),
    ]
    assert tables.released == 0


def test_the_tables_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16; beside the GEMM in float32 too. Graphs are planned as graphs, and their memory is given back."""
    tables = Tables(monkeypatch)
    found = [name for name, _ in layers.measured("cuda:1", 3)]
    whole = [one for one in tables.asked if one[0] == "whole"]
    assert {(*one[3:5], one[-1]) for one in whole} == {("torch.bfloat16", "cuda:1", True)}
    assert [one[1:3] for one in tables.asked if one[0] == "gemm"] == [
        (str(shape), dtype) for dtype in ("torch.bfloat16", "torch.float32") for shape in layers.GPU_SHAPES
    ]
    given = ("torch.bfloat16", "cuda:1", "3")
    shapes, choices = ([str(shape) for shape in some] for some in (layers.GPU_SHAPES, layers.GPU_CHOICES))
    assert [one for one in tables.asked if one[0] == "choice"] == [
        *(("choice", shape, *given, {}, False) for shape in choices),
        *(("choice", shape, *given, {"graphs": True, "every": None}, True) for shape in choices),
        *(("choice", shape, *given, {"graphs": True, "every": 100}, True) for shape in shapes),
    ]
    assert [one for one in tables.asked if one[0] == "length"] == [
        ("length", str(1 << k), str(1 << 20), *given, {}, True) for k in range(10, 21)
    ]
    assert list(dict.fromkeys(found))[2:5] == [layers.CHOICES, layers.GRAPHS, layers.RESETS]
    assert [found.count(name) for name in (layers.CHOICES, layers.GRAPHS, layers.RESETS)] == [12, 12, 4]
    assert tables.released == len(whole) + 8 + 12 + 4, "after every row of graphs"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_a_gpu_all_is_on_a_stream_of_its_own(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[object] = []

    @contextmanager
    def stream(one: object) -> Iterator[None]:
        entered.append(one)
        yield
        entered.append("left")

    monkeypatch.setattr(torch.cuda, "Stream", lambda: "a new one")
    monkeypatch.setattr(torch.cuda, "stream", stream)
    rows = [("a", {"row": 1}), ("b", {"row": 2}), ("a", {"row": 3})]
    monkeypatch.setattr(
        layers, "measured", lambda device, rounds: iter(rows if rounds == 7 and not entered[1:] else [])
    )
    kept: list[int] = []
    found = layers.run(device, 7, lambda tables: kept.append(sum(map(len, tables.values()))))
    assert found == {"a": [{"row": 1}, {"row": 3}], "b": [{"row": 2}]}
    assert kept == [1, 2, 3]
    assert entered == ([] if device == "cpu" else ["a new one", "left"])


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("device", "width"), [("cpu", 32), ("meta", 256)])
def test_tokens_per_second(device: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[Any] = []

    def medians(calls: Calls, *, device: str, rounds: int) -> dict[str, float]:
        timed.append((calls["auto"], device, rounds))
        return dict.fromkeys(calls, 0.5)

    monkeypatch.setattr(layers, "medians", medians)
    assert layers.tokens_per_second(16, 64, torch.float32, device, 3) == {
        "time": 16,
        "batch": 4,
        "tokens per second": 128.0,
    }
    ((call, *given),) = timed
    assert given == [device, 3]
    if device != "cpu":
        name, call = call
        assert name == "graph"
    assert [tuple(one.shape) for one in call()] == [(4, 16, width), (width, 4, width)], "order 4"


def test_sequences_of_any_length_have_a_window_of_64_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Shape] = []
    problem = layers.Problem

    def noted(shape: Shape, *given: Any) -> Problem:
        made.append(shape)
        return problem(shape, *given)

    monkeypatch.setattr(layers, "Problem", noted)
    monkeypatch.setattr(layers, "medians", lambda calls, **given: dict.fromkeys(calls, 0.5))
    layers.tokens_per_second(16, 16, torch.float32, "cpu", 3)
    assert [str(shape) for shape in made] == ["b1 n16 32→32 d4 θ64"]
