"""Labelled series: which files and columns they come from, and what reading them returns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from plmu.data.files import DataConfig
from plmu.timeseries.frames import Array
from plmu.timeseries.labelled_columns import Format
from plmu.timeseries.labels import by_number, stratified


@dataclass
class LabelledConfig(DataConfig):
    """Which series to read, where their labels are, and how gaps are filled."""

    file: Path | None = None
    """CSV, Parquet, NumPy (.npz with X and y), .ts or .arff file, or a folder with a sub-folder for each class."""
    test_file: Path | None = None
    """File or folder to test on. Default: some series of each class of --data.file."""
    labels: Path | None = None
    """Table with a label for each series (columns of ids and labels), where the data has none."""
    label: str | None = None
    """Column of labels. Default: detected by its name."""
    id: str | None = None
    """Column that names the series of a row, where a series has many rows. Default: detected by its name."""
    time: str | None = None
    """Column of times, which put the rows of a series in order. Default: detected by its name."""
    values: tuple[str, ...] = ()
    """Columns of measurements. Default: all other columns of numbers."""
    missing: Literal["linear", "hold", "raise"] = "linear"
    """How gaps inside a series are filled: linearly, with the last value, or not at all (raise)."""
    bad: Literal["raise", "missing"] = "raise"
    """What text in a column of numbers is: an error, or a missing value."""
    header: bool | None = None
    """Whether the first line of a CSV file names the columns. Default: detected."""
    test: float = 0.25
    """Fraction of the series of each class to test on, without --data.test-file."""

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
        format: the columns that were read; other files are read alike.
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
        """The different labels: numbers by their value, then names."""
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
