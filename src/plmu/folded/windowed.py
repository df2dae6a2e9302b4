"""What layers that forecast from a window of the last steps share: the window and the position, which are their state.

A position (batch, 2), of integers, is the number of a sequence's next step, and how many steps the window has, counted
up to a limit: 0 before the first step, when the layer's own number is taken instead; or −1 before it, when the number
is preset (`plmu.nn.LookbackForecast.state_at`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from plmu.core.modes import watched
from plmu.folded.base import Folded, read_only, wide_dtype


def pushed(rows: Tensor, row: Tensor, position: Tensor) -> Tensor:
    """Rows (batch, size, columns) without the oldest and with a new one at the end; the first row fills all of them."""
    now = row[:, None].to(rows.dtype)
    return torch.where(position[:, 1:, None] > 0, torch.cat([rows[:, 1:], now], dim=1), now)


def number_of(position: Tensor, first: int) -> Tensor:
    """The number (batch,) of the next step; `first` is that of a sequence's first step, unless it is preset."""
    return torch.where(position[:, 1] != 0, position[:, 0], first)


def count_after(position: Tensor, limit: int | None = None) -> Tensor:
    """How many steps (batch,) the window has after the next step, counted up to `limit`."""
    return (position[:, 1].clamp(min=0) + 1).clamp(max=limit) if limit else position[:, 1].clamp(min=0) + 1


def position_after(number: Tensor, count: Tensor) -> Tensor:
    """The position (batch, 2) after the steps of these numbers (batch,), with so many steps in the window (batch,)."""
    return torch.stack([number + 1, count], dim=1)


def window_state(batch: int, size: int, channels: int, dtype: torch.dtype, device: torch.device) -> Any:
    """An empty window (batch, size, channels) and its position, for inputs of this precision."""
    window = torch.zeros(batch, size, channels, dtype=wide_dtype(dtype), device=device)
    return window, torch.zeros(batch, 2, dtype=torch.int64, device=device)


def bounded(forecasts: Tensor, nonnegative: Sequence[int], level: Tensor | None = None) -> Tensor:
    """Forecasts (..., channels, horizon), of which those of these channels are at least 0.

    Args:
        forecasts: in the units of the channels.
        nonnegative: numbers of channels.
        level: what forecasts are relative to, (..., channels); by default 0.
    """
    if not nonnegative:
        return forecasts
    channels = list(forecasts.unbind(-2))
    for place in nonnegative:
        lowest = torch.zeros_like(channels[place]) if level is None else -level[..., place, None]
        channels[place] = channels[place].maximum(lowest)
    return torch.stack(channels, dim=-2)


@dataclass(frozen=True, eq=False)
class Windowed(Folded):
    """A kind that computes in the precision of its input. Arrays stay float64, and are cast to each precision once."""

    nonnegative: tuple[int, ...] = field(default=(), kw_only=True)  # channels whose forecasts are at least 0
    sample_dtype = torch.float64

    def __post_init__(self) -> None:
        object.__setattr__(self, "_casts", {})

    def cast(self, like: Tensor) -> dict[str, Tensor]:
        """The arrays in the precision and on the device of a tensor."""
        casts: dict[Any, dict[str, Tensor]] = self._casts  # type: ignore[attr-defined]
        key = (like.dtype, like.device)
        if key in casts:
            return casts[key]
        arrays = self._made({name: read_only(array, *key) for name, array in self.arrays().items()})
        if not watched():  # tensors of a mode must not outlive it
            casts[key] = arrays
        return arrays

    def _made(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        """The cast arrays with what is computed from them."""
        return arrays
