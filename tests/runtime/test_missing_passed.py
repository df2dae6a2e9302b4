"""Models that take missing values themselves get them from streams and sessions; others do not."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import plmu

NAN = float("nan")


def model() -> plmu.nn.Continued:
    layer = plmu.nn.AnomalyScore(2)
    _, state = layer(torch.randn(1, 60, 2, generator=torch.Generator().manual_seed(0)).double())
    return plmu.nn.Continued(layer).continue_from(state, step=60)


def test_a_stream_passes_missing_values() -> None:
    stream, state = plmu.Stream(model()), None
    assert stream.missing == "pass"
    for sample in ([0.1, NAN], None, [0.2, 0.3], [NAN, NAN]):
        x = torch.tensor([[NAN, NAN] if sample is None else sample], dtype=torch.float64)
        expected, state = model().step(x, state)
        torch.testing.assert_close(stream.push(sample), expected[0], rtol=0, atol=0, equal_nan=True)
    assert plmu.Stream(model()).push(None).shape == (9,)
    with pytest.raises(ValueError, match="holds infinity"):
        stream.push([math.inf, 0.0])


def test_a_stream_may_fill_them_instead() -> None:
    held, plain = plmu.Stream(model(), missing="hold"), plmu.Stream(model())
    for sample, filled in (([0.1, 0.2], [0.1, 0.2]), ([NAN, 0.3], [0.1, 0.3])):
        torch.testing.assert_close(held.push(sample), plain.push(filled), rtol=0, atol=0)
    with pytest.raises(ValueError, match="a sample is NaN"):
        plmu.Stream(model(), missing="raise").push([NAN, 0.0])


def test_other_models_cannot_be_asked_to() -> None:
    with pytest.raises(ValueError, match="missing must be one of raise, hold, zero, got 'pass'"):
        plmu.Stream(plmu.Sequential(plmu.ParallelLMU(2, 3, order=2, theta=4.0), nn.Linear(3, 1)), missing="pass")


def test_states_in_files_keep_passing(tmp_path: Path) -> None:
    stream = plmu.Stream(model())
    stream.push([NAN, 0.5])
    stream.save(tmp_path / "state.plmu")
    restored = plmu.Stream.restore(model(), tmp_path / "state.plmu")
    torch.testing.assert_close(restored.push([0.2, NAN]), stream.push([0.2, NAN]), rtol=0, atol=0, equal_nan=True)


def test_sessions_pass_missing_values_and_refuse_infinite_ones() -> None:
    sessions, stream = plmu.Sessions(model(), width=4), plmu.Stream(model())
    rows = [sessions.add(), sessions.add()]
    outputs = sessions.push({rows[0]: [0.1, NAN], rows[1]: None})
    torch.testing.assert_close(outputs[rows[0]], stream.push([0.1, NAN]), rtol=1e-12, atol=1e-12, equal_nan=True)
    x = torch.tensor([[math.inf, 0.0], [NAN, 0.4]], dtype=torch.float64)
    _, taken = sessions.step(rows, x)
    assert taken.tolist() == [False, True]
    assert sessions.steps(rows[0]) == 1


def test_sessions_are_saved_after_missing_values(tmp_path: Path) -> None:
    sessions = plmu.Sessions(model(), width=4)
    row = sessions.add()
    sessions.push({row: [NAN, 0.5]})
    sessions.save(row, tmp_path / "session.plmu")
    stream = plmu.Stream.restore(model(), tmp_path / "session.plmu")
    expected = sessions.push({row: [0.1, 0.2]})[row]
    torch.testing.assert_close(stream.push([0.1, 0.2]), expected, rtol=1e-12, atol=1e-12)
