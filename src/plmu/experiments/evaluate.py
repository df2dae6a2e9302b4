"""Scoring the best model of a run again, from its files alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from plmu.data.files import DataConfig
from plmu.experiments import EXPERIMENTS, Config, Experiment
from plmu.experiments.run import more_scores
from plmu.training.checkpoints import Checkpoints
from plmu.training.errors import RunError
from plmu.training.loop import Trainer
from plmu.training.processes import Processes
from plmu.training.results import read_json


def evaluate(folder: Path, data: DataConfig, processes: Processes) -> tuple[int, dict[str, float]]:
    """Which epoch the best model of the run in this folder is of, and its test scores."""
    experiment, config = _described(folder)
    config.data = data
    best = Checkpoints(folder / "checkpoints").best(processes.device)
    if best is None:
        raise RunError(f"{folder} has no trained model yet: `plmu train` goes on with it")
    torch.manual_seed(config.seed)
    task = experiment.task(config)
    network = experiment.build(config, task)
    config.training.graph = False
    trainer = Trainer(task, network, config.training, processes, config.seed)
    try:
        trainer.model.load_state_dict(best["model"])
    except RuntimeError as error:
        raise RunError(f"{folder}: its config.json is not of its checkpoints: {' '.join(str(error).split())}") from None
    scores = {**trainer.evaluate(trainer.task.test), **more_scores(experiment, config, trainer)}
    return best["epoch"], scores


def _described(folder: Path) -> tuple[Experiment, Config[Any]]:
    """What the run's config.json says."""
    known = folder / "config.json"
    if not known.is_file():
        raise RunError(f"{folder} is not a run: it has no config.json. Runs are folders that `plmu train` writes")
    try:
        described = read_json(known)
        experiment = EXPERIMENTS[described["experiment"]]
        config = experiment.defaults(described["model"])
        _fill(config, described["config"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunError(f"{known} is damaged or not of this version: it is not what `plmu train` writes") from None
    return experiment, config


def _fill(config: Any, values: dict[str, Any]) -> None:
    """Set the fields of nested dataclasses from their JSON form."""
    for name, value in values.items():
        known = getattr(config, name)
        if isinstance(value, dict):
            _fill(known, value)
        else:
            setattr(config, name, tuple(value) if isinstance(value, list) else value)
