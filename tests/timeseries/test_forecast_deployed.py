"""Streams, servers and exports of runs of forecast."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forecasts import COUNT, HORIZON, RUN, table, written
from starlette.testclient import TestClient

import plmu
from plmu.cli.program import main
from plmu.cli.stream_lines import Options, show
from plmu.errors import RunError
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


def test_lines_of_forecasts_have_names_and_times(load_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a time, where the stream is taken to begin is said; a time that is given is taken."""
    steps = ",".join(f"load +{k},temp +{k}" for k in range(1, HORIZON + 1))
    out = io.StringIO()
    show(load_run, ["50,15\n", "51,16\n"], Options(), out)
    header, *lines = out.getvalue().splitlines()
    assert header == f"time,{steps}"
    assert [line.split(",")[0] for line in lines] == ["2024-01-31 00:00", "2024-01-31 02:00"]
    assert all(len(line.split(",")) == 1 + 2 * HORIZON for line in lines)
    warning = "no time was given: the first sample is taken to be at 2024-01-31 00:00, one step after its training data"
    assert capsys.readouterr().err.count(warning) == 1
    answers = []
    for options in (Options(json=True), Options(json=True, time="2024-01-31T06:00"), Options(json=True, time="soon")):
        out = io.StringIO()
        if options.time == "soon":
            with pytest.raises(ValueError, match="line 1: --time: 'soon' is not a date or time"):
                show(load_run, ["50,15\n"], options, out)
        else:
            show(load_run, ["50,15\n"], options, out)
            answers.append(json.loads(out.getvalue()))
    assert answers[0]["warning"].startswith(warning)
    assert "warning" not in answers[1]
    assert [answer["time"] for answer in answers] == ["2024-01-31 00:00", "2024-01-31 06:00"]
    assert answers[1]["times"] == [f"2024-01-31 {8 + 2 * k:02}:00" for k in range(HORIZON)]
    assert answers[0]["forecast"] != answers[1]["forecast"]


def test_a_time_for_lines_that_have_times_is_refused(load_run: Path) -> None:
    options = Options(time="2024-01-01")
    with pytest.raises(ValueError, match="it has a time, 2024-01-01 00:00: leave out --time 2024-01-01"):
        show(load_run, written().splitlines(keepends=True)[:3], options, io.StringIO())


