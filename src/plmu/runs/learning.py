"""learning.plmu, beside the model of a forecast: what is needed to learn while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from plmu.errors import FileFormatError, RunError
from plmu.modelfiles.files import reading, write
from plmu.nn import LearningForecast
from plmu.runs.folder import LEARNING_FILE
from plmu.runs.intervals import Intervals

if TYPE_CHECKING:
    from plmu.nn.windowed import WindowedForecast

LEVELS = (0.8, 0.95)  # of intervals, where those of the fit are not known


def write_sums(folder: Path, layer: LearningForecast) -> None:
    """Write the sums of the fit and the penalty of a layer; not the model, which is in a file of its own."""
    tensors = {"gram": layer.gram.clone(), "scale": layer.scale.clone()}
    write(folder / LEARNING_FILE, tensors, {"kind": "learning", "alpha": layer.alpha})


def learning_layer(
    model: WindowedForecast, intervals: Intervals | None, half_life: float | None, alpha: float | None = None
) -> LearningForecast:
    """A layer that learns around a model, which begins with these intervals.

    Args:
        model: a fitted forecast.
        intervals: of its forecasts; None if they are not known.
        half_life: steps in which what was learned counts half; None for the default.
        alpha: penalty; None for the default.
    """
    options = {name: value for name, value in (("half_life", half_life), ("alpha", alpha)) if value is not None}
    levels = LEVELS if intervals is None else intervals.levels
    layer = LearningForecast(model, levels=levels, **options)
    if intervals is not None and not intervals.relative and intervals.levels:
        low, high = (ends.double().nan_to_num(0.0, 0.0, 0.0) for ends in (intervals.low, intervals.high))
        layer.set_intervals(low, high)
    return layer


def read_layer(
    folder: Path, model: WindowedForecast, intervals: Intervals | None, half_life: float | None
) -> LearningForecast:
    """The layer of a run's model. A run of an earlier version has no sums: they are guessed from what comes.

    Raises:
        RunError: learning.plmu is of another run, or damaged.
        ValueError: the half-life is not a positive number.
    """
    path = folder / LEARNING_FILE
    if not path.is_file():
        return learning_layer(model, intervals, half_life)
    try:
        with reading(path, ("learning",)) as file:
            alpha, tensors = file.description.get("alpha"), file.tensors(list(file.shapes), "cpu")
        if not isinstance(alpha, float) or tensors.keys() != {"gram", "scale"} or not 0 < alpha < torch.inf:
            raise FileFormatError(f"{path} has no sums")
    except FileFormatError as error:
        raise RunError(str(error)) from None
    layer = learning_layer(model, intervals, half_life, alpha)
    try:
        layer.start_from(tensors["gram"], tensors["scale"])
    except ValueError as error:
        raise RunError(f"{path} is of another run: {error}") from None
    return layer
