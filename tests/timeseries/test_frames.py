"""Data frames and arrays that do not say what they mean are refused; those that do are read as files are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import plmu

N = 60
VALUES = 10 * np.sin(2 * np.pi * np.arange(N) / 12) + np.arange(N) / 10
HOURS = pd.date_range("2024-03-30", periods=N, freq="h")


def forecaster() -> plmu.Forecaster:
    return plmu.Forecaster(3, lookback=12, order=4, season=12)


def frame(times: Any = HOURS, **columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"y": VALUES, **columns}, index=times)


def test_columns_need_names_of_their_own() -> None:
    twice = pd.DataFrame(np.stack([VALUES, VALUES], 1), columns=["y", "y"], index=HOURS)
    with pytest.raises(ValueError, match=r"^X has several columns 'y': give each column a name of its own$"):
        forecaster().fit(twice)


@pytest.mark.parametrize(
    ("times", "fault"),
    [
        (HOURS[::-1], r"X has the time 2024-04-01T10:00:00.000000 in row 1, before that of row 0: sort it by time"),
        (HOURS[[0, 1, 2, 2, *range(4, N)]], r"in rows 2 and 3: give several series as a list of frames, and in each"),
        (HOURS.where(np.arange(N) != 5), r"X has no time in row 5: leave such rows out"),
    ],
)
def test_times_must_increase(times: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        forecaster().fit(frame(times))
    with pytest.raises(ValueError, match=fault):
        forecaster().fit(pl.DataFrame({"t": times.to_numpy(), "y": VALUES}))
    with pytest.raises(ValueError, match=fault):
        forecaster().fit(frame()).predict(frame(times))


@pytest.mark.parametrize("name", ["id", "store_id", "ID"])
def test_columns_of_ids_are_no_measurements(name: str) -> None:
    fault = f"column '{name}' of X seems to name series and is no measurement: leave it out, or fit with id='{name}'"
    with pytest.raises(ValueError, match=fault):
        forecaster().fit(frame(**{name: np.repeat([1, 2], N // 2)}))
    fitted = forecaster().fit(frame(**{name: VALUES + 0.5}))  # which has fractions
    assert list(fitted.predict().columns) == ["y", name]


def test_integers_in_equal_blocks_without_times_name_series() -> None:
    stacked = frame(place=np.repeat([17, 4], N // 2)).drop(columns="t", errors="ignore").reset_index(drop=True)
    with pytest.raises(
        ValueError, match=r"column 'place' of X seems to name series, .*: fit with id='place', or leave"
    ):
        forecaster().fit(stacked)
    assert set(forecaster().fit(stacked, id="place").predict()["place"]) == {17, 4}
    steps = stacked.assign(place=np.arange(N) // 7)  # of which the last is shorter
    assert list(forecaster().fit(steps).predict().columns) == ["y", "place"]


def test_times_with_a_zone_are_read_without_a_warning_and_come_back() -> None:
    plain = forecaster().fit(frame()).predict(level=80)
    zoned = forecaster().fit(frame(HOURS.tz_localize("UTC").tz_convert("Europe/Berlin"))).predict(level=80)
    assert zoned.index[0] == pd.Timestamp("2024-04-01T14:00+02:00")
    np.testing.assert_array_equal(zoned.to_numpy(), plain.to_numpy())
    column = pd.DataFrame({"t": HOURS.tz_localize("UTC"), "y": VALUES})
    assert forecaster().fit(column).predict(level=80)["t"][0] == pd.Timestamp("2024-04-01T12:00Z")


def test_an_index_of_periods_is_their_first_days() -> None:
    months = pd.period_range("2000-01", periods=N, freq="M")
    ahead = forecaster().fit(frame(months)).predict(level=80)
    assert ahead.index[0] == pd.Timestamp("2005-01-01")


@pytest.mark.parametrize(
    "times", [pd.date_range("2000-01-31", periods=N, freq="ME"), pd.bdate_range("2024-01-01", periods=N)]
)
def test_months_and_business_days_have_the_phase_of_their_rows(times: pd.DatetimeIndex) -> None:
    """Months are not equally long, and weekends have no rows: the season goes on all the same."""
    fitted, rows = forecaster().fit(frame(times)[:40]), frame(times)[25:57]
    by_rows = forecaster().fit(VALUES[:40]).predict(VALUES[25:57], start=25)
    np.testing.assert_array_equal(fitted.predict(rows)["y"], by_rows)
    assert np.abs(by_rows - VALUES[57:]).max() < 1


def test_masked_values_are_missing() -> None:
    masked = np.ma.masked_array(VALUES, mask=np.arange(N) == 7)
    with pytest.raises(ValueError, match="X has NaN in row 7, column 0: fill missing values first"):
        forecaster().fit(masked)
    ahead = forecaster().fit(np.ma.masked_array(VALUES)).predict()
    np.testing.assert_array_equal(ahead, forecaster().fit(VALUES).predict())
    series = np.ma.masked_array(np.tile(VALUES, (6, 1)), mask=np.eye(6, N) > 0)
    with pytest.raises(ValueError, match="X has NaN in series 0, step 0"):
        plmu.SequenceClassifier().fit(series, [0, 1] * 3)
    with pytest.raises(ValueError, match="y is masked in places"):
        plmu.SequenceClassifier().fit(series.data, np.ma.masked_array([0, 1] * 3, mask=[0, 0, 1, 0, 0, 0]))


def test_times_with_and_without_a_zone_are_not_mixed() -> None:
    """They could be hours off, and a forecast in the wrong part of the day."""
    pandas = pytest.importorskip("pandas")
    hours = pandas.date_range("2024-01-01", periods=240, freq="h")
    frame = pandas.DataFrame({"time": hours, "load": np.sin(np.arange(240) * np.pi / 12)})
    zoned = frame.assign(time=hours.tz_localize("Europe/Berlin"))
    options = {"horizon": 4, "season": 24, "lookback": 24}
    for fitted, other, fault in (
        (frame, zoned, "X: its times have a time zone, and those of the training data have none"),
        (zoned, frame, "X: its times have no time zone, and those of the training data have one"),
    ):
        forecaster = plmu.Forecaster(**options).fit(fitted)
        assert np.isfinite(forecaster.predict(fitted)["load"]).all()
        with pytest.raises(ValueError, match=fault):
            forecaster.predict(other)
