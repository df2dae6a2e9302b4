"""The tables of the pages on performance are what the committed results say."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from plmu.bench import markdown
from plmu.cli.program import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / name for name in ("performance.md", "performance-record.md")]


def _place(name: str, within: str = "") -> str:
    return f"<!-- bench {name}: begin -->\n{within}<!-- bench {name}: end -->"


def _row(layer: str, order: int, times: float, parameters: int, *, matched: bool = True) -> dict[str, Any]:
    return {
        "shape": f"d{order}",
        "order": order,
        "time": 9,
        "budget": 1,
        "layer": layer,
        "width": f"{order} wide",
        "source": f"maker of {layer}",
        "parameters": parameters,
        "times ours": times,
        "matched": matched,
        "milliseconds forward and backward": 0.4567 * times,
        "milliseconds eager": {"forward": 1.0, "both": 1 + times},
    }


WHOLE = [
    _row("ours", 4, 1.0, 1_375_000),
    _row("x", 4, 2.0, 1_060_000),
    _row("y", 4, 30.0, 2_000_000, matched=False),
    _row("ours", 16, 1.0, 4_200_000),
    _row("x", 16, 0.5, 4_190_000),
    _row("y", 16, 10.0, 4_200_000),
]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "bench-layers-cuda.json").write_text(json.dumps({"whole layers": WHOLE}))
    return tmp_path


@pytest.mark.parametrize("name", ["README.md", "docs/performance.md", "docs/performance-record.md"])
def test_a_page_shows_the_committed_results(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert page == markdown.fill(page, ROOT / "results"), f"run: plmu report --readme {name}"


def test_the_pages_on_performance_have_every_table_once() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert sorted(re.findall(r"<!-- bench ([\w-]+): begin -->", pages)) == sorted(markdown.TABLES)


def test_whole_layers_are_compared_where_parameters_match(results: Path) -> None:
    page = markdown.fill("\n".join(["before", _place("whole", "old\n"), _place("whole-ratios"), "after"]), results)
    assert page.splitlines() == [
        "before",
        "<!-- bench whole: begin -->",
        "| shape | ours | x | y |",
        "| --- | --- | --- | --- |",
        "| d4 | 0.457 (1.38) | 0.913 (1.06) |  |",
        "| d16 | 0.457 (4.20) | 0.228 (4.19) | 4.57 (4.20) |",
        "<!-- bench whole: end -->",
        "<!-- bench whole-ratios: begin -->",
        "| baseline | time relative to plmu, graph | shapes where it is faster | time relative to plmu, eager | "
        "shapes where it is faster |",
        "| --- | --- | --- | --- | --- |",
        "| x | 0.500 to 2.00 | order 16, 9 steps, 4.19 M | 0.750 to 1.50 | order 16, 9 steps, 4.19 M |",
        "| y | 10.0 to 10.0 | none | 5.50 to 5.50 | none |",
        "<!-- bench whole-ratios: end -->",
        "after",
    ]


def test_eager_ratios_are_of_the_comparisons_that_have_them() -> None:
    rows = [{key: one for key, one in row.items() if key != markdown.EAGER or row["order"] == 4} for row in WHOLE]
    lines = markdown.whole_ratios({"whole layers": [row for row in rows if row["matched"]]}).splitlines()
    assert "| x | 0.500 to 2.00 | order 16, 9 steps, 4.19 M | 1.50 to 1.50 | none |" in lines


def test_versions_and_hardware_stand_under_a_table(results: Path) -> None:
    machine = {"hardware": "a GPU", "torch": "2.11", "plmu": "0.2", "python": "3.12"}
    file = results / "bench-layers-cuda.json"
    file.write_text(json.dumps({"machine": machine, "whole layers": WHOLE}))
    assert "| none |\n\nMeasured with plmu 0.2, torch 2.11, a GPU.\n<!--" in markdown.fill(
        _place("whole-ratios"), results
    )
    file.write_text(json.dumps({"machine": {"torch": "2.11"}, "whole layers": WHOLE}))
    assert "| none |\n\nMeasured with torch 2.11.\n<!--" in markdown.fill(_place("whole-ratios"), results)


def test_rows_of_one_shape_differ_by_the_memory_channels() -> None:
    widths = {4: "order 4 on all 512 channels", 16: "order 4 on 64 channels, after an encoder"}
    rows = [{**row, "shape": "d4", "budget": row["order"], "width": widths[row["order"]]} for row in WHOLE]
    shapes = [line.split(" | ")[0] for line in markdown.whole({"whole layers": rows}).splitlines()[2:]]
    assert shapes == ["| d4, 512 memory channels", "| d4, 64 memory channels"]


def test_widths_and_implementations_are_named(results: Path) -> None:
    page = markdown.fill(_place("whole-widths"), results)
    assert "| d4 | 4 wide | 4 wide |  |" in page
    assert "Implementations: ours: maker of ours; x: maker of x; y: maker of y." in page


def test_what_was_not_measured_is_said(results: Path) -> None:
    page = markdown.fill(_place("gemm-float32") + _place("growth"), results)
    assert "*No results in bench-algorithms-cuda.json: run `plmu bench algorithms --device cuda`.*" in page
    assert "*No results in bench-complexity-cuda.json: run `plmu bench complexity --device cuda`.*" in page


def test_an_unknown_table_is_refused(results: Path) -> None:
    with pytest.raises(ValueError, match="there is no table 'speed': it is one of whole, "):
        markdown.fill(_place("speed"), results)


def test_the_command_fills_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"a\n{_place('answers')}\nb\n", encoding="utf-8")
    monkeypatch.chdir(ROOT)
    main(["report", "--out", str(tmp_path / "report"), "--readme", str(page)])
    lines = page.read_text(encoding="utf-8").splitlines()
    assert lines[2] == "| command | seconds | validation | test |"
    assert lines[-1] == "b"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (0.0, "0.00"), (0.0273, "0.0273"), (1.0, "1.00"), (66.04, "66.0"), (457.4, "457"), (2756.0, "2,756")],
)
def test_numbers(value: float | None, shown: str) -> None:
    assert markdown._number(value) == shown
