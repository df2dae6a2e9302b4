"""What language models share: stacks of blocks, the loss, and scores over a whole text with the state carried.

A text is one long stream of token numbers. Training takes windows of it; a score is the mean loss over a whole split,
read from its beginning to its end with the state carried along, and once more with the state reset again and again.
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
from plmu.runs.fields import Checked
from plmu.text.symbols import Symbols
from plmu.training.config import TrainingConfig
from plmu.training.task import Batch, Group, Task

PIECE = 1 << 16  # tokens that are scored at a time, at most
LOGITS = 1 << 28  # and logits
ROWS, LEAD = 64, 4096  # of an LSTM, which is slow in one row: rows of the text, and tokens read before each


@dataclass
class PlmuModel(Checked):
    """The paper's blocks: Delay Network, dense layer, highway layers, skip connection."""

    width: int = 256
    """Features of each token and block."""
    blocks: int = 3
    """Blocks in a row; their windows add up."""
    order: int = 8
    """Legendre coefficients of each memory channel."""
    theta: float = 15.0
    """Window of each block, in tokens."""
    highways: int = 3
    """Highway layers of each block."""
    attention: int = 0
    """Heads of a causal self-attention layer after the last block; 0 for none."""
    window: int = 180
    """Tokens that the attention layer sees."""
    dropout: float = 0.1
    """Dropout rate, in each block."""
    tied: bool = False
    """Whether the output layer's weights are those of the embedding."""
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
    """Blocks in a row."""
    order: int = 4
    """Legendre coefficients of each memory channel."""
    thetas: tuple[float, ...] = (4.0, 16.0, 64.0, 256.0)
    """Windows of the memory, in tokens, each for an equal part of the channels."""
    hidden: int = 560
    """Features inside the feed-forward layers."""
    kernel: int = 0
    """Steps of a short causal convolution before the memory; 0 for none."""
    heads: int = 0
    """Read the memory by weights that depend on the input, of so many heads; 0: by constant weights."""
    dropout: float = 0.05
    """Dropout rate, at the end of both halves of a block."""
    tied: bool = True
    """Whether the output layer's weights are those of the embedding."""
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
    """LSTM layers."""
    dropout: float = 0.1
    """Dropout rate of each layer's outputs."""
    forget_bias: float = 1.0
    """Initial bias of the forget gates."""
    length: int = 180
    """Tokens of a training sequence."""


@dataclass
class LanguageTask(Task):
    """A task that knows what its token numbers stand for."""

    symbols: Symbols | None = None


def language_task(
    splits: dict[str, Array], symbols: Symbols, length: int, notes: dict[str, object], metric: str, reset: int = 0
) -> LanguageTask:
    """Prediction of the next token. `metric` is "bpc", bits per token, or "perplexity"; `reset` adds the same score
    with the state reset every so many tokens."""
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
    """Token numbers as a tensor, of the same memory where torch can index with it: uint8, int16 or int32."""
    if numbers.dtype == np.uint16:
        numbers = numbers.view(np.int16) if int(numbers.max()) < 2**15 else numbers.astype(np.int32)
    elif numbers.dtype == np.uint32:
        numbers = numbers.view(np.int32)
    return torch.from_numpy(numbers if numbers.flags.writeable else numbers.copy())  # torch warns of what is read-only


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
        for layer, before in zip(self.layers, state or [None] * len(self.layers), strict=True):
            x, after = layer(x, before)
            x = self.drop(x)
            states.append(after)
        return self.out(x), tuple(states)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy of the next tokens, in nats."""
    return _cross_entropy(model(batch[0])[0], batch[1], "mean")


def carried_loss(model: nn.Module, batch: Batch, state: Any) -> tuple[Tensor, Any]:
    """The same from a state, and the state at the end."""
    out, state = model(batch[0], state)
    return _cross_entropy(out, batch[1], "mean"), state


def _cross_entropy(out: Tensor, targets: Tensor, reduction: str) -> Tensor:
    return cross_entropy(out.flatten(0, 1).float(), targets.flatten(), reduction=reduction)


def scores(model: nn.Module, tokens: Tensor, metric: str, reset: int, piece: int = PIECE) -> dict[str, float]:
    """Bits per token, or perplexity, over a whole split with the state carried; and with it reset. At most `piece`
    tokens are scored at a time."""
    device = next(model.parameters()).device
    rows, lead = (1, 0) if isinstance(model, Steppable) else (ROWS, LEAD)
    found = {metric: carried_nats(model, tokens, device, rows, lead, piece)}
    if reset:
        found[f"{metric}_reset_{reset}"] = reset_nats(model, tokens, device, reset, piece)
    return {name: math.exp(nats) if metric == "perplexity" else nats / math.log(2) for name, nats in found.items()}


def carried_nats(
    model: nn.Module, tokens: Tensor, device: torch.device, rows: int = 1, lead: int = 0, piece: int = PIECE
) -> float:
    """Mean loss of each token but the first, the state carried from the beginning.

    With several rows each reads a part of the text; all but the first do not count their first `lead` tokens, which
    are the last ones of the row before.
    """
    count = len(tokens) - 1
    rows, lead = (rows, lead) if count > 2 * rows * lead else (1, 0)
    each = -(-(count - lead) // rows)
    first = torch.arange(rows)[:, None] * each
    piece = max(1, piece // rows)
    total, state = 0.0, None
    for start in range(0, lead + each, piece):
        steps = torch.arange(start, min(start + piece, lead + each))
        places = first + steps  # (rows, steps)
        counted = ((steps >= lead) | (first == 0)) & (places < count)
        inputs, targets = (tokens[(places + ahead).clamp(max=count)].to(device).long() for ahead in (0, 1))
        out, state = model(inputs, state)
        losses = _cross_entropy(out, targets, "none").reshape(places.shape)
        total += float((losses.double() * counted.to(device)).sum())
    return total / count


def reset_nats(model: nn.Module, tokens: Tensor, device: torch.device, length: int, piece: int = PIECE) -> float:
    """Mean loss of each token but the first, in windows of so many tokens that begin without a state."""
    count = len(tokens) - 1
    windows, total = count // length, 0.0
    whole = windows * length
    inputs, targets = (tokens[ahead : ahead + whole].reshape(windows, length) for ahead in (0, 1))
    size = max(1, piece // length)
    parts = [(inputs[i : i + size], targets[i : i + size]) for i in range(0, windows, size)]
    if whole < count:
        parts.append((tokens[None, whole:count], tokens[None, whole + 1 :]))
    for given, wanted in parts:
        out, _ = model(given.to(device).long())
        total += float(_cross_entropy(out, wanted.to(device).long(), "sum").double())
    return total / count


def groups(model: nn.Module) -> list[Group]:
    """Matrices inside, which decay and which Muon may train; and embeddings, output layer, norms and biases."""
    ends = [one.weight for one in model.modules() if isinstance(one, nn.Embedding)]
    ends += [[one for one in model.modules() if isinstance(one, nn.Linear)][-1].weight]
    apart = {id(one) for one in ends}
    inner = [p for p in model.parameters() if p.dim() > 1 and id(p) not in apart]
    taken = {id(p) for p in inner}
    rest = [p for p in model.parameters() if id(p) not in taken]
    return [Group(rest, decay=False), Group(inner, matrices=True)]


def training(**changes: Any) -> TrainingConfig:
    """How language models are trained where the experiment says nothing else."""
    usual: dict[str, Any] = {
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
    return TrainingConfig(**{**usual, **changes})
