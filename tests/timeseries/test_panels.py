"""Files of many series, as people have them: `plmu train forecast`, `plmu predict` and `plmu.Forecaster` forecast each
of them, and agree."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forecasts import table
from program import refused

import plmu
from plmu.cli.program import main
from plmu.errors import DataError
from plmu.nn import PooledForecast
from plmu.runs.deployed import load as load_run
from plmu.timeseries.scores import Errors, model_method, score
from plmu.timeseries.series_scores import SeriesUnits

HORIZON = 6
RUN = Path("runs/forecast-panel-seed0")
Rows = list[tuple[Any, int, Any]]  # name, month, value


def month(k: int) -> str:
    return f"{2000 + k // 12}-{k % 12 + 1:02}-01"


def wave(name: Any, rows: int, level: float = 50.0, seed: int = 0) -> Rows:
    k, rng = np.arange(rows), np.random.default_rng(seed)
    values = level * (1 + 0.2 * np.sin(2 * np.pi * k / 12) + 0.03 * rng.standard_normal(rows))
    return [(name, int(i), float(f"{value:.6g}")) for i, value in zip(k, values, strict=True)]


def waves(count: int = 8, rows: int = 72) -> Rows:
    return [row for n in range(count) for row in wave(f"shop {n}", rows, 10.0 * (n + 1), n)]


def written(rows: Rows, id_column: str = "shop") -> None:
    """panel.csv in this folder."""
    lines = [f"{name},{month(k)},{value}" for name, k, value in rows]
    Path("panel.csv").write_text("\n".join([f"{id_column},month,sales", *lines, ""]))


def trained(*words: str) -> dict[str, float]:
    """The test scores of a run on panel.csv."""
    options = ["--horizon", str(HORIZON), "--model.season", "12", *words]
    main(["train", "forecast", "panel.csv", *options])
    return json.loads((RUN / "result.json").read_text())["test"]


def predicted(capsys: pytest.CaptureFixture[str], file: str = "panel.csv") -> list[dict[str, str]]:
    capsys.readouterr()
    main(["predict", str(RUN), "--data.file", file, "--quiet"])
    return table(capsys.readouterr().out)


ODD: dict[str, Rows] = {
    "one row": [("short", 71, 4.0)],
    "three rows": [("short", k, float(k)) for k in range(3)],
    "ends early": wave("early", 40),
    "constant": [("flat", k, 7) for k in range(72)],
    "zeros": [("rare", k, 0 if k % 5 else k % 3) for k in range(72)],
    "negative": wave("loss", 72, -20.0),
    "growth": [("growing", k, round(float(np.exp(k / 8)), 3)) for k in range(72)],
}


@pytest.mark.parametrize("name", ODD)
def test_odd_series_are_forecast_with_the_others(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command and by the estimator, which agree; the other series keep their quality."""
    monkeypatch.chdir(tmp_path)
    rows = [*waves(), *ODD[name]]
    written([rows[place] for place in np.random.default_rng(0).permutation(len(rows))])
    scores = trained()
    shown = capsys.readouterr().out
    assert "times: rows put into the order of time" in shown
    short = len(ODD[name]) < 2 * HORIZON
    assert ("short series: 1 of 9 have too few rows for a test; they are fitted and forecast" in shown) == short
    assert "model: readouts that all series share, with 0." in shown
    assert "members: " in shown
    assert scores["mase"] < scores["seasonal_last_value_mase"]
    forecaster = plmu.Forecaster(HORIZON, season=12, validation=0.1, test=0.2).fit("panel.csv")
    assert isinstance(forecaster.model, PooledForecast)
    evaluated = forecaster.evaluate()
    for key in ("mse", "mae", "mase", "smape", "Theta mse", "last value mase", "seasonal last value smape"):
        if key.replace(" ", "_") in scores:
            assert evaluated[key] == scores[key.replace(" ", "_")]
    frame, printed = forecaster.predict(level=[80, 95]), predicted(capsys)
    assert frame["shop"].to_list() == [row["shop"] for row in printed]
    assert len(printed) == 9 * HORIZON
    for ours, theirs in (("sales", "sales"), ("sales-lo-80", "sales low 80"), ("sales-hi-95", "sales high 95")):
        values = frame[ours].to_numpy()
        assert np.isfinite(values).all()
        np.testing.assert_allclose(values, [float(row[theirs]) for row in printed], rtol=1e-8, atol=1e-8)
    last = np.array([float(row["sales"]) for row in printed if row["shop"] == ODD[name][0][0]])
    if name == "one row":
        np.testing.assert_allclose(last, 4.0)
    if name == "constant":
        np.testing.assert_allclose(last, 7.0, rtol=0.1)


