"""Timing for comparisons: all candidates in turn, round after round, so that a busy machine slows all alike."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def medians(candidates: dict[str, Callable[[], object]], *, rounds: int = 9, least: float = 0.02) -> dict[str, float]:
    """Median seconds of one call of each candidate; a candidate that is short is called often enough for `least` s."""
    repeats = {}
    for name, call in candidates.items():
        call()  # builds and caches whatever the first call builds
        start = time.perf_counter()
        call()
        once = time.perf_counter() - start
        repeats[name] = max(1, round(least / max(once, 1e-7)))
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            taken[name].append((time.perf_counter() - start) / repeats[name])
    return {name: sorted(values)[len(values) // 2] for name, values in taken.items()}


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    exact = reference.detach().double()
    return float((value.detach().double() - exact).norm() / exact.norm())
