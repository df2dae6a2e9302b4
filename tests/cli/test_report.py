"""Reports: rows, the page and the plot. Tables in Markdown are tested in tests/bench/test_documents.py."""

import json
import shutil
from pathlib import Path

import pytest

from plmu.cli.curves import labelled
from plmu.cli.program import main
from plmu.cli.report import _page, load, plot, report, summary_table
from plmu.cli.tables import HEADER, SHORTENED, epochs, rows, shortened, shown
from plmu.errors import RunError

ROOT = Path(__file__).parents[2]


def test_every_result_says_what_it_is():
    for one in load(ROOT / "results"):
        for field in ("command", "config", "seeds", "parameters", "notes", "hardware", "source", "torch"):
            assert one[field], field


def test_a_report_is_written(tmp_path, capsys):
    report([ROOT / "results"], tmp_path / "new" / "report")
    page = (tmp_path / "new" / "report" / "report.html").read_text(encoding="utf-8")
    assert "mackey-glass" in page
    assert "qqp (partial data)" in page
    assert (tmp_path / "new" / "report" / "results.png").stat().st_size > 10_000


def test_results_and_runs_are_shown_and_the_first_folder_comes_first(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder in ("results", "runs"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / "results" / "mackey-glass-plmu.json", "results")
    one = json.loads((ROOT / "results" / "mackey-glass-plmu.json").read_text(encoding="utf-8"))
    Path("runs/mackey-glass-plmu.json").write_text(json.dumps({**one, "parameters": 123_456}))
    Path("runs/mine.json").write_text(json.dumps({**one, "parameters": 7_654}))

    main(["report"])
    shown = capsys.readouterr().out
    assert "7,654" in shown
    assert "123,456" not in shown
    assert "runs/mackey-glass-plmu.json is not shown: results/mackey-glass-plmu.json comes first" in shown

    main(["report", "--results", "runs", "--results", "results"])
    assert "123,456" in capsys.readouterr().out

    shutil.rmtree("results")
    main(["report"])
    assert "123,456" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["{", '{"experiment": "x", "seeds": []}'])
def test_a_damaged_result_is_named(content, tmp_path, capsys):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(SystemExit) as stopped:
        main(["report", "--results", str(tmp_path)])
    assert stopped.value.code == 2
    assert f"plmu: {tmp_path / 'a.json'} is damaged" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_named(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["report", "--results", str(ROOT / "results"), "--out", "/dev/null/x"])
    assert stopped.value.code == 2
    assert "plmu: cannot write to /dev/null/x: Not a directory; choose another --out" in capsys.readouterr().err


def _summary(**changes) -> dict:
    """A result of two seeds."""
    seeds = [
        {"seed": 0, "valid": {"accuracy": 0.5, "other": 1.0}, "test": {}},
        {"seed": 1, "valid": {"accuracy": 0.7, "other": 2.0}, "test": {}},
    ]
    return {
        "name": "mine",
        "experiment": "psmnist",
        "model": "plmu",
        "parameters": 12_345,
        "metric": "accuracy",
        "percent": True,
        "paper": 0.9849,
        "test": {"other": {"mean": 0.123456, "std": 0.0456}, "accuracy": {"mean": 0.98765, "std": 0.00126}},
        "seeds": seeds,
        "config": {"training": {"epochs": 120}},
        "notes": {"data": "complete"},
        "hardware": "a CPU",
        "command": "plmu train psmnist <x>",
        "source": "commit abc",
        "torch": "9.9",
        **changes,
    }