def test_ids_may_be_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written([row for n in (7, 3, 12) for row in wave(n, 60 - n, 10.0 * n, n)], "id")
    trained()
    assert "series: 3, by column 'id'" in capsys.readouterr().out
    printed = predicted(capsys)
    assert [row["id"] for row in printed[::HORIZON]] == ["7", "3", "12"]
    assert [row["month"][:7] for row in printed[::HORIZON]] == [month(60 - n)[:7] for n in (7, 3, 12)]


def test_faults_in_a_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Text names line and column. Rows of the same time are averaged, or refused, in their series alone."""
    monkeypatch.chdir(tmp_path)
    rows: Rows = waves(3, 40)
    written([*rows[:50], ("shop 1", 10, "n.m."), *rows[51:]])
    words = ["train", "forecast", "panel.csv", "--horizon", str(HORIZON)]
    assert "panel.csv, line 52, column 'sales': 'n.m.' is not a number" in refused(words, capsys)
    with pytest.raises(DataError, match="line 52"):
        plmu.Forecaster(HORIZON).fit("panel.csv")
    written([*rows, ("shop 1", 10, 3.0), ("shop 1", 10, 5.0)])
    trained("--data.id", "shop")
    assert "times: rows on the step of another: 2; averaged" in capsys.readouterr().out
    assert "shop 1" in refused([*words, "--data.id", "shop", "--data.duplicates", "raise", "--name", "x"], capsys)


def test_a_panel_of_which_the_longer_half_can_be_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written([row for n in range(8) for row in wave(f"s{n}", 9 if n % 2 else 72, seed=n)])
    trained()
    assert "short series: 4 of 8 have too few rows for a test" in capsys.readouterr().out
    assert len({row["shop"] for row in predicted(capsys)}) == 8
    notes = plmu.Forecaster(HORIZON, validation=0.1, test=0.2).fit("panel.csv").notes_
    assert any(note.startswith("short series: 4 of 8") for note in notes)


def test_thirty_months_are_forecast_a_year(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A single series that is too short for validation rows."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{month(k)},{value}" for _, k, value in wave("", 30)]
    Path("panel.csv").write_text("\n".join(["month,sales", *lines, ""]))
    main(["train", "forecast", "panel.csv", "--horizon", "12"])
    shown = capsys.readouterr().out
    assert "no validation rows, since series are too short" in shown
    result = json.loads((RUN / "result.json").read_text())
    assert result["valid"] == {}
    assert "validation" in result["notes"]
    assert len(predicted(capsys)) == 12
    main(["train", "forecast", "panel.csv", "--horizon", "12"])
    assert "is finished: nothing was trained" in capsys.readouterr().out
    main(["report", "--out", "report"])
    assert "forecast" in capsys.readouterr().out
    assert plmu.Forecaster(12).fit(np.array([value for *_, value in wave("", 30)])).predict().shape == (12,)


def test_new_series_are_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of another size, and shorter than any window; evaluate, export, stream and the run's estimator agree."""
    monkeypatch.chdir(tmp_path)
    written(waves())
    trained()
    new = [*wave("new", 60, 4000.0), ("tiny", 59, 3.0), *wave("shop 2", 65, 30.0, 2)]
    lines = [f"{name},{month(k)},{value}" for name, k, value in new]
    Path("new.csv").write_text("\n".join(["shop,month,sales", *lines, ""]))
    printed = predicted(capsys, "new.csv")
    assert [row["shop"] for row in printed[::HORIZON]] == ["new", "tiny", "shop 2"]
    saved = plmu.Forecaster.from_run(RUN)
    ahead = saved.predict("new.csv")["sales"].to_numpy()
    np.testing.assert_allclose(ahead, [float(row["sales"]) for row in printed], rtol=1e-8)
    k = np.arange(60, 66)
    np.testing.assert_allclose(ahead[:6], 4000 * (1 + 0.2 * np.sin(2 * np.pi * k / 12)), rtol=0.15)
    main(["evaluate", str(RUN), "--other-data", "--data.file", "new.csv"])
    assert "mase" in capsys.readouterr().out
    main(["evaluate", str(RUN)])
    for to, file in (("c", "model.c"), ("onnx", "model_step.onnx")):
        main(["export", str(RUN), "--to", to, "--out", "exported"])
        assert (Path("exported") / file).stat().st_size > 0
    stream = plmu.Stream(plmu.load(RUN / "model.plmu"))
    for name, _, value in new:
        if name == "new":
            flat = stream.push([value])
    np.testing.assert_allclose(np.asarray(flat), ahead[:6], rtol=50 * torch.finfo(torch.float32).eps)


