"""Classifiers of reviews on top of a language model: fine-tuned from a run of `reviews`, or trained from scratch.

First come the embeddings and blocks of the language model. A learned weighted sum of all their outputs (deep
representations), or the output of the top block alone, goes through the language model's last norm, then a Delay
Network over the whole review, whose final state is standardised, and a linear classifier. As in pre-training, a review
begins with token 0.

Gradual unfreezing, and lower learning rates for lower blocks, preserve what pre-training has learned. The settings of
`pretrained` were chosen on validation reviews, and it is then trained on those too. To choose other settings, leave
them out with --training.no-refit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import plmu
from plmu.errors import RunError
from plmu.experiments import language
from plmu.experiments.pretrained import Pretrained
from plmu.experiments.reviews import WordModel
from plmu.experiments.text_classification import classification_loss, logits
from plmu.nn import Steppable
from plmu.runs.fields import Checked
from plmu.text.symbols import SEPARATOR, Words
from plmu.training.config import TrainingConfig
from plmu.training.task import Batch, Group, Task

SAMPLE = 250  # training reviews by which states are standardised
AT_ONCE = 25  # reviews in a batch of these


@dataclass
class ClassifierModel(Checked):
    """The blocks of a language model, pooling over time, and a classifier."""

    longest: int = 800
    """Words of a review that are read: the last ones."""
    deep: bool = True
    """Classify a learned weighted sum of the embeddings and all blocks' outputs; else the top block's output alone."""
    pool_order: int = 2
    """Legendre coefficients of the memory over the review."""
    theta: float = 800.0
    """Window of the memory over the review, in words."""
    units: int = 0
    """Hidden units of the classifier; 0 for none."""
    word_dropout: float = 0.3
    """Dropout rate of whole words."""
    dropout: float = 0.5
    """Dropout rate of the classifier's inputs."""
    adversarial: float = 0.0
    """Adversarial training: size of the change to a review's embeddings, in their standard deviations; 0 for none."""


@dataclass
class PretrainedModel(ClassifierModel):
    """The blocks of a trained language model, pooling over time, and a classifier."""

    layer_rate: float = 0.5
    """Learning rate of each block, as a fraction of that of the one above it."""
    unfreezing: float = 0.3
    """Epochs between the start of training of a block and that of the block below it; 0: all start at once."""


@dataclass
class ScratchModel(ClassifierModel):
    """The classifier without pre-training: random initial weights, and the vocabulary of the labelled reviews."""

    vocabulary: int = 30_000
    """Vocabulary size: the most frequent words of the training texts."""
    width: int = 576
    """Features of each word and block."""
    blocks: int = 5
    """Blocks in a row."""


def models() -> dict[str, tuple[ClassifierModel, TrainingConfig]]:
    """The models by name, each with how it is trained."""
    return {
        "pretrained": (PretrainedModel(), _training(refit=True)),
        "pretrained-paper": (
            PretrainedModel(longest=500, theta=500.0, word_dropout=0.1, dropout=0.3, layer_rate=1.0, unfreezing=0.0),
            TrainingConfig(epochs=4, batch_size=64, precision="auto"),  # Adam's defaults, all at once
        ),
        "scratch": (ScratchModel(), _training()),
    }


def _training(refit: bool = False) -> TrainingConfig:
    return TrainingConfig(
        refit=refit,
        epochs=6,
        batch_tokens=16_384,
        learning_rate=1e-3,
        weight_decay=0.05,
        schedule="cosine",
        warmup=0.1,
        clip=1.0,
        average=0.998,
        precision="auto",
    )


def begin_reviews(batch: Batch) -> Batch:
    """Tokens, lengths and labels with a separator before each review."""
    tokens, lengths, labels = batch
    return torch.nn.functional.pad(tokens, (1, 0), value=SEPARATOR), lengths + 1, labels


def words_of(start: Pretrained) -> tuple[str, ...]:
    """The vocabulary of a language model."""
    if not isinstance(start.symbols, Words):
        raise RunError(f"--from {start.name} is a model of {start.symbols.kind}: it must be one of words")
    return start.symbols.words


