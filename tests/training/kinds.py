"""Small tasks that use what the training engine has: a language model with everything on, and texts of any length."""

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from plmu.experiments import language
from plmu.experiments.language import PlmuModel, language_task
from plmu.text.symbols import Characters
from plmu.training.config import TrainingConfig
from plmu.training.loop import Trainer
from plmu.training.processes import Processes
from plmu.training.task import Batch, Group, Task

LETTERS = "abcdefg"
ONE = Processes(0, 1, torch.device("cpu"))


def stream_task() -> Task:
    """Letters at random, so that validation gets worse and a plateau comes."""
    random = np.random.default_rng(0)
    splits = {
        name: random.integers(len(LETTERS), size=size).astype(np.uint8)
        for name, size in (("train", 400), ("valid", 150), ("test", 160))
    }
    made = language_task(splits, Characters(LETTERS), 8, {}, "bpc", 50)
    return dataclasses.replace(made, groups=_later)


def _later(model: nn.Module) -> list[Group]:
    rest, inner = language.groups(model)
    rest.begins = 0.7
    return [rest, inner]


def stream_model(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    small = PlmuModel(width=8, blocks=2, order=3, theta=4.0, highways=1, attention=2, window=5, dropout=dropout)
    return language.build(small, len(LETTERS))


def stream_config(epochs: int, **changes: Any) -> TrainingConfig:
    """Everything on."""
    usual: dict[str, Any] = {
        "batch_size": 8, "accumulate": 2, "carry": True, "optimizer": "muon", "learning_rate": 0.03,
        "weight_decay": 0.1, "schedule": "plateau", "patience": 1, "drop": 0.5, "warmup": 0.1, "clip": 0.3,
        "average": 0.8, "data": "host", "checkpoint_seconds": 0.0,
    }  # fmt: skip
    return TrainingConfig(epochs=epochs, **{**usual, **changes})


def text_task() -> Task:
    """A number for each word, of texts of any length; the loss is the mean over words."""
    generator = torch.Generator().manual_seed(0)

    def split(count: int) -> Batch:
        lengths = torch.randint(1, 12, (count,), generator=generator)
        words = torch.randint(1, 9, (count, 12), generator=generator)
        words = torch.where(torch.arange(12) < lengths[:, None], words, 0)
        return words, lengths, words.float().sin() + 0.1 * torch.randn(count, 12, generator=generator)

    def errors(model: nn.Module, batch: Batch) -> Tensor:
        words, lengths, wanted = batch
        there = torch.arange(words.shape[1]) < lengths[:, None]
        return (model(words)[..., 0] - wanted[:, : words.shape[1]]).square()[there]

    return Task(
        split(60),
        split(20),
        split(20),
        loss=lambda model, batch: errors(model, batch).mean(),
        measure=lambda model, batch: torch.stack([errors(model, batch).sum(), batch[1].sum()]),
        finish=lambda sums: {"mse": float(sums[0] / sums[1])},
        metric="mse",
        higher_is_better=False,
        evaluation_batch=7,
        lengths=lambda batch: (batch[1], None, None),
        weight=lambda batch: batch[1].sum(),
    )


def text_model(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(9, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, 1))


def text_config(epochs: int, **changes: Any) -> TrainingConfig:
    usual: dict[str, Any] = {
        "batch_tokens": 60, "accumulate": 2, "learning_rate": 0.01, "schedule": "step", "drops": (1.0, 1.5),
        "clip": 0.5,
    }  # fmt: skip
    return TrainingConfig(epochs=epochs, **{**usual, **changes})


KINDS = {"streams": (stream_task, stream_model, stream_config), "texts": (text_task, text_model, text_config)}


def trainer_of(kind: str, epochs: int, *rest: Any, dropout: float = 0.0, processes: Processes = ONE, **changes: Any):
    task, model, config = KINDS[kind]
    return Trainer(task(), model(dropout), config(epochs, **changes), processes, 3, *rest)