def test_an_estimator_of_a_panel_has_all_methods(tmp_path: Path) -> None:
    """Plots, backtests, streams and scores of other rows."""
    series = [np.array([value for *_, value in wave("", 72, 10.0 * (n + 1), n)]) for n in range(6)]
    forecaster = plmu.Forecaster(HORIZON, season=12, test=0.2, pooled=True).fit(series)
    assert forecaster.evaluate()["mase"] < 1
    assert forecaster.evaluate([values[-40:] for values in series])["mase"] < 1
    assert forecaster.evaluate(series[:1]).keys().isdisjoint({"mase", "smape"})  # a single series
    folds = forecaster.backtest(folds=2)
    assert all(fold["model_mse"] < fold["last_value_mse"] for fold in folds)
    forecaster.plot(tmp_path / "forecast.png")
    assert (tmp_path / "forecast.png").stat().st_size > 1000
    stream = forecaster.stream(start=0)
    for value in series[0]:
        ahead = stream.push([value])
    np.testing.assert_allclose(np.asarray(ahead), forecaster.predict()[0], rtol=50 * torch.finfo(torch.float32).eps)


def test_a_frame_that_is_split_at_a_long_gap_is_cut_by_its_own_length() -> None:
    """Beside a shorter series; validation and test rows are the last ones of all parts."""
    pandas = pytest.importorskip("pandas")
    days = pandas.date_range("2024-01-01", periods=260, freq="D")
    values = 50 + 10 * np.sin(2 * np.pi * np.arange(260) / 7)
    whole = pandas.DataFrame({"day": days, "sales": values})
    frames = [whole[(days < days[100]) | (days >= days[160])], whole[:60]]
    forecaster = plmu.Forecaster(HORIZON, season=7, validation=0.2, test=0.2, pooled=True).fit(frames)
    split = forecaster.fitted_.split
    assert split is not None
    assert [len(piece) for piece in split.data.pieces] == [100, 100, 60]
    assert split.cuts == [(100, 100), (20, 60), (36, 48)]
    assert all(len(ahead) == HORIZON for ahead in forecaster.predict())


@pytest.mark.parametrize("count", [1000, pytest.param(5000, marks=pytest.mark.full)])
def test_thousands_of_short_series_take_seconds(count: int) -> None:
    rng = np.random.default_rng(0)
    k = np.arange(50)
    series = list(50 + rng.random((count, 1)) * 100 + 10 * np.sin(2 * np.pi * k / 7) + rng.standard_normal((count, 50)))
    begin = time.process_time()
    forecaster = plmu.Forecaster(7, season=7, test=0.2).fit(series)
    assert len(forecaster.predict()) == count
    assert forecaster.evaluate()["mase"] < 1
    assert time.process_time() - begin < 120  # some seconds; half a minute of 5,000 where something is quadratic


def test_mase_and_smape_are_those_of_competitions() -> None:
    """In loops: averages over the windows of each series, then over series, of which one is split in two parts."""
    series = [np.array([value for *_, value in wave("", rows, level, rows)]) for rows, level in ((60, 3), (50, 40))]
    series += [np.r_[series[0][:20] * 2], np.full(60, 5.0)]
    names = ["a", "b", "a", "flat"]
    forecaster = plmu.Forecaster(HORIZON, season=12, test=0.25, pooled=True).fit(series, names=names)
    split = forecaster.fitted_.split
    assert split is not None
    methods = {"last value": lambda examples: examples.windows[..., -1:].expand(-1, -1, HORIZON)}
    origins = split.scored("test")
    errors = score(methods, split, origins).errors["last value"]
    sums: dict[str, list[tuple[float, float]]] = {}
    for origin in origins.tolist():
        place = int(np.searchsorted(np.cumsum([len(values) for values in series]), origin, side="right"))
        row = origin - sum(len(values) for values in series[:place])
        ahead = series[place][row + 1 : row + 1 + HORIZON]
        absolute = np.abs(ahead - series[place][row])
        relative = 200 * absolute / (np.abs(ahead) + abs(series[place][row]))
        sums.setdefault(names[place], []).append((absolute.mean(), relative.mean()))
    mase = []
    for name, values in sums.items():
        places = [place for place, other in enumerate(names) if other == name]
        past = [series[place][: split.cuts[place][1]] for place in places]
        unit = np.concatenate([np.abs(rows[12:] - rows[:-12]) for rows in past]).mean()
        if unit > 0:
            mase.append(np.mean([absolute for absolute, _ in values]) / unit)
    smape = [np.mean([relative for _, relative in values]) for values in sums.values()]
    assert errors.averages() == pytest.approx({"mase": np.mean(mase), "smape": np.mean(smape)}, rel=1e-5)


