"""What the three text experiments share (the paper's section 4.3, supervised): models, loss and score.

Word vectors enter a Delay Network of order 1 whose window is the longest text, and its final state (equation 25) is
classified; of a pair both states a and b, as [a, b, |a − b|, a · b]. Nothing else is learned but, if asked, the word
vectors. Texts are padded on the right and the layers are told their lengths, so that padding changes nothing.

The state is standardised by what the untrained model makes of training texts, which is a reparametrisation of the
layer after it and no parameter. While word vectors stay frozen the state is a fixed function of a text: it is computed
once for all texts, and the last layer alone is trained.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, dropout, embedding_bag

import plmu
from plmu.data import vectors
from plmu.data.text import FIRST, TextData
from plmu.experiments.base import Config, Experiment
from plmu.experiments.baselines import lstm
from plmu.experiments.fields import Checked
from plmu.nn.steppable import Steppable, last_valid
from plmu.training.config import TrainingConfig
from plmu.training.task import Batch, Task

VOCABULARY_FILE = "vocabulary.txt"
SAMPLE = 2000  # training texts by which states are standardised
# Of pairs of sentences: how much is read, and a stack of ours with fewer parameters than the LSTM.
PAIR: dict[str, Any] = {"longest": 25, "theta": 25.0}
PAIR_DEEP: dict[str, Any] = {
    "memory": 64,
    "order": 3,
    "thetas": (3.0, 8.0),
    "hidden": 128,
    "pool_order": 2,
    "dense": 100,
}
RANDOM = 0.1  # standard deviation of embeddings that start at random


@dataclass
class TextModel(Checked):
    """What all text models have."""

    longest: int = 500
    """Longest text, in words; longer ones are cut."""
    vocabulary: int = 20_000
    """Vocabulary size: the most frequent words of the training texts."""
    embedding: int = 300
    """Size of the word vectors."""
    vectors: str = "auto"
    """Where embeddings start: auto (GloVe 840B if it is there, else the first file in glove/), random, zero, or a
    file."""
    trained: bool = True
    """Whether embeddings are trained; else they stay frozen."""
    word_dropout: float = 0.0
    """Dropout rate of whole words. No effect where the states are computed once."""
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
    """Legendre coefficients of each of them."""
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


@dataclass
class TextTask(Task):
    """A task that knows the words of its token numbers."""

    words: tuple[str, ...] = ()


class TextExperiment(Experiment):
    """Classification of texts or pairs of texts."""

    metric = "accuracy"
    percent = True
    models = ("plmu", "frozen", "lstm", "deep")
    classes: ClassVar[int]
    keep: ClassVar[Literal["first", "last"]]  # which words of a longer text are read

    @abstractmethod
    def load(self, config: Config[Any]) -> TextData:
        """The source."""

    def task(self, config: Config[Any]) -> Task:
        data = self.load(config)
        batches = {name: split.batch(config.model.longest, self.keep) for name, split in data.splits.items()}
        return TextTask(
            **batches,
            loss=_loss,
            measure=_measure,
            finish=lambda sums: {"accuracy": float(sums[0] / sums[1])},
            metric=self.metric,
            higher_is_better=True,
            evaluation_batch=1000,
            notes={"data": data.completeness},
            words=tuple(data.words),
        )

    def build(self, config: Config[Any], task: Task) -> nn.Module:
        assert isinstance(task, TextTask)
        model = config.model
        embedding = nn.Embedding(len(task.words) + FIRST, model.embedding)
        if model.vectors in ("random", "zero"):
            nn.init.normal_(embedding.weight, std=RANDOM)
            description = model.vectors
        else:
            found = vectors.load(config.data, task.words, model.embedding, model.vectors)
            embedding.weight.data = torch.from_numpy(found.matrix)
            description = found.description
        embedding.requires_grad_(model.trained)
        sides = len(task.train) // 2
        network = classifier(model, embedding, sides, 1 if self.classes == 2 else self.classes)
        if not isinstance(model, LSTMModel):
            network.standardise(task.train[:-1])
        if model.vectors == "zero":  # with states of the same scale
            nn.init.zeros_(embedding.weight)
            network.mean.zero_()
        if network.fixed:
            for name in ("train", "valid", "test"):
                split = getattr(task, name)
                setattr(task, name, (*network.states(split[:-1]), split[-1]))
        besides = sum(p.numel() for p in network.parameters()) - embedding.weight.numel()
        task.notes |= {
            "vectors": description,
            "embeddings": "trained" if model.trained else "frozen",
            "parameters besides embeddings": besides,
        }
        return network

    def deployable(self, model: nn.Module) -> Steppable | None:
        return model.plain() if isinstance(model, TextClassifier) else None

    def companions(self, task: Task) -> dict[str, str]:
        assert isinstance(task, TextTask)
        return {VOCABULARY_FILE: "".join(f"{word}\n" for word in task.words)}


def classifier(config: TextModel, embedding: nn.Embedding, sides: int, outputs: int) -> TextClassifier:
    """The untrained model of a configuration."""
    encoder: nn.Module
    size = embedding.embedding_dim
    if isinstance(config, PlmuModel):
        encoder = plmu.DelayLayer(size, order=config.order, theta=config.theta, return_sequences=False)
        features = encoder.output_size
    elif isinstance(config, DeepModel):
        encoder = plmu.Sequential(
            plmu.ParallelLMU(
                size, config.hidden, order=config.order, theta=list(config.thetas), memory_size=config.memory
            ),
            plmu.DelayLayer(config.hidden, order=config.pool_order, theta=config.theta, return_sequences=False),
        )
        features = config.pool_order * config.hidden
    else:
        assert isinstance(config, LSTMModel)
        encoder = lstm(size, config.hidden, forget_bias=config.forget_bias)
        features = config.hidden
    features *= 1 if sides == 1 else 4
    head = nn.Sequential(nn.Linear(features, outputs))
    if isinstance(config, DeepModel):
        head = nn.Sequential(nn.Linear(features, config.dense), nn.ReLU(), nn.Linear(config.dense, outputs))
    return TextClassifier(embedding, encoder, head, sides, config.longest, config.word_dropout, config.dropout)


class TextClassifier(nn.Module):
    """Embedding, encoder and classifier of one text or two.

    Called with tokens and lengths of each text, or with the states that `states` made of them.
    """

    mean: Tensor
    std: Tensor
    _response: Tensor | None

    def __init__(
        self,
        embedding: nn.Embedding,
        encoder: nn.Module,
        head: nn.Sequential,
        sides: int,
        longest: int,
        word_dropout: float = 0.0,
        dropped: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding, self.encoder, self.head, self.sides = embedding, encoder, head, sides
        self.word_dropout, self.dropout = word_dropout, dropped
        features = _first(head).in_features
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("std", torch.ones(features))
        response = None
        if isinstance(encoder, plmu.DelayLayer):
            order, theta = encoder.config["order"], encoder.config["theta"]
            response = plmu.DelayNetwork(order, theta).discretize(dt=1.0).impulse_response(longest).float()
        self.register_buffer("_response", response, persistent=False)  # (order, time)

    @property
    def fixed(self) -> bool:
        """Whether nothing before the classifier is trained."""
        return not any(p.requires_grad for part in (self.embedding, self.encoder) for p in part.parameters())

    def forward(self, *inputs: Tensor) -> Tensor:
        z = (self._features(inputs) - self.mean) / self.std
        logits: Tensor = self.head(dropout(z, self.dropout, self.training))
        return logits

    def encode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Tokens (batch, time) to the state at each text's own end (batch, features)."""
        if self._response is not None:
            return self._sums(tokens, lengths)
        x = self.embedding(tokens)
        if self.training and self.word_dropout:
            x = x * self._kept(tokens, x.dtype)[:, :, None]
        out: Tensor
        if isinstance(self.encoder, Steppable):
            out = self.encoder(x, None, lengths)[0]
        else:
            out = last_valid(self.encoder(x)[0], lengths)
        return out

    def _sums(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Equation 25 straight from the table of embeddings: for each order a sum of a text's rows, weighted by the
        impulse response at their distance from its end. The same as embedding and encoder, but the embedded text
        (batch, time, channels), by far the largest tensor of the model, is never made."""
        assert self._response is not None
        age = lengths[:, None] - 1 - torch.arange(tokens.shape[1], device=tokens.device)
        weights = torch.where(age >= 0, self._response[:, age.clamp(min=0)], 0.0)  # (order, batch, time)
        table = self.embedding.weight
        if self.training and self.word_dropout:
            weights = weights * self._kept(tokens, weights.dtype)
        sums = [embedding_bag(tokens, table, mode="sum", per_sample_weights=one.to(table.dtype)) for one in weights]
        return torch.cat(sums, dim=1)

    def _kept(self, tokens: Tensor, dtype: torch.dtype) -> Tensor:
        """Zero for the words that are dropped, and more than one for the others."""
        return dropout(torch.ones(tokens.shape, dtype=dtype, device=tokens.device), self.word_dropout)

    @torch.no_grad()
    def states(self, inputs: Batch) -> tuple[Tensor, ...]:
        """The state of each text of tokens and lengths, for all examples: short texts together."""
        training = self.training
        self.eval()
        out = []
        for tokens, lengths in zip(inputs[0::2], inputs[1::2], strict=True):
            made = None
            order = lengths.argsort(stable=True)
            for rows in order.split(500):
                longest = max(1, int(lengths[rows].max()))
                part = self.encode(tokens[rows, :longest], lengths[rows])
                made = part.new_empty(len(order), part.shape[1]) if made is None else made
                made[rows] = part
            assert made is not None
            out.append(made)
        self.train(training)
        return tuple(out)

    @torch.no_grad()
    def standardise(self, inputs: Batch) -> None:
        """Set mean and std from some examples, the same ones each time."""
        rows = np.random.default_rng(0).permutation(len(inputs[0]))[:SAMPLE]
        features = self._features(self.states(tuple(part[torch.from_numpy(rows)] for part in inputs)))
        std = features.std(0, unbiased=False)
        self.mean.copy_(features.mean(0))
        self.std.copy_(torch.where(std > 1e-6 * std.max(), std, 1.0))

    def plain(self) -> Steppable | None:
        """The same function of one text in ordinary layers, the standardisation multiplied into the first of the head;
        None for pairs and the LSTM, which have no such form."""
        if self.sides != 1 or not isinstance(self.encoder, Steppable):
            return None
        first = _first(self.head)
        folded = nn.Linear(first.in_features, first.out_features)
        with torch.no_grad():
            folded.weight.copy_(first.weight / self.std)
            folded.bias.copy_(first.bias - folded.weight @ self.mean)
        before = self.encoder.layers if isinstance(self.encoder, plmu.Sequential) else [self.encoder]
        return plmu.Sequential(self.embedding, *before, folded, *list(self.head)[1:])

    def _features(self, inputs: Batch) -> Tensor:
        if not inputs[0].is_floating_point():
            if self.sides == 1:
                inputs = (self.encode(*inputs),)
            else:  # both texts in one call
                tokens, lengths = torch.cat(inputs[0::2]), torch.cat(inputs[1::2])
                inputs = self.encode(tokens, lengths).chunk(2)
        if self.sides == 1:
            return inputs[0]
        a, b = inputs
        return torch.cat([a, b, (a - b).abs(), a * b], dim=1)


def _first(head: nn.Sequential) -> nn.Linear:
    first = head[0]
    assert isinstance(first, nn.Linear)
    return first


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(*batch[:-1]).float()
    if logits.shape[1] == 1:
        return binary_cross_entropy_with_logits(logits[:, 0], batch[-1].float())
    return cross_entropy(logits, batch[-1])


def _measure(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(*batch[:-1])
    chosen = (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)
    right = (chosen == batch[-1]).sum()
    return torch.stack([right, torch.full_like(right, batch[-1].shape[0])])


def training(model: str, **changes: Any) -> TrainingConfig:
    """How each model is trained where the experiment says nothing else; the frozen one sees its states alone."""
    usual: dict[str, dict[str, Any]] = {
        "plmu": {"epochs": 4, "learning_rate": 1e-3},
        "frozen": {"epochs": 30, "learning_rate": 1e-2, "batch_size": 500},
        "lstm": {"epochs": 5, "learning_rate": 1e-3, "clip": 1.0},
        "deep": {"epochs": 5, "learning_rate": 1e-3, "clip": 1.0},
    }
    return TrainingConfig(**{"batch_size": 100, "schedule": "cosine", **usual[model], **changes})
