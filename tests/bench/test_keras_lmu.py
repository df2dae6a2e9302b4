"""The comparison with keras-lmu: what is measured, what is written, and what the pages say of it."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import tables
from plmu.bench.problems import Shape

ROOT = Path(__file__).parents[2]
TINY = Shape(2, 7, 3, 5, 4, 6.0, "tiny")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.keras_lmu")


@pytest.fixture
def committed() -> dict[str, Any]:
    return json.loads((ROOT / "results" / "bench-keras-lmu-cpu.json").read_text(encoding="utf-8"))


def test_the_committed_results_are_of_these_cases(benchmark: ModuleType, committed: dict[str, Any]) -> None:
    cases = [(str(shape), "all steps" if sequences else "last step") for shape, sequences in benchmark.CASES]
    assert [(row["shape"], row["output"]) for row in committed["rows"]] == cases
    for row in committed["rows"]:
        assert list(row["times ours"]) == list(benchmark.FORMS)
        assert row["difference in float64"] <= benchmark.AGREE
    assert set(committed["versions"]) == {"keras-lmu", "keras", "tensorflow"}
    assert committed["machine"]["hardware"].endswith(", 1 threads")


def test_the_table_has_a_line_for_each_case(committed: dict[str, Any]) -> None:
    header, _, *lines = tables.keras_lmu(committed).splitlines()
    assert header.split(" | ")[2:5] == ["hidden cell", "Dense after", "XLA"]
    assert len(lines) == len(committed["rows"])
    assert {line.count("|") for line in lines} == {header.count("|")}


def test_the_readme_says_what_was_measured(committed: dict[str, Any]) -> None:
    documented = [row["times ours"]["hidden cell"] for row in committed["rows"]]
    fastest = [min(row["times ours"].values()) for row in committed["rows"]]
    said = (
        f"takes {min(documented):.0f} to {max(documented):.0f} times as long as ours in its documented form, "
        f"and {min(fastest):.2g} to {max(fastest):.2g} times in its fastest form"
    )
    assert said in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")  # TensorFlow's and Keras' own
@pytest.mark.parametrize("sequences", [True, False])
def test_both_compute_the_same(benchmark: ModuleType, sequences: bool, committed: dict[str, Any]) -> None:
    pytest.importorskip("keras_lmu")
    row = benchmark.row(TINY, sequences, 1)
    assert list(row) == list(committed["rows"][0])
    assert row["shape"] == "b2 n7 3→5 d4 θ6"
    assert set(row["milliseconds"]) == {"plmu", *benchmark.FORMS}
    assert row["times ours"].keys() == set(benchmark.FORMS)
    assert row["difference in float64"] <= benchmark.AGREE


@pytest.mark.filterwarnings("ignore")
def test_another_function_is_never_timed(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("keras_lmu")
    right = benchmark.keras_layout
    monkeypatch.setattr(benchmark, "keras_layout", lambda *weights: right(weights[0] * 1.01, *weights[1:]))
    with pytest.raises(SystemExit, match=r"b2 n7 3→5 d4 θ6: plmu and keras-lmu differ by .* in float64"):
        benchmark.row(TINY, True, 1)
