"""Operations of the layers that `plmu.Forecaster` and `plmu.SequenceClassifier` fit: counts, windows and tables."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from plmu.exports.program import Operation, Value


@dataclass(frozen=True, eq=False)
class Above(Operation):
    """1 where x is above a threshold, else 0: (count, features)."""

    x: Value
    thresholds: Tensor  # (count, features)


@dataclass(frozen=True, eq=False)
class Divide(Operation):
    """x divided by one number."""

    x: Value
    by: Value


@dataclass(frozen=True, eq=False)
class Repeat(Operation):
    """x, so many times in a row."""

    x: Value
    times: int


@dataclass(frozen=True, eq=False)
class RowAt(Operation):
    """The row of a table at a whole number, which a float32 value holds."""

    index: Value
    table: Tensor


@dataclass(frozen=True, eq=False)
class PerChannel(Operation):
    """W x for each channel of x (columns, channels), with a matrix for each group of channels."""

    x: Value
    matrix: Tensor  # (groups, rows, columns)
    channels: int

    def multiply_adds(self) -> int:
        return self.matrix[0].numel() * self.channels
