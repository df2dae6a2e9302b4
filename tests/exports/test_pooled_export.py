"""Exports of `PooledForecast`: seasons, members, channels, and a window that is still short."""

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from closeness import within
from exported import Session, program
from test_c import needs_compiler, run_check
from torch import Tensor

import plmu
from plmu.exports.c_wide import WIDE_HELPERS
from plmu.exports.evaluate import Evaluator
from plmu.exports.measure import compiler
from plmu.nn import PooledForecast
from plmu.nn.pooled import Member


def members(season: int, *hidden: int) -> list[Member]:
    """Members of every kind, some with this season, with hidden layers of these sizes."""
    plain = [(2, 0, False, False), (5, season, False, False), (9, season, True, False), (6, 0, True, False)]
    return [Member(*kind, hidden) for kind in [*plain, (8, 0, False, True), (7, season, True, True)]]


def several(*hidden: int) -> list[Member]:
    """Members with seasons of their own."""
    kinds = [(2, 3, False, True), (6, 7, False, False), (14, 7, True, True), (4, 3, True, False), (3, 0, False, True)]
    return [Member(*kind, hidden) for kind in kinds]


MIXED = [Member(3, 4, False, True), Member(9, 4, True, False, (3, 5, 2)), Member(7, 0, False, False, (4,))]
CLASSICAL = [Member(9, 0, False, adaptive=3), Member(12, 4, True, True, (3,), 8), Member(4, 0, True, adaptive=2)]
CASES: dict[str, dict[str, Any]] = {
    "no season": {"channels": 1, "window": 12, "members": members(0, 5)},
    "even": {"channels": 1, "window": 23, "members": members(4, 6), "season": 4},
    "odd, channels": {"channels": 3, "window": 14, "members": members(3, 2), "season": 3},
    "window too short for the season": {"channels": 1, "window": 14, "members": members(7, 3), "season": 7},
    "several seasons": {"channels": 1, "window": 25, "members": several(4), "season": 4},
    "seasons of members alone": {"channels": 2, "window": 15, "members": several(3)},
    "layers of several sizes": {"channels": 2, "window": 20, "members": MIXED, "season": 4},
    "classical forecasts": {"channels": 2, "window": 19, "members": CLASSICAL, "season": 4},
    "without hidden layers": {"channels": 2, "window": 9, "members": [(9, 2, True, True)], "season": 2},
}
# All values are float64, constants are float32: sums of at most 40 terms, of the size of the values. With int8 weights
# features are float32, too.
TOLERANCE = 100 * torch.finfo(torch.float32).eps


def model_of(name: str) -> PooledForecast:
    model = PooledForecast(horizon=5, **CASES[name])
    torch.manual_seed(2)
    with torch.no_grad():
        for member in model.members:
            member.weight.normal_(0, 0.1)
            member.mean.normal_(0, 0.3)
            member.scale.uniform_(1, 2)
        model.shares.uniform_(0.5, 2)
    return model.eval()


def samples(model: PooledForecast, steps: int) -> Tensor:
    """(steps, 2, channels): a season with noise, of which one row falls below zero."""
    torch.manual_seed(5)
    at = torch.arange(steps, dtype=torch.float64)[:, None, None]
    phase = 7 * torch.rand(2, model.channels, dtype=torch.float64)
    wave = (3 + 0.02 * at) * (1 + 0.5 * torch.sin(2 * math.pi * at / max(model.season, 2) + phase))
    noise = torch.rand(steps, 2, model.channels, dtype=torch.float64)
    return wave + noise - torch.tensor([0.0, 2.0], dtype=torch.float64)[:, None]


