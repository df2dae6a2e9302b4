"""The experiments of `plmu train`: a phrase on each, and where its class is; `lookup` imports it."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from plmu.runs.experiment import Experiment


class Entry(NamedTuple):
    about: str
    target: str  # "module:Class"
    file: str = ""  # what file the user must give


OWN_DATA = {
    "forecast": Entry(
        "the next steps of a table of your own, fitted in seconds",
        "plmu.timeseries.forecast_experiment:Forecast",
        "a table with a row for each time and columns of numbers, as CSV, Parquet, NumPy, JSON or Excel",
    ),
    "classify": Entry(
        "the class of labelled series of your own",
        "plmu.timeseries.classify_experiment:Classify",
        "labelled series, as a table, .npz, .ts or .arff file, or a folder with a sub-folder for each class",
    ),
    "anomalies": Entry(
        "what is unusual in a table of your own, without labels",
        "plmu.timeseries.anomaly_experiment:Anomalies",
        "a table with a row for each time and columns of numbers, as CSV, Parquet, NumPy, JSON or Excel",
    ),
}
PAPER = {
    "mackey-glass": Entry("a chaotic series, 15 steps ahead", "plmu.experiments.mackey_glass:MackeyGlass"),
    "psmnist": Entry("digits, read pixel by pixel in a random order", "plmu.experiments.psmnist:PermutedMNIST"),
    "addition": Entry("the sum of the two marked numbers of a sequence", "plmu.experiments.addition:Addition"),
    "imdb": Entry("whether a film review is positive", "plmu.experiments.imdb:IMDB"),
    "qqp": Entry("whether two questions ask the same", "plmu.experiments.qqp:QQP"),
    "snli": Entry("whether one sentence follows from another", "plmu.experiments.snli:SNLI"),
    "text8": Entry("a language model of characters; takes a text of your own", "plmu.experiments.text8:Text8"),
    "reviews": Entry("a language model of film reviews, from which imdb can start", "plmu.experiments.reviews:Reviews"),
    "iwslt": Entry("translation, English to Vietnamese; takes sentences of your own", "plmu.experiments.iwslt:IWSLT"),
}
CATALOGUE = {**OWN_DATA, **PAPER}


@functools.cache
def lookup(name: str) -> Experiment:
    """The experiment of this name.

    Raises:
        KeyError: there is no experiment of this name.
    """
    module, _, class_name = CATALOGUE[name].target.partition(":")
    result: Experiment = getattr(import_module(module), class_name)()
    return result
