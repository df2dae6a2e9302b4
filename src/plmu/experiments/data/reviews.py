"""A stream of words to pre-train on: reviews of products from Amazon, of films from IMDB, or both.

Each review is a 0 followed by the numbers of its words, and a text that occurs more than once is taken once. A hash of
its text says whether a review trains (98 %), validates (1 %) or tests (1 %), so it stays where it is whatever other
reviews there are. Of IMDB the unlabelled and the training reviews are read, without those that validate in
`plmu.experiments.data.imdb` and without any text that is also there or in IMDB's test reviews.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from plmu.data.cache import Array, cached
from plmu.data.files import DataConfig, find, is_file, unreadable
from plmu.data.reading import filled_lines
from plmu.errors import DataError
from plmu.experiments.data import imdb
from plmu.text.symbols import SEPARATOR
from plmu.text.words import (
    FIRST,
    PACKINGS,
    RULES,
    completeness,
    final_numbers,
    most_frequent,
    tokenise,
    vocabulary_settings,
)

FOLDER = "amazon"
HOME = "https://nijianmo.github.io/amazon/"
ENDS = tuple(f"{end}{packing}" for end in (".json", ".jsonl") for packing in PACKINGS)
PAPER = 3_700_000  # reviews of the paper's language model
FILMS = 72_500  # reviews of IMDB that are unlabelled or train
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
    """Streams of train, valid and test, the words of the numbers from FIRST on, and what of the original is here."""

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
    found = [path for path in inside if path.name.endswith(ENDS) and is_file(path)]
    if not found:
        raise DataError(
            f"{folder / FOLDER} has no .json or .jsonl file, plain or packed. Put files of reviews there (they come"
            f" from {HOME})"
        )
    return found


def load(config: ReviewsConfig, size: int = VOCABULARY, words: Sequence[str] | None = None) -> ReviewData:
    """The streams, with the vocabulary `words`, else the `size` most frequent words of train.

    Read once, which takes minutes, and kept in the cache.
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
    """The texts of a file with one JSON object a line; "" where there is none."""
    count = 0
    for number, line in filled_lines(path):
        try:
            review = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: it is not JSON ({error})") from None
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
    """Eight bytes that stand for a text; its spaces at both ends do not count."""
    raw = text.strip().encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


def split_of(number: int) -> str:
    """The split of a review by its fingerprint."""
    return {0: "valid", 1: "test"}.get(number % 100, "train")


def _films(path: Path) -> tuple[list[str], set[int]]:
    """IMDB's reviews to train on, and the fingerprints of those that validate or test classifiers."""
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


def _amazon_remark(kept: int, left: int) -> str:
    share = f"partial: {kept:,} of the paper's 3.7 million" if kept < PAPER else f"{kept:,}, the paper had 3.7 million"
    return f"Amazon reviews, {share}, {left:,} empty or repeated ones left out"


def _imdb_remark(kept: int, left: int) -> str:
    counts = {"training and unlabelled reviews": (kept + left, FILMS)}
    return completeness("IMDB", counts, f"{left:,} repeated or held-out ones left out")


class _Streams:
    """Collects reviews by split and numbers their words once all are there."""

    def __init__(self, held_out: Iterable[int]) -> None:
        self.seen = set(held_out)
        self.numbers = {"": 0}  # which no word is: it begins each review
        self.parts = {name: array("I") for name in SPLITS}

    def add(self, texts: Iterable[str]) -> tuple[int, int]:
        """Returns how many were added and how many left out, being empty, repeated or held out."""
        numbers, seen = self.numbers, self.seen
        kept = left = 0
        for text in texts:
            own = fingerprint(text)
            words = [] if own in seen else tokenise(text)
            if not words:
                left += 1
                continue
            kept += 1
            seen.add(own)
            part = self.parts[split_of(own)]
            part.append(0)
            part.extend([numbers.setdefault(word, len(numbers)) for word in words])
        return kept, left

    def finish(self, files: list[Path], size: int, words: Sequence[str] | None, remark: str) -> dict[str, Array]:
        """For the cache."""
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
        out = {name: np.concatenate([final[chunk] for chunk in _chunks(part)]) for name, part in parts.items()}
        out["words"] = np.frombuffer("\n".join(words).encode(), np.uint8)
        out["completeness"] = np.frombuffer(f"{remark}; split 98/1/1 % by a hash".encode(), np.uint8)
        return out


def _chunks(values: Array) -> Iterator[Array]:
    return (values[start : start + CHUNK] for start in range(0, len(values), CHUNK))


def _data(arrays: dict[str, Array]) -> ReviewData:
    """From the cache. Raises KeyError or ValueError if they do not belong together."""
    text = bytes(arrays["words"]).decode()
    words = tuple(text.split("\n")) if text else ()
    splits = {name: arrays[name] for name in SPLITS}
    for name, split in splits.items():
        plain = split.dtype.kind == "u" and split.ndim == 1 and len(split)
        if not plain or split[0] != SEPARATOR or split.max() >= FIRST + len(words):
            raise ValueError(f"{name}: its numbers are not those of the words")
    return ReviewData(splits, words, bytes(arrays["completeness"]).decode())
