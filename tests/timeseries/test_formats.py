"""Files of many formats, and the sentences about those that are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from labelled_files import load, refused

import plmu
from plmu.timeseries.labelled import like_measurements


def wide(labels: list[object]) -> str:
    """A table with a short series in each row, and these labels in its column "target"."""
    rows = [f"{number % 7},{number % 5},{number % 3},{label}" for number, label in enumerate(labels)]
    return "\n".join(["s1,s2,s3,target", *rows]) + "\n"


def test_targets_of_a_regression_are_no_classes(tmp_path: Path) -> None:
    targets = [round(20 + (37 * i % 110) / 8, 2) for i in range(200)]  # 110 different ones
    message = refused(tmp_path / "f.csv", wide(targets), label="target")
    assert "f.csv, column 'target': the labels are 110 different numbers in 200 series, such as 24.62" in message
    assert "regression" in message
    assert "write them as words" in message
    counts = refused(tmp_path / "g.csv", wide([i * 37 % 1000 for i in range(40)]), label="target")
    assert "40 different numbers in 40 series" in counts
    ages = np.random.default_rng(0).integers(20, 90, 150).tolist()  # 65 different ones, 18 of which are there once
    assert "65 different numbers in 150 series" in refused(tmp_path / "a.csv", wide(ages), label="target")
    with pytest.raises(plmu.errors.DataError, match="target for regression"):
        plmu.SequenceClassifier().fit(tmp_path / "g.csv")


@pytest.mark.parametrize(
    "labels",
    [
        [0, 1],
        [0.5, 1.5, 0.5, 2.5, 1.5, 2.5],
        [*range(30)] * 2,
        [f"v{i}" for i in range(30)],
        [1, 2, 2],
        ["1.5", "x"],
        [*range(50), *range(50), *range(12, 50)],
    ],
)
def test_numbers_that_repeat_and_words_are_classes(labels: list[object], tmp_path: Path) -> None:
    assert like_measurements(labels) == ""
    assert len(load(tmp_path / "f.csv", wide(labels), label="target")) == len(labels)


def test_labels_of_arrays_are_judged_as_scikit_learn_does() -> None:
    series = np.random.default_rng(0).standard_normal((12, 10))
    objects = np.array([0.5] * 12, object)
    for labels in (np.linspace(0, 1, 12), np.arange(12.0), np.arange(12), [0.25, 1.0] * 6, objects):
        with pytest.raises(ValueError, match=r"^Unknown label type: continuous\. y has .* y\.astype\(str\)"):
            plmu.SequenceClassifier().fit(series, labels)
    fitted = plmu.SequenceClassifier(projections=2).fit(series, np.array(["0.25", "1.0"] * 6))
    assert fitted.classes_.tolist() == ["0.25", "1.0"]


def test_series_of_other_classes_count_as_wrong() -> None:
    series = np.sin(np.arange(20) * np.array([[0.3], [2.0]] * 6))
    classifier = plmu.SequenceClassifier(projections=4).fit(series, ["slow", "fast"] * 6)
    report = classifier.evaluate(series[:4], ["slow", "fast", "other", "other"])
    assert report.accuracy == classifier.score(series[:4], ["slow", "fast", "other", "other"]) == 0.5
    assert report.untrained == ("other",)
    assert report.confusion.sum(axis=1).tolist() == [1, 1, 2]
    assert report.baseline.accuracy == 0.25
    assert "not in training: class other; 2 series count as wrong" in str(report)
