"""Classification of texts and pairs of texts, for `imdb`, `qqp` and `snli` (the paper's section 4.3, supervised).

Word vectors enter a Delay Network of order 1 whose window is the longest text, and its final state (equation 25) is
classified; of a pair both states a and b, as [a, b, |a − b|, a · b]. Only the classifier is trained and, by option, the
word vectors. Texts are padded on the right and the layers get their lengths, so that padding changes nothing.

The state is standardised by the mean and variance that it has for training texts in the untrained model.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import plmu
from plmu.experiments.baselines import lstm
from plmu.experiments.data import vectors
from plmu.runs.experiment import Config, Experiment
from plmu.runs.fields import Checked
from plmu.text.symbols import Words
from plmu.text.words import FIRST, TextData
from plmu.training.config import TrainingConfig
from plmu.training.task import Batch, Task

SAMPLE = 2000  # training texts by which states are standardised
RANDOM = 0.1  # standard deviation of embeddings that start at random


@dataclass
class TextModel(Checked):
    """Options of all text models."""

    longest: int = 500
    """Longest text, in words; longer ones are cut."""
    vocabulary: int = 20_000
    """Vocabulary size: the most frequent words of the training texts."""
    embedding: int = 300
    """Size of the word vectors."""
    vectors: str = "auto"
    """Initial embeddings: auto (GloVe 840B if it is there, else the first file in glove/), random, zero, or a file."""
    trained: bool = True
    """Train the embeddings; else they stay frozen."""
    word_dropout: float = 0.0
    """Dropout rate of whole words."""
    dropout: float = 0.0
    """Dropout rate of the classifier's inputs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vectors == "zero" and not self.trained:
            raise ValueError("model.vectors = zero needs model.trained: embeddings that stay zero carry no information")


@dataclass
class PlmuModel(TextModel):
    """A Delay Network and a linear classifier of its final state."""

    order: int = 1
    """Legendre coefficients of each memory channel."""
    theta: float = 500.0
    """Window of the memory, in words."""


@dataclass
class DeepModel(TextModel):
    """A parallel LMU of short windows, a Delay Network over the text, and a classifier with one hidden layer."""

    memory: int = 32
    """Memory channels of the LMU, divided among the windows."""
    order: int = 4
    """Legendre coefficients of each memory channel."""
    thetas: tuple[float, ...] = (4.0, 16.0)
    """Windows of the LMU, in words."""
    hidden: int = 48
    """Outputs of the LMU, the channels of the second memory."""
    pool_order: int = 2
    """Legendre coefficients of the second memory."""
    theta: float = 500.0
    """Window of the second memory, in words."""
    dense: int = 64
    """Hidden units of the classifier."""


@dataclass
class LSTMModel(TextModel):
    """One LSTM layer and a linear classifier of its last output."""

    hidden: int = 37
    """Hidden units."""
    forget_bias: float = 1.0
    """Initial bias of the forget gates."""


@dataclass(kw_only=True)
class TextTask(Task):
    """A task with the words of its token numbers."""

    words: tuple[str, ...]


