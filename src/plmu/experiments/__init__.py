"""The paper's experiments, one module each: configuration, data, model, rivals and score."""

from plmu.experiments.addition import Addition
from plmu.experiments.base import Config, Experiment
from plmu.experiments.mackey_glass import MackeyGlass
from plmu.experiments.psmnist import PermutedMNIST

EXPERIMENTS: dict[str, Experiment] = {one.name: one for one in (MackeyGlass(), PermutedMNIST(), Addition())}

__all__ = ["EXPERIMENTS", "Config", "Experiment"]
