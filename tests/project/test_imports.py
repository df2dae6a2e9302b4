"""Arrows point one way: which module imports which, read from the source without running it."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((SOURCE / "plmu").rglob("*.py"))}


def executed(tree: ast.AST) -> list[ast.AST]:
    """All nodes but those that only name types."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            found += [node, *executed(node)]
    return found


@cache
def imports(name: str) -> dict[str, set[str]]:
    """The modules of plmu that a module imports, at its top or in a function, and what it takes from each."""
    found: dict[str, set[str]] = {}
    for node in executed(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "plmu":
            for one in node.names:
                inner = f"{node.module}.{one.name}"
                found.setdefault(inner if inner in MODULES else node.module, set()).add(one.name)
        elif isinstance(node, ast.Import):
            for one in node.names:
                if one.name in MODULES:
                    found.setdefault(one.name, set())
    found.pop(name, None)
    return found


def reached(name: str) -> set[str]:
    """All modules that importing one may bring in. `plmu` itself imports nothing until a name is used."""
    seen, left = set(), [name]
    while left:
        one = left.pop()
        if one not in seen:
            seen.add(one)
            left += [] if one == "plmu" else imports(one)
    return seen


def test_no_module_imports_itself_by_a_detour() -> None:
    TopologicalSorter({name: set(imports(name)) - {"plmu"} for name in MODULES}).prepare()  # raises for a cycle


@pytest.mark.parametrize(
    ("of", "never"),
    [
        ("plmu.data", "plmu.nn"),
        ("plmu.training", "plmu.experiments"),
        ("plmu.modelfiles.atomic", "plmu.nn"),
        ("plmu.ops", "plmu.nn"),
        ("plmu.core.systems", "plmu.ops"),
    ],
)
def test_arrows_point_one_way(of: str, never: str) -> None:
    for name in MODULES:
        if name == of or name.startswith(f"{of}."):
            wrong = {one for one in reached(name) if one == never or one.startswith(f"{never}.")}
            assert not wrong, f"{name} brings in {wrong}"


def test_what_writes_results_and_checkpoints_needs_no_layers() -> None:
    for name in ("plmu.runs.results", "plmu.training.checkpoints"):
        assert not {one for one in imports(name) if one.startswith(("plmu.nn", "plmu.modelfiles.files"))}


def test_private_names_stay_in_their_module() -> None:
    for name in MODULES:
        if name.startswith(("plmu.experiments", "plmu.bench")):
            continue  # which have a test of their own
        for module, names in imports(name).items():
            assert not {one for one in names if one.startswith("_") and not one.startswith("__")}, f"{name}, {module}"
        own = {one.split(".")[-1] for one in imports(name)}
        for node in executed(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in own:
                private = node.attr.startswith("_") and not node.attr.startswith("__")
                assert not private, f"{name} uses {ast.unparse(node)}"


def test_only_algorithms_import_kernels() -> None:
    """And the one module that has kernels for other parts of layers."""
    kernels = "plmu.ops.gpu"
    users = {name for name in MODULES if any(one.startswith(kernels) for one in imports(name))}
    assert {name for name in users if not name.startswith(kernels)} == {"plmu.ops.fused", "plmu.ops.layer_kernels"}
