"""What the server brings in: a run as it is deployed, and nothing that trains or that belongs to an experiment."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from torch import nn

import plmu

SOURCE = Path(plmu.__file__).parent
FOREIGN = ("plmu.experiments", "plmu.training", "plmu.timeseries", "plmu.cli", "plmu.exports", "plmu.bench")

SERVED = """
import sys
from pathlib import Path
import plmu.serve
from plmu.runs.deployed import load
from starlette.testclient import TestClient
server = plmu.serve.make_server(load(Path(sys.argv[1])), plmu.serve.Options())
with TestClient(server.app(), base_url="http://127.0.0.1") as client:
    assert client.get("/model").json()["features"] == 2
    assert client.get("/memory?order=3&theta=5").status_code == 200
    assert client.post("/step", json={"sample": [0.5, 1.0]}).json()["step"] == 1
print(*sys.modules)
"""


def is_foreign(module: str) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in FOREIGN)


def test_a_server_imports_nothing_that_trains(tmp_path: Path) -> None:
    model = plmu.Sequential(plmu.ParallelLMU(2, 4, order=3, theta=5.0), nn.Linear(4, 1))
    plmu.save(model, tmp_path / "model.plmu")
    command = [sys.executable, "-c", SERVED, str(tmp_path / "model.plmu")]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "plmu.serve.app" in modules
    assert not list(filter(is_foreign, modules))


@cache
def module_file(module: str) -> Path | None:
    path = SOURCE.parent.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def imports(module: str) -> set[str]:
    """The modules of plmu that a module imports, also in functions, and the homes of the public names it uses; not
    those that are imported for type checkers alone."""
    path = module_file(module)
    assert path is not None, module
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("plmu"):
            inner = {f"{node.module}.{name.name}" for name in node.names}
            modules |= {name for name in inner if module_file(name)} or {str(node.module)}
        elif isinstance(node, ast.Import):
            modules |= {name.name for name in node.names if name.name.startswith("plmu")}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "plmu":
            home = plmu._HOMES.get(node.attr)
            modules |= {f"plmu.{home}"} if home else set()
    packages = {".".join(name.split(".")[:depth]) for name in modules for depth in range(1, name.count(".") + 1)}
    return (modules | packages) - {"plmu"}


@pytest.mark.parametrize("start", sorted(f"plmu.serve.{path.stem}" for path in (SOURCE / "serve").glob("[!_]*.py")))
def test_no_import_of_the_server_leads_to_training_or_experiments(start: str) -> None:
    importer = {start: "", "plmu.serve": ""}
    waiting = list(importer)
    while waiting:
        module = waiting.pop()
        assert not is_foreign(module), f"{importer[module]} imports {module}"
        for name in imports(module) - importer.keys():
            importer[name] = module
            waiting.append(name)
    assert "plmu.runs.deployed" in importer