def test_gaps_between_lines(load_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing step is filled, or an error; after a long gap a new sequence begins; times must increase."""
    header, *rows = written().splitlines(keepends=True)

    def streamed(lines: list[str], **options: Any) -> list[dict[str, Any]]:
        out = io.StringIO()
        show(load_run, [header, *lines], Options(json=True, **options), out)
        return [json.loads(line) for line in out.getvalue().splitlines()]

    held = [rows[2].split(",")[0], *rows[1].split(",")[1:]]
    whole = streamed([*rows[:2], ",".join(held), *rows[3:8]])
    filled = streamed([*rows[:2], *rows[3:8]], missing="hold")
    assert [answer["forecast"] for answer in filled[2:]] == [answer["forecast"] for answer in whole[3:]]
    with pytest.raises(
        ValueError, match="line 4: 1 step is missing before it, from 2024-01-01 04:00 on: --missing hold"
    ):
        streamed([*rows[:2], *rows[3:8]])
    skipped = streamed([*rows[:2], *rows[3:8]], on_error="skip")
    assert "missing" in skipped[2]["error"]
    anew = streamed(rows[4:8])
    assert skipped[3] == {"line": 4, "end": True}
    assert [answer["forecast"] for answer in skipped[4:]] == [answer["forecast"] for answer in anew]
    out = io.StringIO()
    show(load_run, [header, *rows[:2], *rows[3:8]], Options(on_error="skip"), out)
    assert [number for number, line in enumerate(out.getvalue().splitlines()) if not line] == [3]
    far = streamed([*rows[:2], *rows[300:302]], missing="hold")
    assert far[2]["end"]
    assert [answer["forecast"] for answer in far[3:]] == [answer["forecast"] for answer in streamed(rows[300:302])]
    for lines in ([rows[1], rows[1]], [rows[1], rows[0]]):
        with pytest.raises(ValueError, match="its time does not follow the line before: the next is 2024-01-01 04:00"):
            streamed(lines, missing="hold")


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
    shops = ("north / tea", "north / coffee", "south / tea")
    assert [answer["shop / item"] for answer in answers] == [shop for shop in shops for _ in range(20)]
    assert answers == streamed([names, *lines])
    assert answers[20:40] == streamed(lines[20:40])
    assert answers[40]["time"] == "2024-01-01 00:00"
    mixed = [line for three in zip(lines[:20], lines[20:40], lines[40:], strict=True) for line in three]
    assert streamed(mixed) == [answers[first + row] for row in range(20) for first in (0, 20, 40)]
    plain = io.StringIO()
    show(RUN, lines, Options(missing="hold"), plain)
    head, first, *_ = plain.getvalue().splitlines()
    assert head == "shop / item,time,load +1,load +2"
    assert first.startswith("north / tea,2024-01-05 04:00,")
    Path("part.csv").write_text("".join([names, *lines[20:40]]))
    forecaster = plmu.Forecaster.from_run(RUN)
    expected = forecaster.predict(Path("part.csv"), level=forecaster.levels_).to_dict(as_series=False)
    answer: Any = answers[39]
    ahead = {**answer["forecast"], **answer["intervals"]}
    assert [*ahead] == [name for name in expected if name not in ("time", "shop / item")]
    for name, column in ahead.items():  # relative to the changes in the window, which float32 rounds
        np.testing.assert_allclose(column, expected[name], rtol=1e-5)
    server = make_server(deployed.load(RUN), ServerOptions())
    loads = [float(line.split(",")[3]) for line in lines[20:40]]
    with TestClient(server.app(), base_url="http://127.0.0.1") as client:
        message = {"samples": loads, "time": answers[20]["time"], "session": "north-coffee"}
        served = client.post("/step", json=message).json()
    for name, column in served["intervals"].items():
        np.testing.assert_allclose(column, answer["intervals"][name], rtol=1e-5)
    with pytest.raises(ValueError, match="expected 1 number, or the 6 fields of a line of the file, got 4"):
        show(RUN, ["1,2,3,4\n"], Options(), io.StringIO())


def test_a_stream_continues_the_rows_of_training(load_run: Path) -> None:
    """Without times its first sample is the one after the last row."""
    forecasts = deployed.load(load_run).forecasts
    assert forecasts is not None
    assert forecasts.model.phase == COUNT % 12
    assert forecasts.first_step == COUNT
    assert forecasts.columns([1.0, 2.0] * HORIZON) == {"load": [1.0] * HORIZON, "temp": [2.0] * HORIZON}


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
    about = json.loads((tmp_path / "model.c.json").read_text())
    assert (about["columns"], about["horizon"]) == (["load", "temp"], HORIZON)


def test_a_saved_state_knows_its_time(load_run: Path, tmp_path: Path) -> None:
    """The next line must follow; without times it does."""
    _, *rows = written().splitlines(keepends=True)

    def streamed(lines: list[str], state: Path | None = None) -> list[Any]:
        out = io.StringIO()
        show(load_run, lines, Options(json=True, state=state), out)
        return [{**json.loads(line), "line": 0} for line in out.getvalue().splitlines()]

    whole, state = streamed(rows[5:17]), tmp_path / "state"
    assert streamed(rows[5:9], state) + streamed(rows[9:13], state) == whole[:8]
    with pytest.raises(ValueError, match="its time does not follow the line before: the next is 2024-01-02 02:00"):
        streamed(rows[3:5], state)
    out = io.StringIO()
    show(load_run, [line.partition(",")[2] for line in rows[13:17]], Options(json=True, state=state), out)
    assert [json.loads(line)["forecast"] for line in out.getvalue().splitlines()] == [
        one["forecast"] for one in whole[8:]
    ]


def test_files_of_another_run_are_refused(load_run: Path, tmp_path: Path) -> None:
    """Intervals of another number of columns, and a run of an earlier version, whose clock is in series.json alone."""
    for name in ("model.plmu", "outputs.json", "intervals.json", "series.json"):
        shutil.copy(load_run / name, tmp_path)
    outputs = json.loads((tmp_path / "outputs.json").read_text())
    (tmp_path / "outputs.json").write_text(json.dumps(outputs | {"clock": None, "next_step": None}))
    forecasts = deployed.load(tmp_path).forecasts
    assert forecasts is not None
    assert forecasts.time_of(forecasts.first_step) == "2024-01-01 00:00"
    assert "where its season begins" in (forecasts.assumption(forecasts.first_step) or "")
    content = json.loads((tmp_path / "intervals.json").read_text())
    (tmp_path / "intervals.json").write_text(json.dumps(content | {"low": [level[:1] for level in content["low"]]}))
    with pytest.raises(RunError, match=r"intervals\.json is of another run"):
        deployed.load(tmp_path)


def test_a_skipped_line_without_a_time_is_a_step(load_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that the times of the lines after it are right; where nothing fills it, the stream stops."""
    rows = [line.partition(",")[2] for line in written().splitlines(keepends=True)[1:9]]
    wrong = [*rows[:3], "50,soon\n", *rows[4:]]

    def streamed(lines: list[str], **options: Any) -> list[Any]:
        out = io.StringIO()
        show(load_run, lines, Options(json=True, on_error="skip", **options), out)
        return [json.loads(line) for line in out.getvalue().splitlines()]

    whole = streamed(rows)
    skipped = streamed(wrong, missing="hold")
    assert [answer.get("time") for answer in skipped] == [
        None if number == 3 else answer["time"] for number, answer in enumerate(whole)
    ]
    assert "line 4: 'soon', in column 2, is not a number" in capsys.readouterr().err
    with pytest.raises(ValueError, match="lines without times cannot be skipped, since each is a step: add --missing"):
        streamed(wrong)


def test_the_header_is_printed_once_however_lines_are_divided(load_run: Path, tmp_path: Path) -> None:
    rows, state = written().splitlines(keepends=True), tmp_path / "state"
    for form in (rows, [line.partition(",")[2] for line in rows[1:]]):
        whole, parts = io.StringIO(), io.StringIO()
        show(load_run, form[:9], Options(), whole)
        for lines in (form[:4], form[4:9]):
            show(load_run, lines, Options(state=state), parts)
        assert parts.getvalue() == whole.getvalue()
        state.unlink()
