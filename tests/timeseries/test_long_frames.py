"""Data frames in long format, a row for each time of each series: read as a file with their content, and forecast in
the same form."""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import plmu
from plmu.errors import DataError
from plmu.timeseries import read_series

N, HORIZON = 84, 6
OPTIONS: dict[str, Any] = {"horizon": HORIZON, "pooled": False, "lookback": 24, "order": 6, "season": 12}
MONTHS = pd.date_range("2018-01-01", periods=N, freq="MS")


def values(place: int, rows: int = N) -> np.ndarray:
    rng = np.random.default_rng(place)
    season = np.sin(2 * np.pi * np.arange(rows) / 12)
    return ((1 + 9 * place) * (10 + 3 * season + 0.2 * rng.standard_normal(rows))).round(3)


def long(id: str = "unique_id", time: str = "ds", value: str = "y", ids: Any = ("b", "a", "c")) -> pd.DataFrame:
    """Three series, which begin at different times."""
    parts = [
        pd.DataFrame({id: [label] * (N - 5 * place), time: MONTHS[5 * place :], value: values(place)[5 * place :]})
        for place, label in enumerate(ids)
    ]
    return pd.concat(parts, ignore_index=True)


def as_polars(frame: pd.DataFrame) -> pl.DataFrame:
    """The same frame of polars."""
    return pl.DataFrame({name: pl.Series(frame[name].to_list()) for name in frame.columns})


def in_form(frame: pd.DataFrame, kind: str) -> Any:
    return as_polars(frame) if kind == "polars" else frame


def assert_as_file(frame: Any, path: Path, **options: Any) -> plmu.Forecaster:
    """The frame gives the series and the forecasts of a file with its content; return its forecaster."""
    (frame.to_csv(path, index=False) if isinstance(frame, pd.DataFrame) else frame.write_csv(path))
    expected = read_series(path, **options)
    ours = read_series(frame, **options)
    assert len(ours.pieces) == len(expected.pieces)
    for piece, same in zip(ours.pieces, expected.pieces, strict=True):
        assert (piece.name, piece.start, piece.offset) == (same.name, same.start, same.offset)
        np.testing.assert_array_equal(piece.values, same.values)
        np.testing.assert_array_equal(piece.measured, same.measured)
    of_file = plmu.Forecaster(**OPTIONS).fit(expected)
    of_frame = plmu.Forecaster(**OPTIONS).fit(frame if not options else ours)
    by_file, by_frame = (fitted.predict(level=[80, 95]) for fitted in (of_file, of_frame))
    assert list(by_file.columns) == list(by_frame.columns)
    assert type(by_frame) is type(frame)
    for name in by_file.columns[-5:]:
        np.testing.assert_array_equal(by_frame[name].to_numpy(), by_file[name].to_numpy())
    assert by_file[by_file.columns[0]].to_list() == [str(cell) for cell in by_frame[by_frame.columns[0]].to_list()]
    times = by_frame[by_frame.columns[1]].to_list()
    assert [str(time)[:10] for time in times] == [str(time)[:10] for time in by_file[by_file.columns[1]].to_list()]
    return of_frame


