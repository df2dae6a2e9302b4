"""Forecasts from windows, for single steps; and the formulas that `plmu.nn` trains, which are the same.

The phase in the season is the number of a step modulo the season. A position's second number is 1 after the first step.

Only differences of values matter, so values may be far from zero in float64, in which all is then computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from plmu.core.modes import is_open
from plmu.folded.windowed import Windowed, bounded, count_after, number_of, position_after, pushed, window_state

AMPLITUDE = 2.0  # upper bound of a season's amplitude in a window; 1 is the amplitude of its pattern


class Standard(NamedTuple):
    """The input of the readout of a window."""

    features: Tensor  # (..., order)
    last: Tensor  # (..., 1), the level
    ahead: Tensor | None  # (..., horizon), the season's part of the forecast


class Season(NamedTuple):
    """A season's pattern in a window, relative to the last step."""

    features: Tensor  # (..., channels, order)
    centred: Tensor  # (..., channels, lookback), around its mean
    power: Tensor  # (..., channels, 1), its sum of squares
    ahead: Tensor  # (..., channels, horizon)


def season_in(pattern: Tensor, phase: Tensor, taps: Tensor, horizon: int) -> Season:
    """The season's pattern in windows whose last steps have the given phase.

    Args:
        pattern: one season, (season, channels).
        phase: number of the last step of each window, modulo the season or not, (...).
        taps: the memory's impulse response, the oldest step of a window first, (lookback, order).
        horizon: number of steps ahead.
    """
    season, lookback = len(pattern), len(taps)
    phase = phase % season
    phases = torch.arange(season, device=phase.device)
    tabulated = not is_open(phase.numel()) and phase.numel() > season  # each phase is computed once
    chosen = phases if tabulated else phase
    steps = torch.arange(1 - lookback, 1 + horizon, device=phase.device)
    rows = pattern.mT[:, (chosen[..., None] + steps) % season].movedim(0, -2)  # (..., channels, lookback + horizon)
    rows = rows - rows[..., lookback - 1 : lookback]
    past, ahead = rows[..., :lookback], rows[..., lookback:]
    centred = past - past.mean(-1, keepdim=True)
    parts = Season(past @ taps, centred, centred.square().sum(-1, keepdim=True), ahead)
    return Season(*(part[phase] for part in parts)) if tabulated else parts


def standard(windows: Tensor, taps: Tensor, prior: Tensor, season: Season | None) -> Standard:
    """The input of the readout for windows: features, the level, and the season ahead.

    Args:
        windows: (..., channels, lookback).
        taps: the memory's impulse response, the oldest step of a window first, (lookback, order).
        prior: how strongly the season's amplitude is pulled towards 1, (channels,).
        season: the season's pattern in these windows; None for no season.
    """
    last = windows[..., -1:]
    changes = windows - last
    features = changes @ taps
    if season is None:
        return Standard(features, last, None)
    prior = prior[:, None]
    fit = ((changes * season.centred).sum(-1, keepdim=True) + prior) / (season.power + prior)
    amplitude = fit.clamp(0, AMPLITUDE)
    return Standard(features - amplitude * season.features, last, amplitude * season.ahead)


def read_out(window: Standard, weight: Tensor) -> Tensor:
    """Forecasts (..., channels, horizon) of windows.

    Args:
        window: its features are (..., channels, order).
        weight: (readouts, horizon, order), with a readout for each channel or one for all.
    """
    channels = window.features.shape[-2]
    changes = torch.einsum("...co,cho->...ch", window.features, weight.expand(channels, -1, -1))
    return window.last + changes if window.ahead is None else window.last + changes + window.ahead


def effect_kernel(weight: Tensor, taps: Tensor | None, lags: int) -> Tensor:
    """The effect of each covariate on each channel, the oldest lag first: (channels, covariates, lags).

    Args:
        weight: for the present value, then for the memory's coefficients, (channels, covariates, 1 + order).
        taps: the impulse response of the memory of covariates, (lags, order); None where it has none.
        lags: number of steps that have an effect.
    """
    present = nn.functional.pad(torch.ones_like(weight[:1, 0, :1]), (lags - 1, 0))
    return weight @ (present if taps is None else torch.cat([present, taps.mT]))


def effect_of(covariates: Tensor, kernel: Tensor) -> Tensor:
    """The effect of covariates on the channels: (..., channels, steps).

    Args:
        covariates: of these steps and of the lags before them, (..., covariates, lags - 1 + steps).
        kernel: (channels, covariates, lags).
    """
    lags = kernel.shape[-1]
    if lags == 1:
        return kernel[..., 0] @ covariates
    if covariates.is_cuda:  # where a convolution may round to TF32
        return torch.einsum("...ksl,ckl->...cs", covariates.unfold(-1, lags, 1), kernel)
    flat = covariates.reshape(-1, *covariates.shape[-2:])
    effects = nn.functional.conv1d(flat, kernel)
    return effects.reshape(*covariates.shape[:-2], *effects.shape[1:])


