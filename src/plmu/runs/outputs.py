"""outputs.json, beside a saved model: what its inputs and outputs mean."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from plmu.errors import RunError
from plmu.runs.folder import OUTPUTS_FILE, read_json, write_json


@dataclass(frozen=True)
class Outputs:
    """What a model's inputs and outputs mean."""

    labels: tuple[str, ...] = ()  # names of classes; two of them may share one output, the logit of the second
    ahead: int = 0  # the outputs predict the input this many steps ahead
    start: tuple[int, ...] = ()  # token numbers that are read before each text
    inputs: tuple[str, ...] = ()  # names of the numbers of a sample: columns of the user's file
    time: str = ""  # the column of times beside them
    series: str = ""  # the column that names series, each of which is a stream of its own
    horizon: int = 0  # number of steps that the outputs forecast for each input, step by step
    columns: tuple[str, ...] = ()  # the inputs that are forecast; empty means all
    header: tuple[str, ...] = ()  # all columns of the user's file, in its order

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


def write(folder: Path, outputs: Outputs) -> None:
    write_json(folder / OUTPUTS_FILE, asdict(outputs))


def read(folder: Path) -> Outputs | None:
    """The content of outputs.json; None if there is no such file.

    Raises:
        RunError: it is damaged.
    """
    path = folder / OUTPUTS_FILE
    if not path.is_file():
        return None
    try:
        content: dict[str, Any] = read_json(path)
        outputs = Outputs(
            labels=tuple(content["labels"]),
            ahead=content["ahead"],
            start=tuple(content["start"]),
            inputs=tuple(content.get("inputs", ())),
            time=content.get("time", ""),
            series=content.get("series", ""),
            horizon=content.get("horizon", 0),
            columns=tuple(content.get("columns", ())),
            header=tuple(content.get("header", ())),
        )
        words = [*outputs.labels, *outputs.inputs, *outputs.columns, *outputs.header, outputs.time, outputs.series]
        numbers = [outputs.ahead, outputs.horizon, *outputs.start]
        if not all(isinstance(word, str) for word in words) or not all(type(number) is int for number in numbers):
            raise TypeError
        if min(numbers) < 0:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunError(f"{path} is damaged: it says what the model's outputs mean. Copy it again") from None
    return outputs
