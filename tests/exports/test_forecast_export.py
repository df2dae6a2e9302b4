"""Exports of forecasts: the window, the first step, a season that goes round, and covariates."""

import json
from pathlib import Path

import pytest
import torch
from closeness import within
from ctested import CModel, compiled
from exported import TOLERANCE, Session, program, relative
from test_c import needs_compiler, run_check

import plmu
from plmu.exports.evaluate import Evaluator
from plmu.exports.onnx_model import step_model
from plmu.exports.program import Season
from plmu.nn import CovariateForecast, LookbackForecast

CASES = {
    "plain": {"channels": 1, "season": 0},
    "season": {"channels": 1, "season": 5, "phase": 3},
    "a long season": {"channels": 2, "season": 37, "phase": 20},
    "channels": {"channels": 3, "season": 4, "individual": True},
    "covariates": {"channels": 2, "covariates": 3, "season": 4, "lags": 5, "lag_order": 2},
    "relative": {"channels": 2, "covariates": 1, "relative": True},
}


def model_of(name: str) -> LookbackForecast:
    torch.manual_seed(2)
    kind = CovariateForecast if "covariates" in CASES[name] else LookbackForecast
    model: LookbackForecast = kind(horizon=4, order=5, theta=9.0, lookback=8, **CASES[name])  # type: ignore[arg-type]
    with torch.no_grad():
        if isinstance(model, CovariateForecast):
            model.effect_weight.normal_()
        model.weight.normal_()
        model.season_pattern.normal_()
        model.prior.uniform_(0.1, 2.0)
    return model.eval()


def samples(model: LookbackForecast, steps: int) -> torch.Tensor:
    """So that the amplitude of the season reaches both of its limits."""
    return torch.randn(steps, 2, model.input_size) * torch.linspace(0.1, 6, steps)[:, None, None]


@pytest.mark.parametrize("name", CASES)
def test_a_program_takes_the_models_steps(name: str) -> None:
    model = model_of(name)
    evaluator, state = Evaluator(program(model)), None
    with torch.no_grad():
        for x in samples(model, 50):
            expected, state = model.step(x, state)
            within(relative(evaluator.step(x), expected), TOLERANCE)


@pytest.mark.parametrize("season", [1, 2, 3, 7, 24, 365])
def test_every_phase_of_a_season(season: int) -> None:
    """Also where a window is longer than the season, and one from which each step may begin."""
    torch.manual_seed(season)
    model = LookbackForecast(1, horizon=4, order=5, theta=9.0, lookback=8, season=season, phase=season - 1)
    with torch.no_grad():
        model.weight.normal_()
        model.season_pattern.normal_()
        evaluator, state = Evaluator(program(model.eval())), None
        for x in torch.randn(season + 9, 2, 1):
            expected, state = model.step(x, state)
            within(relative(evaluator.step(x), expected), TOLERANCE)


def test_a_long_season_takes_little_room() -> None:
    """Days with a course over week and year have 2,557 phases: a table of all windows would have 230,000 numbers."""
    layer = LookbackForecast(1, horizon=30, order=5, theta=60.0, lookback=60, season=2557)
    numbers = sum(one.numel() for operation in program(layer).operations for one in operation.constants())
    assert numbers < 2557 + 2 * 30 * 60 + 64 * (64 + 64 + 90)


