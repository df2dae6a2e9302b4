"""Scoring the best model of a run again, from its files alone."""

from __future__ import annotations

from pathlib import Path

from plmu.errors import RunError
from plmu.experiments import EXPERIMENTS
from plmu.runs import sources
from plmu.runs.configuration import read_config
from plmu.runs.runner import best_model, more_scores
from plmu.training.loop import Trainer
from plmu.training.processes import Processes


def evaluate(folder: Path, paths: dict[str, Path], processes: Processes) -> tuple[int, dict[str, float]]:
    """Which epoch the best model of the run in this folder is of, and its test scores.

    `paths` says where the data is, such as {"data.root": …}, and the run it started from, {"from": …}; without them
    they are where the run had them.
    """
    experiment, config = read_config(folder, EXPERIMENTS.__getitem__)
    sources.locate(folder, config, paths)
    config.training.graph = False
    found = best_model(experiment, config, folder)
    if found is None:
        raise RunError(f"{folder} has no trained model yet: `plmu train` continues it")
    epoch, task, network = found
    trainer = Trainer(task, network, config.training, processes, config.seed)
    return epoch, {**trainer.evaluate(trainer.task.test), **more_scores(experiment, config, trainer)}