def test_the_rows_of_a_result():
    first, second = rows(_summary())
    assert first == (
        "psmnist", "plmu", "mine", "120", "12,345", "accuracy", "98.77 ± 0.13 %", "98.49 %", "2", "60.00 %", "a CPU",
    )  # fmt: skip
    assert second == (
        "psmnist", "plmu", "mine", "120", "12,345", "other", "12.35 ± 4.56 %", "", "2", "150.00 %", "a CPU",
    )  # fmt: skip
    assert len(first) == len(HEADER) + 1
    one = _summary(percent=False, paper=None, notes={"data": "partial: 3 of 4"})
    one["seeds"] = one["seeds"][:1]
    one["seeds"][0]["valid"] = {"accuracy": 0.123456}
    first, second = rows(one)
    assert first[0] == "psmnist (partial data)"
    assert (first[6], first[7], first[8], first[9]) == ("0.988", "", "1", "0.123")
    assert (second[6], second[9]) == ("0.123", "")
    assert shown(0.04567, False, 0.0234) == "0.0457 ± 0.02"
    assert shown(1.46997, False, 0.00017) == "1.470 ± 0.0002"
    assert shown(1600.0, False) == "1600"
    assert shown(0.04567, True) == "4.57 %"


def test_a_run_of_the_usual_name_needs_none():
    assert rows(_summary(name="psmnist-plmu"))[0][2] == ""
    assert rows(_summary())[0][2] == "mine"


def test_shortened_runs_are_marked():
    assert (epochs(_summary()), shortened(_summary())) == ("120", False)
    short = _summary(config={"training": {"epochs": 2}})
    assert (epochs(short), shortened(short)) == ("2 of 120", True)
    refit = _summary(config={"training": {"epochs": 2, "refit": True}})  # which has a number of its own
    assert (epochs(refit), shortened(refit)) == ("2", False)
    longer = _summary(config={"training": {"epochs": 1000}})
    assert (epochs(longer), shortened(longer)) == ("1,000", False)
    for unknown in ({"experiment": "another"}, {"model": "another"}):
        assert epochs(_summary(config={"training": {"epochs": 2}}, **unknown)) == "2"


def test_runs_of_one_model_are_told_apart_in_the_plot():
    assert labelled(_summary(name="psmnist-plmu")) == "plmu"
    assert labelled(_summary()) == "plmu\nmine"
    assert labelled(_summary(name="a$^$b")) == "plmu\na\\$^\\$b"
    assert labelled(_summary(config={"training": {"epochs": 2}})) == "plmu\nmine\n2 of 120 epochs"
    assert labelled(_summary(config={"training": {"epochs": 2, "refit": True}})) == "plmu, refit\nmine"


def test_the_table_says_what_shortened_means(capsys, monkeypatch):
    summary_table([_summary()])
    shown = capsys.readouterr().out
    assert SHORTENED not in shown
    assert shown.splitlines()[-1] == "on a CPU"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    summary_table([_summary(hardware="12 of them", config={"training": {"epochs": 2}})])
    assert [line for line in capsys.readouterr().out.splitlines() if "\x1b" in line and "epochs:" in line] == []
    summary_table([_summary(hardware="12 of them")])
    assert capsys.readouterr().out.splitlines()[-1] == "on 12 of them"  # numbers are not coloured
    monkeypatch.undo()
    summary_table([_summary(config={"training": {"epochs": 2}}), _summary(hardware="a GPU")])
    shown = " ".join(capsys.readouterr().out.split())
    assert "│ mine │ 2 of 120 │" in shown
    assert SHORTENED in shown
    assert shown.endswith("on a CPU; a GPU")


