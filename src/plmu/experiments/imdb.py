"""IMDB (the paper's section 4.3): is a film review positive? From its last 500 words.

Ours: a Delay Network of order 1 and θ = 500 on word vectors, and one output: 301 parameters besides the embeddings
(`plmu`, embeddings trained; `frozen`, as they come). Baselines: an LSTM of 50k parameters, and `deep`, of no more: a
parallel LMU of short windows before the Delay Network and a hidden layer after it. The paper does not say whether its
embeddings were trained, for how long, or how. Here trained ones start at random (`--model.vectors auto` starts them
from word vectors). Nothing nonlinear comes before the output, so a review's score is a sum over its words, each by its
own weight, later words more: what is left to choose is how little to fit. A low learning rate, few epochs and dropped
words do it better than a decay of weights. Settings were chosen on reviews of films that are not trained on.
"""

from __future__ import annotations

from typing import Any, ClassVar

from plmu.data import imdb
from plmu.data.text import TextData
from plmu.experiments.base import Config
from plmu.experiments.text_models import DeepModel, LSTMModel, PlmuModel, TextExperiment, training


class IMDB(TextExperiment):
    name = "imdb"
    paper: ClassVar[dict[str, float]] = {"plmu": 0.8910, "frozen": 0.8910, "lstm": 0.8729}
    streamable = ("plmu", "frozen", "deep")
    classes = 2
    keep = "last"

    def defaults(self, model: str) -> Config[Any]:
        choices: dict[str, Any] = {
            "plmu": PlmuModel(vectors="random", word_dropout=0.3),
            "frozen": PlmuModel(trained=False),
            "lstm": LSTMModel(dropout=0.3),
            "deep": DeepModel(word_dropout=0.3),
        }
        changes: dict[str, dict[str, Any]] = {
            "plmu": {"epochs": 8, "learning_rate": 3e-4},
            "frozen": {"epochs": 60},
            "lstm": {"learning_rate": 2e-3},
        }
        return Config(choices[self.check(model)], training(model, **changes.get(model, {})))

    def load(self, config: Config[Any]) -> TextData:
        return imdb.load(config.data, config.model.vocabulary)
