"""IMDB: 25,000 training and 25,000 test reviews, from the archive of its authors or from Keras' numbered copy.

A tenth of the training reviews is the validation set. The vocabulary is counted on the rest.

No film of the test set is in the training set, so validation should share none with training either: a model that
learned the names of actors would look better than it is. The archive names no films, but it numbers the reviews of each
class film by film, at most 30 of one. The films come in the same order in both classes up to about the 3,960th negative
review; films of later negative reviews have no positive review. So the validation set is the last tenth of the positive
reviews and the tenth of the negative ones that begins with the same films. Keras' copy is shuffled: there it is a tenth
drawn with a seed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from plmu.data.cache import Array, cached
from plmu.data.files import DataConfig, Remote, find
from plmu.data.reading import content, members
from plmu.errors import DataError
from plmu.experiments.data import keras
from plmu.text.words import RULES, VOCABULARY, Builder, TextData, completeness, tokenise, vocabulary_settings

FOLDER = "aclImdb"
ORIGINAL = Remote(
    "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
)
HOME = ORIGINAL.url
ARCHIVES = tuple(f"aclImdb_v1.{end}" for end in ("tar.gz", "tar.xz", "tar.bz2", "tar", "tgz"))
INDEX = "imdb_word_index.json"
LARGEST_INDEX = 2**23  # bytes: five times the original
WHOLE = 25_000
VALIDATING = 0.1
FROM = {"pos": 0.9, "neg": 0.288}  # where, in the order of its numbers, a class's tenth for validation begins
SPLIT_SEED = 0  # of Keras' copy

_LABELLED = re.compile(r"(?:^|/)(train|test)/(neg|pos)/(\d{1,9})_\d+\.txt$")
_ALL = re.compile(r"(?:^|/)(train|test)/(neg|pos|unsup)/(\d{1,9})_\d+\.txt$")


def locate(config: DataConfig) -> Path:
    """The archive, or Keras' file, in the data folder; without a data folder the archive is downloaded."""
    return find(config, FOLDER, (*ARCHIVES, "imdb.npz"), ORIGINAL)


def load(config: DataConfig, size: int = VOCABULARY, words: Sequence[str] | None = None) -> TextData:
    """Train, valid and test; class 1 is positive. The vocabulary is `words`, or else the `size` most frequent words."""
    path = locate(config)
    index = path.with_name(INDEX)
    numbered = path.suffix == ".npz"
    files = [path, index] if numbered and index.is_file() else [path]
    settings = {"rules": RULES, "valid": VALIDATING, "from": FROM, "seed": SPLIT_SEED, "version": 2}
    settings |= vocabulary_settings(size, words)

    def make() -> dict[str, Array]:
        builder = Builder(1)
        if numbered:
            read_keras(path, index, builder)
            train, valid = _seeded(builder.count("train"))
        else:
            train, valid = by_films(read_archive(path, builder))
        return _finished(path, builder, train, valid, size, words).arrays()

    return cached("imdb", files, settings, make, TextData.of)


def read_archive(path: Path, builder: Builder) -> list[tuple[str, int]]:
    """Add the labelled reviews of the archive. Returns the class and the number of each training review."""
    numbered = []
    for split, kind, number, text in reviews(path):
        builder.add(split, int(kind == "pos"), tokenise(text))
        if split == "train":
            numbered.append((kind, number))
    return numbered


def reviews(path: Path, unlabelled: bool = False) -> Iterator[tuple[str, str, int, str]]:
    """Split, class (pos, neg or unsup), number and text of each review of the archive; unsup only if `unlabelled`."""
    for match, raw in members(path, _ALL if unlabelled else _LABELLED):
        split, kind, number = match.groups()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            reason = f"it is not UTF-8 ({error.reason} at byte {error.start})"
            raise DataError(f"{path}, {match.string}: {reason}") from None
        if not text.strip():
            raise DataError(f"{path}, {match.string}: the review is empty")
        yield split, kind, int(number), text


def read_keras(path: Path, index: Path, builder: Builder) -> None:
    """Add the reviews of Keras' imdb.npz, lists of word ranks. The words come from imdb_word_index.json beside it.
    Without that file a word's name is its rank, and word vectors cannot be used."""
    names = _index(index) if index.is_file() else {}
    for split in ("train", "test"):
        for review, label in zip(*keras.split(path, split), strict=True):
            builder.add(split, int(label), [names.get(rank, f"#{rank}") for rank in review])


def by_films(numbered: list[tuple[str, int]]) -> tuple[Array, Array]:
    """Rows of the training and of the validation set, which share hardly a film.

    Args:
        numbered: class and number of each review in the archive's training folder.
    """
    train: list[int] = []
    valid: list[int] = []
    for kind, start in FROM.items():
        rows = [row for row, (label, _) in enumerate(numbered) if label == kind]
        rows.sort(key=lambda row: numbered[row][1])
        first = round(start * len(rows))
        last = first + round(VALIDATING * len(rows))
        train += rows[:first] + rows[last:]
        valid += rows[first:last]
    return np.array(train, np.int64), np.array(valid, np.int64)


def _seeded(count: int) -> tuple[Array, Array]:
    """Rows of the training and of the validation set, a random tenth, where the order does not tell the films apart."""
    order = np.random.default_rng(SPLIT_SEED).permutation(count)
    first = count - max(1, round(VALIDATING * count))
    return order[:first], order[first:]


def _finished(
    path: Path, builder: Builder, train: Array, valid: Array, size: int, words: Sequence[str] | None
) -> TextData:
    """The data of a builder whose "train" is divided into these rows for training and validation."""
    counts = {split: (builder.count(split), WHOLE) for split in ("train", "test")}
    for split, (count, _) in counts.items():
        if count < 2:
            raise DataError(f"{path} has no {split}/pos and {split}/neg reviews in it: it is not the IMDB archive")
    builder.divide("train", {"train": train, "valid": valid})
    remark = f"{len(valid):,} of train validate; from {path.name}"
    return builder.finish(size, completeness("IMDB", counts, remark), words)


def _index(path: Path) -> dict[int, str]:
    """The words of Keras' word index by rank."""
    try:
        words = {rank: word for word, rank in json.loads(content(path, LARGEST_INDEX)).items()}
        if not all(isinstance(rank, int) and word.encode() and "\n" not in word for rank, word in words.items()):
            raise ValueError("it should have a rank for each word")
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is damaged or not Keras' word index ({error}): get it again") from None
    return words
