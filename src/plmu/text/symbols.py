"""Symbols: what the token numbers of a text model stand for, which is characters, bytes or words.

A file beside the model says which: `symbols.json` for characters and bytes, `vocabulary.txt` for words.
"""

from __future__ import annotations

import codecs
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from plmu.data.files import is_file
from plmu.data.reading import content
from plmu.errors import DataError, RunError
from plmu.text.words import FIRST, PADDING, UNKNOWN, tokenise

SYMBOLS_FILE = "symbols.json"
VOCABULARY_FILE = "vocabulary.txt"
LARGEST_FILE = 2**26  # bytes of either
SEPARATOR = PADDING  # the number between the texts of a stream of words
BYTES = 256


class Decoder(ABC):
    """Turns token numbers into text, one at a time."""

    def __init__(self, size: int) -> None:
        self.size = size

    def push(self, number: int) -> str:
        """The text that can be printed once this number is known. ValueError if there is no such number."""
        if not 0 <= number < self.size:
            raise ValueError(f"token number {number} is not one of 0 … {self.size - 1}")
        return self._push(number)

    def finish(self) -> str:
        """The rest of the text, at its end."""
        return ""

    @abstractmethod
    def _push(self, number: int) -> str: ...


class Symbols(ABC):
    """Text as token numbers from 0 to `size` − 1, and back."""

    kind: str  # "characters", "bytes" or "words"
    size: int

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Token numbers of a text. ValueError names the first character that is no symbol."""

    @abstractmethod
    def decoder(self) -> Decoder:
        """A decoder for a new text."""

    @abstractmethod
    def companions(self) -> dict[str, str]:
        """Names and contents of the files to write beside a model."""

    def decode(self, numbers: Sequence[int]) -> str:
        """The text of all these token numbers."""
        decoder = self.decoder()
        return "".join(map(decoder.push, numbers)) + decoder.finish()


class Characters(Symbols):
    """An alphabet of single characters.

    >>> letters = Characters((" ", "a", "b"))
    >>> letters.encode("ab a")
    [1, 2, 0, 1]
    >>> letters.decode([2, 0, 1])
    'b a'
    """

    kind = "characters"

    def __init__(self, alphabet: Sequence[str]) -> None:
        self.alphabet = tuple(alphabet)
        self.size = len(self.alphabet)
        self._numbers = {character: number for number, character in enumerate(self.alphabet)}
        if not self.alphabet or len(self._numbers) != self.size or any(len(letter) != 1 for letter in self.alphabet):
            raise ValueError("an alphabet is one or more single characters, each once")

    def encode(self, text: str) -> list[int]:
        try:
            return [self._numbers[character] for character in text]
        except KeyError as error:
            place = text.index(error.args[0]) + 1
            alphabet = "".join(self.alphabet)
            raise ValueError(f"character {place}, {error}, is not in the model's alphabet: {alphabet!r}") from None

    def decoder(self) -> Decoder:
        return _CharacterDecoder(self.alphabet)

    def companions(self) -> dict[str, str]:
        return {SYMBOLS_FILE: json.dumps({"kind": self.kind, "alphabet": "".join(self.alphabet)}) + "\n"}


class _CharacterDecoder(Decoder):
    def __init__(self, alphabet: Sequence[str]) -> None:
        super().__init__(len(alphabet))
        self.alphabet = alphabet

    def _push(self, number: int) -> str:
        return self.alphabet[number]


class Bytes(Symbols):
    """The 256 bytes, as text in UTF-8. Bytes that are not UTF-8 decode to U+FFFD.

    >>> Bytes().encode("é")
    [195, 169]
    >>> decoder = Bytes().decoder()
    >>> decoder.push(195), decoder.push(169)
    ('', 'é')
    """

    kind = "bytes"
    size = BYTES

    def encode(self, text: str) -> list[int]:
        try:
            return list(text.encode())
        except UnicodeEncodeError as error:
            reason = f"character {error.start + 1}, {text[error.start]!r}, cannot be written in UTF-8"
            raise ValueError(reason) from None

    def decoder(self) -> Decoder:
        return _ByteDecoder()

    def companions(self) -> dict[str, str]:
        return {SYMBOLS_FILE: json.dumps({"kind": self.kind}) + "\n"}


class _ByteDecoder(Decoder):
    def __init__(self) -> None:
        super().__init__(BYTES)
        self.text = codecs.getincrementaldecoder("utf-8")("replace")

    def _push(self, number: int) -> str:
        return self.text.decode(bytes([number]))

    def finish(self) -> str:
        return self.text.decode(b"", final=True)


class Words(Symbols):
    """A vocabulary of the words of `plmu.text.words.tokenise`, most frequent first.

    Number 0 separates texts and 1 is an unknown word. Decoded text has no capitals and little punctuation.

    >>> words = Words(("it", "is", "n't", "?"))
    >>> words.encode("Isn't it great?")
    [3, 4, 2, 1, 5]
    >>> words.decode([3, 4, 2, 1, 5])
    "isn't it <unk>?"
    """

    kind = "words"

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self.size = FIRST + len(self.words)
        self._numbers = {word: number for number, word in enumerate(self.words, FIRST)}
        if len(self._numbers) != len(self.words) or any(not word or "\n" in word for word in self.words):
            raise ValueError("a vocabulary has each word once, none empty and none with a line break")

    def encode(self, text: str) -> list[int]:
        return [self._numbers.get(word, UNKNOWN) for word in tokenise(text)]

    def decoder(self) -> Decoder:
        return _WordDecoder(self.words)

    def companions(self) -> dict[str, str]:
        return {VOCABULARY_FILE: "".join(f"{word}\n" for word in self.words)}


class _WordDecoder(Decoder):
    attached = ("'", "n't", "!", "?", "...")  # no space comes before a word that starts so

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(FIRST + len(words))
        self.words = words
        self.starts = True  # whether the next word begins a line

    def _push(self, number: int) -> str:
        if number == SEPARATOR:
            self.starts = True
            return "\n"
        word = "<unk>" if number == UNKNOWN else self.words[number - FIRST]
        space = "" if self.starts or word.startswith(self.attached) else " "
        self.starts = False
        return space + word


def beginning(symbols: Symbols) -> list[int]:
    """Token numbers that begin a text without a prompt: a separator, a line break or a space."""
    if isinstance(symbols, Words):
        return [SEPARATOR]
    if isinstance(symbols, Characters):
        blanks = [character for character in "\n " if character in symbols.alphabet]
        return symbols.encode(blanks[0] if blanks else symbols.alphabet[0])
    return symbols.encode("\n")


def read(folder: Path, size: int) -> Symbols:
    """The symbols of a model with `size` embeddings, from the files beside it in `folder`.

    Raises:
        RunError: names the file that is missing, damaged or of another model.
    """
    names = (SYMBOLS_FILE, VOCABULARY_FILE)
    try:
        path = next((folder / name for name in names if is_file(folder / name)), None)
        if path is None:
            raise RunError(f"{folder} has no {' or '.join(names)}: it says what the model's token numbers stand for")
        raw = content(path, LARGEST_FILE)
    except DataError as error:
        raise RunError(str(error)) from None
    try:
        symbols = _symbols(raw.decode()) if path.name == SYMBOLS_FILE else Words(raw.decode().split("\n")[:-1])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{path} is damaged ({error}): copy it again from the run that made the model") from None
    if symbols.size != size:
        raise RunError(
            f"{path} is for {symbols.size:,} token numbers and the model has {size:,} embeddings: they are of different"
            " runs"
        )
    return symbols


def _symbols(text: str) -> Symbols:
    description = json.loads(text)
    match description["kind"]:
        case "bytes":
            return Bytes()
        case "characters" if isinstance(description["alphabet"], str):
            return Characters(tuple(description["alphabet"]))
    raise ValueError(f"it should hold characters or bytes, not {str(description)[:60]}")