def spread(windows: Tensor) -> Tensor:
    """The mean absolute deviation of windows (..., time) from their means: (..., 1)."""
    return (windows - windows.mean(-1, keepdim=True)).abs().mean(-1, keepdim=True)


@dataclass(frozen=True, eq=False)
class WindowForecast(Windowed):
    """The next `horizon` values of each channel from a window of the last `lookback`: `plmu.nn.LookbackForecast`.

    The state is the window (batch, lookback, channels) and the position (batch, 2). Arrays stay float64, and are cast
    to the precision of each input once.
    """

    weight: Tensor  # (readouts, horizon, order), with a readout for each channel or one for all
    taps: Tensor  # (lookback, order), the memory's impulse response, the oldest step first
    season_pattern: Tensor  # (season, channels), empty if there is none
    prior: Tensor  # (channels,), which pulls the season's amplitude towards 1
    phase: int  # where in the pattern a sequence begins

    @property
    def horizon(self) -> int:
        return self.weight.shape[1]

    @property
    def lookback(self) -> int:
        return self.taps.shape[0]

    @property
    def season(self) -> int:
        return self.season_pattern.shape[0]

    @property
    def channels(self) -> int:
        return self.season_pattern.shape[1]

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        window, position = self.initial_state(x.shape[0], x.dtype, x.device) if state is None else state
        window, number = pushed(window, x, position), number_of(position, self.phase)
        after = position_after(number, count_after(position, 1))
        out = bounded(self.read(window.mT.to(x.dtype), number), self.nonnegative)
        return out.mT.flatten(1), (window, after)

    def read(self, windows: Tensor, phase: Tensor) -> Tensor:
        """Forecasts (..., channels, horizon) of windows (..., channels, lookback), by the phase of their last steps."""
        return read_out(self.standard(windows, phase), self.cast(windows)["weight"])

    def standard(self, windows: Tensor, phase: Tensor) -> Standard:
        """The input of the readout for windows; arguments as of `read`."""
        arrays = self.cast(windows)
        taps, season = arrays["taps"], None
        if self.season:
            season = season_in(arrays["season_pattern"], phase, taps, self.horizon)
        return standard(windows, taps, arrays["prior"], season)

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return window_state(batch, self.lookback, self.channels, dtype, device)


@dataclass(frozen=True, eq=False)
class CovariateForecast(WindowForecast):
    """`WindowForecast` of what covariates do not explain, plus what they explain of the next steps:
    `plmu.nn.CovariateForecast`.

    The state is that of `WindowForecast`, then the effects (batch, lookback, channels) on its window, and the last
    covariates (batch, lags, covariates).
    """

    effect_weight: Tensor  # (channels, covariates, 1 + order), of the present value and of the memory's coefficients
    lag_taps: Tensor | None  # (lags, order), the impulse response of the memory of covariates
    lags: int
    relative: bool  # whether effects are in units of the mean absolute deviation in the window

    @property
    def covariates(self) -> int:
        return self.effect_weight.shape[1]

    def kernel(self, arrays: dict[str, Tensor] | None = None) -> Tensor:
        """The effect of each covariate on each channel, the oldest lag first: (channels, covariates, lags)."""
        arrays = self.arrays() if arrays is None else arrays
        return effect_kernel(arrays["effect_weight"], arrays.get("lag_taps"), self.lags)

    def _made(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**arrays, "kernel": self.kernel(arrays)}

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        window, position, effects, recent = (
            self.initial_state(x.shape[0], x.dtype, x.device) if state is None else state
        )
        kernel = self.cast(x)["kernel"]
        values, now, future = split_columns(x, self.channels, self.covariates, self.horizon)
        recent = pushed(recent, now, position)
        lagged = recent.mT.to(x.dtype)
        effects = pushed(effects, effect_of(lagged, kernel)[..., 0], position)
        window, number = pushed(window, values, position), number_of(position, self.phase)
        ahead = effect_of(torch.cat([lagged[..., 1:], future], dim=-1), kernel)
        windows, effect = window.mT.to(x.dtype), torch.cat([effects.mT.to(x.dtype), ahead], dim=-1)
        sized = effect * spread(windows) if self.relative else effect
        out = self.read(windows - sized[..., : self.lookback], number) + sized[..., self.lookback :]
        after = position_after(number, count_after(position, 1))
        return bounded(out, self.nonnegative).mT.flatten(1), (window, after, effects, recent)

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        window, position = super().initial_state(batch, dtype, device)
        return window, position, torch.zeros_like(window), window.new_zeros(batch, self.lags, self.covariates)


def split_columns(x: Tensor, channels: int, covariates: int, horizon: int) -> tuple[Tensor, Tensor, Tensor]:
    """Columns (..., all) split into channels, covariates of the step, and covariates ahead (..., covariates,
    horizon)."""
    values, now, future = x.split([channels, covariates, covariates * horizon], dim=-1)
    return values, now, future.unflatten(-1, (horizon, covariates)).mT
