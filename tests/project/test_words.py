"""Names say what a thing is, and pages are in the English of the field."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "plmu"

VAGUE = {"begun", "every", "found", "given", "kept", "known", "left"}
VAGUE |= {"mine", "more", "one", "own", "seen", "some", "told"}
# How often they still are names in a room. A room that is not here has none; a number may only go down.
STILL: dict[str, int] = {
    "experiments": 3,
    "exports": 2,
    "modelfiles": 5,
    "ops": 12,
    "runs": 1,
    "training": 2,
}

# What a reader had to read twice, as a regular expression.
ODD = (
    "whole numbers?",
    "gives? for so many",
    "so many as",
    "weights of none",
    "as there are none",
    "one that is none",
    "a time that is none",
    "such as have",
    "of no sequences",
    "of rows at the end without",
    "says nothing of itself",
    "powers die out",
    "plainly",
    "none of a class of one",
    "of medium strength",
    "the rest of a sentence that begins",
    "looked_at",
)
PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
PAGES += [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))]


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that a module makes, with its line: variables, parameters, attributes, functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.lineno, node.name


def vague(source: str) -> list[str]:
    """The vague names of a module, each with its line."""
    return [f"{line}: {name}" for line, name in sorted(names(ast.parse(source))) if name.strip("_").lower() in VAGUE]


def _rooms() -> list[str]:
    return sorted({path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")})


@pytest.mark.parametrize("room", _rooms())
def test_names_say_what_things_are(room: str) -> None:
    paths = [PACKAGE / f"{room}.py"] if (PACKAGE / f"{room}.py").exists() else sorted((PACKAGE / room).rglob("*.py"))
    there = [(path, name) for path in paths for name in vague(path.read_text(encoding="utf-8"))]
    listed = "\n".join(f"{path.relative_to(PACKAGE)}:{name}" for path, name in there)
    assert len(there) <= STILL.get(room, 0), listed


SOURCES = [path.relative_to(ROOT).as_posix() for path in sorted(PACKAGE.rglob("*.py"))]


@pytest.mark.parametrize("page", [*PAGES, *SOURCES])
def test_pages_and_sources_have_no_odd_phrases(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    there = [match[0] for phrase in ODD for match in re.finditer(rf"\b{phrase}\b", text, re.IGNORECASE)]
    assert there == [], f"{page}: write it in the English of the field"


def test_what_counts_as_a_vague_name() -> None:
    source = "def f(given, *, path):\n    for one in given:\n        path.found = [left for left in one]\n"
    assert vague(source) == ["1: given", "2: one", "3: found", "3: left"]
    assert vague("def f(path):\n    return path.given + one\n") == []
