"""What an experiment is: defaults for each model, data, models and a score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from torch import nn

from plmu.data.files import DataConfig
from plmu.errors import RunError, suggestion
from plmu.runs.outputs import Outputs
from plmu.training.config import TrainingConfig
from plmu.training.task import Batch, Task

ModelConfig = TypeVar("ModelConfig")


@dataclass
class Config(Generic[ModelConfig]):
    """All that determines a result: the same configuration and seed give the same numbers on the same machine."""

    model: ModelConfig
    training: TrainingConfig
    data: DataConfig = field(default_factory=DataConfig)
    seed: int = 0
    """Seed of initialisation, data order, dropout and noise."""
    start: Path | None = None
    """Folder of a finished run to start from: `--from` on the command line, for experiments with `starts`."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be at least 0 and below 2^31, got {self.seed}")


@dataclass
class Predictions:
    """What `plmu predict` prints: columns of equal length by name, and what was found and done, in plain words."""

    columns: dict[str, Sequence[object]]
    notes: list[str] = field(default_factory=list)


class Experiment(ABC):
    """One of the paper's experiments, with its baselines."""

    name: str
    metric: str  # what is reported, and by which the best epoch is chosen on validation data
    paper: ClassVar[dict[str, float]]  # the paper's figure for each model that has one
    percent = False  # whether the score is shown in percent
    streamable: ClassVar[tuple[str, ...]] = ()  # the models that are steppable: they are saved and can be streamed
    labels: ClassVar[tuple[str, ...]] = ()  # names of the classes, in the order of their numbers
    ahead: ClassVar[int] = 0  # how many steps ahead the input is predicted
    starts: ClassVar[tuple[str, ...]] = ()  # the experiments whose runs `--from` takes
    own_data: ClassVar[bool] = False  # whether there is no data but the user's own

    @property
    @abstractmethod
    def models(self) -> tuple[str, ...]:
        """The names `--model` takes, ours first."""

    def default_model(self, started: bool) -> str:
        """The model where `--model` is not given; `started` says whether `--from` is."""
        return self.models[0]

    def run_name(self, model: str, config: Config[Any]) -> str:
        """The name of a run where `--name` gives none."""
        return f"{self.name}-{model}"

    def name_of_file(self, model: str, file: Path | None) -> str:
        """The name of a run on a file of the user's own."""
        stem = "" if file is None else "".join(one if one.isalnum() or one in "-_." else "-" for one in file.stem)
        name = f"{self.name}-{stem.strip('.-') or 'data'}"
        return name if model == self.models[0] else f"{name}-{model}"

    def closed_form(self, model: str) -> bool:
        """Whether `build` returns the model fitted, so that nothing is left to train. Its task has `score`."""
        return False

    @abstractmethod
    def defaults(self, model: str) -> Config[Any]:
        """The configuration of a model, with the paper's values where it gives them."""

    def published(self, model: str, config: Config[Any]) -> float | None:
        """The paper's figure for a model, where the data is the paper's."""
        return self.paper.get(model)

    @abstractmethod
    def task(self, config: Config[Any]) -> Task:
        """Data, loss and score."""

    @abstractmethod
    def build(self, config: Config[Any], task: Task) -> nn.Module:
        """The untrained model."""

    def companions(self, task: Task) -> dict[str, str]:
        """Text files without which the saved model is of no use, by name: they are written into the run's folder."""
        return {}

    def first_tokens(self, model: str) -> tuple[int, ...]:
        """Token numbers that a model reads before each text."""
        return ()

    def outputs(self, task: Task) -> dict[str, str]:
        """Text files with what the best model made of the test data, by name: they are written into the run's folder
        after the test."""
        return {}

    def write_more(self, folder: Path, config: Config[Any], task: Task, network: nn.Module) -> list[str]:
        """Write further files of a finished run into its folder, such as plots.

        Returns:
            Lines to print.
        """
        return []

    def predict(self, folder: Path, config: Config[Any], file: Path, future: Path | None = None) -> Predictions:
        """What the model of the run in this folder says of a file of the user's own, for `plmu predict`. `future` is
        a file of covariates.

        Raises:
            DataError: the file is at fault.
        """
        raise RunError(f"{folder} is a run of {self.name}, whose model is run by `plmu stream`")

    def scored_later(self, folder: Path, result: dict[str, Any]) -> dict[str, Any] | None:
        """The result of a finished run with scores that could not be computed where it ran, from the files of
        `outputs`; None if there are none to add. Asked when the run's command is given again."""
        return None

    def more_tests(self, config: Config[Any]) -> dict[str, Batch]:
        """Further test sets, scored once with the best model, by the name of their score."""
        return {}

    def check_start(self, model: str, started: bool) -> None:
        """Raise unless this model may start from another run, if `--from` gives one, or begin without."""
        if started and not self.starts:
            raise ValueError(f"{self.name} cannot start from another run: leave out --from")

    def check(self, model: str) -> str:
        if model not in self.models:
            hint = suggestion(model, self.models)
            raise ValueError(f"{self.name} has the models {', '.join(self.models)}; there is no {model!r}{hint}")
        return model


def outputs_of(experiment: Experiment, model: str) -> Outputs:
    """What the outputs of an experiment's model mean."""
    return Outputs(experiment.labels, experiment.ahead, experiment.first_tokens(model))
