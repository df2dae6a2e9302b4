"""The clock of a series: how far apart its rows are, and which step of it a time is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plmu.errors import DataError

Steps = NDArray[np.int64]
Kind = Literal["rows", "numbers", "time", "months", "weekdays"]
MICROSECONDS = {"us": 1, "ms": 10**3, "s": 10**6, "min": 60 * 10**6, "h": 3600 * 10**6, "d": 86_400 * 10**6}
MICROSECONDS["w"] = 7 * MICROSECONDS["d"]
MONTHS = {"mo": 1, "q": 3, "y": 12}
DAY = MICROSECONDS["d"]
_NEAR = 0.01  # of a step: a time that is so close to the grid is on it
_JITTER = 0.05  # of a step: by which the median distance of jittering times may be off at most
_SAMPLE = 10_000  # times from which the offset of a series is measured
_TOGETHER = 0.9  # length of the mean direction of times on the circle of a step, above which they are regular


@dataclass(frozen=True)
class Clock:
    """The times of series: steps of equal length, numbered from a first time.

    Args:
        kind: "rows" counts rows; "numbers" are times that are numbers; "time" is dates that are equally far apart;
            "months" are months, quarters or years; "weekdays" are Mondays to Fridays.
        first: the time of step 0: a number, or microseconds since 1970.
        step: of one step: a number, microseconds or months.
        ends: whether months are written as their last days.
        whole: whether a time belongs to the step that it lies in, rather than to the nearest.
        day_first: whether 2/1/2024 is the second of January; None where dates are not written so.
        zone: the time zone of all dates, in minutes east of Greenwich; None where they have none.
    """

    kind: Kind = "rows"
    first: float = 0.0
    step: float = 1.0
    ends: bool = False
    whole: bool = False
    day_first: bool | None = None
    zone: int | None = None

    def steps(self, times: NDArray[Any], offset: float = 0.0) -> Steps:
        """The step of each time (datetime64[us] or numbers) of a series with this offset."""
        if self.kind == "months":
            months = times.astype("datetime64[M]").astype(np.int64) - _month(self.first)
            return months // int(self.step)
        if self.kind == "weekdays":
            days = times.astype("datetime64[D]")
            return np.busday_count(_day(self.first), days).astype(np.int64)
        place = (_plain(times) - self.first) / self.step - offset
        return np.floor(place + (_NEAR if self.whole else 0.5)).astype(np.int64)

    def offset(self, times: NDArray[Any]) -> float:
        """The part of a step, from -0.5 to 0.5, by which all times of a series come after the grid; 0 for irregular
        times."""
        if self.kind not in ("numbers", "time") or self.whole or not len(times):
            return 0.0
        sample = times[:: max(1, len(times) // _SAMPLE)]
        place = (_plain(sample) - self.first) / self.step
        mean = np.exp(2j * np.pi * (place - np.rint(place))).mean()
        offset = float(np.angle(mean)) / (2 * np.pi)
        return offset if abs(mean) > _TOGETHER and abs(offset) > _NEAR else 0.0

    def step_of(self, time: str) -> int:
        """The step of a time that is written as text, converted from its time zone to that of the clock.

        Raises:
            ValueError: the text is not a time.
        """
        if self.kind in ("rows", "numbers"):
            try:
                return int(self.steps(np.array([float(time)]))[0])
            except (ValueError, OverflowError):
                raise ValueError(f"{time[:60]!r} is not a time: those of the data are numbers") from None
        import polars as pl

        from plmu.timeseries.tables import dates

        parsed, wrong, _ = dates.parse(pl.Series([time]), self.day_first)
        if len(wrong) or parsed.has_nulls():
            raise ValueError(f"{time[:60]!r} is not a date or time")
        stamp = parsed.to_numpy().astype("datetime64[us]")
        if self.zone and dates.zone(pl.Series([time])) is not None:
            stamp = stamp + np.timedelta64(self.zone, "m")
        return int(self.steps(stamp)[0])

    def off_grid(self, times: NDArray[Any]) -> float:
        """The share of times of a series that are not at equal steps."""
        if self.kind in ("rows", "months", "weekdays") or self.whole or not len(times):
            return 0.0
        place = (_plain(times) - self.first) / self.step - self.offset(times)
        return float(np.mean(np.abs(place - np.rint(place)) > _NEAR))

    def times(self, steps: Steps, offset: float = 0.0) -> list[str]:
        """The times of steps of a series with this offset, as text: numbers of rows, numbers, or dates. Times of day
        have the time zone of the file, if it has one."""
        if self.kind == "rows":
            return [str(step) for step in steps.tolist()]
        if self.kind == "numbers":
            numbers = self.first + self.step * (steps + offset)
            nearest = np.rint(numbers)
            whole = bool((np.abs(numbers - nearest) <= 1e-6 * self.step).all()) or (offset and self.step >= 1000)
            return [str(int(time)) if whole else f"{time:.12g}" for time in (nearest if whole else numbers).tolist()]
        return _written(self.dates(steps, offset), self.zone)

    def dates(self, steps: Steps, offset: float = 0.0) -> NDArray[Any]:
        """The times of steps of a series with this offset, as datetime64[us] in the time zone of the file. Only for
        clocks of dates."""
        stamps: NDArray[Any]
        if self.kind == "months":
            months = (_month(self.first) + steps * int(self.step)).astype("datetime64[M]")
            within = int(self.first) - int(_micro(np.datetime64(_month(self.first), "M")))
            if self.ends:
                stamps = (months + 1).astype("datetime64[us]") - np.timedelta64(DAY, "us")
            else:
                last = (months + 1).astype("datetime64[us]") - np.timedelta64(DAY, "us")
                stamps = np.minimum(months.astype("datetime64[us]") + np.timedelta64(within, "us"), last)
        elif self.kind == "weekdays":
            days = np.busday_offset(_day(self.first), steps, roll="forward")
            stamps = days.astype("datetime64[us]") + np.timedelta64(int(self.first) % DAY, "us")
        else:
            unit = 1 if not offset else 1000 if self.step < MICROSECONDS["min"] else 10**6  # of a mean of offsets
            micros = np.rint((self.first + self.step * (steps + offset)) / unit).astype(np.int64) * unit
            stamps = micros.astype("datetime64[us]")
        return stamps

    @property
    def calendar(self) -> str:
        """What a step is: "day", "weekday" or "week", else "none"."""
        if self.kind == "weekdays":
            return "weekday"
        days = self.step / DAY if self.kind == "time" else 0.0
        return {1.0: "day", 7.0: "week"}.get(days, "none")

    @property
    def spacing(self) -> str:
        """The length of a step in words, such as "15 min" or "month"."""
        if self.kind == "weekdays":
            return "weekday"
        if self.kind == "months":
            names = {1: "month", 3: "quarter", 12: "year"}
            return names.get(int(self.step), f"{int(self.step)} months")
        if self.kind != "time":
            return "row" if self.kind == "rows" else f"{self.step:.15g}" if self.step % 1 == 0 else f"{self.step:.10g}"
        for unit, size in reversed(MICROSECONDS.items()):
            if self.step >= size and abs(self.step / size - round(self.step / size)) < 1e-9:
                return f"{round(self.step / size)} {unit}"
        return f"{self.step / 10**6:g} s"


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
    origin = float(_plain(np.array([first]))[0])
    if step is not None:
        return _of_step(step, dates, origin)
    apart = np.concatenate([np.diff(_plain(times)) for times in groups])
    apart = apart[apart > 0]
    if not len(apart):
        return Clock("time", origin, float(DAY)) if dates else Clock("numbers", origin, 1.0)
    median = float(np.median(apart))
    if not dates:
        return Clock("numbers", origin, _refined(max(groups, key=len), median))
    if median < DAY:
        return Clock("time", origin, _rounded(median, apart))
    days = np.unique(np.concatenate([times.astype("datetime64[D]") for times in groups]))
    for months, (low, high) in {1: (27.9, 31.1), 3: (89.5, 92.6), 12: (364.5, 366.5)}.items():
        if low * DAY <= median <= high * DAY and len(days) > 2 and apart.min() >= low * DAY:
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
    return mean if abs(place[-1] - steps) > 1e-6 * steps and drift < _NEAR else median


def _rounded(median: float, apart: NDArray[np.float64]) -> float:
    """The median distance of jittering times, rounded to a multiple of the longest unit that its uncertainty allows."""
    jitter = float(np.median(np.abs(apart - median)))  # the median's standard error is 1.9 jitter / √count
    tolerance = min(6 * jitter / len(apart) ** 0.5, _JITTER * median)
    for size in reversed(MICROSECONDS.values()):
        if (near := round(median / size) * size) and abs(near - median) <= tolerance:
            return float(near)
    return median


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


def _plain(times: NDArray[Any]) -> NDArray[np.float64]:
    """Times as float64: numbers, or microseconds since 1970, which float64 has exactly for centuries."""
    if np.issubdtype(times.dtype, np.datetime64):
        return times.astype("datetime64[us]").astype(np.int64).astype(np.float64)
    return times.astype(np.float64)


def _micro(time: np.datetime64) -> np.int64:
    micros: np.int64 = time.astype("datetime64[us]").astype(np.int64)
    return micros


def _day(first: float) -> np.datetime64:
    day: np.datetime64 = np.datetime64(int(first), "us").astype("datetime64[D]")
    return day


def _month(first: float) -> int:
    return int(np.datetime64(int(first), "us").astype("datetime64[M]").astype(np.int64))


def _written(stamps: NDArray[Any], zone: int | None) -> list[str]:
    """Dates as text; with the time of day and the time zone, unless all are midnights."""
    plain = stamps.astype(np.int64)
    if not (plain % DAY).any():
        return [str(day) for day in stamps.astype("datetime64[D]")]
    unit = "us" if (plain % 10**6).any() else ("s" if (plain % (60 * 10**6)).any() else "m")
    after = "" if zone is None else f"{'-' if zone < 0 else '+'}{abs(zone) // 60:02}:{abs(zone) % 60:02}"
    return [str(stamp).replace("T", " ") + after for stamp in stamps.astype(f"datetime64[{unit}]")]