def build(model: ClassifierModel, start: Pretrained | None, tokens: int, task: Task) -> plmu.Sequential:
    """The classifier of a configuration, standardised on training reviews.

    Args:
        model: the options.
        start: the language model to start from; None for random weights.
        tokens: size of the vocabulary, used only for random weights.
        task: has the training reviews; its notes are extended.
    """
    if start is not None:
        language_model: Any = start.model
    else:
        assert isinstance(model, ScratchModel)
        language_model = language.build(WordModel(width=model.width, blocks=model.blocks), tokens)
    embedding, blocks, norms = _parts(language_model)
    width = embedding.embedding_dim
    inner = [plmu.WeightedStack(nn.Identity(), *blocks)] if model.deep else blocks
    pool = plmu.DelayLayer(width, order=model.pool_order, theta=model.theta, return_sequences=False)
    features = pool.output_size
    head: list[nn.Module] = [plmu.Standardize(features), nn.Dropout(model.dropout)]
    if model.units:
        head += [nn.Linear(features, model.units), nn.ReLU(), nn.Dropout(model.dropout)]
    head.append(nn.Linear(model.units or features, 1))
    network = plmu.Sequential(embedding, nn.Dropout1d(model.word_dropout), *inner, *norms, pool, *head)
    plmu.standardize(network, _sample(task.train), logits)
    besides = sum(p.numel() for p in network.parameters()) - embedding.weight.numel()
    task.notes |= {**({} if start is None else start.notes), "parameters besides embeddings": besides}
    return network


def _parts(model: nn.Module) -> tuple[nn.Embedding, list[Steppable], list[nn.Module]]:
    """Embedding, blocks and last norm of a language model, without its output layer; the list has at most one norm."""
    layers = list(model.layers) if isinstance(model, plmu.Sequential) else []
    embedding, last = (layers[0], layers[-1]) if layers else (None, None)
    inner = [layer for layer in layers[1:-1] if not isinstance(layer, nn.Dropout)]
    norms: list[nn.Module] = [layer for layer in inner if isinstance(layer, nn.LayerNorm | nn.RMSNorm)]
    blocks = [layer for layer in inner if isinstance(layer, Steppable)]
    if not isinstance(embedding, nn.Embedding) or not isinstance(last, nn.Linear) or inner != [*blocks, *norms[:1]]:
        raise RunError("--from: its model is not embeddings, blocks, a norm and an output layer, as `reviews` has them")
    return embedding, blocks, norms[:1]


def adversarial_loss(model: nn.Module, batch: Batch, size: float) -> Tensor:
    """The mean of two losses: on reviews, and with their embeddings moved in the direction of steepest ascent.

    The step is `size` standard deviations of the embeddings for each review. In evaluation it is the first loss alone.
    """
    if not isinstance(model, plmu.Sequential):
        raise ValueError("model.adversarial is for one process: set it to 0, or start without torchrun")
    tokens, lengths, labels = batch
    embedding, words, *above = list(model)
    assert isinstance(embedding, nn.Embedding)
    upper = plmu.Sequential(*above)
    vectors = words(embedding(tokens))
    plain = classification_loss(upper(vectors, lengths=lengths)[0], labels)
    if not model.training:
        return plain
    (slope,) = torch.autograd.grad(plain, vectors, retain_graph=True)
    slope = slope.float() / slope.float().norm(dim=(1, 2), keepdim=True).clamp(min=1e-30)
    moved = vectors + size * embedding.weight.detach().float().std() * slope
    return 0.5 * (plain + classification_loss(upper(moved, lengths=lengths)[0], labels))


def _sample(train: Batch) -> list[Batch]:
    """A fixed random sample of SAMPLE training reviews, without labels, in batches."""
    rows = torch.randperm(len(train[0]), generator=torch.Generator().manual_seed(0))[:SAMPLE]
    return [tuple(part[batch] for part in train[:-1]) for batch in rows.split(AT_ONCE)]


def groups(model: ClassifierModel) -> Callable[[nn.Module], list[Group]]:
    """A function that divides a classifier's parameters into groups, for layer-wise rates and gradual unfreezing.

    Groups go from the top down: classifier and top norm, top block, …, lowest block, embeddings. Each has a rate, a
    fraction of the learning rate, and the epoch at which it begins to train.
    """
    rate, wait = (model.layer_rate, model.unfreezing) if isinstance(model, PretrainedModel) else (1.0, 0.0)

    def layer_groups(network: nn.Module) -> list[Group]:
        assert isinstance(network, plmu.Sequential)
        embedding = network[0]
        stack = next((layer for layer in network if isinstance(layer, plmu.WeightedStack)), None)
        layers = list(network) if stack is None else list(stack.layers)
        blocks = [layer for layer in layers if isinstance(layer, Steppable) and not isinstance(layer, plmu.DelayLayer)]
        lower = [*blocks[::-1], embedding]  # from the top down: the embeddings come last, also in `levels`
        below = {id(p) for part in lower for p in part.parameters()}
        levels = [[p for p in network.parameters() if id(p) not in below], *(list(part.parameters()) for part in lower)]
        result = []
        for depth, level in enumerate(levels):
            for decay in (True, False):  # weight decay of matrices, but not of embeddings, the last level
                parameters = [p for p in level if (p.dim() > 1 and level is not levels[-1]) == decay]
                if parameters:
                    result.append(Group(parameters, rate=rate**depth, decay=decay, begins=wait * depth))
        return result

    return layer_groups
