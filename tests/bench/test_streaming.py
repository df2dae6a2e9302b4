"""`plmu bench streaming`: which models, what their steps are held against, and that a wrong stream is never timed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import plmu
from plmu.bench import streaming
from plmu.nn.memory import Memory


def memory(model: torch.nn.Module) -> Memory:
    (found,) = [module for module in model.modules() if isinstance(module, Memory)]
    return found


def test_the_models_are_those_of_the_experiments() -> None:
    models = streaming.models()
    assert [memory(model).extra_repr() for model in models.values()] == [
        "width=1, order=468, theta=784",
        "width=1, order=40, theta=50",
        "width=300, order=1, theta=500",
        "width=1, order=256, theta=784",
    ]
    for name, model in models.items():
        assert f"order {memory(model).order}" in name
    dense = [
        [tuple(module.weight.shape) for module in model.modules() if isinstance(module, torch.nn.Linear)]
        for model in models.values()
    ]
    assert dense[1][-2:] == [(80, 140), (1, 80)]
    assert dense[2] == [(2, 300)]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, int]]:
    """Candidates by name, and how many rounds; a product takes 2 µs, anything else 6."""
    found: dict[str, tuple[Any, int]] = {}

    def medians(candidates: dict[str, Callable[[], Any]], *, rounds: int) -> dict[str, float]:
        found.update({name: (call(), rounds) for name, call in candidates.items()})
        return {name: 2e-6 if name == "products" else 6e-6 for name in candidates}

    monkeypatch.setattr(streaming, "medians", medians)
    return found


def test_a_step_is_held_against_its_products(
    timed: dict[str, tuple[Any, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, ...]] = []
    product = torch.mv
    monkeypatch.setattr(torch, "mv", lambda a, b: sizes.append(tuple(a.shape)) or product(a, b))
    model = plmu.Sequential(plmu.ParallelLMU(1, 3, order=4, theta=7.0, memory_size=2), torch.nn.Linear(3, 5))
    monkeypatch.setattr(streaming, "models", lambda: {"small": model})
    kept: list[list[str]] = []
    steps = streaming.run("cpu", 7, lambda found: kept.append([row["model"] for row in found["steps"]]))["steps"]
    first, lstm = steps
    assert kept == [["small"]]
    assert 0 <= first.pop("error") < 1e-4
    assert first == {
        "model": "small",
        "microseconds": pytest.approx(6.0),
        "microseconds of the products alone": pytest.approx(2.0),
        "over the products": pytest.approx(3.0),
    }
    assert lstm == {"model": "torch LSTM on psMNIST: 200 units", "microseconds": pytest.approx(6.0)}
    weights = [tuple(value.flatten(1).shape) for value in model.parameters() if value.dim() > 1]
    assert sorted(sizes) == sorted([*weights, (4, 4)]), "every weight and Ā, once"
    assert len(weights) == 4
    assert {rounds for _, rounds in timed.values()} == {7}
    assert timed["push"][0].shape == (5,)
    out, (hidden, cell) = timed["LSTM"][0]
    assert (out.shape, hidden.shape, cell.shape) == ((1, 1, 200),) * 3


def test_a_stream_that_differs_is_never_timed(
    timed: dict[str, tuple[Any, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any of the first fifty steps."""
    push, steps = plmu.Stream.push, []

    def wrong(self: plmu.Stream, sample: torch.Tensor) -> torch.Tensor:
        steps.append(1)
        return push(self, sample) * (1.01 if len(steps) == 50 else 1.0)

    monkeypatch.setattr(plmu.Stream, "push", wrong)
    monkeypatch.setattr(streaming, "models", lambda: {"small": plmu.DelayLayer(1, order=1, theta=500.0)})
    with pytest.raises(RuntimeError, match=r"small: the stream differs from the whole sequence by \d\.\de-03"):
        streaming.run("cpu", 1)
    assert (len(steps), timed) == (50, {})
