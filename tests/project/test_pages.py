"""The pages for people who extend plmu are true word by word: what they say is done here, in a copy of the package."""

import ast
import json
import operator
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import plmu

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

FOLLOW = """
import shlex, shutil, subprocess, sys
from plmu.cli.program import main

for line in sys.stdin.read().splitlines():
    program, *words = shlex.split(line)
    print(">", line)
    if program == "cp":
        *files, folder = words
        for file in files:
            shutil.copy(file, folder)
        continue
    if program == "python":
        subprocess.run([sys.executable, *words], check=True)
        continue
    assert program == "plmu", line
    try:
        main(words)
    except SystemExit as stopped:
        assert stopped.code == 0, (line, stopped.code)
exec(open("stream.py").read())
"""


def _blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_adding_an_experiment(tmp_path: Path) -> None:
    page = (DOCS / "adding-an-experiment.md").read_text(encoding="utf-8")
    module, entry, streaming = _blocks("adding-an-experiment.md", "python")
    commands, publishing = _blocks("adding-an-experiment.md", "sh")
    shutil.copytree(Path(plmu.__file__).parent, tmp_path / "src" / "plmu", ignore=shutil.ignore_patterns("__pycache__"))

    saved = re.search(r"Save this as `(src/\S+\.py)`", page)
    assert saved is not None
    assert not (tmp_path / saved[1]).exists()
    (tmp_path / saved[1]).write_text(module, encoding="utf-8")
    table = re.search(r"In `(src/\S+\.py)` add a line to `PAPER`", page)
    assert table is not None
    text = (tmp_path / table[1]).read_text(encoding="utf-8")
    changed = text.replace("PAPER = {\n", f"PAPER = {{\n{entry}")
    assert changed != text
    (tmp_path / table[1]).write_text(changed, encoding="utf-8")

    (tmp_path / "stream.py").write_text(streaming, encoding="utf-8")
    for folder in ("benchmarks", "docs", "results"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "images"))
    shutil.copy(ROOT / "README.md", tmp_path)
    path = f"{tmp_path / 'src'}{os.pathsep}{tmp_path}"
    environment = {**os.environ, "PYTHONPATH": path, "PLMU_CACHE": str(tmp_path / "cache")}

    short = "plmu train echo --quiet --training.epochs 1"
    done = subprocess.run(
        [sys.executable, "-c", FOLLOW],
        input=commands.replace("plmu train echo", short) + publishing,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    options, rest = done.stdout.split(f"> {short} --seeds 3", 1)
    assert "--model.order" in options
    assert "Legendre coefficients of the memory." in options
    assert rest.count("tensor(") == 5  # what was streamed
    for number in range(3):
        folder = tmp_path / "runs" / f"echo-plmu-seed{number}"
        files = set(re.findall(r"^\| `([\w./]+)` \|", page.split("Each seed writes a folder")[1], re.MULTILINE))
        assert len(files) == 6
        assert all((folder / name).exists() for name in files)
    assert not (tmp_path / "runs" / "echo-lstm-seed0" / "model.plmu").exists()
    assert (tmp_path / "report" / "report.html").is_file()
    summary = json.loads((tmp_path / "runs" / "echo-plmu.json").read_text(encoding="utf-8"))
    assert [one["seed"] for one in summary["seeds"]] == [0, 1, 2]
    published = (tmp_path / "docs" / "results.md").read_text(encoding="utf-8")
    assert "| echo | plmu |" in published
    assert "| echo | lstm |" in published


def test_the_part_table_names_what_an_experiment_has() -> None:
    page = (DOCS / "adding-an-experiment.md").read_text(encoding="utf-8")
    (module, *_) = _blocks("adding-an-experiment.md", "python")
    rows = re.findall(r"^\| (`.*?`) \| .* \|$", page.split("What each part is for")[1].split("## 2")[0], re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {"name", "metric", "paper", "models", "streamable", "defaults", "task", "build"} <= names
    assert all(re.search(rf"\b{name}\b", module) for name in names)


def test_the_reference_has_every_public_name() -> None:
    reference = (DOCS / "api.rst").read_text(encoding="utf-8")
    shown = set(re.findall(r"^\.\. [\w:]+:: plmu\.([\w.]+)$", reference, re.MULTILINE))
    known = {name for name in plmu.__all__ if name not in ("nn", "__version__")}
    missing = known - shown
    missing |= {f"nn.{name}" for name in plmu.nn.__all__ if name not in shown and f"nn.{name}" not in shown}
    missing |= {f"ops.{name}" for name in {*plmu.ops.__all__} - {"ALGORITHMS"} if not {name, f"ops.{name}"} & shown}
    missing |= {f"folded.{name}" for name in {*plmu.folded.__all__} - {"Place"} if f"folded.{name}" not in shown}
    assert missing == set(), "add them to docs/api.rst"
    for name in shown:
        operator.attrgetter(name)(plmu)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *(f"docs/{one.name}" for one in DOCS.glob("*.md"))])
def test_links_to_files_lead_somewhere(page: str) -> None:
    text = re.sub(r"^```math.*?^```$|\$.*?\$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\((?!\w+:|#)([^)#]+)", text):
        assert ((ROOT / page).parent / link).exists(), f"{page} links to {link}"


@pytest.mark.parametrize("page", ["math.md", "minimal.md"])
def test_paths_and_names_of_the_code_are_right(page: str) -> None:
    """Paths in backquotes, relative to src/plmu/, with or without names: `ops/fft.py: states`."""
    found = re.findall(r"`([\w/]+\.py)(?:: ([\w., ]+))?`", (DOCS / page).read_text(encoding="utf-8"))
    assert len(found) >= 5
    for file, names in found:
        path = Path(plmu.__file__).parent / file
        assert path.is_file(), f"{page}: {file}"
        known = _defined(ast.parse(path.read_text(encoding="utf-8")))
        for name in re.findall(r"[\w.]+", names):
            assert name in known, f"{page}: {file}: {name}"


def _defined(tree: ast.Module) -> set[str]:
    """The functions and classes of a module, and the methods and properties of each class: {"f", "C", "C.method"}."""
    found = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    methods = {
        f"{name}.{inner.name}"
        for name, one in found.items()
        if isinstance(one, ast.ClassDef)
        for inner in one.body
        if isinstance(inner, ast.FunctionDef)
    }
    return {*found, *methods}


def test_a_method_is_looked_for_in_its_class() -> None:
    known = _defined(ast.parse("def f(): ...\nclass C:\n  @property\n  def a(self): ...\nclass D: ...\n"))
    assert known == {"f", "C", "C.a", "D"}
