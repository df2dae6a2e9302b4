"""Labels of series: as text, in their order, as indices of classes, and from a table with a label for each series."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmu.data.table_files import TABLE_SUFFIXES
from plmu.errors import DataError
from plmu.timeseries.base import warn_of_column
from plmu.timeseries.labelled_columns import IDS, LABELS, named
from plmu.timeseries.tables import read_table

_MISSING = ("", "nan", "na", "n/a", "null", "?")
_INTEGER = re.compile(r"([+-]?\d+)\.0*")


def label_text(cell: str | None) -> str | None:
    """The label in a cell: integers without a decimal point, None for a missing one."""
    text = "" if cell is None else cell.strip()
    integer = _INTEGER.fullmatch(text)
    return None if text.lower() in _MISSING else integer[1] if integer else text


def by_number(label: Any) -> tuple[bool, float, Any]:
    """Sorting key of labels: numbers, also those in text, by their value, then names."""
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label


def checked_labels(y: Any, series: int) -> NDArray[Any]:
    """Labels as an array (series,); ValueError unless there is one for each series."""
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        warn_of_column()
        labels = labels[:, 0]
    if labels.shape != (series,):
        raise ValueError(f"y must have one label for each of the {series} series, got shape {labels.shape}")
    return labels


def classes_of(y: Any, series: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The classes, sorted, and for each series the index of its class."""
    if y is None:
        raise ValueError(
            "This estimator requires y to be passed, but the target y is None: give a label for each series"
        )
    labels = checked_labels(y, series)
    if labels.dtype.kind in "fc":
        if not np.isfinite(labels).all():
            raise ValueError("y has NaN or infinity: Input y contains NaN or infinity")
        if (labels != np.round(labels)).any():
            raise ValueError("Unknown label type: continuous. y must be classes, not measurements")
    try:
        classes, indices = np.unique(labels, return_inverse=True)
    except TypeError:
        kinds = ", ".join(sorted({type(label).__name__ for label in labels.tolist()}))
        raise ValueError(f"y must be labels of one kind, all numbers or all names, got {kinds}") from None
    if len(classes) < 2:
        raise ValueError(f"y must have at least two classes, got 1 class: {classes[0]!r}")
    return classes, indices


def stratified(labels: Sequence[Any], fraction: float, generator: np.random.Generator) -> list[int]:
    """Indices of a stratified sample: this fraction of each class, but at least one series, and never the last one.

    A class with one series is not sampled.
    """
    sample: list[int] = []
    for label in sorted(set(labels)):
        members = generator.permutation([index for index, other in enumerate(labels) if other == label])
        sample += members[: min(max(1, round(fraction * len(members))), len(members) - 1)].tolist()
    return sorted(sample)


def labels_from_table(names: Sequence[str], path: Path, header: bool | None) -> tuple[list[str | None], str]:
    """The labels of series that a table lists by their ids or file names, and a note on the columns it used."""
    table = read_table(path, header)
    if len(table.names) < 2:
        raise DataError(f"{path} needs two columns: names of the series, and their labels")
    label_column = named(table, LABELS, set()) or table.names[-1]
    name_column = named(table, (*IDS, "file", "filename"), {label_column})
    name_column = name_column or next(name for name in table.names if name != label_column)
    labels: dict[str, str] = {}
    labels_without_folder: dict[str, set[str]] = {}  # several folders may have a file of the same name
    for row, (name, cell) in enumerate(zip(table.text(name_column), table.text(label_column), strict=True)):
        label = label_text(cell)
        if label is None:
            continue
        stem = name[: -len(Path(name).suffix)] if Path(name).suffix.lower() in TABLE_SUFFIXES else name
        for key in {name, stem}:
            first = labels.setdefault(key, label)
            if first != label:
                place = table.place(row, label_column)
                raise DataError(f"{place}: series {name} has the labels {first!r} and {label!r}")
        labels_without_folder.setdefault(Path(stem).name, set()).add(label)
    chosen: list[str | None] = []
    for name in names:
        candidates = {labels[name]} if name in labels else labels_without_folder.get(Path(name).name, set())
        if len(candidates) > 1:
            raise DataError(f"{path} has several labels for {Path(name).name}: give names with folders in"
                            f" column {name_column!r}, such as {name}")  # fmt: skip
        chosen.append(next(iter(candidates), None))
    return chosen, f"labels: column {label_column!r} of {path.name}, by column {name_column!r}"
