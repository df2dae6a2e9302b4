"""The tables of the README and the documentation are what the committed results say."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from untrained import EXPERIMENTS

from benchmarks import documents, tables
from benchmarks.documents import HEADLINES, PAGES, filled, headlines_table, marks, results_table, write_tables
from plmu.cli.report import load

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


def _place(name: str, within: str = "") -> str:
    return f"<!-- {name}: begin -->\n{within}<!-- {name}: end -->"


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


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_the_committed_results(name: str, tmp_path: Path) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert documents.MARKED.search(page)
    copy = tmp_path / "page.md"
    copy.write_text(page, encoding="utf-8")
    write_tables(copy, RESULTS)
    assert copy.read_text(encoding="utf-8") == page, "run: python -m benchmarks.documents"


def test_every_table_is_on_one_page() -> None:
    """The README may repeat one."""
    names = {page: re.findall(r"<!-- ([\w-]+): begin -->", (ROOT / page).read_text(encoding="utf-8")) for page in PAGES}
    everywhere = [*documents.RESULTS, *documents.BENCHMARKS]
    assert set().union(*names.values()) == set(everywhere)
    docs = [name for page in PAGES if page != "README.md" for name in names[page]]
    assert len(docs) == len(set(docs))


def test_whole_layers_are_compared_where_parameters_match(results: Path) -> None:
    page = filled("\n".join(["before", _place("whole", "old\n"), _place("whole-ratios"), "after"]), results)
    assert page.splitlines() == [
        "before",
        "<!-- whole: begin -->",
        "| shape | ours | x | y |",
        "| --- | --- | --- | --- |",
        "| d4 | 0.457 (1.38) | 0.913 (1.06) |  |",
        "| d16 | 0.457 (4.20) | 0.228 (4.19) | 4.57 (4.20) |",
        "<!-- whole: end -->",
        "<!-- whole-ratios: begin -->",
        "| baseline | time relative to plmu, graph | shapes where it is faster | time relative to plmu, eager | "
        "shapes where it is faster |",
        "| --- | --- | --- | --- | --- |",
        "| x | 0.500 to 2.00 | order 16, 9 steps, 4.19 M | 0.750 to 1.50 | order 16, 9 steps, 4.19 M |",
        "| y | 10.0 to 10.0 | none | 5.50 to 5.50 | none |",
        "<!-- whole-ratios: end -->",
        "after",
    ]


def test_eager_ratios_are_of_the_comparisons_that_have_them() -> None:
    rows = [{key: one for key, one in row.items() if key != tables.EAGER or row["order"] == 4} for row in WHOLE]
    lines = tables.whole_ratios({"whole layers": [row for row in rows if row["matched"]]}).splitlines()
    assert "| x | 0.500 to 2.00 | order 16, 9 steps, 4.19 M | 1.50 to 1.50 | none |" in lines


def test_versions_and_hardware_stand_under_a_table(results: Path) -> None:
    machine = {"hardware": "a GPU", "torch": "2.11", "plmu": "0.2", "python": "3.12"}
    file = results / "bench-layers-cuda.json"
    file.write_text(json.dumps({"machine": machine, "whole layers": WHOLE}))
    assert "| none |\n\nMeasured with plmu 0.2, torch 2.11, a GPU.\n<!--" in filled(_place("whole-ratios"), results)
    file.write_text(json.dumps({"machine": {"torch": "2.11"}, "whole layers": WHOLE}))
    assert "| none |\n\nMeasured with torch 2.11.\n<!--" in filled(_place("whole-ratios"), results)


def test_rows_of_one_shape_differ_by_the_memory_channels() -> None:
    widths = {4: "order 4 on all 512 channels", 16: "order 4 on 64 channels, after an encoder"}
    rows = [{**row, "shape": "d4", "budget": row["order"], "width": widths[row["order"]]} for row in WHOLE]
    shapes = [line.split(" | ")[0] for line in tables.whole({"whole layers": rows}).splitlines()[2:]]
    assert shapes == ["| d4, 512 memory channels", "| d4, 64 memory channels"]


def test_widths_and_implementations_are_named(results: Path) -> None:
    page = filled(_place("whole-widths"), results)
    assert "| d4 | 4 wide | 4 wide |  |" in page
    assert "Implementations: ours: maker of ours; x: maker of x; y: maker of y." in page


def test_what_was_not_measured_is_said(results: Path) -> None:
    page = filled(_place("gemm-float32") + _place("growth"), results)
    assert "*No results in bench-algorithms-cuda.json: run `plmu bench algorithms --device cuda`.*" in page
    assert "*No results in bench-complexity-cuda.json: run `plmu bench complexity --device cuda`.*" in page


def test_an_unknown_table_is_refused(results: Path) -> None:
    with pytest.raises(ValueError, match="there is no table 'speed': it is one of results, headlines, whole, "):
        filled(_place("speed"), results)


def test_the_command_fills_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("\n".join(["a", _place("answers", "old\n"), "b", ""]), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["documents", str(page), "--results", str(RESULTS)])
    documents.main()
    lines = page.read_text(encoding="utf-8").splitlines()
    assert lines[2] == "| command | seconds | validation | test |"
    assert "old" not in lines
    assert lines[-1] == "b"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (0.0, "0.00"), (0.0273, "0.0273"), (1.0, "1.00"), (66.04, "66.0"), (457.4, "457"), (2756.0, "2,756")],
)
def test_numbers(value: float | None, shown: str) -> None:
    assert tables.number(value) == shown


def _summary(name: str, **changes: Any) -> dict[str, Any]:
    experiment, _, model = name.rpartition("-")
    return {
        "name": name,
        "experiment": experiment,
        "model": model,
        "parameters": 12_345,
        "metric": "accuracy",
        "percent": True,
        "paper": 0.9849,
        "test": {"accuracy": {"mean": 0.98765, "std": 0.00126}},
        "seeds": [{"valid": {"accuracy": 0.5}}, {"valid": {"accuracy": 0.7}}],
        "config": {"training": {"epochs": 120}},
        "notes": {"data": "complete"},
        "hardware": "a CPU",
        **changes,
    }


def test_headlines_have_a_row_for_each_experiment() -> None:
    assert set(HEADLINES) <= set(EXPERIMENTS)
    assert all(model in EXPERIMENTS[name].models for name, model in HEADLINES.items())
    assert headlines_table(load(RESULTS)).count("\n") == 1 + len(HEADLINES)


def test_a_headline_compares_with_the_lstm_and_the_paper() -> None:
    lstm = _summary("psmnist-lstm", parameters=99, test={"accuracy": {"mean": 0.5, "std": 0.25}})
    alone = _summary("qqp-deep", percent=False, paper=None, seeds=[{}], notes={"data": "partial"})
    rows = headlines_table([_summary("psmnist-plmu"), lstm, alone]).splitlines()[2:]
    assert rows == [
        "| psmnist | plmu | accuracy ↑ | 98.77 ± 0.13 % | 50.00 ± 25.00 % | 98.49 % | 12,345 | 99 |".replace(
            " ± ", "\u00a0±\u00a0"
        ).replace(" %", "\u00a0%"),
        "| qqp (partial data) | deep | accuracy ↓ | 0.988 |  |  | 12,345 |  |",
    ]


def test_the_table_of_training_steps() -> None:
    row = {"task": "T", "steps": 5000, "batch": 32}
    times = [
        {**row, "model": "original LMU", "milliseconds": {"eager": 457.4, "graph": 77.7}},
        {**row, "model": "another", "milliseconds": {"eager": 1.0, "graph": 1.0}},
        {**row, "model": "ours, parallel", "milliseconds": {"eager": 2.94, "graph": 1.32}},
    ]
    table = tables.speed_ups({"training step": times})
    assert table.splitlines()[2:] == ["| T, 5,000 steps, batch 32 | 77.7 | 1.32 | 58.9 | 457 | 2.94 | 156 |"]


def test_a_file_without_a_place_is_named(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    for content in ("", *marks("results")):
        page.write_text(content)
        with pytest.raises(ValueError, match=r"README.md has no place for a table: it needs the lines <!-- results: b"):
            write_tables(page, RESULTS)


def test_hardware_is_a_column_where_it_differs() -> None:
    one, other = _summary("psmnist-plmu"), _summary("psmnist-lstm", hardware="a GPU")
    for summaries, last in (([one], "validation"), ([one, other], "hardware")):
        header, line, *rows = results_table(summaries).splitlines()
        assert header.endswith(f" | {last} |")
        assert header.count("|") == line.count("|")
        assert all(row.count("|") == line.count("|") for row in rows)
        assert "98.77\u00a0±\u00a00.13\u00a0%" in rows[0]
