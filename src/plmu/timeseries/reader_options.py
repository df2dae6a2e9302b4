"""Keyword arguments of the readers in Python, checked as the command line checks its options of the same names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from plmu.data.files import DataConfig
from plmu.errors import suggestion

Config = TypeVar("Config", bound=DataConfig)
_COMMAND_ONLY = ("root", "file", "test_file", "valid", "test")  # fields that are no options of readers in Python


def configured(kind: type[Config], path: str | Path, options: dict[str, Any], reader: str) -> Config:
    """The configuration for reading a file.

    Args:
        kind: the class of the configuration.
        path: the file or folder.
        options: fields of the configuration by name.
        reader: name of the function that takes the options, for messages.

    Raises:
        TypeError: there is no such option.
        ValueError: an option cannot have this value.
    """
    kinds = {name: hint for name, hint in get_type_hints(kind).items() if name not in _COMMAND_ONLY}
    values = {}
    for name, value in options.items():
        if name not in kinds:
            raise TypeError(f"{reader} has no option {name!r}{suggestion(name, list(kinds))}")
        hint = kinds[name]
        if get_origin(hint) is Literal and value not in get_args(hint):
            raise ValueError(f"{name} must be one of {', '.join(map(repr, get_args(hint)))}, got {value!r}")
        if get_origin(hint) is tuple:
            value = (value,) if isinstance(value, str | float | int) else tuple(value)
        if Path in get_args(hint) and value is not None:
            value = Path(value)
        values[name] = value
    return kind(**{**values, "file": Path(path)})
