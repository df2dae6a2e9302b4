"""`plmu train anomalies` and what runs its model: predict, evaluate and stream, as typed, on clean and messy files."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from anomalies import COUNT, DIP, SEASON, SPIKE, stamps, values, written
from forecasts import result, table
from program import refused

import plmu
from plmu.cli.program import main
from plmu.cli.stream_lines import Options, show
from plmu.runs.folder import STATES_FILE

RUN = Path("runs/anomalies-my-seed0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table with labels, and the run on it."""
    folder = tmp_path_factory.mktemp("anomalies")
    (folder / "my.csv").write_text(written(label="label"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main(["train", "anomalies", "my.csv"])
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def streamed(run: Path, text: str, **options: Any) -> str:
    out = io.StringIO()
    show(run, io.StringIO(text), Options(**options), out)
    return out.getvalue()


def test_the_run_has_a_result_a_report_and_a_picture(here: Path) -> None:
    scores = result(RUN)["test"]
    assert scores["recall"] == 1.0
    assert 0 < scores["alarm_rate"] < 0.02
    report = json.loads((RUN / "anomalies.json").read_text())
    assert (report["threshold"], report["season"], report["labels"]) == (0.001, SEASON, "label")
    listed = report["alarms in stretches"]
    assert sum(stretch["alarms"] for stretch in listed) == report["alarms"]
    spike = next(stretch for stretch in listed if stretch["time from"] <= "2024-01-21 20:00" <= stretch["to"])
    assert (spike["column"], spike["value"]) == ("load", values()[SPIKE, 0])
    assert spike["value"] > spike["upper"] > spike["expected"] > spike["lower"]
    assert (RUN / "anomalies.png").stat().st_size > 10_000


def test_the_program_says_what_it_did(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "anomalies", "my.csv", "--name", "again", "--threshold", "0.01"])
    shown = capsys.readouterr().out
    for note in (
        "values: load, temp",
        "time: column 'time', every 1 h from 2024-01-01 00:00 to 2024-01-30 03:00",
        "gaps: 3 of 700 steps lack a value; they stay missing, and not scored",
        "labels: column 'label', to which nothing is fitted",
        f"model: a season of {SEASON} steps",
        "(about 7 if all of them were normal)",
        "recall 100 % of the labelled stretches",
        "next: plmu predict runs/again-seed0 my.csv",
    ):
        assert note in shown


def test_predict_gives_the_scores_of_the_run_with_their_reason(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    main(["predict", str(RUN), "my.csv", "--plot", "scores.png"])
    shown = capsys.readouterr()
    rows = table(shown.out)
    assert [*rows[0]] == ["time", "score", "alarm", "channel", "value", "expected", "lower", "upper"]
    assert [row["time"] for row in rows] == [str(time)[:16].replace("T", " ") for time in stamps()]
    detector = plmu.AnomalyDetector().fit("my.csv")
    scores = [float(row["score"] or "nan") for row in rows]
    np.testing.assert_allclose(scores, detector.decision_function(), rtol=6e-9)
    assert [int(row["alarm"]) for row in rows] == detector.predict().tolist()
    assert rows[SPIKE]["alarm"] == rows[DIP]["alarm"] == "1"
    assert rows[SPIKE]["channel"] == "load"
    assert [rows[300][name] for name in ("score", "alarm", "value")] == ["", "0", ""]
    assert "recall 100 % of the labelled stretches" in shown.err
    assert Path("scores.png").stat().st_size > 10_000
    frame = plmu.AnomalyDetector.from_run(RUN).detect("my.csv")
    np.testing.assert_array_equal(frame["score"].to_numpy(), detector.decision_function())


def test_evaluate(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    main(["evaluate", str(RUN)])
    assert "recall 1" in capsys.readouterr().out
    Path("plain.csv").write_text(written())
    main(["evaluate", str(RUN), "--other-data", "--data.file", "plain.csv"])
    shown = capsys.readouterr().out
    assert f"alarm_rate {result(RUN)['test']['alarm_rate']:.6g}" in shown
    assert "recall" not in shown


def later(count: int = 30) -> list[str]:
    """Lines after the last row of the table, with an anomaly, a missing value and a gap of two rows."""
    lines = written(COUNT + count).splitlines()[-count:]
    lines[5] = ",".join([*lines[5].split(",")[:1], "", "15"])
    lines[20] = ",".join([*lines[20].split(",")[:1], "150", "15"])
    return [lines[0], *lines[3:]]


def test_a_stream_has_the_scores_of_recorded_data(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "\n".join(line.rsplit(",", 1)[0] for line in Path("my.csv").read_text().splitlines())
    Path("all.csv").write_text("\n".join([rows, *later(), ""]))
    capsys.readouterr()
    main(["predict", str(RUN), "all.csv", "--quiet"])
    recorded = {row["time"]: row for row in table(capsys.readouterr().out)}
    live = table(streamed(RUN, "\n".join(["time,load,temp", *later(), ""])))
    assert len(live) == 28
    for row in live:
        assert row == recorded[row["time"]]
    assert [row["time"] for row in live if row["alarm"] == "1"][-1] == later()[18].split(",")[0]
    without = streamed(RUN, "\n".join(line.partition(",")[2] for line in later()[:1]) + "\n")
    assert table(without)[0] == live[0]
    assert "no time was given" in capsys.readouterr().err


def test_json_lines_have_all_columns(here: Path) -> None:
    lines = [json.loads(line) for line in streamed(RUN, "\n".join(later()), json=True).splitlines()]
    answer = lines[18]
    assert (answer["alarm"], answer["channel"], answer["time"]) == (True, "load", later()[18].split(",")[0])
    assert [*answer["channels"]] == ["load", "temp"]
    assert [*answer["channels"]["temp"]] == ["value", "score", "expected", "lower", "upper"]
    assert lines[3]["channels"]["load"]["value"] is None


def test_a_state_goes_on(here: Path, tmp_path: Path) -> None:
    whole = streamed(RUN, "\n".join(later()) + "\n").splitlines()
    state = tmp_path / "state.plmu"
    first = streamed(RUN, "\n".join(later()[:10]) + "\n", state=state).splitlines()
    second = streamed(RUN, "\n".join(later()[10:]) + "\n", state=state).splitlines()
    assert [*first, *second] == whole


def test_times_that_do_not_follow_are_refused(here: Path) -> None:
    lines = [later()[4], later()[3]]
    with pytest.raises(ValueError, match="line 2: its time does not follow the line before: the next is 2024-01-30 11"):
        streamed(RUN, "\n".join(lines))
    far = later()[4].replace("2024", "2031")
    assert len(streamed(RUN, "\n".join([later()[4], far])).splitlines()) == 3


def test_several_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = values()
    rows = [
        f"{str(time)[:16]},{name},{factor * load:.3f}"
        for time, load in zip(stamps(), x[:, 0], strict=True)
        for name, factor in (("a", 1.0), ("b", 3.0))
    ]
    Path("my.csv").write_text("\n".join(["time,id,load", *rows[:-100], ""]))
    main(["train", "anomalies", "my.csv", "--quiet"])
    assert (RUN / STATES_FILE).is_file()
    main(["predict", str(RUN), "my.csv", "--quiet", "--out", "fit.csv"])
    Path("all.csv").write_text("\n".join(["time,id,load", *rows, ""]))
    main(["predict", str(RUN), "all.csv", "--quiet", "--out", "all-scores.csv"])
    recorded = {(row["id"], row["time"]): row for row in table(Path("all-scores.csv").read_text())}
    for row in table(Path("fit.csv").read_text()):
        assert row == recorded[row["id"], row["time"]]
    live = table(streamed(RUN, "\n".join(["time,id,load", *rows[-100:], ""])))
    assert len(live) == 100
    for row in live:
        expected = recorded[row["id"], row["time"]]
        assert (row["alarm"], row["value"]) == (expected["alarm"], expected["value"])
        assert float(row["score"]) == pytest.approx(float(expected["score"]), abs=1e-8)
    new = table(streamed(RUN, "time,id,load\n2024-03-01 00:00,c,5\n"))
    assert (new[0]["id"], new[0]["alarm"]) == ("c", "0")


def test_a_messy_file_says_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Byte-order mark, semicolons, decimal commas, text among numbers, a duplicate, an empty line, and columns of text
    and of constants."""
    monkeypatch.chdir(tmp_path)
    lines = []
    for i, line in enumerate(written(200).splitlines()[1:]):
        stamp, load, temp = line.split(",")
        load = "defekt" if i == 50 else load
        lines.append(f"{stamp};{load.replace('.', ',')};{temp.replace('.', ',')};1;Halle 3")
        if i == 90:
            lines += [lines[-1], ""]
    content = "\n".join(["Zeit;Last;Temp;Status;Ort", *lines, ""])
    Path("messy.csv").write_bytes(b"\xef\xbb\xbf" + content.encode())
    words = ["train", "anomalies", "messy.csv"]
    assert "messy.csv, line 52, column 'Last': 'defekt' is not a number" in refused(words, capsys)
    main([*words, "--data.bad", "missing"])
    shown = capsys.readouterr().out
    for note in (
        "decimal commas",
        "column 'Last': 1 cell of text taken as missing, the first 'defekt' in line 52",
        "left out, no numbers: Ort",
        "left out, constant: Status",
        "values: Last, Temp",
        "times: rows on the step of another: 1; averaged",
        "gaps: 1 of 200 steps lack a value; they stay missing, and not scored",
    ):
        assert note in shown
    main(["predict", "runs/anomalies-messy-seed0", "messy.csv", "--data.bad", "missing", "--out", "scores.csv"])
    assert len(table(Path("scores.csv").read_text())) == 200


@pytest.mark.parametrize(
    ("content", "options", "fault"),
    [
        ("", [], "is empty: it has no rows"),
        ("time,load\n", [], "has no rows of data"),
        ("time,load\n2024-01-01,1\n2024-01-02,x\n2024-01-03,3\n", [], "line 3, column 'load': 'x' is not a number"),
        ("time,load\n2024-01-01,1\n2024-13-02,2\n", [], "line 3, column 'time': '2024-13-02' is not a date"),
        (written(100), ["--data.values", "laod"], "no column 'laod'"),
        (written(100), ["--data.label", "lable"], "no column 'lable'"),
        (written(100), ["--threshold", "1.5"], "threshold must be a share between 0 and 1"),
        (written(100), ["--model.season", "-2"], "season must be"),
        (written(100), ["--data.longest-gap", "-1"], "longest_gap must be at least 0"),
    ],
)
def test_wrong_use_is_one_message(
    content: str, options: list[str], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("my.csv").write_text(content)
    assert fault in refused(["train", "anomalies", "my.csv", *options], capsys)


def test_options_of_forecasts_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--horizon", "3"], ["--data.future", "my.csv"]):
        fault = refused(["predict", str(RUN), "my.csv", *option], capsys)
        assert "is for forecasts, and runs/anomalies-my-seed0" in fault


def test_a_detector_learns_without_being_asked_to(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "a detector of anomalies, which learns without it" in refused(["stream", str(RUN), "--learn"], capsys)


def test_damaged_runs_are_named(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    for name, content in (("series.json", "{}"), ("outputs.json", "{}"), ("model.plmu", "x")):
        shutil.copytree(RUN, run)
        (run / name).write_text(content)
        assert str(run / name) in refused(["predict", str(run), "my.csv"], capsys)
        shutil.rmtree(run)


@pytest.mark.parametrize(
    ("name", "marks", "reported"),
    [
        ("anomaly", ("false", "true"), True),
        ("Is_Anomaly", ("0", "1"), True),
        ("label", ("3", "7"), False),
        ("x", "01", False),
    ],
)
def test_labels_are_detected_by_name_and_values(
    name: str, marks: tuple[str, str], reported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    lines = written(60).splitlines()
    rows = [f"{line},{marks[number == 40]}" for number, line in enumerate(lines[1:])]
    Path("my.csv").write_text("\n".join([f"{lines[0]},{name}", *rows, ""]))
    main(["train", "anomalies", "my.csv"])
    shown = capsys.readouterr().out
    assert ("precision" in shown) == reported
    assert (f"labels: column '{name}', to which nothing is fitted" in shown) == reported
    assert "60 samples are few for a threshold of 0.001, which needs 1,000 to compare with" in shown
    main(["train", "anomalies", "my.csv", "--data.label", "", "--name", "without"])
    assert "precision" not in capsys.readouterr().out
