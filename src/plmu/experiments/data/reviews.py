"""A stream of words to pre-train on: reviews of products from Amazon, of films from IMDB, or both.

Each review is a 0 followed by the numbers of its words, and a text that occurs more than once is taken once. A hash of
its text decides whether a review is in the training set (98 %), the validation set (1 %) or the test set (1 %), which
other reviews do not change. Of IMDB the unlabelled and the training reviews are read, without the texts that occur in
the validation set of `plmu.experiments.data.imdb` or among IMDB's test reviews.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from plmu.data.cache import Array, array_texts, cached, text_array
from plmu.data.files import DataConfig, find, is_file, packed, unreadable
from plmu.data.reading import json_lines
from plmu.errors import DataError
from plmu.experiments.data import imdb
from plmu.text.symbols import SEPARATOR
from plmu.text.words import (
    FIRST,
    RULES,
    completeness,
    final_numbers,
    most_frequent,
    tokenise,
    vocabulary_settings,
)

FOLDER = "amazon"
HOME = "https://nijianmo.github.io/amazon/"
ENDS = (*packed(".json"), *packed(".jsonl"))
PAPER = 3_700_000  # reviews of the paper's language model
FILMS = 72_500  # unlabelled and training reviews of IMDB, those held out included
VOCABULARY = 30_000
SPLITS = ("train", "valid", "test")
CHUNK = 2**22  # words numbered at a time


@dataclass
class ReviewsConfig(DataConfig):
    """Which reviews, and where they are."""

    corpus: Literal["amazon", "imdb", "both"] = "amazon"
    """Reviews of products (amazon), IMDB's unlabelled and training reviews (imdb), or both."""


@dataclass
class ReviewData:
    """Streams of train, valid and test, the words of the numbers from FIRST on, and how complete the data is."""

    splits: dict[str, Array]
    words: tuple[str, ...]
    completeness: str


def locate(config: DataConfig) -> list[Path]:
    """The files of Amazon's reviews in the data folder, by name."""
    folder = config.folder()
    if folder is None:
        raise DataError(
            f"Amazon's reviews are not downloaded: get files of them from {HOME}, put them into a folder"
            f" <data>/{FOLDER}/ and set PLMU_DATA or --data.root to <data>"
        )
    try:
        inside = sorted((folder / FOLDER).iterdir()) if (folder / FOLDER).is_dir() else []
    except OSError as error:
        raise unreadable(error) from None
    files = [path for path in inside if path.name.endswith(ENDS) and is_file(path)]
    if not files:
        raise DataError(
            f"{folder / FOLDER} has no .json or .jsonl file, plain or packed. Put files of reviews there (they come"
            f" from {HOME})"
        )
    return files


def load(config: ReviewsConfig, size: int = VOCABULARY, words: Sequence[str] | None = None) -> ReviewData:
    """The streams, with the vocabulary `words`, or else the `size` most frequent words of train.

    The first time takes minutes; then they come from the cache.
    """
    products = locate(config) if config.corpus != "imdb" else []
    films = [find(config, imdb.FOLDER, imdb.ARCHIVES, imdb.ORIGINAL)] if config.corpus != "amazon" else []

    def make() -> dict[str, Array]:
        remarks = []
        chosen, held_out = _films(films[0]) if films else ([], set())
        streams = _Streams(held_out)
        if products:
            texts = (text for path in products for text in read(path))
            remarks.append(_amazon_remark(*streams.add(texts)))
        if films:
            remarks.append(_imdb_remark(*streams.add(chosen)))
        return streams.finish([*products, *films], size, words, "; ".join(remarks))

    settings = {"corpus": config.corpus, "rules": RULES, "version": 1, **vocabulary_settings(size, words)}
    return cached("reviews", [*products, *films], settings, make, _data)


def read(path: Path) -> Iterator[str]:
    """The texts of a file with one JSON object a line; "" for an object without a text."""
    count = 0
    for number, review in json_lines(path):
        if not isinstance(review, dict):
            raise DataError(f"{path}, line {number}: it is not a JSON object with a reviewText")
        text = review.get("reviewText") or ""
        if not isinstance(text, str):
            raise DataError(f"{path}, line {number}: its reviewText is not a text but {str(text)[:40]}")
        count += bool(text)
        yield text
    if not count:
        raise DataError(f"{path} has no review in it: each line should be a JSON object with a reviewText")


def fingerprint(text: str) -> int:
    """A hash of a text in eight bytes, which ignores white space at both ends."""
    raw = text.strip().encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


