"""`plmu bench layers` and `plmu bench algorithms`: which tables they have, and tokens per second."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch

import plmu
from plmu.bench import algorithms, layers, measure, problems
from plmu.bench.problems import Problem, Shape

Calls = dict[str, Callable[[], Any]]


class Tables:
    """Measures nothing: notes what each row was asked for, and whether it was planned for graphs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.released, self.in_graphs = 0, False
        monkeypatch.setattr(plmu, "for_graphs", self.for_graphs)
        monkeypatch.setattr(algorithms, "over_the_gemm", self.row("gemm"))
        monkeypatch.setattr(algorithms, "choice", self.row("choice"))
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
    found = [*layers.measured("cpu", 3), *algorithms.measured("cpu", 3)]
    names = [name for name, _ in found]
    assert [names.count(name) for name in dict.fromkeys(names)] == [12, 4, 4, 6]
    assert list(dict.fromkeys(names)) == ["whole layers", "length", "over the GEMM", "auto against every algorithm"]
    first, second, third, fourth = (str(shape) for shape in problems.CPU_SHAPES)
    budgets = [(first, 1 << 16), (second, 1 << 16), (second, 1 << 18), (third, 1 << 14), (fourth, 1 << 14)]
    budgets.append((fourth, 1 << 17))
    projected = [str(shape) for kind, shape in problems.CPU_CHOICES if kind == "project"]
    given = ("torch.float32", "cpu", "3", {})
    assert tables.asked == [
        *(("whole", shape, str(budget), *given, True) for shape, budget in budgets),
        *(("length", str(time), "8192", *given, True) for time in (1024, 2048, 4096, 8192)),
        *(("gemm", shape, *given, True) for shape in (first, second, third, fourth)),
        *(("choice", shape, *given, False) for shape in projected),
    ]
    assert tables.released == 0


def test_the_tables_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16; beside the GEMM in float32 too. Graphs are planned as graphs, and their memory is given back."""
    tables = Tables(monkeypatch)
    found = [name for kind in (layers, algorithms) for name, _ in kind.measured("cuda:1", 3)]
    whole = [one for one in tables.asked if one[0] == "whole"]
    assert {(*one[3:5], one[-1]) for one in whole} == {("torch.bfloat16", "cuda:1", True)}
    assert [one[1:3] for one in tables.asked if one[0] == "gemm"] == [
        (str(shape), dtype) for dtype in ("torch.bfloat16", "torch.float32") for shape in problems.GPU_SHAPES
    ]
    given = ("torch.bfloat16", "cuda:1", "3")
    shapes, choices = ([str(shape) for shape in some] for some in (problems.GPU_SHAPES, problems.GPU_CHOICES))
    assert [one for one in tables.asked if one[0] == "choice"] == [
        *(("choice", shape, *given, {}, False) for shape in choices),
        *(("choice", shape, *given, {"graphs": True, "reset_interval": None}, True) for shape in choices),
        *(("choice", shape, *given, {"graphs": True, "reset_interval": 100}, True) for shape in shapes),
    ]
    assert [one for one in tables.asked if one[0] == "length"] == [
        ("length", str(1 << k), str(1 << 20), *given, {}, True) for k in range(10, 21)
    ]
    assert list(dict.fromkeys(found))[3:] == [algorithms.CHOICES, algorithms.GRAPHS, algorithms.RESETS]
    assert [found.count(name) for name in (algorithms.CHOICES, algorithms.GRAPHS, algorithms.RESETS)] == [12, 12, 4]
    assert tables.released == len(whole) + 8 + 12 + 4, "after every row of graphs"


@pytest.mark.parametrize("kind", [layers, algorithms], ids=["layers", "algorithms"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_a_gpu_all_is_on_a_stream_of_its_own(device: str, kind: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[object] = []

    @contextmanager
    def stream(one: object) -> Iterator[None]:
        entered.append(one)
        yield
        entered.append("left")

    monkeypatch.setattr(torch.cuda, "Stream", lambda: "a new one")
    monkeypatch.setattr(torch.cuda, "stream", stream)
    rows = [("a", {"row": 1}), ("b", {"row": 2}), ("a", {"row": 3})]
    monkeypatch.setattr(kind, "measured", lambda device, rounds: iter(rows if rounds == 7 and not entered[1:] else []))
    kept: list[int] = []
    found = kind.run(device, 7, lambda tables: kept.append(sum(map(len, tables.values()))))
    assert found == {"a": [{"row": 1}, {"row": 3}], "b": [{"row": 2}]}
    assert kept == [1, 2, 3]
    assert entered == ([] if device == "cpu" else ["a new one", "left"])


@pytest.mark.parametrize(("device", "width"), [("cpu", 32), ("meta", 256)])
def test_tokens_per_second(device: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[Any] = []
    monkeypatch.setattr(measure, "graphed", lambda call: ("graph", call))

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
