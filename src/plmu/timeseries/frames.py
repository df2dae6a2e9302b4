"""Series as users have them: arrays, lists of arrays, and data frames of pandas or polars."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_DAY = 86_400 * 10**9  # nanoseconds
_FEW = 0.01  # share of rows that may be missing in a calendar


@dataclass(frozen=True)
class Series:
    """One series: values (time, channels), and what its container was."""

    values: Array
    flat: bool = False  # given as (time,)
    names: tuple[str, ...] | None = None  # columns of a frame
    frame: str | None = None  # "pandas" or "polars"
    times: NDArray[np.int64] | None = None  # time stamps in nanoseconds
    covariates: Array | None = None  # (time and rows ahead, covariates); NaN where a value ahead is missing
    columns: tuple[str, ...] | None = None  # all columns of a frame

    @property
    def known(self) -> Array:
        """The covariates of the series, and as far ahead as all of them are known."""
        assert self.covariates is not None
        missing = np.isnan(self.covariates[len(self.values) :].sum(axis=1))
        ahead = int(missing.argmax()) if missing.any() else len(missing)
        return self.covariates[: len(self.values) + ahead]

    def tail(self, rows: int) -> Series:
        """The last rows, and what is known ahead."""
        first = max(0, len(self.values) - rows)
        covariates = None if self.covariates is None else self.covariates[first:].copy()
        times = None if self.times is None else self.times[first:].copy()
        return replace(self, values=self.values[first:].copy(), covariates=covariates, times=times)

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


def calendar_of(one: Series) -> str | None:
    """What a row is, "day" or "week", where the time stamps tell."""
    if one.times is None or len(one.times) < 2:
        return None
    apart = np.diff(one.times) / _DAY
    for name, days in (("day", 1), ("week", 7)):
        if np.median(apart) == days and abs(apart.mean() / days - 1) < _FEW:
            return name
    return None


def is_list_of_series(given: Any) -> bool:
    """Whether it is a list of arrays, tensors or frames, rather than nested lists of numbers."""
    return isinstance(given, list | tuple) and bool(given) and all(getattr(one, "shape", ()) for one in given)


def as_list(given: Any, name: str, covariates: Sequence[str | int] = ()) -> list[Series]:
    """One or several series, checked."""
    if is_list_of_series(given):
        found = [as_series(one, f"{name}[{i}]", covariates) for i, one in enumerate(given)]
        widths = sorted({one.values.shape[1] for one in found})
        if len(widths) > 1:
            raise ValueError(f"all series of {name} must have the same number of channels, got {widths}")
        return found
    return [as_series(given, name, covariates)]


def as_series(given: Any, name: str, covariates: Sequence[str | int] = ()) -> Series:
    """A series from an array (time,) or (time, channels), or from a frame; NaN and infinity are refused.

    Args:
        given: the array or frame.
        name: what to call it in errors.
        covariates: its columns that are known ahead, by name or number. Where the others are empty in the last rows,
            these rows are ahead.
    """
    one = _unchecked(given, name)
    if not len(covariates):
        return replace(one, values=_checked(one.values, name, one.names), columns=one.names)
    width = one.values.shape[1]
    known = [_place(column, one.names, width, name) for column in covariates]
    if len(set(known)) < len(known) or len(known) == width:
        fault = "names a column twice" if len(set(known)) < len(known) else f"leaves no column of {name} to forecast"
        raise ValueError(f"covariates {fault}: {list(covariates)}")
    own = [place for place in range(width) if place not in known]
    names = None if one.names is None else tuple(one.names[place] for place in own)
    values, more = one.values[:, own], one.values[:, known]
    measured = np.flatnonzero(~np.isnan(values).all(axis=1))
    rows = int(measured[-1]) + 1 if len(measured) else len(values)
    _checked(more[:rows], name, tuple(map(str, covariates)) if one.names is not None else None, known)
    return replace(
        one,
        values=_checked(values[:rows], name, names, own),
        names=names,
        columns=one.names,
        covariates=more,
        times=None if one.times is None else one.times[:rows],
    )


def with_future(one: Series, future: Any, covariates: Sequence[str | int], name: str) -> Series:
    """A series whose covariates ahead are those of an array (time,) or (time, covariates), or of a frame."""
    assert one.covariates is not None
    given = _unchecked(future, name)
    columns = given.values
    if given.names is not None and one.columns is not None:
        wanted = [one.columns[_place(column, one.columns, len(one.columns), "X")] for column in covariates]
        columns = columns[:, [_place(column, given.names, len(given.names), name) for column in wanted]]
    if columns.shape[1] != len(covariates):
        raise ValueError(
            f"{name} must have a column for each of the {len(covariates)} covariates, got {columns.shape[1]}"
        )
    clock = Clock.of(one)
    if given.times is not None and len(given.times) and one.times is not None and clock is not None:
        steps = clock.row(int(given.times[0])) - clock.row(int(one.times[-1]))
        if steps != 1:
            raise ValueError(f"{name} must begin one step after the last row of the series, got {steps} steps")
    return replace(one, covariates=np.concatenate([one.covariates[: len(one.values)], columns]))


def check_ahead(one: Series, horizon: int, covariates: Sequence[str | int], name: str) -> None:
    """Raise unless the covariates are known so many rows ahead."""
    assert one.covariates is not None
    ahead = np.isfinite(one.covariates[len(one.values) :][:horizon])
    for column, known in zip(covariates, ahead.T, strict=True):
        count = len(known) if known.all() else int((~known).argmax())
        if count < horizon:
            raise ValueError(
                f"covariate {column!r} must be known for {horizon} rows after the last row of {name}, got {count}: give"
                f" more rows of {name} in which only the covariates have values, or future="
            )


def _place(column: str | int, names: tuple[str, ...] | None, width: int, name: str) -> int:
    """The number of a column."""
    if isinstance(column, str):
        if names is None:
            raise ValueError(
                f"covariates must be numbers of columns for {name}, which is no data frame: got {column!r}"
            )
        if column not in names:
            raise ValueError(f"{name} has no column {column!r}: it has {', '.join(map(repr, names))}")
        return names.index(column)
    if isinstance(column, bool) or not isinstance(column, int | np.integer) or not -width <= column < width:
        raise ValueError(f"covariates must be names or numbers of the {width} columns of {name}, got {column!r}")
    return int(column) % width


def _unchecked(given: Any, name: str) -> Series:
    """Before it is known which values may be missing."""
    root = type(given).__module__.partition(".")[0]
    if root in ("pandas", "polars") and hasattr(given, "columns"):
        return _from_frame(given, root, name)
    array = numbers(given, name)
    if array.ndim not in (1, 2):
        raise ValueError(f"{name} must have shape (time,) or (time, channels), got {array.shape}")
    flat = array.ndim == 1
    return Series(array[:, None] if flat else array, flat)


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
    return Series(np.stack(arrays, axis=1), False, names, root, times)


def _stamps(column: Any) -> NDArray[np.int64]:
    return np.asarray(column.to_numpy()).astype("datetime64[ns]").astype(np.int64)


def _checked(values: Array, name: str, names: tuple[str, ...] | None, places: Sequence[int] | None = None) -> Array:
    if values.shape[0] == 0:
        raise ValueError(f"Found array with 0 sample(s): {name} has no rows")
    if values.shape[1] == 0:
        raise ValueError(f"Found array with 0 feature(s) (shape={values.shape}) while a minimum of 1 is required.")
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        where = f"column {repr(names[column]) if names is not None else column if places is None else places[column]}"
        kind = "NaN" if np.isnan(values[row, column]) else "infinity"
        raise ValueError(f"{name} has {kind} in row {row}, {where}: fill missing values first")
    return values
