"""The command line's parser, which suggests what was meant. Imports no torch.

Parsing has three parts: this one is for all commands but `plmu train`, `cli.train` splits the arguments of `plmu train`
into experiment, file, model and options, and `cli.options` parses those options.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from plmu.errors import suggestion


class OneOf:
    """The type of an argument that is one of a few words, for argparse."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __call__(self, word: str) -> str:
        if word not in self.choices:
            names = ", ".join(self.choices)
            raise argparse.ArgumentTypeError(
                f"there is no {word!r}: it is one of {names}{suggestion(word, self.choices)}"
            )
        return word


class Parser(argparse.ArgumentParser):
    """argparse's parser, with errors of one line that suggest what was meant. Options are not abbreviated."""

    def __init__(self, **options: Any) -> None:
        self.completions: dict[str, tuple[str, ...]] = {}  # options with their values, and words that may come first
        self.paths: list[str] = []  # options that take a file or folder
        self.takes_path = False  # whether a positional argument is a file or folder
        super().__init__(allow_abbrev=False, **options)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        """As argparse's, and note for completion what the argument takes."""
        kind = options.get("type")
        values = kind.choices if isinstance(kind, OneOf) else ()
        self.paths += [name for name in names if kind is Path and name.startswith("-")]
        self.takes_path |= kind is Path and not names[0].startswith("-")
        self.completions |= dict.fromkeys(names, values) if names[0].startswith("-") else dict.fromkeys(values, ())
        return super().add_argument(*names, **options)

    def parse_args(self, argv: list[str]) -> argparse.Namespace:  # type: ignore[override]
        options, unknown = self.parse_known_args(argv)
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

    def __call__(self, argv: list[str]) -> None:
        self.run(self.parser().parse_args(argv))
