"""The forecast of the next steps from the memory's state over a look-back window, as a layer that steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from plmu.core.systems import DelayNetwork, LinearSystem
from plmu.folded import Folded, WindowForecast
from plmu.folded.forecast import Standard as Standard
from plmu.folded.forecast import read_out, season_in, standard
from plmu.nn.folding import exact
from plmu.nn.savable import savable
from plmu.nn.steppable import changed, factory, positive
from plmu.nn.windowed import Ends, WindowedForecast, checked_channels


@savable
class LookbackForecast(WindowedForecast):
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
        nonnegative: numbers of channels whose forecasts are at least 0, such as those of counts.
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
        nonnegative: Sequence[int] = (),
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
        self.nonnegative = checked_channels(nonnegative, self.channels)
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

    @property
    def window_size(self) -> int:
        return self.lookback

    @property
    def _like(self) -> Tensor:
        return self.weight

    @property
    def first_number(self) -> int:
        return self.phase

    @property
    def timed(self) -> bool:
        return self.season > 0

    def _forecast(self, windows: Tensor, ends: Ends) -> Tensor:
        return self.read(windows, ends.number)

    def read(self, windows: Tensor, phase: Tensor) -> Tensor:
        """Forecasts (..., channels, horizon) of windows, without the bound of `nonnegative` channels.

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

    def fold(self) -> Folded:
        if changed(self, "fold"):  # a subclass may do something else
            return super().fold()
        return WindowForecast(**self._arrays(), phase=self.phase, nonnegative=self.nonnegative)

    def _arrays(self) -> dict[str, Any]:
        """The arrays of the folded form, in float64."""
        arrays = {name: exact(getattr(self, name)) for name in ("weight", "season_pattern", "prior")}
        return {**arrays, "taps": self._taps(arrays["weight"])}

    def extra_repr(self) -> str:
        sizes = f"{self.channels}, horizon={self.horizon}, order={self.order}, theta={self.config['theta']:g}"
        hidden = {name: self.config[name] for name in ("individual", "season", "phase", "return_sequences")}
        hidden["nonnegative"] = self.nonnegative
        usual = {"individual": False, "season": 0, "phase": 0, "return_sequences": True, "nonnegative": ()}
        options = "".join(f", {name}={value}" for name, value in hidden.items() if value != usual[name])
        return f"{sizes}, lookback={self.lookback}{options}"


def window_taps(system: LinearSystem, length: int) -> Tensor:
    """The impulse response from the oldest step of a window to the newest: (length, order)."""
    response = system.impulse_response(length)
    return response.flip(1).mT.contiguous()
