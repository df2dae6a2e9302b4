"""`Forecaster.cross_validation`: forecasts from earlier rows, which have not seen later ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import plmu
from plmu.timeseries import read_series

N, HORIZON = 84, 6
OPTIONS: dict[str, Any] = {"horizon": HORIZON, "pooled": False, "lookback": 24, "order": 6, "season": 12}
MONTHS = pd.date_range("2018-01-01", periods=N, freq="MS")


def values(place: int = 0) -> np.ndarray:
    rng = np.random.default_rng(place)
    return (1 + 9 * place) * (10 + 3 * np.sin(2 * np.pi * np.arange(N) / 12) + 0.2 * rng.standard_normal(N))


def long() -> pd.DataFrame:
    """Two series, one of which ends two months before the other."""
    parts = [
        pd.DataFrame({"unique_id": name, "ds": MONTHS, "y": values(place)})[: N - 2 * place]
        for place, name in enumerate("ab")
    ]
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("pooled", [False, True])
def test_it_is_the_forecast_of_a_fit_to_the_rows_before_each_cutoff(pooled: bool) -> None:
    frame = long()
    options = {**OPTIONS, "pooled": False} if not pooled else {"horizon": HORIZON, "season": 12, "pooled": True}
    table = plmu.Forecaster(**options, test=0.2).fit(frame).cross_validation(windows=3, step=4, level=[80])
    assert list(table.columns) == ["unique_id", "ds", "cutoff", "y", "forecast", "forecast-lo-80", "forecast-hi-80"]
    assert len(table) == 2 * 3 * HORIZON
    assert table["ds"].dtype == table["cutoff"].dtype == frame["ds"].dtype
    for back in (HORIZON, HORIZON + 4, HORIZON + 8):
        past = frame[frame.groupby("unique_id").cumcount(ascending=False) >= back]
        expected = plmu.Forecaster(**options).fit(past).predict(level=[80])
        cutoffs = {name: past["ds"][past["unique_id"] == name].max() for name in "ab"}
        rows = table[
            [cutoffs[name] == cutoff for name, cutoff in zip(table["unique_id"], table["cutoff"], strict=True)]
        ]
        assert rows["ds"].tolist() == expected["ds"].tolist()
        for name in ("", "-lo-80", "-hi-80"):
            np.testing.assert_array_equal(rows[f"forecast{name}"].to_numpy(), expected[f"y{name}"].to_numpy())
        measured = rows.merge(frame, on=["unique_id", "ds"])
        assert (measured["y_x"] == measured["y_y"]).all()
    last = table.groupby("unique_id")["ds"].max()
    assert last.tolist() == [MONTHS[-1], MONTHS[-3]]


@pytest.mark.parametrize("missing", ["hold", "linear", "split"])
def test_later_values_do_not_change_earlier_forecasts(missing: str) -> None:
    """Nor where a gap at the cutoff is filled from both of its ends."""
    frame = long()
    cutoff = N - HORIZON - 1
    frame.loc[[cutoff - 1, cutoff, cutoff + 1, 20], "y"] = np.nan
    changed = frame.copy()
    changed.loc[cutoff + 2 : N - 1, "y"] *= -5.0
    both = [
        plmu.Forecaster(**OPTIONS).fit(read_series(rows, missing=missing)).cross_validation(windows=1, level=80)
        for rows in (frame, changed)
    ]
    assert both[0].drop(columns="y").equals(both[1].drop(columns="y"))
    if missing == "split":  # the first series has no row at the cutoff
        assert set(both[0]["unique_id"]) == {"b"}
    else:
        assert both[0]["y"].isna().tolist() == [True] + [False] * (2 * HORIZON - 1)
        assert not both[0]["y"].equals(both[1]["y"])


def test_one_fit_for_all_cutoffs() -> None:
    frame = long()
    fitted = plmu.Forecaster(**OPTIONS).fit(frame)
    once, again = (fitted.cross_validation(windows=2, refit=refit) for refit in (False, True))
    first = once["cutoff"] == once.groupby("unique_id")["cutoff"].transform("min")
    assert once[first].equals(again[first])
    assert not np.array_equal(once[~first]["forecast"], again[~first]["forecast"])
    short = fitted.cross_validation(windows=2, horizon=2, step=1, refit=False)
    assert len(short) == 2 * 2 * 2
    assert short["ds"].max() == MONTHS[-1]


def test_forms(tmp_path: Path) -> None:
    frame = long()
    expected = plmu.Forecaster(**OPTIONS).fit(frame).cross_validation(windows=2, level=95)
    frame.to_csv(tmp_path / "y.csv", index=False)
    by_file = plmu.Forecaster(**OPTIONS).fit(tmp_path / "y.csv").cross_validation(windows=2, level=95)
    shown = pl.DataFrame({name: pl.Series(frame[name].to_list()) for name in frame.columns})
    by_polars = plmu.Forecaster(**OPTIONS).fit(shown).cross_validation(windows=2, level=95)
    for other in (by_file, by_polars):
        assert isinstance(other, pl.DataFrame)
        assert other.columns == expected.columns.tolist()
        assert [str(time)[:10] for time in other["cutoff"]] == [str(time)[:10] for time in expected["cutoff"]]
        np.testing.assert_allclose(other["forecast-hi-95"].to_numpy(), expected["forecast-hi-95"].to_numpy(), rtol=1e-6)
    hours = pd.date_range("2024-01-01", periods=N, freq="h", tz="Europe/Berlin", name="when")
    wide = pd.DataFrame({"a": values(), "b": values(1)}, index=hours)
    table = plmu.Forecaster(**OPTIONS).fit(wide).cross_validation(windows=2)
    assert table.columns.tolist() == ["when", "cutoff", "a", "a-forecast", "b", "b-forecast"]
    assert table["when"].tolist() == wide.index[-2 * HORIZON :].tolist()
    ahead = plmu.Forecaster(**OPTIONS).fit(wide[:-HORIZON]).predict()
    np.testing.assert_array_equal(table["b-forecast"].to_numpy()[-HORIZON:], ahead["b"].to_numpy())


def test_arrays() -> None:
    flat = plmu.Forecaster(**OPTIONS).fit(values()).cross_validation(windows=2)
    assert flat.columns == ["row", "cutoff", "value 1", "forecast"]
    assert flat["cutoff"].unique().to_list() == [N - 2 * HORIZON, N - HORIZON]
    np.testing.assert_array_equal(flat["value 1"].to_numpy(), values()[-2 * HORIZON :])
    expected = plmu.Forecaster(**OPTIONS).fit(values()[:-HORIZON]).predict()
    np.testing.assert_array_equal(flat["forecast"].to_numpy()[-HORIZON:], expected)
    several, short = [values(), values(1)], values(1)[:8]
    fitted = plmu.Forecaster(**OPTIONS).fit([*several, short], validation_rows=[12, 12, 0])
    table = fitted.cross_validation(windows=2)
    assert table["series"].value_counts(sort=False).sort("series")["count"].to_list() == [12, 12, 6]
    past = [*(rows[:-HORIZON] for rows in several), short[:-HORIZON]]
    last = plmu.Forecaster(**OPTIONS).fit(past, validation_rows=[12, 12, 0]).predict()
    np.testing.assert_array_equal(table["forecast"].to_numpy()[HORIZON : 2 * HORIZON], last[0])


def test_series_too_short_for_a_cutoff_are_left_out_of_it() -> None:
    series = [values(1)[:8], values(), values(2)]
    fitted = plmu.Forecaster(HORIZON, season=12, pooled=True).fit(series)
    table = fitted.cross_validation(windows=2)
    assert table["series"].to_list() == ["0"] * HORIZON + ["1"] * 2 * HORIZON + ["2"] * 2 * HORIZON
    past = [rows[: -2 * HORIZON] for rows in series[1:]]
    first = plmu.Forecaster(HORIZON, season=12, pooled=True).fit(past).predict()
    np.testing.assert_array_equal(table["forecast"].to_numpy()[HORIZON : 2 * HORIZON], first[0])


def test_what_cannot_be_is_named() -> None:
    fitted = plmu.Forecaster(**OPTIONS).fit(long())
    for options, fault in (
        ({"windows": 0}, "windows must be an integer of at least 1, got 0"),
        ({"step": 1.5}, "step must be an integer of at least 1, got 1.5"),
        ({"horizon": 7}, "horizon must be an integer from 1 to 6, which was fitted, got 7"),
        (
            {"windows": 20},
            "the first of 20 cutoffs is 120 steps before the end of the series, none of which has so many",
        ),
        ({"windows": 13}, "cutoff 1 of 13, 78 steps before the end: "),
    ):
        with pytest.raises(ValueError, match=fault):
            fitted.cross_validation(**options)  # type: ignore[arg-type]


def test_horizons_up_to_the_fitted_one_and_quantiles() -> None:
    data = np.stack([values(), values(1)], axis=1)
    fitted = plmu.Forecaster(**OPTIONS).fit(data)
    whole, part = fitted.predict(level=[80, 95]), fitted.predict(level=[80, 95], horizon=2)
    for name in ("mean", "lower", "upper"):
        np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[..., :2, :])
    np.testing.assert_array_equal(fitted.predict(horizon=HORIZON), whole.mean)
    for wrong in (0, 7, 2.0, True):
        with pytest.raises(ValueError, match="horizon must be an integer from 1 to 6, which was fitted, got"):
            fitted.predict(horizon=wrong)  # type: ignore[arg-type]
    quantiles = fitted.predict(quantiles=[0.9, 0.5, 0.1, 0.025], horizon=3)
    assert quantiles.shape == (4, 3, 2)
    expected = [whole.upper[0], whole.mean, whole.lower[0], whole.lower[1]]
    np.testing.assert_array_equal(quantiles, np.stack(expected)[:, :3])
    frame = plmu.Forecaster(**OPTIONS).fit(long())
    table, bounds = frame.predict(quantiles=[0.1, 0.9]), frame.predict(level=80)
    assert table.columns.tolist() == ["unique_id", "ds", "y", "y-q-10", "y-q-90"]
    np.testing.assert_array_equal(table.to_numpy()[:, 2:], bounds.to_numpy()[:, 2:])
    wide = plmu.Forecaster(**OPTIONS).fit(long()[["ds", "y"]][:N]).predict(quantiles=[0.5], horizon=1)
    assert wide.columns.tolist() == ["ds", "y", "y-q-50"]
    assert wide["y"][0] == wide["y-q-50"][0]
    for wrong in ([], [0.5, 0.5], [1.0], 0.5):
        with pytest.raises(ValueError, match="quantiles must be different numbers between 0 and 1"):
            fitted.predict(quantiles=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give level or quantiles"):
        fitted.predict(quantiles=[0.5], level=80)
