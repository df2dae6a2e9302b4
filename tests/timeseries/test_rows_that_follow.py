"""What `Forecaster.partial_fit` does with times, gaps, frames and test rows, and the other methods after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from learned_sums import (
    MEMORY,
    ROWS,
    assert_close,
    course,
    panel,
)

import plmu
from plmu.errors import DataError


def test_rows_must_follow() -> None:
    times = pd.date_range("2024-01-01", periods=260, freq="h")
    frame = pd.DataFrame({"ds": times, "y": course()[:, 0]})
    forecaster = plmu.Forecaster(**MEMORY).fit(frame[:ROWS])
    expected = forecaster.predict()["y"]
    with pytest.raises(ValueError, match=r"X has a row at 2024-01-09 07:00, and rows up to 2024-01-09 07:00 were"):
        forecaster.partial_fit(frame[ROWS - 1 :])
    long = plmu.Forecaster(**MEMORY).fit(panel(ROWS))
    with pytest.raises(DataError, match=r"series 'b' has a row at 2020-07-09, and rows up to 2020-07-18 were learned"):
        long.partial_fit(panel(30, "ab", ROWS - 10)[30:])
    for X, fault in ((course(9, 2), "X has 2 features, but Forecaster is expecting 1"), (np.full(3, np.nan), "NaN")):
        with pytest.raises(ValueError, match=fault):
            forecaster.partial_fit(X)
    several = plmu.Forecaster(**MEMORY).fit([course(), course(seed=1)])
    with pytest.raises(ValueError, match="X must have the 2 series that were learned, in their order, got 1"):
        several.partial_fit([course(3)])
    with pytest.raises(ValueError, match="id='a' is for the first rows"):
        long.partial_fit(panel(3, first=ROWS), id="a")
    np.testing.assert_array_equal(forecaster.predict()["y"], expected)  # an error changes nothing


@pytest.mark.parametrize("missing", ["hold", "split"])
def test_gaps_are_treated_as_in_one_file(missing: str, tmp_path: Path) -> None:
    values = course()[:, 0]
    times = np.datetime64("2024-01-01T00:00") + 60 * np.arange(260)
    drop = {195, 200, 201, 230, *range(240, 243)}
    rows = enumerate(zip(times, values, strict=True))
    lines = [f"{str(t).replace('T', ' ')},{v}" for k, (t, v) in rows if k not in drop]
    cut = sum(k not in drop for k in range(203))
    for name, rows in (("all", lines), ("first", lines[:cut]), ("then", lines[cut:])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["time,load", *rows, ""]))
    whole, first = (plmu.timeseries.read_series(tmp_path / f"{name}.csv", missing=missing) for name in ("all", "first"))
    pieces = plmu.Forecaster(**MEMORY).fit(first).partial_fit(tmp_path / "then.csv")
    expected = whole.pieces
    held = pieces.fitted_.series("test").data.pieces
    assert [(piece.start, len(piece)) for piece in held] == [(piece.start, len(piece)) for piece in expected]
    for piece, other in zip(held, expected, strict=True):
        np.testing.assert_array_equal(piece.values, other.values)
        np.testing.assert_array_equal(piece.measured, other.measured)
    reach = MEMORY["lookback"] + MEMORY["horizon"] - 1
    assert pieces.sums_.count == sum(max(0, len(piece) - reach) for piece in expected)


def test_the_first_rows_are_fitted_and_test_rows_are_learned() -> None:
    data = course()[:, 0]
    forecaster = plmu.Forecaster(**MEMORY, test=0.2).partial_fit(data[:ROWS])
    np.testing.assert_array_equal(forecaster.predict(), plmu.Forecaster(**MEMORY, test=0.2).fit(data[:ROWS]).predict())
    assert forecaster.evaluate()["windows"] == 36
    forecaster.partial_fit(data[ROWS:])
    assert forecaster.sums_.count == len(data) - 20
    with pytest.raises(ValueError, match="there are no test rows"):
        forecaster.evaluate()


def test_choose_and_the_other_methods_after_it(tmp_path: Path) -> None:
    data = course()[:, 0]
    forecaster = plmu.Forecaster(horizon=5, lookback=16).fit(data[:ROWS]).partial_fit(data[ROWS:])
    assert len(forecaster.cross_validation(windows=2)) == 10
    forecaster.plot(tmp_path / "forecast.png")
    assert forecaster.backtest(folds=2)[-1]["rows"] <= len(data)
    assert len(forecaster.stream().push(data[-1:])) == 5
    forecaster.choose()
    other = plmu.Forecaster(horizon=5, lookback=16).fit(data)
    assert forecaster.validation_ == other.validation_
    np.testing.assert_array_equal(forecaster.predict(level=80).upper, other.predict(level=80).upper)
    forecaster.partial_fit(course(270)[len(data) :, 0])


@pytest.mark.parametrize("pooled", [False, True])
def test_a_channel_is_no_longer_bounded_once_it_is_below_0(pooled: bool) -> None:
    data = np.abs(course()[:, 0] - 10)
    options: dict[str, Any] = {"horizon": 5, "pooled": True} if pooled else MEMORY
    free, fixed = (plmu.Forecaster(**options, nonnegative=bound).fit(data[:ROWS]) for bound in (None, True))
    assert free.model.nonnegative == fixed.model.nonnegative == (0,)
    for forecaster in (free, fixed):
        forecaster.partial_fit(data[ROWS : ROWS + 20])
        assert forecaster.model.nonnegative == (0,)
        forecaster.partial_fit(data[ROWS + 20 :] - 20)
    assert free.model.nonnegative == ()
    assert free.predict(level=95).lower.min() < 0 <= fixed.predict(level=95).lower.min()


def test_the_latest_rows_are_held_and_all_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    data = course()[:, 0]
    whole, forecaster = (plmu.Forecaster(**MEMORY).fit(data[:ROWS]) for _ in range(2))
    whole.partial_fit(data[ROWS:])
    monkeypatch.setattr("plmu.timeseries.partial.HELD_ROWS", 150)
    for first in range(ROWS, len(data), 20):
        forecaster.partial_fit(data[first : first + 20])
    assert_close(forecaster.sums_, whole.sums_)
    np.testing.assert_array_equal(forecaster.predict(), whole.predict())
    assert len(forecaster.cross_validation(windows=2)) == 10
    forecaster.choose()
    np.testing.assert_allclose(forecaster.predict(), plmu.Forecaster(**MEMORY).fit(data[-150:]).predict(), rtol=1e-5)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_in_long_format_of_a_single_series(library: str) -> None:
    times = pd.date_range("2020-01-01", periods=260, freq="D").astype("datetime64[ms]")
    columns = {"when": times, "sales": course()[:, 0]}
    whole: Any = pl.DataFrame({**columns, "when": times.to_numpy()}) if library == "polars" else pd.DataFrame(columns)
    forecaster = plmu.Forecaster(**MEMORY).fit(whole[:ROWS], time="when", values=["sales"])
    before = forecaster.predict()
    ahead = forecaster.partial_fit(whole[ROWS:]).predict()
    assert type(ahead) is type(before)
    assert [str(kind) for kind in ahead.dtypes] == [str(kind) for kind in before.dtypes]
    assert str(ahead["when"].to_list()[0])[:10] == "2020-09-17"


def test_what_read_series_returns_with_holidays(tmp_path: Path) -> None:
    pytest.importorskip("holidays")
    days = np.datetime64("2022-01-01") + np.arange(500)
    values = course(500)[:, 0]
    for name, rows in (("first", slice(0, 400)), ("then", slice(400, 500))):
        lines = [f"{day},{value}" for day, value in zip(days[rows], values[rows], strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["day,load", *lines, ""]))
    first, then = (plmu.timeseries.read_series(tmp_path / f"{name}.csv") for name in ("first", "then"))
    options: dict[str, Any] = {"horizon": 5, "lookback": 16, "season": 7, "holidays": "DE"}
    forecaster = plmu.Forecaster(**options).fit(first).partial_fit(then)
    assert forecaster.sums_.count == 500 - 20
    assert str(forecaster.predict()["day"][0])[:10] == str(days[-1] + 1)
    forecaster.save(tmp_path / "f.plmu", updatable=True)
    loaded = plmu.Forecaster.load(tmp_path / "f.plmu")
    np.testing.assert_array_equal(loaded.predict()["load"], forecaster.predict()["load"])


def test_zoned_frames_with_covariates_ahead() -> None:
    times = pd.date_range("2024-03-29", periods=260, freq="h", tz="Europe/Berlin")
    known = (np.arange(260) // 3 % 2).astype(float)
    frame = pd.DataFrame({"load": course()[:, 0] + 4 * known, "open": known}, index=times)
    forecaster = plmu.Forecaster(horizon=5, lookback=16, covariates=["open"], season=0).fit(frame[:ROWS])
    forecaster.partial_fit(frame[ROWS:240])
    ahead = forecaster.predict(future=frame[["open"]][240:], level=80)
    assert ahead.index[0] == times[240]
    direct = forecaster.predict(frame[:240], future=frame[["open"]][240:], level=80)
    np.testing.assert_allclose(ahead["load"], direct["load"], rtol=1e-5)
