"""What a run of classify shows: figures of each class, and a picture of the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plmu.runs.folder import write_json
from plmu.timeseries.forecast_report import text_table
from plmu.timeseries.plotting import literal, pyplot

SHOWN = 20  # classes that are printed
NUMBERED = 25  # classes up to which the picture has numbers in it


def confusion(truth: Tensor, found: Tensor, classes: int) -> Tensor:
    """How many series of each class (rows) were taken for each class (columns)."""
    return (truth * classes + found).bincount(minlength=classes**2).view(classes, classes)


def by_class(truth: Tensor, found: Tensor, classes: int) -> list[dict[str, Any]]:
    """Precision, recall and F1 of each class; 0 where a class was never found."""
    counts = confusion(truth, found, classes)
    right, given, taken = counts.diagonal(), counts.sum(1), counts.sum(0)
    figures = []
    for one in zip(right.tolist(), given.tolist(), taken.tolist(), strict=True):
        hits, actual, predicted = one
        precision, recall = hits / max(predicted, 1), hits / max(actual, 1)
        f1 = 2 * hits / max(actual + predicted, 1)
        figures.append({"series": actual, "precision": precision, "recall": recall, "f1": f1})
    return figures


def write(folder: Path, classes: Sequence[str], truth: Tensor, found: Tensor) -> list[str]:
    """Write classify.json and confusion.png; return what to print."""
    figures = by_class(truth, found, len(classes))
    counts = confusion(truth, found, len(classes))
    content = {
        "classes": dict(zip(classes, figures, strict=True)),
        "confusion": {"rows": "true class", "columns": "predicted class", "counts": counts.tolist()},
    }
    write_json(folder / "classify.json", content)
    plot(folder / "confusion.png", classes, counts)
    rows = [
        [name, str(one["series"]), *(f"{one[key]:.3f}" for key in ("precision", "recall", "f1"))]
        for name, one in zip(classes, figures, strict=True)
    ]
    right = int(counts.diagonal().sum())
    lines = [f"test: {right:,} of {len(truth):,} series are classified correctly"]
    lines += text_table(["class", "series", "precision", "recall", "F1"], rows[:SHOWN])
    if len(rows) > SHOWN:
        lines.append(f"  … {len(rows) - SHOWN} more classes in classify.json")
    return [*lines, f"wrote {folder / 'confusion.png'}, {folder / 'classify.json'}"]


def plot(path: Path, classes: Sequence[str], counts: Tensor) -> None:
    """The confusion matrix: each row as shares of its class."""
    drawing = pyplot()
    size = 2.2 + 0.42 * min(len(classes), 40)
    figure, axis = drawing.subplots(figsize=(size + 0.8, size))
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    image = axis.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
    if len(classes) <= NUMBERED:
        for (row, column), count in zip(torch.cartesian_prod(*[torch.arange(len(classes))] * 2).tolist(),
                                        counts.flatten().tolist(), strict=True):  # fmt: skip
            colour = "white" if shares[row, column] > 0.5 else "0.2"
            axis.text(column, row, str(count) if count else "", ha="center", va="center", color=colour, fontsize=8)
    if len(classes) <= 40:
        names = [literal(name if len(name) <= 16 else f"{name[:15]}…") for name in classes]
        axis.set_xticks(range(len(classes)), names, rotation=45, ha="right", fontsize=8)
        axis.set_yticks(range(len(classes)), names, fontsize=8)
    axis.set_xlabel("predicted class")
    axis.set_ylabel("true class")
    figure.colorbar(image, label="share of the true class", shrink=0.8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    drawing.close(figure)
