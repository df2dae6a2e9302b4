"""The clock of series: which step a time is, and which time a step is. It needs NumPy alone, since what is deployed
counts steps, too."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

Steps = NDArray[np.int64]
Kind = Literal["rows", "numbers", "time", "months", "weekdays"]
MICROSECONDS = {"us": 1, "ms": 10**3, "s": 10**6, "min": 60 * 10**6, "h": 3600 * 10**6, "d": 86_400 * 10**6}
MICROSECONDS["w"] = 7 * MICROSECONDS["d"]
DAY = MICROSECONDS["d"]
MONTHS = {"mo": 1, "q": 3, "y": 12}
_MONTH = 365.2425 / 12  # days
NEAR = 0.01  # of a step: a time that is so close to the grid is on it
_ROUNDING = 1e-4  # of a step: a time that is so close to the end of a step is in the next one
_MOST = 2**53  # steps, up to which float64 counts
_ISO = re.compile(r"\d{4}-\d{2}")
_DIGITS = re.compile(r"^(?:\d{14}|\d{12}|\d{10}|\d{8}|\d{6})$")  # 20240131, and with hours, minutes and seconds; 202401
_SAMPLE = 10_000  # times from which the offset of a series is measured
_TOGETHER = 0.9  # length of the mean direction of times on the circle of a step, above which they are regular

NO_ZONE = "its times have a time zone, and those of the training data have none: write them without one, as these are"


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
        jitter: of the data's times: the largest distance from the grid, in steps. Other times may be as far from it.
    """

    kind: Kind = "rows"
    first: float = 0.0
    step: float = 1.0
    ends: bool = False
    whole: bool = False
    day_first: bool | None = None
    zone: int | None = None
    jitter: float = 0.0

    def steps(self, times: NDArray[Any], offset: float = 0.0) -> Steps:
        """The step of each time (datetime64[us] or numbers) of a series with this offset."""
        if self.kind == "months":
            months = times.astype("datetime64[M]").astype(np.int64) - _month(self.first)
            return months // int(self.step)
        if self.kind == "weekdays":
            days = times.astype("datetime64[D]")
            return np.busday_count(_day(self.first), days).astype(np.int64)
        place = (plain(times) - self.first) / self.step - offset
        return np.floor(place + (_ROUNDING if self.whole else 0.5)).astype(np.int64)

    def offset(self, times: NDArray[Any]) -> float:
        """The part of a step, from -0.5 to 0.5, by which all times of a series come after the grid; 0 for irregular
        times."""
        if self.kind not in ("numbers", "time") or self.whole or not len(times):
            return 0.0
        sample = times[:: max(1, len(times) // _SAMPLE)]
        place = (plain(sample) - self.first) / self.step
        mean = np.exp(2j * np.pi * (place - np.rint(place))).mean()
        offset = float(np.angle(mean)) / (2 * np.pi)
        return offset if abs(mean) > _TOGETHER and abs(offset) > NEAR else 0.0

    def distances(self, times: NDArray[Any]) -> NDArray[np.float64]:
        """How far each time (datetime64[us] or numbers) is from the grid, in steps: at most 0.5. Any day of a month is
        on the grid of months, and any time of a weekday on that of weekdays."""
        if self.whole:
            return np.zeros(len(times))
        if self.kind == "weekdays":
            return np.where(np.is_busday(times.astype("datetime64[D]")), 0.0, 0.5)
        if self.kind == "months":
            place = (times.astype("datetime64[M]").astype(np.int64) - _month(self.first)) / self.step
        else:
            place = (plain(times) - self.first) / self.step
        return np.asarray(np.abs(place - np.rint(place)))

    def with_jitter(self, groups: Sequence[NDArray[Any]]) -> Clock:
        """This clock with the jitter of the times of several series, rounded up."""
        farthest = max((float(self.distances(times).max()) for times in groups if len(times)), default=0.0)
        return replace(self, jitter=min(0.5, math.ceil(farthest * 10**4) / 10**4) if farthest > NEAR else 0.0)

    def step_of(self, time: str | float) -> int:
        """The step of a time.

        Args:
            time: a number where the times of the data are numbers or rows; else a date or time as in ISO 8601, such as
                "2024-01-31 06:00", or its digits alone, 202401310600. With a time zone, it is converted to that of the
                data, which must have one.

        Raises:
            ValueError: it is no such time, or farther from the grid than those of the data.
        """
        if self.kind in ("rows", "numbers"):
            try:
                number = float(time)
                if not abs((number - self.first) / self.step) < _MOST:
                    raise ValueError
            except (ValueError, OverflowError):
                raise ValueError(f"{str(time)[:60]!r} is not a time: those of the data are numbers") from None
            return self._checked_step(np.array([number]))
        text = _DIGITS.sub(lambda match: _separated(match[0]), str(time).strip())
        try:
            if not _ISO.match(text):
                raise ValueError
            stamp = datetime.fromisoformat(f"{text}-01" if len(text) == len("2024-01") else text)
            zoned = stamp.tzinfo is not None
            stamp = stamp.astimezone(UTC).replace(tzinfo=None) if zoned else stamp
        except (ValueError, OverflowError):
            example = self.times(np.array([1]))[0]
            raise ValueError(f"{str(time).strip()[:60]!r} is not a date or time: write it as {example!r}") from None
        return self.step_of_date(np.datetime64(stamp, "us"), zoned)

    def step_of_date(self, date: np.datetime64, zoned: bool = False) -> int:
        """The step of a date in the time zone of the data, or if `zoned` in UTC. Only for clocks of dates.

        Raises:
            ValueError: it is in UTC, and the time zone of the data is not known; or it is off the grid.
        """
        if zoned and self.zone is None:
            raise ValueError(NO_ZONE)
        if zoned and self.zone:
            date = date + np.timedelta64(self.zone, "m")
        return self._checked_step(np.array([date]))

    def _checked_step(self, time: NDArray[Any]) -> int:
        """The step of a time, (1,); ValueError if it is farther from the grid than those of the data."""
        step = int(self.steps(time)[0])
        if self.distances(time)[0] <= max(NEAR, self.jitter):
            return step
        if self.kind == "weekdays":
            below = step - 1
        else:
            below = step if self.kind == "months" else math.floor((float(plain(time)[0]) - self.first) / self.step)
        written = f"{time[0]:.12g}" if self.kind in ("rows", "numbers") else _written(time, self.zone)[0]
        nearest = self.times(np.array([below, below + 1]))
        raise ValueError(
            f"{written} is off the grid of the data, every {self.spacing}: the nearest times are {nearest[0]} and"
            f" {nearest[1]}"
        )

    @property
    def formula(self) -> str:
        """How the number of a step is computed from a time, for programs without plmu."""
        if self.kind == "rows":
            return "the number of rows since the first row of the data, which is step 0"
        if self.kind == "months":
            month = np.datetime64(int(self.first), "us").astype("datetime64[M]")
            year, number = (int(part) for part in str(month).split("-"))
            return f"floor(((year - {year}) * 12 + month - {number}) / {int(self.step)})"
        if self.kind == "weekdays":
            return f"the number of days from Monday to Friday from {_day(self.first)} on, before the date"
        unit, zone = (1.0, 0) if self.kind == "numbers" else (10.0**6, 60 * (self.zone or 0))
        first, step = f"{self.first / unit - zone:.17g}", f"{self.step / unit:.17g}"
        of = "of the data" if self.kind == "numbers" else "in seconds since 1970-01-01 00:00"
        if self.kind == "time":
            of += " UTC" if self.zone is not None else " in the time zone of the data"
        return f"floor((t - {first}) / {step} + {_ROUNDING if self.whole else 0.5}), with t the time {of}"

    def described(self) -> dict[str, Any]:
        """As JSON holds it, for `read`, with what programs without plmu need."""
        origin = self.times(np.array([0]))[0]
        return {**asdict(self), "origin": origin, "every": self.spacing, "step_number": self.formula}

    @classmethod
    def read(cls, content: dict[str, Any]) -> Clock:
        """The clock that `described` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is damaged.
        """
        clock = cls(**{field.name: content[field.name] for field in fields(cls)})
        numbers = (clock.first, clock.step, clock.jitter, 0 if clock.zone is None else clock.zone)
        if clock.kind not in get_args(Kind) or not all(type(number) in (int, float) for number in numbers):
            raise TypeError
        if not (
            abs(clock.first) < _MOST * 10**6 and 0 < clock.step < _MOST * 10**6 and 0 <= clock.jitter <= 0.5
        ):  # false for NaN
            raise ValueError
        return clock

    def off_grid(self, times: NDArray[Any]) -> float:
        """The share of times of a series that are not at equal steps."""
        if self.kind in ("rows", "months", "weekdays") or self.whole or not len(times):
            return 0.0
        place = (plain(times) - self.first) / self.step - self.offset(times)
        return float(np.mean(np.abs(place - np.rint(place)) > NEAR))

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

    def begins(self, steps: Steps) -> NDArray[np.float64]:
        """When steps begin, as `plain` gives times; months on their first days. Not for clocks of rows."""
        if self.kind == "numbers":
            return self.first + self.step * steps.astype(np.float64)
        dates = self.dates(steps)
        return plain(dates.astype("datetime64[M]") if self.kind == "months" else dates)

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


def plain(times: NDArray[Any]) -> NDArray[np.float64]:
    """Times as float64: numbers, or microseconds since 1970, which float64 has exactly for centuries."""
    if np.issubdtype(times.dtype, np.datetime64):
        return times.astype("datetime64[us]").astype(np.int64).astype(np.float64)
    return times.astype(np.float64)


def _separated(digits: str) -> str:
    """A date of digits as in ISO 8601.

    >>> _separated("202401310600")
    '2024-01-31T06:00'
    """
    parts = [digits[:4], *(digits[place : place + 2] for place in range(4, len(digits), 2))]
    date, clock = "-".join(parts[:3]), ":".join(parts[3:])
    return f"{date}T{clock}" if clock else date


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


def steps_in(half_life: float | str | None, clock: Clock | None) -> float:
    """A half-life in steps of a clock; infinite for None. Without a clock it is checked alone.

    Raises:
        ValueError: it is no positive number of rows and no length of time, or there are no times.
    """
    if half_life is None:
        return math.inf
    if isinstance(half_life, str):
        match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]+)\s*", half_life)
        units = {**MICROSECONDS, **{unit: months * _MONTH * DAY for unit, months in MONTHS.items()}}
        if match and match[2] in units and float(match[1]) > 0:
            if clock is None:
                return math.nan
            if clock.kind in ("rows", "numbers"):
                raise ValueError(f"half_life={half_life!r} needs dates, and there are none: give a number of rows")
            each = {"months": clock.step * _MONTH * DAY, "weekdays": 7 / 5 * DAY}.get(clock.kind, clock.step)
            return float(match[1]) * units[match[2]] / each
    elif isinstance(half_life, int | float | np.number) and not isinstance(half_life, bool) and half_life > 0:
        return float(half_life)
    raise ValueError(
        "half_life must be a positive number of rows or a length of time such as '12h', '7d' or '3mo', got"
        f" {half_life!r}"
    )
