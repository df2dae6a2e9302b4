"""Forecasts of series that depend on covariates: columns that are known ahead, such as a calendar or a price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from plmu import folded
from plmu.core.systems import DelayNetwork
from plmu.folded import Folded
from plmu.folded.forecast import effect_kernel, effect_of, split_columns
from plmu.folded.forecast import spread as spread
from plmu.folded.windowed import position_after, pushed
from plmu.nn.folding import exact
from plmu.nn.forecast import LookbackForecast, window_taps
from plmu.nn.savable import savable
from plmu.nn.steppable import changed, factory, positive
from plmu.nn.windowed import Ends, final_rows, row_windows, start_steps
from plmu.ops.check import Lengths, checked_lengths, checked_resets, keep_valid, result_dtype


@savable
class CovariateForecast(LookbackForecast):
    """`LookbackForecast` of the channels without the effect of covariates, plus that effect on the next steps.

    The effect of the covariates on a step is linear in their values at that step and in the Delay Network's state over
    the last `lags` of these values. It is subtracted from the window, the rest is forecast, and the effect on the next
    steps is added. A constant that is added to a covariate changes nothing. `plmu.Forecaster` sets the weights in
    closed form; those of the effect can be trained, too.

    Args:
        channels: columns to forecast.
        covariates: columns that are known ahead.
        horizon: number of steps ahead.
        order: number of Legendre coefficients the state has.
        theta: the memory's window θ in steps.
        lookback: number of steps of the channels that a forecast depends on.
        lags: number of steps of a covariate that its effect depends on, the present one included.
        lag_order: Legendre coefficients of these steps; 0 where only the present value counts.
        relative: whether the effect is in units of the mean absolute deviation in the window, so that one model fits
            series of different size.
        individual: whether each channel has a readout of its own, or all share one.
        season: steps of the repeated pattern; 0 for none.
        phase: where in the pattern a sequence begins.
        nonnegative: numbers of channels whose forecasts are at least 0, such as those of counts.
        return_sequences: False gives the forecast at each sequence's last step alone.
        device: of the weights.
        dtype: of the weights.

    Shape:
        x: (batch, time, channels + covariates · (1 + horizon)): the channels, the covariates of the same step, and
            those of the next `horizon` steps, one step after the other.
        out: (batch, time, horizon · channels), or (batch, horizon · channels), as of `LookbackForecast`.
        state: the window and the position of `LookbackForecast`, the effects (batch, lookback, channels) in that
            window, and the last covariates (batch, lags, covariates).
    """

    def __init__(
        self,
        channels: int,
        covariates: int,
        horizon: int,
        order: int,
        theta: float,
        lookback: int,
        *,
        lags: int = 1,
        lag_order: int = 0,
        relative: bool = False,
        individual: bool = False,
        season: int = 0,
        phase: int = 0,
        nonnegative: Sequence[int] = (),
        return_sequences: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            channels,
            horizon,
            order,
            theta,
            lookback,
            individual=individual,
            season=season,
            phase=phase,
            nonnegative=nonnegative,
            return_sequences=return_sequences,
            device=device,
            dtype=dtype,
        )
        self.covariates, self.lags, self.relative = positive(covariates, "covariates"), positive(lags, "lags"), relative
        if not isinstance(lag_order, int) or not 0 <= lag_order < self.lags:
            raise ValueError(f"lag_order must be an integer from 0 to {self.lags - 1}, got {lag_order!r}")
        self.lag_order = lag_order
        self.input_size = self.channels + self.covariates * (1 + self.horizon)
        with torch.device("cpu"):
            self._lag_system = DelayNetwork(lag_order, float(lags)).discretize() if lag_order else None
        place = factory(device, dtype)
        self.effect_weight = nn.Parameter(torch.zeros(self.channels, self.covariates, 1 + lag_order, **place))

    def reset_parameters(self) -> None:
        """Weights of zero: the forecast is the last value."""
        super().reset_parameters()
        if hasattr(self, "effect_weight"):  # which is made after the other weights
            nn.init.zeros_(self.effect_weight)

    def kernel(self) -> Tensor:
        """The effect of each covariate on each channel, the oldest lag first: (channels, covariates, lags)."""
        weight, taps = self.effect_weight, None
        if self._lag_system is not None:
            taps = self._lag_system.derive(window_taps, self.lags, dtype=weight.dtype, device=weight.device)
        return effect_kernel(weight, taps, self.lags)

    def effect(self, covariates: Tensor) -> Tensor:
        """The effect of covariates on the channels: (..., channels, steps).

        Args:
            covariates: of these steps and of the lags before them, (..., covariates, lags - 1 + steps).
        """
        return effect_of(covariates, self.kernel().to(covariates.dtype))

    def forecast(self, windows: Tensor, phase: Tensor, effect: Tensor) -> Tensor:
        """Forecasts (..., channels, horizon) of windows, given the covariates' effect on them and on the steps ahead.

        Args:
            windows: (..., channels, lookback).
            phase: of their last steps, (...).
            effect: (..., channels, lookback + horizon).
        """
        sized = effect * spread(windows) if self.relative else effect
        return self.read(windows - sized[..., : self.lookback], phase) + sized[..., self.lookback :]

    def rest(self, windows: Tensor, effect: Tensor) -> Tensor:
        """Windows without the covariates' effect on them.

        Args:
            windows: (..., channels, lookback).
            effect: on their steps, of the same shape.
        """
        return windows - (effect * spread(windows) if self.relative else effect)

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        self._check(x, 3)
        batch, time, _ = x.shape
        lengths = checked_lengths(lengths, batch, time, x.device)
        resets = checked_resets(resets, batch, time, x.device)
        window, position, effects, recent = self._start(x, state)
        values, now, future = self._split(keep_valid(x, lengths))
        steps = torch.cat([recent.to(x.dtype), now], dim=1)
        first = start_steps(position, time, resets)
        start_rows = torch.where(first >= 0, first + self.lags, 0)
        all_steps = torch.arange(time, device=x.device).expand(batch, time)
        lagged = row_windows(steps, self.lags, start_rows, all_steps).movedim(3, 2)  # (batch, time, covariates, lags)
        rows = torch.cat([values, self.effect(lagged)[..., 0]], dim=2)

        def ahead(windows: Tensor, ends: Ends, when: Tensor) -> Tensor:
            past, ahead = (
                part.gather(1, when[:, :, None, None].expand(-1, -1, *part.shape[2:])) for part in (lagged, future)
            )
            values, effects = windows.split(self.channels, dim=2)
            return self._ahead(values, effects, ends.number, past, ahead)

        out, (both, position) = self._run(rows, torch.cat([window, effects], dim=2), position, lengths, resets, ahead)
        window, effects = both.split(self.channels, dim=2)
        return out, (window, position, effects, final_rows(steps, self.lags, start_rows, lengths).to(recent.dtype))

    def _ahead(self, windows: Tensor, effects: Tensor, phase: Tensor, lagged: Tensor, future: Tensor) -> Tensor:
        """Forecasts from windows and the effects on them, both (..., channels, lookback); the last covariates, `lagged`
        (..., covariates, lags); and the next covariates, `future` (..., covariates, horizon)."""
        ahead = self.effect(torch.cat([lagged[..., 1:], future], dim=-1))
        return self.forecast(windows, phase, torch.cat([effects, ahead], dim=-1))

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        self._check(x, 2)
        window, position, effects, recent = self._start(x, state)
        values, now, future = self._split(x)
        recent = pushed(recent, now, position)
        lagged = recent.mT.to(x.dtype)
        effects = pushed(effects, self.effect(lagged)[..., 0], position)
        window, ends = pushed(window, values, position), self._ends(position)
        out = self._ahead(window.mT.to(x.dtype), effects.mT.to(x.dtype), ends.number, lagged, future)
        out = self.bounded(out).mT.flatten(1)
        return out.to(result_dtype(x)), (window, position_after(*ends), effects, recent)

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Columns split into channels, covariates of the step, and covariates ahead (..., covariates, horizon)."""
        return split_columns(x, self.channels, self.covariates, self.horizon)

    def fold(self) -> Folded:
        if changed(self, "fold"):
            return super().fold()
        taps = None
        if self._lag_system is not None:
            taps = self._lag_system.derive(window_taps, self.lags, dtype=torch.float64, device=torch.device("cpu"))
        return folded.CovariateForecast(
            **self._arrays(),
            phase=self.phase,
            nonnegative=self.nonnegative,
            effect_weight=exact(self.effect_weight),
            lag_taps=taps,
            lags=self.lags,
            relative=bool(self.relative),
        )

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        window, position = super().initial_state(batch, dtype, device)
        return window, position, torch.zeros_like(window), window.new_zeros(batch, self.lags, self.covariates)

    def extra_repr(self) -> str:
        options = f", covariates={self.covariates}, lags={self.lags}" + ", relative=True" * self.relative
        return super().extra_repr() + options
