"""`plmu train forecast` and what is done with its runs, as a user types it."""

from __future__ import annotations

import csv
import errno
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forecasts import COUNT, values, written
from program import refused
from starlette.testclient import TestClient

from plmu.cli import main
from plmu.experiments import deployed, forecast_task, predict
from plmu.experiments.stream_lines import Options, show
from plmu.serve import Options as ServerOptions
from plmu.serve import make_server

HORIZON = 6
RUN = Path("runs/forecast-load-seed0")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with load.csv and its run, which no test changes."""
    folder = tmp_path_factory.mktemp("forecast")
    (folder / "load.csv").write_text(written())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main(["train", "forecast", "--data.file", "load.csv", "--horizon", "3", "6", "--backtest", "2", "--quiet"])
    return folder


@pytest.fixture
def run(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return RUN


def result(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "result.json").read_text())
    return found


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_run_has_scores_baselines_intervals_and_plots(run: Path) -> None:
    test = result(run)["test"]
    assert test["mse"] < 0.3 * test["last_value_mse"]
    assert test["mse"] < test["seasonal_last_value_mse"]
    assert test["linear_mse"] > 0
    assert 0.7 < test["in_80_%_interval"] <= test["in_95_%_interval"] <= 1
    assert {"mse_3", "mse_6"} <= test.keys()
    assert test["mse_6"] == test["mse"]
    for name in ("forecast.png", "errors.png"):
        assert (run / name).read_bytes().startswith(b"\x89PNG")
    told = json.loads((run / "forecast.json").read_text())
    assert len(told["mse by step ahead"]["model"]) == HORIZON
    assert len(told["backtest"]) == 2
    assert told["mae in own units"]["model"]["load"] < 3
    assert json.loads((run / "series.json").read_text())["season"] == 12


def test_a_run_that_lost_its_model_gets_it_again(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    before = {name: (RUN / name).read_bytes() for name in ("model.plmu", "outputs.json", "intervals.json")}
    for name in before:
        (RUN / name).unlink()
    main(["train", "forecast", "--data.file", "load.csv", "--horizon", "3", "6", "--backtest", "2"])
    assert "model.plmu was missing: fitted it again" in capsys.readouterr().out
    assert {name: (RUN / name).read_bytes() for name in before} == before


def test_what_is_published_has_no_path(run: Path, trained: Path) -> None:
    found = result(run)
    assert found["command"] == ("plmu train forecast --data.file load.csv --horizon 3 6 --backtest 2 --quiet")
    assert str(trained) not in json.dumps(found)
    assert "file" in json.loads((run / "data.json").read_text())["files"]


def test_the_same_command_shows_the_result_and_another_file_is_another_run(
    run: Path, trained: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["train", "forecast", "--data.file", "load.csv", "--horizon", "3", "6", "--backtest", "2"]
    main(words)
    assert "is finished: nothing was trained" in capsys.readouterr().out
    (tmp_path / "load.csv").write_text(written(300))
    words[3] = str(tmp_path / "load.csv")
    assert "is not what runs/forecast-load-seed0 was trained on" in refused(words, capsys)
    assert "another configuration (backtest was 2, now 0)" in refused(words[:-2], capsys)


def test_evaluate_gives_the_scores_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(run)])
    printed = dict(line.rsplit(" ", 1) for line in capsys.readouterr().out.splitlines())
    for name, value in result(run)["test"].items():
        assert float(printed[name]) == pytest.approx(value, rel=1e-4)


def test_report_shows_it(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", "--results", "runs", "--out", str(tmp_path)])
    assert "forecast-load" in (tmp_path / "report.html").read_text()


def test_predict_goes_beyond_the_last_row(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["predict", str(run), "--data.file", "load.csv"])
    shown = capsys.readouterr()
    rows = table(shown.out)
    assert [row["time"] for row in rows][:2] == ["2024-01-31 00:00", "2024-01-31 02:00"]
    assert len(rows) == HORIZON
    truth = values(COUNT + HORIZON)[COUNT:]
    for row, (load, temp) in zip(rows, truth, strict=True):
        assert float(row["load low 95"]) <= float(row["load low 80"]) < float(row["load high 80"])
        assert abs(float(row["load"]) - load) < 4
        assert abs(float(row["temp"]) - temp) < 4
    assert "every 2 h from" in shown.err
    main(["predict", str(run), "--data.file", "load.csv", "--out", str(tmp_path / "out.csv"), "--quiet"])
    assert (tmp_path / "out.csv").read_text() == shown.out


def test_predict_that_fails_leaves_the_file_that_was_there(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def full(stream: io.TextIOBase, **_: Any) -> None:
        stream.write("half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "out.csv").write_text("old")
    monkeypatch.setattr(predict.csv, "writer", full)
    given = ["predict", str(run), "--data.file", "load.csv", "--out", str(tmp_path / "out.csv")]
    assert "No space left on device" in refused(given, capsys)
    assert (tmp_path / "out.csv").read_text() == "old"


def test_predict_reads_another_file_with_its_own_faults(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Semicolons, decimal commas, another order of columns, rows to come without values."""
    lines = written().splitlines()[1:]
    rows = [";".join([b, "x", t, a]).replace(".", ",") for t, a, b in (line.split(",") for line in lines)]
    (tmp_path / "new.csv").write_text("\n".join(["temp;more;time;load", *rows, ";y;2024-01-31 00:00;", ""]))
    outputs = []
    for name in ("load.csv", str(tmp_path / "new.csv")):
        main(["predict", str(run), "--data.file", name, "--quiet"])
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    (tmp_path / "new.csv").write_text("time,load\n2024-01-01,5\n")
    assert "has no column 'temp'" in refused(["predict", str(run), "--data.file", str(tmp_path / "new.csv")], capsys)


