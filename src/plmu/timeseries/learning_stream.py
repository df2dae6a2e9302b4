"""Streams of a fitted forecast that learn: the sums of the fit, and a stream with the intervals that adapt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from plmu.nn import LearningForecast
from plmu.runs.intervals import Intervals
from plmu.runs.learning import learning_layer
from plmu.runtime.frozen import FrozenModel
from plmu.runtime.stream import Stream
from plmu.timeseries.predictions import ForecastModel
from plmu.timeseries.series import Numbers
from plmu.timeseries.split import Split

WINDOWS = 20_000  # of the sums, over all channels


class LearningReport(NamedTuple):
    """What a `LearningStream` says of its last forecast.

    Attributes:
        lower: the lower ends of the intervals, (levels, horizon, channels); NaN where no error is known yet.
        upper: their upper ends.
        levels: of the intervals, in percent.
        error: the running mean absolute error of forecasts over all steps ahead, (channels,); NaN before the first.
        error_without_learning: that of the model that was fitted.
    """

    lower: Numbers
    upper: Numbers
    levels: tuple[float, ...]
    error: Numbers
    error_without_learning: Numbers


class LearningStream(Stream):
    """A stream of a forecast that learns (`plmu.nn.LearningForecast`), with its intervals and errors."""

    def __init__(self, model: LearningForecast, missing: str | None = None) -> None:
        super().__init__(FrozenModel(model), missing)
        self.model = model
        self._output = torch.zeros(0)

    def push(self, x: Any) -> torch.Tensor:
        self._output = super().push(x)
        return self._output

    def report(self) -> LearningReport:
        """Of the last forecast.

        Raises:
            ValueError: there is none: nothing was pushed since the stream began or was restored.
        """
        if self.state is None or not self._output.numel():
            raise ValueError("report is of the last forecast, and there is none: push a sample first")
        report = self.model.report(self._output[None], self.state)
        lower, upper = (ends[:, 0].mT.numpy() for ends in (report.lower, report.upper))
        return LearningReport(
            lower, upper, self.model.percent, report.error[0].numpy(), report.without_learning[0].numpy()
        )


def learning_model(
    model: ForecastModel,
    split: Split,
    intervals: Intervals,
    summary: Mapping[str, Any],
    half_life: float | None = None,
) -> LearningForecast:
    """A layer that learns around a model, with the sums of the rows before the test rows.

    Args:
        model: that was fitted to the split.
        split: the series.
        intervals: of the forecasts.
        summary: what the fit has chosen.
        half_life: steps in which what was learned counts half; None for the default.
    """
    pull = summary.get("pull", math.inf) if getattr(model, "individual", False) else math.inf
    layer = learning_layer(model, intervals, half_life, pull if math.isfinite(pull) else summary.get("alpha"))
    scale = torch.as_tensor(split.scale, dtype=torch.float64)
    channels, size = model.channels, model.window_size
    fitted = [(0, end) for _, end in split.cuts]
    limit = max(1, WINDOWS // channels)
    origins = split.windows.origins(fitted, split.settings.least, split.horizon, limit, split.settings.season)
    gram = torch.zeros_like(layer.gram)
    for examples in split.windows.blocks(origins, max(split.length, size), split.horizon):
        windows = examples.windows[..., -size:].double()
        features = (layer.features(windows, examples.steps).movedim(1, 0)) / scale[:, None, None]
        sums = features.mT @ features  # (channels, order, order)
        gram += sums if len(gram) == channels else sums.mean(0, keepdim=True)
    layer.start_from(gram / max(1, len(origins)), scale)
    return layer
