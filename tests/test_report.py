"""The README's table is what `plmu report` makes of the committed results."""

from pathlib import Path

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
    report(ROOT / "results", tmp_path / "report", readme)
    page = (tmp_path / "report" / "report.html").read_text()
    assert "mackey-glass" in page
    assert (tmp_path / "report" / "results.png").stat().st_size > 10_000
    assert readme.read_text().startswith(f"before\n{BEGIN}\n| experiment")
    assert "old" not in readme.read_text()
    write_readme(readme, load(ROOT / "results"))
    assert readme.read_text().endswith(f"{END}\nafter\n")
