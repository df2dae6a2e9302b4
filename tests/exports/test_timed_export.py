"""Exports of `TimedDelayLayer`: any interval, from none to longer than the memory lasts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from closeness import within
from ctested import CModel, compiled
from exported import TOLERANCE, Session, program
from test_c import needs_compiler
from torch import Tensor

import plmu
from plmu.exports.evaluate import Evaluator
from plmu.exports.onnx_model import step_model
from plmu.exports.timed import _moves

CASES = [(1, 5.0), (3, 0.02), (6, 40.0), (12, 1e5), (40, 300.0)]
ids = [f"order {order}, theta {theta:g}" for order, theta in CASES]


def layer(order: int, theta: float) -> Any:
    return plmu.TimedDelayLayer(2, order, theta).eval()


def samples(theta: float) -> list[Tensor]:
    """Intervals of all sizes, from those that change almost nothing to those after which nothing is left."""
    torch.manual_seed(0)
    fractions = [0.0, 1.0, 1e-7, 0.3, 1e-3, 0.01, 0.1, 0.77, 1e-5, 0.05, 3.0, 0.2, 40.0, 0.4, 1000.0, 0.1, 1e20, 0.1]
    return [
        torch.cat([torch.tensor([[f * theta]]), torch.randn(1, 2)], 1) for f in [*fractions, *torch.rand(10).tolist()]
    ]


def expected(model: Any, theta: float) -> list[Tensor]:
    """In float64, from the same float32 samples."""
    outputs, state = [], None
    for x in samples(theta):
        y, state = model.step(x.double(), state)
        outputs.append(y)
    return outputs


@pytest.mark.parametrize(("order", "theta"), CASES, ids=ids)
def test_the_algorithm_is_exact(order: int, theta: float) -> None:
    """In float64 only the rounding of its constants to float32 is left."""
    model = layer(order, theta)
    evaluator = Evaluator(program(model), dtype=torch.float64)
    for x, y in zip(samples(theta), expected(model, theta), strict=True):
        within(float((evaluator.step(x.double()) - y).abs().max()), TOLERANCE)


@pytest.mark.parametrize(("order", "theta"), CASES, ids=ids)
def test_onnx(order: int, theta: float) -> None:
    model = layer(order, theta)
    made = program(model)
    session = Session(step_model(made, {}), made)
    for x, y in zip(samples(theta), expected(model, theta), strict=True):
        within(float((session(x) - y).abs().max()), TOLERANCE)


@needs_compiler
@pytest.mark.parametrize(("order", "theta"), CASES, ids=ids)
def test_c(order: int, theta: float, tmp_path: Path) -> None:
    model = layer(order, theta)
    plmu.export(model, tmp_path, to="c")
    stream = CModel(compiled(tmp_path, "model"), program(model))
    for x, y in zip(samples(theta), expected(model, theta), strict=True):
        within(float((stream(x) - y).abs().max()), TOLERANCE)


@needs_compiler
@pytest.mark.parametrize("wrong", [-1e-9, -3.0, torch.nan, torch.inf, -torch.inf])
def test_what_is_no_interval_gives_nan(wrong: float, tmp_path: Path) -> None:
    model = layer(3, 5.0)
    with pytest.raises(ValueError, match="the time since the step before"):
        model.step(torch.tensor([[wrong, 1.0, 1.0]]))
    made = program(model)
    plmu.export(model, tmp_path, to="c")
    stream, session = CModel(compiled(tmp_path, "model"), made), Session(step_model(made, {}), made)
    evaluator = Evaluator(made)
    right = torch.tensor([[0.5, 1.0, 1.0]])
    for run in (stream, session, evaluator.step):
        assert run(right).isfinite().all()
        assert run(torch.tensor([[wrong, 1.0, 1.0]])).isnan().all()
        assert run(right).isnan().all()  # up to a reset
    stream.reset()
    session.states = evaluator.states = None
    for run in (stream, session, evaluator.step):
        assert run(right).isfinite().all()


def test_each_row_has_its_own_interval() -> None:
    model = layer(4, 7.0)
    made = program(model)
    x = torch.tensor([[0.5, 1.0, -1.0], [0.0, 0.2, 0.3], [90.0, 1.0, 2.0]])
    session, state = Session(step_model(made, {}), made), None
    for _ in range(3):
        y, state = model.step(x, state)
        within(float((session(x) - y).abs().max()), TOLERANCE)


@pytest.mark.parametrize(("order", "theta"), CASES, ids=ids)
def test_the_moves_reach_the_end_of_the_memory(order: int, theta: float) -> None:
    rate = program(layer(order, theta)).operations[1].rate.double()
    moves, unit, near = _moves(rate)
    assert 0.125 < float(rate.abs().sum(1).max()) * unit <= 0.25
    assert 0 < near < len(moves) <= 24
    assert float(moves[-1][:, :order].norm()) < 1e-30
    assert float(moves[-2][:, :order].norm()) >= 1e-30
