"""A table of measurements for tests of forecasts."""

from typing import Any

import numpy as np

COUNT = 360


def values(count: int = COUNT) -> Any:
    """A day of 12 steps, a slow wave and noise: (count, 2)."""
    k, rng = np.arange(count), np.random.default_rng(0)
    load = 50 + 10 * np.sin(2 * np.pi * k / 12) + 3 * np.sin(k / 50) + rng.standard_normal(count)
    return np.stack([load, 15 + 4 * np.cos(2 * np.pi * k / 12) + rng.standard_normal(count)], axis=1).round(3)


def written(count: int = COUNT, first: int = 0) -> str:
    times = np.datetime64("2024-01-01T00:00") + 120 * np.arange(first, count)
    rows = zip(times, values(count)[first:].tolist(), strict=True)
    return "\n".join(["time,load,temp", *(f"{str(t).replace('T', ' ')},{a},{b}" for t, (a, b) in rows), ""])
