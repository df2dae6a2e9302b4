"""Labelled series: the options for reading them, the data class that holds them, and their labels: as text, sorted, as
indices of classes, and from a table with a label for each series."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plmu.data.files import DataConfig
from plmu.data.table_files import TABLE_SUFFIXES, plain_name, stem
from plmu.errors import DataError
from plmu.timeseries.base import warn_of_column
from plmu.timeseries.frames import Array
from plmu.timeseries.labelled_columns import IDS, LABELS, Format, named
from plmu.timeseries.tables import read_table

_MISSING = ("", "nan", "na", "n/a", "null", "?")
_INTEGER = re.compile(r"([+-]?\d+)\.0*")
_FEWEST, _FEW = 5, 10  # different numbers: fewer than 5 may be classes, up to 10 if they repeat


def label_text(cell: str | None) -> str | None:
    """The label in a cell: integers without a decimal point, None for a missing one."""
    text = "" if cell is None else cell.strip()
    integer = _INTEGER.fullmatch(text)
    return None if text.lower() in _MISSING else integer[1] if integer else text


def by_number(label: Any) -> tuple[bool, float, Any]:
    """Sorting key of labels: first numbers and text that is a number, by value, then other text."""
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label


def like_measurements(labels: Iterable[Any]) -> str:
    """Why labels look like the targets of a regression: they are many different numbers for so few series.

    >>> like_measurements([21.5, 19.25, 20.75, 22.5, 20])
    '5 different numbers in 5 series, such as 21.5'

    Args:
        labels: the label of each series, None where there is none.

    Returns:
        What makes them so, "" for classes: words, or numbers that repeat.
    """
    present = [label for label in labels if label is not None]
    try:
        numbers = np.array([float(label) for label in present])
    except (TypeError, ValueError):
        return ""
    counts = np.unique(numbers, return_counts=True)[1]
    different = len(counts)
    # Fewer than two series of a class, or more than a quarter of the classes with a single one.
    crowded = 2 * different > len(numbers) or 4 * int((counts == 1).sum()) > different
    fractions = np.flatnonzero(numbers != np.round(numbers))
    if len(fractions):
        measured = crowded or different > _FEW
    else:
        measured = crowded and (different > _FEW or different == len(numbers))
    if different < _FEWEST or not measured:
        return ""
    example = present[int(fractions[0]) if len(fractions) else 0]
    return f"{different:,} different numbers in {len(numbers):,} series, such as {example}"


def checked_labels(y: Any, series: int) -> NDArray[Any]:
    """Labels as an array (series,); a column (series, 1) gives a warning, any other shape ValueError."""
    if np.ma.is_masked(y):
        raise ValueError("y is masked in places: leave out the series without a label")
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        warn_of_column()
        labels = labels[:, 0]
    if labels.shape != (series,):
        raise ValueError(f"y must have one label for each of the {series} series, got shape {labels.shape}")
    return labels


def classes_of(y: Any, series: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The classes of labels y, sorted, and for each series the index of its class.

    Raises:
        ValueError: there is not one label for each series, there are fewer than two classes, or labels are no classes.
    """
    if y is None:
        raise ValueError(
            "This estimator requires y to be passed, but the target y is None: give a label for each series"
        )
    labels = checked_labels(y, series)
    if labels.dtype == object and all(isinstance(label, Real) for label in labels):
        labels = labels.astype(np.float64) if any(isinstance(label, float) for label in labels) else labels
    if labels.dtype.kind in "fc":
        if not np.isfinite(labels).all():
            raise ValueError("y has NaN or infinity: Input y contains NaN or infinity")
        fractions = labels[labels != np.round(labels)]
        if len(fractions):
            raise ValueError(_unknown_type(f"numbers with fractions, such as {fractions[0]}"))
    if labels.dtype.kind not in "USO" and (reason := like_measurements(labels.tolist())):
        raise ValueError(_unknown_type(reason))
    try:
        classes, indices = np.unique(labels, return_inverse=True)
    except TypeError:
        kinds = ", ".join(sorted({type(label).__name__ for label in labels.tolist()}))
        raise ValueError(f"y must be labels of one kind, all numbers or all names, got {kinds}") from None
    if len(classes) < 2:
        raise ValueError(f"y must have at least two classes, got 1 class: {classes[0]!r}")
    return classes, indices


