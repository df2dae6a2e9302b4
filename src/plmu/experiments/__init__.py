"""The paper's experiments, and those on data of one's own: configuration, data, model, baselines and score."""

from plmu.experiments.addition import Addition
from plmu.experiments.imdb import IMDB
from plmu.experiments.iwslt import IWSLT
from plmu.experiments.mackey_glass import MackeyGlass
from plmu.experiments.psmnist import PermutedMNIST
from plmu.experiments.qqp import QQP
from plmu.experiments.reviews import Reviews
from plmu.experiments.snli import SNLI
from plmu.experiments.text8 import Text8
from plmu.runs.experiment import Config, Experiment
from plmu.timeseries.classify_experiment import Classify
from plmu.timeseries.forecast_experiment import Forecast

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        *(MackeyGlass(), PermutedMNIST(), Addition(), IMDB(), QQP(), SNLI(), Text8(), Reviews(), IWSLT()),
        Forecast(),
        Classify(),
    )
}

__all__ = ["EXPERIMENTS", "Config", "Experiment"]