def off(out: Tensor, expected: Tensor, x: Tensor) -> float:
    """The error relative to the values."""
    assert out.dtype == torch.float64
    return float((out - expected).abs().max() / max(x.abs().max(), expected.abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_a_program_takes_the_models_steps(name: str) -> None:
    model = model_of(name)
    evaluator, state = Evaluator(program(model)), None
    xs = samples(model, model.window + 9)
    with torch.no_grad():
        for x in xs:
            expected, state = model.step(x, state)
            within(off(evaluator.step(x), expected, xs), TOLERANCE)
    assert evaluator.states is not None
    for mine, theirs in zip(evaluator.states, state, strict=True):
        assert torch.equal(mine, theirs.flatten(1).double())


@pytest.mark.parametrize("scale", [1e-6, 1e12])
def test_a_program_takes_values_of_any_size(scale: float) -> None:
    model = model_of("even")
    evaluator, state = Evaluator(program(model)), None
    xs = scale * samples(model, 30)
    with torch.no_grad():
        for x in xs:
            expected, state = model.step(x, state)
            within(off(evaluator.step(x), expected, xs), TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["no season", "even", "several seasons"])
def test_a_program_keeps_the_digits_of_small_changes(name: str, dtype: torch.dtype) -> None:
    """Far from zero, where forecast changes are small differences of large features."""
    model = model_of(name).to(dtype)
    with torch.no_grad():
        for member in model.readouts:
            member.mean.mul_(1 / 3)  # in float64 with more digits than float32 has
            ones = torch.ones(1, max(member.kind.lookback, model.horizon), dtype=torch.float64)
            regressors = member.features(ones[:, : member.kind.lookback], ones[:, : model.horizon]).features
            member.weight[0] -= (regressors @ member.weight.double())[0]  # so that a constant is forecast as it is
    evaluator, state = Evaluator(program(model)), None
    xs = 1e9 + samples(model, model.window + 9)
    with torch.no_grad():
        for x in xs:
            expected, state = model.step(x, state)
            out = evaluator.step(x)
    # Constants of float32, but float64 rounds values at 1e9 to 1e-7. An error of float32 in the level is 100.
    within(float((out - expected).abs().max()), TOLERANCE * float(xs.std() + (expected - x).abs().max()))


@pytest.mark.parametrize("log", [False, True])
def test_forecast_changes_are_bounded(log: bool) -> None:
    model = PooledForecast(1, 3, 6, [(4, 0, log, True, (2,))])
    with torch.no_grad():
        model.members[0].weight[0] = torch.tensor([1e6, -1e6, 0.5])  # the feature 1
    evaluator, state = Evaluator(program(model)), None
    for x in (xs := torch.tensor([2.0, 3.0, 1.0, 2.0], dtype=torch.float64)):
        with torch.no_grad():
            expected, state = model.step(x[None, None], state)
        out = evaluator.step(x[None, None])
        within(off(out, expected, xs), TOLERANCE)
    change = torch.tensor([3.0, -3.0, 0.5], dtype=torch.float64)
    within(off(out[0], 2 * change.exp() if log else 2 + 2 * change, xs), TOLERANCE)


def test_zeros_give_zero_and_nan_stays_until_it_has_passed() -> None:
    model = model_of("even")
    for bad in (math.nan, math.inf):
        evaluator = Evaluator(program(model))
        for t in range(40):
            out = evaluator.step(torch.full((1, 1), bad if t == 5 else 0.0, dtype=torch.float64))
            assert bool(out.isnan().all()) == (5 <= t < 5 + model.window)
            assert out.isnan().any() or not out.any()


@pytest.mark.parametrize("name", CASES)
def test_onnx(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    written = plmu.export(model, tmp_path, to="onnx", whole=name == "even")
    session, state = Session(written.files[0], program(model)), None
    xs = samples(model, model.window + 3)
    xs[-1] = math.nan
    outputs = []
    with torch.no_grad():
        for x in xs[:-1]:
            expected, state = model.step(x, state)
            outputs.append(session(x))
            within(off(outputs[-1], expected, xs[:-1]), TOLERANCE)
    assert session(xs[-1]).isnan().all()
    if name == "even":
        whole = Session(written.files[1], program(model))(xs[:-1].movedim(0, 1).contiguous())
        within(off(whole, torch.stack(outputs, 1), xs[:-1]), 4 * torch.finfo(torch.float32).eps)


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_c(name: str, tmp_path: Path) -> None:
    plmu.export(model_of(name), tmp_path, to="c", int8=name == "even")
    assert "relative error" in run_check(tmp_path, "-O0")
    states = json.loads((tmp_path / "model.c.json").read_text())["states"]
    assert [state["kind"] for state in states] == ["inputs", "number of the next step, and the steps in the window"]
    assert "model_start" not in (tmp_path / "model.h").read_text()


@needs_compiler
def test_exponentials_and_logarithms_in_c(tmp_path: Path) -> None:
    """Series of 14 and 13 terms, each rounded, and a power of two: some units in the last place."""
    cc = compiler()
    assert cc is not None
    points = [*(torch.randn(200, dtype=torch.float64) * 30).tolist(), 0.0, 1.0, -1.0, 700.0, -700.0, 1e-9, 0.34657359]
    arguments = [*torch.randn(200, dtype=torch.float64).mul(9).exp().tolist(), 1.0, 0.75, 1.5, 1e-30, 1e300, 1 + 1e-12]
    source = "#include <stdint.h>\n#include <stdio.h>\n"
    source += WIDE_HELPERS["exponential_of"] + WIDE_HELPERS["logarithm_of"] + "int main(void)\n{\n"
    source += "".join(f'    printf("%.17g\\n", exponential_of({x!r}));\n' for x in points)
    source += "".join(f'    printf("%.17g\\n", logarithm_of({x!r}));\n' for x in arguments)
    (tmp_path / "math.c").write_text(source + "    return 0;\n}\n")
    binary = tmp_path / "math"
    subprocess.run([cc, "-O1", "-o", str(binary), str(tmp_path / "math.c")], check=True, timeout=60)
    done = subprocess.run([str(binary)], capture_output=True, text=True, check=True, timeout=60)
    values = [float(line) for line in done.stdout.split()]
    eps = torch.finfo(torch.float64).eps
    for x, value in zip(points, values, strict=False):
        within(abs(value / math.exp(x) - 1), (20 + 4 * abs(x)) * eps)
    for x, value in zip(arguments, values[len(points) :], strict=True):
        within(abs(value - math.log(x)), 20 * eps * max(abs(math.log(x)), min(1.0, abs(x - 1))))


def check_torch(model: PooledForecast, folder: Path) -> None:
    """The program of whole sequences has Core ATEN operations alone, and takes any batch and length."""
    written = plmu.export(model, folder, to="torch")
    exported = torch.export.load({path.name: path for path in written.files}["model.pt2"])
    nodes = [node for node in exported.run_decompositions().graph.nodes if node.op == "call_function"]
    targets = {node.target for node in nodes if isinstance(node.target, torch._ops.OpOverload)}  # not those of sizes
    other = {str(target) for target in targets if torch.Tag.core not in target.tags}
    assert not {name for name in other if not name.startswith("aten._assert")}
    whole = exported.module()
    with torch.no_grad():
        for batch, time in ((1, 1), (2, 40)):
            x = samples(model, time).movedim(0, 1)[:batch]
            _, start = model(samples(model, 3).movedim(0, 1)[:batch])
            y, *states = whole(x, *(part.clone() for part in start))
            expected, state = model(x, start)
            torch.testing.assert_close(y, expected)
            for part, wanted in zip(states, state, strict=True):
                torch.testing.assert_close(part, wanted)


@pytest.mark.filterwarnings("ignore")  # of torch, about its own code
def test_torch_takes_any_batch_and_length_with_core_operations(tmp_path: Path) -> None:
    model = PooledForecast(1, 3, 9, [(4, 2, True, False, (2,)), (5, 3, False, True, (3, 2))], season=2).eval()
    with torch.no_grad():
        for member in model.members:
            member.weight.normal_(0, 0.1)
    check_torch(model, tmp_path)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_torch(name: str, tmp_path: Path) -> None:
    check_torch(model_of(name), tmp_path)


def test_channels_share_their_constants() -> None:
    sizes = []
    for channels in (1, 4):
        sizes.append(program(PooledForecast(channels, 5, 14, members(3, 20), season=3)).weight_bytes(False))
    assert sizes[1] == sizes[0]
