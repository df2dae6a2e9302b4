"""Arrows point one way: which module imports which, read from the source without running it."""

import ast
import re
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


def allowed() -> dict[str, set[str]]:
    """What each room may import: rooms and single modules, by the table of docs/architecture.md."""
    page = (SOURCE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*) \|$", page, re.MULTILINE)
    table = {
        room: set(re.findall(r"[\w/.]+", cell.replace("public names", "plmu, nn/__init__.py"))) for room, cell in rows
    }
    return {room: set(table) | {"plmu"} if names == {"all"} else names - {"nothing"} for room, names in table.items()}


# Beside the rooms: the package, whose names bring in rooms at first use, its entry point, and an old name.
ARROWS = {
    **allowed(),
    "plmu": {"core", "exports", "errors", "modelfiles", "nn", "ops", "runtime", "timeseries"},
    "__main__": {"cli"},
    "datasets": {"timeseries"},
}
# What a room must not bring in by any detour either.
NEVER_REACHED = {
    "serve": ("experiments", "timeseries", "training", "cli"),
    "exports": ("training", "experiments", "timeseries", "runs"),
    "training": ("experiments", "timeseries", "runs", "data"),
    "ops": ("nn",),
    "modelfiles.atomic": ("nn", "core"),
}


def room(name: str) -> str:
    """The room that a module is in."""
    return name.split(".")[1] if "." in name else name


def test_every_room_has_its_arrows() -> None:
    assert {room(name) for name in MODULES} == set(ARROWS)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_what_its_room_may(name: str) -> None:
    rooms = {room(name), *ARROWS[room(name)]}
    files = {module: MODULES[module].relative_to(SOURCE / "plmu").as_posix() for module in imports(name)}
    wrong = {module for module, file in files.items() if room(module) not in rooms and file not in rooms}
    assert not wrong, f"{name} imports {wrong}"


@pytest.mark.parametrize("of", NEVER_REACHED)
def test_a_room_brings_in_no_other_by_a_detour(of: str) -> None:
    for name in MODULES:
        if f"{name}.".startswith(f"plmu.{of}."):
            wrong = {module for module in reached(name) if room(module) in NEVER_REACHED[of]}
            assert not wrong, f"{name} brings in {wrong}"


def test_what_writes_results_and_checkpoints_needs_no_layers() -> None:
    for name in ("plmu.runs.results", "plmu.training.checkpoints"):
        assert not {module for module in imports(name) if module.startswith(("plmu.nn", "plmu.modelfiles.files"))}


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
