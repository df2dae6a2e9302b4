"""Many streams of one model, stepped together as rows of batches whose width is fixed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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

    Rows are in blocks of `width`, and a step always runs a whole block: what a session gives does not depend on which
    others step beside it, down to the last bit. Blocks without a sample are not run, and are made as they are needed.

    Args:
        model: any steppable module, or a `plmu.FrozenModel`, whose arrays streams and sessions share.
        width: rows of a block. A wide block is faster for many sessions, a narrow one for few.
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
        self._blocks: list[_Block] = []
        self._open: set[int] = set()

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
        while row >= len(self._blocks) * self.width:
            self._blocks.append(_Block(self._start, self._zeros))
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
        block, local = self._block(row)
        with torch.inference_mode():
            at = self._index(local)
            start = [one[local : local + 1] for one in leaves(self._start)]
            block.put(at, start, self._zeros[:1], torch.zeros_like(at))

    def steps(self, row: int) -> int:
        """How many samples a session has taken.

        Args:
            row: the session.
        """
        block, local = self._block(row)
        return int(block.steps[local])

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
        for block, arguments in steps:
            block.commit(*arguments)
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
        for block, arguments in steps:
            block.commit(*arguments)
        return out.clone(), accepted.clone()  # ordinary tensors

    def tensors(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """What some sessions remember, for `fill`.

        Args:
            rows: the sessions.

        Returns:
            "state.0" and so on, "last" and "steps", each with one row for each session.
        """
        parts = [self._block(row) for row in rows]
        names = [f"state.{i}" for i in range(len(leaves(self._start)))]
        empty = [*leaves(self._start), self._zeros, self._index(0)]
        found = [[*leaves(block.state), block.last, block.steps] for block, _ in parts]
        columns = [
            torch.stack([of[i][local] for of, (_, local) in zip(found, parts, strict=True)]) if parts else one[:0]
            for i, one in enumerate(empty)
        ]
        return dict(zip([*names, "last", "steps"], columns, strict=True))

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
        values = [tensors[name] for name in wanted]
        with torch.inference_mode():
            for number, row in enumerate(rows):
                block, local = self._block(row)
                own = [one[number : number + 1] for one in values]
                block.put(self._index(local), own[:-2], own[-2], own[-1])

    def save(self, row: int, path: str | os.PathLike[str]) -> None:
        """Write the state of a session to a file, from which it continues in any process, as a session or a stream.

        Args:
            row: the session.
            path: the file. It is replaced only when all of it has been written.
        """
        block, local = self._block(row)
        saved = Saved(self.steps(row), self.missing, single=True, row=row)
        if saved.steps:
            saved.state = map_state(block.state, lambda one: one[local : local + 1])
            saved.last = block.last[local : local + 1]
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
        block, local = self._block(row)
        if saved.steps:
            with torch.inference_mode():
                block.put(self._index(local), leaves(saved.state), last, self._index(saved.steps))
        return row

    def _block(self, row: int) -> tuple[_Block, int]:
        if row not in self._open:
            raise ValueError(f"there is no session in row {row!r}: add() begins one")
        return self._blocks[row // self.width], row % self.width

    def _index(self, number: int) -> Tensor:
        return torch.tensor([number], device=self._zeros.device)

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

    def _computed(self, rows: Sequence[int], x: Tensor) -> tuple[Tensor, Tensor, list[tuple[_Block, Any]]]:
        """Outputs, which samples can be taken, and for each block that has any what to commit."""
        places: dict[int, list[int]] = {}  # by block, where its rows are in `rows`
        for place, row in enumerate(rows):
            places.setdefault(row // self.width, []).append(place)
        if len(set(rows)) != len(rows) or not self._open.issuperset(rows):
            strange = next((row for row in rows if row not in self._open), None)
            fault = "each once" if strange is None else f"of sessions: there is none in row {strange!r}"
            raise ValueError(f"rows must be numbers {fault}")
        if x.shape != (len(rows), *self._zeros.shape[1:]) or x.dtype != self._zeros.dtype:
            shape = (len(rows), *self._zeros.shape[1:])
            raise ValueError(f"x must be {self._zeros.dtype} of shape {shape}, got {x.dtype} of shape {tuple(x.shape)}")
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        steps: list[tuple[_Block, Any]] = []
        device = x.device
        with torch.inference_mode():
            for number, some in places.items():
                block, whole = self._blocks[number], len(some) == len(rows)
                at = torch.tensor(some, device=device)
                local = torch.tensor([rows[place] % self.width for place in some], device=device)
                given = block.filled(local, x if whole else x[at], self.missing)
                out, fine, state = block.compute(self.frozen, local, given)
                found.append((at, out, fine))
                everyone = bool(fine.all())
                steps.append((block, (local, state, given) if everyone else (local[fine], state, given[fine])))
            if len(found) == 1:
                return found[0][1], found[0][2], steps
            if not found:
                return self._nothing, self._nothing.new_empty(0, dtype=torch.bool), steps
            order = torch.cat([at for at, _, _ in found]).argsort()
            return torch.cat([out for _, out, _ in found])[order], torch.cat([one for *_, one in found])[order], steps

    def __reduce__(self) -> NoReturn:
        raise TypeError("Sessions cannot be pickled: use sessions.save(row, path) and sessions.restore(path)")


class _Block:
    """Rows that step as one batch: their state, last samples and numbers of steps."""

    def __init__(self, start: Any, zeros: Tensor) -> None:
        with torch.inference_mode():
            self.state = map_state(start, torch.clone)
            self.zeros, self.last = zeros, zeros.clone()
            self.steps = torch.zeros(zeros.shape[0], dtype=torch.int64, device=zeros.device)

    def put(self, rows: Tensor, state: Sequence[Tensor], last: Tensor, steps: Tensor) -> None:
        """Replace what these rows remember."""
        for whole, own in zip(leaves(self.state), state, strict=True):
            whole[rows] = own
        self.last[rows], self.steps[rows] = last, steps

    def filled(self, rows: Tensor, x: Tensor, missing: str) -> Tensor:
        if missing == "raise" or not x.is_floating_point():
            return x
        return torch.where(torch.isnan(x), self.last[rows] if missing == "hold" else 0.0, x)

    def compute(self, frozen: FrozenModel, rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Any]:
        """Outputs of these rows, which of their samples can be taken, and the state of the whole block after them.

        The other rows step on zeros, and what becomes of them is not kept.
        """
        batch = self.zeros.index_copy(0, rows, x)
        try:
            out, state = frozen.folded.step(batch, self.state)
        except IndexError as error:
            raise ValueError(f"a token number is out of range: {error}") from error
        fine = torch.ones_like(rows, dtype=torch.bool)
        numbers = x.is_floating_point()
        if not finite_state(state) or (numbers and not finite(x)):
            if numbers:
                fine &= torch.isfinite(x).all(1)
            for new, old in zip(leaves(state), leaves(self.state), strict=True):
                fine &= ~spoiled(new, old)[rows].flatten(1).any(1)
        return out[rows], fine, state

    def commit(self, rows: Tensor, state: Any, x: Tensor) -> None:
        """Take over the state of these rows."""
        with torch.inference_mode():
            self.steps[rows] += 1
            self.last[rows] = x
            # Always contiguous: a row must not be rounded otherwise because of how many others stepped.
            if len(rows) == len(self.steps):
                self.state = map_state(state, Tensor.contiguous)
            else:
                chosen = torch.zeros_like(self.steps, dtype=torch.bool)
                chosen[rows] = True
                pairs = zip(leaves(state), leaves(self.state), strict=True)
                kept = iter([torch.where(chosen.view(-1, *[1] * (a.dim() - 1)), a, b).contiguous() for a, b in pairs])
                self.state = map_state(state, lambda _: next(kept))
            due = rows[self.steps[rows] % _FLUSH_EVERY == 0]
            if len(due):  # in silence a state decays into subnormal numbers, with which a CPU is slow
                for one in leaves(self.state):
                    one[due] = without_subnormal(one[due])
