"""SNLI (the paper's section 4.3): does the second sentence follow from the first, contradict it, or neither?

Ours: a Delay Network of order 1 and θ = 25 on word vectors; both states, their distance and their product; and three
outputs: 3,603 parameters besides the embeddings (`plmu` trains the embeddings, `frozen` does not). Baselines: an LSTM
of 220k parameters; and `deep`, with at most as many: a parallel LMU of short windows before the Delay Network and a
hidden layer after it. The first 25 words of a sentence are read.
"""

from __future__ import annotations

from typing import Any, ClassVar

from plmu.experiments.data import snli
from plmu.experiments.text_classification import PairExperiment
from plmu.runs.experiment import Config
from plmu.text.words import TextData


class SNLI(PairExperiment):
    name = "snli"
    paper: ClassVar[dict[str, float]] = {"plmu": 0.7885, "frozen": 0.7885, "lstm": 0.776}
    classes = 3
    labels = ("entailment", "neutral", "contradiction")
    changes: ClassVar[dict[str, dict[str, Any]]] = {
        "plmu": {"learning_rate": 4e-3},
        "frozen": {"epochs": 60, "learning_rate": 3e-3},
    }

    def load(self, config: Config[Any]) -> TextData:
        return snli.load(config.data, config.model.vocabulary)
