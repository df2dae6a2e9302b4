"""A deployed detector of anomalies in time: what its numbers mean, and where its streams go on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plmu.clock import Clock
from plmu.errors import FileFormatError, RunError
from plmu.nn import Continued
from plmu.runs.folder import STATES_FILE
from plmu.runs.outputs import Outputs
from plmu.runtime.frozen import PASS, FrozenModel
from plmu.runtime.state_tree import leaves, map_state
from plmu.runtime.stream_files import Saved, read_state, write_state

LONGEST = 2048  # steps of a gap that the model takes as missing samples; of a longer one the phase counts
NUMBERS = 4  # of each channel in an output: score, expected, lower, upper


def is_alarm(score: Any, threshold: float) -> Any:
    """Whether a score, a number or an array, is an alarm; a threshold of 0.001 alarms about once in 1,000 normal
    samples."""
    return score > 1 - threshold


def samples_of_gap(steps: int, season: int) -> int:
    """The number of missing samples that stand for a number of steps between two rows, which is negative where they
    overlap: a long gap, or one back in time, only moves the phase of the season."""
    if 0 <= steps <= LONGEST:
        return steps
    return LONGEST + (steps - LONGEST) % max(season, 1) if steps > 0 else steps % max(season, 1)


@dataclass(frozen=True)
class Anomalies:
    """What the outputs of a detector mean.

    Args:
        model: it.
        outputs: names of its columns, its threshold and its season.
        clock: of the data that it was fitted to; without one, steps are numbered as rows.
        states: where it was fitted to several series, the state of each after its last row, by name.
    """

    model: Continued
    outputs: Outputs
    clock: Clock
    states: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Continued, outputs: Outputs, folder: Path, frozen: FrozenModel) -> Anomalies:
        """Those of a run's model, with the files beside it."""
        return cls(model, outputs, outputs.clock or Clock(), read_states(folder, frozen))

    @property
    def first_step(self) -> int:
        """The step at which a stream is taken to begin if no time is given: the one after the training data."""
        return self.model.first if self.outputs.next_step is None else self.outputs.next_step

    def state_at(self, step: int, series: str | None = None) -> Any:
        """The state of a stream whose first sample is at this step: it goes on from what was learned.

        Args:
            step: of the clock.
            series: its name, where the model was fitted to several.
        """
        state = self.states.get(series or "")
        if state is None:
            inner = self.model.module.initial_state(1, torch.float64, torch.device("cpu"))
            numbers = iter(self.model.start.split([leaf.numel() for leaf in leaves(inner)]))
            inner = map_state(inner, lambda leaf: next(numbers).to(leaf).view_as(leaf))
            if self.states:  # of a series that was not learned
                return inner, torch.tensor([[step, 1]])
            state = inner, torch.tensor([[self.model.first, 1]])
        return self.moved(state, step)

    def moved(self, state: Any, step: int) -> Any:
        """A state before another step, which is later, or for a new stream earlier: the samples between are missing.

        Args:
            state: of one sequence that has begun.
            step: of the clock.
        """
        inner, position = state
        count = samples_of_gap(step - int(position[0, 0]), self.outputs.season) if self.clock.kind != "rows" else 0
        if count:
            missing = torch.full((1, count, len(self.outputs.inputs)), math.nan, dtype=torch.float64)
            with torch.no_grad():
                _, inner = self.model.module(missing, inner)
        return inner, torch.tensor([[step, 1]])

    @staticmethod
    def next_step(state: Any) -> int | None:
        """The step of the next sample of a stream with this state; None if it has not begun."""
        if state is None:
            return None
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
        if not self.outputs.season:
            return None
        return (
            f"no time was given: the first sample is taken to be at {self.time_of(step)}, one step after the data that"
            f" the model has learned from. Scores are wrong if it is not, since the model has a season of"
            f" {self.outputs.season} steps"
        )

    def answer(self, output: list[float], last: int, state: Any, samples: int) -> dict[str, Any]:
        """The time of a sample, its score, whether that is an alarm, and the reason.

        Args:
            output: of the model.
            last: the step of the sample.
            state: of the stream after it; not used.
            samples: their number so far; not used.
        """
        score, names = output[0], self.outputs.inputs
        channels = {
            name: dict(zip(("score", "expected", "lower", "upper"), output[1 + NUMBERS * place :], strict=False))
            for place, name in enumerate(names)
        }
        return {
            "time": self.clock.times(np.array([last, last + 1]))[0],
            "score": score,
            "alarm": bool(is_alarm(score, self.outputs.threshold)),
            "channel": names[first_highest([channels[name]["score"] for name in names])],
            "channels": channels,
        }


def first_highest(scores: list[float]) -> int:
    """The first place of the highest score; missing ones are the lowest."""
    return max(range(len(scores)), key=lambda place: -1.0 if math.isnan(scores[place]) else scores[place])


def row_of(state: Any, number: int) -> Any:
    """The state of one sequence of a batch."""

    def row(leaf: Tensor) -> Tensor:
        return leaf[number : number + 1].clone()

    return map_state(state, row)


def write_states(folder: Path, frozen: FrozenModel, states: Mapping[str, Any], channels: int) -> None:
    """Write the states of several series after their last rows."""
    rows = zip(*(leaves(state) for state in states.values()), strict=True)
    together = iter([torch.cat(parts) for parts in rows])
    state = map_state(next(iter(states.values())), lambda _: next(together))
    last = torch.zeros(len(states), channels, dtype=torch.float64)
    saved = Saved(1, PASS, single=False, state=state, last=last, note={"series": list(states)})
    write_state(folder / STATES_FILE, frozen, saved)


def read_states(folder: Path, frozen: FrozenModel) -> dict[str, Any]:
    """The states that `write_states` wrote, by the names of their series; none where there is no file.

    Raises:
        RunError: the file is damaged, or of another model.
    """
    path = folder / STATES_FILE
    if not path.is_file():
        return {}
    try:
        saved = read_state(path, frozen)
        names = saved.note["series"]
        if len(names) != len(leaves(saved.state)[0]) or not all(isinstance(name, str) for name in names):
            raise ValueError("its names are not those of its states")
    except (FileFormatError, TypeError, KeyError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}): copy it again") from None

    return {name: row_of(saved.state, number) for number, name in enumerate(names)}
