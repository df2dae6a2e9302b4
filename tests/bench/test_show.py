"""What a benchmark found is shown: the rows of its tables, and the bars and lines of its figures."""

import math
from pathlib import Path
from typing import Any

import pytest

from plmu.bench import show


def _whole(shape: str, layer: str, times: float, *, matched: bool = True, **given: Any) -> dict[str, Any]:
    order, time, parameters = (4, 1000, 2_000_000) if shape == "a" else (16, 20, 3_400_000)
    sizes = {"shape": shape, "order": order, "time": time, "budget": 1, "parameters": parameters}
    return {**sizes, "layer": layer, "times ours": times, "matched": matched, **given}


LAYERS = {
    "whole layers": [
        _whole("b", "ours", 1.0),
        _whole("b", "x", 3.0),
        _whole("b", "y", 9.0, matched=False),
        {"shape": "b", "budget": 1, "layer": "z", "skipped": "Z: ImportError: no z"},
        _whole("a", "ours", 1.0),
        _whole("a", "x", 0.5),
        _whole("a", "y", 7.0),
    ],
    "length": [{"time": 10, "tokens per second": 2e6}, {"time": 100, "tokens per second": 4e6}],
}
TRAINING = {
    "training step": [
        {"task": "t", "model": "m", "milliseconds": {"eager": 5.0, "graph": 1.0}},
        {"task": "t", "model": "n", "milliseconds": {"eager": 7.0}},
    ],
    "over the length": [
        {"steps": 8, "milliseconds, LTI": 6.0, "milliseconds, parallel": 2.0},
        {"steps": 16, "milliseconds, parallel": 3.0},
    ],
}
ALGORITHMS = {
    "over the GEMM": [
        {
            "shape": "s",
            "dtype": "float32",
            "over the GEMM, forward": {"auto": 2.0},
            "over the GEMM, both": {"auto": 3.0},
        },
        {"shape": "t", "dtype": "half", "over the GEMM, forward": {"auto": 4.0}, "over the GEMM, both": {"auto": 5.0}},
    ]
}
GROWTH = {"growth": [{"layer": "l", "size": "n", "growth": 1.1, "expected": 1}]}
STEPS = {
    "steps": [
        {"model": "x", "microseconds": 9.0, "microseconds of the products alone": 4.0},
        {"model": "y", "microseconds": 8.0},
    ]
}


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The axes of a figure that was written."""
    from matplotlib import pyplot

    def axes(kind: str, found: dict[str, Any]) -> list[Any]:
        kept: list[Any] = []
        with monkeypatch.context() as patch:
            patch.setattr(pyplot, "close", kept.append)
            show.figure(kind, found, tmp_path / "a.png")
        pyplot.close(kept[0])
        assert (tmp_path / "a.png").stat().st_size > 1000
        assert pyplot.imread(tmp_path / "a.png").shape[:2] == (540, 1320)
        return list(kept[0].axes)

    return axes


def _places(axis: Any, way: str) -> list[float]:
    return [place for bars in _bars(axis, way) for place in bars]


def _bars(axis: Any, way: str) -> list[list[float]]:
    return [[float(getattr(bar, f"get_{way}")()) for bar in bars] for bars in axis.containers]


def _lines(axis: Any) -> list[tuple[list[float], list[float]]]:
    return [(list(map(float, line.get_xdata())), list(map(float, line.get_ydata()))) for line in axis.lines]


def _names(axis: Any, way: str) -> list[str]:
    return [label.get_text() for label in getattr(axis, f"get_{way}ticklabels")()]


def test_layers_are_drawn_over_ours(drawn) -> None:
    """Those alone that have about as many parameters as ours."""
    times, length = drawn("layers", LAYERS)
    x, y, ours = _lines(times)
    assert (x, y, ours[0]) == (([0.5, 3.0], [0.0, 1.0]), ([7.0], [0.0]), [1.0, 1.0])
    assert [text.get_text() for text in times.get_legend().get_texts()] == ["x", "y", "ours"]
    assert _names(times, "y") == ["order 4, 1,000 steps, 2.0 M", "order 16, 20 steps, 3.4 M"]
    assert {label.get_rotation() for label in times.get_yticklabels()} == {0.0}
    assert (times.get_xscale(), times.get_ylim()) == ("log", (1.5, -0.5))
    assert times.get_xlabel() == "time over ours, forward + backward (right of the line: slower than ours)"
    assert times.get_title() == "Whole layers with equally many parameters"
    assert [line.get_color() for line in times.lines] == ["C1", "C2", "C0"]
    assert [line.get_marker() for line in times.lines[:2]] == ["o", "s"]
    assert {line.get_linestyle() for line in times.lines[:2]} == {"None"}
    times.set_xlim(0.4, 11)
    shown = [value for value in times.get_xticks() if 0.4 < value < 11]
    assert shown == pytest.approx([0.5, 1, 2, 5, 10])
    assert times.xaxis.get_major_formatter()(0.5, 0) == "0.5×"
    assert list(times.get_xticks(minor=True)) == []
    assert any(line.get_visible() for line in times.yaxis.get_gridlines())
    assert not any(line.get_visible() for line in times.xaxis.get_gridlines())
    assert length.get_position().width < 0.8 * times.get_position().width
    assert _lines(length) == [([10.0, 100.0], [2.0, 4.0])]
    assert length.get_ylim() == pytest.approx((0, 4.4))


def test_algorithms_are_drawn_over_the_gemm(drawn) -> None:
    (axis,) = drawn("algorithms", ALGORITHMS)
    assert _bars(axis, "width") == [[2.0, 4.0], [3.0, 5.0]]
    assert _names(axis, "y") == ["s, float32", "t, half"]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["forward", "forward + backward"]
    assert _lines(axis)[0][0] == [1.0, 1.0], "the GEMM"


def _overlap(one: Any, other: Any) -> bool:
    return one.x0 < other.x1 and other.x0 < one.x1 and one.y0 < other.y1 and other.y0 < one.y1


@pytest.mark.parametrize(
    ("kind", "found"),
    [("layers", LAYERS), ("algorithms", ALGORITHMS), ("complexity", GROWTH)],
    ids=["layers", "algorithms", "complexity"],
)
def test_the_legend_is_one_line_above_the_axes(kind: str, found: dict[str, Any], drawn) -> None:
    """In their middle, and below the title."""
    axis = drawn(kind, found)[0]
    legend, frame = axis.get_legend(), axis.get_window_extent()
    box = legend.get_window_extent()
    assert not _overlap(box, frame)
    assert 0 <= box.y0 - frame.y1 < 20
    assert (box.x0 + box.x1) / 2 == pytest.approx((frame.x0 + frame.x1) / 2, abs=1)
    texts = [text.get_window_extent() for text in legend.get_texts()]
    assert max(text.y1 for text in texts) - min(text.y0 for text in texts) < 1.5 * texts[0].height
    assert not axis.get_title() or not _overlap(box, axis.title.get_window_extent())


def test_comparisons_are_in_the_order_of_their_sizes() -> None:
    """Order, time and budget of each one's first row."""
    sizes = [(4, 9, 1), (4, 9, 2), (4, 20, 1), (16, 5, 1)]
    rows = [
        {"shape": f"{order} {time}", "order": order, "time": time, "budget": budget, "layer": layer, "matched": True}
        for order, time, budget in (sizes[k] for k in (2, 3, 1, 0))
        for layer in ("ours", "x")
    ]
    groups = show.comparisons({"whole layers": rows})
    assert [[(row["order"], row["time"], row["budget"]) for row in group] for group in groups] == [
        [one, one] for one in sizes
    ]