@pytest.mark.parametrize("kind", ["pandas", "polars"])
@pytest.mark.parametrize(
    "names", [("unique_id", "ds", "y"), ("store", "when", "sales")], ids=["usual names", "other names"]
)
def test_a_long_frame_goes_the_road_of_a_file(kind: str, names: tuple[str, str, str], tmp_path: Path) -> None:
    frame = in_form(long(*names), kind)
    forecaster = assert_as_file(frame, tmp_path / "y.csv")
    ahead = forecaster.predict()
    assert list(ahead.columns) == list(names)
    assert ahead[names[0]].to_list() == ["b"] * HORIZON + ["a"] * HORIZON + ["c"] * HORIZON
    assert ahead[names[1]].dtype == frame[names[1]].dtype
    assert str(ahead[names[1]].to_list()[0])[:10] == "2025-01-01"
    assert forecaster.feature_names_in_.tolist() == [names[2]]
    assert any(note.startswith("series: 3, by column") for note in forecaster.notes_)
    again = pickle.loads(pickle.dumps(forecaster))
    assert again.predict().equals(ahead)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_gaps_in_a_long_frame_are_filled_by_the_options_of_the_reader(kind: str, tmp_path: Path) -> None:
    frame = long()
    frame.loc[[30, 31, 100], "y"] = np.nan
    frame = frame.drop(index=[40, 41]).reset_index(drop=True)
    shown = as_polars(frame).with_columns(pl.col("y").fill_nan(None)) if kind == "polars" else frame
    assert_as_file(shown, tmp_path / "y.csv")
    data = read_series(shown, missing="linear")
    assert any("joined linearly" in note for note in data.notes)
    assert_as_file(shown, tmp_path / "y.csv", missing="linear")
    split = assert_as_file(shown, tmp_path / "y.csv", missing="split")
    assert len(split.fitted_.series("test").data.pieces) > 3
    with pytest.raises(DataError, match=r"X, column 'y': no value at 2020-07-01: choose --data.missing hold"):
        read_series(shown, missing="raise")


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_columns_can_be_named(kind: str, tmp_path: Path) -> None:
    frame = long("store", "when", "sales", ids=(7, 8, 9)).assign(price=1.5, opened=MONTHS[0])
    frame["price"] += np.arange(len(frame)) % 3
    shown = in_form(frame, kind)
    names: dict[str, Any] = {"id": "store", "time": "when", "values": ["sales"]}
    fitted = plmu.Forecaster(**OPTIONS).fit(shown, **names)
    ahead = fitted.predict(level=80)
    assert list(ahead.columns) == ["store", "when", "sales", "sales-lo-80", "sales-hi-80"]
    assert ahead["store"].dtype == shown["store"].dtype  # numbers, as they are in the frame
    frame.to_csv(tmp_path / "y.csv", index=False)
    by_file = plmu.Forecaster(**OPTIONS).fit(tmp_path / "y.csv", **names).predict(level=80)
    np.testing.assert_array_equal(ahead["sales-hi-80"].to_numpy(), by_file["sales-hi-80"].to_numpy())
    single = shown[:N]
    alone = plmu.Forecaster(**OPTIONS).fit(single, id="store").predict()
    assert alone["store"].to_list() == [7] * HORIZON
    with pytest.raises(DataError, match="X has no column 'shop'"):
        plmu.Forecaster(**OPTIONS).fit(shown, id="shop")
    with pytest.raises(ValueError, match="id names a column: X must be a data frame or a file"):
        plmu.Forecaster(**OPTIONS).fit(values(0), id="store")
    with pytest.raises(ValueError, match="starts, validation_rows and names are for arrays and frames"):
        plmu.Forecaster(**OPTIONS).fit(long(), starts=[0])


def test_several_columns_that_name_series_come_back() -> None:
    frame = long("shop", "day", "sales").assign(item="x")
    frame = pd.concat([frame, frame.assign(item="y", sales=frame["sales"] * 2)], ignore_index=True)
    ahead = plmu.Forecaster(**OPTIONS).fit(frame, id="shop,item").predict()
    assert list(ahead.columns) == ["shop", "item", "day", "sales"]
    assert ahead[::HORIZON][["shop", "item"]].to_numpy().tolist() == [
        ["b", "x"], ["a", "x"], ["c", "x"], ["b", "y"], ["a", "y"], ["c", "y"]
    ]  # fmt: skip


def test_where_the_rules_need_a_choice_they_say_so() -> None:
    frame = pd.DataFrame({"time": MONTHS.repeat(3), "y": np.random.default_rng(0).standard_normal(3 * N)})
    fault = r"X: 168 of 252 rows repeat a time in column 'time'. Name the columns that tell series apart with --data.id"
    for shown in (frame, as_polars(frame)):
        with pytest.raises(DataError, match=fault):
            plmu.Forecaster(**OPTIONS).fit(shown)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_other_series_are_forecast(kind: str) -> None:
    forecaster = plmu.Forecaster(**OPTIONS).fit(in_form(long(), kind))
    other = long(ids=("new", "a", "b")).iloc[: 2 * N - 5]
    ahead = forecaster.predict(in_form(other, kind), level=80)
    assert ahead["unique_id"].to_list() == ["new"] * HORIZON + ["a"] * HORIZON
    same = forecaster.predict(level=80)
    np.testing.assert_allclose(ahead["y-hi-80"].to_numpy(), same["y-hi-80"].to_numpy()[: 2 * HORIZON], rtol=1e-12)
    scores = forecaster.evaluate(in_form(other, kind))
    assert scores["mse"] < scores["last value mse"]
    unnamed = in_form(other[["ds", "y"]].iloc[:N], kind)
    assert list(forecaster.predict(unnamed).columns) == ["ds", "y"]


