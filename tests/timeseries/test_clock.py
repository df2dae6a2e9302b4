"""Clocks as what is deployed has them: times as text, the formula for other programs, and the same clock for frames."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from math import floor

import numpy as np
import pandas
import pytest

import plmu
from plmu.clock import DAY, Clock
from plmu.timeseries.clock import step_of

DAYS = np.datetime64("1990-02-05")  # a Monday
CLOCKS = {
    "rows": Clock(),
    "numbers": Clock("numbers", 0.25, 0.125),
    "quarter hours": Clock("time", float(DAYS.astype("datetime64[us]").astype(int)), 9e8, zone=-300),
    "milliseconds": Clock("time", float(DAYS.astype("datetime64[us]").astype(int)), 5000.0, whole=True),
    "quarters": Clock("months", float(DAYS.astype("datetime64[us]").astype(int)), 3.0),
    "weekdays": Clock("weekdays", float(DAYS.astype("datetime64[us]").astype(int)), 1.0),
}


@pytest.mark.parametrize("name", CLOCKS)
def test_a_clock_comes_back_from_json_with_the_steps_of_its_times(name: str) -> None:
    clock = CLOCKS[name]
    content = json.loads(json.dumps(clock.described(), allow_nan=False))
    assert Clock.read(content) == clock
    assert content["origin"] == clock.times(np.array([0]))[0]
    steps = np.array([-40, 0, 7, 1001])
    assert [clock.step_of(time) for time in clock.times(steps)] == steps.tolist()


@pytest.mark.parametrize("name", CLOCKS)
def test_the_formula_gives_the_step(name: str) -> None:
    """As a program without plmu would compute it."""
    clock = CLOCKS[name]
    for step, time in zip(range(-5, 300, 61), clock.times(np.arange(-5, 300, 61)), strict=True):
        if clock.kind == "weekdays":
            date = np.datetime64(time)
            days = np.arange(min(DAYS, date), max(DAYS, date))
            count = sum(day.astype("datetime64[D]").item().weekday() < 5 for day in days)
            assert clock.formula == "the number of days from Monday to Friday from 1990-02-05 on, before the date"
            assert (count if date >= DAYS else -count) == step
        elif clock.kind != "rows":
            names = {"floor": floor}
            if clock.kind == "months":
                names |= {"year": int(time[:4]), "month": int(time[5:7])}
            elif clock.kind == "numbers":
                names |= {"t": float(time)}
            else:
                micros = int(np.datetime64(time.removesuffix("-05:00")).astype("datetime64[us]").astype(int))
                names |= {"t": micros / 1e6 - 60 * (clock.zone or 0)}
            assert eval(clock.formula.partition(", with")[0], names) == step


@pytest.mark.parametrize(("time", "step"), [
    ("1990-02-05 00:15", 1), ("1990-02-05T00:15", 1), ("1990-02-05 05:15Z", 1), ("1990-02-05T06:15+01:00", 1),
    ("1990-02-06", 96), (" 1990-03 ", 24 * 96),
])  # fmt: skip
def test_times_in_iso_8601_with_and_without_a_zone(time: str, step: int) -> None:
    assert CLOCKS["quarter hours"].step_of(time) == step


@pytest.mark.parametrize("time", ["2024-03-11T10:45+02:00", "2024-03-11 10:45Z", "2024-03-11 10:45 CET"])
def test_a_zone_where_the_data_has_none_is_refused(time: str) -> None:
    clock = Clock("time", 0.0, 9e8)
    with pytest.raises(ValueError, match="have a time zone, and those of the training data have none"):
        step_of(clock, time)


@pytest.mark.parametrize(
    "time", ["soon", "05.02.1990", "19900231", "1990023", "1990-13-01", "", "0001-01-01T00:00+14:00"]
)
def test_other_texts_are_no_times(time: str) -> None:
    with pytest.raises(ValueError, match="is not a date or time: write it as '1990-02-05 00:15-05:00'"):
        CLOCKS["quarter hours"].step_of(time)


def test_an_error_names_the_time_as_it_was_written() -> None:
    with pytest.raises(ValueError, match="'1709251200' is not a date or time"):
        CLOCKS["quarter hours"].step_of("1709251200")


@pytest.mark.parametrize("time", ["inf", "nan", "1e300", "2024-01-01", ""])
def test_other_texts_are_no_numbers(time: str) -> None:
    with pytest.raises(ValueError, match="is not a time: those of the data are numbers"):
        CLOCKS["numbers"].step_of(time)


@pytest.mark.parametrize(
    "wrong", [{"kind": "moons"}, {"first": "0"}, {"step": 0.0}, {"step": float("nan")}, {"zone": ""}]
)
def test_a_damaged_clock_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Clock.read(CLOCKS["quarter hours"].described() | wrong)


@pytest.mark.parametrize("freq", ["MS", "ME", "B", "QS"])
def test_frames_of_months_and_weekdays_keep_the_phase(freq: str) -> None:
    """Their steps are of unequal length, so a clock that divides by the median one drifts."""
    k = np.arange(272)
    y = 10 * np.sin(2 * np.pi * k / 12) + 5 * np.cos(2 * np.pi * k / 6)
    frame = pandas.DataFrame({"y": y}, index=pandas.date_range("1990-01-01", periods=len(y), freq=freq))
    framed, plain = (plmu.Forecaster(12, season=12).fit(rows[:200]) for rows in (frame, y))
    ahead = framed.predict(frame[100:260])["y"].to_numpy()
    np.testing.assert_allclose(ahead, plain.predict(y[100:260]), rtol=1e-5, atol=1e-4)
    assert np.sqrt(np.mean((ahead - y[260:]) ** 2)) < 0.5


def test_the_formula_says_in_which_zone_times_are() -> None:
    clock = CLOCKS["quarter hours"]
    assert clock.formula.endswith("with t the time in seconds since 1970-01-01 00:00 UTC")
    here = Clock("time", clock.first, clock.step)
    assert here.formula.endswith("with t the time in seconds since 1970-01-01 00:00 in the time zone of the data")
    assert CLOCKS["numbers"].formula.endswith("with t the time of the data")


@pytest.mark.parametrize(("first", "step", "offset", "time"), [
    (0.0, 1.0, 0.25, "1.25"), (0.5, 1500.25, 0.0, "1500.75"), (0.0, 2000.0, 0.1231, "2246"), (0.0, 2000.0, 0.0, "2000"),
])  # fmt: skip
def test_times_that_are_numbers(first: float, step: float, offset: float, time: str) -> None:
    """The offset of a series is a mean: of long steps its fractions mean nothing."""
    assert Clock("numbers", first, step).times(np.array([1]), offset) == [time]


GRIDS = {
    "2024-01-31 10:07": (Clock("time", 0.0, 9e8), "2024-01-31 10:07", "2024-01-31 10:00 and 2024-01-31 10:15"),
    "2024-01-31 10:07Z": (
        Clock("time", 0.0, 9e8, zone=60),
        "2024-01-31 11:07+01:00",
        "2024-01-31 11:00+01:00 and 2024-01-31 11:15+01:00",
    ),
    "1969-12-31 15:00": (Clock("time", 0.0, float(DAY)), "1969-12-31 15:00", "1969-12-31 and 1970-01-01"),
    "2024-02-03": (Clock("weekdays", 0.0), "2024-02-03", "2024-02-02 and 2024-02-05"),
    "2024-02": (Clock("months", 0.0, 3.0), "2024-02-01", "2024-01-01 and 2024-04-01"),
    "3.4": (Clock(), "3.4", "3 and 4"),
    "-0.3": (Clock("numbers", 0.0, 0.25), "-0.3", "-0.5 and -0.25"),
}


@pytest.mark.parametrize("time", GRIDS)
def test_a_time_off_the_grid_is_refused_with_the_nearest_ones(time: str) -> None:
    clock, written, nearest = GRIDS[time]
    for ask in (clock.step_of, partial(step_of, clock)):
        with pytest.raises(ValueError, match="is off the grid") as raised:
            ask(time)
        assert str(raised.value) == (
            f"{written} is off the grid of the data, every {clock.spacing}: the nearest times are {nearest}"
        )
    assert replace(clock, jitter=0.5).step_of(time) is not None
    for near in nearest.split(" and "):
        assert clock.times(np.array([clock.step_of(near)]))[0][:10] == near[:10]


def test_times_that_name_a_step_are_on_the_grid() -> None:
    assert Clock("months", 0.0, 1.0).step_of("1970-03-17") == 2
    assert Clock("weekdays", 0.0).step_of("1970-01-02 17:00") == 1
    assert Clock("time", 0.0, 9e8, whole=True).step_of("1970-01-01 00:29") == 1  # as --data.step averages rows
    assert Clock("time", 0.0, 9e8).step_of("1970-01-01 00:29:53") == 2  # within a hundredth


def test_times_may_jitter_as_those_of_the_data() -> None:
    times = 900 * np.arange(100) + np.tile([0, 30, -20, 5], 25)
    clock = Clock("time", 0.0, 9e8).with_jitter([times.astype("datetime64[s]").astype("datetime64[us]")])
    assert clock.jitter == pytest.approx(30 / 900, abs=1e-4)
    assert Clock.read(clock.described()) == clock
    assert clock.step_of("1970-01-01 00:15:30") == 1
    with pytest.raises(ValueError, match="1970-01-01 00:15:31 is off the grid of the data, every 15 min"):
        clock.step_of("1970-01-01 00:15:31")
