"""What a folded model is, and the kinds without a memory."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plmu.modes import autocasts


class Place(TypedDict):
    """The precision and the device of arrays, as options of a kind."""

    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, eq=False)
class Folded:
    """A model that takes steps and cannot be trained: arrays and plain options.

    Arrays are made in float64 on the CPU. `plmu.fold` casts them once, to `dtype` and `device`, when all that can be
    multiplied out has been; where these are None the arrays stay as they are. From then on they are read-only: torch
    refuses to change them in place outside of `torch.inference_mode()`.
    """

    dtype: torch.dtype | None = field(default=None, kw_only=True)
    device: torch.device | None = field(default=None, kw_only=True)

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """One step, without gradients and, under autocast too, in the precision of the arrays.

        Args:
            x: (batch, features), or token numbers (batch,); in the precision of the arrays.
            state: what the step before returned, or the model's own `step` or `forward`; None at the start.

        Returns:
            The output (batch, features) and the next state, both of their own.
        """
        if not isinstance(x, Tensor) or not 1 <= x.dim() <= 2:
            kind = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"x must be a tensor (batch, features), or (batch,) for token numbers; got {kind}")
        if torch.is_grad_enabled() or autocasts(x.device):
            with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
                return self.advance(x, state)
        return self.advance(x, state)

    @abstractmethod
    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """`step` without its checks, called without gradients and without autocast."""

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        """The state that None stands for, as the model's own `initial_state` gives it."""
        return None

    def arrays(self) -> dict[str, Tensor]:
        """All arrays by name, such as "0.matrix" for the `matrix` of the first part."""
        found: dict[str, Tensor] = {}
        for name, value in self._fields().items():
            if isinstance(value, Tensor):
                found[name] = value
            for prefix, part in _parts(name, value):
                found |= {f"{prefix}.{key}": array for key, array in part.arrays().items()}
        return found

    def finished(self) -> Self:
        """The same with read-only arrays of its own, in their final precision; what `plmu.fold` ends with."""
        done: dict[str, Any] = {}
        for name, value in self._fields().items():
            if isinstance(value, Tensor):
                done[name] = read_only(value, self.dtype or value.dtype, self.device or value.device)
            elif isinstance(value, Folded):
                done[name] = value.finished()
            elif isinstance(value, tuple):
                done[name] = tuple(one.finished() if isinstance(one, Folded) else one for one in value)
        return replace(self, **done)

    def _fields(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def _parts(name: str, value: Any) -> list[tuple[str, Folded]]:
    """What is folded in a field, with the prefix of its arrays."""
    if isinstance(value, Folded):
        return [(name, value)]
    if isinstance(value, tuple):
        return [(str(i), one) for i, one in enumerate(value) if isinstance(one, Folded)]
    return []


@dataclass(frozen=True, eq=False)
class Stateless(Folded):
    """A function of each step alone."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self(x), None


@dataclass(frozen=True, eq=False)
class Identity(Stateless):
    """The input as it is: what dropout is after training."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True, eq=False)
class Affine(Stateless):
    """W x + b."""

    weight: Tensor  # (out, in)
    bias: Tensor | None  # (out,)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, eq=False)
class Scale(Stateless):
    """s · x + b for each feature alone."""

    scale: Tensor  # (features,)
    offset: Tensor  # (features,)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.offset, x, self.scale)

    def affine(self) -> Affine:
        """The same with a full matrix."""
        return Affine(torch.diag(self.scale), self.offset, dtype=self.dtype, device=self.device)


@dataclass(frozen=True, eq=False)
class Lookup(Stateless):
    """Rows of a table (tokens, features) by token numbers (batch,)."""

    table: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        try:
            return F.embedding(x, self.table)
        except IndexError:
            size = self.table.shape[0]
            bad = x[(x < 0) | (x >= size)][0].item()
            raise IndexError(f"x must be token numbers from 0 to {size - 1} for nn.Embedding, got {bad}") from None


@dataclass(frozen=True, eq=False)
class Norm(Stateless):
    """Layer normalisation over the features; RMS normalisation where they are not centred."""

    weight: Tensor | None  # (features,)
    bias: Tensor | None  # (features,)
    features: int
    eps: float | None
    centred: bool

    def __call__(self, x: Tensor) -> Tensor:
        if self.centred:
            return F.layer_norm(x, (self.features,), self.weight, self.bias, self.eps or 0.0)
        return F.rms_norm(x, (self.features,), self.weight, self.eps)


@dataclass(frozen=True, eq=False)
class Function(Stateless):
    """A function by its name in torch, or in torch.nn.functional, with its options; or a callable."""

    function: str | Callable[..., Tensor]
    options: tuple[tuple[str, Any], ...] = ()
    weight: Tensor | None = None  # of prelu

    def __post_init__(self) -> None:
        given = self.function
        found = (getattr(torch, given, None) or getattr(F, given)) if isinstance(given, str) else given
        object.__setattr__(self, "_call", found)
        object.__setattr__(self, "_plain", not self.options and self.weight is None)

    def __call__(self, x: Tensor) -> Tensor:
        call: Callable[..., Tensor] = self._call  # type: ignore[attr-defined]
        if self._plain:  # type: ignore[attr-defined]
            return call(x)
        return call(x, **dict(self.options)) if self.weight is None else call(x, self.weight)


@dataclass(frozen=True, eq=False)
class Chain(Folded):
    """Parts in a row.

    The state is a tuple of `states`, each part's at its place, and None where nothing has one; it is that of the model,
    though parts may have been multiplied together. Where `states` is None no part has a state, and there is none.
    """

    parts: tuple[Folded, ...]
    places: tuple[int, ...]
    states: int | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "_steps", tuple(zip(self.parts, self.places, strict=True)))

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        if self.states is None:
            for part in self.parts:
                x, _ = part.advance(x, None)
            return x, None
        after: list[Any] = [None] * self.states
        if state is None:
            state = after.copy()
        elif not isinstance(state, tuple) or len(state) != self.states:
            kind = f"a tuple of {len(state)}" if isinstance(state, tuple) else type(state).__name__
            raise ValueError(f"state must be a tuple of {self.states}, one for each module; got {kind}")
        for part, place in self._steps:  # type: ignore[attr-defined]
            x, after[place] = part.advance(x, state[place])
        return x, tuple(after)

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        if self.states is None:
            return None
        start: list[Any] = [None] * self.states
        for part, place in zip(self.parts, self.places, strict=True):
            start[place] = part.initial_state(batch, dtype, device)
        return tuple(start)