@pytest.mark.parametrize("kind", ["pandas", "polars"])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_times_keep_their_zone(kind: str, zone: str, tmp_path: Path) -> None:
    hours = pd.date_range("2024-03-25", periods=N, freq="h", tz="UTC").tz_convert(zone)
    frame = long().assign(ds=[hours[k] for place in range(3) for k in range(5 * place, N)])
    shown = in_form(frame, kind)
    if kind == "polars":
        shown = shown.with_columns(pl.col("ds").dt.convert_time_zone(zone))
    forecaster = plmu.Forecaster(**OPTIONS).fit(shown)
    frame.to_csv(tmp_path / "y.csv", index=False)
    by_file = plmu.Forecaster(**OPTIONS).fit(tmp_path / "y.csv").predict()
    ahead = forecaster.predict()
    assert ahead["ds"].dtype == shown["ds"].dtype
    assert ahead["ds"].to_list()[0] == hours[-1] + timedelta(hours=1)
    np.testing.assert_array_equal(ahead["y"].to_numpy(), by_file["y"].to_numpy())
    later = forecaster.predict(shown[:N])
    assert later["ds"].to_list()[0] == hours[-1] + timedelta(hours=1)
    plain = in_form(frame.assign(ds=frame["ds"].dt.tz_localize(None)), kind)
    with pytest.raises(ValueError, match="X: its times have no time zone, and those of the training data have one"):
        forecaster.predict(plain)
    with pytest.raises(DataError, match="its times have a time zone, and those of the training data have none"):
        plmu.Forecaster(**OPTIONS).fit(plain).predict(shown)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
@pytest.mark.parametrize("freq", ["D", "MS"])
def test_days_of_a_time_zone_stay_days(kind: str, freq: str) -> None:
    """Days are not equally long where clocks change."""
    days = pd.date_range("2024-01-08", periods=N + HORIZON, freq=freq, tz="Europe/Berlin")
    frame = long().assign(ds=[days[k] for place in range(3) for k in range(5 * place, N)])
    shown = in_form(frame, kind)
    if kind == "polars":
        shown = shown.with_columns(pl.col("ds").dt.convert_time_zone("Europe/Berlin"))
    forecaster = plmu.Forecaster(**OPTIONS).fit(shown)
    for ahead in (forecaster.predict(), forecaster.predict(shown[:N])):
        assert ahead["ds"].dtype == shown["ds"].dtype
        assert ahead["ds"].to_list()[:HORIZON] == days[N:].to_list()
    # A batch of other size is summed in another order.
    np.testing.assert_allclose(ahead["y"].to_numpy(), forecaster.predict()["y"].to_numpy()[:HORIZON], rtol=1e-12)
    numbered = plmu.Forecaster(**OPTIONS).fit(frame.set_axis(range(3), axis=1), id="0", time="1").predict()
    assert numbered.columns.tolist() == ["0", "1", "2"]


def test_times_keep_their_type() -> None:
    frame = long()
    cases: dict[str, Any] = {
        "text": frame["ds"].dt.strftime("%Y-%m-%d"),
        "nanoseconds": frame["ds"].astype("datetime64[ns]"),
        "periods": frame["ds"].dt.to_period("M"),
        "integers": np.concatenate([np.arange(5 * place, N) for place in range(3)]),
    }
    for kind, times in cases.items():
        changed = frame.assign(ds=times)
        ahead = plmu.Forecaster(**OPTIONS).fit(changed).predict()
        assert ahead["ds"].dtype == changed["ds"].dtype, kind
        assert str(ahead["ds"][0])[:7] == ("84" if kind == "integers" else "2025-01"), kind
    dates = as_polars(frame).with_columns(pl.col("ds").cast(pl.Date))
    assert plmu.Forecaster(**OPTIONS).fit(dates).predict()["ds"].dtype == pl.Date


