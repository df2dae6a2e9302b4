"""Errors whose message is for the user: it names what is at fault and what would be right. Imports no torch."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# Control characters but tabs and line breaks, and what turns the direction of text: a terminal would obey them.
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class RunError(RuntimeError):
    """A run cannot be started, continued or scored as requested."""


class DataError(RuntimeError):
    """Data is missing, incomplete or damaged. The message says what to do, in one line."""

    def __init__(self, message: str) -> None:
        super().__init__(in_one_line(message[:1000]))


class FileFormatError(ValueError):
    """A model file is broken, foreign, of a newer version, or of another model."""


class TooLarge(FileFormatError):
    """Building the model that a file describes would cost too much."""


class Diverged(RuntimeError):
    """Training made the model far worse than at the start, or its numbers are no longer finite."""


class CheckpointError(OSError):
    """A checkpoint could not be written."""


# The extra of plmu that a package is in, by the name of its module.
EXTRAS = {
    **dict.fromkeys(("filelock", "matplotlib", "numpy", "pooch", "rich", "sacrebleu", "tensorboard"), "train"),
    **dict.fromkeys(("tokenizers", "tyro"), "train"),
    **dict.fromkeys(("onnx", "onnxruntime"), "export"),
    **dict.fromkeys(("starlette", "uvicorn", "uvloop", "websockets"), "serve"),
    "polars": "data",
}


def printable(text: str) -> str:
    """Text for a terminal: names from a user's files may hold control characters, which are shown as \\u001b."""
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def in_one_line(text: str) -> str:
    """Printable text in which line breaks and tabs are spaces."""
    return printable("".join(" " if letter.isspace() else letter for letter in text))


def how_to_install(module: str) -> str:
    """The command that installs what a missing module is in; extras are those of a clone of plmu."""
    if module in EXTRAS:
        return f"pip install '.[{EXTRAS[module]}]' in a clone of plmu"
    return f"pip install {'scikit-learn' if module == 'sklearn' else module}"


def suggestion(word: str, choices: Iterable[str]) -> str:
    """`; did you mean 'train'?` if one of the choices is similar to the word, else nothing."""
    near = difflib.get_close_matches(word, list(choices), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
