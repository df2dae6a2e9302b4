"""The course over the week and the year that a forecaster tries for days and weeks."""

import numpy as np
import pytest
import torch

import plmu
from plmu.timeseries.season import CALENDARS, aligned, calendar_patterns

ROWS = 5 * 365


def course(rows: int = ROWS, calendar: str = "day") -> np.ndarray:
    """Over the week and the year."""
    week, year = CALENDARS[calendar]
    k = np.arange(rows)
    wave = 6 * np.sin(2 * np.pi * k / year) + 2 * np.cos(4 * np.pi * k / year)
    return wave + (3.0 * (k % week >= week - 2) if week > 1 else 0)


def measured(rows: int = ROWS, calendar: str = "day") -> np.ndarray:
    return 20 + course(rows, calendar) + np.random.default_rng(0).standard_normal(rows)


@pytest.mark.parametrize("calendar", ["day", "weekday", "week"])
def test_the_pattern_is_the_course_whatever_the_level_and_the_trend(calendar: str) -> None:
    rows = int(5 * CALENDARS[calendar][1])
    expected = course(rows, calendar) - course(rows, calendar).mean()
    series = torch.tensor(expected + 50 + 10 * np.arange(rows) / rows, dtype=torch.float32)[None]
    (found,) = calendar_patterns([series], calendar, [0])
    week, year = CALENDARS[calendar]
    assert len(found) % week == 0
    assert len(found) / year == pytest.approx(round(len(found) / year), abs=week / year)  # whole weeks close to years
    got = found[np.arange(rows) % len(found), 0].numpy()
    error = (got - got.mean()) - expected
    assert np.sqrt(np.mean(error**2)) < 0.03 * expected.std()
    parts = [series[:, : rows // 2], series[:, rows // 2 :] + 100]
    (again,) = calendar_patterns(parts, calendar, [0, rows // 2])
    error = again - found - (again - found).mean()
    assert float(error.square().mean().sqrt()) < 0.05 * expected.std()


def test_it_helps_where_the_window_does_not_see_the_year() -> None:
    data = measured()
    end = ROWS - 300
    with_it, without = (
        plmu.Forecaster(60, lookback=60, calendar=one).fit(data[:end], validation_rows=[365]) for one in ("day", "none")
    )
    assert with_it.validation_["calendar"]
    assert not without.validation_["calendar"]
    errors = [one.evaluate(data[end - 60 :], start=end - 60)["mse"] for one in (with_it, without)]
    assert errors[0] < 0.7 * errors[1]
    stream = with_it.stream()  # continues the rows of fit
    for value in data[end:]:
        ahead = stream.push([value])
    np.testing.assert_allclose(ahead, with_it.predict(data, start=0), rtol=1e-4, atol=1e-4)


def test_the_time_stamps_of_a_frame_tell() -> None:
    pandas = pytest.importorskip("pandas")
    times = pandas.date_range("2019-03-01", periods=ROWS)
    frame = pandas.DataFrame({"load": measured()}, index=times)
    fits = {
        "days": frame,
        "weekdays": frame[times.day_of_week < 5],
        "hours": frame.set_axis(pandas.date_range("2019-03-01", periods=ROWS, freq="h")),
        "none": frame.reset_index(drop=True),
    }
    used = {
        name: plmu.Forecaster(30, lookback=30, season=0).fit(one).validation_["calendar"] for name, one in fits.items()
    }
    assert used == {"days": True, "weekdays": True, "hours": False, "none": False}
    one = plmu.Forecaster(30, lookback=30, season=0).fit(frame[:-365])
    np.testing.assert_allclose(  # rows that begin elsewhere in the year
        one.predict(frame[-100:])["load"], one.predict(frame["load"].to_numpy()[-100:, None], start=ROWS - 100)[:, 0]
    )


def test_less_than_two_years_or_several_series_have_none() -> None:
    data = measured()
    assert not plmu.Forecaster(14, lookback=30, calendar="day").fit(data[:800]).validation_["calendar"]
    assert not plmu.Forecaster(14, lookback=30, calendar="day").fit([data, 2 * data]).validation_["calendar"]
    with pytest.raises(ValueError, match="calendar must be 'day', 'weekday', 'week' or 'none', got 'month'"):
        plmu.Forecaster(14, calendar="month").fit(data)


def test_the_phase_is_that_of_least_squares() -> None:
    rng = np.random.default_rng(1)
    shape = torch.tensor(rng.standard_normal((40, 2)), dtype=torch.float32)
    for rows in (7, 40, 95):
        values = torch.tensor(rng.standard_normal((rows, 2)), dtype=torch.float32)
        centred = values - values.mean(0)
        errors = [float((centred - shape[(np.arange(rows) + p) % 40]).square().sum()) for p in range(40)]
        assert aligned(values, shape) == int(np.argmin(errors))
