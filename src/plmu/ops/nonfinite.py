"""NaN and infinity in the input, with one meaning in every algorithm.

A non-finite value at step t makes the states of its channel NaN, and every output that they enter, from step t to the
end of its sequence or to the next reset. A non-finite initial state does the same from the first step. Nothing before
step t, behind a reset or in another sequence changes.

The recurrence does this for NaN, and so does `final_state`; for infinity they need a correction. A product over many
steps does not: zero times NaN is NaN. So the algorithms get an input with zeros in place of NaN and infinity, and their
results are set to NaN afterwards. On a CPU this is always done, at the price of one sum over the input. On a GPU, and
in a graph that is compiled, exported or traced, it is done inside `isolate_nonfinite()` alone, at the price of a pass
over the input and one over the output.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from plmu.core.modes import transformed
from plmu.ops.check import Problem, finite_by_sum

_entered = 0  # nested entries of all threads: those of autograd must do as the forward pass did
_isolating = False  # torch.compile makes a graph for each value that it reads, so this has only two
_isolating_lock = threading.Lock()


@contextlib.contextmanager
def isolate_nonfinite() -> Iterator[None]:
    """Context manager: inside it NaN and infinity do not spread on a GPU and in compiled graphs, as never on a CPU.

    Outputs before a bad value, behind a reset or in other sequences are then unaffected by it. Outside, a bad value may
    also make steps before it and behind a reset NaN, in its own sequence: those of its chunk with "chunked" and
    "fused", all with "toeplitz" and "fft". It affects all threads of the process.

    >>> with plmu.isolate_nonfinite():  # doctest: +SKIP
    ...     out, state = layer(x)
    """
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    global _entered, _isolating
    with _isolating_lock:
        _entered += change
        _isolating = _entered > 0


@dataclass
class Spoilt:
    """Where states are NaN because of a value that was taken out of the input."""

    steps: Tensor  # (batch, time, channels)
    end: Tensor  # (batch, channels)
    started: Tensor | None  # which sequences have any steps (batch,), None for all
    state: Tensor | None  # the caller's initial state

    def mark_states(self, m: Tensor) -> Tensor:
        """m (batch, time, order, channels) with NaN in it."""
        return m.masked_fill(self.steps[:, :, None], math.nan)

    def mark_outputs(self, o: Tensor) -> Tensor:
        """o (batch, time, out), into which all channels enter."""
        return o.masked_fill(self.steps.any(2)[:, :, None], math.nan)

    def mark_final(self, last: Tensor) -> Tensor:
        """The final state (batch, order, channels); for a sequence without steps the caller's initial state."""
        last = last.masked_fill(self.end[:, None], math.nan)
        if self.started is None or self.state is None:
            return last
        return torch.where(self.started[:, None, None], last, self.state)


def isolated(problem: Problem) -> tuple[Problem, Spoilt | None]:
    """The problem with zeros in place of non-finite values, and where its results must be marked, if anywhere."""
    u, state, spoilt = isolated_values(problem.u, problem.state, problem.lengths, problem.resets)
    return (problem if spoilt is None else replace(problem, u=u, state=state)), spoilt


def isolated_values(
    u: Tensor, state: Tensor | None, lengths: Tensor | None, resets: Tensor | None
) -> tuple[Tensor, Tensor | None, Spoilt | None]:
    """`isolated` for an input (batch, time, inputs, channels) and a state (batch, order, channels)."""
    if not suspect(u, state):
        return u, state, None
    bad, first_state = ~torch.isfinite(u), state
    bad_state = None
    if state is not None:
        bad_state = ~torch.isfinite(state).all(1)  # (batch, channels)
        state = torch.where(bad_state[:, None], 0.0, state)
    steps, end = _reached(bad.any(2), bad_state, lengths, resets)
    started = None if lengths is None else lengths > 0
    return torch.where(bad, 0.0, u), state, Spoilt(steps, end, started, first_state)


def suspect(*tensors: Tensor | None) -> bool:
    """Whether NaN or infinity must be looked for element by element: on a CPU if the sum of a tensor is not finite,
    elsewhere if such values are isolated on the device and in the mode of the first tensor."""
    finite = finite_by_sum(*tensors)
    if finite is None:
        assert tensors[0] is not None
        return _isolating or (tensors[0].device.type == "cpu" and transformed())
    return not finite


def isolates() -> bool:
    """Whether `isolate_nonfinite` is active."""
    return _isolating


def _reached(
    bad: Tensor, bad_state: Tensor | None, lengths: Tensor | None, resets: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The steps (batch, time, channels) that a bad input or state reaches, and whether it reaches the end (batch,
    channels)."""
    time = bad.shape[1]
    number = torch.arange(1, time + 1, dtype=torch.int32, device=bad.device)[:, None]  # 0 is the initial state
    before = -1 if bad_state is None else torch.where(bad_state, 0, -1)[:, None]
    latest = torch.where(bad, number, before).cummax(1).values  # the last bad moment so far
    start: Tensor | int = 0  # the first step since the last reset
    if resets is not None:
        start = torch.where(resets[:, :, None], number, 0).cummax(1).values
    reached = latest >= start
    if lengths is None:
        return reached, reached[:, -1]
    index = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, bad.shape[2])
    return reached, reached.gather(1, index)[:, 0] & (lengths > 0)[:, None]
