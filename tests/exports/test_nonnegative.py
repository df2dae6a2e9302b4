"""Channels whose forecasts are at least 0, in every layer that forecasts, in streams, files and exports."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from closeness import within
from exported import Session, program
from test_c import needs_compiler, run_check
from torch import Tensor

import plmu
from plmu.exports.evaluate import Evaluator
from plmu.nn import CovariateForecast, LookbackForecast, PooledForecast
from plmu.nn.pooled import Member
from plmu.nn.windowed import WindowedForecast

CHANNELS, HORIZON = 3, 4
KINDS = ("look-back", "season", "covariates", "pooled")
TOLERANCE = 200 * torch.finfo(torch.float32).eps  # of exports, which compute changes in float32


def build(kind: str, nonnegative: tuple[int, ...], channels: int = CHANNELS) -> WindowedForecast:
    options: dict[str, Any] = {"nonnegative": nonnegative}
    layer: WindowedForecast
    if kind == "pooled":
        members = [Member(3, 0, False, True), Member(9, 3, False, False, (4,))]
        layer = PooledForecast(channels, HORIZON, 12, members, season=3, **options)
    elif kind == "covariates":
        layer = CovariateForecast(channels, 2, HORIZON, 4, 9.0, 10, lags=3, lag_order=2, season=5, **options)
    else:
        layer = LookbackForecast(channels, HORIZON, 4, 9.0, 10, season=5 if kind == "season" else 0, **options)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0, 0.3)
        for name, buffer in layer.named_buffers():
            if name == "season_pattern":
                buffer.normal_()
    return layer.eval().requires_grad_(False)


def samples(layer: WindowedForecast, time: int = 30) -> Tensor:
    """(2, time, columns), around zero."""
    return torch.randn(2, time, layer.input_size, dtype=torch.float64)


def expected_of(kind: str, x: Tensor) -> Tensor:
    out = build(kind, ())(x)[0].unflatten(-1, (HORIZON, CHANNELS))
    assert ((out < 0).double().mean((0, 1, 2)) > 0.1).all()
    lowest = torch.tensor([0.0, -math.inf, 0.0], dtype=torch.float64)
    return torch.maximum(out, lowest).flatten(2)


@pytest.mark.parametrize("kind", KINDS)
def test_forecasts_of_these_channels_are_at_least_0(kind: str, tmp_path: Path) -> None:
    """Of whole sequences, step by step, in a stream, folded, and after saving."""
    layer = build(kind, (2, 0))
    assert layer.nonnegative == (0, 2)
    assert "nonnegative=" in repr(layer)
    x = samples(layer)
    expected = expected_of(kind, x)
    torch.testing.assert_close(layer(x)[0], expected)
    state = None
    for at, x_t in enumerate(x.unbind(1)):
        out, state = layer.step(x_t, state)
        torch.testing.assert_close(out, expected[:, at])
    plmu.save(layer, tmp_path / "model.plmu")
    loaded = plmu.load(tmp_path / "model.plmu")
    stream = plmu.Stream(loaded)
    torch.testing.assert_close(torch.stack([stream.push(x_t) for x_t in x.unbind(1)], dim=1), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_exports(kind: str, tmp_path: Path) -> None:
    layer = build(kind, (0, 2))
    x = samples(layer, 16)
    expected = expected_of(kind, x)
    evaluator, written = Evaluator(program(layer)), plmu.export(layer, tmp_path, to="onnx")
    session = Session(written.files[0], program(layer))
    for at, x_t in enumerate(x.unbind(1)):
        for out in (evaluator.step(x_t), session(x_t)):
            within(float((out - expected[:, at]).abs().max()), TOLERANCE * float(expected.abs().max()))
            bounded = out.unflatten(-1, (HORIZON, CHANNELS))[..., [0, 2]]
            assert (bounded >= 0).all()
    x_t = x[:, -1].clone()
    x_t[:, 0] = math.nan
    out = session(x_t).unflatten(-1, (HORIZON, CHANNELS))
    assert out[..., 0].isnan().all()
    assert out[..., 1:].isfinite().all()


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_c(kind: str, tmp_path: Path) -> None:
    plmu.export(build(kind, (0, 2)), tmp_path, to="c")
    assert "relative error" in run_check(tmp_path, "-O0")
    plmu.export(build(kind, (0,), 1), tmp_path / "one", to="c")
    assert "relative error" in run_check(tmp_path / "one", "-O0")


def test_bounds_of_forecasts_that_are_relative_to_a_level() -> None:
    layer = build("look-back", (0, 2))
    forecasts, level = torch.randn(5, CHANNELS, HORIZON), torch.rand(5, CHANNELS)
    bounded = layer.bounded(forecasts, level) + level[..., None]
    torch.testing.assert_close(bounded[:, 1], (forecasts + level[..., None])[:, 1])
    torch.testing.assert_close(bounded[:, [0, 2]], (forecasts + level[..., None])[:, [0, 2]].clamp(min=0))
    assert layer.bounded(torch.full((1, CHANNELS, 1), math.nan)).isnan().all()


@pytest.mark.parametrize("wrong", [(3,), (-1,), (0, 0), "0", (True,), 1, (0.5,)])
def test_channels_that_are_not_there(wrong: Any) -> None:
    with pytest.raises(ValueError, match="nonnegative must be a list of different channels from 0 to 2, got"):
        build("look-back", wrong)
