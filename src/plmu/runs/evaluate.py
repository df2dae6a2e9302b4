"""Scoring the model of a run again, from its files alone: on its test data, or on other data of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from plmu.errors import RunError
from plmu.runs import sources
from plmu.runs.configuration import read_config
from plmu.runs.experiment import Config, Experiment
from plmu.runs.folder import is_finished
from plmu.runs.runner import best_model, more_scores
from plmu.training.loop import Trainer
from plmu.training.processes import Processes

OTHER_DATA = ("data.file", "data.labels")  # the options that other data may have


@dataclass
class Evaluation:
    """Scores by name, notes about the data, and the epoch of the model, None on other data."""

    scores: dict[str, float]
    notes: list[str] = field(default_factory=list)
    epoch: int | None = None


def evaluate(
    folder: Path,
    paths: dict[str, Path],
    processes: Processes,
    lookup: Callable[[str], Experiment],
    other_data: bool = False,
) -> Evaluation:
    """Score the model that a run saved; of a run that is not finished, the best model so far.

    Args:
        folder: of the run.
        paths: where the data is now, such as {"data.root": …}, and the run it started from, {"from": …}; by default
            where the run had them.
        processes: this process and the others.
        lookup: returns the experiment of a name.
        other_data: whether to score the model on all of another file, {"data.file": …}, instead of its test data.

    Raises:
        RunError: there is no trained model yet, data is missing, or it is not what the run was trained on.
    """
    experiment, config = read_config(folder, lookup)
    if other_data:
        return _on_other_data(folder, experiment, config, paths)
    sources.locate(folder, config, paths)
    advice = ", or --other-data to score its model on other data" if experiment.own_data else ""
    sources.check_files(folder, config.data, advice)
    config.training.graph = False
    best = best_model(experiment, config, folder)
    if best is None:
        raise RunError(f"{folder} has no trained model yet: `plmu train` continues it")
    epoch, task, network = best
    if is_finished(folder):
        network = experiment.saved_model(folder, config, task, network)
    if task.score is not None and next(network.parameters(), None) is None:  # there is nothing to train
        with torch.no_grad():
            return Evaluation(task.score(network.eval(), task.test), epoch=epoch)
    trainer = Trainer(task, network, config.training, processes, config.seed)
    scores = {**trainer.evaluate(trainer.task.test), **more_scores(experiment, config, trainer)}
    return Evaluation(scores, epoch=epoch)


def _on_other_data(folder: Path, experiment: Experiment, config: Config[Any], paths: dict[str, Path]) -> Evaluation:
    if not is_finished(folder):
        raise RunError(f"{folder} is not finished: `plmu train` continues it")
    fields = {f"data.{name}": name for name in sources.path_fields(config.data)}
    for option in paths:
        if option not in OTHER_DATA or option not in fields:
            raise RunError(f"--other-data scores all of --data.file: leave out --{option.replace('_', '-')}")
    if "data.file" not in paths:
        raise RunError("--other-data needs a file: give it as --data.file")
    config.data = replace(config.data, **{fields[option]: path for option, path in paths.items()})
    scores, notes = experiment.score_other_data(folder, config)
    return Evaluation(scores, notes)
