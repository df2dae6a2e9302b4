"""outputs.json, beside a saved model: what its outputs mean."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmu.errors import RunError
from plmu.runs.results import read_json, write_json

if TYPE_CHECKING:
    from plmu.runs.experiment import Experiment

OUTPUTS_FILE = "outputs.json"


@dataclass(frozen=True)
class Outputs:
    """What a model's outputs mean."""

    labels: tuple[str, ...] = ()  # names of classes; two of them may share one output, the logit of the second
    ahead: int = 0  # how many steps ahead the outputs predict the input
    start: tuple[int, ...] = ()  # token numbers that are read before each text
    inputs: tuple[str, ...] = ()  # names of the numbers of a sample: columns of the user's file
    time: str = ""  # the column of times beside them
    series: str = ""  # the column that names series, each of which is a stream of its own
    horizon: int = 0  # how many steps of each input the outputs forecast, step by step
    columns: tuple[str, ...] = ()  # the inputs that are forecast; where none is named, all

    def sample(self) -> str:
        """What a sample of a model with covariates holds, in words."""
        if not self.columns:
            return ""
        count = (len(self.inputs) - len(self.columns)) // (1 + self.horizon)
        covariates = ", ".join(self.inputs[len(self.columns) :][:count])
        return (
            f"a sample has {', '.join(self.columns)}, {covariates}, and {covariates} of each of the next {self.horizon}"
            f" steps ({self.inputs[len(self.columns) + count]} …). For the rows of a file use plmu predict"
        )


def outputs_of(experiment: Experiment, model: str) -> Outputs:
    """What the outputs of an experiment's model mean."""
    return Outputs(experiment.labels, experiment.ahead, experiment.first_tokens(model))


def write(folder: Path, outputs: Outputs) -> None:
    write_json(folder / OUTPUTS_FILE, asdict(outputs))


def read(folder: Path) -> Outputs | None:
    """What outputs.json says; None where there is none. RunError: it is damaged."""
    path = folder / OUTPUTS_FILE
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = read_json(path)
        labels, ahead, start = found["labels"], found["ahead"], found["start"]
        if not all(isinstance(one, str) for one in labels) or not all(type(one) is int for one in [ahead, *start]):
            raise TypeError
        inputs, time, horizon = found.get("inputs", ()), found.get("time", ""), found.get("horizon", 0)
        series, columns = found.get("series", ""), found.get("columns", ())
        if not all(isinstance(one, str) for one in [time, series, *inputs, *columns]) or type(horizon) is not int:
            raise TypeError
        if ahead < 0 or horizon < 0 or any(one < 0 for one in start):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{path} is damaged: it says what the model's outputs mean. Copy it again") from None
    return Outputs(tuple(labels), ahead, tuple(start), tuple(inputs), time, series, horizon, tuple(columns))
