"""The one-page listing of the chunked algorithm computes what the library computes, forward and backward."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

import plmu

LISTING = Path(__file__).parents[2] / "examples" / "chunked_minimal.py"


@pytest.fixture(scope="module")
def minimal() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chunked_minimal", LISTING)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_short_and_needs_torch_alone() -> None:
    text = LISTING.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 100
    assert "import plmu" not in text
    done = subprocess.run([sys.executable, "-W", "error", LISTING], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout.startswith("16 chunks and 1,000 single steps differ by")


@pytest.mark.parametrize(("order", "theta"), [(1, 3.0), (6, 40.0), (12, 9.5)])
def test_the_system_is_the_delay_network(minimal: ModuleType, order: int, theta: float) -> None:
    A, B = minimal.delay_network(order, theta)
    system = plmu.DelayNetwork(order, theta).discretize()
    torch.testing.assert_close(A, system.A)
    torch.testing.assert_close(B, system.B)


@pytest.mark.parametrize("time", [1, 7, 8, 63, 129])
@pytest.mark.parametrize("with_state", [False, True])
def test_outputs_and_gradients_are_those_of_the_library(minimal: ModuleType, time: int, with_state: bool) -> None:
    order, channels, out = 5, 3, 4
    system = plmu.DelayNetwork(order, 20.0).discretize()
    given = [torch.randn(2, time, channels), torch.randn(out, order, channels)]
    if with_state:
        given.append(torch.randn(2, order, channels))
    of_m, of_o = torch.randn(2, time, order, channels).double(), torch.randn(2, time, out).double()

    def results(ours: bool) -> list[Tensor]:
        u, W, *state = (value.double().requires_grad_() for value in given)
        state_or_none = state[0] if state else None
        if ours:
            m = minimal.states(u, system.A, system.B, c=8, state=state_or_none)
            o = minimal.project(u, system.A, system.B, W, c=8, state=state_or_none)
        else:
            m, _ = plmu.states(u, system, state_or_none)
            o, _ = plmu.project(u, system, W, state_or_none)
        torch.autograd.backward((m, o), (of_m, of_o))
        return [m, o, *(value.grad for value in (u, W, *state) if value.grad is not None)]

    mine, theirs = results(True), results(False)
    assert len(mine) == len(theirs) == 4 + with_state
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)
