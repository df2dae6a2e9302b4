"""Exports of detectors of anomalies, and of traced steps: C and ONNX agree with torch in float64."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from closeness import within
from ctested import ALONE, CModel, compiled
from exported import Session, program
from test_c import needs_compiler
from torch import Tensor

import plmu
from plmu.exports import traced_c
from plmu.exports.builder import NotExportable
from plmu.exports.c_double import DOUBLE
from plmu.exports.c_helpers import HELPERS
from plmu.exports.evaluate import Evaluator
from plmu.exports.onnx_model import step_model
from plmu.exports.program import Program, Split, Traced, Value
from plmu.exports.traced import traced
from plmu.nn import AnomalyScore, Continued

STEPS = 300
EPS = torch.finfo(torch.float64).eps
# A step sums a few hundred numbers, errors add up over all steps, and least squares enlarge them.
TOLERANCE = 1000 * STEPS * EPS * 100
CASES = [(1, 0), (2, 12)]  # channels and season


def samples(channels: int, steps: int = STEPS) -> Tensor:
    """Noise and a season, with missing values, a spike, a flat line, large values and small ones."""
    generator = torch.Generator().manual_seed(0)
    time = torch.arange(steps, dtype=torch.float64)[:, None]
    x = torch.sin(2 * math.pi * time / 12) + 0.2 * torch.randn(steps, channels, generator=generator).double()
    x[40], x[41, 0], x[90, 0], x[91, 0] = math.nan, math.nan, 50.0, math.inf
    x[120:160, 0] = x[120, 0]
    x[200:210, -1] *= 1e6
    x[230:240] *= 1e-9
    return x


def learned(channels: int, season: int) -> Continued:
    """A layer that goes on from a hundred samples."""
    layer = AnomalyScore(channels, season=season)
    _, state = layer(samples(channels, 250)[None, :100])
    return Continued(layer).continue_from(state, step=100)


def expected(model: Any, x: Tensor) -> Tensor:
    folded, state, outputs = plmu.fold(model), None, []
    for row in x:
        out, state = folded.step(row[None], state)
        outputs.append(out)
    return torch.cat(outputs)


def check(actual: Tensor, wanted: Tensor) -> None:
    """Outputs agree relative to the largest of their column, and so do places of NaN."""
    assert torch.equal(actual.isnan(), wanted.isnan())
    size = wanted.nan_to_num().abs().amax(0).clamp(min=1.0)
    within(float(((actual - wanted) / size).nan_to_num().abs().max()), TOLERANCE)


@pytest.mark.parametrize(("channels", "season"), CASES)
@pytest.mark.parametrize("continues", [False, True])
def test_the_program_takes_the_steps_of_the_folded_layer(channels: int, season: int, continues: bool) -> None:
    model = learned(channels, season) if continues else AnomalyScore(channels, season=season)
    x, evaluator = samples(channels), Evaluator(program(model))
    torch.testing.assert_close(
        torch.cat([evaluator.step(row[None]) for row in x]), expected(model, x), rtol=0, atol=0, equal_nan=True
    )


@needs_compiler
@pytest.mark.parametrize(("channels", "season"), CASES)
@pytest.mark.parametrize("continues", [False, True])
def test_c(channels: int, season: int, continues: bool, tmp_path: Path) -> None:
    model = learned(channels, season) if continues else AnomalyScore(channels, season=season)
    plmu.export(model, tmp_path, to="c")
    step, x = CModel(compiled(tmp_path, "model"), program(model)), samples(channels)
    for _ in range(2):
        check(torch.cat([step(row[None]) for row in x]), expected(model, x))
        step.reset()


@pytest.mark.parametrize(("channels", "season"), CASES)
@pytest.mark.parametrize("continues", [False, True])
def test_onnx(channels: int, season: int, continues: bool) -> None:
    """A batch of sequences, of which some miss values where others do not."""
    model = learned(channels, season) if continues else AnomalyScore(channels, season=season)
    made = program(model)
    session, x = Session(step_model(made, {}), made), samples(channels)
    both = torch.stack([x, x.flip(0)], dim=1)
    outputs = torch.stack([session(row) for row in both])
    check(outputs[:, 0], expected(model, x))
    check(outputs[:, 1], expected(model, x.flip(0)))


def test_torch(tmp_path: Path) -> None:
    model = learned(2, 12)
    plmu.export(model, tmp_path, to="torch")
    run: Any = torch.export.load(tmp_path / "model_step.pt2").module()
    x, outputs = samples(2, 250)[:60], []
    states = [torch.zeros(1, *(state.shape or ()), dtype=state.dtype) for state in program(model).states[:-1]]
    states.append(torch.zeros(1, 2, dtype=torch.int64))
    for row in x:
        out, *states = run(row[None], *states)
        outputs.append(out)
    check(torch.cat(outputs), expected(model, x))


@needs_compiler
def test_functions_in_c_are_within_rounding(tmp_path: Path) -> None:
    """Each within 8 units in the last place of NumPy's, which are within one; the area sine below 1e-4, too."""
    names = {"natural_log_of": np.log, "square_root_of": np.sqrt, "area_sine_of": np.arcsinh, "binary_log_of": np.log2}
    source = "\n".join(["#include <stdint.h>", *(HELPERS[name] for name in names)])
    source += "".join(f"void run_{name}(double *y, double x) {{ *y = {name}(x); }}\n" for name in names)
    (tmp_path / "model.c").write_text(source)
    library = compiled(tmp_path, "model", flags=f"-std=c99 -O2 -Wno-unused-function {ALONE}")
    rng = np.random.default_rng(0)
    positive = np.concatenate([10.0 ** rng.uniform(-307, 306, 500), rng.uniform(0.4, 3, 500), [1.0, 2.3e-308, 0.5]])
    for name, function in names.items():
        signed = np.concatenate([positive[positive < 1e150], -positive[positive < 1e150], [0.0]])
        for x in signed if name == "area_sine_of" else positive:
            y = ctypes.c_double()
            getattr(library, f"run_{name}")(ctypes.byref(y), ctypes.c_double(x))
            exact = float(function(x))
            within(abs(y.value - exact), 16 * EPS * max(abs(exact), 1e-4 if name.endswith("log_of") else 0.0) + 1e-320)


