"""Rows of many sessions: what each remembers, and steps of some of them in batches of a fixed width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from plmu.runtime.frozen import FrozenModel
from plmu.runtime.state_tree import check_kind, finite, finite_state, leaves, map_state, spoiled, without_subnormal

_FLUSH_EVERY = 256
_TRIED = 32  # steps: sums in another order round to other bits in some of them
Next = tuple[Tensor, list[Tensor], Tensor, Tensor]  # rows, their next states, last samples and numbers of steps


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
        """Steps of rows, which do not change yet.

        Args:
            rows: their numbers.
            x: (rows, time, features), or token numbers (rows, time).

        Returns:
            Outputs (rows, time, outputs), how many samples of each row can be taken, and what `take_over` needs.
        """
        outputs: list[Tensor] = []
        counts: list[Tensor] = []
        steps: list[Next] = []
        order: list[int] = []
        with torch.inference_mode():
            for places, positions in self._batches(rows):
                order += places
                own = self.index([rows[place] for place in places])
                given = self._filled(own, x if len(places) == len(rows) else x[self.index(places)])
                out, taken, state = self._batch(own, positions, given)
                outputs.append(out)
                counts.append(taken)
                steps.append(self._next(own, taken, state, given))
            if not outputs:
                return self.nothing.new_empty(0, *x.shape[1:2], self.outputs), self.index([]), steps
            if len(outputs) == 1:
                return outputs[0], counts[0], steps
            out, taken = torch.cat(outputs), torch.cat(counts)
            if not self.same_anywhere:
                back = self.index(order).argsort()
                out, taken = out[back], taken[back]
            return out, taken, steps

    def take_over(self, steps: list[Next]) -> None:
        """Let rows have their next states."""
        with torch.inference_mode():
            for rows, state, last, counts in steps:
                self.steps[rows], self.last[rows] = counts, last
                for whole, new in zip(self.states, state, strict=True):
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
        """Samples (rows, time, features) without missing values, where these are to be filled."""
        if self.missing == "raise" or not x.is_floating_point():
            return x
        if self.missing == "zero":
            return torch.where(torch.isnan(x), 0.0, x)
        before, steps = self.last[rows], []
        for sample in x.unbind(1):
            before = torch.where(torch.isnan(sample), before, sample)
            steps.append(before)
        return torch.stack(steps, 1)

    def _batch(self, rows: Tensor, positions: Tensor, x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Outputs, how many samples can be taken, and the states after them, of rows at these positions of a batch.

        Each step begins with copies of the state and the sample: kernels round by how their arguments lie in memory,
        and the bits must not depend on how many steps are taken at once.
        """
        time = x.shape[1]
        full = len(positions) == self.width and self.same_anywhere
        now, batch = [one[rows] for one in self.states], x.transpose(0, 1)
        if not full:
            now = [blank.index_copy(0, positions, own) for blank, own in zip(leaves(self.start), now, strict=True)]
            batch = self.zeros.expand(time, *self.zeros.shape).index_copy(1, positions, batch)
        clean = not x.is_floating_point() or finite(x)
        taken = torch.full_like(rows, time)
        due = (self.steps[rows].unsqueeze(1) + torch.arange(1, time + 1, device=rows.device)) % _FLUSH_EVERY == 0
        outputs = []
        for step, flush in enumerate(due.any(0).tolist()):
            try:
                out, state = self.frozen.folded.step(_copy(batch[step]), self._nested(now))
            except IndexError as error:
                raise ValueError(f"a token number is out of range: {error}") from error
            outputs.append(out)
            old, now = now, [_copy(one) for one in leaves(state)]
            if flush:  # in silence a state decays into subnormal numbers, with which a CPU is slow
                places = positions[due[:, step]]
                for one in now:
                    one[places] = without_subnormal(one[places])
            if not clean or not finite_state(now):
                clean = False
                bad = torch.zeros_like(rows, dtype=torch.bool)
                if x.is_floating_point():
                    bad |= ~torch.isfinite(x[:, step]).all(1)
                for new, own in zip(now, old, strict=True):
                    bad |= spoiled(new[positions], own[positions]).flatten(1).any(1)
                taken[bad & (taken == time)] = step
                held = positions[taken < time]
                for new, own in zip(now, old, strict=True):
                    new[held] = own[held]
        found = torch.stack(outputs, 1)
        return (found, taken, now) if full else (found[positions], taken, [one[positions] for one in now])

    def _nested(self, parts: list[Tensor]) -> Any:
        """A state of these tensors."""
        each = iter(parts)
        return map_state(self.start, lambda _: next(each))

    def _next(self, rows: Tensor, taken: Tensor, state: list[Tensor], x: Tensor) -> Next:
        """What rows have after their samples, without those that take none."""
        last = x[:, -1]
        if int(taken.min()) < x.shape[1]:
            some = taken > 0
            rows, taken, x, state = rows[some], taken[some], x[some], [one[some] for one in state]
            last = x[torch.arange(len(rows), device=rows.device), taken - 1]
        return rows, state, last, self.steps[rows] + taken


def _copy(value: Tensor) -> Tensor:
    return value.clone(memory_format=torch.contiguous_format)
