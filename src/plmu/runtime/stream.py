"""A trained model as a stream: push a sample, get an output, keep a small state."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from plmu.nn.steppable import Steppable
from plmu.runtime.frozen import PASS, FrozenModel, as_sample, converted
from plmu.runtime.state_tree import (
    check_kind,
    finite,
    finite_state,
    leaves,
    map_state,
    spoiled,
    widened,
    without_subnormal,
)
from plmu.runtime.stream_files import Saved, read_state, write_state

_FLUSH_EVERY = 256


class Stream:
    """Runs a steppable model one sample at a time, without gradients and with dropout off.

    >>> stream = plmu.Stream(model)
    >>> y = stream.push(x)  # x: (features,) or (batch, features), or token numbers () or (batch,)

    Later changes to the model do not affect the stream. Samples are converted to the precision of the model's weights;
    in a model without weights, to that of the first sample, or to torch's default precision if it has integers.

    Args:
        model: any steppable module, or a `plmu.FrozenModel`, whose arrays streams and sessions share. AveragedModel,
            DDP and torch.compile wrappers are removed.
        missing: what a sample of None or NaN does: "raise", "hold" the last value, or take "zero"; each number of a
            batch by itself. Before the first value, "hold" takes zero too. None means the `missing` of the model's
            first layer, or else "raise". A model that takes missing values itself, such as `plmu.nn.AnomalyScore`, gets
            them.

    Attributes:
        note: of a restored stream, what was noted in its file; else None.
    """

    def __init__(self, model: Steppable | FrozenModel, missing: str | None = None) -> None:
        self._frozen = frozen = FrozenModel.of(model)
        self.missing = frozen.checked_missing(missing)
        self._step = frozen.folded.step
        self._place, self._tokens = frozen.place, frozen.takes_tokens
        self.note: Any = None
        self.reset()

    def reset(self, state: Any = None) -> None:
        """Reset the stream: the next sample is its first.

        Args:
            state: the model's state before that sample; by default that of a new sequence.
        """
        self.steps = 0
        self._state: Any = state if self._place is None else widened(state, self._place.dtype)
        self._last: Tensor | None = None  # the last sample as it entered the model, with its batch axis
        self._single = False  # whether samples come without a batch axis

    @property
    def state(self) -> Any:
        """The model's state after the last sample; None before the first one of a new sequence."""
        return self._state

    def push(self, x: Tensor | Any) -> Tensor:
        """One sample in, one output out. After an error the state is unchanged.

        Args:
            x: (features,) or (batch, features), or token numbers () or (batch,); numbers, lists, arrays or tensors.
                Masked values of a NumPy masked array count as NaN.

        Returns:
            The model's output for this sample, (features,) or (batch, features).

        Raises:
            ValueError: the sample does not fit, is missing or infinite; or it is so large that the state would
                overflow. The state is unchanged: continue with other samples, or call `reset()`.
        """
        with torch.inference_mode():
            sample, single, present = self._sample(x)
            try:
                out, state = self._step(
                    sample if present is None else torch.where(present, sample, torch.nan), self._state
                )
            except IndexError as error:
                raise ValueError(f"a token number is out of range: {error}") from error
            if self._state is None:
                check_kind(state)
            if not finite_state(state):
                self._check_transition(state, sample)
            steps = self.steps + 1
            if steps % _FLUSH_EVERY == 0:
                # In silence a state decays into subnormal numbers, where it stays and a CPU is many times slower.
                state = map_state(state, without_subnormal)
            if self.missing == "hold":
                sample = sample.clone()  # the caller may write the next one into the same memory
            elif self.missing == PASS:
                sample = torch.zeros_like(sample)  # its shape alone matters, and files hold no NaN
        self.steps, self._state, self._last, self._single = steps, state, sample, single
        return out.squeeze(0).clone() if single else out.clone()  # an ordinary tensor, which may be used in training

    def save(self, path: str | os.PathLike[str], note: Any = None) -> None:
        """Write the state to a file, from which `Stream.restore(model, path)` continues in any process.

        The file holds a fingerprint of the model, a hash of its options and weights, but not the model. Functions are
        hashed by name; two different lambdas can have the same fingerprint. In a class of your own the hash covers the
        weights, and the public attributes that are numbers, names, tensors, functions, or lists or dictionaries of
        them. Its step must not change these attributes.

        Args:
            path: the file. It is replaced only when all of it has been written.
            note: numbers, text, lists and dictionaries of them that belong to the state, such as how far the source of
                the samples was read. The restored stream has it as `note`.
        """
        saved = Saved(self.steps, self.missing, self._single, self._state, self._last, note=note)
        write_state(path, self._frozen, saved)

    @classmethod
    def restore(cls, model: Steppable | FrozenModel, path: str | os.PathLike[str]) -> Stream:
        """A stream that continues where the saved one was.

        Args:
            model: the same model, with the same options and weights, or a `plmu.FrozenModel` of it.
            path: a file of `Stream.save`. A file without a fingerprint, of an old version, is read with a warning.

        Raises:
            FileFormatError: the file is broken, or is of another model.
        """
        stream = cls(model)
        saved = read_state(path, stream._frozen)
        stream.missing, stream.steps, stream._single = saved.missing, saved.steps, saved.single
        stream._state, stream._last, stream.note = saved.state, saved.last, saved.note
        return stream

    def _check_transition(self, state: Any, sample: Tensor) -> None:
        """Raise if a number of the state has become infinite or NaN. A number that was so before may stay: a running
        maximum begins at minus infinity."""
        before = leaves(self._frozen.initial_state(sample, sample.device) if self._state is None else self._state)
        after = leaves(state)
        pairs: list[tuple[Tensor, Tensor | None]] = list(zip(after, before, strict=False))
        pairs += [(value, None) for value in after[len(before) :]]
        masks = [bad for value, old in pairs if bool((bad := spoiled(value, old)).any())]
        if not masks:
            return
        batch, rows = sample.shape[0], set[int]()
        for bad in masks:
            if bad.dim() and bad.shape[0] == batch:
                rows.update(bad.reshape(batch, -1).any(dim=1).nonzero().flatten().tolist())
        where = f" in rows {', '.join(map(str, sorted(rows)[:10]))} of the batch" if rows and batch > 1 else ""
        broken = self._frozen.broken_weight()
        advice = f"The model's weights are not finite: {broken}" if broken else "Push smaller numbers, or call reset()"
        raise ValueError(
            f"this sample would make the state infinite or NaN{where}: it was rejected and the state is unchanged."
            f" {advice}"
        )

    def _sample(self, x: Any) -> tuple[Tensor, bool, Tensor | None]:
        """The sample with a batch axis, checked and its missing values filled; whether it had no batch axis; and which
        values are known, where the model wants to know that some are missing."""
        tells = self.missing == "hold" and self._frozen.folded.reads_missing
        if x is None:
            if self.missing != PASS or self._last is not None:
                filled = self._filled(None)
                return filled, self._single, torch.zeros_like(filled, dtype=torch.bool) if tells else None
            x = [math.nan] * (self._frozen.features or 1)
        place = self._last if self._place is None else self._place
        sample = as_sample(x, self._tokens, place)
        if self._tokens:
            sample = self._frozen.tokens(sample)
        elif place is None or sample.dtype != place.dtype or sample.device != place.device:
            sample = converted(sample, place)
        features = 0 if self._tokens else 1  # token numbers have no feature axis
        dims = sample.dim()
        if dims != features and dims != features + 1:
            shapes = "() or (batch,)" if self._tokens else "(features,) or (batch, features)"
            raise ValueError(f"a sample must have shape {shapes}, got {tuple(sample.shape)}")
        missing = features == 1 and not finite(sample)
        single = dims == features
        if single:
            sample = sample.unsqueeze(0)
        if self._last is None:
            if features and (expected := self._frozen.features) is not None and sample.shape[1] != expected:
                shape = tuple(sample.shape[1:] if single else sample.shape)
                raise ValueError(f"a sample must have {expected} features, got shape {shape}")
        elif sample.shape != self._last.shape:
            raise ValueError(
                f"this stream has samples of shape {tuple(self._last.shape)} (with the batch), got"
                f" {tuple(sample.shape)}: call reset() to start another one"
            )
        return self._filled(sample) if missing else sample, single, ~torch.isnan(sample) if missing and tells else None

    def _filled(self, sample: Tensor | None) -> Tensor:
        what = "None" if sample is None else "NaN"
        if sample is not None and bool(torch.isinf(sample).any()):
            raise ValueError(f"a sample holds infinity, or a number too large for {sample.dtype}")
        if self.missing == PASS:
            return torch.full_like(self._last, math.nan) if sample is None else sample  # type: ignore[arg-type]
        if self.missing == "raise":
            raise ValueError(f"a sample is {what}: create the stream with missing='hold' or missing='zero' to continue")
        if sample is None:
            if self._last is None:
                raise ValueError(
                    "the first sample is None, so its shape is not known: push NaN in place of each number"
                )
            return self._last if self.missing == "hold" else torch.zeros_like(self._last)
        replacement = self._last if self.missing == "hold" and self._last is not None else torch.zeros_like(sample)
        return torch.where(torch.isnan(sample), replacement, sample)

    def __copy__(self) -> Stream:
        """An independent stream from here: states are replaced, never written into."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Stream:
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Stream cannot be pickled: use stream.save(path) and plmu.Stream.restore(model, path)")


def joined(streams: Sequence[Stream]) -> Stream:
    """A stream of a batch whose rows are these streams of one model, each of single samples and after its first."""
    first = copy(streams[0])
    rows = zip(*(leaves(stream.state) for stream in streams), strict=True)
    together = iter([torch.cat(parts) for parts in rows])
    first._state = map_state(first._state, lambda _: next(together))
    first._last = torch.cat([stream._last for stream in streams if stream._last is not None])
    first.steps, first._single = max(stream.steps for stream in streams), len(streams) == 1
    return first


def parted(stream: Stream, steps: Sequence[int]) -> list[Stream]:
    """A stream of single samples for each row of a batch, the reverse of `joined`.

    Args:
        stream: of a batch.
        steps: the number of samples of each row so far.

    Raises:
        ValueError: there are not as many rows, or a number of samples is below 1.
    """
    rows = 0 if stream._last is None else len(stream._last)
    if rows != len(steps) or not all(type(count) is int and count > 0 for count in steps):
        raise ValueError(f"it has {rows} rows, for numbers of samples of {list(steps)!s:.100}")
    parts = []
    for row, count in enumerate(steps):
        part, place = copy(stream), slice(row, row + 1)
        part._state = map_state(stream._state, partial(_rows_of, place))
        part._last = None if stream._last is None else _rows_of(place, stream._last)
        part.steps, part._single = count, True
        parts.append(part)
    return parts


def _rows_of(place: slice, values: Tensor) -> Tensor:
    return values[place].clone()
