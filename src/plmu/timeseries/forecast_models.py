"""Models of forecasts: their options, and the LSTM that they are compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plmu.nn.lstm import open_forget_gates
from plmu.runs.fields import Checked
from plmu.training.config import TrainingConfig

LSTM_TRAINING = TrainingConfig(epochs=10, batch_size=64, learning_rate=3e-3, schedule="cosine", graph=False)


@dataclass
class ClosedModel(Checked):
    """The memory and its readout. Options that are not given are chosen from the data."""

    lookback: int | None = None
    """Steps that a forecast depends on. Default: 336 or two seasons, or half of the training rows; of a single series
    the best of several."""
    order: int | None = None
    """Legendre coefficients of the memory. Default: half of the look-back, at most 96."""
    theta: float | None = None
    """The memory's window in steps. Default: the look-back."""
    season: int | None = None
    """Seasonal period in steps, such as 24; 0 for none. Default: detected by autocorrelation."""
    individual: bool | None = None
    """Whether each column may have a readout of its own. Default: where that helps."""
    alpha: float | None = None
    """Regularisation of the ridge regression. Default: chosen."""
    lags: int | None = None
    """Steps of a covariate that its effect depends on. Default: 1, 4 or 48."""
    calendar: bool = True
    """Whether a seasonal profile of the week and the year is tried, where there are two years of days or weeks."""
    nonnegative: bool | None = None
    """Whether forecasts and intervals are at least 0. Default: those of columns without a value below 0."""
    pooled: bool | None = None
    """Whether a mean of members is taken, relative to the level of each series, instead of a memory. Default:
    chosen."""


@dataclass
class GradientModel(ClosedModel):
    """The same, trained further by gradients."""


@dataclass
class LSTMModel(Checked):
    """An LSTM over the window of each column, as large as our model."""

    lookback: int | None = None
    """Steps that a forecast depends on. Default: that of our model."""
    hidden: int | None = None
    """Units. Default: as many as give the number of parameters of our model."""
    season: int | None = None
    """Seasonal period in steps, for the seasonal baseline. Default: detected by autocorrelation."""


class WindowLSTM(nn.Module):
    """An LSTM over each column's window, relative to its last value and in units of its spread.

    Covariates of the same steps are further inputs, in units of their scale. Those of the steps ahead add to the
    forecast of their step, relative to the last ones in the window.

    Args:
        hidden: units.
        horizon: how many steps ahead.
        lookback: steps of a window.
        scale: of covariates, (covariates,).
    """

    scale: Tensor | None

    def __init__(self, hidden: int, horizon: int, lookback: int, scale: Tensor | None = None) -> None:
        super().__init__()
        self.lookback, self.horizon = lookback, horizon
        self.register_buffer("scale", scale)
        self.recurrent = open_forget_gates(nn.LSTM(1 if scale is None else 1 + len(scale), hidden, batch_first=True))
        self.out = nn.Linear(hidden, horizon)
        self.effect = None if scale is None else nn.Parameter(torch.zeros(len(scale)))

    def forward(self, windows: Tensor, covariates: Tensor | None = None) -> Tensor:
        """Forecasts (windows, channels, horizon) of windows (windows, channels, length), with covariates (windows,
        covariates, length + horizon) if there are any."""
        windows = windows[..., -self.lookback :]
        last = windows[..., -1:]
        spread = (windows - last).square().mean(-1, keepdim=True).sqrt()
        spread = torch.where(spread > 0, spread, 1.0)
        x = ((windows - last) / spread)[..., None]
        added: Tensor | float = 0.0
        if covariates is not None and self.scale is not None and self.effect is not None:
            scaled = covariates[..., -self.lookback - self.horizon :] / self.scale[:, None]
            scaled = (scaled - scaled[..., self.lookback - 1, None]).mT[:, None]  # (windows, 1, steps, covariates)
            past, ahead = scaled.split([self.lookback, self.horizon], dim=2)
            x = torch.cat([x, past.expand(*x.shape[:3], -1)], dim=3)
            added = ahead @ self.effect
        states, _ = self.recurrent(x.flatten(0, 1))
        forecast: Tensor = last + spread * (self.out(states[:, -1]).unflatten(0, windows.shape[:2]) + added)
        return forecast


def equal_size(parameters: int, horizon: int, covariates: int = 0) -> int:
    """The units of a `WindowLSTM` with about this number of parameters."""
    # 4 h (h + 3 + covariates) of the LSTM, (h + 1) horizon of the output and the covariates' effects, in h
    linear, constant = 12 + 4 * covariates + horizon, horizon + covariates - parameters
    return max(1, round((-linear + math.sqrt(linear**2 - 16 * min(constant, 0))) / 8))
