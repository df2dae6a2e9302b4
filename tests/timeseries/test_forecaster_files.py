"""`plmu.Forecaster` on files, with intervals, backtests and plots: what `plmu train forecast` and `plmu predict` do."""

from __future__ import annotations

import csv
import io
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forecasts import COUNT, HORIZON, values, written
from program import refused

import plmu
from plmu.cli.program import main
from plmu.errors import DataError
from plmu.timeseries import Forecast, SeriesData, read_series

LEVELS = [80, 95]


def command(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    """What `plmu predict` prints for a run."""
    capsys.readouterr()
    main(["predict", *words, "--quiet"])
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def assert_same(frame: Any, rows: list[dict[str, str]], columns: tuple[str, ...]) -> None:
    """The forecasts and intervals of Python are those of the command."""
    assert len(frame) == len(rows)
    for name in columns:
        names = {name: name}
        for level in LEVELS:
            names |= {f"{name}-lo-{level}": f"{name} low {level}", f"{name}-hi-{level}": f"{name} high {level}"}
        for ours, theirs in names.items():
            np.testing.assert_allclose(frame[ours].to_numpy(), [float(row[theirs]) for row in rows], rtol=1e-8)


def test_the_estimator_is_the_command(load_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forecaster = plmu.Forecaster(HORIZON, validation=0.1, test=0.2, pooled=False).fit("load.csv")
    frame = forecaster.predict(level=LEVELS)
    rows = command([str(load_run), "--data.file", "load.csv"], capsys)
    assert_same(frame, rows, ("load", "temp"))
    assert [str(time)[:16] for time in frame["time"].to_list()] == [row["time"] for row in rows]
    test = json.loads((load_run / "result.json").read_text())["test"]
    scores = forecaster.evaluate()
    for name in ("mse", "mae", "last value mse", "seasonal last value mse", "linear mse"):
        assert scores[name] == test[name.replace(" ", "_")]
    folds = json.loads((load_run / "forecast.json").read_text())["backtest"]
    assert forecaster.backtest(folds=2) == folds
    assert any(note.startswith("time: column 'time', every 2 h") for note in forecaster.notes_)
    memory = "a look-back of 123; order 61 over θ = 123 steps, which holds up to 17.4 cycles a window"
    assert forecaster.notes_[-2] == f"model: forecasts 6 steps from {memory}; a season of 12 steps is tried"
    assert re.fullmatch(r"intervals: from \d+ errors of each step ahead", forecaster.notes_[-1])


def test_a_saved_run_predicts_the_same(load_run: Path) -> None:
    forecaster = plmu.Forecaster(HORIZON, validation=0.1, test=0.2, pooled=False).fit("load.csv")
    saved = plmu.Forecaster.from_run(load_run)
    assert saved.levels_ == (80, 95)
    ours, theirs = forecaster.predict(level=95), saved.predict("load.csv", level=95)
    assert ours.columns == theirs.columns == ["time", "load", "load-lo-95", "load-hi-95", "temp", "temp-lo-95",
                                              "temp-hi-95"]  # fmt: skip
    np.testing.assert_allclose(ours.drop("time").to_numpy(), theirs.drop("time").to_numpy(), rtol=1e-6)
    with pytest.raises(ValueError, match="level must be of those of the run: 80, 95"):
        saved.predict("load.csv", level=50)
    with pytest.raises(ValueError, match="backtest needs the series of fit"):
        saved.backtest()


def test_series_with_covariates_are_those_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = ["day,shop,sales,price"]
    for shop, size in (("a", 1.0), ("b", 30.0)):
        for i in range(204):
            price = 1 + rng.random()
            sales = size * (20 + 5 * np.sin(2 * np.pi * i / 7) - 4 * price + 0.3 * rng.standard_normal())
            rows.append(f"{np.datetime64('2024-01-01') + i},{shop},{sales if i < 200 else '':.5},{price:.3f}"
                        if i < 200 else f"{np.datetime64('2024-01-01') + i},{shop},,{price:.3f}")  # fmt: skip
    Path("shops.csv").write_text("\n".join([*rows, ""]))
    main(["train", "forecast", "--data.file", "shops.csv", "--data.covariates", "price", "--horizon", "4", "--quiet"])
    shown = command(["runs/forecast-shops-seed0", "--data.file", "shops.csv"], capsys)
    forecaster = plmu.Forecaster(4, validation=0.1, test=0.2, covariates=["price"]).fit(Path("shops.csv"))
    frame = forecaster.predict(level=LEVELS)
    assert frame.columns[:2] == ["shop", "day"]
    assert frame["shop"].to_list() == [row["shop"] for row in shown]
    assert [str(day.date()) for day in frame["day"]] == [row["day"] for row in shown]
    assert_same(frame, shown, ("sales",))
    Path("past.csv").write_text("\n".join(row for row in rows if ",," not in row) + "\n")
    Path("plan.csv").write_text("\n".join([rows[0], *(row for row in rows if ",," in row), ""]))
    ahead = forecaster.predict("past.csv", future="plan.csv", level=LEVELS)
    np.testing.assert_array_equal(ahead["sales-hi-95"].to_numpy(), frame["sales-hi-95"].to_numpy())
    with pytest.raises(ValueError, match="covariate 'price' must be known for 4 rows after the last row of X, got 0"):
        forecaster.predict("past.csv")
    assert forecaster.evaluate()["without covariates mse"] > 2 * forecaster.evaluate()["mse"]


def test_options_of_the_reader(tmp_path: Path) -> None:
    lines = written(150).splitlines()
    lines[20] = lines[20].rpartition(",")[0] + ",-999"
    (tmp_path / "load.csv").write_text("\n".join([*lines, ""]))
    data = read_series(tmp_path / "load.csv", values="load")
    assert isinstance(data, SeriesData)
    assert data.columns.values == ("load",)
    data = read_series(tmp_path / "load.csv", absent=-999, missing="linear", time="time")
    assert any("joined linearly" in note for note in data.notes)
    assert plmu.Forecaster(3).fit(data).predict().columns == ["time", "load", "temp"]
    with pytest.raises(TypeError, match="read_series has no option 'value'; did you mean 'values'"):
        read_series(tmp_path / "load.csv", value="load")
    with pytest.raises(ValueError, match="missing must be one of 'hold', 'linear', 'split', 'raise', got 'zero'"):
        read_series(tmp_path / "load.csv", missing="zero")
    with pytest.raises(DataError, match="is not there"):
        plmu.Forecaster(3).fit(tmp_path / "no.csv")
    with pytest.raises(ValueError, match="starts, validation_rows and names are for arrays and frames"):
        plmu.Forecaster(3).fit(data, starts=[0])


def test_intervals_of_arrays_hold_and_widen() -> None:
    data = values(600)
    forecaster = plmu.Forecaster(HORIZON, lookback=36).fit(data[:500])
    found = forecaster.predict(level=[95, 80])
    assert isinstance(found, Forecast)
    assert found.levels == (80, 95)
    assert (found.mean.shape, found.lower.shape, found.upper.shape) == ((6, 2), (2, 6, 2), (2, 6, 2))
    np.testing.assert_array_equal(found.mean, forecaster.predict())
    assert (found.lower[1] <= found.lower[0]).all()
    assert (found.upper[0] < found.upper[1]).all()
    inside = []
    for end in range(500, 594):
        ahead = forecaster.predict(data[:end], start=0, level=80)
        truth = data[end : end + HORIZON]
        inside.append((ahead.lower[0] <= truth) & (truth <= ahead.upper[0]))
    assert 0.7 < np.mean(inside) < 0.9
    flat = plmu.Forecaster(3, lookback=24).fit(data[:300, 0]).predict(level=80)
    assert (flat.mean.shape, flat.lower.shape) == ((3,), (1, 3))
    assert [one.lower.shape for one in plmu.Forecaster(3).fit([data[:90], data[:80]]).predict(level=50)] == [
        (1, 3, 2)
    ] * 2
    for level in ([], 0, 100, [80, 101]):
        with pytest.raises(ValueError, match="level must be percentages between 0 and 100"):
            forecaster.predict(level=level)
    again = pickle.loads(pickle.dumps(forecaster))
    np.testing.assert_array_equal(again.predict(level=80).upper, found.upper[:1])


def test_intervals_are_of_rows_that_were_not_fitted() -> None:
    """With `refit`, of the model before it."""
    data = values(400)
    kept, again = (plmu.Forecaster(4, lookback=24, season=12, refit=refit).fit(data) for refit in (False, True))
    assert not np.array_equal(kept.predict(), again.predict())
    widths = [one.predict(level=80) for one in (kept, again)]
    np.testing.assert_allclose(widths[0].upper - widths[0].mean, widths[1].upper - widths[1].mean)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_frames_get_times(kind: str) -> None:
    library = pytest.importorskip(kind)
    times = np.datetime64("2024-01-01T00:00", "us") + np.arange(COUNT) * np.timedelta64(7200 * 10**6, "us")
    data = values()
    frame = library.DataFrame({"when": times, "load": data[:, 0], "temp": data[:, 1]})
    forecaster = plmu.Forecaster(HORIZON, lookback=36).fit(frame)
    assert list(forecaster.predict().columns) == ["load", "temp"]
    found = forecaster.predict(level=LEVELS)
    assert list(found.columns) == ["when", "load", "load-lo-80", "load-hi-80", "load-lo-95", "load-hi-95",
                                   "temp", "temp-lo-80", "temp-hi-80", "temp-lo-95", "temp-hi-95"]  # fmt: skip
    np.testing.assert_array_equal(found[["load", "temp"]].to_numpy(), forecaster.predict().to_numpy())
    expected = times[-1] + np.timedelta64(7200 * 10**6, "us") * np.arange(1, 1 + HORIZON)
    np.testing.assert_array_equal(found["when"].to_numpy().astype("datetime64[us]"), expected)
    later = forecaster.predict(frame[:200], level=80)
    assert later["when"].to_numpy().astype("datetime64[us]")[0] == times[200]
    plain = plmu.Forecaster(HORIZON, lookback=36).fit(frame[["load"]]).predict(level=80)
    assert list(plain.columns) == ["load", "load-lo-80", "load-hi-80"]


def test_an_index_of_business_days_goes_on_with_business_days() -> None:
    pandas = pytest.importorskip("pandas")
    days = pandas.bdate_range("2024-01-01", periods=203, name="day")
    frame = pandas.DataFrame({"x": np.sin(np.arange(203) / 3)}, index=days)
    found = plmu.Forecaster(3, lookback=20).fit(frame[:200]).predict(level=90)
    assert list(found.index) == list(days[200:])
    assert found.index.name == "day"
    zoned = frame.tz_localize("Europe/Berlin").asfreq("h", method="pad")[:200]
    ahead = plmu.Forecaster(3, lookback=20).fit(zoned).predict(level=90)
    assert str(ahead.index.tz) == "Europe/Berlin"
    assert ahead.index[0] == zoned.index[-1] + pandas.Timedelta("1h")


def test_evaluate_has_the_baselines_and_backtest_its_folds() -> None:
    data = values(500)
    forecaster = plmu.Forecaster(HORIZON, lookback=36, test=0.2).fit(data)
    scores = forecaster.evaluate()
    assert scores["windows"] == 100 - HORIZON + 1
    assert scores["mse"] < 0.5 * scores["last value mse"]
    assert scores["linear mse"] > 0 < scores["seasonal last value mse"]
    start = 400 - 36
    again = forecaster.evaluate(data[start:], start=start)
    assert again["mse"] == pytest.approx(scores["mse"], rel=1e-4)
    assert again["variance"] == pytest.approx(scores["variance"], rel=1e-4)
    naive = data[399:494]
    errors = [(data[o + 1 : o + 1 + HORIZON] - naive[i]) / forecaster.scale_ for i, o in enumerate(range(399, 494))]
    assert scores["last value mse"] == pytest.approx(float(np.mean(np.square(errors))), rel=1e-2)
    folds = forecaster.backtest(folds=3)
    assert [fold["rows"] for fold in folds] == [250, 333, 417]
    assert all(fold["model_mse"] < fold["last_value_mse"] for fold in folds)
    other = forecaster.backtest(values(300), folds=2)
    assert [fold["rows"] for fold in other] == [150, 225]
    with pytest.raises(ValueError, match="folds must be an integer of at least 1, got 0"):
        forecaster.backtest(folds=0)
    with pytest.raises(ValueError, match="there are no test rows: give X, or hold some out"):
        plmu.Forecaster(HORIZON, lookback=36).fit(data).evaluate()
    with pytest.raises(ValueError, match="test must be a share"):
        plmu.Forecaster(HORIZON, test=1.5).fit(data)


def test_it_draws(tmp_path: Path) -> None:
    plmu.Forecaster(HORIZON, lookback=36).fit(values()).plot(tmp_path / "forecast.png", level=80)
    assert (tmp_path / "forecast.png").read_bytes().startswith(b"\x89PNG")


def test_the_old_name_of_alpha(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(DeprecationWarning, match="strength is now called alpha"):
        forecaster = plmu.Forecaster(4, strength=0.1)
    assert forecaster.alpha == 0.1
    with pytest.warns(DeprecationWarning, match="strength is now called alpha"):
        forecaster.set_params(strength=0.2)
    assert "strength" not in forecaster.get_params()
    forecaster.fit(values(100))
    with pytest.warns(DeprecationWarning, match="alpha"):
        assert forecaster.validation_["strength"] == forecaster.validation_["alpha"] == 0.2
    monkeypatch.chdir(tmp_path)
    Path("load.csv").write_text(written(150))
    words = ["train", "forecast", "--data.file", "load.csv", "--horizon", "3"]
    main([*words, "--model.strength", "0.5", "--quiet"])
    assert "--model.strength is now called --model.alpha" in capsys.readouterr().err
    config = Path("runs/forecast-load-seed0/config.json")
    content = json.loads(config.read_text())
    assert content["config"]["model"].pop("alpha") == 0.5
    content["config"]["model"]["strength"] = 0.5  # as runs of version 0.1 have it
    config.write_text(json.dumps(content))
    main([*words, "--model.alpha", "0.5"])
    assert "is finished: nothing was trained" in capsys.readouterr().out
    main(["evaluate", "runs/forecast-load-seed0"])
    main(["predict", "runs/forecast-load-seed0", "--data.file", "load.csv"])
    assert "another configuration (model.alpha was 0.5, now 0.1)" in refused([*words, "--model.alpha", "0.1"], capsys)
