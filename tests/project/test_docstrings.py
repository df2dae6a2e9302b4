"""Docstrings of public names have every parameter: in Args, or for a dataclass in Attributes (Google's style)."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import plmu

SKIPPED = {"self", "cls", "args", "kwargs"}


def _public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions, classes, and the methods that a class defines itself."""
    for module in (plmu, plmu.nn):
        prefix = module.__name__
        for name in module.__all__:
            value = getattr(module, name)
            if prefix == "plmu.nn" and name in plmu.__all__:
                continue  # the same object
            if inspect.isfunction(value):
                yield f"{prefix}.{name}", value
            elif inspect.isclass(value) and not issubclass(value, Exception):
                yield f"{prefix}.{name}", value
                for key, member in vars(value).items():
                    if not key.startswith("_") and inspect.isfunction(getattr(member, "__func__", member)):
                        yield f"{prefix}.{name}.{key}", getattr(value, key)


PUBLIC = dict(_public())


def undocumented(value: Callable[..., Any]) -> list[str]:
    """The parameters that are not in the docstring's Args or Attributes."""
    text = inspect.getdoc(value) or ""
    section = re.search(r"^(?:Args|Attributes):\n((?:[ \t]+.*\n?|\n)+)", text, re.MULTILINE)
    found = re.findall(r"^ {4}(\w+(?:, \w+)*):", section[1] if section else "", re.MULTILINE)
    named = {name for line in found for name in line.split(", ")}
    parameters = [name.lstrip("*") for name in inspect.signature(value).parameters]
    return [name for name in parameters if name not in SKIPPED and name not in named]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_parameter_is_documented(name: str) -> None:
    assert undocumented(PUBLIC[name]) == []


@pytest.mark.parametrize("name", [name for name in PUBLIC if name.endswith((".forward", ".step"))])
def test_forward_and_step_say_what_they_return(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    assert "\nReturns:\n" in text or "Not supported" in text


def test_what_counts_as_documented() -> None:
    def documented(a: int, b: int, *, c: int) -> None:
        """Does nothing.

        Args:
            a, b: two numbers,
                the first: small.
            d: not a parameter.

        Returns:
            c: nothing.
        """

    assert undocumented(documented) == ["c"]
    assert undocumented(lambda x: x) == ["x"]
