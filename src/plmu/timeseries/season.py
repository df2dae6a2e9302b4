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
CALENDARS = {"day": (7, 365.2425), "weekday": (5, 260.8875), "week": (1, 52.1775)}  # rows of a week and of a year
_HARMONICS = 3  # of the course over a year
_YEARS = 2  # of rows that it takes
_DRIFT = 2e-3  # of a year: by which the rows of a pattern may differ from whole years


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


def has_years(rows: int, calendar: str) -> bool:
    """Whether so many rows tell a course over the year."""
    return calendar in CALENDARS and rows >= _YEARS * CALENDARS[calendar][1]


def calendar_patterns(series: Sequence[Tensor], calendar: str, starts: Sequence[int]) -> list[Tensor]:
    """The course (steps, channels) of series (channels, time) over the week, plus a smooth one over the year; nothing
    where no series has two years. The steps are whole weeks that are close to whole years.

    Args:
        series: of which level and trend do not count.
        calendar: what a row is: "day", "weekday" or "week".
        starts: the numbers of their first steps.
    """
    if not has_years(max(one.shape[1] for one in series), calendar):
        return []
    week, year = CALENDARS[calendar]
    weekly = pattern(series, week, starts).double()
    gram = torch.zeros(2 * _HARMONICS, 2 * _HARMONICS, dtype=torch.float64)
    cross = torch.zeros(2 * _HARMONICS, series[0].shape[0], dtype=torch.float64)
    for one, start in zip(series, starts, strict=True):
        rows = torch.arange(one.shape[1])
        rest = one.double().mT - weekly[(rows + start) % week]
        trend = torch.stack([torch.ones(len(rows)), rows / len(rows)], dim=1).double()
        both = torch.cat([_waves(rows + start, year), rest], dim=1)
        both = both - trend @ torch.linalg.lstsq(trend, both).solution
        waves, rest = both.split([2 * _HARMONICS, rest.shape[1]], dim=1)
        gram += waves.mT @ waves
        cross += waves.mT @ rest
    weights = torch.linalg.solve(gram, cross)
    lengths = [(round(years * year / week) * week, years * year) for years in range(1, 7)]
    steps, exact = next(one for one in lengths if abs(one[0] - one[1]) <= _DRIFT * one[1])
    rows = torch.arange(steps)
    return [(weekly[rows % week] + _waves(rows * exact / steps, year) @ weights).float()]


def _waves(rows: Tensor, year: float) -> Tensor:
    """Sines and cosines (rows, 2 · harmonics) of a year."""
    angles = 2 * torch.pi * torch.outer(rows.double() / year, torch.arange(1, 1 + _HARMONICS, dtype=torch.float64))
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def aligned(values: Tensor, shape: Tensor) -> int:
    """The phase at which values (time, channels) begin that agrees best with the pattern (steps, channels)."""
    steps = shape.shape[0]
    values = values - values.mean(0)
    sums = torch.zeros(steps, values.shape[1])
    sums.index_add_(0, torch.arange(len(values)) % steps, values)
    count = torch.zeros(steps).index_add_(0, torch.arange(len(values)) % steps, torch.ones(len(values)))
    energy = _correlation(count[:, None], shape.square().sum(1, keepdim=True))
    return int((_correlation(sums, shape) - energy / 2).argmax())


def _correlation(seen: Tensor, shape: Tensor) -> Tensor:
    """What was seen at each phase, counted from the beginning, times the pattern from every phase: (steps,)."""
    spectra = torch.fft.rfft(seen.double(), dim=0).conj() * torch.fft.rfft(shape.double(), dim=0)
    found: Tensor = torch.fft.irfft(spectra.sum(1), seen.shape[0])
    return found
