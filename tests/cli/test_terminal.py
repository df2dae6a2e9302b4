"""Tables: nothing is cut off, on a narrow terminal or none."""

import io
from pathlib import Path

import pytest

from plmu.cli.report import load, summary_table
from plmu.data.files import DataConfig
from plmu.experiments.data import imdb, mnist
from plmu.experiments.data.overview import overview
from plmu.training.terminal import Console, show_table

ROWS = [("alpha", "0.0249123 ± 0.0006", ""), ("beta", "7.65e+16", "[x] 3")]
ROOT = Path(__file__).parents[2]
COLUMNS = ("name", "a long score", "more")


def _shown(width: int, terminal: bool, rows=ROWS, title: str | None = None) -> str:
    out = io.StringIO()
    show_table(COLUMNS, rows, title, Console(file=out, width=width, force_terminal=terminal, color_system=None))
    return out.getvalue()


def test_a_wide_terminal_shows_a_table():
    lines = _shown(80, True, title="a title").splitlines()
    assert lines[0].strip() == "a title"
    assert [cell.strip() for cell in lines[2].split("┃")[1:-1]] == list(COLUMNS)
    assert [cell.strip() for cell in lines[4].split("│")[1:-1]] == list(ROWS[0])
    assert [cell.strip() for cell in lines[5].split("│")[1:-1]] == list(ROWS[1])


@pytest.mark.parametrize("width", [1, 10, 37])
def test_a_narrow_terminal_shows_names_and_values(width):
    lines = [line.rstrip() for line in _shown(width, True, title="t").splitlines()]
    assert lines == [
        "t",
        "name          alpha",
        "a long score  0.0249123 ± 0.0006",
        "",
        "name          beta",
        "a long score  7.65e+16",
        "more          [x] 3",
        "",
    ]
    assert "┃" in _shown(38, True)  # what the table needs


def test_without_a_terminal_lines_are_as_long_as_need_be():
    long = [("x" * 300, "1", "2")]
    assert f"│ {'x' * 300} │ 1 " in _shown(20, False, long)
    assert "┃" in _shown(200, False)


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_no_number_of_a_report_is_cut(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("NO_COLOR", "1")
    summaries = load(ROOT / "results")
    summary_table(summaries)
    shown = capsys.readouterr().out
    assert "…" not in shown
    for summary in summaries:
        assert f"{summary['parameters']:,}" in shown


def test_a_list_has_no_title_unless_there_is_one(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    show_table(COLUMNS, ROWS)
    assert capsys.readouterr().out.splitlines()[0].rstrip() == "name          alpha"


def test_a_reader_that_has_gone_is_left_to_the_program():
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        show_table(COLUMNS, ROWS, console=Console(file=Closed()))


@pytest.mark.parametrize("width", [40, 80, 300])
def test_addresses_of_data_can_be_copied(width, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path))
    monkeypatch.delenv("PLMU_DATA", raising=False)
    overview(DataConfig())
    shown = capsys.readouterr().out
    assert {word for word in shown.split() if word.startswith("http")} >= {mnist.HOME, imdb.HOME.split()[0]}
    assert str(tmp_path) in shown