def test_an_index_of_names_and_times_is_columns() -> None:
    frame = long()
    expected = plmu.Forecaster(**OPTIONS).fit(frame).predict()
    for indexed in (frame.set_index(["unique_id", "ds"]), frame.set_index("unique_id"), frame.set_index("ds")):
        assert plmu.Forecaster(**OPTIONS).fit(indexed).predict()[expected.columns.tolist()].equals(expected)
    categories = frame.astype({"unique_id": "category"})
    assert plmu.Forecaster(**OPTIONS).fit(categories).predict()["unique_id"].dtype == "category"


def test_large_numbers_that_name_series_stay_apart() -> None:
    frame = long(ids=(2**60, 2**60 + 1, 2**60 + 2))
    ahead = plmu.Forecaster(**OPTIONS).fit(frame).predict()
    assert ahead["unique_id"].unique().tolist() == [2**60, 2**60 + 1, 2**60 + 2]


def test_a_single_series_with_its_name_and_wide_frames_stay() -> None:
    frame = long()[:N]
    ahead = plmu.Forecaster(**OPTIONS).fit(frame).predict()
    assert list(ahead.columns) == ["unique_id", "ds", "y"]
    wide = frame[["ds", "y"]]
    out = plmu.Forecaster(**OPTIONS).fit(wide).predict()
    assert list(out.columns) == ["y"]
    rows = pd.DataFrame({"unique_id": np.arange(N), "y": values(0)}, index=MONTHS)  # which numbers rows
    assert list(plmu.Forecaster(**OPTIONS).fit(rows, time="", id="").predict().columns)[-1] == "y"


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_covariates_of_long_frames_are_known_ahead(kind: str) -> None:
    price = np.random.default_rng(1).random(N + HORIZON).round(2)
    months = pd.date_range("2018-01-01", periods=N + HORIZON, freq="MS")
    parts = [
        pd.DataFrame({"unique_id": name, "ds": months, "price": price,
                      "y": np.append(values(place) - 5 * (1 + 9 * place) * price[:N], [np.nan] * HORIZON)})
        for place, name in enumerate("ab")
    ]  # fmt: skip
    frame = pd.concat(parts, ignore_index=True)
    options = {**OPTIONS, "covariates": ["price"]}
    whole = plmu.Forecaster(**options).fit(in_form(frame, kind))
    past, plan = frame[frame["y"].notna()], frame[frame["y"].isna()].drop(columns="y")
    cut = plmu.Forecaster(**options).fit(in_form(past, kind))
    expected = whole.predict(level=80)
    ahead = cut.predict(future=in_form(plan, kind), level=80)
    assert ahead.equals(expected)
    short = plan[plan["ds"] < months[N + 2]]
    few = cut.predict(future=in_form(short, kind), horizon=2)
    np.testing.assert_array_equal(few["y"].to_numpy()[:2], expected["y"].to_numpy()[:2])
    with pytest.raises(ValueError, match="covariate 'price' must be known for 3 rows after the last row of X, got 2"):
        cut.predict(future=in_form(short, kind), horizon=3)
    table = cut.cross_validation(windows=2)
    assert len(table) == 2 * 2 * HORIZON


def test_a_run_of_a_file_predicts_a_long_frame(tmp_path: Path) -> None:
    long().to_csv(tmp_path / "y.csv", index=False)
    fitted = plmu.Forecaster(**OPTIONS).fit(tmp_path / "y.csv")
    by_frame = fitted.predict(long())
    np.testing.assert_array_equal(by_frame["y"].to_numpy(), fitted.predict()["y"].to_numpy())
    assert isinstance(by_frame, pd.DataFrame)
    back = plmu.Forecaster(**OPTIONS).fit(long()).predict(tmp_path / "y.csv")
    assert isinstance(back, pl.DataFrame)
    np.testing.assert_array_equal(by_frame["y"].to_numpy(), back["y"].to_numpy())
