"""The clock that the times of series have; and times that are written in other ways than ISO 8601."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmu.clock import DAY, MICROSECONDS, MONTHS, NEAR, Clock, plain
from plmu.errors import DataError

_STRAY = 0.02  # share of rows that may be closer together than months are
_JITTER = 0.05  # of a step: by which the median distance of jittering times may be off at most


def step_of(clock: Clock, time: str) -> int:
    """The step of a time that is written in any of the ways that files of tables have.

    Args:
        clock: of the data.
        time: text. It is converted from its time zone to that of the clock.

    Raises:
        ValueError: the text is not a time, or one that is off the grid.
    """
    try:
        return clock.step_of(time)
    except ValueError:
        if clock.kind in ("rows", "numbers"):
            raise
    import polars as pl

    from plmu.timeseries.tables import dates

    parsed, wrong, _ = dates.parse(pl.Series([time]), clock.day_first)
    if len(wrong) or parsed.has_nulls():
        raise ValueError(f"{time[:60]!r} is not a date or time")
    stamp = parsed.to_numpy().astype("datetime64[us]")[0]
    return clock.step_of_date(stamp, zoned=dates.zone(pl.Series([time])) is not None)


def find_clock(groups: list[NDArray[Any]], step: str | None = None) -> Clock:
    """The clock of one or several series: steps are months, quarters or years, weekdays, or else the median distance.

    Args:
        groups: the sorted times of each series, datetime64[us] or float64.
        step: the length of a step, "15min", "1h", "1d", "1mo" or a number; by default detected.
    """
    first = min((times[0] for times in groups if len(times)), default=None)
    if first is None:
        return Clock()
    dates = np.issubdtype(groups[0].dtype, np.datetime64)
    origin = float(plain(np.array([first]))[0])
    if step is not None:
        return _on_days(_of_step(step, dates, origin), groups)
    apart = np.concatenate([np.diff(plain(times)) for times in groups])
    apart = apart[apart > 0]
    if not len(apart):
        return Clock("time", origin, float(DAY)) if dates else Clock("numbers", origin, 1.0)
    median = float(np.median(apart))
    if not dates:
        return Clock("numbers", origin, _refined(max(groups, key=len), median))
    if median < DAY:
        return Clock("time", origin, _rounded(median, apart))
    days = np.unique(np.concatenate([times.astype("datetime64[D]") for times in groups]))
    for months, (low, high) in {1: (27.9, 31.1), 3: (89.5, 92.6), 6: (180.5, 184.5), 12: (364.5, 366.5)}.items():
        closer = (apart < low * DAY).mean()
        if low * DAY <= median <= high * DAY and len(days) > 2 and closer <= _STRAY:
            following = (days + 1).astype("datetime64[M]") != days.astype("datetime64[M]")
            return Clock("months", origin, float(months), bool(following.all()))
    if median == DAY and len(days) >= 10 and np.is_busday(days).all():
        return Clock("weekdays", origin, 1.0)
    return Clock("time", origin, _rounded(median, apart))


def _refined(times: NDArray[Any], median: float) -> float:
    """The step of times that are numbers: their mean distance if they lie on its grid and the median one is rounded, as
    0.041667 is for 1/24; else the median."""
    place = (times - times[0]) / median
    steps = np.rint(place[-1])
    mean = median * float(place[-1] / steps) if steps else median
    drift = np.abs((times - times[0]) / mean - np.rint((times - times[0]) / mean)).max()
    return mean if abs(place[-1] - steps) > 1e-6 * steps and drift < NEAR else median


def _rounded(median: float, apart: NDArray[np.float64]) -> float:
    """The median distance of jittering times, rounded to a multiple of the longest unit that its uncertainty allows."""
    jitter = float(np.median(np.abs(apart - median)))  # the median's standard error is 1.9 jitter / √count
    tolerance = min(6 * jitter / len(apart) ** 0.5, _JITTER * median)
    for size in reversed(MICROSECONDS.values()):
        if (near := round(median / size) * size) and abs(near - median) <= tolerance:
            return float(near)
    return median


def _on_days(clock: Clock, groups: list[NDArray[Any]]) -> Clock:
    """The clock with steps that begin at midnight, weeks on Mondays and months on their first days, where rows are
    closer than its steps."""
    if clock.kind == "months":
        several = any((np.diff(clock.steps(times)) == 0).any() for times in groups)
        return replace(clock, first=float(clock.begins(np.array([0]))[0])) if several else clock
    if clock.kind != "time":
        return clock
    places = [(plain(times) - clock.first) / clock.step for times in groups if len(times)]
    if all((np.abs(place - np.rint(place)) < NEAR).all() for place in places):
        return clock
    weeks = clock.step % MICROSECONDS["w"] == 0
    day = np.datetime64(int(clock.first), "us").astype("datetime64[D]")
    begin = float(plain(np.array([np.datetime64(day, "W") - np.timedelta64(3, "D") if weeks else day]))[0])
    return replace(clock, first=begin + (clock.first - begin) // clock.step * clock.step)


def _of_step(step: str, dates: bool, origin: float) -> Clock:
    """The clock with the step of --data.step, such as "15 minutes" or "2", from the time `origin`."""
    match = re.fullmatch(r"\s*(\d*\.?\d*)\s*([a-z]*)\s*", step.lower())
    unit = match[2].removesuffix("s") if match and match[2] not in ("s", "us", "ms") else (match[2] if match else "")
    unit = {"m": "min", "minute": "min", "hour": "h", "day": "d", "week": "w", "month": "mo", "second": "s"}.get(
        unit, unit
    )
    size = float(match[1] or 1) if match and match[1] != "." else 0.0
    if size > 0 and dates and unit in MICROSECONDS:
        return Clock("time", origin, size * MICROSECONDS[unit], whole=True)
    if size >= 1 and size == int(size) and dates and unit in MONTHS:
        return Clock("months", origin, size * MONTHS[unit])
    if size > 0 and not dates and not unit:
        return Clock("numbers", origin, size, whole=True)
    wanted = "a length of time such as 15min, 1h, 1d or 1mo" if dates else "a number, as the times are"
    raise DataError(f"--data.step must be {wanted}; got {step!r}")
