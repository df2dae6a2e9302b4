"""outputs.json, beside a saved model: what its inputs and outputs mean."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from plmu.clock import Clock
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
    clock: Clock | None = None  # of a forecast: the steps of the training data
    next_step: int | None = None  # of this clock, after the last row of training; a stream without times begins there
    season: int = 0  # steps of the model's season; 0 for none
    threshold: float = 0.0  # of a detector of anomalies: the share of normal samples that alarm

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
    content = asdict(outputs)
    if outputs.clock is not None:
        content["clock"] = outputs.clock.described()
    write_json(folder / OUTPUTS_FILE, content)


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
            clock=None if content.get("clock") is None else Clock.read(content["clock"]),
            next_step=content.get("next_step"),
            season=content.get("season", 0),
            threshold=float(content.get("threshold", 0.0)),
        )
        words = [*outputs.labels, *outputs.inputs, *outputs.columns, *outputs.header, outputs.time, outputs.series]
        numbers = [outputs.ahead, outputs.horizon, outputs.season, *outputs.start]
        if not isinstance(outputs.next_step, int | None):
            raise TypeError
        if not all(isinstance(word, str) for word in words) or not all(type(number) is int for number in numbers):
            raise TypeError
        if min(numbers) < 0 or not 0 <= outputs.threshold < 1:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunError(f"{path} is damaged: it says what the model's outputs mean. Copy it again") from None
    return outputs