@pytest.mark.parametrize("season", [1, 5, 24])
def test_a_program_starts_at_any_step(season: int) -> None:
    """Also at phase 0, where a state of zeros means the layer's own phase."""
    torch.manual_seed(season)
    model = LookbackForecast(1, horizon=4, order=5, theta=9.0, lookback=8, season=season, phase=season // 2)
    with torch.no_grad():
        model.weight.normal_()
        model.season_pattern.normal_()
        exported = program(model.eval())
        assert exported.seasons == (Season(1, season, season // 2),)
        for start in range(season):
            evaluator, state = Evaluator(exported), model.state_at(start + 7 * season)
            evaluator.states = [leaf.flatten(1) for leaf in state]
            for x in torch.randn(12, 1, 1):
                expected, state = model.step(x, state)
                within(relative(evaluator.step(x), expected), TOLERANCE)


def test_the_start_of_a_season_is_said(tmp_path: Path) -> None:
    written = plmu.export(model_of("season"), tmp_path, to="c")
    assert "season of 5 steps: a stream starts at phase 3, or anywhere by model_start(&state, step)" in written.notes
    assert "void model_start(model_state *state, int64_t step);" in (tmp_path / "model.h").read_text()
    states = json.loads((tmp_path / "model.c.json").read_text())["states"]
    assert states[1] | {"kind": ""} == {
        "name": "state_1", "kind": "", "shape": ["batch", 2], "type": "float64", "start": 0,
        "season": 5, "phase": 3, "start_at_step": ["step", -1],
    }  # fmt: skip
    plmu.export(model_of("plain"), tmp_path / "plain", to="c")
    assert "model_start" not in (tmp_path / "plain" / "model.h").read_text()


@pytest.mark.parametrize("name", CASES)
def test_onnx(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    written = plmu.export(model, tmp_path, to="onnx")
    session, state = Session(written.files[0], program(model)), None
    with torch.no_grad():
        for x in samples(model, 20):
            expected, state = model.step(x, state)
            within(relative(session(x), expected), TOLERANCE)


@needs_compiler
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["channels"] > 1])
def test_nan_stays_in_its_channel(name: str, tmp_path: Path) -> None:
    """And ends with the window, as in Python."""
    model = model_of(name)
    made, state = program(model), None
    plmu.export(model, tmp_path, to="c")
    runs = [Evaluator(made).step, Session(step_model(made, {}), made), CModel(compiled(tmp_path, "model"), made)]
    x = samples(model, 30)[:, :1].double()
    x[11, 0, 0] = torch.nan
    with torch.no_grad():
        for sample in x:
            expected, state = model.step(sample, state)
            for run in runs:
                torch.testing.assert_close(
                    run(sample), expected, rtol=0, atol=TOLERANCE * expected.nan_to_num().abs().max(), equal_nan=True
                )
            assert expected.isnan().sum() in (0, model.horizon)


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_c(name: str, tmp_path: Path) -> None:
    plmu.export(model_of(name), tmp_path, to="c")
    assert "relative error" in run_check(tmp_path, "-O0")


@pytest.mark.parametrize("name", ["season", "covariates"])
def test_torch_takes_any_batch_and_length(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    written = plmu.export(model, tmp_path, to="torch")
    whole = torch.export.load({one.name: one for one in written.files}["model.pt2"]).module()
    with torch.no_grad():
        for batch, time in ((1, 1), (3, 40)):
            x = torch.randn(batch, time, model.input_size, dtype=torch.float64)
            _, start = model(torch.randn(batch, 3, model.input_size, dtype=torch.float64))
            y, *states = whole(x, *(one.clone() for one in start))
            expected, state = model(x, start)
            torch.testing.assert_close(y, expected)
            for found, one in zip(states, state, strict=True):
                torch.testing.assert_close(found, one)


@pytest.mark.parametrize("to", ["onnx", pytest.param("c", marks=needs_compiler)])
def test_int8_rounds_the_readout(to: str, tmp_path: Path) -> None:
    """The error on a series far from zero is that of its changes; the files have a quarter of the weights."""
    torch.manual_seed(0)
    model = LookbackForecast(2, horizon=6, order=5, theta=30.0, lookback=30, season=7)
    with torch.no_grad():
        model.weight.normal_()
        model.season_pattern.normal_()
    samples = torch.randn(60, 2, dtype=torch.float64)
    plain, *rounded = (
        plmu.export(model, tmp_path / str(level), to=to, int8=int8, samples=samples + level if int8 else None)
        for int8, level in ((False, 1), (True, 0.0), (True, 1e6))
    )
    readout = model.horizon * model.lookback  # of both channels
    assert plain.weight_bytes - rounded[0].weight_bytes == 3 * readout - 4 * (6 + 30)  # scales of rows and columns
    assert rounded[0].int8_error is not None
    assert 1e-3 < rounded[0].int8_error < 0.02
    assert rounded[1].int8_error == pytest.approx(rounded[0].int8_error, rel=0.01)
    if to == "c":
        assert "relative error" in run_check(tmp_path / "0.0", "-O0")
    evaluators = [Evaluator(program(model), int8=int8) for int8 in (False, True)]
    outputs = [torch.cat([evaluator.step(x[None]) for x in samples]) for evaluator in evaluators]
    assert 1e-3 < float((outputs[1] - outputs[0]).norm() / outputs[0].norm()) < 0.02


def test_a_model_without_weights_to_round_is_not_int8(tmp_path: Path) -> None:
    written = plmu.export(plmu.DelayLayer(2, order=3, theta=5.0), tmp_path, to="c", int8=True)
    assert "int8: nothing was rounded, since all weights of this model are of memories" in written.notes
    assert json.loads((tmp_path / "model.c.json").read_text())["weights"] == "float32"


@pytest.mark.parametrize("scale", [1e-12, 1e12, 1e25])
def test_values_of_any_size(scale: float, tmp_path: Path) -> None:
    """Squares of which float32 does not hold."""
    torch.manual_seed(0)
    model = LookbackForecast(1, horizon=4, order=5, theta=9.0, lookback=8, season=5, phase=2)
    with torch.no_grad():
        model.weight.normal_()
        model.season_pattern.copy_(scale * torch.randn(5, 1))
        model.prior.fill_(min(scale**2, 1e38))
    session = Session(plmu.export(model, tmp_path, to="onnx").files[0], program(model))
    stream = plmu.Stream(model)
    for x in scale * torch.randn(20, 1, dtype=torch.float64):
        within(relative(session(x[None]) / scale, stream.push(x)[None] / scale), TOLERANCE)
