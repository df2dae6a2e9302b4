"""Seasons: their period, their profile, and the phase at which a series begins."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_LONGEST = 1024  # longest period that is considered, in steps
_ROWS = 2**15  # rows of a series that are considered
_STEPS = (1, 8)  # steps over which changes are taken
_CANDIDATES = 8  # periods that are compared, for each of these steps
_CLEAR = 0.05  # share of the changes that a season must explain
_APART = (1, 3, 13, 61, 257)  # steps of explained changes: hardly any period divides them, or it would not change
_NEARLY = 0.1  # share by which a shorter period may explain less
_REPEATS = 4  # periods that a series must have
_SERIES = 64  # series that are considered
_SHARE = 0.5  # of these, which must have that many periods
_PARTS = (2, 3, 5, 7)  # into which the best period is divided
_USUAL = (4, 7, 12, 24, 48, 52, 96, 144, 168, 365)  # periods of calendars and clocks, which are compared in any case
_AMPLITUDES = (0.3, 0.6, 1.0)  # of a pattern: a smaller one has less of its noise
_CHANCE = 0.5, 3.0  # times √period / rows: what noise may explain, with a usual period or another
_NEAR = 0.05  # of a period: the best of such neighbours is taken
CALENDARS = {"day": (7, 365.2425), "weekday": (5, 260.8875), "week": (1, 52.1775)}  # rows of a week and of a year
_HARMONICS = 3  # of the profile of a year
_YEARS = 2  # years of rows that it takes
_DRIFT = 2e-3  # largest relative difference of the length of a pattern from an integer number of years


def period(series: Sequence[Tensor]) -> int:
    """The seasonal period, in steps, that explains most of the changes of series (channels, time); 0 for none. Of
    several that explain nearly as much it is the shortest, so it is no multiple of the true one, and of neighbours that
    of a calendar or a clock.

    Candidates are the lags of peaks of the autocorrelation, over all series, and their parts; usual periods; and parts
    and neighbours of the best of these. The pattern of each is measured on the first half of each series and compared
    on its second. It must explain more than noise might. At least half of the series that are long enough for any
    period have four of it.
    """
    sample = _sample(series)
    lengths = sorted(values.shape[1] for values in sample if values.shape[1] >= 2 * _REPEATS)
    longest = lengths[int(_SHARE * (len(lengths) - 1))] // _REPEATS if lengths else 0
    peaks = {lag for apart in _STEPS for lag in _peaks(sample, apart, min(_LONGEST, longest))}
    candidates = {lag // part for lag in peaks for part in (1, 2, 3) if lag >= 2 * part}
    candidates |= {steps for steps in _USUAL if steps <= longest}
    explained: dict[int, float] = {}
    best = 0
    while candidates - explained.keys():
        explained |= {steps: _explained(sample, steps) for steps in candidates - explained.keys()}
        best = max(explained, key=lambda steps: explained[steps] - _chance(sample, steps))
        if explained[best] <= _CLEAR + _chance(sample, best):
            return 0
        candidates = {best - 1, best + 1, *(best // part for part in _PARTS if best % part == 0)} - {0, 1, longest + 1}
    if not best:
        return 0
    long = [values for values in sample if values.shape[1] >= _REPEATS * best]  # all candidates fit into these
    explained = {steps: _explained(long, steps) for steps in explained if steps <= best * (1 + _NEAR)}
    enough = (1 - _NEARLY) * explained[best] - _chance(long, best)
    shortest = min(steps for steps, share in explained.items() if share >= enough)
    near = [steps for steps in explained if abs(steps - shortest) <= _NEAR * shortest and explained[steps] >= enough]
    return max(near, key=lambda steps: (steps in _USUAL, explained[steps]))


def _chance(series: Sequence[Tensor], steps: int) -> float:
    """The share of the changes that a pattern of noise might explain."""
    rows = sum(values.numel() // 2 for values in series if values.shape[1] >= _REPEATS * steps)
    return _CHANCE[steps not in _USUAL] * math.sqrt(steps) / max(rows, 1)


def _sample(series: Sequence[Tensor]) -> list[Tensor]:
    """Series that are considered, evenly spread over all: at most `_SERIES`, of each at most the last `_ROWS` rows."""
    places = [round(place) for place in torch.linspace(0, len(series) - 1, min(len(series), _SERIES)).tolist()]
    rows = max(_ROWS // len(places), _LONGEST * _REPEATS)
    return [series[place][:, -rows:].double() for place in places]


def _peaks(series: Sequence[Tensor], apart: int, longest: int) -> list[int]:
    """The lags, of at most `longest` steps, of the highest peaks of the autocorrelation of changes over `apart` steps;
    each series counts for the lags that it has `_REPEATS` times, by its rows."""
    total, weight = torch.zeros(_LONGEST + 1, dtype=torch.float64), torch.zeros(_LONGEST + 1, dtype=torch.float64)
    for values in series:
        time = values.shape[1] - apart
        reach = min(longest, time // _REPEATS)
        if reach < 3:
            continue
        changes = values[:, apart:] - values[:, :-apart]
        changes = changes - changes.mean(1, keepdim=True)
        size = 1 << (2 * time - 1).bit_length()
        correlation = torch.fft.irfft(torch.fft.rfft(changes, size).abs().square(), size)[:, : reach + 1]
        moving = correlation[:, 0] > 0
        if bool(moving.any()):
            total[: reach + 1] += time * (correlation[moving] / correlation[moving, :1]).mean(0)
            weight[: reach + 1] += time
    mean = total[weight > 0] / weight[weight > 0]
    if len(mean) < 4:
        return []
    inner = mean[2:-1]
    peaks = torch.where((inner >= mean[1:-2]) & (inner > mean[3:]), inner, 0.0)
    highest = peaks.topk(min(_CANDIDATES, len(peaks))).indices
    return [2 + int(lag) for lag in highest if peaks[lag] > 0]


def _explained(series: Sequence[Tensor], steps: int) -> float:
    """The share of the changes in the second halves of series that the patterns of their first halves explain, by
    their rows, with the amplitude that explains most; those with fewer than `_REPEATS` periods do not count."""
    shares, rows = [0.0] * len(_AMPLITUDES), 0
    for values in series:
        half = values.shape[1] // 2
        if values.shape[1] < _REPEATS * steps:
            continue
        shape = pattern([values[:, :half]], steps).double()[torch.arange(half, values.shape[1]) % steps].mT
        for place, amplitude in enumerate(_AMPLITUDES):
            shares[place] += values.shape[1] * (1 - _unexplained(values[:, half:], amplitude * shape))
        rows += values.shape[1]
    return max(shares) / max(rows, 1)


def _unexplained(values: Tensor, pattern: Tensor) -> float:
    """The share of the changes of series (channels, time), over `_APART` steps, that the pattern does not explain."""
    shares = []
    for apart in _APART:
        if apart <= values.shape[1] // 2:
            changes, expected = (rows[:, apart:] - rows[:, :-apart] for rows in (values, pattern))
            total = changes.square().sum(1)
            rest = (changes - expected).square().sum(1)
            shares.append(torch.where(total > 0, rest / total, 1.0))
    return float(torch.stack(shares).mean(0).clamp(max=1).mean()) if shares else 1.0  # a channel may have no season


def pattern(series: Sequence[Tensor], steps: int, starts: Sequence[int] | None = None) -> Tensor:
    """The mean seasonal profile (steps, channels) of series (channels, time), with mean 0. `starts` are the numbers of
    the first steps of the series, which tell their phase. Phases without rows are 0."""
    channels = series[0].shape[0]
    total = torch.zeros(steps, channels, dtype=torch.float64)
    count = torch.zeros(steps, 1, dtype=torch.float64)
    for rows, start in zip(series, starts or [0] * len(series), strict=True):
        phase = (torch.arange(rows.shape[1]) + start) % steps
        level = rows.double().mean(1, keepdim=True) if len(series) > 1 else 0.0  # each series has its own
        total.index_add_(0, phase, (rows.double() - level).mT)
        count.index_add_(0, phase, torch.ones(rows.shape[1], 1, dtype=torch.float64))
    mean = total / count.clamp(min=1)
    covered = count[:, 0] > 0
    return torch.where(covered[:, None], mean - mean[covered].mean(0), 0.0).float()


def has_years(rows: int, calendar: str) -> bool:
    """Whether a series with this number of rows is long enough for a profile of the year."""
    return calendar in CALENDARS and rows >= _YEARS * CALENDARS[calendar][1]


def calendar_patterns(series: Sequence[Tensor], calendar: str, starts: Sequence[int]) -> list[Tensor]:
    """A list with the profile (steps, channels) of the week plus a smooth one of the year; empty where no series has
    two years. Its length is a number of weeks that is close to a number of years.

    Args:
        series: (channels, time); levels and trends are taken out.
        calendar: what a row is: "day", "weekday" or "week".
        starts: the numbers of the first steps of the series.
    """
    if not has_years(max(rows.shape[1] for rows in series), calendar):
        return []
    week, year = CALENDARS[calendar]
    weekly = pattern(series, week, starts).double()
    gram = torch.zeros(2 * _HARMONICS, 2 * _HARMONICS, dtype=torch.float64)
    cross = torch.zeros(2 * _HARMONICS, series[0].shape[0], dtype=torch.float64)
    for values, start in zip(series, starts, strict=True):
        rows = torch.arange(values.shape[1])
        rest = values.double().mT - weekly[(rows + start) % week]
        trend = torch.stack([torch.ones(len(rows)), rows / len(rows)], dim=1).double()
        both = torch.cat([_waves(rows + start, year), rest], dim=1)
        both = both - trend @ torch.linalg.lstsq(trend, both).solution
        waves, rest = both.split([2 * _HARMONICS, rest.shape[1]], dim=1)
        gram += waves.mT @ waves
        cross += waves.mT @ rest
    weights = torch.linalg.solve(gram, cross)
    lengths = [(round(years * year / week) * week, years * year) for years in range(1, 7)]
    steps, exact = next((weeks, years) for weeks, years in lengths if abs(weeks - years) <= _DRIFT * years)
    rows = torch.arange(steps)
    return [(weekly[rows % week] + _waves(rows * exact / steps, year) @ weights).float()]


def _waves(rows: Tensor, year: float) -> Tensor:
    """Sines and cosines (rows, 2 · harmonics) of a year."""
    angles = 2 * torch.pi * torch.outer(rows.double() / year, torch.arange(1, 1 + _HARMONICS, dtype=torch.float64))
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def aligned(values: Tensor, shape: Tensor) -> int:
    """The phase, from 0 to steps - 1, of the first of `values` (time, channels) at which these agree best with the
    pattern `shape` (steps, channels)."""
    steps = shape.shape[0]
    values = values - values.mean(0)
    sums = torch.zeros(steps, values.shape[1])
    sums.index_add_(0, torch.arange(len(values)) % steps, values)
    count = torch.zeros(steps).index_add_(0, torch.arange(len(values)) % steps, torch.ones(len(values)))
    energy = _correlation(count[:, None], shape.square().sum(1, keepdim=True))
    return int((_correlation(sums, shape) - energy / 2).argmax())


def _correlation(sums: Tensor, shape: Tensor) -> Tensor:
    """The circular correlation (steps,) of sums by phase (steps, channels) with the pattern (steps, channels), for each
    phase at which the values may begin."""
    spectra = torch.fft.rfft(sums.double(), dim=0).conj() * torch.fft.rfft(shape.double(), dim=0)
    correlation: Tensor = torch.fft.irfft(spectra.sum(1), sums.shape[0])
    return correlation
