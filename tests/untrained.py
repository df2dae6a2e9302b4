"""The untrained model of any experiment, for a few random examples and a small vocabulary."""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from plmu.bench.training_time import random_task
from plmu.cli.catalogue import PAPER, lookup
from plmu.experiments import imdb_pretrained, language
from plmu.experiments.imdb_pretrained import ClassifierModel, PretrainedModel
from plmu.experiments.language import LanguageTask
from plmu.experiments.pretrained import Pretrained
from plmu.experiments.reviews import WordModel
from plmu.experiments.text_classification import TextExperiment, TextTask
from plmu.experiments.translation.task import TranslationTask
from plmu.text.symbols import Characters, Symbols, Words
from plmu.text.vocabularies import SPECIAL, Pieces
from plmu.text.vocabularies import Words as WordsOnly
from plmu.text.words import FIRST
from plmu.training.task import Task

EXPERIMENTS = {name: lookup(name) for name in PAPER}
WORDS = tuple("w" * k for k in range(1, 51))
VOCABULARY = tuple(f"w{k}" for k in range(30_000))
LETTERS = " abcdefghijklmnopqrstuvwxyz"


def pieces(size: int = 8_000) -> Pieces:
    """A vocabulary of so many pieces, none of which is of use."""
    names = [*SPECIAL, *(f"p{k}" for k in range(size - len(SPECIAL)))]
    return Pieces(json.dumps({"model": {"vocab": {name: number for number, name in enumerate(names)}}}))


def built(name: str, model: str) -> tuple[nn.Module, Task]:
    """The untrained model of an experiment, and the task it was built for."""
    experiment = lookup(name)
    config = experiment.defaults(model)
    if name == "addition":
        task = Task((), (), (), None, None, None, "", True)  # type: ignore[arg-type]
    elif name in ("psmnist", "mackey-glass"):
        task = random_task(name, 784 if name == "psmnist" else 130, 4)
    elif name in ("text8", "reviews"):
        symbols: Symbols = Characters(LETTERS) if name == "text8" else Words(VOCABULARY)
        task = LanguageTask((), (), (), None, None, None, "", True, symbols=symbols)  # type: ignore[arg-type]
    elif name == "iwslt":
        sides = [pieces()] * 2 if model == "bpe" else [WordsOnly(VOCABULARY[:17_188]), WordsOnly(VOCABULARY[:7_706])]
        task = TranslationTask((), (), (), None, None, None, "", True, source=sides[0], target=sides[1])  # type: ignore[arg-type]
    elif name == "classify":
        with tempfile.TemporaryDirectory() as folder:
            config.data.file = Path(folder) / "waves.npz"
            waves = np.sin(np.arange(40.0) * np.linspace(0.2, 0.9, 24)[:, None])
            np.savez(config.data.file, X=waves, y=np.arange(24) // 12)
            task = experiment.task(config)
    elif name in ("forecast", "anomalies"):
        with tempfile.TemporaryDirectory() as folder:
            config.data.file = Path(folder) / "waves.npy"
            np.save(config.data.file, np.sin(np.arange(200.0)))
            task = experiment.task(config)
    else:
        assert isinstance(experiment, TextExperiment)
        long = 8 if isinstance(config.model, ClassifierModel) else config.model.longest
        tokens, lengths = torch.randint(FIRST, FIRST + 50, (6, long)), torch.arange(1, 7)
        split = (*(tokens, lengths) * (1 if name == "imdb" else 2), torch.arange(6) % 2)
        task = TextTask(split, split, split, None, None, None, "", True, words=WORDS)  # type: ignore[arg-type]
    if isinstance(config.model, PretrainedModel):
        start = Pretrained(language.build(WordModel(), FIRST + 50), Words(WORDS), "reviews-plmu-seed0", {}, "")  # type: ignore[arg-type]
        return imdb_pretrained.build(config.model, start, FIRST + 50, task), task
    if name in ("imdb", "qqp", "snli") and hasattr(config.model, "vectors"):
        config.model.vectors = "random"
    return experiment.build(config, task), task
