"""The benchmarks measure what their committed results on a GPU say: the same shapes, tasks, models and sizes."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plmu.bench import complexity, layers, peers, problems, training_time, whole_layers

RESULTS = Path(__file__).parents[2] / "results"


def committed(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"bench-{name}-cuda.json").read_text(encoding="utf-8"))


def test_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same shapes in every table, and in *whole layers* the same widths and numbers of parameters."""

    def row(shape: problems.Shape, dtype: torch.dtype, *given: object, **options: object) -> dict[str, str]:
        return {"shape": str(shape), "dtype": str(dtype).removeprefix("torch.")}

    def whole(shape: problems.Shape, budget: int, dtype: torch.dtype, *given: object) -> list[dict[str, object]]:
        return [{**row(shape, dtype), "budget": budget, "layer": name} for name in peers.LAYERS]

    monkeypatch.setattr(layers, "over_the_gemm", row)
    monkeypatch.setattr(layers, "choice", row)
    monkeypatch.setattr(layers, "tokens_per_second", lambda time, *given: {"time": time})
    monkeypatch.setattr(whole_layers, "compared", whole)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    found: dict[str, list[dict[str, object]]] = {}
    for name, one in layers.measured("cuda", 1):
        found.setdefault(name, []).append(one)
    written = committed("layers")
    for name, rows in found.items():
        assert [{key: one[key] for key in rows[0]} for one in written[name]] == rows, name
    assert not written.get("unfinished")
    shapes = {str(shape): shape for shape in problems.GPU_SHAPES}
    for one in written[layers.WHOLE]:
        if one["layer"] in ("ours", "causal attention", "LSTM"):
            layer = peers.LAYERS[one["layer"]][0](shapes[one["shape"]], one["budget"])
            assert (one["parameters"], one["width"]) == (layer.parameter_count(), layer.width)


def test_layers_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small enough for a few cores, in float32."""

    def row(shape: layers.Shape, dtype: torch.dtype, *given: object, **options: object) -> tuple[str, torch.dtype]:
        return str(shape), dtype

    monkeypatch.setattr(layers, "against", row)
    monkeypatch.setattr(layers, "choice", row)
    monkeypatch.setattr(layers, "lengths", lambda *given: [])
    shapes = [
        "b8 n256 64→64 d4 θ6",
        "b8 n180 64→64 d16 θ15",
        "b2 n1024 64→64 d4 θ8",
        "b2 n512 64→64 d32 θ128",
    ]
    further = ["b2 n2000 1→140 d40 θ50", "b4 n20 32→32 d8 θ20"]
    assert layers.run("cpu", 1) == {
        "against the limit and peers": [(shape, torch.float32) for shape in shapes],
        "auto against every algorithm": [(shape, torch.float32) for shape in (*shapes, *further)],
        "length": [],
    }


def test_layers_over_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[layers.Shape] = []

    def problem(shape: layers.Shape, dtype: torch.dtype, device: str) -> SimpleNamespace:
        made.append(shape)
        return SimpleNamespace(project=lambda algorithm: algorithm, u=None, weight=None)

    monkeypatch.setattr(layers, "Problem", problem)
    monkeypatch.setattr(layers, "training", lambda call, *leaves: call)
    monkeypatch.setattr(layers, "graphed", lambda call: call)
    monkeypatch.setattr(layers, "medians", lambda calls, *, device, rounds: dict.fromkeys(calls, 0.5))
    found, written = layers.lengths(torch.bfloat16, "cuda", 1), committed("layers")["length"]
    assert [(row["time"], row["batch"]) for row in found] == [(row["time"], row["batch"]) for row in written]
    assert {row["tokens per second"] for row in found} == {2.0 * written[0]["time"] * written[0]["batch"]}
    assert {str(shape).split(maxsplit=2)[2] for shape in made} == {"256→256 d4 θ64"}
    found = layers.lengths(torch.float32, "cpu", 1)
    assert [(row["time"], row["batch"]) for row in found] == [(1024, 8), (2048, 4), (4096, 2), (8192, 1)]
    assert str(made[-1]) == "b1 n8192 32→32 d4 θ64"


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
