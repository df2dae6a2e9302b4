"""Missing values in the input of a layer: NaN, filled with zero or with the last value before the gap."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from plmu.folded import Filled, Folded, Stepped
from plmu.nn.steppable import Steppable, changed
from plmu.ops.check import Lengths, check_padded, check_state, checked_lengths, checked_resets

FILLS = ("hold", "zero")


class Filling(Steppable):
    """A layer with the option `missing`: "hold" or "zero" fills NaN in its input, None leaves it.

    "hold" repeats the last value of that feature, and takes zero if there is none yet: at the start and after a reset.
    The state is then a pair, the layer's own and the last values (batch, features), so that a gap may span two calls.
    Subclasses have `_forward`, `_step`, `_fold` and `_initial_state` for the input without gaps. Their `forward`
    calls `_forward`, or `_filled_forward` where `missing` is set: torch.compile counts its graphs by function.
    """

    missing: str | None = None
    input_size: int | None

    def _filled_forward(self, x: Tensor, state: Any, lengths: Lengths, resets: Tensor | None) -> tuple[Tensor, Any]:
        self._check_fillable(x, 3)
        lengths = checked_lengths(lengths, x.shape[0], x.shape[1], x.device)
        resets = checked_resets(resets, x.shape[0], x.shape[1], x.device)
        if self.missing == "zero":
            return self._forward(_known_or(x, 0.0), state, lengths, resets)
        inner, held = self._parts(state, x)
        filled, last = hold(x, held, lengths, resets)
        out, inner = self._forward(filled, inner, lengths, resets)
        return out, (inner, last.to(_wide(x)))

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        if self.missing is None:
            return self._step(x, state)
        self._check_fillable(x, 2)
        if self.missing == "zero":
            return self._step(_known_or(x, 0.0), state)
        inner, held = self._parts(state, x)
        filled = _known_or(x, 0.0 if held is None else held.to(x.dtype))
        out, inner = self._step(filled, inner)
        return out, (inner, filled.to(_wide(x), copy=True))  # the caller may write the next sample into its memory

    def fold(self) -> Folded:
        if changed(self, "_fold"):
            return super().fold()
        inner = self._fold()
        if self.missing is None or isinstance(inner, Stepped):  # a copy of this layer fills missing values itself
            return inner
        return Filled(inner, self.missing, self.input_size)

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        inner = self._initial_state(batch, dtype, device)
        if self.missing != "hold":
            return inner
        assert self.input_size is not None
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return inner, torch.zeros(batch, self.input_size, dtype=wide, device=device)

    def _fills(self) -> str | None:
        return self.missing

    @abstractmethod
    def _forward(self, x: Tensor, state: Any, lengths: Lengths, resets: Tensor | None) -> tuple[Tensor, Any]: ...

    @abstractmethod
    def _step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]: ...

    @abstractmethod
    def _initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any: ...

    @abstractmethod
    def _fold(self) -> Folded: ...

    def _start(self, x: Tensor) -> Any:
        """The layer's own initial state for an input, as `initial_state` gives it."""
        start = self.initial_state(x.shape[0], x.dtype, x.device)
        return start[0] if self.missing == "hold" else start

    def _parts(self, state: Any, x: Tensor) -> tuple[Any, Tensor | None]:
        """The layer's own state, and the last values, from the pair that is the state with "hold"."""
        if state is None:
            return None, None
        if not isinstance(state, tuple) or len(state) != 2:
            raise TypeError(
                f"with missing='hold' state must be a pair (state, last values), got {type(state).__name__}"
            )
        inner, held = state
        check_state(held, (x.shape[0], x.shape[-1]), _wide(x), x.device, "last values of state")
        return inner, held

    def _check_fillable(self, x: Tensor, dims: int) -> None:
        check_padded(x, "x")
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"x must be a floating-point tensor for missing={self.missing!r}, got {kind}")
        features = x.shape[-1] if self.input_size is None and x.dim() else self.input_size
        if x.dim() != dims or x.shape[-1] != features or x.shape[1] == 0:
            expected = "(batch, time, {})" if dims == 3 else "(batch, {})"
            raise ValueError(f"x must have shape {expected.format(features or 'features')}, got {tuple(x.shape)}")


def checked_missing(missing: str | None) -> str | None:
    if missing is not None and missing not in FILLS:
        raise ValueError(f"missing must be None, 'hold' or 'zero', got {missing!r}")
    return missing


def hold(x: Tensor, held: Tensor | None, lengths: Tensor | None, resets: Tensor | None) -> tuple[Tensor, Tensor]:
    """x (batch, time, features) with each NaN replaced by the last value before it, and the last values of each
    sequence (batch, features). `held` (batch, features) are the values before the first step, None for zeros."""
    batch, time, features = x.shape
    before = x.new_zeros(batch, 1, features) if held is None else held[:, None].to(x.dtype)
    values = torch.cat([before, _known_or(x, 0.0)], dim=1)
    number = torch.arange(1, time + 1, device=x.device)[:, None]
    latest = torch.where(torch.isnan(x), 0, number).cummax(1).values  # index in `values` of the last that is not NaN
    filled = values.gather(1, latest)
    if resets is not None:
        since = torch.where(resets[:, :, None], number, 0).cummax(1).values
        filled = torch.where(latest >= since, filled, 0.0)
    if lengths is None:
        return filled, filled[:, -1].clone()
    index = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, features)
    return filled, torch.where((lengths > 0)[:, None], filled.gather(1, index)[:, 0], before[:, 0])


def _wide(x: Tensor) -> torch.dtype:
    """The precision of states."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _known_or(x: Tensor, replacement: Tensor | float) -> Tensor:
    """x with NaN replaced."""
    return torch.where(torch.isnan(x), replacement, x)