def test_a_single_series_has_no_averages_over_series() -> None:
    assert Errors(*(torch.ones(1, 1) for _ in range(3))).averages() == {}
    assert SeriesUnits.of([], [], 0) is None


def test_counts_have_no_forecast_below_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In Python, by the command, in a stream, in a session and in the scores of intervals; a column with values below
    zero keeps them."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    k = np.arange(90)
    lines = [
        f"s{n},{month(int(step))},{rng.poisson(max(0.0, 20 - 0.25 * step))},{rng.standard_normal():.3f}"
        for n in range(6)
        for step in k
    ]
    Path("panel.csv").write_text("\n".join(["shop,month,sales,balance", *lines, ""]))
    trained()
    assert "forecasts of at least 0: sales" in capsys.readouterr().out
    printed = predicted(capsys)
    for title in ("sales", "sales low 80", "sales low 95", "sales high 95"):
        assert min(float(row[title]) for row in printed) >= 0
    assert min(float(row["sales low 95"]) for row in printed) == 0
    assert min(float(row["balance low 80"]) for row in printed) < -0.5
    saved = plmu.Forecaster.from_run(RUN)
    assert saved.model.nonnegative == (0,)
    forecasts = load_run(RUN).forecasts
    assert forecasts is not None
    stream = plmu.Stream(saved.model)
    for step in range(30):
        out = stream.push([float(step == 3), 0.0])
    answer = forecasts.answer(out.tolist(), 29, stream.state, 30)
    assert min(answer["forecast"]["sales"]) >= 0
    assert min(answer["intervals"]["sales-lo-95"]) >= 0
    assert min(answer["intervals"]["balance-lo-95"]) < 0
    free = plmu.Forecaster(HORIZON, season=12, nonnegative=False).fit("panel.csv")
    assert free.model.nonnegative == ()
    assert free.predict(level=95)["sales-lo-95"].to_numpy().min() < 0
    trained("--model.nonnegative", "False", "--name", "free")
    assert "at least 0" not in capsys.readouterr().out


@pytest.mark.parametrize("rows", [60, 600])
def test_bounds_of_a_single_series_of_counts(rows: int) -> None:
    """Whose first value is far from zero: windows are relative to it."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.linspace(30, 0.5, rows)).astype(float)
    forecaster = plmu.Forecaster(12, test=0.2).fit(counts)
    ahead = forecaster.predict(level=[80, 95])
    assert ahead.lower.min() == 0
    assert ahead.mean.min() >= 0
    split = forecaster.fitted_.split
    assert split is not None
    intervals = forecaster.fitted_.intervals((0.8, 0.95))
    result = score({"model": model_method(forecaster.model)}, split, split.scored("test"), intervals)
    assert result.coverage[1] > 0.8
    examples = split.windows.take(split.scored("test"), split.length, split.horizon)
    forecasts = model_method(forecaster.model)(examples) + examples.level[..., None]
    assert forecasts.min() > -1e-3


def test_a_messy_panel_gives_the_same_by_command_and_estimator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Integers as ids, rows in any order, ends that differ, a series of one row, empty cells, times that repeat."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows: Rows = []
    for number in range(60):
        length, start = 50 - number % 7, number % 11
        rows += [(1000 + number, start + k, int(value)) for k, value in enumerate(rng.poisson(5 + number, length))]
    rows += [(77, 20, 3), (1003, 20, 7), (1004, 21, ""), (1005, 22, 9)]
    written([rows[place] for place in rng.permutation(len(rows))], "item")
    trained("--model.season", "0")
    shown = capsys.readouterr().out
    assert "series: 61, by column 'item'" in shown
    assert "short series: 1 of 61 have too few rows for a test" in shown
    assert "times: rows on the step of another: " in shown
    assert "intervals: from " in shown
    printed = predicted(capsys)
    frame = plmu.Forecaster(HORIZON, season=0, validation=0.1, test=0.2).fit("panel.csv").predict(level=[80, 95])
    assert len(printed) == 61 * HORIZON
    assert frame["item"].to_list() == [row["item"] for row in printed]
    for ours, theirs in (("sales", "sales"), ("sales-lo-80", "sales low 80"), ("sales-hi-95", "sales high 95")):
        np.testing.assert_allclose(frame[ours].to_numpy(), [float(row[theirs]) for row in printed], atol=1e-6)
    assert np.isfinite(frame["sales"].to_numpy()).all()
