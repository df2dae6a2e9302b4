"""ONNX models in ONNX Runtime: the same numbers as PyTorch, for any batch and length."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from closeness import within
from exported import NAMES, TOLERANCE, Session, inputs, model_of, program, relative
from torch import nn

import plmu
from plmu.exports.evaluate import Evaluator
from plmu.exports.onnx_model import step_model, whole_model
from plmu.runtime.state_tree import leaves


@pytest.mark.parametrize("name", NAMES)
def test_steps(name: str) -> None:
    model = model_of(name)
    made, folded = program(model), plmu.fold(model)
    session, state = Session(step_model(made, {}), made), None
    for x in inputs(made, 8, 3):
        expected, state = folded.step(x, state)
        within(relative(session(x), expected), TOLERANCE)
    for found, expected in zip(session.states, leaves(state), strict=True):
        within(relative(torch.from_numpy(found), expected), TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_whole_sequences_and_pieces_of_them(name: str) -> None:
    model = model_of(name)
    made = program(model)
    session = Session(whole_model(made, {}, model.returns_sequences), made)
    x, state = inputs(made, 2, 20), None
    with torch.no_grad():
        for piece in (x[:, :1], x[:, 1:]):
            expected, state = model(piece, state)
            within(relative(session(piece), expected), TOLERANCE)
        for found, expected in zip(session.states, leaves(state), strict=True):
            within(relative(torch.from_numpy(found), expected), TOLERANCE)


def test_ten_thousand_steps_as_a_whole() -> None:
    """The model of Mackey-Glass; `test_long_sequences.py` has step models."""
    torch.manual_seed(0)
    model = plmu.Sequential(
        plmu.ParallelLMU(1, 140, order=40, theta=50.0, output_activation="gelu"),
        nn.Linear(140, 80), nn.GELU(), nn.Linear(80, 1),
    )  # fmt: skip
    made = program(model)
    x = inputs(made, 1, 10_000)
    with torch.no_grad():
        expected, _ = model(x)
    within(relative(Session(whole_model(made, {}, True), made)(x), expected), TOLERANCE)


def test_the_last_output_alone_where_the_model_gives_it(tmp_path: Path) -> None:
    layer = plmu.ParallelLMU(3, 4, order=4, theta=7.0, return_sequences=False)
    plmu.export(layer, tmp_path, whole=True)
    made = program(layer)
    x = inputs(made, 3, 17)
    with torch.no_grad():
        expected, _ = layer(x)
    within(relative(Session(tmp_path / "model.onnx", made)(x), expected), TOLERANCE)


@pytest.mark.parametrize("missing", ["hold", "zero"])
def test_missing_values(missing: str) -> None:
    model = plmu.ParallelLMU(3, 4, order=4, theta=7.0, missing=missing)
    made, folded = program(model), plmu.fold(model)
    session, state = Session(step_model(made, {}), made), None
    for x in inputs(made, 12, 2):
        x[torch.rand(x.shape) < 0.4] = torch.nan
        expected, state = folded.step(x, state)
        within(relative(session(x), expected), TOLERANCE)


def test_names_shapes_and_metadata(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = plmu.Sequential(plmu.LMU(3, 6, order=4, theta=7.0, memory_size=2), plmu.CausalAttention(6, 1, 3))
    written = plmu.export(model, tmp_path, name="net", metadata={"classes": ["no", "yes"], "units": "mV", "dt": 0.01})
    assert [one.name for one in written.files] == ["net_step.onnx", "net.onnx.json"]
    found = onnx.load(written.files[0])
    assert [one.name for one in found.graph.input] == ["x", *(f"state_{i}_in" for i in range(5))]
    assert [one.name for one in found.graph.output] == ["y", *(f"state_{i}_out" for i in range(5))]
    metadata = {one.key: one.value for one in found.metadata_props}
    assert metadata["units"] == "mV"
    assert (json.loads(metadata["classes"]), json.loads(metadata["dt"])) == (["no", "yes"], 0.01)
    assert metadata["plmu"] == plmu.__version__
    states = json.loads(metadata["states"])
    assert [one["kind"] for one in states] == ["hidden", "memory", "keys", "values", "steps seen"]
    start = model.initial_state(1, torch.float32, torch.device("cpu"))
    assert [one["shape"][1:] for one in states] == [list(one.shape[1:]) for one in leaves(start)]
    assert {one.domain for one in found.opset_import} == {""}  # no operations of one runtime alone


def test_int8_is_smaller_and_near(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = plmu.Sequential(nn.Embedding(50, 32), plmu.ParallelLMU(32, 64, order=8, theta=20.0), nn.Linear(64, 50))
    exact, small = (plmu.export(model, tmp_path / str(int8), int8=int8) for int8 in (False, True))
    assert small.files[0].stat().st_size < 0.5 * exact.files[0].stat().st_size
    assert exact.int8_error is None
    assert small.int8_error is not None
    assert 0 < small.int8_error < 0.02
    made = program(model, int8=True)
    session, evaluator = Session(small.files[0], made), Evaluator(made, int8=True)
    for x in inputs(made, 10, 2):
        within(relative(session(x), evaluator.step(x)), TOLERANCE)


def test_a_token_that_is_not_there_is_refused() -> None:
    made = program(plmu.Sequential(nn.Embedding(9, 3), nn.Linear(3, 2)))
    session = Session(step_model(made, {}), made)
    with pytest.raises(Exception, match="out of"):
        session.session.run(None, {"x": np.array([9])})