def test_training_times_are_drawn(drawn) -> None:
    times, length = drawn("training-time", TRAINING)
    eager, graph = _bars(times, "width")
    assert eager == [5.0, 7.0]
    assert graph[0] == 1.0
    assert math.isnan(graph[1])
    assert _places(times, "y") == pytest.approx([-0.4, 0.6, 0.0, 1.0])
    assert (_names(times, "y"), times.get_xscale(), times.yaxis_inverted()) == (["t: m", "t: n"], "log", True)
    assert times.get_xlabel() == "milliseconds per training step"
    assert _lines(length) == [([8.0], [6.0]), ([8.0, 16.0], [2.0, 3.0])]
    assert [text.get_text() for text in length.get_legend().get_texts()] == ["LTI", "parallel"]


def test_growth_and_steps_are_drawn(drawn) -> None:
    (growth,) = drawn("complexity", GROWTH)
    assert (_bars(growth, "width"), _lines(growth), _names(growth, "y")) == ([[1.1]], [([1.0], [0.0])], ["l, in n"])
    assert (growth.yaxis_inverted(), growth.get_xlabel()) == (True, "growth: the exponent of that size")
    (steps,) = drawn("streaming", STEPS)
    assert (_bars(steps, "width"), _names(steps, "y")) == ([[9.0, 8.0]], ["x", "y"])
    assert (steps.yaxis_inverted(), steps.get_xlabel()) == (True, "microseconds")
    ((products, places),) = _lines(steps)
    assert (products[0], places) == (4.0, [0.0, 1.0])
    assert math.isnan(products[1])


def test_tables_hold_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """A mapping of up to five entries as columns; longer ones and lists are left to the file."""
    five, six = ({str(number): number / 3 for number in range(count)} for count in (5, 6))
    show.tables({"one": [{"a": 1.23456, "b": five, "c": six, "d": [1]}, {"e": "text"}], "none": [], "device": "cpu"})
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]] for line in lines]
    assert [row for row in cells if row] == [
        ["a", *(f"b: {number}" for number in range(5)), "e"],
        ["1.23", "0", "0.333", "0.667", "1", "1.33", ""],
        ["", "", "", "", "", "", "text"],
    ]
    assert "none" not in " ".join(lines)
