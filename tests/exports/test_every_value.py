"""Exports and the model in Python agree for NaN, infinity, large numbers and streams that start again."""

from pathlib import Path
from typing import Any

import pytest
import torch
from closeness import within
from ctested import CModel, compiled
from exported import ACTIVATIONS, NAMES, TOLERANCE, Session, inputs, model_of, program
from test_c import anyhow, needs_compiler, write
from test_forecast_export import CASES as FORECASTS
from test_forecast_export import model_of as forecast_of
from torch import Tensor, nn

import plmu
from plmu.exports.onnx_model import step_model

NAN, INF = torch.nan, torch.inf
VALUES = [NAN, INF, -INF, 0.0, -0.0, 1e-30, 3.0, -3.0, 6.5, 20.5, -20.5, 100.0, -100.0, 1e15, -1e15, 0.5]
FUNCTIONS = [one for one in ACTIVATIONS if not isinstance(one, nn.Dropout | plmu.Standardize)] + [nn.GLU(-1)]


def same(found: Tensor, expected: Tensor, where: str, size: float = 0.0) -> None:
    """Not finite where the other is not (an infinity may be NaN: torch's GELU of it is), else near, relative to the
    largest value or to `size`."""
    assert found.shape == expected.shape
    finite = expected.isfinite()
    assert torch.equal(found.isfinite(), finite), (where, found, expected)
    if finite.any():
        error = (found[finite].double() - expected[finite]).abs().max()
        within(float(error) / max(1.0, size, float(expected[finite].abs().max())), TOLERANCE, where)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: Any) -> Any:
    """A model of each function, which exported C has in one library."""
    folder = tmp_path_factory.mktemp("functions")
    models = []
    for i, function in enumerate(FUNCTIONS):
        identity = nn.Linear(4, 4, bias=False)
        nn.init.eye_(identity.weight)
        models.append(plmu.Sequential(plmu.Standardize(4), function).eval())
        plmu.export(models[-1], folder, to="c", name=f"f{i}")
        plmu.export(models[-1], folder, name=f"f{i}")
    return folder, models


@pytest.mark.parametrize("index", range(len(FUNCTIONS)), ids=[str(one) for one in FUNCTIONS])
def test_functions_in_onnx(index: int, functions: Any) -> None:
    folder, models = functions
    made = program(models[index])
    session = Session(folder / f"f{index}_step.onnx", made)
    for x in rows():
        expected = plmu.fold(models[index]).step(x)[0]
        same(session(x), expected, f"{x}")


@needs_compiler
def test_functions_in_c(functions: Any) -> None:
    folder, models = functions
    library = compiled(folder, *(f"f{i}" for i in range(len(models))))
    for i, model in enumerate(models):
        stream = CModel(library, program(model), f"f{i}")
        for x in rows():
            same(stream(x), plmu.fold(model).step(x)[0], f"{FUNCTIONS[i]} of {x}")


def rows() -> list[Tensor]:
    """Each value alone, with others around it."""
    return [torch.tensor([[0.3, value, -0.2, 0.1]]) for value in VALUES]


def stream(made: Any) -> list[Tensor | None]:
    """Samples (1, features), or token numbers (1,); None starts the stream again."""
    torch.manual_seed(3)
    x: list[Tensor | None] = [*inputs(made, 24, 1)]
    x[8] = x[16] = None
    if made.tokens is None:
        for at, value in ((3, NAN), (10, 1e6), (11, -1e6), (18, NAN)):
            x[at][0, -1] = value
    return x


@pytest.mark.parametrize("name", NAMES)
def test_streams_in_onnx(name: str) -> None:
    model = model_of(name)
    made = program(model)
    runtime = Session(step_model(made, {}), made)

    def restart() -> None:
        runtime.states = None

    compare(name, model, runtime, restart)


@needs_compiler
@pytest.mark.parametrize("name", NAMES)
def test_streams_in_c(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    plmu.export(model, tmp_path, to="c")
    runtime = CModel(compiled(tmp_path, "model"), program(model))
    compare(name, model, runtime, runtime.reset)


def compare(name: str, model: Any, runtime: Any, restart: Any) -> None:
    """Steps of a runtime and of the model. Errors are relative to the largest value of the stream so far, which is in
    the memory."""
    folded, state, size, spoilt = plmu.fold(model), None, 1.0, False
    for t, x in enumerate(stream(runtime.made)):
        if x is None:
            state, size, spoilt = None, 1.0, False
            restart()
            continue
        expected, state = folded.step(x, state)
        spoilt |= bool(x.isnan().any())
        if name.startswith("shares") and spoilt:
            expected = torch.full_like(expected, NAN)
        size = max([size, *(float(value.abs().max()) for value in (x, expected) if value.isfinite().all())])
        same(runtime(x), expected, f"{name}, step {t}", size)


@needs_compiler
@anyhow
@pytest.mark.parametrize("kind", ["int8", "fixed"])
@pytest.mark.parametrize("name", ["gated", "block: attention", "shares and positions"])
def test_rounded_weights_keep_nan(name: str, kind: str, tmp_path: Path) -> None:
    model = model_of(name)
    write(tmp_path, model, kind)
    runtime, spoilt = CModel(compiled(tmp_path, "model"), program(model, int8=True)), False
    for x in stream(runtime.made):
        if x is None:
            runtime.reset()
            spoilt = False
            continue
        spoilt |= bool(x.isnan().any())
        y = runtime(x)
        assert y.isnan().all() if spoilt and name != "block: attention" else y.isfinite().all() or spoilt
        if x.isnan().any():
            assert y.isnan().all()


def test_every_layer_is_exported_or_said_not_to_be() -> None:
    """By one of the models of these tests; docs/deploy.md names the others."""
    models = [*map(model_of, NAMES), *map(forecast_of, FORECASTS)]
    exported = {type(module) for model in models for module in model.modules()}
    public = [getattr(plmu.nn, name) for name in plmu.nn.__all__ if isinstance(getattr(plmu.nn, name), type)]
    exported |= {plmu.nn.PooledForecast, plmu.nn.AnomalyScore}  # in files of their own
    layers = {kind for kind in public if issubclass(kind, plmu.nn.Steppable)} - {plmu.nn.Steppable}
    assert {kind.__name__ for kind in layers - exported} == {"Bidirectional", "LSTM", "LearningForecast"}
    with pytest.raises(ValueError, match="LSTM cannot be exported"):
        program(plmu.nn.LSTM(3, 4))
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert "but for `plmu.nn.LSTM`, a baseline" in page
    assert "such as `plmu.Bidirectional`, have no step" in page
    assert "`plmu.nn.LearningForecast`" in page
