"""Text from a trained language model, printed as it is sampled."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import plmu
from plmu.errors import RunError
from plmu.nn import Steppable
from plmu.runs.deployed import load_steppable, symbols_of
from plmu.runs.folder import model_file
from plmu.text.symbols import Symbols, Words, beginning
from plmu.text.words import UNKNOWN


def load(path: Path) -> tuple[Steppable, Symbols]:
    """The language model of a run's folder, or a model file, and its symbols, from the files beside it."""
    model = load_steppable(path, "expected the folder of a finished run of a language model")
    folder, file = model_file(path)
    symbols = symbols_of(folder, model)
    if symbols is None:
        raise RunError(f"{file} is not a model of text: it has no embedding of tokens")
    return model, symbols


def show(
    path: Path, prompt: str | None, length: int, stop: str | None = None, out: IO[str] | None = None, **options: Any
) -> None:
    """Print the prompt and the text as it is sampled, and afterwards on standard error how fast that was.

    Ends early where the sampled text contains `stop`, or at an interrupt. The other options are those of
    `plmu.generate`.
    """
    if stop == "":
        raise ValueError("--stop must have at least one character")
    screen = sys.stdout if out is None else out
    model, symbols = load(path)
    written = [] if prompt is None else _encoded(symbols, prompt)
    is_words = isinstance(symbols, Words)
    begins = is_words or not written  # a text of words always begins with a separator
    start = beginning(symbols) + written if begins else written
    tokens = _Counted(plmu.generate(model, start, length, excluded=[UNKNOWN] if is_words else [], **options))
    ended, started = False, time.perf_counter()
    try:
        for piece in pieces(symbols, written, tokens, stop):
            print(piece, end="", file=screen, flush=True)
            ended = piece.endswith("\n") if piece else ended
    except KeyboardInterrupt:
        pass
    seconds = time.perf_counter() - started
    if not ended:
        print(file=screen, flush=True)
    rate = f"{tokens.count / seconds:,.0f} tokens per second"
    print(f"{tokens.count:,} tokens ({symbols.kind}) in {seconds:.2f} s: {rate}", file=sys.stderr)


def pieces(symbols: Symbols, prompt: list[int], tokens: Iterable[int], stop: str | None) -> Iterator[str]:
    """The text of the prompt, then what each token adds, up to and including the first stop string."""
    decoder = symbols.decoder()
    yield "".join(map(decoder.push, prompt))
    end = ""  # of the sampled text, as much as can begin a stop string
    for token in tokens:
        piece = decoder.push(token)
        if stop is not None:
            text = end + piece
            place = text.find(stop)
            if place >= 0:
                yield text[len(end) : place + len(stop)]
                return
            end = text[max(0, len(text) - len(stop) + 1) :]
        yield piece
    yield decoder.finish()


class _Counted:
    """An iterator that counts its items."""

    def __init__(self, tokens: Iterator[int]) -> None:
        self.tokens, self.count = tokens, 0

    def __iter__(self) -> Iterator[int]:
        for token in self.tokens:
            self.count += 1
            yield token


def _encoded(symbols: Symbols, prompt: str) -> list[int]:
    try:
        start = symbols.encode(prompt)
    except ValueError as error:
        raise ValueError(f"--prompt: {error}") from None
    if not start:
        missing = "no words that a model could read" if prompt else "nothing in it"
        raise ValueError(f"--prompt has {missing}, got {prompt!r}: write some text, or leave --prompt out")
    return start
