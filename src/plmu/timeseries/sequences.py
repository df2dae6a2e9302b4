"""Labelled series as `SequenceClassifier` takes them: checked arrays, and the classes of labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmu.timeseries.base import warn_of_column
from plmu.timeseries.frames import Array, is_list_of_series, numbers


def is_table(X: Any) -> bool:
    """Whether series come as (examples, time), which for scikit-learn are so many features."""
    return not is_list_of_series(X) and np.asarray(X).ndim == 2


def series_of(X: Any) -> list[Array]:
    """Series (time, channels), checked."""
    if is_list_of_series(X):
        arrays = [numbers(one, f"X[{i}]") for i, one in enumerate(X)]
        odd = next((i for i, one in enumerate(arrays) if one.ndim not in (1, 2)), None)
        if odd is not None:
            raise ValueError(f"X[{odd}] must have shape (time,) or (time, channels), got {arrays[odd].shape}")
        arrays = [one[:, None] if one.ndim == 1 else one for one in arrays]
        columns = [list(one.columns) if hasattr(one, "columns") else None for one in X]
        other = next((i for i, one in enumerate(columns) if one != columns[0]), None)
        if other is not None and columns[0] is not None and columns[other] is not None:
            raise ValueError(f"all frames of X must have the same columns: X[0] has {columns[0]}, X[{other}]"
                             f" {columns[other]}")  # fmt: skip
        widths = sorted({one.shape[1] for one in arrays})
        if len(widths) > 1:
            raise ValueError(f"all series of X must have the same number of channels, got {widths}")
    else:
        whole = numbers(X, "X")
        if whole.ndim not in (2, 3):
            hint = " Reshape your data: for one series give X[None]" if whole.ndim == 1 else ""
            raise ValueError(
                f"X must have shape (examples, time) or (examples, time, channels), got {whole.shape}.{hint}"
            )
        arrays = list(whole[:, :, None] if whole.ndim == 2 else whole)
        if not arrays:
            raise ValueError(f"Found array with 0 sample(s) (shape={whole.shape}) while a minimum of 1 is required.")
        if 0 in whole.shape:
            raise ValueError(f"Found array with 0 feature(s) (shape={whole.shape}) while a minimum of 1 is required.")
    for i, one in enumerate(arrays):
        if 0 in one.shape:
            raise ValueError(f"X[{i}] has no steps")
        if not np.isfinite(one).all():
            row = int(np.argwhere(~np.isfinite(one))[0, 0])
            kind = "NaN" if np.isnan(one[row]).any() else "infinity"
            raise ValueError(f"X has {kind} in series {i}, step {row}: fill missing values first, and give series of"
                             " unequal length as a list of arrays")  # fmt: skip
    return arrays


def labels_of(y: Any, examples: int) -> NDArray[Any]:
    """Labels (examples,), checked."""
    given = np.asarray(y)
    if given.ndim == 2 and given.shape[1] == 1:
        warn_of_column()
        given = given[:, 0]
    if given.shape != (examples,):
        raise ValueError(f"y must have one label for each of the {examples} series, got shape {given.shape}")
    return given


def classes_of(y: Any, examples: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The classes, and the number of each label's class."""
    if y is None:
        raise ValueError(
            "This estimator requires y to be passed, but the target y is None: give a label for each series"
        )
    given = labels_of(y, examples)
    if given.dtype.kind in "fc":
        if not np.isfinite(given).all():
            raise ValueError("y has NaN or infinity: Input y contains NaN or infinity")
        if (given != np.round(given)).any():
            raise ValueError("Unknown label type: continuous. y must be classes, not measurements")
    try:
        classes, labels = np.unique(given, return_inverse=True)
    except TypeError:
        kinds = ", ".join(sorted({type(one).__name__ for one in given.tolist()}))
        raise ValueError(f"y must be labels of one kind, all numbers or all names, got {kinds}") from None
    if len(classes) < 2:
        raise ValueError(f"y must have at least two classes, got 1 class: {classes[0]!r}")
    return classes, labels


def by_number(label: Any) -> tuple[bool, float, Any]:
    """Key by which labels are sorted: numbers, also those in text, in their order, then names."""
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label
