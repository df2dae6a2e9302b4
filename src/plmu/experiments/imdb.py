"""IMDB (the paper's section 4.3): is a film review positive? The last 500 words of a review are read.

Ours: a Delay Network of order 1 and θ = 500 on word vectors, and one output: 301 parameters besides the embeddings
(`plmu` trains the embeddings, `frozen` does not). Baselines: an LSTM of 50k parameters; and `deep`, with at most as
many: a parallel LMU of short windows before the Delay Network and a hidden layer after it. The paper does not say
whether its embeddings were trained, for how long, or how. Here trained ones start at random (`--model.vectors auto`
starts them from word vectors). The model is linear before the output: a review's score is a weighted sum over its
words, in which later words count more. It overfits easily; a low learning rate, few epochs and dropped words help more
than weight decay. Settings were chosen on reviews of films that are not in the training data.

`--from RUN` starts from a language model of `plmu train reviews`. `pretrained` fine-tunes its blocks, and
`pretrained-paper` does so with Adam's defaults; `scratch` is the same model without pre-training. The other models
start from its embeddings and take its vocabulary.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from plmu.experiments import imdb_pretrained, pretrained
from plmu.experiments.data import imdb
from plmu.experiments.imdb_pretrained import ClassifierModel
from plmu.experiments.text_classification import (
    RANDOM,
    DeepModel,
    LSTMModel,
    PlmuModel,
    TextExperiment,
    TextTask,
    training,
)
from plmu.runs.experiment import Config
from plmu.text.symbols import SEPARATOR
from plmu.text.words import FIRST, VOCABULARY, TextData
from plmu.training.task import Task


class IMDB(TextExperiment):
    name = "imdb"
    paper: ClassVar[dict[str, float]] = {
        "plmu": 0.8910, "frozen": 0.8910, "lstm": 0.8729, "pretrained": 0.9320, "pretrained-paper": 0.9320,
    }  # fmt: skip
    models = (*TextExperiment.models, "pretrained", "pretrained-paper", "scratch")
    streamable = ("plmu", "frozen", "deep", "pretrained", "pretrained-paper", "scratch")
    starts = ("reviews",)
    classes = 2
    labels = ("negative", "positive")
    keep = "last"

    def default_model(self, started: bool) -> str:
        return "pretrained" if started else self.models[0]

    def first_tokens(self, model: str) -> tuple[int, ...]:
        """A language model reads a separator before each text."""
        return (SEPARATOR,) if model in imdb_pretrained.models() else ()

    def check_start(self, model: str, started: bool) -> None:
        super().check_start(model, started)
        if model.startswith("pretrained") and not started:
            raise ValueError(
                f"{model} needs --from RUN, a run of {self.starts[0]}: without pre-training, take --model scratch"
            )
        if model == "scratch" and started:
            raise ValueError("scratch is the model without pre-training: leave out --from, or take --model pretrained")

    def defaults(self, model: str) -> Config[Any]:
        self.check(model)
        if model in (classifiers := imdb_pretrained.models()):
            return Config(*classifiers[model])
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
        return Config(choices[model], training(model, **changes.get(model, {})))

    def load(self, config: Config[Any]) -> TextData:
        words = None
        if config.start is not None:
            words = imdb_pretrained.words_of(pretrained.read(config.start, self.starts))
        return imdb.load(config.data, getattr(config.model, "vocabulary", VOCABULARY), words)

    def task(self, config: Config[Any]) -> Task:
        task = super().task(config)
        if isinstance(config.model, ClassifierModel):
            task.train, task.valid, task.test = map(imdb_pretrained.begin_reviews, (task.train, task.valid, task.test))
            task.lengths = lambda batch: (batch[1], None, None)
            task.groups = imdb_pretrained.groups(config.model)
            task.evaluation_batch = 250
            if config.model.adversarial:
                size = config.model.adversarial
                task.loss = lambda model, batch: imdb_pretrained.adversarial_loss(model, batch, size)
        return task

    def embedding(self, config: Config[Any], task: TextTask) -> tuple[nn.Embedding, str]:
        if config.start is None:
            return super().embedding(config, task)
        start = pretrained.read(config.start, self.starts)
        table = start.embedding.weight.detach()
        task.notes |= start.notes
        # To the scale of random embeddings, so that the same learning rate suits.
        scaled = table * (RANDOM / table.std())
        return nn.Embedding.from_pretrained(scaled, freeze=False), f"of {start.name}, {table.shape[1]} numbers each"

    def build(self, config: Config[Any], task: Task) -> nn.Module:
        model = config.model
        if not isinstance(model, ClassifierModel):
            return super().build(config, task)
        assert isinstance(task, TextTask)
        start = None if config.start is None else pretrained.read(config.start, self.starts)
        return imdb_pretrained.build(model, start, len(task.words) + FIRST, task)
