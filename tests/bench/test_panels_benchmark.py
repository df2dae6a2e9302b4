"""The benchmark of many series: scores and simple methods against plain loops, and the files it reads."""

import json
import lzma
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import documents, panel_data, panel_methods, panel_scores, panel_tables, panels
from benchmarks.panel_scores import Forecasts

RNG = np.random.default_rng(0)


def some_series(season: int, lengths: tuple[int, ...] = (7, 40, 41, 150, 61, 90, 11)) -> list[np.ndarray]:
    """Positive series of several lengths: every other one has a season."""
    series = []
    for place, length in enumerate(lengths):
        time = np.arange(length)
        wave = 30 * np.sin(2 * np.pi * time / season) if place % 2 else 0
        series.append(200 + time + wave + RNG.normal(0, 5, length).cumsum().clip(-90, 90))
    return series


def loop_indices(values: np.ndarray, season: int) -> np.ndarray:
    """The seasonal indices of every step of a series and of the next season, by the competition's R code."""
    length, ones = len(values), np.ones(len(values) + season)
    if season == 1 or length < 3 * season:
        return ones
    centred = values - values.mean()
    correlations = [(centred[lag:] * centred[:-lag]).sum() / (centred**2).sum() for lag in range(1, season + 1)]
    limit = 1.645 / math.sqrt(length) * math.sqrt(1 + 2 * sum(r**2 for r in correlations[:-1]))
    if not abs(correlations[-1]) > limit:
        return ones
    ratios: list[list[float]] = [[] for _ in range(season)]
    for t in range(season // 2, length - season // 2):
        if season % 2:
            trend = values[t - season // 2 : t + season // 2 + 1].mean()
        else:
            window = values[t - season // 2 : t + season // 2 + 1]
            trend = (window[0] / 2 + window[1:-1].sum() + window[-1] / 2) / season
        ratios[t % season].append(values[t] / trend)
    profile = np.array([np.mean(ratio) for ratio in ratios])
    return np.resize(profile / profile.mean(), length + season)


@pytest.mark.parametrize("season", [1, 4, 5, 12])
def test_naive2_is_the_competitions(season: int) -> None:
    train = some_series(season)
    forecasts = panel_methods.naive2(train, 2 * season + 1, season)
    seasonal = 0
    for values, forecast in zip(train, forecasts, strict=True):
        indices = loop_indices(values, season)
        seasonal += bool(indices.std())
        future = np.resize(indices[len(values) :], len(forecast))
        assert forecast == pytest.approx(values[-1] / indices[len(values) - 1] * future, rel=1e-12)
    assert (seasonal > 0) == (season > 1)
    assert seasonal < len(train)


def loop_smoothing(values: np.ndarray, rate: float, first: float) -> tuple[float, float]:
    """The squared error and the last level."""
    level, squares = first, 0.0
    for value in values:
        squares += (value - level) ** 2
        level += rate * (value - level)
    return squares, level


def test_smoothing_has_the_rate_and_the_first_level_of_least_squares() -> None:
    series = [10 + RNG.normal(0, 1, length).cumsum() + RNG.normal(0, spread, length)
              for length, spread in ((5, 1), (30, 3), (80, 0.1), (80, 9))]  # fmt: skip
    padded = np.zeros((4, 80))
    for row, values in zip(padded, series, strict=True):
        row[80 - len(values) :] = values
    levels = panel_methods.smoothed(padded, np.array([len(values) for values in series]))
    for values, level in zip(series, levels, strict=True):
        best: tuple[float, float] = (math.inf, 0.0)
        for rate in np.linspace(1e-4, 1 - 1e-4, 2001):
            # The error is a parabola of the first level: three points give its lowest.
            errors = [loop_smoothing(values, rate, first)[0] for first in (-1.0, 0.0, 1.0)]
            first = (errors[0] - errors[2]) / (2 * (errors[0] - 2 * errors[1] + errors[2]))
            best = min(best, loop_smoothing(values, rate, first))
        assert level == pytest.approx(best[1], abs=0.01 * values.std())


@pytest.mark.parametrize("season", [1, 4, 12])
def test_theta_is_the_mean_of_the_trend_and_the_smoothed_line(season: int) -> None:
    train = some_series(season)
    forecasts = panel_methods.theta(train, 7, season)
    for values, forecast in zip(train, forecasts, strict=True):
        indices = loop_indices(values, season)
        adjusted = values / indices[: len(values)]
        slope, start = np.polyfit(np.arange(len(values)), adjusted, 1)
        line = start + slope * np.arange(len(values) + 7)
        level = panel_methods.smoothed((2 * adjusted - line[: len(values)])[None], np.array([len(values)]))[0]
        future = np.resize(indices[len(values) :], 7)
        assert forecast == pytest.approx((line[len(values) :] + level) / 2 * future, rel=1e-9)


def test_theta_is_never_below_zero() -> None:
    falling = [np.linspace(100, 1, 20)]
    assert panel_methods.theta(falling, 30, 1)[0, -1] == 0


def test_naive_methods() -> None:
    train = [np.arange(1.0, 6), np.arange(10.0, 30)]
    assert panel_methods.naive(train, 3).tolist() == [[5] * 3, [29] * 3]
    assert panel_methods.seasonal_naive(train, 5, 3).tolist() == [[3, 4, 5, 3, 4], [27, 28, 29, 27, 28]]


def test_blocks_hold_every_series_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel_methods, "BLOCK", 200)
    train = some_series(4)
    places = []
    for rows, values, lengths in panel_methods.blocks(train):
        assert values.size <= 200 or len(rows) == 1
        for row, padded, length in zip(rows, values, lengths, strict=True):
            assert padded[len(padded) - length :].tolist() == train[row].tolist()
            assert not padded[: len(padded) - length].any()
        places += rows.tolist()
    assert sorted(places) == list(range(len(train)))
    whole = panel_methods.theta(train, 5, 4)
    monkeypatch.undo()
    assert whole == pytest.approx(panel_methods.theta(train, 5, 4), rel=1e-9)


def test_scores_are_those_of_plain_loops() -> None:
    train = [RNG.uniform(1, 9, length) for length in (9, 14, 30)]
    test, mean = RNG.uniform(1, 9, (2, 3, 5))
    test[0, 0] = mean[0, 0] = 0
    bounds = np.sort(RNG.uniform(1, 9, (4, 3, 5)), axis=0)
    lower, upper = bounds[1::-1], bounds[2:]
    smapes, mases, scores95, covered, losses = [], [], [], np.zeros(2), np.zeros(4)
    for i, values in enumerate(train):
        unit = np.mean([abs(values[t] - values[t - 4]) for t in range(4, len(values))])
        percent, error, interval = [], [], []
        for y, f, l80, l95, u80, u95 in zip(
            test[i], mean[i], lower[0, i], lower[1, i], upper[0, i], upper[1, i], strict=True
        ):
            percent.append(0 if y == f == 0 else 200 * abs(y - f) / (abs(y) + abs(f)))
            error.append(abs(y - f))
            interval.append(u95 - l95 + 40 * (l95 - y) * (y < l95) + 40 * (y - u95) * (y > u95))
            covered += [l80 <= y <= u80, l95 <= y <= u95]
            pairs = ((0.025, l95), (0.1, l80), (0.9, u80), (0.975, u95))
            losses += [2 * max(q * (y - end), (q - 1) * (y - end)) for q, end in pairs]
        smapes.append(np.mean(percent))
        mases.append(np.mean(error) / unit)
        scores95.append(np.mean(interval) / unit)
    expected = {
        "smape": np.mean(smapes),
        "mase": np.mean(mases),
        "coverage 80": covered[0] / 15,
        "coverage 95": covered[1] / 15,
        "msis": np.mean(scores95),
        "weighted quantile loss": np.mean(losses) / test.sum(),
    }
    unit = panel_scores.naive_error(train, 4)
    assert panel_scores.summary(test, unit, Forecasts(mean, lower, upper)) == pytest.approx(expected, rel=1e-12)
    points = {name: expected[name] for name in ("smape", "mase")}
    assert panel_scores.summary(test, unit, Forecasts(mean)) == pytest.approx(points, rel=1e-12)


def test_owa_and_averages_over_sets() -> None:
    better, naive2 = {"smape": 9.0, "mase": 1.0, "owa": 9.9}, {"smape": 10.0, "mase": 2.0, "owa": 1.0}
    assert panel_scores.owa(better, naive2) == pytest.approx(0.7)
    assert panel_scores.together([(3, better), (1, naive2)]) == pytest.approx({"smape": 9.25, "mase": 1.25})


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A set of the M3 and a set of the M4 of three series each, in the layouts of their files."""
    (tmp_path / "m3").mkdir()
    m4 = tmp_path / "lightningnbeats" / "data" / "M4"
    for part, lengths in (("train", (30, 21, 26)), ("test", (8, 8, 8))):
        rows = [RNG.uniform(50, 90, length).round(2).tolist() for length in lengths]
        with lzma.open(tmp_path / "m3" / f"quarterly-{part}.csv.xz", "wt") as file:
            file.write("id,values\n")
            file.writelines(f"N{i},{','.join(map(str, row))}\n" for i, row in enumerate(rows))
        (m4 / part.capitalize()).mkdir(parents=True)
        lines = ['"V1","V2"\n']
        lines += [",".join(f'"{cell}"' for cell in (f"Q{i}", *row)) + ",,,\n" for i, row in enumerate(rows)]
        (m4 / part.capitalize() / f"Quarterly-{part}.csv").write_text("".join(lines))
        (tmp_path / f"{part}.json").write_text(json.dumps(rows))
    (tmp_path / "lightningnbeats" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PLMU_DATA", str(tmp_path))
    sizes = dict.fromkeys(("m3-quarterly", "m4-quarterly"), (3, 8, 4))
    for module in (panel_data, panels):
        monkeypatch.setattr(module, "SETS", sizes)
    monkeypatch.setattr(panels, "M4", ("m4-quarterly",))
    return tmp_path


@pytest.mark.parametrize("name", ["m3-quarterly", "m4-quarterly"])
def test_sets_are_read_from_their_files(data: Path, name: str) -> None:
    panel = panel_data.load(name)
    assert [values.tolist() for values in panel.train] == json.loads((data / "train.json").read_text())
    assert panel.test.tolist() == json.loads((data / "test.json").read_text())
    assert (panel.horizon, panel.season) == (8, 4)
    assert len(panel_data.load(name, data, 2).train) == 2


def test_a_set_that_is_not_whole_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel_data, "SETS", {"m3-quarterly": (4, 8, 4)})
    with pytest.raises(SystemExit, match="m3-quarterly has 3 series to fit and 3 to test, not 4 of each"):
        panel_data.load("m3-quarterly")
    monkeypatch.setattr(panel_data, "SETS", {"m3-quarterly": (3, 6, 4)})
    with pytest.raises(SystemExit, match="m3-quarterly has test series that are not of 6 steps"):
        panel_data.load("m3-quarterly")


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["panels", *map(str, words)])
    panels.main()


def test_the_command_scores_every_method(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "FIRST", 2)
    run(monkeypatch, "--json", data)
    results = json.loads((data / "panels.json").read_text())
    assert results["complete"]
    assert results["unfinished"] == []
    rows: dict[str, Any] = {row["set"]: row for row in results["rows"]}
    assert list(rows) == ["m3-quarterly", "m4-quarterly"]
    for row in rows.values():
        assert (row["series"], row["of"]) == (3, 3)
        assert list(row["methods"]) == ["naive 2", "naive", "seasonal naive", "theta", "plmu"]
        assert row["methods"]["naive 2"]["owa"] == 1
        ours = row["methods"]["plmu"]
        assert 0 < ours["coverage 80"] <= ours["coverage 95"] <= 1
        assert {"msis", "weighted quantile loss", "fit seconds", "predict processor seconds"} <= set(ours)
    assert "first 2" not in rows["m3-quarterly"]
    part = rows["m4-quarterly"]["first 2"]
    panel = panel_data.load("m4-quarterly")
    theta = panel_scores.summary(panel.test[:2], panel_scores.naive_error(panel.train[:2], 4),
                                 Forecasts(panel_methods.theta(panel.train[:2], 8, 4)))  # fmt: skip
    assert {key: part["theta"][key] for key in theta} == pytest.approx(theta, rel=1e-9)
    assert results["m4"]["plmu"]["owa"] == pytest.approx(rows["m4-quarterly"]["methods"]["plmu"]["owa"], rel=1e-12)


def test_methods_can_be_chosen(data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    run(monkeypatch, "--methods", "theta", "--json", data)
    rows = json.loads((data / "panels.json").read_text())["rows"]
    assert [list(row["methods"]) for row in rows] == [["naive 2", "theta"]] * 2
    with pytest.raises(SystemExit):
        run(monkeypatch, "--methods", "theta,AutoETS")
    assert "--methods AutoETS: methods are naive, seasonal naive, naive 2, theta, plmu" in capsys.readouterr().err


def test_a_part_of_a_set_is_said_to_be_one(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, "--sets", "m4", "--series", 2, "--json", data)
    results = json.loads((data / "panels.json").read_text())
    assert not results["complete"]
    assert results["command"].endswith("--sets m4 --series 2 --json results")
    assert [(row["series"], row["of"]) for row in results["rows"]] == [(2, 3)]
    assert results["m4"] == {}


def test_an_unknown_set_is_named(data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "--sets", "m3,m5")
    assert "--sets m5: sets are m3-quarterly, m4-quarterly, m3 and m4" in capsys.readouterr().err


def test_peers_run_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their forecasts come from another interpreter, and are kept."""
    calls = []

    def forecast(command: list[Any], **options: Any) -> Any:
        if command[0] != "peers' python":
            return subprocess_run(command, **options)
        calls.append(command[3])
        with np.load(command[4]) as arrays:
            series = np.split(arrays["values"], np.cumsum(arrays["lengths"])[:-1])
            mean = panel_methods.naive(series, int(arrays["horizon"]))
        notes = json.dumps({"processor seconds": 2.5, "versions": {"peer": "1.0"}})
        bounds = {} if command[3] == "LightGBM" else {"lower": np.stack([mean] * 2), "upper": np.stack([mean] * 2)}
        np.savez(command[5], mean=mean, **bounds, notes=notes)
        return None

    subprocess_run = subprocess.run
    monkeypatch.setattr(subprocess, "run", forecast)
    monkeypatch.setattr(panels, "FIRST", 2)
    for _ in range(2):
        words = ("--peers", "peers' python", "--methods", "AutoETS,LightGBM", "--forecasts", data, "--sets", "m4")
        run(monkeypatch, *words, "--json", data)
        results = json.loads((data / "panels-peers.json").read_text())
        assert [(row["set"], row["series"], row["of"]) for row in results["rows"]] == [("m4-quarterly", 2, 3)]
        methods = results["rows"][0]["methods"]
        assert list(methods) == ["naive 2", "AutoETS", "LightGBM"]
        assert methods["AutoETS"]["processor seconds"] == 2.5
        assert "msis" in methods["AutoETS"]
        assert "msis" not in methods["LightGBM"]
    assert calls == ["AutoETS", "LightGBM"]


def test_figures_that_are_not_the_competitions_are_refused() -> None:
    scores = {"smape": 16.342, "mase": 3.974}
    row = {"set": "m4-yearly", "series": 23_000, "of": 23_000, "methods": {"naive 2": scores}}
    panels.check([row])
    with pytest.raises(SystemExit, match="Naive 2 is not the competition's"):
        panels.check([{**row, "methods": {"naive 2": {**scores, "mase": 4.0}}}])


def table_results() -> tuple[dict[str, Any], dict[str, Any]]:
    """Results of two sets, with peers on all series of one and on the first of the other."""

    def scores(mase: float, spread: float | None = None, **notes: Any) -> dict[str, Any]:
        ends = {} if spread is None else {"coverage 80": 0.8, "coverage 95": 0.951, "msis": spread}
        ends |= {} if spread is None else {"weighted quantile loss": 0.05}
        return {"smape": 10 * mase, "mase": mase, "owa": mase / 2, **ends, **notes}

    ours = {
        "machine": {"plmu": "9.9"},
        "rows": [
            {
                "set": "m3-yearly",
                "series": 500,
                "of": 500,
                "methods": {
                    "naive 2": scores(2.0, **{"processor seconds": 0.5}),
                    "plmu": scores(1.5, 12.5, **{"fit processor seconds": 2.0, "predict processor seconds": 1.0}),
                },
            },
            {
                "set": "m4-yearly",
                "series": 5000,
                "of": 5000,
                "methods": {"naive 2": scores(4.0), "plmu": scores(3.0, 20.0)},
                "first 1000": {"naive 2": scores(3.5), "plmu": scores(2.5, 15.0)},
            },
        ],
        "m4": {"naive 2": {"owa": 1.0}, "plmu": {"owa": 0.85, "msis": 13.0}},
        "published": {"owa": {"ES-RNN": 0.821}, "msis": {"ES-RNN": 12.23, "ETS": 15.68}},
    }
    fast = {"processor seconds": 5.0, "versions": {"statsforecast": "2.0"}}
    peers = {
        "rows": [
            {"set": "m3-yearly", "series": 500, "of": 500, "methods": {"AutoETS": scores(1.25, 10.0, **fast)}},
            {"set": "m4-yearly", "series": 1000, "of": 5000, "methods": {"AutoETS": scores(3.0, 14.0, **fast)}},
        ]
    }
    return ours, peers


def test_the_table_of_points_lists_every_loss() -> None:
    assert panel_tables.points(*table_results()).splitlines() == [
        "| MASE / sMAPE | Naive 2 | AutoETS | plmu |",
        "| --- | --- | --- | --- |",
        "| M3 yearly | 2.00 / 20.0 | **1.25** / **12.5** | 1.50 / 15.0 |",
        "| M4 yearly | 4.00 / 40.0 |  | **3.00** / **30.0** |",
        "| M4 yearly, first 1,000 | 3.50 / 35.0 | 3.00 / 30.0 | **2.50** / **25.0** |",
        "",
        "Where plmu is not the best:",
        "",
        "| set | score | plmu | better |",
        "| --- | --- | --- | --- |",
        "| M3 yearly | MASE | 1.50 | AutoETS 1.25 |",
        "| M3 yearly | sMAPE, % | 15.0 | AutoETS 12.5 |",
        "",
        "Peers: statsforecast 2.0.",
    ]


def test_the_table_of_intervals_lists_every_loss() -> None:
    lines = panel_tables.intervals(*table_results()).splitlines()
    assert lines[2:4] == [
        "| M3 yearly | AutoETS | 80.0 | 95.1 | **10.0** | **0.0500** |",
        "| M3 yearly | plmu | 80.0 | 95.1 | 12.5 | **0.0500** |",
    ]
    assert lines[-2:] == [
        "| M3 yearly | MSIS | 12.5 | AutoETS 10.0 |",
        "| M4 yearly, first 1,000 | MSIS | 15.0 | AutoETS 14.0 |",
    ]


def test_the_competition_stands_beside_published_figures() -> None:
    assert panel_tables.competition(*table_results()).splitlines()[2:] == [
        "| Naive 2 | 1.00 |  | here |",
        "| plmu | 0.850 | 13.00 | here |",
        "| ES-RNN | 0.821 | 12.23 | published |",
        "| ETS |  | 15.68 | published |",
    ]


def test_seconds_are_for_a_thousand_series() -> None:
    assert panel_tables.seconds(*table_results()).splitlines()[2:] == [
        "| M3 yearly | 1.0 | 10 | 6.0 |",
        "| M4 yearly | 0.0 | 5.0 | 0.0 |",
    ]


def test_without_losses_or_without_plmu_a_line_says_so() -> None:
    ours, peers = table_results()
    peers["rows"] = []
    assert "No method is better than plmu on any set." in panel_tables.points(ours, peers)
    for row in ours["rows"]:
        del row["methods"]["plmu"]
    assert "plmu has not been measured yet." in panel_tables.points(ours, peers)


def test_the_page_reads_both_files(tmp_path: Path) -> None:
    message = "*No results in panels.json and panels-peers.json: run `python -m benchmarks.panels --json results`.*"
    assert documents.table("panels", tmp_path) == message
    for name, results in zip(("panels", "panels-peers"), table_results(), strict=True):
        assert documents.table("panels", tmp_path).startswith(message)
        (tmp_path / f"{name}.json").write_text(json.dumps(results))
    assert documents.table("panel-seconds", tmp_path).endswith("Measured with plmu 9.9.")
