"""Repeated patterns: how long they are, what they look like, and where in them a series is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_LONGEST = 1024  # steps of a season that is looked for
_ROWS = 2**15  # rows of a series that are looked at
_CANDIDATES = 8  # lengths that are compared, of the changes over each of these steps
_STEPS = (1, 8)
_CLEAR = 0.05  # share of the changes that a season must explain
_REPEATS = 4  # that a series must have


def period(series: Sequence[Tensor]) -> int:
    """How many steps the season of series (channels, time) has that explains most of their changes; 0 for none.

    Candidates are peaks of the autocorrelation. The pattern of each is measured on the first half of the longest
    series and compared on the second.
    """
    longest = max(series, key=lambda one: one.shape[1])[:, -_ROWS:].double()
    half = longest.shape[1] // 2
    found, best = 0, 1.0 - _CLEAR
    peaks = {steps for apart in _STEPS for steps in _peaks(longest, apart)}
    for steps in sorted({steps // part for steps in peaks for part in (1, 2, 3) if steps >= 2 * part}):
        shape = pattern([longest[:, :half]], steps).double()
        phase = torch.arange(half, longest.shape[1]) % steps
        left = _unexplained(longest[:, half:], shape[phase].mT)
        if left < best:
            found, best = steps, left
    return found


def _peaks(values: Tensor, apart: int) -> list[int]:
    """The lags of the highest peaks of the autocorrelation of changes over so many steps."""
    time = values.shape[1] - apart
    reach = min(_LONGEST, time // _REPEATS)
    if reach < 3:
        return []
    changes = values[:, apart:] - values[:, :-apart]
    changes = changes - changes.mean(1, keepdim=True)
    size = 1 << (2 * time - 1).bit_length()
    correlation = torch.fft.irfft(torch.fft.rfft(changes, size).abs().square(), size)[:, : reach + 1]
    moving = correlation[:, 0] > 0
    if not bool(moving.any()):
        return []
    mean = (correlation[moving] / correlation[moving, :1]).mean(0)
    inner = mean[2:-1]
    peaks = torch.where((inner >= mean[1:-2]) & (inner > mean[3:]), inner, 0.0)
    highest = peaks.topk(min(_CANDIDATES, len(peaks))).indices
    return [2 + int(one) for one in highest if peaks[one] > 0]


def _unexplained(values: Tensor, pattern: Tensor) -> float:
    """The share of the changes of series (channels, time), over 1, 4, 16 … steps, that is left without the pattern."""
    shares = []
    for power in range(0, 10, 2):
        apart = 2**power
        if apart < values.shape[1]:
            changes, expected = (one[:, apart:] - one[:, :-apart] for one in (values, pattern))
            total = changes.square().sum(1)
            left = (changes - expected).square().sum(1)
            shares.append(torch.where(total > 0, left / total, 1.0))
    return float(torch.stack(shares).mean(0).clamp(max=1).mean()) if shares else 1.0  # a channel may have no season


def pattern(series: Sequence[Tensor], steps: int, starts: Sequence[int] | None = None) -> Tensor:
    """The mean course (steps, channels) of series (channels, time) over a season, around zero; `starts` are the
    numbers of their first steps."""
    channels = series[0].shape[0]
    total = torch.zeros(steps, channels, dtype=torch.float64)
    count = torch.zeros(steps, 1, dtype=torch.float64)
    for one, start in zip(series, starts or [0] * len(series), strict=True):
        phase = (torch.arange(one.shape[1]) + start) % steps
        level = one.double().mean(1, keepdim=True) if len(series) > 1 else 0.0  # each series has its own
        total.index_add_(0, phase, (one.double() - level).mT)
        count.index_add_(0, phase, torch.ones(one.shape[1], 1, dtype=torch.float64))
    mean = total / count.clamp(min=1)
    seen = count[:, 0] > 0
    return torch.where(seen[:, None], mean - mean[seen].mean(0), 0.0).float()


def aligned(values: Tensor, shape: Tensor) -> int:
    """The phase at which values (time, channels) begin that agrees best with the pattern (steps, channels)."""
    steps = shape.shape[0]
    values = values - values.mean(0)
    sums = torch.zeros(steps, values.shape[1])
    sums.index_add_(0, torch.arange(len(values)) % steps, values)
    # Correlation of what was seen at each phase, counted from the beginning, with the pattern from every phase.
    count = torch.zeros(steps).index_add_(0, torch.arange(len(values)) % steps, torch.ones(len(values)))
    index = (torch.arange(steps)[:, None] + torch.arange(steps)) % steps  # (phase of the beginning, step)
    agreement = torch.einsum("kc,pkc->p", sums, shape[index])
    energy = torch.einsum("k,pkc->p", count, shape[index].square())
    return int((agreement - energy / 2).argmax())
