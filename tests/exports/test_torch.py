"""Programs of torch.export: any batch and length, and no plmu where they run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from closeness import assert_same
from exported import NAMES, inputs, model_of, program
from test_forecast_export import model_of as forecast_of
from torch import nn

import plmu
from plmu.exports.torch_program import METADATA, runs_whole
from plmu.runtime.state_tree import leaves

# What a runtime of Core ATEN takes beside operations with its tag: products of sizes, and assertions, which it drops.
PLAIN = {"<built-in function mul>", "<built-in function getitem>", "aten._assert_tensor_metadata.default"}
ROUNDINGS = 10_000  # a state is a sum over many steps; see `assert_same`


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def check(model: Any, folder: Path) -> plmu.exports.Exported:
    """The programs against the model, from a state that is not zero."""
    written = plmu.export(model, folder, to="torch", metadata={"units": "mV"})
    made = program(model)
    names = {one.name: one for one in written.files}
    extra = {METADATA: ""}
    step = torch.export.load(names["model_step.pt2"], extra_files=extra).module()
    assert json.loads(extra[METADATA])["units"] == "mV"
    whole = torch.export.load(names["model.pt2"]).module() if "model.pt2" in names else None
    with torch.no_grad():
        for batch, time in ((1, 1), (3, 70)):
            x = inputs(made, batch, time)
            _, start = model(inputs(made, batch, 3))
            given = [one.clone() for one in leaves(start)]
            y, *states = step(x[:, 0], *given)
            expected, state = model.step(x[:, 0], start)
            assert_same((y, states), (expected, leaves(state)), ROUNDINGS)
            if whole is not None:
                y, *states = whole(x, *given)
                expected, state = model(x, start)
                assert_same((y, states), (expected, leaves(state)), ROUNDINGS)
    assert ("model.pt2" in names) == runs_whole(model)
    assert not not_core(names["model_step.pt2"])
    return written


def not_core(path: Path) -> set[str]:
    """The operations of a program that are not in Core ATEN, so that ExecuTorch refuses it."""
    graph = torch.export.load(path).run_decompositions().graph
    targets = {node.target for node in graph.nodes if node.op == "call_function"}
    assert targets
    names = {str(target) for target in targets if torch.Tag.core not in getattr(target, "tags", ())}
    return names - PLAIN


def stack() -> Any:
    return plmu.Sequential(nn.Linear(3, 3), plmu.ParallelLMU(3, 4, order=4, theta=7.0), nn.Tanh()).eval()


@pytest.mark.filterwarnings("ignore")  # of torch, about its own code
def test_a_stack(tmp_path: Path) -> None:
    for path in check(stack(), tmp_path).files[:2]:
        graph = torch.export.load(path).graph
        targets = {str(node.target) for node in graph.nodes if node.op == "call_function"}
        own = {one for one in targets if "plmu" in one}
        assert targets
        assert not own


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_where_there_is_no_plmu(tmp_path: Path) -> None:
    plmu.export(stack(), tmp_path, to="torch")
    script = f"""
import sys
sys.modules["plmu"] = None
import torch
run = torch.export.load({str(tmp_path / "model.pt2")!r}).module()
y, m = run(torch.ones(2, 5, 3), torch.zeros(2, 4, 1))
print(tuple(y.shape), tuple(m.shape))
"""
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "(2, 5, 4) (2, 4, 1)\n"


@pytest.mark.filterwarnings("ignore")
def test_the_original_lmu_has_a_step_alone(tmp_path: Path) -> None:
    layer = plmu.LMU(3, 4, order=4, theta=7.0)
    written = check(layer, tmp_path)
    assert any("one step after another" in note for note in written.notes)
    with pytest.raises(ValueError, match="whole cannot be had for torch: the model runs one"):
        plmu.export(layer, tmp_path / "other", to="torch", whole=True)
    assert not (tmp_path / "other").exists()


@pytest.mark.filterwarnings("ignore")
def test_irregular_times(tmp_path: Path) -> None:
    """The step is without the exponential of a matrix, which few runtimes have; sequences have any length."""
    model = model_of("timed")
    check(model, tmp_path)
    run = torch.export.load(tmp_path / "model.pt2").module()
    for batch, time in ((1, 1), (2, 15), (1, 16), (3, 17), (1, 256), (2, 257), (1, 1000)):
        x, state = inputs(program(model), batch, time), torch.randn(batch, 4, 2)
        with torch.no_grad():
            y, last = run(x, state)
            expected, after = model(x, (state, ()))
            assert_same((y, last), (expected, leaves(after)[0]), ROUNDINGS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.full
def test_after_what_is_no_interval_a_sequence_is_nan(tmp_path: Path) -> None:
    """As in the other formats, and nothing before."""
    plmu.export(plmu.TimedDelayLayer(2, 4, 7.0), tmp_path, to="torch")
    run = torch.export.load(tmp_path / "model.pt2").module()
    for wrong in (-1.0, torch.nan, torch.inf):
        x = torch.rand(2, 40, 3)
        x[1, 20, 0] = wrong
        y, state = run(x, torch.zeros(2, 4, 2))
        assert y[0].isfinite().all()
        assert y[1, :20].isfinite().all()
        assert y[1, 20:].isnan().all()
        assert state[1].isnan().all()


@pytest.mark.filterwarnings("ignore")
def test_a_trained_window_is_a_constant_of_the_step(tmp_path: Path) -> None:
    check(model_of("original, trained"), tmp_path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["season", "covariates"])
def test_steps_of_forecasts_are_core_operations(name: str, tmp_path: Path) -> None:
    plmu.export(forecast_of(name), tmp_path, to="torch")
    assert not not_core(tmp_path / "model_step.pt2")


@pytest.mark.filterwarnings("ignore")
def test_a_weighted_stack_of_one_module(tmp_path: Path) -> None:
    check(plmu.WeightedStack(plmu.ParallelLMU(3, 4, order=4, theta=7.0)).eval(), tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_a_model_without_a_state(tmp_path: Path) -> None:
    check(plmu.Sequential(nn.Linear(3, 2), nn.Tanh()), tmp_path)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_every_model(name: str, tmp_path: Path) -> None:
    check(model_of(name), tmp_path)