def test_the_plot_shows_means_spreads_and_the_papers_figures(tmp_path, monkeypatch):
    from matplotlib import pyplot

    kept = []
    monkeypatch.setattr(pyplot, "close", kept.append)
    plain = {"experiment": "mackey-glass", "metric": "other", "percent": False, "paper": None}
    summaries = [
        _summary(),
        _summary(name="mo$^$re", paper=0.5),
        _summary(**plain, seeds=[]),
        _summary(**plain, seeds=[], test={"other": {"mean": 4.0, "std": 0.1}}),
        _summary(**plain | {"experiment": "near"}, seeds=[]),
        _summary(experiment="c"),
        _summary(experiment="d", notes={"data": "partial"}),
    ]
    plot(summaries, tmp_path / "a.png")
    (figure,) = kept
    axes = figure.axes
    assert [axis.get_title() for axis in axes] == ["c", "d (partial data)", "mackey-glass", "near", "psmnist"]
    assert figure.get_size_inches().tolist() == pytest.approx([12.6, 6.8])
    assert [axis.get_ylabel() for axis in axes] == ["accuracy, %", "accuracy, %", "other", "other", "accuracy, %"]
    assert [axis.get_yscale() for axis in axes] == ["linear", "linear", "log", "linear", "linear"], "far apart or near"
    last = axes[4]
    points = [line for line in last.lines if line.get_marker() in ("o", "_") and line.get_markersize() != 8]
    found = [(line.get_marker(), float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in points]
    assert {(line.get_markersize(), line.get_markeredgewidth()) for line in points[1::2]} == {(22.0, 2.5)}
    assert [(a, b, pytest.approx(c)) for a, b, c in found] == [
        ("o", 0.0, 98.765), ("_", 0.0, 98.49), ("o", 1.0, 98.765), ("_", 1.0, 50.0),
    ]  # fmt: skip
    bars = [container.lines[2][0].get_segments()[0][:, 1] for container in last.containers]
    assert [float(bar[1] - bar[0]) for bar in bars] == pytest.approx([0.252, 0.252])
    assert last.get_xlim() == pytest.approx((-0.6, 1.6))
    assert [label.get_text() for label in last.get_xticklabels()] == ["plmu\nmine", "plmu\nmo\\$^\\$re"]
    mean = axes[2].lines[0].get_ydata()[0]
    assert float(mean) == pytest.approx(0.123456)
    assert [line.get_marker() for line in axes[3].lines].count("_") == 2  # the caps of the error bar alone
    assert last.get_position().y0 > figure.legends[0].get_window_extent().y1 / figure.bbox.height
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["here, mean ± spread of seeds", "the paper"]
    monkeypatch.undo()
    pyplot.close(figure)


@pytest.mark.parametrize(("runs", "length"), [(1, 240), (12, 100)])
def test_a_plot_has_room_for_many_runs_and_long_names(runs, length, tmp_path):
    """matplotlib warns where there is none, and warnings are errors here."""
    plot([_summary(name=f"{'a-name-' * length}"[:length] + str(run)) for run in range(runs)], tmp_path / "a.png")


def test_the_page_says_what_was_run():
    page = _page([_summary()])
    assert "<h2>mine: psmnist, plmu</h2>" in page
    assert "<code>plmu train psmnist &lt;x&gt;</code>" in page
    assert "<br>commit abc, torch 9.9; data: complete</p>" in page
    assert "<th>hardware</th>" in page
    assert "<td>98.77 ± 0.13 %</td>" in page
    assert SHORTENED in page


@pytest.mark.parametrize(
    "changes",
    [
        {"test": {}},
        {"test": {"accuracy": {"mean": 0.5}, "other": {"mean": "x", "std": 0.0}}},
        {"test": {"accuracy": {"mean": 0.5, "std": None}}},
        {"paper": "x"},
        {"percent": None, "paper": []},
        {"config": {"training": {"epochs": "many"}}},
        {"config": []},
        {"notes": []},
        {"experiment": []},
        {"hardware": 3},
        {"name": 3, "command": None},
    ],
)
def test_results_of_a_wrong_structure_are_named(changes, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(_summary(**changes)))
    with pytest.raises(RunError, match=r"a\.json is damaged \(\w+: .*\): remove it, or make it again"):
        load(tmp_path)


def test_other_json_files_are_passed_over(tmp_path):
    for name, content in (("b", _summary()), ("a", _summary()), ("c", []), ("d", {"experiment": "x"})):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    assert [one["name"] for one in load(tmp_path)] == ["a", "b"]
    assert load(tmp_path / "nowhere") == []


def test_folders_without_results_are_named(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"no results in .*empty: `plmu train` writes them"):
        report([tmp_path / "empty"], tmp_path / "out")
    with pytest.raises(RunError, match=r"no results in [^,]*nowhere: "):
        report([ROOT / "results", tmp_path / "nowhere"], tmp_path / "out")
