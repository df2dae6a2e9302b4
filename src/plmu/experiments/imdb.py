"""IMDB (the paper's section 4.3): is a film review positive? From its last 500 words.

Ours: a Delay Network of order 1 and θ = 500 on word vectors, and one output: 301 parameters besides the embeddings
(`plmu`, embeddings trained; `frozen`, as they come). Rivals: an LSTM of 50k parameters, and `deep`, of no more: a
parallel LMU of short windows before the Delay Network and a hidden layer after it. The paper does not say whether its
embeddings were trained, for how long, or how. Here trained ones start at random (`--model.vectors auto` starts them
from word vectors), with half of the words dropped in training and a strong decay of weights. A seeded tenth of the
training reviews validates; it shares films with the rest, so its score is higher than that of the test.
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
    classes = 2
    keep = "last"

    def defaults(self, model: str) -> Config[Any]:
        choices: dict[str, Any] = {
            "plmu": PlmuModel(vectors="random"),
            "frozen": PlmuModel(trained=False),
            "lstm": LSTMModel(),
            "deep": DeepModel(),
        }
        changes = {"epochs": 2, "learning_rate": 3e-3} if model == "plmu" else {}
        return Config(choices[self.check(model)], training(self.check(model), **changes))

    def load(self, config: Config[Any]) -> TextData:
        return imdb.load(config.data, config.model.vocabulary)
