"""Texts as token numbers: a tokeniser, a vocabulary counted on training data, and the numbers as arrays.

Sources differ in case and in how punctuation is split off ("don't", "do n't"); the tokeniser brings them to one form.
Number 0 is padding, or separates the texts of a stream, and 1 is a word outside the vocabulary.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from plmu.data.cache import Array, array_texts, text_array

VOCABULARY = 20_000
PADDING, UNKNOWN, FIRST = 0, 1, 2  # token numbers; FIRST is the most frequent word's
RULES = 2  # version of the tokeniser, so that a cache made by other rules is not used

_BREAK = re.compile(r"<br\s*/?>")
_WORD = re.compile(
    r"\d+(?:\.\d+)?/\d+"  # 7/10
    r"|[^\W_]+?(?=n't\b)|n't\b|'(?:s|m|re|ve|ll|d)\b|[^\W_]+"
    r"|\.\.\.|[!?]"
)


def tokenise(text: str) -> list[str]:
    """Words in lower case; "n't", "'s" and their like are words of their own, and so is a fraction as "7/10".

    Of the punctuation only "!", "?" and "..." are kept: they say a little about a review's sentiment.

    >>> tokenise("It's great, isn't it? 7/10!")
    ['it', "'s", 'great', 'is', "n't", 'it', '?', '7/10', '!']
    """
    plain = text.lower().replace("’", "'").replace("‘", "'")
    return _WORD.findall(_BREAK.sub(" ", plain).replace("cannot", "can not"))


@dataclass
class Ragged:
    """Sequences of token numbers, one after another."""

    values: Array
    ends: Array  # (examples,): where each sequence ends in `values`

    def __len__(self) -> int:
        return len(self.ends)

    def take(self, rows: Array) -> Ragged:
        starts = np.concatenate([[0], self.ends[:-1]]).astype(np.int64)
        parts = [self.values[starts[row] : self.ends[row]] for row in rows]
        ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        return Ragged(np.concatenate(parts) if parts else self.values[:0], ends)

    def padded(self, longest: int, keep: Literal["first", "last"]) -> tuple[Tensor, Tensor]:
        """Token numbers (examples, longest), padded on the right, and lengths (examples,).

        Of a sequence longer than `longest`, the first or the last tokens are kept.
        """
        ends = np.asarray(self.ends, dtype=np.int64)
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(ends)]
        lengths = np.minimum(ends - starts, longest)
        begin = starts if keep == "first" else ends - lengths
        places = begin[:, None] + np.arange(longest)
        valid = np.arange(longest) < lengths[:, None]
        if len(self.values):
            out = np.where(valid, self.values[np.where(valid, places, 0)], PADDING)
        else:
            out = np.zeros(valid.shape)
        return torch.from_numpy(out.astype(np.int32)), torch.from_numpy(lengths)


@dataclass
class Split:
    """Texts, one or two an example, and their classes."""

    sides: tuple[Ragged, ...]
    labels: Array

    def check(self, name: str, numbers: int) -> None:
        """Raise ValueError unless every side has a text for each label, of token numbers below `numbers`."""
        for side in self.sides:
            values, ends = side.values, side.ends
            flat = values.ndim == ends.ndim == self.labels.ndim == 1 and ends.dtype == np.int64
            if not flat or values.dtype.kind != "u" or len(ends) != len(self.labels) or (values >= numbers).any():
                raise ValueError(f"{name}: texts and labels do not fit together")
            if (np.diff(ends, prepend=0, append=len(values)) < 0).any() or ends[-1:].sum() != len(values):
                raise ValueError(f"{name}: texts have no order")

    def take(self, rows: Array) -> Split:
        return Split(tuple(side.take(rows) for side in self.sides), self.labels[rows])

    def batch(self, longest: int, keep: Literal["first", "last"]) -> tuple[Tensor, ...]:
        """Tokens and lengths of each side, then labels."""
        sides = [part for side in self.sides for part in side.padded(longest, keep)]
        return (*sides, torch.from_numpy(self.labels.astype(np.int64)))


@dataclass
class TextData:
    """A source: train, valid and test, the words of the numbers from FIRST on, and how complete the data is."""

    splits: dict[str, Split]
    words: list[str]
    completeness: str = ""

    def arrays(self) -> dict[str, Array]:
        """The arrays for the cache."""
        arrays = {"words": text_array(self.words), "completeness": text_array([self.completeness])}
        for name, split in self.splits.items():
            arrays[f"{name}.labels"] = split.labels
            for number, side in enumerate(split.sides):
                arrays[f"{name}.{number}.values"], arrays[f"{name}.{number}.ends"] = side.values, side.ends
        return arrays

    @classmethod
    def of(cls, arrays: dict[str, Array]) -> TextData:
        """From the cache. KeyError or ValueError if the arrays do not fit together."""
        sides = sum(name.startswith("train.") and name.endswith(".ends") for name in arrays)
        if not sides:
            raise ValueError("there are no texts")
        splits = {}
        for name in ("train", "valid", "test"):
            ragged = (Ragged(arrays[f"{name}.{i}.values"], arrays[f"{name}.{i}.ends"]) for i in range(sides))
            splits[name] = Split(tuple(ragged), np.asarray(arrays[f"{name}.labels"]))
        words = array_texts(arrays["words"])
        for name, split in splits.items():
            split.check(name, FIRST + len(words))
        return cls(splits, words, bytes(arrays["completeness"]).decode())


@dataclass
class _Part:
    values: list[array[int]]
    ends: list[array[int]]
    labels: array[int] = field(default_factory=lambda: array("B"))


class Builder:
    """Collects tokenised texts by split and numbers their words at the end."""

    def __init__(self, sides: int) -> None:
        self.sides = sides
        self.numbers: dict[str, int] = {}
        self.parts: dict[str, _Part] = {}
        self.splits: dict[str, Split] = {}

    def add(self, split: str, label: int, *texts: Sequence[str]) -> None:
        """One example: its class and the words of each side."""
        part = self.parts.get(split)
        if part is None:
            part = _Part([array("I") for _ in range(self.sides)], [array("q") for _ in range(self.sides)])
            self.parts[split] = part
        part.labels.append(label)
        numbers = self.numbers
        for values, ends, words in zip(part.values, part.ends, texts, strict=True):
            values.extend([numbers.setdefault(word, len(numbers)) for word in words])
            ends.append(len(values))

    def count(self, split: str) -> int:
        return len(self.parts[split].labels) if split in self.parts else 0

    def divide(self, split: str, into: dict[str, Array]) -> None:
        """Divide a split into several: the name and the rows of each."""
        source = self._split(split)
        self.splits.update({name: source.take(rows) for name, rows in into.items()})
        del self.parts[split]

    def finish(self, size: int, completeness: str, words: Sequence[str] | None = None) -> TextData:
        """The data. Words outside the vocabulary `words`, or else the `size` most frequent of `train`, are UNKNOWN."""
        self.splits.update({name: self._split(name) for name in self.parts})
        names = list(self.numbers)
        if words is None:
            train = self.splits["train"]
            counts = np.sum([np.bincount(side.values, minlength=len(names)) for side in train.sides], axis=0)
            words = most_frequent(names, counts, size)
        else:
            size = len(words)
        final = final_numbers(names, words, size)
        splits = {
            name: Split(tuple(Ragged(final[side.values], side.ends) for side in split.sides), split.labels)
            for name, split in self.splits.items()
        }
        return TextData(splits, list(words), completeness)

    def _split(self, name: str) -> Split:
        part = self.parts[name]
        sides = (
            Ragged(np.array(values, np.uint32), np.array(ends, np.int64))
            for values, ends in zip(part.values, part.ends, strict=True)
        )
        return Split(tuple(sides), np.frombuffer(part.labels, np.uint8))


def most_frequent(names: Sequence[str], counts: Array, size: int) -> list[str]:
    """The `size` names with the highest counts, ties in alphabetical order; fewer if not so many occur."""
    numbers = [int(number) for number in np.flatnonzero(counts)]
    numbers.sort(key=lambda number: (-counts[number], names[number]))
    return [names[number] for number in numbers[:size]]


def final_numbers(names: Sequence[str], words: Sequence[str], size: int) -> Array:
    """The token number of each name in a vocabulary of up to `size` words, in 2 bytes each if that suffices, else 4."""
    places = {word: number for number, word in enumerate(words, FIRST)}
    kind = np.uint16 if size + FIRST < 2**16 else np.uint32
    return np.array([places.get(name, UNKNOWN) for name in names], kind)


def vocabulary_settings(size: int, words: Sequence[str] | None) -> dict[str, object]:
    """The vocabulary, for the key of a cache: its words if they are given, else its size."""
    if words is None:
        return {"size": size}
    return {"size": len(words), "words": hashlib.sha256("\n".join(words).encode()).hexdigest()}


def completeness(name: str, counts: dict[str, tuple[int, int]], remark: str = "") -> str:
    """A line for the results: the examples of each split, and those of the original.

    >>> completeness("SNLI", {"train": (100_000, 550_152), "test": (9_824, 9_824)})
    'SNLI, train partial: 100,000 of 550,152; test complete: 9,824'
    """
    if all(count == whole for count, whole in counts.values()):
        text = f"{name}, complete: " + " / ".join(f"{count:,}" for count, _ in counts.values())
    else:
        parts = (
            f"{split} complete: {count:,}" if count == whole else f"{split} partial: {count:,} of {whole:,}"
            for split, (count, whole) in counts.items()
        )
        text = f"{name}, " + "; ".join(parts)
    return f"{text}; {remark}" if remark else text
