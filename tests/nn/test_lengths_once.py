"""A stack checks the lengths it is given once, and its layers share what follows from them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import plmu
from plmu.ops import check


@pytest.fixture
def stack():
    torch.manual_seed(0)
    memory = plmu.ParallelLMU(6, 3, 4, [4.0, 8.0], encoder=False)
    return plmu.Sequential(plmu.Residual(plmu.Sequential(nn.LayerNorm(6), plmu.Bidirectional(memory))), nn.Linear(6, 2))


@pytest.fixture
def checks(monkeypatch):
    """How often lengths were looked at."""
    counted = []
    plain = check._checked_lengths
    monkeypatch.setattr(check, "_checked_lengths", lambda *given: counted.append(given) or plain(*given))
    return counted


def test_lengths_are_checked_once(stack, checks):
    x, lengths = torch.randn(3, 7, 6), torch.tensor([7, 4, 1])
    stack(x, lengths=lengths)
    assert len(checks) == 1
    assert not vars(lengths)  # nothing is written on the caller's tensor
    stack(x, lengths=[7, 4, 1])
    assert len(checks) == 2


def test_lengths_that_change_in_place_are_seen(stack):
    x, lengths = torch.randn(3, 7, 6), torch.tensor([7, 4, 1])
    first, _ = stack(x, lengths=lengths)
    lengths[0] = 2
    second, _ = stack(x, lengths=lengths)
    expected, _ = stack(x[:1, :2])
    torch.testing.assert_close(second[:1, :2], expected)
    assert (second[0, 2:] == 0).all()
    torch.testing.assert_close(first[1:], second[1:])
    lengths[0] = 8
    with pytest.raises(ValueError, match=r"lengths must lie between 0 and the 7 time steps, got 8"):
        stack(x, lengths=lengths)


def test_checked_lengths_of_other_sizes_are_checked_again(checks):
    known = check.checked_lengths([3, 2], 2, 5, torch.device("cpu"))
    assert check.checked_lengths(known, 2, 5, torch.device("cpu")) is known
    with pytest.raises(ValueError, match=r"lengths must lie between 0 and the 2 time steps, got 3"):
        check.checked_lengths(known, 2, 2, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"lengths must have shape \(4,\)"):
        check.checked_lengths(known, 4, 5, torch.device("cpu"))


def test_padding_of_any_type_becomes_zero():
    known = check.checked_lengths([1, 3], 2, 3, torch.device("cpu"))
    for dtype in (torch.float32, torch.bfloat16, torch.int16, torch.int64):
        found = check.keep_valid(torch.ones(2, 3, 2).to(dtype), known)
        assert found.dtype == dtype
        assert found[..., 0].tolist() == [[1, 0, 0], [1, 1, 1]]
