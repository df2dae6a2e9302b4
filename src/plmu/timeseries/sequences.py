"""Series in memory as `SequenceClassifier` takes them: checked arrays (time, channels)."""

from __future__ import annotations

from typing import Any

import numpy as np

from plmu.timeseries.frames import Array, is_list_of_series, numbers


def is_table(X: Any) -> bool:
    """Whether series come as (examples, time), whose steps are features for scikit-learn."""
    return not is_list_of_series(X) and np.asarray(X).ndim == 2


def series_of(X: Any) -> list[Array]:
    """Series (time, channels), checked."""
    if is_list_of_series(X):
        arrays = [numbers(values, f"X[{i}]") for i, values in enumerate(X)]
        wrong = next((i for i, array in enumerate(arrays) if array.ndim not in (1, 2)), None)
        if wrong is not None:
            raise ValueError(f"X[{wrong}] must have shape (time,) or (time, channels), got {arrays[wrong].shape}")
        arrays = [array[:, None] if array.ndim == 1 else array for array in arrays]
        columns = [list(frame.columns) if hasattr(frame, "columns") else None for frame in X]
        other = next((i for i, names in enumerate(columns) if names != columns[0]), None)
        if other is not None and columns[0] is not None and columns[other] is not None:
            raise ValueError(f"all frames of X must have the same columns: X[0] has {columns[0]}, X[{other}]"
                             f" {columns[other]}")  # fmt: skip
        widths = sorted({array.shape[1] for array in arrays})
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
    for i, array in enumerate(arrays):
        if 0 in array.shape:
            raise ValueError(f"X[{i}] has no steps")
        if not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0, 0])
            kind = "NaN" if np.isnan(array[row]).any() else "infinity"
            raise ValueError(f"X has {kind} in series {i}, step {row}: fill missing values first, and give series of"
                             " unequal length as a list of arrays")  # fmt: skip
    return arrays
