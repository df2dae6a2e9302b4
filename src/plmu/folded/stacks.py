"""Folded models made of other ones, and the one that holds a copy of a module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from plmu.folded.base import Folded, Stateless, copied, copies, wide_dtype


@dataclass(frozen=True, eq=False)
class Chain(Folded):
    """Parts in a row.

    The state is a tuple of length `states` with each part's at its place, and None for modules without one. It has the
    form of the model's own, though parts may be multiplied together. With `states` None no part has a state.
    """

    parts: tuple[Folded, ...]
    places: tuple[int, ...]
    states: int | None

    def __post_init__(self) -> None:
        # Stateless parts are called directly: a step takes few microseconds.
        calls = [part.__call__ if isinstance(part, Stateless) else None for part in self.parts]
        advances = [part.advance for part in self.parts]
        object.__setattr__(self, "_steps", tuple(zip(calls, advances, self.places, strict=True)))

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        if self.states is None:
            for call, advance, _ in self._steps:  # type: ignore[attr-defined]
                x = advance(x, None)[0] if call is None else call(x)
            return x, None
        after: list[Any] = [None] * self.states
        if state is None:
            state = after.copy()
        elif not isinstance(state, tuple) or len(state) != self.states:
            kind = f"a tuple of {len(state)}" if isinstance(state, tuple) else type(state).__name__
            raise ValueError(f"state must be a tuple of {self.states}, one for each module; got {kind}")
        for call, advance, place in self._steps:  # type: ignore[attr-defined]
            if call is None:
                x, after[place] = advance(x, state[place])
            else:
                x = call(x)
        return x, tuple(after)

    def takes_tokens(self) -> bool:
        return self.parts[0].takes_tokens() if self.parts else True

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        if self.states is None:
            return None
        start: list[Any] = [None] * self.states
        for part, place in zip(self.parts, self.places, strict=True):
            start[place] = part.initial_state(batch, dtype, device)
        return tuple(start)


@dataclass(frozen=True, eq=False)
class Sum(Folded):
    """x + inner(x), or x + W inner(x)."""

    inner: Folded
    weight: Tensor | None = None  # (features, out)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_transposed", None if self.weight is None else self.weight.mT)

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        out, state = self.inner.advance(x, state)
        shape = out.shape if self.weight is None else (out.shape[0], self.weight.shape[0])
        if x.shape != shape:
            raise ValueError(
                f"Residual adds its input to its module's output: it turned {x.shape[-1]} features into"
                f" {shape[-1]}, which must be equal"
            )
        return (x + out if self.weight is None else torch.addmm(x, out, self._transposed)), state  # type: ignore[attr-defined]

    def takes_tokens(self) -> bool:
        return self.inner.takes_tokens()

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return self.inner.initial_state(batch, dtype, device)


@dataclass(frozen=True, eq=False)
class Product(Folded):
    """gate(x) · inner(x), with the state of `inner` alone: the gate has none."""

    gate: Folded
    inner: Folded

    def __post_init__(self) -> None:
        parts = self.gate.parts if isinstance(self.gate, Chain) else (self.gate,)
        calls = [part.__call__ for part in parts if isinstance(part, Stateless)]
        object.__setattr__(self, "_gate", calls if len(calls) == len(parts) else None)

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        out, state = self.inner.advance(x, state)
        if self._gate is None:  # type: ignore[attr-defined]
            return self.gate.advance(x, None)[0] * out, state
        for call in self._gate:  # type: ignore[attr-defined]
            x = call(x)
        return x * out, state

    def takes_tokens(self) -> bool:
        return self.inner.takes_tokens()

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return self.inner.initial_state(batch, dtype, device)


@dataclass(frozen=True, eq=False)
class WeightedSum(Folded):
    """Parts in a row, and the weighted sum of all their outputs. The state is the tuple of their states."""

    parts: tuple[Folded, ...]
    weights: Tensor  # (parts,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_shares", tuple(self.weights.tolist()))

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        states = (None,) * len(self.parts) if state is None else state
        after, total = [], None
        for part, before, share in zip(self.parts, states, self._shares, strict=True):  # type: ignore[attr-defined]
            x, next_state = part.advance(x, before)
            after.append(next_state)
            total = share * x if total is None else torch.add(total, x, alpha=share)
        assert total is not None
        return total, tuple(after)

    def takes_tokens(self) -> bool:
        return self.parts[0].takes_tokens()

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return tuple(part.initial_state(batch, dtype, device) for part in self.parts)


@dataclass(frozen=True, eq=False)
class After(Folded):
    """inner(first(x)), with the state of `inner` alone."""

    first: Stateless
    inner: Folded

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.inner.advance(self.first(x), state)

    def takes_tokens(self) -> bool:
        return self.first.takes_tokens()

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

    def takes_tokens(self) -> bool:
        return self.inner.takes_tokens()

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        inner = self.inner.initial_state(batch, dtype, device)
        if self.missing == "zero":
            return inner
        assert self.features is not None
        return inner, torch.zeros(batch, self.features, dtype=wide_dtype(dtype), device=device)


@dataclass(frozen=True, eq=False)
class Stepped(Folded):
    """A steppable module without a `fold()` of its own: a copy of it, in evaluation mode."""

    module: Any

    @classmethod
    def of(cls, module: nn.Module) -> Stepped:
        return cls(copied(module))

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        out: tuple[Tensor, Any] = self.module.step(x, state)
        return out

    def takes_tokens(self) -> bool:
        return True  # unknown

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return self.module.initial_state(batch, dtype, device)

    def arrays(self) -> dict[str, Tensor]:
        return copies(self.module)
