"""A word-level language model of reviews for pre-training (the paper's section 4.3, semi-supervised).

Five of the paper's blocks with windows of 6 words and order 4, a vocabulary of 30,000 words, at most 34 million
parameters. It is trained on Amazon's reviews (`--data.corpus amazon`), on IMDB's unlabelled ones (imdb), or on both.
`--from RUN` continues another run of `reviews`: the model must be the same, and the vocabulary is that run's.
`plmu train imdb --from RUN` then trains a classifier that starts from it. The score is the perplexity over the whole
split, with the state carried.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from plmu.errors import RunError
from plmu.experiments import pretrained
from plmu.experiments.data import reviews
from plmu.experiments.data.reviews import ReviewsConfig
from plmu.experiments.language import LanguageExperiment, LSTMModel, PlmuModel, language_task, training
from plmu.experiments.pretrained import Pretrained
from plmu.runs.experiment import Config
from plmu.text.symbols import Words
from plmu.training.task import Task


@dataclass
class WordModel(PlmuModel):
    """The paper's blocks, for words."""

    width: int = 576
    blocks: int = 5
    order: int = 4
    theta: float = 6.0
    highways: int = 2
    dropout: float = 0.1
    tied: bool = True
    length: int = 256
    vocabulary: int = 30_000
    """Vocabulary size: the most frequent words of the training texts."""


@dataclass
class WordLSTM(LSTMModel):
    """LSTM layers, for words."""

    embedding: int = 400
    hidden: int = 400
    layers: int = 2
    length: int = 256
    vocabulary: int = 30_000
    """Vocabulary size: the most frequent words of the training texts."""


class Reviews(LanguageExperiment):
    name = "reviews"
    metric = "perplexity"
    paper: ClassVar[dict[str, float]] = {}
    models = ("plmu", "lstm")
    streamable = ("plmu",)
    starts = ("reviews",)

    def check_start(self, model: str, started: bool) -> None:
        super().check_start(model, started)
        if started and model not in self.streamable:
            raise ValueError(f"{model} cannot start from another run: leave out --from, or take --model plmu")

    def defaults(self, model: str) -> Config[Any]:
        options = {"plmu": WordModel(), "lstm": WordLSTM()}[self.check(model)]
        return Config(options, training(epochs=3, batch_size=128, learning_rate=2e-3), ReviewsConfig())

    def task(self, config: Config[Any]) -> Task:
        assert isinstance(config.data, ReviewsConfig)
        words, notes = None, {}
        if config.start is not None:
            start = pretrained.read(config.start, self.starts)
            assert isinstance(start.symbols, Words)
            words, notes = start.symbols.words, start.notes
        data = reviews.load(config.data, config.model.vocabulary, words)
        return language_task(
            data.splits, Words(data.words), config.model.length, {"data": data.completeness, **notes}, self.metric
        )

    def build(self, config: Config[Any], task: Task) -> nn.Module:
        network = super().build(config, task)
        if config.start is not None:
            start = pretrained.read(config.start, self.starts)
            _check_same_model(start, config.model)
            try:
                network.load_state_dict(start.model.state_dict())
            except RuntimeError as error:
                raise RunError(f"--from {start.name} has another model: {' '.join(str(error).split())}") from None
        return network


def _check_same_model(start: Pretrained, model: WordModel) -> None:
    """Raise RunError unless a run to start from has a model of these options, but for dropout and sequence length."""
    free = ("dropout", "length")
    fixed = {name: value for name, value in vars(model).items() if name not in free}
    differing = {name: start.options[name] for name in fixed if start.options.get(name, fixed[name]) != fixed[name]}
    if differing:
        options = ", ".join(f"model.{name} = {value}" for name, value in differing.items())
        raise RunError(f"--from {start.name} has a model of other options: set {options}")
