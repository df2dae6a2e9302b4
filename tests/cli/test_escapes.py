"""Names from a user's files: a terminal does not obey them, a spreadsheet does not compute them."""

import csv
import io
import json
import os
import shutil
from pathlib import Path

import pytest

import plmu
from plmu.cli.program import main
from plmu.cli.report import load, report
from plmu.errors import printable
from plmu.runs import outputs
from plmu.runs.predict import without_formula
from plmu.training.terminal import Console, show_table

EVIL = "a\x1b[31m\x07\x9b1m\u202eb"
SHOWN = r"a\u001b[31m\u0007\u009b1m\u202eb"


@pytest.mark.parametrize("text", ["Größe θ\xa0é 温度", "a\tb\nc", "👩\u200d🚀 می\u200cخواهم", ""])
def test_ordinary_text_is_shown_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_control_characters_are_escaped_as_in_json() -> None:
    assert printable(EVIL) == SHOWN
    assert json.loads(f'"{SHOWN}"') == EVIL
    assert printable("\ud800\r") == r"\ud800\u000d"


def test_tables_escape_names() -> None:
    out = io.StringIO()
    for width in (200, 10):
        console = Console(file=out, width=width, force_terminal=True, color_system=None)
        show_table([EVIL, "b"], [(EVIL, "[red]")], EVIL if width == 200 else None, console)
    assert out.getvalue().count(SHOWN) == 5
    assert not set(EVIL[1] + "\x07\x9b\u202e") & set(out.getvalue().replace("\x1b[3m", "").replace("\x1b[0m", ""))


def test_errors_notes_and_columns_are_escaped(tmp_path: Path, monkeypatch, capsys) -> None:
    """Of a forecast of a column of this name in a file of this name: training, predicting, streaming and scoring."""
    monkeypatch.chdir(tmp_path)
    file = "a\x1b7\x9b\u202e.csv"
    rows = "".join(f"{step},{step % 5},=1+{step % 2}\n" for step in range(120))
    Path(file).write_text(f"step,{EVIL},other\n{rows}")
    words = ["--data.values", EVIL, "--name", "evil"]
    main(["train", "forecast", "--data.file", file, "--horizon", "2", *words])
    run = next(path for path in Path("runs").iterdir() if path.is_dir())
    main(["evaluate", str(run)])
    main(["predict", str(run), file])
    main(["stream", str(run), "--input", file, "--json"])
    with pytest.raises(SystemExit):
        main(["evaluate", EVIL])
    out, err = capsys.readouterr()
    assert not set("\x1b\x07\x9b\u202e") & set(out + err)
    assert all(SHOWN in part and r"a\u001b7\u009b\u202e.csv" in part for part in (out, err))


def test_labels_are_escaped_in_streams(tmp_path: Path, monkeypatch, capsys) -> None:
    model = plmu.Sequential(plmu.ParallelLMU(1, 2, order=2, theta=3.0))
    plmu.save(model, tmp_path / "model.plmu")
    outputs.write(tmp_path, outputs.Outputs(labels=(EVIL, f"{EVIL}\nc")))
    for words in ([], ["--json"]):
        monkeypatch.setattr("sys.stdin", io.StringIO("1\n2\n"))
        main(["stream", str(tmp_path), *words])
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 2
        assert all(SHOWN in line for line in lines)
        assert not set("\x1b\x07\x9b\u202e") & set("".join(lines))


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ('=HYPERLINK("http://x")', '\'=HYPERLINK("http://x")'),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-a", "'-a"),
        ("\t=1", "'\t=1"),
        ("-3.5", "-3.5"),
        ("+1e5", "+1e5"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_text_that_begins_a_formula_has_a_mark_before_it(cell: str, written: str) -> None:
    assert without_formula(cell) == written


def test_predictions_hold_no_formulas(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    name = '=HYPERLINK("http://x")'
    rows = [[series, step, -1.0 - step % 5] for series in (name, "@b") for step in range(100)]
    with open("panel.csv", "w", newline="") as file:
        csv.writer(file).writerows([["site", "step", "load"], *rows])
    main(["train", "forecast", "panel.csv", "--data.id", "site", "--data.time", "step", "--horizon", "2", "--quiet"])
    run = next(str(path) for path in Path("runs").iterdir() if path.is_dir())
    capsys.readouterr()
    main(["predict", run, "panel.csv", "--quiet"])
    written = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    main(["predict", run, "panel.csv", "--quiet", "--out", "out.csv"])
    main(["predict", run, "panel.csv", "--quiet", "--out", "out.json"])
    assert written == list(csv.DictReader(io.StringIO(Path("out.csv").read_text())))
    assert {row["site"] for row in written} == {f"'{name}", "'@b"}
    assert all(float(row["load"]) < 0 for row in written)
    assert {row["site"] for row in json.loads(Path("out.json").read_text())} == {name, "@b"}


def test_a_report_opens_regular_files_alone(tmp_path: Path, capsys) -> None:
    results = tmp_path / "results"
    results.mkdir()
    source = sorted((Path(__file__).parents[2] / "results").glob("mackey-glass-*.json"))[0]
    shutil.copy(source, results)
    os.mkfifo(results / "pipe.json")
    (results / "folder.json").mkdir()
    assert [summary["name"] for summary in load(results)] == [source.stem]
    report([results], tmp_path / "report")
    assert "report.html" in capsys.readouterr().out
