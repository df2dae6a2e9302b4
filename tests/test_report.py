"""The README's table is what `plmu report` makes of the committed results."""

import json
import shutil
from pathlib import Path

import pytest

from plmu.cli import main
from plmu.report import BEGIN, END, load, markdown, report, write_readme

ROOT = Path(__file__).parent.parent


def test_the_readme_shows_the_committed_results():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.split(BEGIN, 1)[1].split(END, 1)[0].strip()
    assert table == markdown(load(ROOT / "results")), "run: plmu report --readme README.md"


def test_every_result_says_what_it_is():
    for one in load(ROOT / "results"):
        for field in ("command", "config", "seeds", "parameters", "notes", "hardware", "source", "torch"):
            assert one[field], field
        assert len(one["seeds"]) >= 3


def test_a_report_is_written(tmp_path, capsys):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    report([ROOT / "results"], tmp_path / "report", readme)
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "mackey-glass" in page
    assert "qqp (partial data)" in page
    assert (tmp_path / "report" / "results.png").stat().st_size > 10_000
    assert readme.read_text(encoding="utf-8").startswith(f"before\n{BEGIN}\n| experiment")
    assert "old" not in readme.read_text(encoding="utf-8")
    write_readme(readme, load(ROOT / "results"))
    assert readme.read_text(encoding="utf-8").endswith(f"{END}\nafter\n")


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

    Path("README.md").write_text(f"{BEGIN}\n{END}\n")
    main(["report", "--readme", "README.md"])
    assert Path("README.md").read_text(encoding="utf-8") == f"{BEGIN}\n{markdown(load(Path('results')))}\n{END}\n"

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