def split_of(fingerprint: int) -> str:
    """The split of the text with this fingerprint."""
    return {0: "valid", 1: "test"}.get(fingerprint % 100, "train")


def _films(path: Path) -> tuple[list[str], set[int]]:
    """IMDB's texts to train on, and the fingerprints of the reviews in the classifiers' validation and test sets."""
    labelled, unlabelled, numbered = [], [], []
    held_out = set()
    for split, kind, number, text in imdb.reviews(path, unlabelled=True):
        if split == "test":
            held_out.add(fingerprint(text))
        elif kind == "unsup":
            unlabelled.append(text)
        else:
            labelled.append(text)
            numbered.append((kind, number))
    train, valid = imdb.by_films(numbered)
    held_out.update(fingerprint(labelled[row]) for row in valid)
    return [labelled[row] for row in train] + unlabelled, held_out


def _amazon_remark(added: int, skipped: int) -> str:
    if added < PAPER:
        share = f"partial: {added:,} of the paper's 3.7 million"
    else:
        share = f"{added:,}, the paper had 3.7 million"
    return f"Amazon reviews, {share}, {skipped:,} empty or repeated ones left out"


def _imdb_remark(added: int, skipped: int) -> str:
    counts = {"training and unlabelled reviews": (added + skipped, FILMS)}
    return completeness("IMDB", counts, f"{skipped:,} repeated or held-out ones left out")


class _Streams:
    """Collects reviews by split and numbers their words at the end."""

    def __init__(self, held_out: Iterable[int]) -> None:
        self.fingerprints = set(held_out)  # of texts that are not added
        self.numbers = {"": 0}  # of words in order of appearance; 0, which begins each review, is not a word
        self.parts = {name: array("I") for name in SPLITS}

    def add(self, texts: Iterable[str]) -> tuple[int, int]:
        """Add texts. Returns the number of texts added, and of those skipped: empty, repeated or held out."""
        numbers, fingerprints = self.numbers, self.fingerprints
        added = skipped = 0
        for text in texts:
            number = fingerprint(text)
            words = [] if number in fingerprints else tokenise(text)
            if not words:
                skipped += 1
                continue
            added += 1
            fingerprints.add(number)
            part = self.parts[split_of(number)]
            part.append(0)
            part.extend([numbers.setdefault(word, len(numbers)) for word in words])
        return added, skipped

    def finish(self, files: list[Path], size: int, words: Sequence[str] | None, remark: str) -> dict[str, Array]:
        """Number the words by the vocabulary and return the arrays for the cache.

        Args:
            files: where the texts come from, for an error message.
            size: number of words of the vocabulary, the most frequent of train; unused if `words` are given.
            words: the vocabulary.
            remark: how complete the data is.
        """
        parts = {name: np.frombuffer(part, np.uint32) for name, part in self.parts.items() if part}
        if len(parts) < len(SPLITS):
            raise DataError(
                f"{', '.join(map(str, files))}: too few reviews for three splits, a hundred or more are needed"
            )
        names = list(self.numbers)
        if words is None:
            counts = np.zeros(len(names), np.int64)
            for chunk in _chunks(parts["train"]):
                counts += np.bincount(chunk, minlength=len(names))
            counts[0] = 0
            words = most_frequent(names, counts, size)
        else:
            size = len(words)
        final = final_numbers(names, words, size)
        final[0] = SEPARATOR
        arrays = {name: np.concatenate([final[chunk] for chunk in _chunks(part)]) for name, part in parts.items()}
        arrays["words"] = text_array(words)
        arrays["completeness"] = text_array([f"{remark}; split 98/1/1 % by a hash"])
        return arrays


def _chunks(values: Array) -> Iterator[Array]:
    return (values[start : start + CHUNK] for start in range(0, len(values), CHUNK))


def _data(arrays: dict[str, Array]) -> ReviewData:
    """Build ReviewData from cached arrays.

    Raises:
        KeyError, ValueError: the arrays do not fit together.
    """
    words = tuple(array_texts(arrays["words"]))
    splits = {name: arrays[name] for name in SPLITS}
    for name, split in splits.items():
        is_stream = split.dtype.kind == "u" and split.ndim == 1 and len(split)
        if not is_stream or split[0] != SEPARATOR or split.max() >= FIRST + len(words):
            raise ValueError(f"{name}: its numbers are not those of the words")
    return ReviewData(splits, words, bytes(arrays["completeness"]).decode())
