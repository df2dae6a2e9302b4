"""A trained model as a stream: push a sample, get an output, keep a small state."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from plmu.files import FileFormatError, read, write
from plmu.nn.memory import Memory
from plmu.nn.steppable import Steppable

MISSING = ("raise", "hold", "zero")
_FLUSH_EVERY = 256
_SUBNORMAL = 1e-30
_FEW = 32


class Stream:
    """Runs a steppable model one sample at a time, without gradients and with dropout off.

    >>> stream = plmu.Stream(model)
    >>> y = stream.push(x)  # x: (features,) or (batch, features), or token numbers () or (batch,)

    A stream is the model as it was when the stream was made: what happens to the model later does not show in it.

    Args:
        model: any steppable module.
        missing: what a sample of None or NaN does: "raise", "hold" the last value, or take "zero". In a batch it is
            decided for each number alone.
    """

    def __init__(self, model: Steppable, missing: str = "raise") -> None:
        if not isinstance(model, Steppable):
            raise TypeError(
                f"model must be steppable (a layer of plmu, plmu.Sequential or a plmu.nn.Steppable),"
                f" got {type(model).__name__}"
            )
        if missing not in MISSING:
            raise ValueError(f"missing must be one of {', '.join(MISSING)}, got {missing!r}")
        frozen = copy.deepcopy(model).eval().requires_grad_(False)
        self._step = frozen.frozen_step()
        self._initial_state = frozen.initial_state
        self._weight, first = _first_weight(frozen)
        self._tokens = isinstance(first, nn.Embedding)
        self.missing = missing
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next sample is the first."""
        self.steps = 0
        self._state: Any = None
        self._last: Tensor | None = None  # the last sample as it entered the model, with its batch axis
        self._single = False  # whether samples come without a batch axis

    def push(self, x: Tensor | Any) -> Tensor:
        """One sample in, one output out. On an error the state stays as it was."""
        with torch.inference_mode():
            sample, single = self._sample(x)
            out, state = self._step(sample, self._state)
            self.steps += 1
            if self.steps % _FLUSH_EVERY == 0:
                # In silence a state decays into subnormal numbers, where it stays and a CPU is many times slower.
                state = _map(state, lambda value: torch.where(value.abs() < _SUBNORMAL, 0.0, value))
            if self.missing == "hold":
                sample = sample.clone()  # the caller may write the next one into the same memory
        self._state, self._last, self._single = state, sample, single
        return out[0].clone() if single else out.clone()  # an ordinary tensor, which may be used in training

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state, so that `Stream.restore(model, path)` goes on from here, in any process."""
        tensors = {f"state.{i}": value for i, value in enumerate(_leaves(self._state))}
        if self._last is not None:
            tensors["last"] = self._last
        description = {"kind": "stream", "steps": self.steps, "single": self._single, "missing": self.missing}
        write(path, {name: value.clone() for name, value in tensors.items()}, description)

    @classmethod
    def restore(cls, model: Steppable, path: str | os.PathLike[str]) -> Stream:
        """A stream that goes on where the saved one was; the model must be the same."""
        stream = cls(model)
        weight = stream._weight
        tensors, description = read(path, ("stream",), "cpu" if weight is None else weight.device)
        missing, steps, single = description.get("missing"), description.get("steps"), description.get("single")
        if missing not in MISSING or type(steps) is not int or type(single) is not bool:
            raise FileFormatError(f"{path} has a broken description: {description}")
        stream.missing, stream.steps, stream._single = str(missing), steps, single
        stream._last = tensors.pop("last", None)
        if stream._last is None and not tensors:
            return stream
        if stream._last is None or stream._last.dim() == 0:
            raise FileFormatError(f"{path} has a state without the last sample")
        place = stream._last if weight is None else weight
        expected = stream._initial_state(stream._last.shape[0], place.dtype, place.device)
        wanted = [(tuple(value.shape), value.dtype) for value in _leaves(expected)]
        found = [tensors[name] for i in range(len(tensors)) if (name := f"state.{i}") in tensors]
        given = [(tuple(value.shape), value.dtype) for value in found]
        if given != wanted or len(found) != len(tensors):
            raise FileFormatError(f"{path} is the state of another model: it has {given}, this model {wanted}")
        values = iter(found)
        state = _map(expected, lambda _: next(values))
        try:
            with torch.inference_mode():
                stream._step(stream._last, None)  # as a first sample would be
        except (RuntimeError, TypeError, ValueError) as error:
            other = "another model, whose samples this one cannot take"
            raise FileFormatError(f"{path} is the state of {other}: {error}") from None
        stream._state = state
        return stream

    def _sample(self, x: Any) -> tuple[Tensor, bool]:
        """The sample with a batch axis, checked and with missing values filled, and whether it came without one."""
        if x is None:
            return self._filled(None), self._single
        try:
            sample = x if isinstance(x, Tensor) else torch.as_tensor(x)
        except (RuntimeError, TypeError, ValueError) as error:
            raise TypeError(f"a sample must be a tensor or numbers: {error}") from None
        weight = self._weight
        dtype, device = (sample.dtype, sample.device) if weight is None else (weight.dtype, weight.device)
        number = not self._tokens
        if not number and (sample.is_floating_point() or sample.is_complex()):
            raise TypeError(f"this model takes token numbers, got {sample.dtype}")
        if sample.device != device or (number and sample.dtype != dtype):
            sample = sample.to(device=device, dtype=dtype if number else sample.dtype)
        features = 1 if number else 0  # token numbers have no feature axis
        dims = sample.dim()
        if dims != features and dims != features + 1:
            expected = "(features,) or (batch, features)" if number else "() or (batch,)"
            raise ValueError(f"a sample must have shape {expected}, got {tuple(sample.shape)}")
        single = dims == features
        if single:
            sample = sample[None]
        if self._last is not None and sample.shape != self._last.shape:
            raise ValueError(
                f"this stream has samples of shape {tuple(self._last.shape)} (with the batch), got"
                f" {tuple(sample.shape)}: call reset() to begin another one"
            )
        if number and not _finite(sample):
            sample = self._filled(sample)
        return sample, single

    def _filled(self, sample: Tensor | None) -> Tensor:
        what = "None" if sample is None else "NaN"
        if sample is not None and bool(torch.isinf(sample).any()):
            raise ValueError("a sample holds infinity, which would stay in the state for ever")
        if self.missing == "raise":
            raise ValueError(f"a sample is {what}: create the stream with missing='hold' or missing='zero' to go on")
        if self._last is None and (sample is None or self.missing == "hold"):
            raise ValueError(f"the first sample is {what}: there is no earlier one to hold or to take the shape from")
        like = self._last if sample is None else sample
        assert like is not None
        held = self._last if self._last is not None and self.missing == "hold" else torch.zeros_like(like)
        return held if sample is None else torch.where(torch.isnan(sample), held, sample)


def _first_weight(model: nn.Module) -> tuple[Tensor | None, nn.Module]:
    """The weight whose precision and device samples take, the first that is not a memory's own, which stays wide; and
    the module that it belongs to. Without weights a sample is taken as it comes."""
    for module in model.modules():
        if not isinstance(module, Memory):
            for value in module.parameters(recurse=False):
                return value, module
    return None, model


def _finite(sample: Tensor) -> bool:
    if sample.numel() <= _FEW and sample.device.type == "cpu":
        return all(map(math.isfinite, sample.reshape(-1).tolist()))  # a fifth of the time of torch.isfinite
    return bool(torch.isfinite(sample).all())


def _leaves(state: Any) -> list[Tensor]:
    if state is None:
        return []
    return [state] if isinstance(state, Tensor) else [leaf for part in state for leaf in _leaves(part)]


def _map(state: Any, function: Callable[[Tensor], Any]) -> Any:
    if state is None:
        return None
    return function(state) if isinstance(state, Tensor) else tuple(_map(part, function) for part in state)
