"""Vocabularies: what the token numbers of a translation model stand for, words or pieces by byte-pair encoding.

Number 0 is padding, 1 an unknown word, 2 begins a sentence and 3 ends it. The vocabularies are files beside the model.
Decoding needs no library; encoding into pieces needs `tokenizers`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

from plmu.data.reading import content
from plmu.errors import DataError, RunError, how_to_install

PADDING, UNKNOWN, BEGIN, END, FIRST = 0, 1, 2, 3, 4
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")  # of numbers 0 to 3
UNKNOWN_WORD = SPECIAL[UNKNOWN]
FILES = {"source": "source-vocabulary.txt", "target": "target-vocabulary.txt"}
TOKENIZER_FILE = "tokenizer.json"
LARGEST_FILE = 2**26  # bytes of each
SPACE = "▁"  # begins a piece that begins a word
AT_ONCE = 4096  # sentences that are encoded at a time


class Vocabulary(ABC):
    """Words as token numbers from 0 to `size` − 1, and back."""

    kind: str  # "words" or "pieces"
    size: int

    @abstractmethod
    def encode(self, sentences: Iterable[Sequence[str]]) -> Iterator[list[int]]:
        """The numbers of each sentence, a sequence of words, without BEGIN and END."""

    @abstractmethod
    def decode(self, numbers: Sequence[int], unknown: Sequence[str] = ()) -> list[str]:
        """The words of a sentence, without PADDING, BEGIN and END. The k-th UNKNOWN is the k-th word of `unknown`, or
        "<unk>" after its last."""


class Words(Vocabulary):
    """A vocabulary of whole words.

    >>> words = Words(["a", "dog"])
    >>> list(words.encode([["a", "cat"]]))
    [[4, 1]]
    >>> words.decode([2, 5, 1, 3])
    ['dog', '<unk>']
    >>> words.decode([2, 5, 1, 3], unknown=["cat"])
    ['dog', 'cat']
    """

    kind = "words"

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self.size = FIRST + len(self.words)
        self._numbers = {word: number for number, word in enumerate(self.words, FIRST)}
        if len(self._numbers) != len(self.words) or any(not word or word.split() != [word] for word in self.words):
            raise ValueError("a vocabulary has each word once, none empty and none with a space")

    def encode(self, sentences: Iterable[Sequence[str]]) -> Iterator[list[int]]:
        for words in sentences:
            yield [self._numbers.get(word, UNKNOWN) for word in words]

    def decode(self, numbers: Sequence[int], unknown: Sequence[str] = ()) -> list[str]:
        replacements = chain(unknown, repeat(UNKNOWN_WORD))
        tokens = (number for number in numbers if number not in (PADDING, BEGIN, END))
        return [next(replacements) if number == UNKNOWN else self.words[number - FIRST] for number in tokens]


class Pieces(Vocabulary):
    """Pieces of words by byte-pair encoding, from the JSON of a tokenizer that `train_pieces` made."""

    kind = "pieces"

    def __init__(self, text: str) -> None:
        self.text = text
        numbers: dict[str, int] = json.loads(text)["model"]["vocab"]
        self.pieces = sorted(numbers, key=lambda piece: numbers[piece])
        self.size = len(self.pieces)
        if tuple(self.pieces[:FIRST]) != SPECIAL or sorted(numbers.values()) != list(range(self.size)):
            raise ValueError(f"its first pieces must be {', '.join(SPECIAL)}, numbered without gaps")
        self._tokenizer: Any = None

    def encode(self, sentences: Iterable[Sequence[str]]) -> Iterator[list[int]]:
        if self._tokenizer is None:
            self._tokenizer = _tokenizers().Tokenizer.from_str(self.text)
        remaining = iter(sentences)
        while texts := [" ".join(words) for words in islice(remaining, AT_ONCE)]:
            for encoding in self._tokenizer.encode_batch_fast(texts):
                yield encoding.ids

    def decode(self, numbers: Sequence[int], unknown: Sequence[str] = ()) -> list[str]:
        replacements = chain(unknown, repeat(UNKNOWN_WORD))
        tokens = (number for number in numbers if number not in (PADDING, BEGIN, END))
        pieces = (next(replacements) if number == UNKNOWN else self.pieces[number] for number in tokens)
        return "".join(pieces).replace(SPACE, " ").split()


def train_pieces(sentences: Iterable[str], size: int) -> str:
    """A tokenizer of at most `size` pieces, learned from sentences, as JSON."""
    library = _tokenizers()
    tokenizer = library.Tokenizer(library.models.BPE(unk_token=UNKNOWN_WORD))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Metaspace(replacement=SPACE)
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        limit_alphabet=size - len(SPECIAL),  # else every character of the text becomes a piece
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    text: str = tokenizer.to_str()
    return text


def companions(source: Vocabulary, target: Vocabulary) -> dict[str, str]:
    """Names and contents of the files to write beside a model: the tokenizer that both languages share, or a list of
    words for each."""
    if isinstance(source, Pieces):
        return {TOKENIZER_FILE: source.text}
    assert isinstance(source, Words)
    assert isinstance(target, Words)
    sides = {"source": source, "target": target}
    return {FILES[side]: "".join(f"{word}\n" for word in vocabulary.words) for side, vocabulary in sides.items()}


def read(folder: Path) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of source and target, from the files beside a model.

    Raises:
        RunError: names the file that is missing or damaged.
    """
    vocabularies: list[Vocabulary] = []
    pieces = (folder / TOKENIZER_FILE).is_file()
    for name in (TOKENIZER_FILE,) if pieces else FILES.values():
        path = folder / name
        try:
            text = content(path, LARGEST_FILE).decode()
            vocabularies.append(Pieces(text) if pieces else Words(text.split("\n")[:-1]))
        except DataError as error:
            raise RunError(f"{error}: it says what the model's token numbers stand for") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RunError(f"{path} is damaged ({error}): copy it again from the run that made the model") from None
    return vocabularies[0], vocabularies[-1]


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise DataError(
            f"byte-pair encoding needs tokenizers: {how_to_install('tokenizers')}, or bring the cache of a machine that"
            " has it (PLMU_CACHE)"
        ) from None
    return tokenizers
