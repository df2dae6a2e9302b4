"""Scores of whole series: the model over their samples, alarms, stretches of these, and how they agree with labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plmu.nn.steppable import Steppable
from plmu.runs.anomalies import is_alarm, row_of
from plmu.runtime.state_tree import leaves, map_state
from plmu.timeseries.anomaly_series import Labels, Watched
from plmu.timeseries.series import Numbers

APART = 10  # steps without alarm between two stretches
_BLOCK = 2**22  # numbers of outputs that are held at a time


@dataclass(frozen=True)
class Scored:
    """What a model said of the steps of a series."""

    series: Watched
    outputs: Numbers  # (steps, 1 + 4 · channels), of the series' steps
    threshold: float

    @property
    def values(self) -> Numbers:
        """What was measured, (steps, channels), NaN where nothing was."""
        return self.series.values[self.series.rows]

    @property
    def score(self) -> Numbers:
        """(steps,)"""
        return self.outputs[:, 0]

    @property
    def parts(self) -> Numbers:
        """(steps, channels, 4): score, expected, lower, upper."""
        return self.outputs[:, 1:].reshape(len(self.outputs), -1, 4)

    @property
    def alarm(self) -> NDArray[np.bool_]:
        """(steps,)"""
        return np.asarray(is_alarm(self.score, self.threshold))

    @property
    def channel(self) -> NDArray[np.int64]:
        """The channel with the highest score at each step, (steps,)."""
        return np.asarray(np.nan_to_num(self.parts[:, :, 0], nan=-1.0).argmax(axis=1))

    @property
    def reasons(self) -> Numbers:
        """Of that channel: value, expected, lower, upper, (steps, 4)."""
        at = np.arange(len(self.outputs)), self.channel
        return np.concatenate([self.values[at][:, None], self.parts[at][:, 1:]], axis=1)

    def stretches(self) -> list[Stretch]:
        """Alarms in a row, in the order of time; those that are few steps apart are of one stretch."""
        places, steps = np.flatnonzero(self.alarm), self.series.steps
        breaks = np.flatnonzero(np.diff(steps[places]) > APART) + 1
        return [
            Stretch(int(rows[0]), int(rows[-1]), len(rows), int(rows[self.score[rows].argmax()]))
            for rows in (np.split(places, breaks) if len(places) else [])
        ]


class Stretch(NamedTuple):
    """Alarms in a row."""

    first: int  # row
    last: int
    alarms: int
    highest: int  # the row with the highest score


def run(model: Steppable, series: Sequence[Numbers], states: Sequence[Any]) -> list[tuple[Numbers, Any]]:
    """The outputs of a model for samples (samples, channels) of each series, and the state after them.

    Args:
        model: all of whose states have a row for each sequence.
        series: of the same channels, of any length.
        states: before the first sample of each, of one sequence; None for a new one.
    """
    results: dict[int, tuple[Numbers, Any]] = {}
    order = sorted(range(len(series)), key=lambda place: len(series[place]))
    width = 1 + 4 * series[0].shape[1]
    while order:
        longest = len(series[order[-1]])
        count = max(1, _BLOCK // (max(longest, 1) * width))
        batch = order[-count:]
        del order[-count:]
        x = torch.zeros(len(batch), longest, series[0].shape[1], dtype=torch.float64)
        for row, place in enumerate(batch):
            x[row, : len(series[place])] = torch.from_numpy(series[place])
        lengths = torch.tensor([len(series[place]) for place in batch])
        before = _stacked(model, [states[place] for place in batch])
        with torch.no_grad():
            out, after = model(x, before, None if len(batch) == 1 else lengths)
        for row, place in enumerate(batch):
            results[place] = out[row, : len(series[place])].double().numpy(), row_of(after, row)
    return [results[place] for place in range(len(series))]


def _stacked(model: Steppable, states: Sequence[Any]) -> Any:
    """States of one sequence each as that of a batch."""
    fresh = model.initial_state(1, torch.float64, torch.device("cpu"))
    rows = zip(*(leaves(fresh if state is None else state) for state in states), strict=True)
    together = iter([torch.cat(parts) for parts in rows])
    return map_state(fresh, lambda _: next(together))


@dataclass(frozen=True)
class Agreement:
    """How alarms agree with labels, over all series.

    Attributes:
        precision: the share of alarms that are in labelled stretches; NaN without alarms.
        recall: the share of labelled stretches that have an alarm; NaN without labels.
        false_alarms: alarms at steps without a label, for each 1,000 of these.
        labelled: the number of labelled stretches.
        detected: the number of these that have an alarm.
    """

    precision: float
    recall: float
    false_alarms: float
    labelled: int
    detected: int

    @classmethod
    def of(cls, scored: Sequence[Scored], truth: Sequence[NDArray[np.bool_]]) -> Agreement:
        """Of series and the label of each of their steps."""
        alarms = hits = labelled = detected = steps = 0
        for series, labels in zip(scored, truth, strict=True):
            alarm = series.alarm
            alarms, hits = alarms + int(alarm.sum()), hits + int((alarm & labels).sum())
            steps += int((~labels).sum())
            bounds = np.flatnonzero(np.diff(np.concatenate([[False], labels, [False]]).astype(np.int8)))
            for begin, end in zip(bounds[::2], bounds[1::2], strict=True):
                labelled, detected = labelled + 1, detected + int(alarm[begin:end].any())
        nan = float("nan")
        return cls(
            hits / alarms if alarms else nan,
            detected / labelled if labelled else nan,
            1000 * (alarms - hits) / steps if steps else nan,
            labelled,
            detected,
        )


def truth_of(scored: Sequence[Scored], labels: Labels) -> list[NDArray[np.bool_]]:
    """The label of each step of series."""
    return [
        np.array([(series.name, step) in labels for step in series.steps.tolist()], dtype=bool)
        for series in (part.series for part in scored)
    ]


def held(values: Numbers) -> Tensor:
    """Values (time, channels) as (channels, time), with the last value in place of missing ones."""
    at = np.where(np.isnan(values), 0, np.arange(len(values))[:, None])
    filled = np.take_along_axis(values, np.maximum.accumulate(at, axis=0), axis=0)
    return torch.from_numpy(np.nan_to_num(filled).T.copy())