@dataclass(frozen=True, eq=False)
class Sum(Folded):
    """x + inner(x)."""

    inner: Folded

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        out, state = self.inner.advance(x, state)
        if x.shape != out.shape:
            raise ValueError(
                f"Residual adds its input to its module's output: it turned {x.shape[-1]} features into"
                f" {out.shape[-1]}, which must be equal"
            )
        return x + out, state

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return self.inner.initial_state(batch, dtype, device)


@dataclass(frozen=True, eq=False)
class After(Folded):
    """inner(first(x)), with the state of `inner` alone."""

    first: Stateless
    inner: Folded

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.inner.advance(self.first(x), state)

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return self.inner.initial_state(batch, dtype, device)


@dataclass(frozen=True, eq=False)
class Filled(Folded):
    """inner of x with NaN filled by "zero", or by "hold" with the last value of that feature; see `plmu.nn.missing`."""

    inner: Folded
    missing: str
    features: int | None

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        if self.missing == "zero":
            return self.inner.advance(torch.where(torch.isnan(x), 0.0, x), state)
        inner, held = (None, None) if state is None else state
        filled = torch.where(torch.isnan(x), 0.0 if held is None else held.to(x.dtype), x)
        out, inner = self.inner.advance(filled, inner)
        return out, (inner, filled.to(wide_dtype(x.dtype), copy=True))  # the caller may write the next sample into x

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        inner = self.inner.initial_state(batch, dtype, device)
        if self.missing == "zero":
            return inner
        assert self.features is not None
        return inner, torch.zeros(batch, self.features, dtype=wide_dtype(dtype), device=device)


@dataclass(frozen=True, eq=False)
class Applied(Stateless):
    """A module that acts on each step alone and says nothing of itself: a copy of it, in evaluation mode."""

    module: nn.Module

    @classmethod
    def of(cls, module: nn.Module) -> Applied:
        return cls(_copied(module))

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out

    def arrays(self) -> dict[str, Tensor]:
        return _copies(self.module)


@dataclass(frozen=True, eq=False)
class Stepped(Folded):
    """A steppable module that says nothing of itself: a copy of it, in evaluation mode."""

    module: Any

    @classmethod
    def of(cls, module: nn.Module) -> Stepped:
        return cls(_copied(module))

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        out: tuple[Tensor, Any] = self.module.step(x, state)
        return out

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return self.module.initial_state(batch, dtype, device)

    def arrays(self) -> dict[str, Tensor]:
        return _copies(self.module)


def _copied(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).eval().requires_grad_(False)


def _copies(module: nn.Module) -> dict[str, Tensor]:
    """What a state_dict has in tensors; copies, since the module's own may be changed."""
    with torch.inference_mode():
        return {name: value.clone() for name, value in module.state_dict().items() if isinstance(value, Tensor)}


def read_only(value: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A copy that torch refuses to change in place outside of inference mode, without subnormal numbers of float32:
    a CPU multiplies them many times slower."""
    with torch.inference_mode():
        array = value.detach().to(dtype)  # before the device, which may have no float64
        if dtype in (torch.float32, torch.float64):
            array = torch.where(array.abs() < torch.finfo(dtype).tiny, 0.0, array)
        return array.to(device, copy=True).contiguous()


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision of states."""
    return torch.float64 if dtype == torch.float64 else torch.float32
