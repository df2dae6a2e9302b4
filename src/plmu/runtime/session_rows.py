"""The states of many sessions, one row each, and steps of some rows in batches of a fixed width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from plmu.runtime.frozen import PASS, FrozenModel
from plmu.runtime.state_tree import check_kind, finite, finite_state, leaves, map_state, spoiled, without_subnormal

_FLUSH_EVERY = 256
_TRIED_STEPS = 32  # sums in another order round to other bits in some of these steps
Next = tuple[Tensor, list[Tensor], Tensor, Tensor]  # rows, their next states, last samples and step counts


class Rows:
    """States, last samples and step counts, one row for each session."""

    def __init__(
        self, frozen: FrozenModel, width: int, missing: str, features: int | None, dtype: torch.dtype | None = None
    ) -> None:
        self.frozen, self.width, self.missing = frozen, width, missing
        self.refusal: str | None = None  # why the model refused a sample of the last batch
        place = frozen.place
        device = torch.device("cpu") if place is None else place.device
        if frozen.takes_tokens:
            self.zeros = torch.zeros(width, dtype=torch.int64, device=device)  # an empty batch
        else:
            dtype = (dtype or torch.get_default_dtype()) if place is None else place.dtype
            self.zeros = torch.zeros(width, features or 0, dtype=dtype, device=device)
        with torch.inference_mode():
            self.start = frozen.initial_state(self.zeros, device)
            out, state = frozen.folded.step(self.zeros, self.start)
        check_kind(state)
        shapes = [tuple(leaf.shape) for leaf in leaves(state)]
        if shapes != [tuple(leaf.shape) for leaf in leaves(self.start)] or any(s[:1] != (width,) for s in shapes):
            raise TypeError(
                f"a state must have one row for each of {width} sessions, as its initial_state() has; got {shapes}"
            )
        self.outputs: int = out.shape[-1]
        self.no_output = out[:0].clone()
        self.positions = torch.arange(width, device=device)
        self.same_anywhere = self._rows_round_equally()
        with torch.inference_mode():
            self.states = [leaf[:0].contiguous() for leaf in leaves(self.start)]
            self.last = self.zeros[:0].clone()
            self.steps = torch.zeros(0, dtype=torch.int64, device=device)

    def tensors(self) -> dict[str, Tensor]:
        """What all rows remember, by name."""
        names = [*(f"state.{i}" for i in range(len(self.states))), "last", "steps"]
        return dict(zip(names, [*self.states, self.last, self.steps], strict=True))

    def clear(self, row: int, state: Any = None) -> None:
        """Reset a row to the start, or to this state of one sequence."""
        with torch.inference_mode():
            for states, start in zip(self.states, leaves(self.start if state is None else state), strict=True):
                states[row] = start[0]
            self.last[row], self.steps[row] = 0, 0

    def index(self, rows: Sequence[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self.zeros.device)

    def ensure(self, count: int) -> None:
        """Make room for at least `count` rows, a multiple of the width."""
        missing = -(-count // self.width) * self.width - len(self.steps)
        if missing <= 0:
            return
        with torch.inference_mode():
            blank = [*leaves(self.start), self.zeros, torch.zeros_like(self.positions)]
            grown = [
                torch.cat([old, start[:1].expand(missing, *start.shape[1:])])
                for old, start in zip([*self.states, self.last, self.steps], blank, strict=True)
            ]
        *self.states, self.last, self.steps = grown

    def compute(self, rows: Sequence[int], x: Tensor) -> tuple[Tensor, Tensor, list[Next]]:
        """The steps of these rows. The rows change only in `commit`.

        Args:
            rows: their numbers.
            x: (rows, time, features), or token numbers (rows, time).

        Returns:
            Outputs (rows, time, outputs), the number of samples that each row can take, and the argument of `commit`.
        """
        outputs: list[Tensor] = []
        counts: list[Tensor] = []
        steps: list[Next] = []
        order: list[int] = []
        with torch.inference_mode():
            for places, positions in self._batches(rows):
                order += places
                numbers = self.index([rows[place] for place in places])
                raw = x if len(places) == len(rows) else x[self.index(places)]
                samples = self._filled(numbers, raw)
                tells = self.missing == "hold" and self.frozen.folded.reads_missing
                present = ~torch.isnan(raw) if tells and not finite(raw) else None
                out, taken, state = self._batch(numbers, positions, samples, present)
                outputs.append(out)
                counts.append(taken)
                steps.append(self._next(numbers, taken, state, samples))
            if not outputs:
                return self.no_output.new_empty(0, *x.shape[1:2], self.outputs), self.index([]), steps
            if len(outputs) == 1:
                return outputs[0], counts[0], steps
            out, taken = torch.cat(outputs), torch.cat(counts)
            if not self.same_anywhere:
                back = self.index(order).argsort()
                out, taken = out[back], taken[back]
            return out, taken, steps

    def commit(self, steps: list[Next]) -> None:
        """Make the next states the rows' states."""
        with torch.inference_mode():
            for rows, state, last, counts in steps:
                self.steps[rows], self.last[rows] = counts, last
                for states, new in zip(self.states, state, strict=True):
                    states[rows] = new

    def _rows_round_equally(self) -> bool:
        """Whether equal rows of a batch have equal outputs, wherever they are: a trial, whose numbers do not matter."""
        state, count = self.frozen.initial_state(self.zeros, self.zeros.device, trial=True), self.zeros[0].numel()
        numbers = torch.arange(1, _TRIED_STEPS * count + 1, device=self.zeros.device)
        if self.frozen.takes_tokens:
            numbers = numbers % (self.frozen.vocabulary or 1)
        else:
            numbers = numbers.double().sin().abs().to(self.zeros.dtype)  # some features, as intervals, are not negative
        with torch.inference_mode():
            for step in numbers.view(_TRIED_STEPS, *self.zeros.shape[1:]):
                x = self.zeros + step
                out, state = self.frozen.folded.step(x, state)
                if any(not torch.equal(leaf, leaf[:1].expand_as(leaf)) for leaf in (out, *leaves(state))):
                    return False
        return True

    def _batches(self, rows: Sequence[int]) -> Iterator[tuple[list[int], Tensor]]:
        """Of each batch, the indices of its rows in `rows` and their positions in the batch."""
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
        """Samples (rows, time, features) whose missing values are filled, unless `missing` is "raise"."""
        if self.missing in ("raise", PASS) or not x.is_floating_point():
            return x
        if self.missing == "zero":
            return torch.where(torch.isnan(x), 0.0, x)
        last, filled = self.last[rows], []
        for sample in x.unbind(1):
            last = torch.where(torch.isnan(sample), last, sample)
            filled.append(last)
        return torch.stack(filled, 1)

    def _batch(
        self, rows: Tensor, positions: Tensor, x: Tensor, present: Tensor | None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Outputs of rows at these positions of a batch, the number of samples each can take, and their states then.
        `present` tells a model that reads missing values which of x it was given.

        Each step begins with copies of the state and the sample: kernels round by how their arguments lie in memory,
        and the bits must not depend on how many steps are taken at once.
        """
        time = x.shape[1]
        full = len(positions) == self.width and self.same_anywhere
        state = [states[rows] for states in self.states]
        batch = (x if present is None else torch.where(present, x, torch.nan)).transpose(0, 1)
        if not full:
            state = [start.index_copy(0, positions, row) for start, row in zip(leaves(self.start), state, strict=True)]
            batch = self.zeros.expand(time, *self.zeros.shape).index_copy(1, positions, batch)
        self.refusal = None
        clean = not x.is_floating_point() or finite(x)
        taken = torch.full_like(rows, time)
        due = (self.steps[rows].unsqueeze(1) + torch.arange(1, time + 1, device=rows.device)) % _FLUSH_EVERY == 0
        outputs = []
        for step, flush in enumerate(due.any(0).tolist()):
            sample, refused = _copy(batch[step]), []
            try:
                out, nested = self.frozen.folded.step(sample, self._nested(state))
            except IndexError as error:
                raise ValueError(f"a token number is out of range: {error}") from error
            except ValueError as error:
                refused = [row for row in positions.tolist() if not self._takes(row, sample, state)]
                if not refused:
                    raise
                self.refusal, clean = str(error), False
                sample[refused] = self.zeros[refused]
                out, nested = self.frozen.folded.step(sample, self._nested(state))
            outputs.append(out)
            old, state = state, [_copy(leaf) for leaf in leaves(nested)]
            if flush:  # in silence a state decays into subnormal numbers, with which a CPU is slow
                places = positions[due[:, step]]
                for leaf in state:
                    leaf[places] = without_subnormal(leaf[places])
            if not clean or not finite_state(state):
                clean = False
                bad = torch.zeros_like(rows, dtype=torch.bool)
                if x.is_floating_point():
                    unfit = torch.isinf(x[:, step]) if self.missing == PASS else ~torch.isfinite(x[:, step])
                    bad |= unfit.any(1)
                bad |= torch.isin(positions, self.index(refused))
                for new, before in zip(state, old, strict=True):
                    bad |= spoiled(new[positions], before[positions]).flatten(1).any(1)
                taken[bad & (taken == time)] = step
                stopped = positions[taken < time]
                for new, before in zip(state, old, strict=True):
                    new[stopped] = before[stopped]
        out = torch.stack(outputs, 1)
        return (out, taken, state) if full else (out[positions], taken, [leaf[positions] for leaf in state])

    def _takes(self, row: int, sample: Tensor, state: list[Tensor]) -> bool:
        """Whether the model takes this row of a batch: it may check values, such as those of intervals."""
        alone = self.zeros.clone()
        alone[row] = sample[row]
        try:
            self.frozen.folded.step(alone, self._nested(state))
        except ValueError:
            return False
        return True

    def _nested(self, parts: list[Tensor]) -> Any:
        """A state of these tensors."""
        tensors = iter(parts)
        return map_state(self.start, lambda _: next(tensors))

    def _next(self, rows: Tensor, taken: Tensor, state: list[Tensor], x: Tensor) -> Next:
        """The rows after their samples, without those that take none."""
        last = x[:, -1]
        if int(taken.min()) < x.shape[1]:
            moved = taken > 0
            rows, taken, x, state = rows[moved], taken[moved], x[moved], [leaf[moved] for leaf in state]
            last = x[torch.arange(len(rows), device=rows.device), taken - 1]
        if self.missing == PASS:
            last = torch.zeros_like(last)  # nothing is filled with it, and files hold no NaN
        return rows, state, last, self.steps[rows] + taken


def _copy(value: Tensor) -> Tensor:
    return value.clone(memory_format=torch.contiguous_format)