class TextExperiment(Experiment):
    """Classification of texts or pairs of texts."""

    metric = "accuracy"
    percent = True
    models: tuple[str, ...] = ("plmu", "frozen", "lstm", "deep")
    classes: ClassVar[int]
    keep: ClassVar[Literal["first", "last"]]  # the words that are read of a text longer than model.longest

    @abstractmethod
    def load(self, config: Config[Any]) -> TextData:
        """The texts and their labels."""

    def task(self, config: Config[Any]) -> Task:
        data = self.load(config)
        train, valid, test = (
            data.splits[name].batch(config.model.longest, self.keep) for name in ("train", "valid", "test")
        )
        return TextTask(
            train,
            valid,
            test,
            loss=_loss,
            measure=_measure,
            finish=lambda sums: {"accuracy": float(sums[0] / sums[1])},
            metric=self.metric,
            higher_is_better=True,
            evaluation_batch=1000,
            notes={"data": data.completeness},
            words=tuple(data.words),
        )

    def embedding(self, config: Config[Any], task: TextTask) -> tuple[nn.Embedding, str]:
        """The untrained embeddings, and a description of them for the result."""
        model = config.model
        table = nn.Embedding(len(task.words) + FIRST, model.embedding)
        if model.vectors in ("random", "zero"):
            nn.init.normal_(table.weight, std=RANDOM)
            return table, model.vectors
        pretrained = vectors.load(config.data, task.words, model.embedding, model.vectors)
        table.weight.data = torch.from_numpy(pretrained.matrix)
        return table, pretrained.description

    def build(self, config: Config[Any], task: Task) -> nn.Module:
        assert isinstance(task, TextTask)
        model = config.model
        embedding, description = self.embedding(config, task)
        embedding.requires_grad_(model.trained)
        network = classifier(model, embedding, len(task.train) // 2, 1 if self.classes == 2 else self.classes)
        if not isinstance(model, LSTMModel):
            plmu.standardize(network, _sample(task.train), logits)
        if description == "zero":  # the states keep the scale of random embeddings
            nn.init.zeros_(embedding.weight)
            for module in network.modules():
                if isinstance(module, plmu.Standardize):
                    module.mean.zero_()
        besides = sum(p.numel() for p in network.parameters()) - embedding.weight.numel()
        task.notes |= {
            "vectors": description,
            "embeddings": "trained" if model.trained else "frozen",
            "parameters besides embeddings": besides,
        }
        return network

    def companions(self, task: Task) -> dict[str, str]:
        assert isinstance(task, TextTask)
        return Words(task.words).companions()


class PairExperiment(TextExperiment):
    """Classification of pairs of sentences, of which the first 25 words are read."""

    keep = "first"
    kinds: ClassVar[tuple[type[PlmuModel], type[LSTMModel], type[DeepModel]]] = (PlmuModel, LSTMModel, DeepModel)
    changes: ClassVar[dict[str, dict[str, Any]]]  # of each model's training

    def defaults(self, model: str) -> Config[Any]:
        ours, baseline, deep = self.kinds
        pair: dict[str, Any] = {"longest": 25, "theta": 25.0}
        choices: dict[str, TextModel] = {
            "plmu": ours(**pair),
            "frozen": ours(**pair, trained=False),
            "lstm": baseline(longest=25, hidden=127),
            # with fewer parameters than the LSTM
            "deep": deep(**pair, memory=64, order=3, thetas=(3.0, 8.0), hidden=128, pool_order=2, dense=100),
        }
        return Config(choices[self.check(model)], training(model, **self.changes.get(model, {})))


def classifier(config: TextModel, embedding: nn.Embedding, sides: int, outputs: int) -> nn.Module:
    """The untrained model of a configuration.

    Args:
        config: the options.
        embedding: of the words.
        sides: 1 for single texts, 2 for pairs.
        outputs: number of logits.
    """
    size = embedding.embedding_dim
    words = nn.Dropout1d(config.word_dropout)
    if isinstance(config, LSTMModel):
        encoder: nn.Module = LSTMEncoder(embedding, words, lstm(size, config.hidden, forget_bias=config.forget_bias))
        features = config.hidden
    elif isinstance(config, DeepModel):
        lmu = plmu.ParallelLMU(
            size, config.hidden, order=config.order, theta=list(config.thetas), memory_size=config.memory
        )
        pool = plmu.DelayLayer(config.hidden, order=config.pool_order, theta=config.theta, return_sequences=False)
        encoder = plmu.Sequential(embedding, words, lmu, pool)
        features = pool.output_size
    else:
        assert isinstance(config, PlmuModel)
        encoder = plmu.TokenDelayLayer(
            embedding.num_embeddings, size, order=config.order, theta=config.theta, token_dropout=config.word_dropout
        )
        encoder.embedding = embedding
        features = encoder.output_size
    features *= 1 if sides == 1 else 4
    head: list[nn.Module] = [nn.Dropout(config.dropout)]
    if not isinstance(config, LSTMModel):
        head.insert(0, plmu.Standardize(features))
    if isinstance(config, DeepModel):
        head += [nn.Linear(features, config.dense), nn.ReLU(), nn.Linear(config.dense, outputs)]
    else:
        head += [nn.Linear(features, outputs)]
    if sides == 1 and isinstance(encoder, plmu.nn.Steppable):
        layers = list(encoder.layers) if isinstance(encoder, plmu.Sequential) else [encoder]
        return plmu.Sequential(*layers, *head)
    return TextClassifier(encoder, nn.Sequential(*head))


class TextClassifier(nn.Module):
    """An encoder of texts, and a classifier of one text's features a, or of a pair's [a, b, |a − b|, a · b]."""

    def __init__(self, encoder: nn.Module, head: nn.Sequential) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, *inputs: Tensor) -> Tensor:
        """Tokens (batch, time) and lengths (batch,) of each text to logits (batch, outputs)."""
        tokens, lengths = torch.cat(inputs[0::2]), torch.cat(inputs[1::2])  # all texts in one call
        features: Tensor = self.encoder(tokens, lengths=lengths)[0]
        if len(inputs) > 2:
            a, b = features.chunk(2)
            features = torch.cat([a, b, (a - b).abs(), a * b], dim=1)
        out: Tensor = self.head(features)
        return out


