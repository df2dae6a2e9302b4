"""Many streams of one model, stepped together as rows of batches whose width is fixed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from plmu.blueprint import FileFormatError
from plmu.frozen import FrozenModel, as_sample, converted
from plmu.nn.steppable import Steppable, positive
from plmu.state_tree import check_kind, finite, finite_state, leaves, map_state, spoiled, without_subnormal
from plmu.stream_files import Saved, read_state, write_state

_FLUSH_EVERY = 256


class Sessions:
    """Many streams of one model that step together. A session holds its state alone, one row of a batch.

    >>> sessions = plmu.Sessions(model)
    >>> a, b = sessions.add(), sessions.add()
    >>> outputs = sessions.push({a: [0.1], b: [0.2]})  # {a: y, b: y}, as two streams would give them
    >>> sessions.drop(a)

    A step always runs batches of `width` rows, the rest of them empty: what a session gives does not depend on which
    others step beside it, down to the last bit. Torch may round the rows of a batch differently, by where they are in
    it. That is tried once; where it does, a session has the same place in every batch.

    Args:
        model: any steppable module, or a `plmu.FrozenModel`, whose arrays streams and sessions share.
        width: rows of a batch. A wide one is faster for many sessions, a narrow one for few.
        missing: what a sample of None or NaN does, as in `plmu.Stream`: "raise", "hold" or "zero".
        features: numbers of a sample, for a model that takes any number.

    Raises:
        TypeError: the model's states are not one for each row of a batch.
    """

    def __init__(
        self,
        model: Steppable | FrozenModel,
        width: int = 64,
        *,
        missing: str | None = None,
        features: int | None = None,
    ) -> None:
        self.frozen = FrozenModel.of(model)
        self.width = positive(width, "width")
        self.missing = self.frozen.checked_missing(missing)
        self.features = self.frozen.features if features is None else positive(features, "features")
        if self.features is None and not self.frozen.takes_tokens:
            raise ValueError("features must be given: this model takes samples of any number of features")
        if self.frozen.features not in (None, self.features):
            raise ValueError(f"features must be {self.frozen.features}, as the model has; got {features}")
        place = self.frozen.place
        device = torch.device("cpu") if place is None else place.device
        if self.frozen.takes_tokens:
            self._zeros = torch.zeros(self.width, dtype=torch.int64, device=device)
        else:
            dtype = torch.get_default_dtype() if place is None else place.dtype
            self._zeros = torch.zeros(self.width, self.features or 0, dtype=dtype, device=device)
        with torch.inference_mode():
            self._start = self.frozen.initial_state(self._zeros, device)
            out, state = self.frozen.folded.step(self._zeros, self._start)
        check_kind(state)
        shapes = [tuple(one.shape) for one in leaves(state)]
        if shapes != [tuple(one.shape) for one in leaves(self._start)] or any(s[:1] != (self.width,) for s in shapes):
            raise TypeError(
                f"a state must have one row for each of {self.width} sessions, as its initial_state() has; got {shapes}"
            )
        self.outputs: int = out.shape[-1]
        self._nothing = out[:0].clone()
        self._positions = torch.arange(self.width, device=device)
        self._same_anywhere = self._tried()
        self._open: set[int] = set()
        with torch.inference_mode():  # of all rows: states, last samples, and numbers of steps
            self._states = [one[:0].contiguous() for one in leaves(self._start)]
            self._last = self._zeros[:0].clone()
            self._steps = torch.zeros(0, dtype=torch.int64, device=device)

    @property
    def rows(self) -> list[int]:
        """The numbers of all sessions."""
        return sorted(self._open)

    def add(self, row: int | None = None) -> int:
        """Begin a session.

        Args:
            row: its number, which must be free; None for the lowest that is.

        Returns:
            The number of its row, by which it is known until it is dropped.
        """
        if row is None:
            row = next(number for number in range(len(self._open) + 1) if number not in self._open)
        elif type(row) is not int or row < 0 or row in self._open:
            taken = "it is taken" if row in self._open else "it must be a whole number of at least 0"
            raise ValueError(f"row {row!r} cannot be added: {taken}")
        if row >= len(self._steps):
            self._grow(row + 1)
        self._open.add(row)
        self.reset(row)
        return row

    def drop(self, row: int) -> None:
        """End a session: its row is free for another.

        Args:
            row: the session.
        """
        self.reset(row)
        self._open.remove(row)

    def reset(self, row: int) -> None:
        """Let a session forget everything: its next sample is its first.

        Args:
            row: the session.
        """
        self._check_open([row])
        with torch.inference_mode():
            for whole, start in zip(self._states, leaves(self._start), strict=True):
                whole[row] = start[0]
            self._last[row], self._steps[row] = 0, 0

    def steps(self, row: int) -> int:
        """How many samples a session has taken.

        Args:
            row: the session.
        """
        self._check_open([row])
        return int(self._steps[row])

    def push(self, samples: Mapping[int, Any]) -> dict[int, Tensor]:
        """One sample for each of some sessions in, one output for each out. The others stay as they are.

        Args:
            samples: by row: (features,), or a token number; numbers, lists, arrays or tensors. None is a missing one.

        Returns:
            The model's output by row, (features,) each.

        Raises:
            ValueError: a sample does not fit, is missing or infinite, or would make a state overflow. No session has
                changed.
        """
        rows = list(samples)
        if not rows:
            return {}
        x = torch.stack([self._sample(row, given) for row, given in samples.items()])
        out, accepted, steps = self._computed(rows, x)
        if not bool(accepted.all()):
            wrong = [row for row, fine in zip(rows, accepted.tolist(), strict=True) if not fine]
            raise ValueError(
                f"samples of rows {', '.join(map(str, wrong[:10]))} are missing, infinite or would make their state so:"
                " no session has changed"
            )
        self._take_over(steps)
        return dict(zip(rows, out.clone(), strict=True))

    def step(self, rows: Sequence[int], x: Tensor) -> tuple[Tensor, Tensor]:
        """The same for tensors, where a sample that cannot be taken does not stop the others.

        Args:
            rows: numbers of sessions, each once.
            x: (rows, features), or token numbers (rows,), in the precision of the model. NaN is a missing value.

        Returns:
            The outputs (rows, outputs), and (rows,), False where a sample is missing, infinite or would make the state
            so: these sessions have not changed, and their output means nothing.
        """
        out, accepted, steps = self._computed(rows, x)
        self._take_over(steps)
        return out.clone(), accepted.clone()  # ordinary tensors

    def tensors(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """What some sessions remember, for `fill`.

        Args:
            rows: the sessions.

        Returns:
            "state.0" and so on, "last" and "steps", each with one row for each session.
        """
        self._check_open(rows)
        index = torch.tensor(rows, dtype=torch.int64, device=self._zeros.device)
        values = [*self._states, self._last, self._steps]
        names = [*(f"state.{i}" for i in range(len(self._states))), "last", "steps"]
        return {name: value[index].clone() for name, value in zip(names, values, strict=True)}

    def fill(self, rows: Sequence[int], tensors: Mapping[str, Tensor]) -> None:
        """Let sessions remember what `tensors` gave, in this process or another.

        Args:
            rows: the sessions.
            tensors: one row of each for each of them.

        Raises:
            ValueError: names, shapes or precisions do not fit.
        """
        wanted = self.tensors(rows)
        kinds = [{name: (tuple(t.shape), t.dtype) for name, t in one.items()} for one in (wanted, tensors)]
        if kinds[0] != kinds[1]:
            raise ValueError(f"tensors do not fit these sessions: got {kinds[1]!s:.300}, not {kinds[0]!s:.300}")
        index = torch.tensor(rows, dtype=torch.int64, device=self._zeros.device)
        with torch.inference_mode():
            for whole, name in zip([*self._states, self._last, self._steps], wanted, strict=True):
                whole[index] = tensors[name].to(whole.device)

    def save(self, row: int, path: str | os.PathLike[str]) -> None:
        """Write the state of a session to a file, from which it continues in any process, as a session or a stream.

        Args:
            row: the session.
            path: the file. It is replaced only when all of it has been written.
        """
        saved = Saved(self.steps(row), self.missing, single=True, row=row)
        if saved.steps:
            own = iter([one[row : row + 1] for one in self._states])
            saved.state = map_state(self._start, lambda _: next(own))
            saved.last = self._last[row : row + 1]
        write_state(path, self.frozen, saved)

    def restore(self, path: str | os.PathLike[str]) -> int:
        """A session that continues where a saved one, or a stream of single samples, was.

        Args:
            path: a file of `Sessions.save` or `Stream.save`, of the same model.

        Returns:
            Its row: the one it had, if that is free.

        Raises:
            FileFormatError: the file is broken, is of another model, or of a stream with a batch.
        """
        saved = read_state(path, self.frozen)
        last = self._zeros[:1] if saved.last is None else saved.last
        if last.shape[0] != 1 or last.shape[1:] != self._zeros.shape[1:] or last.dtype != self._zeros.dtype:
            raise FileFormatError(f"{path} has samples {tuple(last.shape)} of {last.dtype}, which no session here has")
        row = self.add(None if saved.row is None or saved.row in self._open else saved.row)
        if saved.steps:
            with torch.inference_mode():
                for whole, own in zip(self._states, leaves(saved.state), strict=True):
                    whole[row] = own[0]
                self._last[row], self._steps[row] = last[0], saved.steps
        return row

    def _tried(self) -> bool:
        """Whether equal rows of a batch come out equal, wherever they are. That does not depend on their numbers."""
        numbers = torch.linspace(-1.0, 1.0, 7 * self._zeros[0].numel(), device=self._zeros.device).sin()
        state = self._start
        with torch.inference_mode():
            for step in numbers.view(7, *self._zeros.shape[1:]):
                x = torch.zeros_like(self._zeros) if self.frozen.takes_tokens else (self._zeros + step)
                out, state = self.frozen.folded.step(x, state)
                if any(not torch.equal(one, one[:1].expand_as(one)) for one in (out, *leaves(state))):
                    return False
        return True

    def _grow(self, count: int) -> None:
        """Make room for so many rows, in steps of the width."""
        more = -(-count // self.width) * self.width - len(self._steps)
        with torch.inference_mode():
            blank = [*leaves(self._start), self._zeros, torch.zeros_like(self._positions)]
            grown = [
                torch.cat([old, start[:1].expand(more, *start.shape[1:])])
                for old, start in zip([*self._states, self._last, self._steps], blank, strict=True)
            ]
        *self._states, self._last, self._steps = grown

    def _check_open(self, rows: Sequence[int]) -> None:
        strange = next((row for row in rows if row not in self._open), None)
        if strange is not None:
            raise ValueError(f"there is no session in row {strange!r}: add() begins one")

    def _sample(self, row: int, given: Any) -> Tensor:
        """A sample without a batch axis, checked but for missing values."""
        wanted = self._zeros.shape[1:]
        if given is None:
            if self.frozen.takes_tokens:
                raise ValueError(f"row {row}: a token cannot be missing")
            return torch.full(wanted, float("nan"), dtype=self._zeros.dtype, device=self._zeros.device)
        sample = as_sample(given, self.frozen.takes_tokens)
        sample = self.frozen.tokens(sample) if self.frozen.takes_tokens else converted(sample, self._zeros)
        if sample.shape != wanted:
            raise ValueError(f"row {row}: a sample must have shape {tuple(wanted)}, got {tuple(sample.shape)}")
        return sample

    def _computed(
        self, rows: Sequence[int], x: Tensor
    ) -> tuple[Tensor, Tensor, list[tuple[Tensor, list[Tensor], Tensor]]]:
        """Outputs, which samples can be taken, and for each batch its rows, their next states and samples."""
        if len(set(rows)) != len(rows):
            raise ValueError("rows must be numbers of sessions, each once")
        self._check_open(rows)
        if x.shape != (len(rows), *self._zeros.shape[1:]) or x.dtype != self._zeros.dtype:
            shape = (len(rows), *self._zeros.shape[1:])
            raise ValueError(f"x must be {self._zeros.dtype} of shape {shape}, got {x.dtype} of shape {tuple(x.shape)}")
        found: list[tuple[Tensor, Tensor]] = []
        steps: list[tuple[Tensor, list[Tensor], Tensor]] = []
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
                return self._nothing, self._nothing.new_empty(0, dtype=torch.bool), steps
            if len(found) == 1 and self._same_anywhere:
                return *found[0], steps
            back = torch.tensor(order, device=device).argsort()
            return torch.cat([out for out, _ in found])[back], torch.cat([fine for _, fine in found])[back], steps

    def _batches(self, rows: Sequence[int]) -> Iterator[tuple[list[int], Tensor]]:
        """Batches: where their rows are in `rows`, and their positions in the batch."""
        if self._same_anywhere:
            for start in range(0, len(rows), self.width):
                places = list(range(start, min(len(rows), start + self.width)))
                yield places, self._positions[: len(places)]
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
            yield list(batch.values()), torch.tensor(list(batch), device=self._positions.device)

    def _filled(self, rows: Tensor, x: Tensor) -> Tensor:
        if self.missing == "raise" or not x.is_floating_point():
            return x
        return torch.where(torch.isnan(x), self._last[rows] if self.missing == "hold" else 0.0, x)

    def _batch(self, rows: Tensor, positions: Tensor, x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Outputs, which samples can be taken, and the states after them, of rows at these positions of a batch."""
        before = [one[rows] for one in self._states]
        pairs = zip(leaves(self._start), before, strict=True)
        full = len(positions) == self.width and self._same_anywhere
        start = iter(before if full else [blank.index_copy(0, positions, own) for blank, own in pairs])
        state = map_state(self._start, lambda _: next(start))
        batch = x if full else self._zeros.index_copy(0, positions, x)
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

    def _take_over(self, steps: list[tuple[Tensor, list[Tensor], Tensor]]) -> None:
        """Let rows have their next states."""
        with torch.inference_mode():
            for rows, state, x in steps:
                counts = self._steps[rows] + 1
                self._steps[rows] = counts
                self._last[rows] = x
                due = (counts % _FLUSH_EVERY == 0).nonzero().flatten()
                for whole, new in zip(self._states, state, strict=True):
                    if len(due):  # in silence a state decays into subnormal numbers, with which a CPU is slow
                        new[due] = without_subnormal(new[due])
                    whole[rows] = new

    def __reduce__(self) -> NoReturn:
        raise TypeError("Sessions cannot be pickled: use sessions.save(row, path) and sessions.restore(path)")
