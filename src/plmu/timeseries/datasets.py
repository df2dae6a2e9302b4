"""Series as torch datasets, for training loops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from plmu.timeseries.labelled import by_number
from plmu.timeseries.labelled_files import read_labelled


class LabelledSeries(Dataset[tuple[Tensor, int]]):
    """Series of equal or unequal length, each with the number of its class.

    >>> data = LabelledSeries.from_file("gestures.csv")
    >>> loader = DataLoader(data, batch_size=16, shuffle=True, collate_fn=data.collate)
    >>> for x, lengths, labels in loader:
    ...     out, _ = model(x, lengths=lengths)

    Args:
        series: arrays (time,) or (time, channels), with equally many channels.
        labels: the label of each series: numbers or names.

    Attributes:
        classes: the different labels, numbers by value, then names; the number of a class is its index here.

    Raises:
        ValueError: there are not as many labels as series, a label is missing, or a series has no steps, NaN, or
            another number of channels.
    """

    def __init__(self, series: Sequence[Any], labels: Sequence[Any]) -> None:
        if len(series) != len(labels):
            raise ValueError(f"labels must be one for each of the {len(series)} series, got {len(labels)}")
        self.series = [_series(array, f"series[{place}]") for place, array in enumerate(series)]
        widths = sorted({tensor.shape[1] for tensor in self.series})
        if len(widths) > 1:
            raise ValueError(f"series must have equally many channels, got {widths}")
        array = np.asarray(labels)
        names = array.tolist()
        if array.ndim != 1 or any(label is None or label != label for label in names):
            raise ValueError("labels must be a number or a name for each series, without NaN or None")
        try:
            self.classes: list[Any] = sorted(set(names), key=by_number)
        except TypeError:
            raise ValueError("labels must be of one kind: all numbers, or all names") from None
        self.numbers: list[int] = [self.classes.index(label) for label in names]

    @classmethod
    def from_file(cls, path: str | Path, **options: Any) -> LabelledSeries:
        """The series of a file or folder, as `plmu train classify` reads them.

        Args:
            path: CSV, Parquet, NumPy, .ts or .arff file, or a folder.
            options: of the data, by the names that `plmu train classify --help` gives: `label="class"`, `id="case"`.
        """
        data = read_labelled(path, **options)
        return cls(data.series, data.labels)

    def __len__(self) -> int:
        return len(self.series)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.series[index], self.numbers[index]

    @staticmethod
    def collate(batch: Sequence[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
        """A batch for a model of plmu: series padded with zeros (batch, time, channels), their lengths, and labels."""
        lengths = torch.tensor([len(series) for series, _ in batch])
        padded = torch.nn.utils.rnn.pad_sequence([series for series, _ in batch], batch_first=True)
        return padded, lengths, torch.tensor([label for _, label in batch])


class ForecastWindows(Dataset[tuple[Tensor, Tensor]]):
    """Every window of a series, (lookback, channels), and the steps that follow it, (horizon, channels).

    >>> loader = DataLoader(ForecastWindows(load, lookback=96, horizon=24), batch_size=64, shuffle=True)

    Args:
        series: an array (time,) or (time, channels); or a list of them, whose windows come one series after the other.
        lookback: steps of a window.
        horizon: steps that follow.

    Raises:
        ValueError: no series is long enough for a window, or one has NaN.
    """

    def __init__(self, series: Any, lookback: int, horizon: int) -> None:
        for name, value in (("lookback", lookback), ("horizon", horizon)):
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        several = isinstance(series, list | tuple) and bool(series) and np.ndim(series[0]) > 0
        arrays = [_series(array, f"series[{i}]") for i, array in enumerate(series if several else [series])]
        self.rows = torch.cat(arrays)  # (time of all series, channels)
        self.lookback, self.horizon = lookback, horizon
        counts = [max(0, len(array) - lookback - horizon + 1) for array in arrays]
        starts = [0, *np.cumsum([len(array) for array in arrays])]
        self.first = np.concatenate([start + np.arange(count) for start, count in zip(starts, counts, strict=False)])
        if not len(self):
            longest = max(map(len, arrays))
            raise ValueError(f"lookback and horizon must be shorter: {lookback} + {horizon} steps exceed {longest}")

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} windows, got index {index}")
        middle = int(self.first[index]) + self.lookback
        return self.rows[middle - self.lookback : middle], self.rows[middle : middle + self.horizon]


def _series(array: Any, name: str) -> Tensor:
    """A checked series (time, channels) in float32; `name` is for errors."""
    series = torch.tensor(np.asarray(array, dtype=np.float64), dtype=torch.float32)
    series = series[:, None] if series.ndim == 1 else series
    if series.ndim != 2 or not series.numel():
        raise ValueError(f"{name} must have the shape (time,) or (time, channels), got {tuple(np.shape(array))}")
    if not bool(series.isfinite().all()):
        row = int((~series.isfinite()).any(1).nonzero()[0])
        raise ValueError(f"{name} has NaN or infinity in step {row}: fill missing values first")
    return series
