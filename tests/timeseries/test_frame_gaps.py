"""Data frames whose times skip steps are treated as the same rows in a file."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import plmu
from plmu.timeseries import read_series

N, SEASON = 400, 24
HOURS = pd.date_range("2024-01-01", periods=N, freq="h")
SHORT, LONG = [*range(100, 103), 250], [*range(100, 103), *range(200, 260)]
OPTIONS: dict[str, Any] = {"lookback": 24, "order": 6, "season": SEASON}


def rows() -> pd.DataFrame:
    k, rng = np.arange(N), np.random.default_rng(0)
    holiday = (rng.random(N) < 0.2).astype(float)
    y = 10 + 3 * np.sin(2 * np.pi * k / SEASON) - 2 * holiday + 0.1 * rng.standard_normal(N)
    return pd.DataFrame({"y": y.round(4), "holiday": holiday}, index=HOURS.rename("time"))


def written(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_csv(path)
    return path


def forms(frame: pd.DataFrame) -> dict[str, Any]:
    """The same rows as frames of pandas and polars."""
    column = frame.reset_index()
    return {"index": frame, "column": column, "polars": pl.DataFrame({c: column[c].to_numpy() for c in column})}


@pytest.mark.parametrize("missing", [SHORT, LONG], ids=["short", "long"])
def test_missing_rows_are_filled_or_split_as_in_a_file(
    missing: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    part = rows()[["y"]].drop(index=HOURS[missing])
    expected = read_series(written(part, tmp_path / "y.csv"))
    assert len(expected.pieces) == (1 if missing == SHORT else 2)
    ahead = []
    for name, frame in forms(part).items():
        caplog.clear()
        with caplog.at_level(logging.INFO, "plmu"):
            fitted = plmu.Forecaster(6, **OPTIONS).fit(frame)
        data = fitted.fitted_.series("test").data
        assert len(data.pieces) == len(expected.pieces)
        for piece, same in zip(data.pieces, expected.pieces, strict=True):
            assert piece.start == same.start
            np.testing.assert_array_equal(piece.values, same.values)
            np.testing.assert_array_equal(piece.measured, same.measured)
        gaps = [note for note in expected.notes if note.startswith("gaps")]
        assert gaps
        assert set(gaps) <= set(fitted.notes_), name
        assert set(gaps) <= set(caplog.messages)
        out = fitted.predict(level=80)
        first = out.index[0] if name == "index" else out["time"][0]
        assert str(first)[:16] == "2024-01-17 16:00"
        ahead.append(np.asarray(out["y"]))
    for other in ahead[1:]:
        np.testing.assert_array_equal(other, ahead[0])
    whole = plmu.Forecaster(6, **OPTIONS).fit(rows()[["y"]]).predict()["y"]
    assert np.abs(ahead[0] - whole).max() < 1  # the phase of the season is right


@pytest.mark.parametrize("missing", [SHORT, LONG], ids=["short", "long"])
def test_a_frame_and_a_file_are_forecast_alike(missing: list[int], tmp_path: Path) -> None:
    """Rows are missing in the look-back, too."""
    fitted = plmu.Forecaster(6, **OPTIONS).fit(written(rows()[["y"]], tmp_path / "all.csv"))
    part = rows()[["y"]].drop(index=HOURS[[*missing, *range(390, 394)]])
    expected = fitted.predict(written(part, tmp_path / "part.csv"))
    for frame in forms(part).values():
        np.testing.assert_array_equal(np.asarray(fitted.predict(frame)["y"]), expected["y"].to_numpy())
    options = {"missing": "linear", "longest_gap": 70}
    linear = plmu.Forecaster(6, **OPTIONS).fit(read_series(tmp_path / "all.csv", **options))
    other = linear.predict(tmp_path / "part.csv")["y"].to_numpy()  # in which frames are read like the file of the fit
    np.testing.assert_array_equal(linear.predict(part)["y"], other)
    assert np.abs(other - expected["y"].to_numpy()).max() > 1e-3
    by_start = fitted.predict(part[300 - len(missing) :], start=300)["y"]
    np.testing.assert_allclose(by_start, expected["y"].to_numpy(), rtol=1e-12)


def test_covariates_of_missing_rows_and_ahead(tmp_path: Path) -> None:
    """As further rows, and as `future` with and without times."""
    part = rows().drop(index=HOURS[SHORT])
    fitted = plmu.Forecaster(6, **OPTIONS, covariates=["holiday"]).fit(part[:-6])
    ahead = part.copy()
    ahead.iloc[-6:, 0] = np.nan
    expected = fitted.predict(ahead)["y"]
    np.testing.assert_array_equal(fitted.predict(future=part[["holiday"]][-6:])["y"], expected)
    np.testing.assert_array_equal(fitted.predict(part[:-6], future=part["holiday"].to_numpy()[-6:])["y"], expected)
    from_file = plmu.Forecaster(6, **OPTIONS, covariates=["holiday"]).fit(written(part[:-6], tmp_path / "y.csv"))
    np.testing.assert_array_equal(
        from_file.predict(part[:-6], future=part[["holiday"]][-6:])["y"],
        from_file.predict(written(ahead, tmp_path / "ahead.csv"))["y"].to_numpy(),
    )


def test_several_frames_of_which_one_is_split() -> None:
    """Validation rows, names and starts are those of whole series; forecasts follow the last part."""
    frames = [rows()[["y"]].drop(index=HOURS[LONG]), rows()[["y"]]]
    fitted = plmu.Forecaster(6, **OPTIONS).fit(frames, validation_rows=[160, 80], names=["a", "b"], starts=[0, 24])
    split = fitted.fitted_.series("test")
    assert [(piece.name, piece.start, len(piece)) for piece in split.data.pieces] == [
        ("a", 0, 200),
        ("a", 260, 140),
        ("b", 24, 400),
    ]
    assert split.cuts == [(180, 200), (0, 140), (320, 400)]
    assert split.validation_rows == [20, 140, 80]
    assert fitted.model.season == SEASON
    first, second = fitted.predict()
    np.testing.assert_allclose(first["y"], fitted.predict(frames, start=0)[0]["y"], rtol=1e-12)
    assert len(second) == 6


def test_both_parts_of_a_split_series_are_scored(tmp_path: Path) -> None:
    """Of a frame and of a file; windows do not span the gap."""
    fitted = plmu.Forecaster(6, **OPTIONS).fit(rows()[["y"]])
    part = rows()[["y"]].drop(index=HOURS[range(200, 260)])
    windows = sum(length - 24 - 6 + 1 for length in (200, 140))
    assert fitted.evaluate(part)["windows"] == windows
    from_file = plmu.Forecaster(6, **OPTIONS).fit(written(rows()[["y"]], tmp_path / "all.csv"))
    path = written(part, tmp_path / "part.csv")
    assert from_file.evaluate(path) == from_file.evaluate(part) == from_file.evaluate(path, start=0)
    assert from_file.evaluate(path)["windows"] == windows


def test_times_that_are_mostly_far_apart_are_refused() -> None:
    times = HOURS[0] + pd.to_timedelta(np.cumsum(np.tile([1, 1, 60], 100)), "h")
    with pytest.raises(
        ValueError, match="X: the times are 1 h apart at the median, yet 100 of 300 are more than 48 such"
    ):
        plmu.Forecaster(6).fit(pd.DataFrame({"y": np.arange(300.0)}, index=times))


def test_a_run_with_a_time_zone_forecasts_frames_at_the_right_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plmu.cli.program import main

    monkeypatch.chdir(tmp_path)
    frame = rows()[["y"]].tz_localize("+05:00")
    main(["train", "forecast", "--data.file", str(written(frame, tmp_path / "y.csv")), "--horizon", "6", "--quiet"])
    fitted = plmu.Forecaster.from_run("runs/forecast-y-seed0")
    assert fitted.settings_.clock.zone == 300
    expected = fitted.predict(written(frame[:-7], tmp_path / "part.csv"))["y"].to_numpy()
    for zone in ("+05:00", "UTC"):
        out = fitted.predict(frame[:-7].tz_convert(zone), level=80)
        np.testing.assert_array_equal(out["y"], expected)
        assert out.index[0] == frame.index[-7]
