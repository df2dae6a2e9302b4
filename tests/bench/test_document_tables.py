"""Every table of a page on speed, made from a few results: what is in its cells."""

from typing import Any

import pytest

from benchmarks import tables
from benchmarks.documents import BENCHMARKS


def cells(name: str, found: dict[str, Any]) -> list[list[str]]:
    """The header and the rows of a table; the line between them is left out."""
    lines = BENCHMARKS[name][2](found).split("\n\n")[0].splitlines()
    assert set(lines[1]) == set("| -")
    found_cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (lines[0], *lines[2:])]
    assert {len(row) for row in found_cells} == {lines[1].count("---")}
    return found_cells


def over_the_gemm(dtype: str, memory: float) -> dict[str, Any]:
    return {
        "shape": f"of {dtype}",
        "dtype": dtype,
        "milliseconds forward": {"auto": 2.0, "GEMM": 1.0, "chunked": 9.0},
        "milliseconds forward and backward": {"auto": 8.0, "GEMM": 5.0, "chunked": 9.0},
        "over the GEMM, forward": {"auto": 2.1, "chunked": 9.0},
        "over the GEMM, both": {"auto": 1.6, "chunked": 9.0},
        "times faster than the FFT, both": 20.25,
        "error": {"auto": 2.86e-3, "FFT": 1.2e-7},
        "working memory over u + o": {"auto": memory, "chunked": 9.0},
    }


def test_over_the_gemm() -> None:
    """In one precision; memory that was measured as a little less than nothing is nothing."""
    found = {"over the GEMM": [over_the_gemm("bfloat16", 0.456), over_the_gemm("float32", -0.001)]}
    header, row = cells("gemm-bfloat16", found)
    assert dict(zip(header, row, strict=True)) == {
        "shape": "of bfloat16",
        "GEMM, ms forward": "1.00",
        "ours, ms forward": "2.00",
        "ours / GEMM": "2.10",
        "ours, ms both": "8.00",
        "ours / GEMM, both": "1.60",
        "FFT / ours, both": "20.2",
        "working memory / (u + o)": "0.46",
        "error": "2.9e-03",
        "error of the FFT": "1.2e-07",
    }
    (_, row) = cells("gemm-float32", found)
    assert (row[0], row[7]) == ("of float32", "0.0")


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("choices-eager", "auto against every algorithm"),
        ("choices-graphs", "auto against every algorithm, as graphs"),
        ("choices-resets", "with resets, as graphs"),
    ],
)
def test_choices(name: str, table: str) -> None:
    """The algorithms that were timed anywhere, in one order."""
    rows = [
        {"shape": "a", "milliseconds": {"fft": 3.0, "chunked": 2.0, "auto": 2.5}, "chosen": "chunked"},
        {"shape": "b", "milliseconds": {"fused": 1.0, "chunked": 4.0, "auto": 1.0}, "chosen": "fused"},
    ]
    found = {table: [{**row, "auto over best": ratio} for row, ratio in zip(rows, (1.25, 1.0), strict=True)]}
    assert cells(name, found) == [
        ["shape", "fused", "chunked", "fft", "auto", "chosen", "auto / fastest"],
        ["a", "", "2.00", "3.00", "2.50", "chunked", "1.25"],
        ["b", "1.00", "4.00", "", "1.00", "fused", "1.00"],
    ]


def test_lengths() -> None:
    found = {"length": [{"time": 1024, "tokens per second": 3.24e8}, {"time": 1 << 20, "tokens per second": 1.5e6}]}
    assert cells("length", found) == [
        ["steps per sequence", "1,024", "1,048,576"],
        ["million tokens per second", "324", "2"],
    ]


def test_training_steps() -> None:
    row = {
        "task": "t",
        "steps": 5000,
        "batch": 32,
        "model": "m",
        "milliseconds": {"eager": 63.2, "graph": 3.1},
        "times faster than the original": {"eager": 1.5, "graph": 12.25},
    }
    header, made = cells("training-time", {"training step": [row]})
    assert dict(zip(header, made, strict=True)) == {
        "task": "t, 5,000 steps, batch 32",
        "model": "m",
        "eager, ms": "63.2",
        "CUDA graph, ms": "3.10",
        "times faster than the original LMU, eager": "1.50",
        "times faster than the original LMU, graph": "12.2",
    }


def test_answers() -> None:
    rows = [
        {"command": "a", "seconds": 13.26, "valid": {"accuracy": 0.98231}, "test": {"accuracy": 1.0}},
        {"command": "b", "seconds": 2.0, "valid": {"nrmse": 0.04449}, "test": {"nrmse": 0.5}},
    ]
    assert cells("answers", {"rows": rows})[1:] == [
        ["`a`", "13.3", "98.23 %", "100.00 %"],
        ["`b`", "2.0", "NRMSE 0.0445", "NRMSE 0.5000"],
    ]


