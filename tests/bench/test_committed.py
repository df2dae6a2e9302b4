"""The benchmarks measure what their committed results on a GPU say: the same shapes, tasks, models and sizes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from plmu.bench import algorithms, complexity, layers, peers, problems, training_time, whole_layers

RESULTS = Path(__file__).parents[2] / "results"


def committed(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"bench-{name}-cuda.json").read_text(encoding="utf-8"))


@pytest.mark.usefixtures("all_layers")
def test_layers_and_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same shapes in every table, and the same numbers of parameters."""

    def row(shape: problems.Shape, dtype: torch.dtype, *given: object, **options: object) -> dict[str, str]:
        return {"shape": str(shape), "dtype": str(dtype).removeprefix("torch.")}

    def whole(shape: problems.Shape, budget: int, dtype: torch.dtype, *given: object) -> list[dict[str, object]]:
        return [{**row(shape, dtype), "budget": budget, "layer": name} for name in peers.LAYERS]

    monkeypatch.setattr(algorithms, "over_the_gemm", row)
    monkeypatch.setattr(algorithms, "choice", row)
    monkeypatch.setattr(
        layers, "tokens_per_second", lambda time, tokens, *given: {"time": time, "batch": tokens // time}
    )
    monkeypatch.setattr(whole_layers, "compared", whole)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    for kind, file in ((layers, "layers"), (algorithms, "algorithms")):
        found: dict[str, list[dict[str, object]]] = {}
        for name, one in kind.measured("cuda", 1):
            found.setdefault(name, []).append(one)
        written = committed(file)
        for name, rows in found.items():
            assert [{key: one[key] for key in rows[0]} for one in written[name]] == rows, name
        assert not written.get("unfinished")


def test_training_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_time, "step_times", lambda *given: {"eager": 2.0, "graph": 1.0})
    found, written = training_time.run("cuda", 1), committed("training-time")
    for name, keys in (("training step", ("task", "steps", "batch", "model")), ("over the length", ("steps",))):
        assert [[one[key] for key in keys] for one in found[name]] == [
            [one[key] for key in keys] for one in written[name]
        ]
    assert [list(one) for one in found["over the length"]] == [list(one) for one in written["over the length"]]
    assert found["training step"][0]["milliseconds"] == {"eager": 2000.0, "graph": 1000.0}
    assert found["over the length"][0]["milliseconds, LTI"] == 1000.0


def test_complexity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complexity, "check", lambda layer: None)
    monkeypatch.setattr(complexity, "points_of", lambda *given: [(1, 9.0), (2, 1.0), (4, 2.0), (8, 4.0)])
    found, written = complexity.run("cuda", 1), committed("complexity")
    assert found["base"] == written["base"]
    keys = ("layer", "paper", "size", "expected")
    assert [[one[key] for key in keys] for one in found["growth"]] == [
        [one[key] for key in keys] for one in written["growth"]
    ]
    assert found["growth"][0]["growth"] == pytest.approx(1.0), "of the last three points"
    assert found["growth"][0]["points"][0] == {"size": 1, "milliseconds": 9000.0}
