"""The base of experiments: data, models with defaults, and a score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from torch import nn

import plmu
from plmu.data.files import DataConfig
from plmu.errors import RunError, suggestion
from plmu.runs.folder import MODEL_FILE
from plmu.runs.outputs import Outputs
from plmu.training.config import TrainingConfig
from plmu.training.processes import Processes
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
    """What `plmu predict` prints: columns of equal length by name, and notes about the file."""

    columns: dict[str, Sequence[object]]
    notes: list[str] = field(default_factory=list)
    numbers: tuple[str, ...] = ()  # names of the columns whose text is numbers, or None for a missing one
    draw: Callable[[Path], list[str]] | None = None  # writes a picture of them, and returns notes about it
    following: Iterable[Mapping[str, Sequence[object]]] = ()  # the same columns of further rows; they may add notes


class Experiment(ABC):
    """One of the paper's experiments, with its baselines."""

    name: str
    metric: str  # the reported score, by which validation data chooses the best epoch
    paper: ClassVar[dict[str, float]]  # the paper's score of each model, where it has one
    percent = False  # whether the score is shown in percent
    streamable: ClassVar[tuple[str, ...]] = ()  # the models that are steppable: they are saved and can be streamed
    labels: ClassVar[tuple[str, ...]] = ()  # names of the classes, in the order of their numbers
    ahead: ClassVar[int] = 0  # the input is predicted this many steps ahead
    starts: ClassVar[tuple[str, ...]] = ()  # the experiments whose runs `--from` takes
    own_data: ClassVar[bool] = False  # whether all data is the user's own

    @property
    @abstractmethod
    def models(self) -> tuple[str, ...]:
        """The names `--model` takes, ours first."""

    def default_model(self, started: bool) -> str:
        """The model without `--model`; `started` says whether there is `--from`."""
        return self.models[0]

    def run_name(self, model: str, config: Config[Any]) -> str:
        """The name of a run without `--name`."""
        return f"{self.name}-{model}"

    def name_of_file(self, model: str, file: Path | None) -> str:
        """The name of a run on the user's own file."""
        stem = (
            ""
            if file is None
            else "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in file.stem)
        )
        name = f"{self.name}-{stem.strip('.-') or 'data'}"
        return name if model == self.models[0] else f"{name}-{model}"

    def closed_form(self, model: str) -> bool:
        """Whether `build` returns a fitted model, which is not trained. Its task has `score`."""
        return False

    @abstractmethod
    def defaults(self, model: str) -> Config[Any]:
        """The configuration of a model, with the paper's values where it gives them."""

    def published(self, model: str, config: Config[Any]) -> float | None:
        """The paper's score of a model, if the data is the paper's."""
        return self.paper.get(model)

    @abstractmethod
    def task(self, config: Config[Any]) -> Task:
        """Data, loss and score."""

    def shared_task(self, config: Config[Any], processes: Processes) -> Task:
        """The same where there may be several processes: of each the whole data, unless an experiment divides it."""
        return self.task(config)

    @abstractmethod
    def build(self, config: Config[Any], task: Task) -> nn.Module:
        """The untrained model."""

    def companions(self, task: Task) -> dict[str, str]:
        """Text files that the saved model needs, by name, such as a vocabulary: written into the run's folder."""
        return {}

    def first_tokens(self, model: str) -> tuple[int, ...]:
        """Token numbers that a model reads before each text."""
        return ()

    def outputs(self, task: Task) -> dict[str, str]:
        """Text files with the best model's outputs for the test data, by name: written into the run's folder."""
        return {}

    def complete(self, config: Config[Any], task: Task) -> None:
        """Compute what `write_more` needs, where processes share that: all of them call it before the first writes."""
        return

    def write_more(self, folder: Path, config: Config[Any], task: Task, network: nn.Module) -> list[str]:
        """Write further files of a finished run into its folder, such as plots.

        Returns:
            Lines to print.
        """
        return []

    def saved_model(self, folder: Path, config: Config[Any], task: Task, network: nn.Module) -> nn.Module:
        """The model that a finished run saved, for `plmu evaluate`.

        Args:
            folder: of the run.
            config: its configuration.
            task: its data, by which the model will be scored.
            network: the best model of its checkpoints, which takes the weights of the saved one.

        Raises:
            RunError: the saved model cannot be scored on this data.
        """
        if isinstance(network, plmu.nn.Steppable) and (folder / MODEL_FILE).is_file():
            plmu.load_into(network, folder / MODEL_FILE)
        return network

    def score_other_data(self, folder: Path, config: Config[Any]) -> tuple[dict[str, float], list[str]]:
        """Score the saved model of a run on data of the user's own that it was not trained on.

        Args:
            folder: of the run.
            config: its configuration, with the other file.

        Returns:
            Scores by name, and notes about the file.

        Raises:
            DataError: the file is at fault.
            RunError: a file of the run is missing or damaged.
        """
        raise RunError(f"--other-data is for runs of forecast and classify, and {folder} is a run of {self.name}")

    def predict(
        self,
        folder: Path,
        config: Config[Any],
        file: Path,
        future: Path | None = None,
        horizon: int | None = None,
    ) -> Predictions:
        """The predictions of a run's model for the user's own file, for `plmu predict`.

        Args:
            folder: of the run.
            config: its configuration.
            file: the user's file.
            future: a file of covariates.
            horizon: steps ahead, at most those that the model forecasts, which is the default.

        Raises:
            DataError: the file is at fault.
        """
        raise RunError(f"{folder} is a run of {self.name}, whose model is run by `plmu stream`")

    def scored_later(self, folder: Path, result: dict[str, Any]) -> dict[str, Any] | None:
        """The result of a finished run with scores added that the machine of the run could not compute.

        They come from the files of `outputs`. It is called when the run's command is repeated; None adds nothing."""
        return None

    def more_tests(self, config: Config[Any]) -> dict[str, Batch]:
        """Further test sets by the name of their score. The best model is scored on each."""
        return {}

    def check_start(self, model: str, started: bool) -> None:
        """Raise ValueError unless this model may start with, or without, another run (`--from`)."""
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
