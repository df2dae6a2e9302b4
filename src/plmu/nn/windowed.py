"""`WindowedForecast`, the base of layers that forecast from a window of the last steps: whole sequences and steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plmu.core.modes import is_open
from plmu.folded.windowed import bounded, count_after, number_of, position_after, pushed, window_state
from plmu.nn.past import ends as last_rows
from plmu.nn.steppable import Steppable, check_features
from plmu.ops.check import Lengths, check_state, checked_lengths, checked_resets, keep_valid, result_dtype

_LARGEST = 2**22  # elements of windows and forecasts in memory at a time


class Ends(NamedTuple):
    """The last steps of windows."""

    number: Tensor  # (...), in their sequences
    steps: Tensor  # (...), how many the window has by then, counted up to the layer's `counted`


Ahead = Callable[[Tensor, Ends, Tensor], Tensor]  # (windows, their ends, steps of the call) -> forecasts


class WindowedForecast(Steppable):
    """A layer whose output depends on the last `window_size` steps of each channel, and on the number of the step or on
    how many of these steps there are.

    Before a sequence has so many steps its first one is repeated. The state is the window (batch, window_size,
    channels) and the position (batch, 2), of integers: the number of the next step; and how many steps the window has,
    counted up to `counted`, or −1 before the first step if the number is preset (`state_at`).

    A derived layer has `channels`, `horizon` and `input_size`, and computes forecasts in `_forecast`.
    """

    channels: int
    horizon: int
    input_size: int
    nonnegative: tuple[int, ...] = ()  # channels whose forecasts are at least 0

    @property
    @abstractmethod
    def window_size(self) -> int:
        """The number of steps that an output depends on."""

    @property
    def counted(self) -> int:
        """The largest number of steps that a position counts."""
        return 1

    @property
    def first_number(self) -> int:
        """The number of a sequence's first step, unless it is preset."""
        return 0

    @property
    def timed(self) -> bool:
        """Whether forecasts depend on the number of a step: there is a seasonal pattern at fixed steps."""
        return False

    @property
    @abstractmethod
    def _like(self) -> Tensor:
        """A weight, for the precision and the device of the layer."""

    @abstractmethod
    def _forecast(self, windows: Tensor, ends: Ends) -> Tensor:
        """Forecasts (..., channels, horizon) of windows (..., channels, window_size)."""

    def _elements(self) -> int:
        """How many numbers are held to forecast a window of one channel."""
        return self.window_size + self.horizon

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        self._check(x, 3)
        lengths = checked_lengths(lengths, x.shape[0], x.shape[1], x.device)
        resets = checked_resets(resets, x.shape[0], x.shape[1], x.device)
        window, position = self._start(x, state)
        return self._run(keep_valid(x, lengths), window, position, lengths, resets)

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        self._check(x, 2)
        window, position = self._start(x, state)
        window, ends = pushed(window, x, position), self._ends(position)
        out = self.bounded(self._forecast(window.mT.to(x.dtype), ends)).mT.flatten(1)
        return out.to(result_dtype(x)), (window, position_after(*ends))

    def bounded(self, forecasts: Tensor, level: Tensor | None = None) -> Tensor:
        """Forecasts (..., channels, horizon), of which those of `nonnegative` channels are at least 0.

        Args:
            forecasts: such as those of `read`.
            level: what they are relative to, (..., channels); by default 0.
        """
        return bounded(forecasts, self.nonnegative, level)

    def state_at(self, step: int, dtype: torch.dtype | None = None) -> Any:
        """The state of one sequence before its first step, with a preset number of that step.

        Args:
            step: the number of the first step; its phase in a season is `step % season`.
            dtype: the precision of x; that of the weights by default.
        """
        state = self.initial_state(1, self._like.dtype if dtype is None else dtype, self._like.device)
        return state[0], state[1].new_tensor([[step, -1]]), *state[2:]

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return window_state(batch, self.window_size, self.channels, dtype, device)

    def _check(self, x: Tensor, dims: int) -> None:
        """Raise unless x has the layer's features and its precision, or float64."""
        wide = isinstance(x, Tensor) and x.dtype == torch.float64
        check_features(x, dims, self.input_size, None if wide else self._like)

    def _start(self, x: Tensor, state: Any) -> tuple[Tensor, ...]:
        start: tuple[Tensor, ...] = self.initial_state(x.shape[0], x.dtype, x.device)
        if state is None:
            return start
        if not isinstance(state, tuple) or len(state) != len(start):
            raise ValueError(f"state must be the {len(start)} tensors that the layer returned: the window, the place…")
        for tensor, expected in zip(state, start, strict=True):
            check_state(tensor, tuple(expected.shape), expected.dtype, expected.device)
        return state

    def _ends(self, position: Tensor) -> Ends:
        """The ends of the windows after one step from a position."""
        return Ends(number_of(position, self.first_number), count_after(position, self.counted))

    def _run(
        self,
        x: Tensor,
        window: Tensor,
        position: Tensor,
        lengths: Tensor | None,
        resets: Tensor | None,
        ahead: Ahead | None = None,
    ) -> tuple[Tensor, Any]:
        """The forecasts at each row of x (batch, time, columns), which follow a window; and the window and position
        after them. `ahead` computes forecasts from windows; by default `_forecast`."""
        batch, time, _ = x.shape
        steps = torch.cat([window.to(x.dtype), x], dim=1)  # (batch, window_size + time, columns)
        first = start_steps(position, time, resets)
        start_rows = torch.where(first >= 0, first + self.window_size, 0)  # in `steps`
        at = torch.arange(time, device=x.device)
        numbers, counts = number_of(position, self.first_number)[:, None] + at, count_after(position)[:, None] + at
        if resets is not None:
            began = resets.cummax(1).values
            numbers = torch.where(began, at - first + self.first_number, numbers)
            counts = torch.where(began, at - first + 1, counts)
        ends = Ends(numbers, counts.clamp(max=self.counted))
        if self.returns_sequences:
            chunk = time
            if not is_open(batch, time):
                chunk = max(1, _LARGEST // (max(batch, 1) * self._elements() * x.shape[2]))
            starts = [0] if is_open(batch, time) else range(0, time, chunk)
            chunks = (at[start : start + chunk].expand(batch, -1) for start in starts)
            parts = [self._at(steps, start_rows, ends, when, ahead) for when in chunks]
            out = keep_valid(torch.cat(parts, dim=1), lengths)
        else:
            last = at[-1:].expand(batch, 1) if lengths is None else (lengths - 1).clamp(min=0)[:, None]
            out = self._at(steps, start_rows, ends, last, ahead)[:, 0]
            out = out if lengths is None else torch.where((lengths > 0)[:, None], out, 0.0)
        last = numbers.new_full((batch, 1), time - 1) if lengths is None else (lengths - 1).clamp(min=0)[:, None]
        after = final_rows(steps, self.window_size, start_rows, lengths).to(window.dtype)
        next_position = position_after(*(part.gather(1, last)[:, 0] for part in ends))
        if lengths is not None:
            next_position = torch.where((lengths > 0)[:, None], next_position, position)
        return out.to(result_dtype(x)), (after, next_position)

    def _at(self, steps: Tensor, start_rows: Tensor, ends: Ends, when: Tensor, ahead: Ahead | None) -> Tensor:
        """Forecasts (batch, count, horizon · channels) at the steps `when` (batch, count)."""
        windows = row_windows(steps, self.window_size, start_rows, when).movedim(3, 2)  # (batch, count, columns, size)
        here = Ends(*(part.gather(1, when) for part in ends))
        forecasts = self._forecast(windows, here) if ahead is None else ahead(windows, here, when)
        return self.bounded(forecasts).movedim(3, 2).flatten(2)


def checked_channels(values: Sequence[int], channels: int) -> tuple[int, ...]:
    """Numbers of channels whose forecasts are at least 0; raises unless they are different and there."""
    listed = list(values) if isinstance(values, Sequence) and not isinstance(values, str) else [None]
    if not all(type(value) is int and 0 <= value < channels for value in listed) or len(set(listed)) < len(listed):
        raise ValueError(f"nonnegative must be a list of different channels from 0 to {channels - 1}, got {values!r}")
    return tuple(sorted(listed))


def start_steps(position: Tensor, time: int, resets: Tensor | None) -> Tensor:
    """Index of the step at which each step's sequence started, (batch, time); -1 if before this call."""
    batch = position.shape[0]
    first = torch.where(position[:, 1] > 0, -1, 0)[:, None].expand(batch, time)
    if resets is None:
        return first
    latest = torch.where(resets, torch.arange(time, device=position.device), -1).cummax(1).values
    return torch.where(latest >= 0, latest, first)


def row_windows(steps: Tensor, size: int, start_rows: Tensor, when: Tensor) -> Tensor:
    """The window of `size` rows that ends at each of the steps `when` (batch, count): (batch, count, size, columns).

    `steps` (batch, size + time, columns) begins with `size` rows from before step 0. A window begins no earlier than
    at `start_rows` (batch, time), the row in `steps` where the sequence of a step started, which is repeated instead.
    """
    back = torch.arange(1 - size, 1, device=steps.device)
    index = (when[:, :, None] + size + back).maximum(start_rows.gather(1, when)[:, :, None])
    windows: Tensor = steps.gather(1, index.flatten(1)[:, :, None].expand(-1, -1, steps.shape[2]))
    return windows.reshape(*index.shape, steps.shape[2])


def final_rows(steps: Tensor, size: int, start_rows: Tensor, lengths: Tensor | None) -> Tensor:
    """The window (batch, size, columns) at each sequence's end; for an empty sequence, the window before it."""
    batch, time = start_rows.shape
    last = start_rows.new_full((batch, 1), time - 1) if lengths is None else (lengths - 1).clamp(min=0)[:, None]
    after = row_windows(steps, size, start_rows, last)[:, 0]
    return (
        after if lengths is None else torch.where((lengths > 0)[:, None, None], after, last_rows(steps, size, lengths))
    )