def _unknown_type(reason: str) -> str:
    """The message for labels that are measurements, which begins as scikit-learn's does."""
    return (
        f"Unknown label type: continuous. y has {reason}: it is a target for regression, and this is a classifier. If"
        " they are classes, give their names: y.astype(str)"
    )


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
    """The labels of series that a table lists by their ids or file names, and a note on the columns that were used.

    Args:
        names: of the series: ids, or the folder and name of a file without its suffix, such as "walk/7".
        path: the table.
        header: whether its first line names the columns; None detects it.

    Returns:
        The label of each series, None where the table has none; and the note.

    Raises:
        DataError: the table cannot be read, or has several labels for a series.
    """
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
        is_file = Path(plain_name(Path(name))).suffix.lower() in TABLE_SUFFIXES
        without = (Path(name).parent / stem(Path(name))).as_posix() if is_file else name
        for key in {name, without}:
            first = labels.setdefault(key, label)
            if first != label:
                place = table.place(row, label_column)
                raise DataError(f"{place}: series {name} has the labels {first!r} and {label!r}")
        labels_without_folder.setdefault(Path(without).name, set()).add(label)
    chosen: list[str | None] = []
    for name in names:
        candidates = {labels[name]} if name in labels else labels_without_folder.get(Path(name).name, set())
        if len(candidates) > 1:
            raise DataError(f"{path} has several labels for {Path(name).name}: give names with folders in"
                            f" column {name_column!r}, such as {name}")  # fmt: skip
        chosen.append(next(iter(candidates), None))
    return chosen, f"labels: column {label_column!r} of {path.name}, by column {name_column!r}"


@dataclass
class LabelledConfig(DataConfig):
    """Which series to read, where their labels are, and how gaps are filled."""

    file: Path | None = None
    """CSV, Parquet, JSON, Excel, NumPy (.npz with X and y), .ts or .arff file, or a folder with a sub-folder for each
    class."""
    test_file: Path | None = None
    """File or folder to test on. Default: the fraction --data.test of each class of --data.file."""
    labels: Path | None = None
    """Table of ids and labels, a row for each series, where the data has no labels."""
    label: str | None = None
    """Column of labels. Default: detected by its name."""
    id: str | None = None
    """Column that names the series of a row, where a series has many rows; "" where each row is a series. Default:
    detected by its name."""
    time: str | None = None
    """Column of times, by which the rows of a series are put in order. Default: detected by its name."""
    values: tuple[str, ...] = ()
    """Columns of measurements. Default: all other columns of numbers."""
    missing: Literal["linear", "hold", "raise"] = "linear"
    """How gaps inside a series are filled: linearly, with the last value, or not at all (raise)."""
    bad: Literal["raise", "missing"] = "raise"
    """How text in a column of numbers is treated: as an error (raise), or as a missing value."""
    header: bool | None = None
    """Whether the first line of a CSV file names the columns. Default: detected."""
    test: float = 0.25
    """Fraction of the series of each class to test on, unless --data.test-file is given."""

    def __post_init__(self) -> None:
        if not 0 < self.test < 1:
            raise ValueError(f"data.test must be a fraction between 0 and 1, got {self.test}")


@dataclass
class LabelledData:
    """Labelled series, as `read_labelled` returns them.

    >>> train, test = plmu.timeseries.read_labelled("gestures.csv").split()
    >>> report = plmu.SequenceClassifier().fit(train).evaluate(test)

    Attributes:
        series: arrays (time, channels).
        labels: the label of each series, None where the file has none.
        names: the name of each series.
        format: the layout and columns that were read, by which other files are read alike.
        notes: what was found and changed, in plain English.
    """

    series: list[Array]
    labels: list[str | None]
    names: list[str]
    format: Format
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.series)

    @property
    def classes(self) -> tuple[str, ...]:
        """The different labels, sorted: numbers by their value, then names."""
        return tuple(sorted({label for label in self.labels if label is not None}, key=by_number))

    @property
    def channels(self) -> int:
        """The number of channels of each series."""
        return int(self.series[0].shape[1])

    def take(self, indices: Iterable[int]) -> LabelledData:
        """The series with these indices.

        Args:
            indices: numbers of series, counted from 0.
        """
        indices = list(indices)
        series, labels, names = ([part[i] for i in indices] for part in (self.series, self.labels, self.names))
        return replace(self, series=series, labels=labels, names=names, notes=list(self.notes))  # type: ignore[arg-type]

    def split(self, test: float = 0.25, seed: int | np.random.Generator = 0) -> tuple[LabelledData, LabelledData]:
        """Training and test series, stratified: a class with a single series stays in training.

        Args:
            test: fraction of the series of each class to test on.
            seed: of the random choice, or a generator.

        Returns:
            The training series and the test series, each in their order.
        """
        chosen = stratified([str(label) for label in self.labels], test, np.random.default_rng(seed))
        return self.take(i for i in range(len(self)) if i not in set(chosen)), self.take(chosen)
