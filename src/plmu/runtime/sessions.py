"""Many streams of one model, stepped together as rows of batches whose width is fixed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from plmu.errors import FileFormatError
from plmu.nn.steppable import Steppable, positive
from plmu.runtime.frozen import FrozenModel, as_sample, converted
from plmu.runtime.session_rows import Rows
from plmu.runtime.state_tree import leaves, map_state
from plmu.runtime.stream_files import Saved, read_state, write_state


class Sessions:
    """Many streams of one model that step together. A session holds its state alone, one row of a batch.

    >>> sessions = plmu.Sessions(model)
    >>> a, b = sessions.add(), sessions.add()
    >>> outputs = sessions.push({a: [0.1], b: [0.2]})  # {a: y, b: y}, as two streams would give them
    >>> sessions.drop(a)

    A step always runs batches of `width` rows, the unused rows empty: a session's output does not depend on the
    sessions that step beside it, down to the last bit. Torch may round the rows of a batch differently. That is tried
    once; if it does, a session has the same position in every batch. A model without weights computes in the precision
    of the first sample, as in `plmu.Stream`.

    Args:
        model: any steppable module, or a `plmu.FrozenModel`, whose arrays streams and sessions share.
        width: rows of a batch. A wide batch is faster for many sessions, a narrow batch for few.
        missing: what a sample of None or NaN does, as in `plmu.Stream`: "raise", "hold" or "zero".
        features: numbers of a sample, for a model that takes any number.

    Raises:
        TypeError: the model's states do not have one row for each session of a batch.
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
        self._rows = Rows(self.frozen, self.width, self.missing, self.features)
        self.outputs = self._rows.outputs
        self._open: set[int] = set()

    @property
    def rows(self) -> list[int]:
        """The numbers of all sessions."""
        return sorted(self._open)

    def add(self, row: int | None = None) -> int:
        """Begin a session.

        Args:
            row: its number, which must be free; None for the lowest free one.

        Returns:
            The number of its row, which identifies it until it is dropped.
        """
        if row is None:
            row = next(number for number in range(len(self._open) + 1) if number not in self._open)
        elif type(row) is not int or row < 0 or row in self._open:
            taken = "it is taken" if row in self._open else "it must be an integer of at least 0"
            raise ValueError(f"row {row!r} cannot be added: {taken}")
        self._rows.ensure(row + 1)
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

    def reset(self, row: int, state: Any = None) -> None:
        """Reset a session: its next sample is its first.

        Args:
            row: the session.
            state: the model's state of one sequence before that sample; by default that of a new sequence.
        """
        self._check_open([row])
        self._rows.clear(row, state)

    def steps(self, row: int) -> int:
        """The number of samples that a session has taken.

        Args:
            row: the session.
        """
        self._check_open([row])
        return int(self._rows.steps[row])

    def push(self, samples: Mapping[int, Any]) -> dict[int, Tensor]:
        """Step some sessions by one sample each. The others stay as they are.

        Args:
            samples: by row: (features,), or a token number; numbers, lists, arrays or tensors. None means missing.

        Returns:
            The model's output by row, (features,) each.

        Raises:
            ValueError: a sample does not fit, is missing or infinite, or would make a state overflow. No session has
                changed.
        """
        rows = list(samples)
        if not rows:
            return {}
        first = next(iter(samples.values()))
        if hasattr(first, "dtype"):
            self._follow(as_sample(first, self.frozen.takes_tokens).dtype)
        x = torch.stack([self._sample(row, sample) for row, sample in samples.items()])
        self._check(rows, x)
        out, taken, steps = self._rows.compute(rows, x.unsqueeze(1))
        wrong = [row for row, count in zip(rows, taken.tolist(), strict=True) if not count]
        if wrong:
            reason = "missing, infinite or would make their state so"
            if self._rows.refusal is not None:
                reason = f"refused: {self._rows.refusal}"
            raise ValueError(f"samples of rows {', '.join(map(str, wrong[:10]))} are {reason}: no session has changed")
        self._rows.commit(steps)
        return dict(zip(rows, out[:, 0].clone(), strict=True))

    def step(self, rows: Sequence[int], x: Tensor) -> tuple[Tensor, Tensor]:
        """`push` for tensors, where a sample that cannot be taken does not stop the others.

        Args:
            rows: numbers of sessions, each once.
            x: (rows, features), or token numbers (rows,), in the precision of the model. NaN is a missing value.

        Returns:
            The outputs (rows, outputs), and whether each row's sample was taken (rows,). It is not if it is missing,
            infinite, would make the state infinite or is refused by the model: such a session has not changed, and its
            output means nothing.
        """
        self._follow(x.dtype)
        self._check(rows, x)
        out, taken = self._advance(rows, x.unsqueeze(1))
        return out[:, 0], taken == 1

    def run(self, rows: Sequence[int], x: Tensor) -> tuple[Tensor, Tensor]:
        """Step some sessions by several samples each: the same bits as one `step` after another, in less time.

        Args:
            rows: numbers of sessions, each once.
            x: (rows, time, features), or token numbers (rows, time), in the precision of the model.

        Returns:
            The outputs (rows, time, outputs), and the number of samples that each session has taken (rows,): all, or
            those before the first that is missing, infinite or would make the state so. Later outputs mean nothing.
        """
        time = x.shape[1] if x.dim() > 1 else 0
        if time == 0:
            raise ValueError(f"x must have samples of at least one time step for each row, got {tuple(x.shape)}")
        self._follow(x.dtype)
        self._check(rows, x, time)
        return self._advance(rows, x)

    def state(self, row: int) -> Any:
        """The model's state in a session, with a batch axis of 1.

        Args:
            row: the session.
        """
        self._check_open([row])
        state = iter([states[row : row + 1] for states in self._rows.states])
        return map_state(self._rows.start, lambda _: next(state))

    def tensors(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """The states of some sessions, for `fill`.

        Args:
            rows: the sessions.

        Returns:
            "state.0" and so on, "last" and "steps", each with one row for each session.
        """
        self._check_open(rows)
        index = self._rows.index(rows)
        return {name: value[index].clone() for name, value in self._rows.tensors().items()}

    def fill(self, rows: Sequence[int], tensors: Mapping[str, Tensor]) -> None:
        """Set the states of sessions to what `tensors` returned, in this process or another.

        Args:
            rows: the sessions.
            tensors: by name, with one row for each session.

        Raises:
            ValueError: names, shapes or precisions do not fit.
        """
        expected, actual = (
            {name: (tuple(value.shape), value.dtype) for name, value in states.items()}
            for states in (self.tensors(rows), tensors)
        )
        if actual != expected:
            raise ValueError(f"tensors do not fit these sessions: got {actual!s:.300}, not {expected!s:.300}")
        index = self._rows.index(rows)
        with torch.inference_mode():
            for name, states in self._rows.tensors().items():
                states[index] = tensors[name].to(states.device)

    def save(self, row: int, path: str | os.PathLike[str]) -> None:
        """Write the state of a session to a file, from which it continues in any process, as a session or a stream.

        Args:
            row: the session.
            path: the file. It is replaced only when all of it has been written.
        """
        saved = Saved(self.steps(row), self.missing, single=True, row=row)
        if saved.steps:
            saved.state = self.state(row)
            saved.last = self._rows.last[row : row + 1]
        write_state(path, self.frozen, saved)

    def restore(self, path: str | os.PathLike[str]) -> int:
        """A session that continues where a saved one, or a stream of single samples, was.

        Args:
            path: a file of `Sessions.save` or `Stream.save`, of the same model.

        Returns:
            Its row, whose position in a batch is that of the saved session.

        Raises:
            FileFormatError: the file is broken, is of another model, or of a stream with a batch.
        """
        saved = read_state(path, self.frozen)
        if saved.last is not None:
            self._follow(saved.last.dtype)
        last = self._rows.zeros[:1] if saved.last is None else saved.last
        if last.shape[0] != 1 or last.shape[1:] != self._rows.zeros.shape[1:] or last.dtype != self._rows.zeros.dtype:
            raise FileFormatError(f"{path} has samples {tuple(last.shape)} of {last.dtype}, which no session here has")
        row = 0 if saved.row is None else saved.row % self.width
        while row in self._open:
            row += 1 if saved.row is None else self.width
        self.add(row)
        if saved.steps:
            with torch.inference_mode():
                for states, state in zip(self._rows.states, leaves(saved.state), strict=True):
                    states[row] = state[0]
                self._rows.last[row], self._rows.steps[row] = last[0], saved.steps
        return row

    def _follow(self, dtype: torch.dtype) -> None:
        """Take the precision of the first sample, as a stream does, for a model without weights."""
        rows = self._rows
        if self.frozen.place is None and dtype.is_floating_point and dtype != rows.zeros.dtype and not rows.steps.any():
            self._rows = Rows(self.frozen, self.width, self.missing, self.features, dtype)
            self._rows.ensure(len(rows.steps))

    def _check_open(self, rows: Sequence[int]) -> None:
        unknown = next((row for row in rows if row not in self._open), None)
        if unknown is not None:
            raise ValueError(f"there is no session in row {unknown!r}: add() begins one")

    def _sample(self, row: int, value: Any) -> Tensor:
        """A sample without a batch axis, checked but for missing values."""
        shape = self._rows.zeros.shape[1:]
        if value is None:
            if self.frozen.takes_tokens:
                raise ValueError(f"row {row}: a token cannot be missing")
            return torch.full(shape, float("nan"), dtype=self._rows.zeros.dtype, device=self._rows.zeros.device)
        sample = as_sample(value, self.frozen.takes_tokens, self._rows.zeros)
        sample = self.frozen.tokens(sample) if self.frozen.takes_tokens else converted(sample, self._rows.zeros)
        if sample.shape != shape:
            raise ValueError(f"row {row}: a sample must have shape {tuple(shape)}, got {tuple(sample.shape)}")
        return sample

    def _check(self, rows: Sequence[int], x: Tensor, *time: int) -> None:
        if len(set(rows)) != len(rows):
            raise ValueError("rows must be numbers of sessions, each once")
        self._check_open(rows)
        zeros = self._rows.zeros
        shape = (len(rows), *time, *zeros.shape[1:])
        if x.shape != shape or x.dtype != zeros.dtype:
            raise ValueError(f"x must be {zeros.dtype} of shape {shape}, got {x.dtype} of shape {tuple(x.shape)}")

    def _advance(self, rows: Sequence[int], x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs, and the number of samples that each row has taken."""
        out, taken, steps = self._rows.compute(rows, x)
        self._rows.commit(steps)
        return out.clone(), taken.clone()  # ordinary tensors

    def __reduce__(self) -> NoReturn:
        raise TypeError("Sessions cannot be pickled: use sessions.save(row, path) and sessions.restore(path)")
