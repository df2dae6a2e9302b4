"""A trained model as a stream: push a sample, get an output, keep a small state."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from plmu.files import FileFormatError, read, write
from plmu.nn.steppable import Steppable

MISSING = ("raise", "hold", "zero")
_FLUSH_EVERY = 256
_SUBNORMAL = 1e-30


class Stream:
    """Runs a steppable model one sample at a time, without gradients and with dropout off.

    >>> stream = plmu.Stream(model)
    >>> y = stream.push(x)  # x: (features,) or (batch, features), or token numbers () or (batch,)

    The model itself keeps its training mode; its parameters are shared, so further training shows in the stream.

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
        self.model = _evaluating(model)
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
        sample, single = self._sample(x)
        with torch.inference_mode():
            out, state = self.model.step(sample, self._state)
            self.steps += 1
            if self.steps % _FLUSH_EVERY == 0:
                # In silence a state decays into subnormal numbers, on which a CPU is many times slower, and stays there.
                state = _map(state, lambda value: torch.where(value.abs() < _SUBNORMAL, 0.0, value))
        self._state, self._last, self._single = state, sample, single
        return out[0] if single else out

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
        device = _place(model)[1]
        tensors, description = read(path, ("stream",), device)
        stream.missing = description["missing"]
        stream.steps, stream._single = description["steps"], description["single"]
        stream._last = tensors.pop("last", None)
        if stream._last is None:
            return stream
        dtype = stream._last.dtype if stream._last.is_floating_point() else _place(model)[0]
        expected = model.initial_state(stream._last.shape[0], dtype, device)
        shapes = [tuple(value.shape) for value in _leaves(expected)]
        found = [tensors.get(f"state.{i}") for i in range(len(tensors))]
        if [None if value is None else tuple(value.shape) for value in found] != shapes:
            given = [None if value is None else tuple(value.shape) for value in found]
            raise FileFormatError(f"{path} is the state of another model: it has shapes {given}, this model {shapes}")
        values = iter(found)
        stream._state = _map(expected, lambda _: next(values))
        return stream

    def _sample(self, x: Any) -> tuple[Tensor, bool]:
        """The sample with a batch axis, checked and with missing values filled, and whether it came without one."""
        if x is None:
            return self._filled(None), self._single
        dtype, device = _place(self.model)
        if isinstance(x, Tensor):
            sample = x.to(device=device, dtype=dtype if x.is_floating_point() else x.dtype)
        else:
            sample = torch.as_tensor(x, device=device)
            sample = sample.to(dtype) if sample.is_floating_point() else sample
        features = 1 if sample.is_floating_point() else 0  # token numbers have no feature axis
        if sample.dim() not in (features, features + 1):
            expected = "(features,) or (batch, features)" if features else "() or (batch,)"
            raise ValueError(f"a sample must have shape {expected}, got {tuple(sample.shape)}")
        single = sample.dim() == features
        sample = sample[None] if single else sample
        if self._last is not None and sample.shape != self._last.shape:
            raise ValueError(
                f"this stream has samples of shape {tuple(self._last.shape)} (with the batch), got"
                f" {tuple(sample.shape)}: call reset() to begin another one"
            )
        if features and not bool(torch.isfinite(sample).all()):
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
        filler = torch.zeros(()) if self.missing == "zero" else self._last
        if sample is None:
            assert self._last is not None
            return self._last if self.missing == "hold" else torch.zeros_like(self._last)
        return torch.where(torch.isnan(sample), filler.to(sample), sample)  # type: ignore[union-attr]


def _evaluating(model: Steppable) -> Steppable:
    """The model in evaluation mode: its modules are copied, its parameters and buffers are the same objects."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared).eval()  # type: ignore[arg-type]


def _place(model: nn.Module) -> tuple[torch.dtype, torch.device]:
    """Where, and in which precision, a model computes: that of its first weight which is not a system's own."""
    for name, value in model.named_parameters():
        if value.is_floating_point() and "memory." not in f".{name}".replace("memory_", ""):
            return value.dtype, value.device
    return torch.get_default_dtype(), torch.device("cpu")


def _leaves(state: Any) -> list[Tensor]:
    if state is None:
        return []
    return [state] if isinstance(state, Tensor) else [leaf for part in state for leaf in _leaves(part)]


def _map(state: Any, function: Callable[[Tensor], Any]) -> Any:
    if state is None:
        return None
    return function(state) if isinstance(state, Tensor) else tuple(_map(part, function) for part in state)
