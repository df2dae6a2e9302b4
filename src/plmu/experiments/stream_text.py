"""A trained IMDB model as a stream: text comes in line by line, and after each word the sentiment so far goes out."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from torch import nn

import plmu
from plmu.data.symbols import SEPARATOR
from plmu.data.text import FIRST, UNKNOWN, tokenise
from plmu.experiments import imdb_pretrained
from plmu.experiments.text_models import VOCABULARY_FILE
from plmu.nn import Steppable
from plmu.training.errors import RunError
from plmu.training.results import read_json


def load(path: Path) -> tuple[Steppable, dict[str, int]]:
    """The model of a run's folder, or a model file, and the numbers of its words, from the file beside it."""
    folder, file = _places(path)
    if not file.is_file():
        raise RunError(f"no model at {path}: expected the folder of a finished IMDB run (of any model but lstm)")
    known = folder / VOCABULARY_FILE
    if not known.is_file():
        raise RunError(f"{known} is missing: it holds the model's vocabulary and must be beside the model")
    model = plmu.load(file)
    first = model.layers[0] if isinstance(model, plmu.Sequential) else None
    first = first.embedding if isinstance(first, plmu.TokenDelayLayer) else first
    if not isinstance(first, nn.Embedding) or not isinstance(model, Steppable):
        raise RunError(f"{file} is not a model of text: `plmu train imdb` makes one")
    try:
        words = known.read_text(encoding="utf-8").split("\n")[:-1]
    except UnicodeDecodeError as error:
        raise RunError(f"{known} is damaged: it is not UTF-8 at byte {error.start}") from None
    if len(words) + FIRST != first.num_embeddings:
        raise RunError(
            f"{known} has {len(words):,} words and {file} embeddings for {first.num_embeddings - FIRST:,}: they are of"
            " different runs"
        )
    return model, {word: number for number, word in enumerate(words, FIRST)}


def _places(path: Path) -> tuple[Path, Path]:
    """Folder and file of a model."""
    return (path, path / "model.plmu") if path.is_dir() else (path.parent, path)


def first_tokens(path: Path) -> list[int]:
    """What the model reads before each text: a separator, if the run beside it is of a language model."""
    known = _places(path)[0] / "config.json"
    try:
        model = read_json(known)["model"] if known.is_file() else ""
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{known} is damaged: it says how a text begins") from None
    return [SEPARATOR] if model in imdb_pretrained.models() else []


def running(
    model: Steppable, numbers: dict[str, int], lines: Iterable[str], first: Sequence[int] = ()
) -> Iterator[tuple[str, float] | None]:
    """Each word and the probability that the text up to it is positive; None at the end of each text.

    A text is all lines up to an empty one. `first` are token numbers that the model reads before each text.
    """
    stream = plmu.Stream(model)
    for line in lines:
        if not line.strip():
            if stream.steps:
                yield None
            stream.reset()
            continue
        for word in tokenise(line):
            for number in () if stream.steps else first:
                stream.push(number)
            logit = float(stream.push(numbers.get(word, UNKNOWN))[0])
            yield word, 1 / (1 + math.exp(-max(-50.0, min(50.0, logit))))


def show(path: Path, lines: Iterable[str], out: IO[str] | None = None) -> None:
    """Print a word a line with the sentiment after it, from 0, negative, to 1, positive."""
    model, numbers = load(path)
    screen = sys.stdout if out is None else out
    for found in running(model, numbers, lines, first_tokens(path)):
        print("" if found is None else f"{found[1]:.3f}  {found[0]}", file=screen, flush=True)
