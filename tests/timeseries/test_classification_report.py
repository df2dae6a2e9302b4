"""`plmu.timeseries.classification_report`: what is printed, by hand."""

from pathlib import Path

import numpy as np
import pytest

from plmu.timeseries.classification_report import ClassificationReport, untrained_note


def report(untrained: tuple[str, ...] = ()) -> ClassificationReport:
    """Of 4, 2 and 0 series of three trained classes, and a series of each that is not trained."""
    truth = np.array([0, 0, 0, 0, 1, 1, *range(3, 3 + len(untrained))])
    predicted = np.array([0, 0, 0, 1, 1, 2, *[0] * len(untrained)])
    return ClassificationReport.of(["a", "b", "c"], truth, predicted, 0, untrained)


def test_a_report_is_a_table_of_scores() -> None:
    lines = [line.split() for line in str(report()).splitlines()]
    assert lines[1:4] == [
        ["a", "4", "1.000", "0.750", "0.857"],  # 3 of 3 predicted, 3 of 4 series
        ["b", "2", "0.500", "0.500", "0.500"],
        ["c", "0", "0.000", "0.000", "0.000"],
    ]
    assert lines[0] == ["class", "series", "precision", "recall", "F1"]
    assert " ".join(lines[4]) == "test: 6 series accuracy mean F1"
    assert " ".join(lines[5]) == "model 66.67 % 67.86 %"  # 4 of 6; the mean of 6/7 and 1/2
    assert " ".join(lines[6]) == "most frequent class 66.67 % 40.00 %"
    assert len(lines) == 7


def test_series_of_untrained_classes_are_wrong() -> None:
    with_others = report(("x", "y"))
    assert with_others.accuracy == 4 / 8
    assert with_others.by_class()[0]["precision"] == 3 / 5
    assert with_others.lines()[-1] == "not in training: classes x, y; 2 series count as wrong"
    assert with_others.baseline.accuracy == 4 / 8
    assert with_others.baseline.untrained == ("x", "y")


@pytest.mark.parametrize(("series", "classes", "expected"), [
    (1, ["x"], "class x; 1 series counts as wrong"), (2, ["x"], "class x; 2 series count as wrong"),
    (1234, list("abcdefgh"), "classes a, b, c, d, e, f, g, h; 1,234 series count as wrong"),
    (9, list("abcdefghi"), "classes a, b, c, d, e, f, g, h … (9); 9 series count as wrong"),
])  # fmt: skip
def test_the_note_on_untrained_classes(series: int, classes: list[str], expected: str) -> None:
    assert untrained_note(series, classes) == f"not in training: {expected}"


@pytest.mark.parametrize(("count", "printed"), [(20, 20), (21, 20), (45, 20)])
def test_many_classes_are_cut(count: int, printed: int) -> None:
    every = np.arange(count)
    many = ClassificationReport.of([f"class{k}" for k in every], every, every, 0)
    lines = many.lines()
    assert [line.split()[0] for line in lines[1 : 1 + printed]] == [f"class{k}" for k in range(printed)]
    assert lines[1 + printed :] == ([f"  … {count - 20} more classes"] if count > 20 else [])


def drawn(chart: ClassificationReport, path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list, list]:
    """The axes of a drawn report: its matrix, and the colour bar."""
    from plmu.timeseries import classification_report

    figures: list = []
    monkeypatch.setattr(classification_report, "write_plot", lambda figure, path: figures.append(figure))
    chart.plot(path)
    return figures[0].axes


def test_the_confusion_matrix_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, bar = drawn(report(), tmp_path / "a.png", monkeypatch)
    np.testing.assert_allclose(matrix.images[0].get_array(), [[0.75, 0.25, 0], [0, 0.5, 0.5], [0, 0, 0]])
    counts = {text.get_position(): (text.get_text(), text.get_color()) for text in matrix.texts}
    assert counts[0, 0] == ("3", "white")
    assert counts[1, 0] == ("1", "0.2")
    assert counts[1, 1] == ("1", "0.2")
    assert counts[0, 2] == ("", "0.2")
    assert [label.get_text() for label in matrix.get_xticklabels()] == ["a", "b", "c"]
    assert (matrix.get_xlabel(), matrix.get_ylabel()) == ("predicted class", "true class")
    assert bar.get_ylabel() == "fraction of the true class"


@pytest.mark.parametrize(("count", "numbered", "named"), [(25, True, True), (26, False, True), (41, False, False)])
def test_numbers_and_names_where_there_is_room(
    count: int, numbered: bool, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = np.arange(count)
    names = [f"{k:02}".rjust(16 + k % 2, "n") for k in every]
    matrix, _ = drawn(ClassificationReport.of(names, every, every, 0), tmp_path / "a.png", monkeypatch)
    assert bool(matrix.texts) == numbered
    if named:
        shown = [label.get_text() for label in matrix.get_yticklabels()]
        assert shown == [name if len(name) == 16 else f"{name[:15]}…" for name in names]
