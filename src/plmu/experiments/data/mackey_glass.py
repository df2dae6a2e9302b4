"""The Mackey-Glass series of the LMU papers: chaotic, generated, the same numbers on every machine."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from plmu.data.cache import Array, cached

TAU = 17
SUBSTEPS = 10  # Euler steps per sample
SERIES, LENGTH, HORIZON, WASHOUT = 128, 5000, 15, 100


def generate(series: int, length: int, seed: int = 0) -> Array:
    """Samples (series, length) of tanh(x − 1), where dx/dt = 0.2 x(t−τ) / (1 + x(t−τ)^10) − 0.1 x.

    Each series starts from a random history; x starts at 1.2 and continues from one series to the next. The system is
    chaotic, so the order of the arithmetic is part of the definition: plain Python numbers, one Euler step at a time.
    """
    generator = np.random.RandomState(seed)  # the published series come from this one
    delay = TAU * SUBSTEPS
    x = 1.2
    samples = np.empty((series, length))
    for number in range(series):
        past = (1.2 + 0.2 * (generator.rand(delay) - 0.5)).tolist()
        row = []
        position = 0  # in `past`, a ring of the last `delay` values, of the oldest
        for _ in range(length):
            for _ in range(SUBSTEPS):
                delayed = past[position]
                past[position] = x
                x = x + (0.2 * delayed / (1.0 + delayed**10) - 0.1 * x) / SUBSTEPS
                position += 1
                if position == delay:
                    position = 0
            row.append(x)
        samples[number] = row
    return np.tanh(samples - 1)


def prediction_task() -> tuple[tuple[Tensor, Tensor], ...]:
    """Train (32 series), valid (32) and test (64): inputs and targets 15 steps ahead, each (series, 5000, 1)."""
    values = _cached()[:, WASHOUT:]
    values = values - values.mean()
    x = torch.from_numpy(values[:, :-HORIZON, None]).float()
    y = torch.from_numpy(values[:, HORIZON:, None]).float()
    return (x[:32], y[:32]), (x[32:64], y[32:64]), (x[64:], y[64:])


def _cached() -> Array:
    """The series, through the cache: generating them takes a few seconds."""
    series, length = SERIES, WASHOUT + LENGTH + HORIZON

    def parse(arrays: dict[str, Array]) -> Array:
        """The cached series; ValueError, upon which `cached` makes them again, if they are of another size."""
        values = arrays["series"]
        if values.shape != (series, length) or values.dtype != np.float64:
            raise ValueError(f"{values.shape} numbers instead of {(series, length)}")
        return values

    settings = {"series": series, "length": length, "version": 1}
    return cached("mackey-glass", [], settings, lambda: {"series": generate(series, length)}, parse)
