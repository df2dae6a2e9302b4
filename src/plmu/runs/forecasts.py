"""A deployed forecast model in time: where its streams begin, and the times and the prediction intervals of answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plmu.clock import Clock, steps_in
from plmu.errors import RunError
from plmu.nn import LearningForecast, LookbackForecast, PooledForecast
from plmu.runs.folder import INTERVALS_FILE, SERIES_FILE, parsed
from plmu.runs.intervals import Intervals, bound_names
from plmu.runs.learning import read_layer
from plmu.runs.outputs import Outputs


@dataclass(frozen=True)
class Forecasts:
    """What forecasts of a model mean.

    Args:
        model: it.
        outputs: names of its columns.
        clock: of the data that it was trained on; without one, steps are numbered as rows.
        intervals: of its forecasts, if they are known.
        learning: the layer around the model where it learns from what it forecasts; its intervals adapt.
    """

    model: LookbackForecast | PooledForecast
    outputs: Outputs
    clock: Clock
    intervals: Intervals | None
    learning: LearningForecast | None = None

    @classmethod
    def of(cls, model: LookbackForecast | PooledForecast, outputs: Outputs, folder: Path) -> Forecasts:
        """Those of a run's model, with the files beside it."""
        clock = outputs.clock
        if clock is None and (folder / SERIES_FILE).is_file():  # of a run of an earlier version

            def stored(content: Any) -> Clock:
                return Clock(**content["clock"])

            clock = parsed(folder / SERIES_FILE, stored)
        intervals = None
        if outputs.horizon and (folder / INTERVALS_FILE).is_file():
            intervals = Intervals.read(folder, model.lookback)
            shape = (len(intervals.levels), model.channels, model.horizon)
            if intervals.low.shape != shape or intervals.high.shape != shape:
                raise RunError(f"{folder / INTERVALS_FILE} is of another run")
        return cls(model, outputs, clock or Clock(), intervals)

    @property
    def first_step(self) -> int:
        """The step at which a stream is taken to begin if no time is given: the one after the training data."""
        return self.model.first_number if self.outputs.next_step is None else self.outputs.next_step

    def state_at(self, step: int, before: Any = None) -> Any:
        """The state of a stream whose first sample is at this step. After the state `before` what was learned goes
        on."""
        if self.learning is None:
            return self.model.state_at(step, torch.float64)
        return self.learning.state_at(step, torch.float64, before)

    @staticmethod
    def next_step(state: Any) -> int | None:
        """The step of the next sample of a stream with this state; None if it has not begun and nothing is preset."""
        number, flag = state[1][0].tolist()
        return int(number) if flag else None

    def time_of(self, step: int) -> str:
        return self.clock.times(np.array([step, step + 1]))[0]  # with the time of day, unless all steps are days

    @property
    def column(self) -> str:
        """The name of the column of times."""
        return self.outputs.time or "row"

    def assumption(self, step: int) -> str | None:
        """What to say where no time was given, and the stream is taken to begin at this step; None for a model without
        a season, which does not depend on it."""
        if not self.model.timed:
            return None
        begin = "one step after its training data" if step == self.outputs.next_step else "where its season begins"
        return (
            f"no time was given: the first sample is taken to be at {self.time_of(step)}, {begin}. Forecasts are wrong"
            f" if it is not, since the model has a season of {self.model.season} steps"
        )

    def answer(self, output: list[float], last: int, state: Any, samples: int) -> dict[str, Any]:
        """The times of the steps ahead, the forecast of each column and its prediction intervals.

        Args:
            output: of the model, (horizon · columns).
            last: the step of the last sample.
            state: of the stream after it, of one sequence.
            samples: their number so far.
        """
        names, horizon = self.outputs.columns or self.outputs.inputs, self.model.horizon
        if not names:
            return {}
        time, *times = self.clock.times(last + np.arange(horizon + 1))
        answer: dict[str, Any] = {"time": time, "times": times, "forecast": self.columns(output)}
        if self.learning is not None:
            answer |= self._learned(output, state, samples, names)
        elif self.intervals is not None:
            answer["intervals"] = self._bounds(output, state[0].mT, samples, names)
        return answer

    def learned(self, half_life: float | str | None, folder: Path) -> Forecasts:
        """The same forecasts of a model that learns; `half_life` may be a length of time such as "7d"."""
        steps = None if half_life is None else steps_in(half_life, self.clock)
        return replace(self, learning=read_layer(folder, self.model, self.intervals, steps))

    def columns(self, output: list[float]) -> dict[str, list[float]]:
        """The forecast of each column by its name."""
        names = self.outputs.columns or self.outputs.inputs
        return {name: output[i :: len(names)] for i, name in enumerate(names)}

    def _learned(self, output: list[float], state: Any, samples: int, names: tuple[str, ...]) -> dict[str, Any]:
        """The intervals as they have adapted, where errors are known, and the running errors of each column."""
        assert self.learning is not None
        report = self.learning.report(torch.tensor([output], dtype=torch.float64), state)
        lower, upper = (ends[:, 0].tolist() for ends in (report.lower, report.upper))
        adapted, bounds = _by_name(names, self.learning.percent, lower, upper), {}
        unknown = any(map(isnan, chain.from_iterable(adapted.values())))
        static = self._bounds(output, state[0].mT, samples, names) if unknown and self.intervals is not None else {}
        for name, ends in adapted.items():
            before: list[Any] = static.get(name, [None] * len(ends))
            bounds[name] = [old if isnan(end) else end for end, old in zip(ends, before, strict=True)]
        answer: dict[str, Any] = {"intervals": bounds}
        for key, values in (("mae", report.error[0]), ("mae without learning", report.without_learning[0])):
            errors = zip(names, values.tolist(), strict=True)
            answer[key] = {name: None if isnan(error) else error for name, error in errors}
        return answer

    def _bounds(
        self, output: list[float], window: Tensor, samples: int, names: tuple[str, ...]
    ) -> dict[str, list[float]]:
        assert self.intervals is not None
        mean = torch.tensor(output, dtype=torch.float64).view(1, self.model.horizon, len(names)).mT
        rows = torch.tensor([min(samples, self.model.lookback)])
        spread = self.intervals.spread(window, rows).expand(1, len(names), 1)
        lower, upper = (ends[:, 0].tolist() for ends in self.intervals.bounds(mean, spread))
        return _by_name(names, self.intervals.percent, lower, upper)


def _by_name(
    names: tuple[str, ...], percent: tuple[float, ...], lower: list[Any], upper: list[Any]
) -> dict[str, list[float]]:
    """Ends of intervals (levels, channels, horizon) by their names, such as load-lo-80."""
    bounds: dict[str, list[float]] = {}
    for channel, name in enumerate(names):
        for place, level in enumerate(percent):
            low, high = bound_names(name, level)
            bounds |= {low: lower[place][channel], high: upper[place][channel]}
    return bounds
