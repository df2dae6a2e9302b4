"""The forecast of the next steps from the memory's state over a look-back window, as a layer that steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from plmu.core.modes import is_open
from plmu.core.systems import DelayNetwork, LinearSystem
from plmu.folded import Folded, WindowForecast, wide_dtype
from plmu.folded.forecast import Standard as Standard
from plmu.folded.forecast import number_of, position_after, pushed, read_out, season_in, standard
from plmu.nn.folding import exact
from plmu.nn.past import ends
from plmu.nn.savable import savable
from plmu.nn.steppable import Steppable, changed, check_features, factory, positive
from plmu.ops.check import Lengths, check_state, checked_lengths, checked_resets, keep_valid, result_dtype

_LARGEST = 2**22  # elements of windows and forecasts in memory at a time
Ahead = Callable[[Tensor, Tensor, Tensor], Tensor]  # (windows, phases, steps) -> forecasts


@savable
class LookbackForecast(Steppable):
    """The next `horizon` values of each channel from its last `lookback` values.

    Of each window the last value is subtracted. The Delay Network's final state over it (equation 25) is read out
    linearly, and the last value is added again. A window that is shifted or scaled thus has a forecast that is shifted
    or scaled alike. Before the first `lookback` steps the window is filled with the first value.

    With a `season`, a repeated pattern of that many steps is subtracted first, times its amplitude in the window: the
    least-squares one, pulled towards 1 by `prior` and kept between 0 and 2. Its continuation is added to the forecast.
    `plmu.Forecaster` sets the weights in closed form; all but `season_pattern` and `prior` can be trained.

    Args:
        channels: features of x; each is forecast from itself.
        horizon: number of steps ahead.
        order: number of Legendre coefficients the state has.
        theta: the memory's window θ in steps.
        lookback: number of steps that the forecast depends on.
        individual: whether each channel has a readout of its own, or all share one.
        season: steps of the repeated pattern; 0 for none.
        phase: where in the pattern a sequence begins.
        return_sequences: False gives the forecast at each sequence's last step alone.
        device: of the weights.
        dtype: of the weights.

    Shape:
        x: (batch, time, channels), in the precision of the weights, or in float64: then all is computed in float64, so
            that values may be large and differ little.
        out: (batch, time, horizon · channels), or (batch, horizon · channels); `out.unflatten(-1, (horizon, channels))`
            has the steps ahead first.
        state: the window (batch, lookback, channels), and the position (batch, 2), of integers: the number of the next
            step, and a flag that is 1 after the first step, 0 before it, or −1 before it if the number is preset
            (`state_at`).
    """

    season_pattern: Tensor
    prior: Tensor
    input_size: int

    def __init__(
        self,
        channels: int,
        horizon: int,
        order: int,
        theta: float,
        lookback: int,
        *,
        individual: bool = False,
        season: int = 0,
        phase: int = 0,
        return_sequences: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = self.channels = positive(channels, "channels")
        self.horizon, self.lookback = positive(horizon, "horizon"), positive(lookback, "lookback")
        self.season = 0 if season == 0 else positive(season, "season")
        if not isinstance(phase, int) or not 0 <= phase < max(self.season, 1):
            raise ValueError(f"phase must be an integer from 0 to {max(self.season, 1) - 1}, got {phase!r}")
        self.phase, self.individual, self.returns_sequences = phase, bool(individual), return_sequences
        self.output_size = self.horizon * self.channels
        with torch.device("cpu"):  # the default device may be "meta"
            self._system = DelayNetwork(order, theta).discretize()
        self.order = self._system.order
        place = factory(device, dtype)
        readouts = self.channels if self.individual else 1
        self.weight = nn.Parameter(torch.empty(readouts, self.horizon, self.order, **place))
        self.register_buffer("season_pattern", torch.zeros(self.season, self.channels, **place))
        self.register_buffer("prior", torch.ones(self.channels, **place))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights of zero: the forecast is the last value."""
        nn.init.zeros_(self.weight)

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        self._check(x, 3)
        lengths = checked_lengths(lengths, x.shape[0], x.shape[1], x.device)
        resets = checked_resets(resets, x.shape[0], x.shape[1], x.device)
        window, position = self._start(x, state)
        return self._run(keep_valid(x, lengths), window, position, lengths, resets)

    def _check(self, x: Tensor, dims: int) -> None:
        """Raise unless x has the layer's features and its precision, or float64."""
        wide = isinstance(x, Tensor) and x.dtype == torch.float64
        check_features(x, dims, self.input_size, None if wide else self.weight)

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
        after them. `ahead` computes forecasts from windows; by default `read`."""
        batch, time, _ = x.shape
        steps = torch.cat([window.to(x.dtype), x], dim=1)  # (batch, lookback + time, columns)
        first = start_steps(position, time, resets)
        start_rows = torch.where(first >= 0, first + self.lookback, 0)  # in `steps`
        at = torch.arange(time, device=x.device)
        numbers = number_of(position, self.phase)[:, None] + at
        if resets is not None:
            numbers = torch.where(resets.cummax(1).values, at - first + self.phase, numbers)
        if self.returns_sequences:
            chunk = time
            if not is_open(batch, time):
                chunk = max(1, _LARGEST // (max(batch, 1) * (self.lookback + self.horizon) * x.shape[2]))
            starts = [0] if is_open(batch, time) else range(0, time, chunk)
            chunks = (at[start : start + chunk].expand(batch, -1) for start in starts)
            parts = [self._at(steps, start_rows, numbers, when, ahead) for when in chunks]
            out = keep_valid(torch.cat(parts, dim=1), lengths)
        else:
            last = at[-1:].expand(batch, 1) if lengths is None else (lengths - 1).clamp(min=0)[:, None]
            out = self._at(steps, start_rows, numbers, last, ahead)[:, 0]
            out = out if lengths is None else torch.where((lengths > 0)[:, None], out, 0.0)
        last = numbers.new_full((batch, 1), time - 1) if lengths is None else (lengths - 1).clamp(min=0)[:, None]
        after = final_rows(steps, self.lookback, start_rows, lengths).to(window.dtype)
        next_position = position_after(numbers.gather(1, last)[:, 0])
        if lengths is not None:
            next_position = torch.where((lengths > 0)[:, None], next_position, position)
        return out.to(result_dtype(x)), (after, next_position)

    def _at(self, steps: Tensor, start_rows: Tensor, numbers: Tensor, when: Tensor, ahead: Ahead | None) -> Tensor:
        """Forecasts (batch, count, horizon · channels) at the steps `when` (batch, count)."""
        windows = row_windows(steps, self.lookback, start_rows, when).movedim(3, 2)  # (batch, count, columns, lookback)
        phase = numbers.gather(1, when)
        forecasts = self.read(windows, phase) if ahead is None else ahead(windows, phase, when)
        return forecasts.movedim(3, 2).flatten(2)

    def read(self, windows: Tensor, phase: Tensor) -> Tensor:
        """Forecasts (..., channels, horizon) of windows.

        Args:
            windows: (..., channels, lookback).
            phase: of their last steps, or the numbers of these, (...).
        """
        return read_out(self.standard(windows, phase), self.weight.to(windows.dtype))

    def standard(self, windows: Tensor, phase: Tensor) -> Standard:
        """The input of the readout for windows: features, the level, and the season ahead.

        Args:
            windows: (..., channels, lookback).
            phase: of their last steps, or the numbers of these, (...).
        """
        taps, season = self._taps(windows), None
        if self.season:
            season = season_in(self.season_pattern.to(windows.dtype), phase, taps, self.horizon)
        return standard(windows, taps, self.prior.to(windows.dtype), season)

    def _taps(self, like: Tensor) -> Tensor:
        return self._system.derive(window_taps, self.lookback, dtype=like.dtype, device=like.device)

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        self._check(x, 2)
        window, position = self._start(x, state)
        window, number = pushed(window, x, position), number_of(position, self.phase)
        out = self.read(window.mT.to(x.dtype), number).mT.flatten(1)
        return out.to(result_dtype(x)), (window, position_after(number))

    def fold(self) -> Folded:
        if changed(self, "fold"):  # a subclass may do something else
            return super().fold()
        return WindowForecast(**self._arrays(), phase=self.phase)

    def _arrays(self) -> dict[str, Any]:
        """The arrays of the folded form, in float64."""
        arrays = {name: exact(getattr(self, name)) for name in ("weight", "season_pattern", "prior")}
        return {**arrays, "taps": self._taps(arrays["weight"])}

    def state_at(self, step: int, dtype: torch.dtype | None = None) -> Any:
        """The state of one sequence before its first step, with a preset number in place of the layer's phase.

        Args:
            step: the number of the first step; its phase is `step % season`.
            dtype: the precision of x; that of the weights by default.
        """
        state = self.initial_state(1, self.weight.dtype if dtype is None else dtype, self.weight.device)
        return state[0], state[1].new_tensor([[step, -1]]), *state[2:]

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        wide = wide_dtype(dtype)
        window = torch.zeros(batch, self.lookback, self.channels, dtype=wide, device=device)
        return window, torch.zeros(batch, 2, dtype=torch.int64, device=device)

    def _start(self, x: Tensor, state: Any) -> tuple[Tensor, ...]:
        start: tuple[Tensor, ...] = self.initial_state(x.shape[0], x.dtype, x.device)
        if state is None:
            return start
        if not isinstance(state, tuple) or len(state) != len(start):
            raise ValueError(f"state must be the {len(start)} tensors that the layer returned: the window, the place…")
        for tensor, expected in zip(state, start, strict=True):
            check_state(tensor, tuple(expected.shape), expected.dtype, expected.device)
        return state

    def extra_repr(self) -> str:
        sizes = f"{self.channels}, horizon={self.horizon}, order={self.order}, theta={self.config['theta']:g}"
        hidden = {name: self.config[name] for name in ("individual", "season", "phase", "return_sequences")}
        usual = {"individual": False, "season": 0, "phase": 0, "return_sequences": True}
        options = "".join(f", {name}={value}" for name, value in hidden.items() if value != usual[name])
        return f"{sizes}, lookback={self.lookback}{options}"


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
    return after if lengths is None else torch.where((lengths > 0)[:, None, None], after, ends(steps, size, lengths))


def window_taps(system: LinearSystem, length: int) -> Tensor:
    """The impulse response from the oldest step of a window to the newest: (length, order)."""
    response = system.impulse_response(length)
    return response.flip(1).mT.contiguous()
