"""Language models, for `text8` and `reviews`: stacks of blocks, the loss, and scores over a whole text.

A text is one long stream of token numbers. Models train on windows of it. A score is the mean loss over a whole split,
read from beginning to end with the state carried along; a second score resets the state at regular intervals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import plmu
from plmu.data.cache import Array
from plmu.experiments.baselines import lstm
from plmu.nn import Steppable
from plmu.runs.experiment import Config, Experiment
from plmu.runs.fields import Checked
from plmu.text.symbols import Symbols
from plmu.training.config import TrainingConfig
from plmu.training.task import Batch, Group, Task

PIECE = 1 << 16  # tokens scored at a time, at most
LOGITS = 1 << 28  # logits at a time, at most
ROWS, LEAD = 64, 4096  # an LSTM, slow in one row, reads a text in ROWS rows, each after LEAD tokens that are not scored


@dataclass
class PlmuModel(Checked):
    """The paper's blocks: Delay Network, dense layer, highway layers, skip connection."""

    width: int = 256
    """Features of each token and block."""
    blocks: int = 3
    """Number of blocks. A token depends on as many tokens before it as the windows of all blocks together."""
    order: int = 8
    """Legendre coefficients of each memory channel."""
    theta: float = 15.0
    """Window of each block, in tokens."""
    highways: int = 3
    """Number of highway layers in each block."""
    attention: int = 0
    """Heads of a causal self-attention layer after the last block; 0 for none."""
    window: int = 180
    """Tokens that the attention layer sees."""
    dropout: float = 0.1
    """Dropout rate, in each block."""
    tied: bool = False
    """Use the embedding's weights for the output layer."""
    length: int = 180
    """Tokens of a training sequence."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention and self.width % (2 * self.attention):
            raise ValueError(
                f"model.width must be an even multiple of model.attention, got {self.width} and {self.attention}"
            )


@dataclass
class ModernModel(Checked):
    """Blocks of a memory with several windows, an output gate and a gated feed-forward layer."""

    width: int = 192
    """Features of each token and block; a multiple of 8 times the number of windows is fastest."""
    blocks: int = 6
    """Number of blocks."""
    order: int = 4
    """Legendre coefficients of each memory channel."""
    thetas: tuple[float, ...] = (4.0, 16.0, 64.0, 256.0)
    """Windows of the memory, in tokens, each for an equal part of the channels."""
    hidden: int = 560
    """Features inside the feed-forward layers."""
    kernel: int = 0
    """Kernel size of a short causal convolution before the memory; 0 for none."""
    heads: int = 0
    """Number of heads that read the memory with weights that depend on the input; 0: constant weights."""
    dropout: float = 0.05
    """Dropout rate, at the end of each half of a block."""
    tied: bool = True
    """Use the embedding's weights for the output layer."""
    length: int = 512
    """Tokens of a training sequence."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % len(self.thetas):
            raise ValueError(
                f"model.width must be a multiple of the {len(self.thetas)} windows of model.thetas, got {self.width}"
            )
        if self.heads and self.width % self.heads:
            raise ValueError(f"model.width must be a multiple of model.heads, got {self.width} and {self.heads}")


@dataclass
class LSTMModel(Checked):
    """LSTM layers with dropout between them."""

    embedding: int = 128
    """Size of the embeddings."""
    hidden: int = 832
    """Hidden units of each layer."""
    layers: int = 1
    """Number of LSTM layers."""
    dropout: float = 0.1
    """Dropout rate of each layer's outputs."""
    forget_bias: float = 1.0
    """Initial bias of the forget gates."""
    length: int = 180
    """Tokens of a training sequence."""


@dataclass(kw_only=True)
class LanguageTask(Task):
    """A task with the symbols that its token numbers stand for."""

    symbols: Symbols


class LanguageExperiment(Experiment):
    """An experiment whose task is a `LanguageTask`."""

    def build(self, config: Config[Any], task: Task) -> nn.Module:
        assert isinstance(task, LanguageTask)
        return build(config.model, task.symbols.size)

    def companions(self, task: Task) -> dict[str, str]:
        assert isinstance(task, LanguageTask)
        return task.symbols.companions()


