"""Benchmarks and experiments are made of public names: what they measure is what a user can build.

No module of these folders touches a private name of another module, or imports from `plmu.ops` or from within
`plmu.nn`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import plmu

ROOT = Path(__file__).parents[2]
FOLDERS = ["src/plmu/bench", "src/plmu/experiments", "benchmarks"]


def _modules() -> list[str]:
    found = (path for folder in FOLDERS for path in (ROOT / folder).glob("**/*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


@pytest.mark.parametrize("path", _modules())
def test_only_public_names_are_used(path: str) -> None:
    assert list(trespasses((ROOT / path).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from plmu.ops import hopper", "1: imports plmu.ops"),
        ("from plmu.ops.plan import plan", "1: imports plmu.ops.plan"),
        ("import plmu.nn.memory", "1: imports plmu.nn.memory"),
        ("from plmu.nn.memory import Memory", "1: imports plmu.nn.memory"),
        ("from plmu import ops", "1: imports ops, which is not public in plmu"),
        ("from plmu.nn import memory", "1: imports memory, which is not public in plmu.nn"),
        ("import plmu\nplmu.ops.states", "2: plmu.ops is not public"),
        ("import plmu\nplmu.nn.parallel", "2: plmu.nn.parallel is not public"),
        ("from plmu.bench.algorithms import _milli", "1: imports the private _milli"),
        ("def f(trainer):\n    trainer._step()", "2: touches the private _step"),
        ("def f(trainer):\n    getattr(trainer, '_step')()", "2: touches the private _step"),
        ("def f(layer):\n    setattr(layer, '_output', None)", "2: touches the private _output"),
    ],
)
def test_trespasses_are_found(source: str, expected: str) -> None:
    assert list(trespasses(source)) == [expected]


def test_public_and_own_names_are_allowed() -> None:
    own = """
import plmu
from plmu import DelayNetwork, nn
from plmu.nn import Steppable
from plmu.training.loop import Trainer

class Mine(plmu.nn.Steppable):
    def __init__(self):
        self._held = 1

    def _count(self):
        return self._held + self.__class__.__name__.count("a")

def f(mine, other):
    return mine._count() + mine._held + plmu.nn.Steppable.__doc__ + getattr(other, "name")
"""
    assert list(trespasses(own)) == []


def trespasses(source: str) -> Iterator[str]:
    """Where a module reaches past the public names of others."""
    tree = ast.parse(source)
    own = set(_own_private_names(tree))
    for node in ast.walk(tree):
        where = f"{getattr(node, 'lineno', 0)}: "
        if isinstance(node, ast.Import):
            yield from (f"{where}imports {one.name}" for one in node.names if _is_inside(one.name))
        elif isinstance(node, ast.ImportFrom):
            yield from (where + fault for fault in _import_faults(node))
        elif isinstance(node, ast.Attribute):
            if _is_private(node.attr) and node.attr not in own:
                yield f"{where}touches the private {node.attr}"
            fault = _public_fault(node)
            if fault is not None:
                yield where + fault
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr"):
            name = getattr(node.args[1], "value", None)
            if isinstance(name, str) and _is_private(name) and name not in own:
                yield f"{where}touches the private {name}"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def _is_inside(module: str) -> bool:
    """Whether a module is in a room that only its own package enters."""
    return module == "plmu.ops" or module.startswith(("plmu.ops.", "plmu.nn."))


def _import_faults(node: ast.ImportFrom) -> Iterator[str]:
    module = node.module or ""
    if _is_inside(module):
        yield f"imports {module}"
        return
    public = {"plmu": plmu.__all__, "plmu.nn": plmu.nn.__all__}.get(module)
    for one in node.names:
        if _is_private(one.name):
            yield f"imports the private {one.name}"
        elif public is not None and one.name not in public:
            yield f"imports {one.name}, which is not public in {module}"


def _public_fault(node: ast.Attribute) -> str | None:
    """For `plmu.name` and `plmu.nn.name`."""
    holder = ast.unparse(node.value)
    public = {"plmu": plmu.__all__, "plmu.nn": plmu.nn.__all__}.get(holder)
    dunder = node.attr.startswith("__")
    return f"{holder}.{node.attr} is not public" if public and node.attr not in public and not dunder else None


def _own_private_names(tree: ast.AST) -> Iterator[str]:
    """Private names that the module itself defines: functions, methods, classes, and attributes of `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
