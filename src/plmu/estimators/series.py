"""Series as users have them: arrays, lists of arrays, and data frames of pandas or polars."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """One series: values (time, channels), and what its container was."""

    values: Array
    flat: bool = False  # given as (time,)
    names: tuple[str, ...] | None = None  # columns of a frame
    frame: str | None = None  # "pandas" or "polars"
    times: NDArray[np.int64] | None = None  # time stamps in nanoseconds

    def like(self, values: Array) -> Any:
        """Values (time, channels) in the same kind of container."""
        if self.frame is not None:
            columns = dict(zip(self.names or (), values.T, strict=True))
            return sys.modules[self.frame].DataFrame(columns)
        return values[:, 0] if self.flat else values


@dataclass(frozen=True)
class Clock:
    """Time stamps of the rows of `fit`."""

    first: int
    step: float

    @classmethod
    def of(cls, one: Series) -> Clock | None:
        if one.times is None or len(one.times) < 2:
            return None
        step = float(np.median(np.diff(one.times)))
        return cls(int(one.times[0]), step) if step > 0 else None

    def row(self, time: int) -> int:
        return round((time - self.first) / self.step)


def is_list_of_series(given: Any) -> bool:
    """Whether it is a list of arrays, tensors or frames, rather than nested lists of numbers."""
    return isinstance(given, list | tuple) and bool(given) and all(getattr(one, "shape", ()) for one in given)


def as_list(given: Any, name: str) -> list[Series]:
    """One or several series, checked."""
    if is_list_of_series(given):
        found = [as_series(one, f"{name}[{i}]") for i, one in enumerate(given)]
        widths = sorted({one.values.shape[1] for one in found})
        if len(widths) > 1:
            raise ValueError(f"all series of {name} must have the same number of channels, got {widths}")
        return found
    return [as_series(given, name)]


def as_series(given: Any, name: str) -> Series:
    """A series from an array (time,) or (time, channels), or from a frame; NaN and infinity are refused."""
    root = type(given).__module__.partition(".")[0]
    if root in ("pandas", "polars") and hasattr(given, "columns"):
        return _from_frame(given, root, name)
    array = numbers(given, name)
    if array.ndim not in (1, 2):
        raise ValueError(f"{name} must have shape (time,) or (time, channels), got {array.shape}")
    flat = array.ndim == 1
    return Series(_checked(array[:, None] if flat else array, name, None), flat)


def numbers(given: Any, name: str) -> Array:
    """An array of float64."""
    if hasattr(given, "toarray") and hasattr(given, "nnz"):
        raise TypeError(f"{name} must be dense: sparse input is not supported, give {name}.toarray()")
    if hasattr(given, "detach"):
        given = given.detach().cpu()
    try:
        array = np.asarray(given)
    except ValueError:
        raise ValueError(f"{name} must be an array; give series of unequal length as a list of arrays") from None
    if np.iscomplexobj(array):
        raise ValueError(f"Complex data not supported: {name} must be real numbers")
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} must hold numbers: {error}") from None


def _from_frame(frame: Any, root: str, name: str) -> Series:
    times = None
    columns = list(frame.columns)
    if root == "pandas" and str(frame.index.dtype).startswith("datetime64"):
        times = _stamps(frame.index)
    kept = []
    for column in columns:
        kind = str(frame[column].dtype)
        if kind.lower().startswith("date"):
            times = _stamps(frame[column]) if times is None else times
        else:
            kept.append(column)
    if not kept:
        raise ValueError(f"{name} has no column of numbers")
    arrays = [numbers(frame[column].to_numpy(), f"column {column!r} of {name}") for column in kept]
    names = tuple(str(column) for column in kept)
    return Series(_checked(np.stack(arrays, axis=1), name, names), False, names, root, times)


def _stamps(column: Any) -> NDArray[np.int64]:
    return np.asarray(column.to_numpy()).astype("datetime64[ns]").astype(np.int64)


def _checked(values: Array, name: str, names: tuple[str, ...] | None) -> Array:
    if values.shape[0] == 0:
        raise ValueError(f"Found array with 0 sample(s): {name} has no rows")
    if values.shape[1] == 0:
        raise ValueError(f"Found array with 0 feature(s) (shape={values.shape}) while a minimum of 1 is required.")
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        where = f"column {column if names is None else repr(names[column])}"
        kind = "NaN" if np.isnan(values[row, column]) else "infinity"
        raise ValueError(f"{name} has {kind} in row {row}, {where}: fill missing values first")
    return values
