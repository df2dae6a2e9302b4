"""Scores of a classification: accuracy beside a baseline, precision and recall of each class, the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmu.timeseries.reporting import literal, pyplot, shortened, text_table, write_plot

BASELINE = "most frequent class"
_PRINTED = 20  # classes that are printed
_NUMBERED = 25  # classes up to which the plot shows counts


@dataclass(frozen=True)
class ClassificationReport:
    """How labelled series were classified, as `SequenceClassifier.evaluate` returns it. `print` shows it as a table.

    Attributes:
        classes: their names.
        confusion: the number of series of each class (rows) that were taken for each class (columns).
        most_frequent: index of the class with the most training series, which the baseline always predicts. None for a
            classifier of a run of an older version.
        untrained: the classes without training series, which come last: their series count as wrong.
    """

    classes: tuple[str, ...]
    confusion: NDArray[np.int64]
    most_frequent: int | None
    untrained: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        classes: Sequence[Any],
        truth: NDArray[Any],
        predicted: NDArray[Any],
        most_frequent: int | None,
        untrained: Sequence[Any] = (),
    ) -> ClassificationReport:
        """A report from indices of the true and of the predicted classes.

        Args:
            classes: names of the classes that were trained.
            truth: index of the true class of each series, among `classes` and then `untrained`.
            predicted: index of the predicted class of each series.
            most_frequent: index of the class that the baseline predicts.
            untrained: names of the other classes of these series.
        """
        count = len(classes) + len(untrained)
        cells = np.bincount(truth * count + predicted, minlength=count**2).reshape(count, count)
        return cls(tuple(map(str, [*classes, *untrained])), cells, most_frequent, tuple(map(str, untrained)))

    @property
    def accuracy(self) -> float:
        """The fraction of series that are classified correctly."""
        return int(self.confusion.diagonal().sum()) / int(self.confusion.sum())

    @property
    def mean_f1(self) -> float:
        """The mean F1 of the classes that have series in the report."""
        return float(np.mean([scores["f1"] for scores in self.by_class() if scores["series"]]))

    @property
    def baseline(self) -> ClassificationReport:
        """The report of a classifier that always predicts the most frequent class of the training series."""
        if self.most_frequent is None:
            raise ValueError("the most frequent class of the training series is unknown")
        confusion = np.zeros_like(self.confusion)
        confusion[:, self.most_frequent] = self.confusion.sum(axis=1)
        return ClassificationReport(self.classes, confusion, self.most_frequent, self.untrained)

    def by_class(self) -> list[dict[str, Any]]:
        """For each class a dictionary with the number of its series, precision, recall and F1; 0 for 0 / 0."""
        scores = []
        for hits, actual, predicted in zip(
            self.confusion.diagonal().tolist(),
            self.confusion.sum(axis=1).tolist(),
            self.confusion.sum(axis=0).tolist(),
            strict=True,
        ):
            precision, recall = hits / max(predicted, 1), hits / max(actual, 1)
            f1 = 2 * hits / max(actual + predicted, 1)
            scores.append({"series": actual, "precision": precision, "recall": recall, "f1": f1})
        return scores

    def lines(self) -> list[str]:
        """The scores of each class as lines of text, of the first 20 classes."""
        rows = [
            [shortened(name), str(scores["series"]), *(f"{scores[key]:.3f}" for key in ("precision", "recall", "f1"))]
            for name, scores in zip(self.classes, self.by_class(), strict=True)
        ]
        lines = text_table(["class", "series", "precision", "recall", "F1"], rows[:_PRINTED])
        if len(rows) > _PRINTED:
            lines.append(f"  … {len(rows) - _PRINTED} more classes")
        if self.untrained:
            wrong = int(self.confusion[len(self.classes) - len(self.untrained) :].sum())
            lines.append(untrained_note(wrong, self.untrained))
        return lines

    def __str__(self) -> str:
        reports = {"model": self} | ({} if self.most_frequent is None else {BASELINE: self.baseline})
        return "\n".join([*self.lines(), *score_lines(reports)])

    def plot(self, path: str | Path) -> None:
        """Draw the confusion matrix, each row as fractions of its class.

        Args:
            path: the picture to write, such as "confusion.png".
        """
        drawing = pyplot()
        size = 2.2 + 0.42 * min(len(self.classes), 40)
        figure, axis = drawing.subplots(figsize=(size + 0.8, size))
        fractions = self.confusion / self.confusion.sum(axis=1, keepdims=True).clip(min=1)
        image = axis.imshow(fractions, cmap="Blues", vmin=0, vmax=1)
        if len(self.classes) <= _NUMBERED:
            for (row, column), count in np.ndenumerate(self.confusion):
                colour = "white" if fractions[row, column] > 0.5 else "0.2"
                axis.text(column, row, str(count or ""), ha="center", va="center", color=colour, fontsize=8)
        if len(self.classes) <= 40:
            names = [literal(name if len(name) <= 16 else f"{name[:15]}…") for name in self.classes]
            axis.set_xticks(range(len(self.classes)), names, rotation=45, ha="right", fontsize=8)
            axis.set_yticks(range(len(self.classes)), names, fontsize=8)
        axis.set_xlabel("predicted class")
        axis.set_ylabel("true class")
        figure.colorbar(image, label="fraction of the true class", shrink=0.8)
        write_plot(figure, path)


def untrained_note(series: int, classes: Sequence[str]) -> str:
    """A line on test series whose classes are not in training.

    Args:
        series: how many they are.
        classes: their classes.
    """
    names = ", ".join(map(shortened, classes[:8])) + (f" … ({len(classes)})" if len(classes) > 8 else "")
    plural, ending = "es" * (len(classes) > 1), "s" * (series == 1)
    return f"not in training: class{plural} {names}; {series:,} series count{ending} as wrong"


def score_lines(reports: dict[str, ClassificationReport]) -> list[str]:
    """A table of scores as lines of text: a row for each report, by its name, and a column for each score."""
    count = int(next(iter(reports.values())).confusion.sum())
    rows = [
        [name, f"{100 * report.accuracy:.2f} %", f"{100 * report.mean_f1:.2f} %"] for name, report in reports.items()
    ]
    return text_table([f"test: {count:,} series", "accuracy", "mean F1"], rows)
