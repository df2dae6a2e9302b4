"""Public holidays as a covariate, with a stand-in for the package holidays, whose calendars change with the years."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from forecasts import table
from program import refused

import plmu
from plmu.cli.program import main
from plmu.clock import Clock
from plmu.errors import DataError
from plmu.timeseries import read_series
from plmu.timeseries.public_holidays import AHEAD

polars = pytest.importorskip("polars")
FREE = ((1, 1), (3, 8), (5, 1), (7, 14), (9, 20), (10, 3), (11, 11), (12, 25), (12, 26))
RUN = Path("runs/forecast-shop-seed0")


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    def country_holidays(country: str, subdiv: str | None, years: Iterable[int]) -> list[date]:
        if country != "XX":
            raise NotImplementedError(country)
        return [date(year, *day) for year in years for day in (*FREE, *([(8, 15)] if subdiv == "BY" else []))]

    module = ModuleType("holidays")
    module.country_holidays = country_holidays  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "holidays", module)


def sales(rows: int = 900) -> tuple[np.ndarray, np.ndarray]:
    """Days from 2021 to 25 May 2023 or so, and sales, which fall by half on holidays."""
    days = np.datetime64("2020-12-07") + np.arange(rows)
    free = np.array([(day.astype(date).month, day.astype(date).day) in FREE for day in days])
    rng = np.random.default_rng(0)
    return days, (100 + 10 * np.sin(2 * np.pi * np.arange(rows) / 7) + rng.standard_normal(rows)) * (1 - 0.5 * free)


def written(rows: int) -> None:
    lines = [f"{day},{value:.3f}" for day, value in zip(*sales(rows), strict=True)]
    Path("shop.csv").write_text("\n".join(["day,sales", *lines, ""]))


ROWS = 760  # up to 5 January 2023
TO_CHRISTMAS = 748  # up to 24 December 2022


def test_holidays_are_known_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command, by the estimator of its run, and by one that is fitted; nobody gives future rows."""
    monkeypatch.chdir(tmp_path)
    written(ROWS)
    main(["train", "forecast", "shop.csv", "--horizon", "7", "--data.holidays", "XX"])
    shown = capsys.readouterr().out
    assert "covariates holidays XX: used" in shown
    assert f"next: plmu predict {RUN} shop.csv\n" in shown
    written(TO_CHRISTMAS)
    main(["predict", str(RUN), "shop.csv", "--quiet"])
    rows = table(capsys.readouterr().out)
    values = np.array([float(row["sales"]) for row in rows])
    assert rows[0]["day"] == "2022-12-25"
    assert (values[:2] < 70).all()
    assert (values[2:] > 80).all()
    saved = plmu.Forecaster.from_run(RUN).predict("shop.csv")
    np.testing.assert_allclose(saved["sales"].to_numpy(), values, rtol=1e-8)
    written(ROWS)
    forecaster = plmu.Forecaster(7, holidays="XX", validation=0.1, test=0.2).fit("shop.csv")
    written(TO_CHRISTMAS)
    np.testing.assert_allclose(forecaster.predict("shop.csv")["sales"].to_numpy(), values, rtol=1e-8)
    data = read_series("shop.csv")
    np.testing.assert_allclose(forecaster.predict(data)["sales"].to_numpy(), values, rtol=1e-8)
    assert forecaster.cross_validation(windows=2).height == 14


def test_frames_have_holidays_too() -> None:
    days, values = sales(ROWS)
    frames = [polars.DataFrame({"day": days, "sales": values, "price": np.sin(np.arange(ROWS))})]
    pandas = pytest.importorskip("pandas")
    frames.append(
        pandas.DataFrame({"sales": values, "price": np.sin(np.arange(ROWS))}, index=pandas.DatetimeIndex(days))
    )
    for frame in frames:
        forecaster = plmu.Forecaster(7, holidays="XX").fit(
            frame[["day", "sales"]] if "day" in frame else frame[["sales"]]
        )
        ahead = forecaster.predict(frame[:TO_CHRISTMAS])
        assert (np.asarray(ahead["sales"])[:2] < 70).all()
        both = plmu.Forecaster(7, holidays="XX", covariates=["price"]).fit(frame)
        assert both.settings_.covariates == ("price", "holidays XX")
        with pytest.raises(ValueError, match="price"):
            both.predict()
    with pytest.raises(ValueError, match="holidays='XX' needs dates: X must be a data frame with times, or a file"):
        plmu.Forecaster(7, holidays="XX").fit(values)


def counts_of(frame: Any, **options: Any) -> dict[str, float]:
    """The steps with holidays, and their number."""
    data = read_series(frame, **options)
    (piece,) = data.pieces
    assert piece.covariates is not None
    assert len(piece.covariates) == len(piece) + AHEAD
    counts = piece.covariates[: len(piece), -1]
    names = data.clock.times(piece.start + np.arange(len(piece)))
    return {name: count for name, count in zip(names, counts.tolist(), strict=True) if count}


def test_steps_of_other_lengths() -> None:
    days, values = sales(ROWS)
    times = days[0].astype("datetime64[us]") + np.timedelta64(1, "h") * np.arange(24 * 60)
    hours = polars.DataFrame({"time": times, "v": np.arange(1440.0) % 7})
    assert len(counts_of(hours, holidays="XX")) == 24 * 3  # Christmas and New Year
    frame = polars.DataFrame({"day": days, "sales": values})
    months = counts_of(frame, holidays="XX", step="1mo")
    assert months["2021-12-01"] == 2
    assert "2021-02-01" not in months
    weeks = counts_of(frame, holidays="XX", step="1w")
    assert weeks["2021-12-20"] == 2
    assert len(counts_of(frame, holidays="XX-BY")) == len(counts_of(frame, holidays="XX")) + 2
    weekdays = frame.filter(polars.col("day").dt.weekday() <= 5)
    found = counts_of(weekdays, holidays="XX")
    assert read_series(weekdays).clock.kind == "weekdays"
    assert "2020-12-25" in found
    assert "2020-12-26" not in found  # a Saturday


def test_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    written(100)
    words = ["train", "forecast", "shop.csv", "--data.holidays"]
    assert "holidays of 'QQ' are not known: give the code of a country such as DE" in refused([*words, "QQ"], capsys)
    with pytest.raises(DataError, match="holidays of XX need dates, and the times are rows"):
        read_series(polars.DataFrame({"v": np.arange(50.0)}), holidays="XX")
    monkeypatch.setitem(sys.modules, "holidays", None)
    assert "holidays need the package of that name: pip install holidays" in refused([*words, "XX"], capsys)


def test_a_clock_says_when_its_steps_begin() -> None:
    month = Clock("months", float(np.datetime64("2024-01-31", "us").astype(np.int64)), 1.0, ends=True)
    begins = month.begins(np.array([0, 1])).astype(np.int64).astype("datetime64[us]").astype("datetime64[D]")
    assert begins.tolist() == [date(2024, 1, 1), date(2024, 2, 1)]
    assert Clock("numbers", 3.0, 2.0).begins(np.array([0, 4])).tolist() == [3.0, 11.0]
