"""The benchmarks measure what their committed results on a GPU say: the same shapes, tasks, models and sizes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from plmu.bench import complexity, layers, training_time

RESULTS = Path(__file__).parents[2] / "results"


def committed(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"bench-{name}-cuda.json").read_text(encoding="utf-8"))


def test_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(shape: layers.Shape, dtype: torch.dtype, *given: object, **options: object) -> dict[str, str]:
        return {"shape": str(shape), "dtype": str(dtype).removeprefix("torch.")}

    monkeypatch.setattr(layers, "against", row)
    monkeypatch.setattr(layers, "choice", row)
    monkeypatch.setattr(layers, "lengths", lambda *given: [])
    found, written = layers._run("cuda", 1), committed("layers")
    for name in found.keys() - {"length"}:
        kept = [{key: one[key].removeprefix("torch.") for key in ("shape", "dtype")} for one in written[name]]
        assert found[name] == kept, name


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
