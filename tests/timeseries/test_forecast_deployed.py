"""Streams, servers and exports of runs of forecast."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from forecasts import COUNT, HORIZON, RUN, table, written
from starlette.testclient import TestClient

from plmu.cli.program import main
from plmu.cli.stream_lines import Options, show
from plmu.runs import deployed
from plmu.serve import Options as ServerOptions
from plmu.serve import make_server


def test_a_stream_speaks_the_units_of_the_file_and_agrees_with_predict(
    load_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["predict", str(load_run), "--data.file", "load.csv", "--quiet"])
    expected = [[float(row["load"]), float(row["temp"])] for row in table(capsys.readouterr().out)]
    late = written(first=100)  # the times say where in the day it begins
    semicolons = late.replace(",", ";").replace(".", ",")
    without_header = late.partition("\n")[2]
    for lines in (late, semicolons, without_header):
        out = io.StringIO()
        show(load_run, lines.splitlines(keepends=True), Options(json=True), out)
        last = json.loads(out.getvalue().splitlines()[-1])
        assert last["time"] == "2024-01-30 22:00"
        np.testing.assert_allclose(
            np.array([last["forecast"]["load"], last["forecast"]["temp"]]).T, expected, rtol=1e-5
        )
    out = io.StringIO()
    show(load_run, ["50,15\n"], Options(), out)
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
def test_a_wrong_line_of_a_stream_is_named(load_run: Path, lines: list[str], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        show(load_run, lines, Options(), io.StringIO())


def test_a_stream_reads_times_in_several_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = written(120).replace("time,", "date,time,", 1).replace(" ", ",").splitlines(keepends=True)
    Path("load.csv").write_text("".join(lines))
    main(["train", "forecast", "--data.file", "load.csv", "--horizon", "3", "--quiet"])
    capsys.readouterr()
    main(["predict", str(RUN), "--data.file", "load.csv", "--quiet"])
    expected = table(capsys.readouterr().out)
    assert expected[0]["date time"] == "2024-01-11 00:00"
    fields = [dict(zip(lines[0].strip().split(","), line.strip().split(","), strict=True)) for line in lines[1:]]
    objects = [json.dumps({**one, "load": float(one["load"]), "temp": float(one["temp"])}) + "\n" for one in fields]
    for given in (lines[:1] + lines[-100:], lines[-100:], objects[-100:]):
        out = io.StringIO()
        show(RUN, given, Options(json=True), out)
        last = json.loads(out.getvalue().splitlines()[-1])
        assert last["time"] == "2024-01-10 22:00"
        np.testing.assert_allclose(last["forecast"]["load"], [float(row["load"]) for row in expected], rtol=1e-4)


def test_a_stream_reads_lines_with_text_and_series_of_a_panel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With and without the header: text is left out, each series begins anew, marks of missing values are known."""
    monkeypatch.chdir(tmp_path)
    rows = written(150).splitlines(keepends=True)[1:]
    panel = []
    for shop, item in (("north", "tea"), ("north", "coffee"), ("south", "tea")):
        panel += [f"{shop},{item},{row.rpartition(',')[0]},fair,{len(shop + item)}\n" for row in rows]
    names = "shop,item,time,load,weather,wind\n"
    Path("load.csv").write_text(names + "".join(panel))
    options = ["--data.values", "load", "--horizon", "2", "--model.season", "12"]
    main(["train", "forecast", "load.csv", *options, "--quiet"])
    capsys.readouterr()
    lines = [*panel[50:70], *panel[150:170], *panel[300:320]]
    lines[3] = lines[3].replace(lines[3].split(",")[3], "#N/A")

    def streamed(lines: list[str]) -> list[dict[str, object]]:
        out = io.StringIO()
        show(RUN, lines, Options(missing="hold", json=True), out)
        answers = [json.loads(line) for line in out.getvalue().splitlines()]
        return [{key: value for key, value in answer.items() if key != "line"} for answer in answers]

    answers = streamed(lines)
    assert len(answers) == 62
    assert [number for number, answer in enumerate(answers) if "end" in answer] == [20, 41]
    assert answers == streamed([names, *lines])
    assert answers[21:41] == streamed(lines[20:40])
    assert answers[42]["time"] == "2024-01-01 00:00"
    with pytest.raises(ValueError, match="expected 1 number, or the 6 fields of a line of the file, got 4"):
        show(RUN, ["1,2,3,4\n"], Options(), io.StringIO())


def test_a_stream_continues_the_rows_of_training(load_run: Path) -> None:
    """Without times its first sample is the one after the last row."""
    found = deployed.load(load_run)
    assert found.forecast is not None
    assert found.forecast.phase == COUNT % 12
    assert found.answer([1.0, 2.0] * HORIZON) == {"forecast": {"load": [1.0] * HORIZON, "temp": [2.0] * HORIZON}}


def test_a_server_names_the_columns(load_run: Path) -> None:
    server = make_server(deployed.load(load_run), ServerOptions())
    with TestClient(server.app(), base_url="http://127.0.0.1") as client:
        about = client.get("/model").json()
        assert (about["columns"], about["horizon"]) == (["load", "temp"], HORIZON)
        with client.websocket_connect("ws://127.0.0.1/ws") as connection:
            connection.receive_json()
            connection.send_json({"samples": [[50.0, 15.0], [51.0, 16.0]]})
            answer = connection.receive_json()
    assert {name: len(ahead) for name, ahead in answer["forecast"].items()} == {"load": HORIZON, "temp": HORIZON}
    assert answer["outputs"][-1][:2] == [answer["forecast"]["load"][0], answer["forecast"]["temp"][0]]


def test_an_export_names_the_columns(load_run: Path, tmp_path: Path) -> None:
    main(["export", str(load_run), "--to", "c", "--out", str(tmp_path)])
    about = json.loads((tmp_path / "model.json").read_text())
    assert (about["columns"], about["horizon"]) == (["load", "temp"], HORIZON)
