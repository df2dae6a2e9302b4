"""Scoring the model of a finished run again, from its files alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from plmu.data.files import DataConfig
from plmu.experiments import EXPERIMENTS
from plmu.experiments.run import RunError
from plmu.training.checkpoints import Checkpoints
from plmu.training.loop import Trainer
from plmu.training.processes import Processes
from plmu.training.results import read_json


def evaluate(folder: Path, data: DataConfig, processes: Processes) -> dict[str, float]:
    """The test scores of the best model of the run in this folder."""
    known = folder / "config.json"
    if not known.is_file():
        raise RunError(f"{folder} is not a run: it has no config.json. Runs are folders that `plmu train` writes")
    described = read_json(known)
    experiment = EXPERIMENTS[described["experiment"]]
    config = experiment.defaults(described["model"])
    _fill(config, described["config"])
    config.data = data
    found = Checkpoints(folder / "checkpoints").newest(processes.device)
    if found is None or found["best"] is None:
        raise RunError(f"{folder} has no trained model yet: `plmu train` goes on with it")
    torch.manual_seed(config.seed)
    task = experiment.task(config)
    network = experiment.build(config, task)
    config.training.graph = False
    trainer = Trainer(task, network, config.training, processes, config.seed)
    trainer.model.load_state_dict(found["best"]["model"])
    return trainer.evaluate(trainer.task.test)


def _fill(config: Any, values: dict[str, Any]) -> None:
    """Set the fields of nested dataclasses from their JSON form."""
    for name, value in values.items():
        if isinstance(value, dict):
            _fill(getattr(config, name), value)
        else:
            setattr(config, name, tuple(value) if isinstance(value, list) else value)
