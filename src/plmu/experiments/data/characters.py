"""Text as one long sequence of characters or bytes: text8, or the user's own text.

text8 is the first 100,000,000 bytes of a cleaned English Wikipedia: the letters a to z and spaces. The usual split is
90 million bytes for training, then 5 million each for validation and test. Shorter texts are split in proportion.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from plmu.data.cache import Array, cached, text_array
from plmu.data.files import DataConfig, Remote, find, is_file, packed
from plmu.data.reading import content
from plmu.errors import DataError
from plmu.text.symbols import BYTES, Bytes, Characters, Symbols

FOLDER = "text8"
ORIGINAL = Remote(
    "http://mattmahoney.net/dc/text8.zip", "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232"
)
HOME = ORIGINAL.url
NAMES = ("text8.zip", *packed("text8"), *packed("text8-prefix"))
WHOLE = 100_000_000  # bytes of text8
ALPHABET = " abcdefghijklmnopqrstuvwxyz"
LARGEST = 2**32  # bytes of the user's own text
SHORTEST = 1_000  # tokens of any text
PERCENT = {"train": 90, "valid": 5, "test": 5}
CHUNK = 2**20  # bytes decoded at a time

_CODES = 0x110000  # of all characters


@dataclass
class CharactersConfig(DataConfig):
    """Which text, and where it is."""

    file: Path | None = None
    """A text file of your own, in UTF-8, instead of text8. Split 90/5/5 % into train, validation and test."""
    tokens: Literal["auto", "characters", "bytes"] = "auto"
    """Tokens of your own text: its characters if there are at most 256 different ones, else bytes."""


@dataclass
class CharacterData:
    """Token numbers of train, valid and test (uint8), what they stand for, and how complete the data is."""

    splits: dict[str, Array]
    symbols: Symbols
    completeness: str


def locate(config: DataConfig) -> Path:
    """text8 in the data folder, complete or its beginning; without a data folder it is downloaded."""
    return find(config, FOLDER, NAMES, ORIGINAL)


def load(config: CharactersConfig) -> CharacterData:
    """text8, or the file of the configuration, through the cache."""
    if config.file is None:
        path = locate(config)
        return cached("text8", [path], {"version": 1}, lambda: _arrays(*_text8(path)), _data)
    path, tokens = config.file, config.tokens
    if not is_file(path):
        raise DataError(f"{path} is {'not a file' if path.exists() else 'not there'}: --data.file takes a text file")
    settings = {"tokens": tokens, "version": 1}
    return cached("text", [path], settings, lambda: _arrays(*_user_text(path, tokens)), _data)


def _text8(path: Path) -> tuple[Array, Symbols, str]:
    """text8 or its beginning: token numbers (uint8), symbols, and how complete it is."""
    raw = content(path, WHOLE, "text8")
    others = raw.translate(None, ALPHABET.encode())
    if others:
        reason = f"it has {chr(others[0])!r}, and text8 has nothing but spaces and a to z"
        raise DataError(f"{_place(path, raw, raw.index(others[:1]))}: {reason}")
    _check_length(path, len(raw))
    table = bytes(max(0, ALPHABET.find(chr(byte))) for byte in range(BYTES))
    if len(raw) == WHOLE:
        completeness = "text8, complete: 90/5/5 million"
    else:
        completeness = f"text8, partial: the first {len(raw):,} of {WHOLE:,} bytes, split 90/5/5 % by length"
    return np.frombuffer(raw.translate(table), np.uint8), Characters(ALPHABET), completeness


def _user_text(path: Path, tokens: str) -> tuple[Array, Symbols, str]:
    """The user's own text: token numbers (uint8), symbols, and a description of the data.

    `tokens` is that of CharactersConfig.
    """
    raw = content(path, LARGEST).removeprefix(codecs.BOM_UTF8)
    _check_length(path, len(raw))
    used: Array = np.zeros(0, np.int64)
    if tokens != "bytes":
        occurs = np.zeros(_CODES, bool)
        for codes in _decoded(path, raw):
            occurs[codes] = True
        used = np.flatnonzero(occurs)
    if tokens == "characters" and len(used) > BYTES:
        reason = f"has {len(used):,} different characters, and at most {BYTES} can be tokens"
        raise DataError(f"{path} {reason}: choose --data.tokens bytes")
    if tokens == "bytes" or len(used) > BYTES:
        symbols: Symbols = Bytes()
        numbers = np.frombuffer(raw, np.uint8)
        counted = f"{len(raw):,} bytes"
    else:
        symbols = Characters([chr(code) for code in used])
        table = np.zeros(_CODES, np.uint8)
        table[used] = np.arange(len(used))
        numbers = np.concatenate([table[codes] for codes in _decoded(path, raw)])
        counted = f"{len(numbers):,} characters, {len(used)} different ones"
    _check_length(path, len(numbers))
    return numbers, symbols, f"own text {path.name}: {counted}, split 90/5/5 % by length"


def _decoded(path: Path, raw: bytes) -> Iterator[Array]:
    """Code points of a text in UTF-8, a chunk at a time."""
    view, start = memoryview(raw), 0
    while start < len(raw):
        end = start + CHUNK
        try:
            text, read = codecs.utf_8_decode(view[start:end], "strict", end >= len(raw))
        except UnicodeDecodeError as error:
            where = _place(path, raw, start + error.start)
            raise DataError(f"{where}: it is not UTF-8 ({error.reason}); --data.tokens bytes takes any file") from None
        yield np.frombuffer(text.encode("utf-32-le"), np.uint32)
        start += read


def _place(path: Path, raw: bytes, place: int) -> str:
    """A position in a text as file, line and byte, for an error message."""
    line, start = raw.count(b"\n", 0, place) + 1, raw.rfind(b"\n", 0, place) + 1
    return f"{path}, line {line}, byte {place - start + 1}"


def _check_length(path: Path, length: int) -> None:
    if length < SHORTEST:
        raise DataError(f"{path} has a text of {length:,} characters: at least {SHORTEST:,} are needed")


def _arrays(numbers: Array, symbols: Symbols, completeness: str) -> dict[str, Array]:
    """The arrays for the cache, with the numbers split by PERCENT."""
    alphabet = symbols.alphabet if isinstance(symbols, Characters) else ()
    arrays: dict[str, Array] = {
        "alphabet": np.array([ord(character) for character in alphabet], np.uint32),
        "completeness": text_array([completeness]),
    }
    start = 0
    for name, percent in PERCENT.items():
        end = len(numbers) if name == "test" else start + len(numbers) * percent // 100
        arrays[name] = numbers[start:end]
        start = end
    return arrays


def _data(arrays: dict[str, Array]) -> CharacterData:
    """Build CharacterData from cached arrays.

    Raises:
        KeyError, ValueError: the arrays do not fit together.
    """
    codes = arrays["alphabet"].tolist()
    symbols = Characters([chr(code) for code in codes]) if codes else Bytes()
    splits = {name: arrays[name] for name in PERCENT}
    for name, split in splits.items():
        if split.dtype != np.uint8 or split.ndim != 1 or not len(split) or split.max() >= symbols.size:
            raise ValueError(f"{name}: its numbers are not those of the alphabet")
    return CharacterData(splits, symbols, bytes(arrays["completeness"]).decode())
