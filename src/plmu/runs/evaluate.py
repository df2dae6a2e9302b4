"""Scoring the best model of a run again, from its files alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from plmu.errors import RunError
from plmu.runs import sources
from plmu.runs.configuration import read_config
from plmu.runs.experiment import Experiment
from plmu.runs.runner import best_model, more_scores
from plmu.training.loop import Trainer
from plmu.training.processes import Processes


def evaluate(
    folder: Path, paths: dict[str, Path], processes: Processes, lookup: Callable[[str], Experiment]
) -> tuple[int, dict[str, float]]:
    """Score the best model of a run on its test data.

    Args:
        folder: of the run.
        paths: where the data is now, such as {"data.root": …}, and the run it started from, {"from": …}; by default
            where the run had them.
        processes: this process and the others.
        lookup: returns the experiment of a name.

    Returns:
        The epoch of the best model, and its test scores.

    Raises:
        RunError: there is no trained model yet, or data is missing or has changed.
    """
    experiment, config = read_config(folder, lookup)
    sources.locate(folder, config, paths)
    config.training.graph = False
    best = best_model(experiment, config, folder)
    if best is None:
        raise RunError(f"{folder} has no trained model yet: `plmu train` continues it")
    epoch, task, network = best
    trainer = Trainer(task, network, config.training, processes, config.seed)
    return epoch, {**trainer.evaluate(trainer.task.test), **more_scores(experiment, config, trainer)}