def test_growth() -> None:
    """A line for each layer, and nothing where a size plays no part."""
    rows = [("RNN", "n d_x²", "n", 0.987), ("RNN", "n d_x²", "d_x", 1.5), ("DN", "n d", "d", 1.0)]
    keys = ("layer", "paper", "size", "growth")
    assert cells("growth", {"growth": [dict(zip(keys, row, strict=True)) for row in rows]}) == [
        ["layer", "by the paper", "in n", "in d", "in d_x"],
        ["RNN", "n d_x²", "0.99", "", "1.50"],
        ["DN", "n d", "", "1.00", ""],
    ]


def test_isolation() -> None:
    """The rows of a shape, first bfloat16 and then float32, on one line."""
    rows = [
        {"shape": shape, "forward": {"ratio": number}, "both": {"ratio": number + 0.5}}
        for number, shape in enumerate(("a", "b", "a", "b"), start=1)
    ]
    assert cells("isolation", {"rows": rows})[1:] == [
        ["a", "1.00", "1.50", "3.00", "3.50"],
        ["b", "2.00", "2.50", "4.00", "4.50"],
    ]


def test_cpu() -> None:
    row = {"name": "n", "ours": "auto", "milliseconds": 19.72, "ratio": 3.079, "bar": "≥ 2"}
    assert cells("cpu", {"rows": [row]})[1:] == [["n", "auto", "19.7", "3.08", "≥ 2"]]


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [
        (0.456, 2, "0.46"),
        (99.4, 2, "99"),
        (99.6, 2, "100"),
        (100.0, 2, "100"),
        (999.4, 3, "999"),
        (999.6, 3, "1,000"),
        (1000.0, 3, "1,000"),
        (0.0001234, 3, "0.000123"),
        (0.00001234, 3, "0.0000123"),
    ],
)
def test_no_number_is_a_power_of_ten(value: float, digits: int, shown: str) -> None:
    assert tables.number(value, digits) == shown


def test_calls_of_whole_layers() -> None:
    times = {"forward": 0.1234, "both": 0.5}
    row = {"shape": "s", "layer": "with encoder", "host, ms": times, "eager, ms": {"forward": 1.0, "both": 2.0}}
    row |= {"graph, ms": {**times, "GEMMs both": 9.0}, "over the GEMMs": {"forward": 1.25, "both": 1.3}}
    header, found = cells("calls", {"whole layers": [row]})
    assert dict(zip(header, found, strict=True)) == {
        "shape": "s",
        "layer": "with encoder",
        "host": "0.123 / 0.500",
        "eager": "1.00 / 2.00",
        "graph": "0.123 / 0.500",
        "graph over GEMMs": "1.25 / 1.30",
    }


def test_resets_over_none() -> None:
    row = {"shape": "s", "graph, ms": {"without, both": 0.5, "often, both": 0.55}}
    row["over without"] = {"often": {"forward": 9.0, "both": 1.1}, "none": {"forward": 9.0, "both": 1.0}}
    row["host, ms"] = {"without, both": 0.2, "often, both": 0.25}
    header, found = cells("resets", {"rows": [row]})
    assert dict(zip(header, found, strict=True)) == {
        "shape": "s",
        "without, ms graph": "0.500",
        "ratio, often": "1.10",
        "ratio, none": "1.00",
        "host without, ms": "0.200",
        "host, often, ms": "0.250",
    }


def test_several_windows_over_one() -> None:
    row = {"shape": "s", "windows": [4.0, 16.5], "graph, ms": {"one": 1.0, "several": 1.1, "several, forward": 9.0}}
    row["several over one"] = {"graph, both": 1.09, "eager, both": 1.02, "graph, forward": 9.0}
    header, found = cells("windows", {"windows": [row]})
    assert dict(zip(header, found, strict=True)) == {
        "shape": "s",
        "windows": "4, 16.5",
        "one, ms graph": "1.00",
        "several, ms graph": "1.10",
        "ratio": "1.09",
    }
    later = {**row, "several over one": {"graph, both": 1.01}}
    both = {"windows": [row], "windows, filtered after the product": {"rows": [later]}}
    assert cells("windows", both)[1][-1] == "1.01"


def test_language_models() -> None:
    row = {"experiment": "text8", "model": "plmu", "parameters": 2_970_395, "batch": 128, "length": 180}
    row |= {"milliseconds": 2.526, "tokens per second": 9_119_869.5, "share of the bfloat16 peak": 0.1636}
    header, *rows = cells("language", {"rows": [row, {**row, "share of the bfloat16 peak": None}]})
    assert header[-2:] == ["million tokens a second", "of the bfloat16 peak"]
    assert rows[0] == ["text8 plmu", "2.97", "128 × 180", "2.53", "9.12", "16%"]
    assert rows[1][-1] == ""


def test_float32() -> None:
    row = {"shape": "small", "ms": {"GEMM both": 4.08, "both": 2.35}}
    row |= {
        "over the GEMM": {"forward": 0.492, "both": 0.573},
        "with resets over without": 1.27,
        "working memory over u + o": 0.156,
        "error over plain": [0.249, 0.507, 0.411],
    }
    header, found = cells("float32", {"rows": [row]})
    assert header[-1] == "largest error / plain float32's"
    assert found == ["small", "4.08", "2.35", "0.492", "0.573", "1.27", "0.16", "0.51"]