class LSTMEncoder(nn.Module):
    """Word vectors and an LSTM; returns its last output."""

    def __init__(self, embedding: nn.Embedding, words: nn.Dropout1d, layer: nn.LSTM) -> None:
        super().__init__()
        self.embedding, self.words, self.layer = embedding, words, layer

    def forward(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, None]:
        return plmu.nn.last_valid(self.layer(self.words(self.embedding(tokens)))[0], lengths), None


def logits(model: nn.Module, inputs: Batch) -> Tensor:
    """Logits (batch, outputs) of one or two texts: inputs are tokens and lengths of each."""
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    out: Tensor = model(inputs[0], lengths=inputs[1])[0] if isinstance(inner, plmu.Sequential) else model(*inputs)
    return out


def _sample(train: Batch) -> list[Batch]:
    """A fixed random sample of training examples, without labels, in batches."""
    rows = torch.from_numpy(np.random.default_rng(0).permutation(len(train[0]))[:SAMPLE])
    return [tuple(part[batch] for part in train[:-1]) for batch in rows.split(250)]


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    return classification_loss(logits(model, batch[:-1]), batch[-1])


def classification_loss(out: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of logits (batch, classes), or (batch, 1) for two classes."""
    if out.shape[1] == 1:
        return binary_cross_entropy_with_logits(out[:, 0].float(), labels.float())
    return cross_entropy(out.float(), labels)


def _measure(model: nn.Module, batch: Batch) -> Tensor:
    """The number of right answers, and of examples."""
    out = logits(model, batch[:-1])
    chosen = (out[:, 0] > 0).long() if out.shape[1] == 1 else out.argmax(1)
    right = (chosen == batch[-1]).sum()
    return torch.stack([right, torch.full_like(right, batch[-1].shape[0])])


def training(model: str, **changes: Any) -> TrainingConfig:
    """The default training of a model, with changes."""
    defaults: dict[str, dict[str, Any]] = {
        "plmu": {"epochs": 4, "learning_rate": 1e-3},
        "frozen": {"epochs": 30, "learning_rate": 1e-2, "batch_size": 500},
        "lstm": {"epochs": 5, "learning_rate": 1e-3, "clip": 1.0},
        "deep": {"epochs": 5, "learning_rate": 1e-3, "clip": 1.0},
    }
    return TrainingConfig(**{"batch_size": 100, "schedule": "cosine", **defaults[model], **changes})
