"""Rows of many sessions: what each remembers, and steps of some of them in batches of a fixed width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from plmu.frozen import FrozenModel
from plmu.state_tree import check_kind, finite, finite_state, leaves, map_state, spoiled, without_subnormal

_FLUSH_EVERY = 256
_TRIED = 32  # steps: sums in another order round to other bits in some of them
Next = tuple[Tensor, list[Tensor], Tensor]  # rows, their next states and the samples that led there


class Rows:
    """States, last samples and numbers of steps, one row for each session."""

    def __init__(self, frozen: FrozenModel, width: int, missing: str, features: int | None) -> None:
        self.frozen, self.width, self.missing = frozen, width, missing
        place = frozen.place
        device = torch.device("cpu") if place is None else place.device
        if frozen.takes_tokens:
            self.zeros = torch.zeros(width, dtype=torch.int64, device=device)  # an empty batch
        else:
            dtype = torch.get_default_dtype() if place is None else place.dtype
            self.zeros = torch.zeros(width, features or 0, dtype=dtype, device=device)
        with torch.inference_mode():
            self.start = frozen.initial_state(self.zeros, device)
            out, state = frozen.folded.step(self.zeros, self.start)
        check_kind(state)
        shapes = [tuple(one.shape) for one in leaves(state)]
        if shapes != [tuple(one.shape) for one in leaves(self.start)] or any(s[:1] != (width,) for s in shapes):
            raise TypeError(
                f"a state must have one row for each of {width} sessions, as its initial_state() has; got {shapes}"
            )
        self.outputs: int = out.shape[-1]
        self.nothing = out[:0].clone()
        self.positions = torch.arange(width, device=device)
        self.same_anywhere = self._tried()
        with torch.inference_mode():
            self.states = [one[:0].contiguous() for one in leaves(self.start)]
            self.last = self.zeros[:0].clone()
            self.steps = torch.zeros(0, dtype=torch.int64, device=device)

    def everything(self) -> dict[str, Tensor]:
        """All that rows remember, by name."""
        names = [*(f"state.{i}" for i in range(len(self.states))), "last", "steps"]
        return dict(zip(names, [*self.states, self.last, self.steps], strict=True))

    def clear(self, row: int) -> None:
        """Let a row be as at the start."""
        with torch.inference_mode():
            for whole, start in zip(self.states, leaves(self.start), strict=True):
                whole[row] = start[0]
            self.last[row], self.steps[row] = 0, 0

    def index(self, rows: Sequence[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self.zeros.device)

    def room(self, count: int) -> None:
        """Make room for so many rows, in steps of the width."""
        if count > len(self.steps):
            self._grow(count)

    def compute(self, rows: Sequence[int], x: Tensor) -> tuple[Tensor, Tensor, list[Next]]:
        """Outputs, which samples can be taken, and for each batch its rows, their next states and samples."""
        found: list[tuple[Tensor, Tensor]] = []
        steps: list[Next] = []
        device, order = x.device, []
        with torch.inference_mode():
            for places, positions in self._batches(rows):
                order += places
                own = torch.tensor([rows[place] for place in places], device=device)
                given = x if len(places) == len(rows) else x[torch.tensor(places, device=device)]
                given = self._filled(own, given)
                out, fine, state = self._batch(own, positions, given)
                found.append((out, fine))
                all_fine = bool(fine.all())
                steps.append((own, state, given) if all_fine else (own[fine], [s[fine] for s in state], given[fine]))
            if not found:
                return self.nothing, self.nothing.new_empty(0, dtype=torch.bool), steps
            if len(found) == 1 and self.same_anywhere:
                return *found[0], steps
            back = torch.tensor(order, device=device).argsort()
            return torch.cat([out for out, _ in found])[back], torch.cat([fine for _, fine in found])[back], steps

    def take_over(self, steps: list[Next]) -> None:
        """Let rows have their next states."""
        with torch.inference_mode():
            for rows, state, x in steps:
                counts = self.steps[rows] + 1
                self.steps[rows] = counts
                self.last[rows] = x
                due = (counts % _FLUSH_EVERY == 0).nonzero().flatten()
                for whole, new in zip(self.states, state, strict=True):
                    if len(due):  # in silence a state decays into subnormal numbers, with which a CPU is slow
                        new[due] = without_subnormal(new[due])
                    whole[rows] = new

    def _tried(self) -> bool:
        """Whether equal rows of a batch come out equal, wherever they are. That does not depend on their numbers."""
        state, count = self.start, self.zeros[0].numel()
        numbers = torch.arange(1, _TRIED * count + 1, device=self.zeros.device)
        if self.frozen.takes_tokens:
            numbers = numbers % (self.frozen.vocabulary or 1)
        else:
            numbers = numbers.double().sin().to(self.zeros.dtype)
        with torch.inference_mode():
            for step in numbers.view(_TRIED, *self.zeros.shape[1:]):
                x = self.zeros + step
                out, state = self.frozen.folded.step(x, state)
                if any(not torch.equal(one, one[:1].expand_as(one)) for one in (out, *leaves(state))):
                    return False
        return True

    def _grow(self, count: int) -> None:
        """Make room for so many rows, in steps of the width."""
        more = -(-count // self.width) * self.width - len(self.steps)
        with torch.inference_mode():
            blank = [*leaves(self.start), self.zeros, torch.zeros_like(self.positions)]
            grown = [
                torch.cat([old, start[:1].expand(more, *start.shape[1:])])
                for old, start in zip([*self.states, self.last, self.steps], blank, strict=True)
            ]
        *self.states, self.last, self.steps = grown

    def _batches(self, rows: Sequence[int]) -> Iterator[tuple[list[int], Tensor]]:
        """Batches: where their rows are in `rows`, and their positions in the batch."""
        if self.same_anywhere:
            for start in range(0, len(rows), self.width):
                places = list(range(start, min(len(rows), start + self.width)))
                yield places, self.positions[: len(places)]
            return
        batches: list[dict[int, int]] = []
        taken = dict.fromkeys(range(self.width), 0)
        for place, row in enumerate(rows):
            position = row % self.width
            if taken[position] == len(batches):
                batches.append({})
            batches[taken[position]][position] = place
            taken[position] += 1
        for batch in batches:
            yield list(batch.values()), torch.tensor(list(batch), device=self.positions.device)

    def _filled(self, rows: Tensor, x: Tensor) -> Tensor:
        if self.missing == "raise" or not x.is_floating_point():
            return x
        return torch.where(torch.isnan(x), self.last[rows] if self.missing == "hold" else 0.0, x)

    def _batch(self, rows: Tensor, positions: Tensor, x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Outputs, which samples can be taken, and the states after them, of rows at these positions of a batch."""
        before = [one[rows] for one in self.states]
        pairs = zip(leaves(self.start), before, strict=True)
        full = len(positions) == self.width and self.same_anywhere
        start = iter(before if full else [blank.index_copy(0, positions, own) for blank, own in pairs])
        state = map_state(self.start, lambda _: next(start))
        batch = x.contiguous() if full else self.zeros.index_copy(0, positions, x)  # always laid out alike
        try:
            out, state = self.frozen.folded.step(batch, state)
        except IndexError as error:
            raise ValueError(f"a token number is out of range: {error}") from error
        after = [one[positions] for one in leaves(state)]
        fine = torch.ones_like(rows, dtype=torch.bool)
        numbers = x.is_floating_point()
        if not finite_state(after) or (numbers and not finite(x)):
            if numbers:
                fine &= torch.isfinite(x).all(1)
            for new, old in zip(after, before, strict=True):
                fine &= ~spoiled(new, old).flatten(1).any(1)
        return out[positions], fine, after
