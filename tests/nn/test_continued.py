"""`plmu.nn.Continued`: sequences go on from a learned state, in whole sequences, pieces, steps, streams and files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plmu
from plmu.nn import Continued, ParallelLMU, Sequential

TOLERANCE = 1e-5  # rounding of float32 in a few products


def layer() -> Sequential:
    torch.manual_seed(0)
    return Sequential(ParallelLMU(2, 3, order=4, theta=8.0), ParallelLMU(3, 3, order=3, theta=5.0), nn.Linear(3, 2))


@pytest.fixture
def continued() -> tuple[Sequential, Continued, Tensor, Tensor]:
    """A layer, the same after what it read, and what is read before and after."""
    inner = layer()
    before, after = torch.randn(1, 7, 2), torch.randn(3, 9, 2)
    _, state = inner(before)
    return inner, Continued(copy.deepcopy(inner)).continue_from(state, step=7), before, after


def test_a_sequence_goes_on_from_the_state(continued: Any) -> None:
    inner, model, before, after = continued
    whole, _ = inner(torch.cat([before.expand(3, -1, -1), after], dim=1))
    out, (_, position) = model(after)
    torch.testing.assert_close(out, whole[:, 7:], atol=TOLERANCE, rtol=0)
    assert position.tolist() == [[16, 1]] * 3


def test_pieces_steps_folded_steps_and_zero_states_agree(continued: Any) -> None:
    _, model, _, after = continued
    whole, last = model(after)
    first, state = model(after[:, :4])
    second, state = model(after[:, 4:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, atol=TOLERANCE, rtol=0)
    for step in (model.step, plmu.fold(model).step):
        for state in (None, model.initial_state(3, torch.float32, torch.device("cpu"))):
            outputs = []
            for x in after.unbind(1):
                out, state = step(x, state)
                outputs.append(out)
            torch.testing.assert_close(torch.stack(outputs, 1), whole, atol=TOLERANCE, rtol=0)
            torch.testing.assert_close(state[1], last[1])


def test_lengths_and_resets(continued: Any) -> None:
    _, model, _, after = continued
    alone = [model(after[i : i + 1])[0] for i in range(3)]
    out, (_, position) = model(after, lengths=torch.tensor([9, 4, 0]))
    torch.testing.assert_close(out[1, :4], alone[1][0, :4], atol=TOLERANCE, rtol=0)
    assert not out[1, 4:].any()
    assert not out[2].any()
    assert position.tolist() == [[16, 1], [11, 1], [0, 0]]
    resets = torch.zeros(3, 9, dtype=torch.bool)
    resets[0, 3] = resets[2, 5] = True
    out, (_, position) = model(after, resets=resets)
    torch.testing.assert_close(out[0, 3:], model(after[:1, 3:])[0][0], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(out[2, 5:], model(after[2:, 5:])[0][0], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(out[1], alone[1][0], atol=TOLERANCE, rtol=0)
    assert position[:, 0].tolist() == [13, 16, 11]


def test_streams_and_sessions_begin_in_the_state(continued: Any) -> None:
    _, model, _, after = continued
    whole, _ = model(after)
    stream, sessions = plmu.Stream(model), plmu.Sessions(model, width=4)
    rows = [sessions.add() for _ in range(3)]
    for x, expected in zip(after.unbind(1), whole.unbind(1), strict=True):
        torch.testing.assert_close(stream.push(x), expected, atol=TOLERANCE, rtol=0)
        outputs = sessions.push(dict(zip(rows, x, strict=True)))
        torch.testing.assert_close(torch.stack([outputs[row] for row in rows]), expected, atol=TOLERANCE, rtol=0)


def test_files_have_the_state(continued: Any, tmp_path: Path) -> None:
    _, model, _, after = continued
    plmu.save(model, tmp_path / "model.plmu")
    loaded = plmu.load(tmp_path / "model.plmu")
    assert isinstance(loaded, Continued)
    assert loaded.first == 7
    torch.testing.assert_close(loaded(after)[0], model(after)[0], atol=0, rtol=0)
    stream = plmu.Stream(model)
    stream.push(after[0, 0])
    stream.save(tmp_path / "stream.plmu")
    other = copy.deepcopy(loaded).continue_from(loaded(after[:1])[1][0])
    plmu.Stream.restore(loaded, tmp_path / "stream.plmu")
    with pytest.raises(plmu.FileFormatError, match="another model"):
        plmu.Stream.restore(other, tmp_path / "stream.plmu")


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="steppable layer, got Linear"):
        Continued(nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="first must be an integer"):
        Continued(layer(), first=1.5)  # type: ignore[arg-type]
    model = Continued(layer())
    with pytest.raises(ValueError, match="must be of one sequence, got a batch of 2"):
        model.continue_from(layer().initial_state(2, torch.float32, torch.device("cpu")))
    with pytest.raises(ValueError, match="state must have"):
        model.continue_from(ParallelLMU(2, 3, order=4, theta=8.0).initial_state(1, torch.float32, torch.device("cpu")))
    with pytest.raises(TypeError, match="pair"):
        model.step(torch.zeros(1, 2), torch.zeros(1))


def test_the_start_keeps_its_digits_in_a_float32_model() -> None:
    layer = plmu.nn.AnomalyScore(1)
    _, state = layer(1e6 + torch.randn(1, 50, 1).double())
    model, x = Continued(layer).continue_from(state), 1e6 + torch.randn(1, 20, 1).double()
    expected = model(x)[0]
    torch.testing.assert_close(model.float()(x)[0], expected, atol=0, rtol=0)
