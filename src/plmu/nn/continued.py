"""`Continued`: a layer whose sequences go on from a state that it has learned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from plmu.folded import Continued as FoldedContinued
from plmu.folded import Folded
from plmu.folded.continued import as_state, continued, empty_position, selected
from plmu.folded.states import leaves, map_state
from plmu.folded.windowed import number_of, position_after
from plmu.nn.folding import fold_module
from plmu.nn.stacking import entrance, features_after, fills
from plmu.nn.steppable import Steppable, changed
from plmu.ops.check import Lengths, checked_lengths, checked_resets, keep_valid


class Continued(Steppable):
    """A layer all of whose sequences begin in the same state, such as the one after the data that it has learned from.

    The state also counts steps, so that a program that runs the model knows the time of the next sample.

    >>> _, learned = layer(history)
    >>> model = plmu.nn.Continued(layer).continue_from(learned, step=history.shape[1])
    >>> plmu.save(model, "detector.plmu")  # with what was learned

    Args:
        module: a steppable layer that has a state.
        first: the number of a sequence's first step.

    Shape:
        x, out: those of the layer.
        state: the layer's state, and the position (batch, 2), of integers: the number of the next step, and whether
            there was a step. Zeros stand for the start.
    """

    start_bits: Tensor  # of float64 numbers, as integers, which `model.float()` leaves as they are

    def __init__(self, module: Steppable, first: int = 0) -> None:
        super().__init__()
        if not isinstance(module, Steppable):
            raise TypeError(f"Continued needs a steppable layer, got {type(module).__name__}")
        if isinstance(first, bool) or not isinstance(first, int):
            raise ValueError(f"first must be an integer, got {first!r}")
        self.module, self.first = module, first
        self.returns_sequences = module.returns_sequences
        start = self._flat(module.initial_state(1, torch.float64, torch.get_default_device()))
        self.register_buffer("start_bits", start.view(torch.int64))

    @property
    def start(self) -> Tensor:
        """The state of one sequence in which all begin, (numbers,), in float64, on the CPU."""
        return self.start_bits.cpu().view(torch.float64)

    def continue_from(self, state: Any, step: int | None = None) -> Continued:
        """Let sequences begin in this state from now on; returns this layer.

        Args:
            state: of the inner layer, of one sequence.
            step: the number of the first step; by default it stays as it is.
        """
        start = self._flat(state)
        if start.shape != self.start_bits.shape:
            raise ValueError(f"state must have {len(self.start_bits)} numbers, as that of the layer; got {len(start)}")
        self.start_bits = start.cpu().view(torch.int64).to(self.start_bits.device)
        self.first = self.first if step is None else int(step)
        return self

    @staticmethod
    def _flat(state: Any) -> Tensor:
        """All numbers of a state of one sequence, (numbers,), in float64."""
        parts = [leaf.detach().flatten().double() for leaf in leaves(state)]
        if not parts:
            raise ValueError("Continued needs a layer with a state")
        if any(len(leaf) != 1 for leaf in leaves(state)):
            raise ValueError(f"state must be of one sequence, got a batch of {len(leaves(state)[0])}")
        return torch.cat(parts)

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        batch, time = x.shape[:2]
        lengths = checked_lengths(lengths, batch, time, x.device)
        resets = checked_resets(resets, batch, time, x.device)
        inner, position = self._checked(x, state)
        borders = [0] if resets is None else sorted({0, *resets.any(0).nonzero().flatten().tolist()})
        outputs = []
        for begin, end in zip(borders, [*borders[1:], time], strict=True):
            if resets is not None:
                zeros = map_state((inner, position), torch.zeros_like)
                inner, position = selected(resets[:, begin], zeros, (inner, position))
            count = x.new_full((batch,), end - begin, dtype=torch.int64)
            if lengths is not None:
                count = (lengths - begin).clamp(0, end - begin)
            before = continued(self._started(inner), inner, position)
            out, after = self.module(x[:, begin:end], before, None if lengths is None else count)
            outputs.append(out)
            later = position_after(number_of(position, self.first) + count - 1, torch.ones_like(count))
            inner, position = selected(count > 0, (after, later), (inner, position))
        if self.returns_sequences:
            return keep_valid(torch.cat(outputs, dim=1), lengths), (inner, position)
        return outputs[-1], (inner, position)

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        inner, position = self._checked(x, state)
        out, inner = self.module.step(x, continued(self._started(inner), inner, position))
        number = number_of(position, self.first)
        return out, (inner, position_after(number, torch.ones_like(number)))

    def fold(self) -> Folded:
        if changed(self, "fold"):
            return super().fold()
        return FoldedContinued(fold_module(self.module), self.start, self.first)

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        inner = map_state(self.module.initial_state(batch, dtype, device), torch.zeros_like)
        return inner, empty_position(batch, device)

    def _started(self, like: Any) -> Any:
        return as_state(self.start, like)

    def _checked(self, x: Tensor, state: Any) -> tuple[Any, Tensor]:
        if state is None:
            state = self.initial_state(x.shape[0], x.dtype, x.device)
        if not isinstance(state, tuple) or len(state) != 2:
            raise TypeError(f"state must be a pair (state of the layer, position), got {type(state).__name__}")
        return state

    def _fills(self) -> str | None:
        return fills(self.module)

    def _entrance(self) -> nn.Module | None:
        return entrance(self.module)

    def _features_after(self, features: int | None) -> int | None:
        return features_after(self.module, features)

    def extra_repr(self) -> str:
        return f"first={self.first}"