def mixed(x: Tensor, state: Tensor) -> tuple[Tensor, ...]:
    """A step with each kind of node."""
    rows = torch.stack([x, -x, x.clamp(-0.5, 0.5)], dim=1)  # (batch, 3, 4)
    table = rows.mT @ rows  # (batch, 4, 4)
    spread = table.diagonal(dim1=-2, dim2=-1)
    shape = rows.reshape(-1, 2, 6)[:, 1].abs().sqrt()
    order = torch.arange(6, dtype=torch.float64)
    some = torch.where((order < shape.argmin(-1, keepdim=True)) & ~shape.isnan(), shape, 2.0)
    large = (rows > 1).any(1).to(x.dtype)
    wide = state[:, :, None].expand(-1, -1, 3).permute(0, 2, 1).maximum(rows)
    front = torch.stack([x, state, torch.ones_like(x)])  # (3, batch, 4)
    wide = wide + front.permute(1, 0, 2) * front.unbind(0)[1][:, None]
    totals = torch.cat([wide.amax(1), rows.sum((1, 2))[:, None], rows.amin(-1)[:, 1:]], dim=1)
    return torch.cat([spread, some, large, totals], 1), state + (1 + x.square()).log().exp().reciprocal()


@needs_compiler
def test_each_kind_of_node_in_c(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, state = torch.randn(1, 4).double(), torch.randn(1, 4).double()
    graph = traced(mixed, x, state)
    arrays: dict[str, Tensor] = {}

    def constant(node: Any) -> str:
        return arrays.setdefault(f"c{len(arrays)}", node.options["array"]) is None or f"c{len(arrays) - 1}"  # type: ignore[return-value]

    body = traced_c.function(graph, "traced", constant)
    listed = "".join(
        f"static const double {name}[] = {{{', '.join(map(repr, array.flatten().tolist()))}}};\n"
        for name, array in arrays.items()
    )
    helpers = "\n".join(source for name, source in HELPERS.items() if name in {*DOUBLE, "exponential_of"})
    entry = "void step(double *out, const double *x, const double *s, double *w) { traced(out, x, s, w); }\n"
    head = "#include <stdint.h>\n#include <stddef.h>\n"
    (tmp_path / "model.c").write_text(f"{head}{listed}{helpers}\n{body}{entry}")
    library = compiled(tmp_path, "model", flags=f"-std=c99 -O2 -Wall -Wno-unused-function -Werror {ALONE}")
    work = torch.zeros(traced_c.plan(graph).size, dtype=torch.float64)
    for _ in range(20):
        x, state = 2 * torch.randn(1, 4).double(), torch.randn(1, 4).double()
        wanted = torch.cat([part.flatten() for part in mixed(x, state)])
        out = torch.full_like(wanted, math.nan)
        library.step(*(ctypes.c_void_p(value.data_ptr()) for value in (out, x, state, work)))
        torch.testing.assert_close(out, wanted, rtol=100 * EPS, atol=100 * EPS)


def test_each_kind_of_node_in_onnx() -> None:
    torch.manual_seed(0)
    x, state = (Value(4, (4,), wide=True) for _ in range(2))
    graph = traced(mixed, torch.randn(1, 4).double(), torch.randn(1, 4).double())
    out = Value(sum(node.size for node in graph.outputs), wide=True)
    y, after = Value(out.size - 4, wide=True), Value(4, wide=True)
    operations = Traced(out, (x, state), graph, mixed), Split(y, out, (y, after))
    made = Program(x, None, (state,), ("state",), operations, y, (after,))
    session, before = Session(step_model(made, {}), made), torch.zeros(3, 4).double()
    for _ in range(5):
        sample = 2 * torch.randn(3, 4).double()
        wanted, before = mixed(sample, before)
        torch.testing.assert_close(session(sample), wanted, rtol=100 * EPS, atol=100 * EPS)


def test_an_operation_without_an_export_is_named() -> None:
    with pytest.raises(NotExportable, match="the operation erf of torch cannot be exported"):
        traced(lambda x: (torch.special.erf(x),), torch.zeros(1, 2, dtype=torch.float64))


def test_the_header_says_what_the_numbers_are(tmp_path: Path) -> None:
    metadata = {"columns": ["load", "temp"], "threshold": 0.001}
    plmu.export(learned(2, 12), tmp_path, to="c", metadata=metadata)
    header = (tmp_path / "model.h").read_text()
    assert "y is the score of the sample, an alarm above 1 - 0.001; then of each of" in header
    assert "model_columns its score, the expected value" in header
