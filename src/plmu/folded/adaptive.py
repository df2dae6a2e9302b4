"""Classical forecasts of a window, averaged by their errors within the window.

Exponential smoothing at several rates continues several shares of the window's linear trend. Each of these forecasts is
made again at the last origins of the window; the smaller its errors there, the more it counts. All of them are linear
in the window, so that two constant matrices give errors and forecasts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

RATES = (0.2, 0.4, 0.6, 0.8, 1.0)  # of exponential smoothing
SLOPES = (0.0, 0.5, 1.0)  # shares of the linear trend that are continued: 0.5 is the method Theta
ORIGINS = 6  # steps before the end at which forecasts are made again, at most
LEAST = 4  # values before the first of these
FLOOR = 0.02  # added to each mean error, in mean changes from step to step
_CPU = torch.device("cpu")


class Tables(NamedTuple):
    """Constant matrices for changes (lookback − 1,) relative to the last value."""

    errors: Tensor  # (lookback − 1, options · pairs): errors at pairs of an origin and a later step
    ahead: Tensor  # (lookback − 1, horizon · options): forecasts, relative to the last value


def options() -> list[tuple[float, float]]:
    """The rate and the share of the trend of each forecast."""
    return [(rate, slope) for rate in RATES for slope in SLOPES]


def classical(size: int, rate: float, slope: float, horizon: int) -> Tensor:
    """The weights (size − 1, horizon), in float64, of changes from the last value in exponential smoothing with a share
    of the linear trend.

    Args:
        size: number of values. The smoothing begins with the first one.
        rate: of the smoothing; 1 is the last value.
        slope: share of the trend.
        horizon: number of steps ahead.
    """
    age = torch.arange(size - 1, -1, -1, dtype=torch.float64)
    smoothing = rate * (1 - rate) ** age
    smoothing[0] += (1 - rate) ** size
    centred = (size - 1) / 2 - age
    trend = centred / centred.square().sum()
    late = (smoothing * age).sum()  # steps by which the smoothed level is late
    ahead = torch.arange(1, horizon + 1) + late
    return (smoothing[:, None] + slope * trend[:, None] * ahead)[:-1]


@lru_cache(maxsize=64)
def tables(lookback: int, horizon: int, device: torch.device = _CPU) -> Tables:
    """The matrices for a look-back, in float64; in float32 on MPS. Without room for an origin the errors are 0."""
    errors = []
    for rate, slope in options():
        for back in range(1, max(1, min(ORIGINS, lookback - LEAST)) + 1):
            origin, steps = lookback - 1 - back, min(back, horizon)
            rows = torch.zeros(lookback, steps, dtype=torch.float64)
            if lookback - back >= LEAST:
                weights = classical(origin + 1, rate, slope, steps)
                rows[:origin] = weights
                rows[origin] = 1 - weights.sum(0)
                rows[origin + 1 :][:steps] -= torch.eye(back, steps, dtype=torch.float64)[:steps]
            errors.append(rows[:-1])
    ahead = torch.stack([classical(lookback, rate, slope, horizon) for rate, slope in options()], dim=2)
    place = device, torch.float32 if device.type == "mps" else torch.float64
    return Tables(torch.cat(errors, dim=1).to(*place), ahead.flatten(1).to(*place))


def adaptive(power: int, matrices: Tables, changes: Tensor, pace: Tensor) -> Tensor:
    """The mean of the forecasts (..., horizon), relative to the last value.

    Args:
        power: of the errors by which they are weighted.
        matrices: `tables`, in the precision of the changes.
        changes: relative to the last value, (..., lookback − 1).
        pace: mean absolute change from step to step, (..., 1).
    """
    count = len(options())
    errors = (changes @ matrices.errors).abs().unflatten(-1, (count, -1)).mean(-1)
    weights = torch.softmax(-power * (errors / pace + FLOOR).log(), dim=-1)
    ahead = (changes @ matrices.ahead).unflatten(-1, (-1, count))
    mean: Tensor = (ahead * weights[..., None, :]).sum(-1)
    return mean
