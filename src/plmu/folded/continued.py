"""A folded layer whose sequences begin in a state that it holds, and the formulas that `plmu.nn.Continued` shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plmu.core.modes import watched
from plmu.folded.base import Folded
from plmu.folded.states import leaves, map_state
from plmu.folded.windowed import number_of, position_after


def as_state(numbers: Tensor, like: Any) -> Any:
    """Numbers (n,) as a state of one sequence, in the form and the precisions of another."""
    sizes = [leaf[:1].numel() for leaf in leaves(like)]
    parts = iter(numbers.split(sizes))
    return map_state(like, lambda leaf: next(parts).to(leaf).view(1, *leaf.shape[1:]))


def selected(rows: Tensor, state: Any, other: Any) -> Any:
    """A state in these rows (batch,), another one of the same form in the others."""
    others = iter(leaves(other))
    return map_state(state, lambda leaf: torch.where(rows.view(-1, *(1,) * (leaf.dim() - 1)), leaf, next(others)))


def continued(start: Any, state: Any, position: Tensor) -> Any:
    """The states of sequences that have begun, by their positions; of the others, the start."""
    return selected(position[:, 1] > 0, state, start)


def empty_position(batch: int, device: torch.device) -> Tensor:
    """The position (batch, 2) of sequences that have not begun."""
    return torch.zeros(batch, 2, dtype=torch.int64, device=device)


@dataclass(frozen=True, eq=False)
class Continued(Folded):
    """A part all of whose sequences begin in the same state: `plmu.nn.Continued`.

    The state is that of the part, and the position (batch, 2).
    """

    inner: Folded
    start: Tensor  # (numbers,), float64: the state of one sequence
    first: int  # the number of a sequence's first step

    @property
    def sample_dtype(self) -> torch.dtype | None:  # type: ignore[override]
        return self.inner.sample_dtype

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        inner, position = self.initial_state(x.shape[0], x.dtype, x.device) if state is None else state
        if watched() or not bool((position[:, 1] > 0).all()):
            inner = continued(as_state(self.start, inner), inner, position)
        out, inner = self.inner.advance(x, inner)
        number = number_of(position, self.first)
        return out, (inner, position_after(number, torch.ones_like(number)))

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        inner = map_state(self.inner.initial_state(batch, dtype, device), torch.zeros_like)
        return inner, empty_position(batch, device)

    def takes_tokens(self) -> bool:
        return self.inner.takes_tokens()
