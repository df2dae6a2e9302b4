"""Models of forecasts: their options, and the LSTM that they are compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plmu.experiments.baselines import lstm
from plmu.experiments.fields import Checked
from plmu.training.config import TrainingConfig

LSTM_TRAINING = TrainingConfig(epochs=10, batch_size=64, learning_rate=3e-3, schedule="cosine", graph=False)


@dataclass
class ClosedModel(Checked):
    """The memory and its readout. What is not given is chosen from the data."""

    lookback: int | None = None
    """Steps that a forecast depends on. Default: 336 or two seasons, or half of the training rows."""
    order: int | None = None
    """Legendre coefficients of the memory. Default: half of the look-back, at most 96."""
    theta: float | None = None
    """The memory's window in steps. Default: the look-back."""
    season: int | None = None
    """Steps of a repeated pattern, such as 24; 0 for none. Default: found by autocorrelation."""
    individual: bool | None = None
    """Whether each column may have a readout of its own. Default: where that helps."""
    strength: float | None = None
    """Of the ridge. Default: chosen."""
    lags: int | None = None
    """Steps of a covariate that its effect depends on. Default: 1, 4 or 48."""


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
    """Steps of a repeated pattern, for the seasonal baseline. Default: found by autocorrelation."""


class WindowLSTM(nn.Module):
    """An LSTM over each column's window, relative to its last value and in units of its spread."""

    def __init__(self, hidden: int, horizon: int, lookback: int) -> None:
        super().__init__()
        self.lookback = lookback
        self.recurrent = lstm(1, hidden)
        self.out = nn.Linear(hidden, horizon)

    def forward(self, windows: Tensor) -> Tensor:
        """(some, channels, length) to (some, channels, horizon)."""
        windows = windows[..., -self.lookback :]
        last = windows[..., -1:]
        spread = (windows - last).square().mean(-1, keepdim=True).sqrt()
        spread = torch.where(spread > 0, spread, 1.0)
        x = ((windows - last) / spread).flatten(0, 1)[..., None]
        states, _ = self.recurrent(x)
        forecast: Tensor = last + spread * self.out(states[:, -1]).unflatten(0, windows.shape[:2])
        return forecast


def equal_size(parameters: int, horizon: int) -> int:
    """The units of a `WindowLSTM` with about so many parameters."""
    # 4 h (h + 3) of the LSTM and (h + 1) horizon of the output, in h
    linear, constant = 12 + horizon, horizon - parameters
    return max(1, round((-linear + math.sqrt(linear**2 - 16 * min(constant, 0))) / 8))