def test_predict_needs_a_finished_run_that_predicts(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "a-seed0")
    (tmp_path / "a-seed0" / "result.json").unlink()
    assert "is not finished" in refused(["predict", str(tmp_path / "a-seed0"), "--data.file", "load.csv"], capsys)
    shutil.copytree(run, tmp_path / "b-seed0")
    (tmp_path / "b-seed0" / "intervals.json").write_text("{")
    assert "intervals.json is missing or damaged" in refused(
        ["predict", str(tmp_path / "b-seed0"), "--data.file", "load.csv"], capsys
    )


def test_a_stream_speaks_the_units_of_the_file_and_agrees_with_predict(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["predict", str(run), "--data.file", "load.csv", "--quiet"])
    expected = [[float(row["load"]), float(row["temp"])] for row in table(capsys.readouterr().out)]
    late = written(first=100)  # the times say where in the day it begins
    semicolons = late.replace(",", ";").replace(".", ",")
    without_header = late.partition("\n")[2]
    for lines in (late, semicolons, without_header):
        out = io.StringIO()
        show(run, lines.splitlines(keepends=True), Options(json=True), out)
        last = json.loads(out.getvalue().splitlines()[-1])
        assert last["time"] == "2024-01-30 22:00"
        np.testing.assert_allclose(
            np.array([last["forecast"]["load"], last["forecast"]["temp"]]).T, expected, rtol=1e-5
        )
    out = io.StringIO()
    show(run, ["50,15\n"], Options(), out)
    assert len(out.getvalue().split(",")) == 2 * HORIZON


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (["time,load\n"], "the header has no temp"),
        (["time,load,temp\n", "soon,1,2\n"], "line 2: 'soon' is not a date or time"),
        (["time,load,temp\n", "2024-01-01,1\n"], "line 2: expected 3 fields as in the header, got 2"),
        (['{"load": 1}\n'], "it has no temp"),
        (["2024-01-01,1,x\n"], "'x', in column 3, is not a number"),
    ],
)
def test_a_wrong_line_of_a_stream_is_named(run: Path, lines: list[str], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        show(run, lines, Options(), io.StringIO())


def test_a_stream_continues_the_rows_of_training(run: Path) -> None:
    """Without times its first sample is the one after the last row."""
    found = deployed.load(run)
    assert found.forecast is not None
    assert found.forecast.phase == COUNT % 12
    assert found.answer([1.0, 2.0] * HORIZON) == {"forecast": {"load": [1.0] * HORIZON, "temp": [2.0] * HORIZON}}


def test_a_server_names_the_columns(run: Path) -> None:
    server = make_server(deployed.load(run), ServerOptions())
    with TestClient(server.app(), base_url="http://127.0.0.1") as client:
        about = client.get("/model").json()
        assert (about["columns"], about["horizon"]) == (["load", "temp"], HORIZON)
        with client.websocket_connect("ws://127.0.0.1/ws") as connection:
            connection.receive_json()
            connection.send_json({"samples": [[50.0, 15.0], [51.0, 16.0]]})
            answer = connection.receive_json()
    assert {name: len(ahead) for name, ahead in answer["forecast"].items()} == {"load": HORIZON, "temp": HORIZON}
    assert answer["outputs"][-1][:2] == [answer["forecast"]["load"][0], answer["forecast"]["temp"][0]]


def test_an_export_names_the_columns(run: Path, tmp_path: Path) -> None:
    main(["export", str(run), "--to", "c", "--out", str(tmp_path)])
    about = json.loads((tmp_path / "model.json").read_text())
    assert (json.loads(about["columns"]), about["horizon"]) == (["load", "temp"], str(HORIZON))


def test_series_that_were_not_trained_on_are_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    waves = values(200)[:, 0]

    def sales(shops: dict[str, int], count: int) -> str:
        rows = [f"{np.datetime64('2023-01-01') + i},{shop},{size * waves[i]:.3f}"
                for shop, size in shops.items() for i in range(count)]  # fmt: skip
        return "\n".join(["day,shop,sales", *rows, ""])

    Path("shops.csv").write_text(sales({"a": 1, "b": 10}, 180))
    main(["train", "forecast", "--data.file", "shops.csv", "--horizon", "4", "--refit"])
    shown = capsys.readouterr().out
    assert "series: named by column 'shop'" in shown
    assert "fitted to all rows" in shown
    Path("new.csv").write_text(sales({"c": 100, "b": 10}, 190))
    main(["predict", "runs/forecast-shops-seed0", "--data.file", "new.csv", "--quiet"])
    rows = table(capsys.readouterr().out)
    assert [row["shop"] for row in rows] == ["c"] * 4 + ["b"] * 4
    wide = [float(row["sales high 80"]) - float(row["sales low 80"]) for row in rows]
    assert wide[0] == pytest.approx(10 * wide[4], rel=1e-3)  # intervals are relative to the size of each series
    truth = 100 * waves[190:194]
    assert all(abs(float(row["sales"]) - one) < 400 for row, one in zip(rows, truth, strict=False))


def test_rows_without_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The place in the season is seen from the values."""
    monkeypatch.chdir(tmp_path)
    np.save("waves.npy", values(240))
    words = ["train", "forecast", "--data.file", "waves.npy", "--horizon", "4", "--intervals", "0.9", "--lstm"]
    monkeypatch.setattr(forecast_task, "LSTM_TRAINING", replace(forecast_task.LSTM_TRAINING, epochs=1))
    main([*words, "--quiet"])
    assert result(Path("runs/forecast-waves-seed0"))["test"]["LSTM_mse"] > 0
    np.save("later.npy", values()[5:345])
    capsys.readouterr()
    main(["predict", "runs/forecast-waves-seed0", "--data.file", "later.npy"])
    rows = table(capsys.readouterr().out)
    assert [row["row"] for row in rows] == ["341", "342", "343", "344"]
    assert all(abs(float(row["value 1"]) - load) < 4 for row, load in zip(rows, values()[345:, 0], strict=False))


@pytest.mark.parametrize("model", ["gradient", "lstm"])
def test_models_that_are_trained(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("load.csv").write_text(written(150))
    words = [
        "train",
        "forecast",
        "--model",
        model,
        "--data.file",
        "load.csv",
        "--horizon",
        "3",
        "--training.epochs",
        "2",
    ]
    main([*words, "--quiet"])
    run = Path(f"runs/forecast-load-{model}-seed0")
    found = result(run)["test"]
    assert found["mse"] > 0
    assert (run / "model.plmu").is_file() == (model == "gradient")
    if model == "gradient":  # it starts from the closed form
        main(["train", "forecast", *words[4:8], "--quiet"])
        assert found["mse"] == pytest.approx(result(RUN)["test"]["mse"], rel=0.2)


def test_large_values_with_small_changes_keep_their_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as readings of a meter. No intervals are asked for."""
    monkeypatch.chdir(tmp_path)
    readings = 123_456_789 + np.cumsum(1 + 0.5 * np.sin(np.arange(300) * 2 * np.pi / 12))
    Path("meter.csv").write_text("\n".join(["t,kWh", *(f"{i},{one:.3f}" for i, one in enumerate(readings[:280])), ""]))
    main(["train", "forecast", "--data.file", "meter.csv", "--horizon", "5", "--intervals", "--quiet"])
    capsys.readouterr()
    main(["predict", "runs/forecast-meter-seed0", "--data.file", "meter.csv", "--quiet"])
    rows = table(capsys.readouterr().out)
    assert list(rows[0]) == ["t", "kWh"]
    np.testing.assert_allclose(
        [float(row["kWh"]) - 123_456_789 for row in rows], readings[280:285] - 123_456_789, atol=0.6
    )


def test_irregular_rows_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("load.csv").write_text(written(150))
    main(["train", "forecast", "--data.file", "load.csv", "--horizon", "3", "--data.irregular", "rows", "--quiet"])
    capsys.readouterr()
    main(["predict", "runs/forecast-load-seed0", "--data.file", "load.csv", "--quiet"])
    assert [row["row"] for row in table(capsys.readouterr().out)] == ["151", "152", "153"]


def test_a_messy_file_is_forecast_and_says_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Byte-order mark, semicolons, decimal commas, two formats of dates, a gap, a duplicate, a constant column, text in
    a column of numbers, an empty line."""
    monkeypatch.chdir(tmp_path)
    lines = []
    for i, line in enumerate(written(200).splitlines()[1:]):
        stamp, load, temp = line.split(",")
        if i % 5 == 0:
            stamp = f"{stamp[8:10]}.{stamp[5:7]}.{stamp[:4]} {stamp[11:]}"
        if i == 50:
            load = "defekt"
        if i not in (70, 71, 72):
            lines.append(f"{stamp};{load.replace('.', ',')};{temp.replace('.', ',')};1;Halle 3")
        if i == 90:
            lines += [lines[-1], ""]
    content = "\n".join(["Zeit;Last;Temp;Status;Ort", *lines, ""])
    Path("messy.csv").write_bytes(b"\xef\xbb\xbf" + content.encode())
    words = ["train", "forecast", "--data.file", "messy.csv", "--horizon", "4"]
    assert "messy.csv, line 52, column 'Last': 'defekt' is not a number" in refused(words, capsys)
    main([*words, "--data.bad", "missing"])
    shown = capsys.readouterr().out
    for note in (
        "byte-order mark left out",
        "semicolons between fields",
        "decimal commas",
        "1 empty line left out",
        "column 'Zeit': dates in 2 formats",
        "column 'Last': 1 cell of text taken as missing, the first 'defekt' in line 52",
        "left out, no numbers: Ort",
        "left out, constant: Status",
        "values: Last, Temp",
        "every 2 h from 2024-01-01 00:00 to 2024-01-17 14:00",
        "times: 1 rows fall on the step of another; averaged",
        "gaps: 4 of 200 steps lack a value; filled with the last value, and not scored",
    ):
        assert note in shown
    main(["predict", "runs/forecast-messy-seed0", "--data.file", "messy.csv", "--quiet"])
    assert table(capsys.readouterr().out)[0]["Zeit"] == "2024-01-17 16:00"


@pytest.mark.parametrize(
    ("content", "options", "fault"),
    [
        ("", [], "is empty: it has no rows"),
        ("time,load\n", [], "has no rows of data"),
        ("time,load\n2024-01-01,1\n", [], "has 1 consecutive row, too few to forecast 1 step ahead: give at least 8"),
        ("time,load\n2024-01-01,1\n2024-01-02,x\n2024-01-03,3\n", [], "line 3, column 'load': 'x' is not a number"),
        ("time,load\n2024-01-01,1\n2024-13-02,2\n", [], "line 3, column 'time': '2024-13-02' is not a date"),
        (written(100), ["--data.values", "laod"], "no column 'laod'"),
        (written(100), ["--horizon", "0"], "horizon must be at least 1"),
        (written(100), ["--horizon", "90"], "too few to forecast 90 steps ahead"),
        (written(100), ["--horizon", "15"], "the valid rows, 10 % of 100, hold no window"),
        (written(100), ["--model.lookback", "99"], "--model.lookback must be at most"),
        (written(100), ["--intervals", "80"], "intervals must lie between 0 and 1"),
        (written(100), ["--data.test", "0.9"], "data.test must be a share"),
    ],
)
def test_wrong_use_is_one_message(
    content: str, options: list[str], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("my.csv").write_text(content)
    assert fault in refused(["train", "forecast", "--data.file", "my.csv", *options], capsys)


def test_a_file_must_be_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "give your data as --data.file" in refused(["train", "forecast"], capsys)
    assert "no.csv is not there" in refused(["train", "forecast", "--data.file", "no.csv"], capsys)
