"""The words of the command line: a parser that suggests what was meant. Imports no torch."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from plmu.errors import suggestion


class OneOf:
    """The type of an argument that is one of a few words."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __call__(self, word: str) -> str:
        if word not in self.words:
            names = ", ".join(self.words)
            raise argparse.ArgumentTypeError(
                f"there is no {word!r}: it is one of {names}{suggestion(word, self.words)}"
            )
        return word


class Parser(argparse.ArgumentParser):
    """argparse's parser, with errors of one line that suggest what was meant. Options are not abbreviated."""

    def __init__(self, **options: Any) -> None:
        self.completions: dict[str, tuple[str, ...]] = {}  # options and words, each with the values that it takes
        self.paths: list[str] = []  # options that take a file or folder
        self.takes_path = False  # as a positional argument
        super().__init__(allow_abbrev=False, **options)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        kind = options.get("type")
        values = kind.words if isinstance(kind, OneOf) else ()
        self.paths += [name for name in names if kind is Path and name.startswith("-")]
        self.takes_path |= kind is Path and not names[0].startswith("-")
        self.completions |= dict.fromkeys(names, values) if names[0].startswith("-") else dict.fromkeys(values, ())
        return super().add_argument(*names, **options)

    def parse_args(self, words: list[str]) -> argparse.Namespace:  # type: ignore[override]
        options, unknown = self.parse_known_args(words)
        if unknown:
            hint = suggestion(unknown[0].split("=")[0], self.completions)
            self.error(f"there is no argument {unknown[0]!r}{hint}")
        return options

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"plmu: {message} (`{self.prog} --help` says more)\n")


@dataclass(frozen=True)
class Command:
    """A command: its parser, and what it does with the options."""

    parser: Callable[[], Parser]
    run: Callable[[argparse.Namespace], None]

    def __call__(self, words: list[str]) -> None:
        self.run(self.parser().parse_args(words))