def language_task(
    splits: dict[str, Array], symbols: Symbols, length: int, notes: dict[str, object], metric: str, reset: int = 0
) -> LanguageTask:
    """Prediction of the next token.

    Args:
        splits: token numbers of train, valid and test.
        symbols: what the numbers stand for.
        length: tokens of a training sequence.
        notes: for the result.
        metric: "bpc", bits per token, or "perplexity".
        reset: if above 0, the interval of the second score, which resets the state after that many tokens.
    """
    train, valid, test = (as_tokens(splits[name]) for name in ("train", "valid", "test"))
    piece = min(PIECE, LOGITS // symbols.size)
    return LanguageTask(
        (train,),
        (valid,),
        (test,),
        loss=loss,
        metric=metric,
        higher_is_better=False,
        evaluation_batch=16,
        window=length,
        carried_loss=carried_loss,
        score=lambda model, data: scores(model, data[0], metric, reset, piece),
        groups=groups,
        notes=notes,
        symbols=symbols,
    )


def as_tokens(numbers: Array) -> Tensor:
    """Token numbers as a tensor of uint8, int16 or int32, which torch can index with; without a copy if possible."""
    if numbers.dtype == np.uint16:
        numbers = numbers.view(np.int16) if int(numbers.max()) < 2**15 else numbers.astype(np.int32)
    elif numbers.dtype == np.uint32:
        numbers = numbers.view(np.int32)
    return torch.from_numpy(numbers if numbers.flags.writeable else numbers.copy())  # torch warns of read-only arrays


def build(model: PlmuModel | ModernModel | LSTMModel, size: int) -> nn.Module:
    """The untrained model of a configuration, for `size` tokens."""
    if isinstance(model, LSTMModel):
        return LSTMLanguageModel(size, model)
    width = model.width
    embedding = nn.Embedding(size, width)
    nn.init.normal_(embedding.weight, std=width**-0.5 if model.tied else 1.0)
    layers: list[nn.Module] = [embedding, nn.Dropout(model.dropout)]
    if isinstance(model, PlmuModel):
        layers += [
            plmu.LMUBlock(width, model.order, model.theta, highways=model.highways, dropout=model.dropout)
            for _ in range(model.blocks)
        ]
        if model.attention:
            attention = plmu.CausalAttention(width, model.attention, model.window)
            layers.append(plmu.Residual(plmu.Sequential(nn.LayerNorm(width), attention, nn.Dropout(model.dropout))))
        layers.append(nn.LayerNorm(width))
    else:
        layers += [
            plmu.MemoryBlock(
                width,
                model.order,
                model.thetas,
                hidden=model.hidden,
                kernel_size=model.kernel or None,
                heads=model.heads or None,
                dropout=model.dropout,
            )
            for _ in range(model.blocks)
        ]
        layers.append(nn.RMSNorm(width, eps=1e-6))
    out = nn.Linear(width, size)
    if model.tied:
        out.weight = embedding.weight
    else:
        nn.init.normal_(out.weight, std=width**-0.5)
    nn.init.zeros_(out.bias)
    return plmu.Sequential(*layers, out)


class LSTMLanguageModel(nn.Module):
    """Embeddings, LSTM layers with dropout, and a linear output. Called as our models are."""

    def __init__(self, size: int, config: LSTMModel) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, config.embedding)
        sizes = [config.embedding] + [config.hidden] * config.layers
        self.layers = nn.ModuleList(
            lstm(inputs, outputs, forget_bias=config.forget_bias) for inputs, outputs in pairwise(sizes)
        )
        self.drop = nn.Dropout(config.dropout)
        self.out = nn.Linear(config.hidden, size)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        x = self.drop(self.embedding(x))
        states = []
        for layer, initial in zip(self.layers, state or [None] * len(self.layers), strict=True):
            x, final = layer(x, initial)
            x = self.drop(x)
            states.append(final)
        return self.out(x), tuple(states)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy of the next tokens, in nats."""
    return _cross_entropy(model(batch[0])[0], batch[1], "mean")


def carried_loss(model: nn.Module, batch: Batch, state: Any) -> tuple[Tensor, Any]:
    """The mean cross-entropy from a state, and the state at the end."""
    out, state = model(batch[0], state)
    return _cross_entropy(out, batch[1], "mean"), state


def _cross_entropy(out: Tensor, targets: Tensor, reduction: str) -> Tensor:
    """Cross-entropy, in nats, of logits (batch, time, tokens) for targets (batch, time)."""
    return cross_entropy(out.flatten(0, 1).float(), targets.flatten(), reduction=reduction)


def scores(model: nn.Module, tokens: Tensor, metric: str, reset: int, piece: int = PIECE) -> dict[str, float]:
    """Bits per token, or perplexity, over a whole split.

    The score `metric`, "bpc" or "perplexity", carries the state; `METRIC_reset_N` with N = `reset`, if that is above 0,
    resets it after every N tokens. At most `piece` tokens are scored at a time.
    """
    device = next(model.parameters()).device
    rows, lead = (1, 0) if isinstance(model, Steppable) else (ROWS, LEAD)
    losses = {metric: carried_nats(model, tokens, device, rows, lead, piece)}
    if reset:
        losses[f"{metric}_reset_{reset}"] = reset_nats(model, tokens, device, reset, piece)
    return {name: math.exp(nats) if metric == "perplexity" else nats / math.log(2) for name, nats in losses.items()}


def carried_nats(
    model: nn.Module, tokens: Tensor, device: torch.device, rows: int = 1, lead: int = 0, piece: int = PIECE
) -> float:
    """Mean loss, in nats, of each token but the first, the state carried from the beginning.

    With several rows, each reads a part of the text. A row overlaps the end of the row before by `lead` tokens, which
    are read but not counted.
    """
    count = len(tokens) - 1
    rows, lead = (rows, lead) if count > 2 * rows * lead else (1, 0)
    stride = -(-(count - lead) // rows)
    first = torch.arange(rows)[:, None] * stride
    piece = max(1, piece // rows)
    total, state = 0.0, None
    for start in range(0, lead + stride, piece):
        steps = torch.arange(start, min(start + piece, lead + stride))
        places = first + steps  # (rows, steps)
        counted = ((steps >= lead) | (first == 0)) & (places < count)
        inputs, targets = (tokens[(places + ahead).clamp(max=count)].to(device).long() for ahead in (0, 1))
        out, state = model(inputs, state)
        losses = _cross_entropy(out, targets, "none").reshape(places.shape)
        total += float((losses.double() * counted.to(device)).sum())
    return total / count


def reset_nats(model: nn.Module, tokens: Tensor, device: torch.device, length: int, piece: int = PIECE) -> float:
    """Mean loss, in nats, of each token but the first, in windows of `length` tokens that start without a state."""
    count = len(tokens) - 1
    windows, total = count // length, 0.0
    end = windows * length  # of the full windows
    inputs, targets = (tokens[ahead : ahead + end].reshape(windows, length) for ahead in (0, 1))
    size = max(1, piece // length)
    batches = [(inputs[i : i + size], targets[i : i + size]) for i in range(0, windows, size)]
    if end < count:
        batches.append((tokens[None, end:count], tokens[None, end + 1 :]))
    for x, y in batches:
        out, _ = model(x.to(device).long())
        total += float(_cross_entropy(out, y.to(device).long(), "sum").double())
    return total / count


def groups(model: nn.Module) -> list[Group]:
    """The parameter groups of a language model, whose last linear layer is its output."""
    output = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    return matrix_groups(model, output.weight)


def matrix_groups(model: nn.Module, *outer: Tensor) -> list[Group]:
    """Two parameter groups: embeddings, the weights `outer`, norms and biases, without weight decay; and the other
    matrices, with weight decay, which Muon may train."""
    embeddings = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    excluded = {id(weight) for weight in (*embeddings, *outer)}
    inner = [p for p in model.parameters() if p.dim() > 1 and id(p) not in excluded]
    matrices = {id(p) for p in inner}
    others = [p for p in model.parameters() if id(p) not in matrices]
    return [Group(others, decay=False), Group(inner, matrices=True)]


def training(**changes: Any) -> TrainingConfig:
    """The default training of language models, with changes."""
    defaults: dict[str, Any] = {
        "batch_size": 64,
        "optimizer": "muon",
        "learning_rate": 4e-3,
        "weight_decay": 0.1,
        "betas": (0.9, 0.99),
        "schedule": "cosine",
        "warmup": 0.02,
        "clip": 1.0,
        "precision": "auto",
        "compile": True,
    }
    return TrainingConfig(**{**defaults, **changes})
