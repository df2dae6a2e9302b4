"""The tables of the README and the documentation are what `plmu report` makes of the committed results."""

import json
from pathlib import Path
from typing import Any

import pytest

from plmu.cli.report import load
from plmu.cli.tables import (
    HEADLINES,
    PLACES,
    headlines_table,
    marks,
    results_table,
    training_table,
    write_tables,
)
from plmu.errors import RunError
from plmu.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
PAGES = {"README.md": {"headlines", "training"}, "docs/results.md": {"results"}}


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_show_the_committed_results(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert PAGES[page] <= {place for place in PLACES if marks(place)[0] in text}
    copy = tmp_path / "page.md"
    copy.write_text(text, encoding="utf-8")
    write_tables(copy, load(RESULTS), [RESULTS])
    assert copy.read_text(encoding="utf-8") == text, f"run: plmu report --readme {page}"


def test_all_places_are_on_some_page() -> None:
    assert set.union(*PAGES.values()) == set(PLACES)


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
    table = training_table({"training step": times})
    assert table.splitlines()[2:] == ["| T, 5,000 steps, batch 32 | 77.7 | 1.32 | 58.9 | 457 | 2.94 | 156 |"]


def test_a_file_without_a_place_is_named(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    for content in ("", *marks("results")):
        page.write_text(content)
        with pytest.raises(ValueError, match=r"README.md has no place for a table: it needs the lines <!-- results: b"):
            write_tables(page, [_summary("psmnist-plmu")], [])


def test_hardware_is_a_column_where_it_differs() -> None:
    one, other = _summary("psmnist-plmu"), _summary("psmnist-lstm", hardware="a GPU")
    for summaries, last in (([one], "validation"), ([one, other], "hardware")):
        header, line, *rows = results_table(summaries).splitlines()
        assert header.endswith(f" | {last} |")
        assert header.count("|") == line.count("|")
        assert all(row.count("|") == line.count("|") for row in rows)
        assert "98.77\u00a0±\u00a00.13\u00a0%" in rows[0]


def test_benchmarks_come_from_the_first_folder_that_has_them(tmp_path: Path) -> None:
    file = "bench-training-time-cuda.json"
    page = tmp_path / "page.md"
    page.write_text("a\n" + "\nold\n".join(marks("training")) + "\nb\n")
    with pytest.raises(RunError, match=rf"{file} is in none of .*one, .*two"):
        write_tables(page, [], [tmp_path / "one", tmp_path / "two"])
    for folder, time in (("two", 2.0), ("three", 3.0)):
        (tmp_path / folder).mkdir()
        row = {"task": "T", "steps": 5, "batch": 3, "milliseconds": {"eager": time, "graph": time}}
        rows = [{**row, "model": model} for model in ("original LMU", "ours, parallel")]
        (tmp_path / folder / file).write_text(json.dumps({"training step": rows}))
    write_tables(page, [], [tmp_path / "one", tmp_path / "two", tmp_path / "three"])
    text = page.read_text()
    assert "| T, 5 steps, batch 3 | 2 | 2 | 1 | 2 | 2 | 1 |" in text
    assert "old" not in text
    assert text.startswith("a\n")
    assert text.endswith("-->\nb\n")
