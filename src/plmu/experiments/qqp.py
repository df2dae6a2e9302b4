"""QQP (the paper's section 4.3): do two questions ask the same?

Ours: a Delay Network of order 1 and θ = 25 on word vectors; both states, their distance and their product; and one
output: 1,201 parameters besides the embeddings (`plmu` trains the embeddings, `frozen` does not). Baselines: an LSTM of
220k parameters; and `deep`, with at most as many: a parallel LMU of short windows before the Delay Network and a hidden
layer after it. The first 25 words of a question are read. `--model.split` chooses one of the paper's two splits of the
official file, 390k/8k/8k or 280k/80k/40k, both drawn with a fixed seed, or the partition of Wang et al.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from plmu.experiments.data import qqp
from plmu.experiments.text_classification import DeepModel, LSTMModel, PairExperiment, PlmuModel
from plmu.runs.experiment import Config
from plmu.text.words import TextData


@dataclass
class Split:
    """The option `--model.split`, which all models have."""

    split: qqp.Choice = "auto"
    """Data: 390k or 280k (pairs of the official file), partition, or auto (390k if the file is there)."""


@dataclass
class QQPPlmuModel(Split, PlmuModel):
    """A Delay Network and a linear classifier of its final states."""


@dataclass
class QQPDeepModel(Split, DeepModel):
    """A parallel LMU of short windows, a Delay Network over the text, and a classifier with one hidden layer."""


@dataclass
class QQPLSTMModel(Split, LSTMModel):
    """One LSTM layer and a linear classifier of its last outputs."""


class QQP(PairExperiment):
    name = "qqp"
    paper: ClassVar[dict[str, float]] = {"plmu": 0.8695, "frozen": 0.8695, "lstm": 0.8258}  # of the split 390k
    classes = 2
    labels = ("different", "duplicate")
    kinds = (QQPPlmuModel, QQPLSTMModel, QQPDeepModel)
    changes: ClassVar[dict[str, dict[str, Any]]] = {"plmu": {"learning_rate": 4e-3}, "frozen": {"weight_decay": 0.1}}

    def load(self, config: Config[Any]) -> TextData:
        return qqp.load(config.data, config.model.split, config.model.vocabulary)
