"""A layer that plmu does not have, added as docs/adding-a-layer.md says: as a class of one's own and as one of plmu."""

import contextlib
import difflib
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/adding-a-layer.md").read_text(encoding="utf-8")
OUTSIDE, INSIDE = PAGE.split("## A layer of plmu")
BLOCK = re.compile(r"^```(python|diff|text)\n(.*?)^```$", flags=re.M | re.S)


def _run(*command: str, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(cwd / "src")
    done = subprocess.run([sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_class_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page shows runs, and prints what it says."""
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(OUTSIDE)
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for kind, code in blocks:
            if kind == "python":
                exec(code, namespace)
    assert printed.getvalue() == "".join(text for kind, text in blocks if kind == "text") != ""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and its tests, changed as the page says."""
    place = tmp_path_factory.mktemp("plmu")
    for folder in ("src/plmu", "tests", "docs"):
        shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__", "images"))
    shutil.copy(ROOT / "pyproject.toml", place)
    saved = re.search(r"Save this as `(src/\S+\.py)`", INSIDE)
    assert saved is not None
    assert not (place / saved[1]).exists()
    (place / saved[1]).write_text(BLOCK.findall(INSIDE)[0][1], encoding="utf-8")
    for match in BLOCK.finditer(INSIDE):
        if match[1] != "diff":
            continue
        changed = place / re.findall(r"`((?:src|docs|tests)/\S+)`", INSIDE[: match.start()])[-1]
        lines = match[2].splitlines(keepends=True)
        old, new = ("".join(line[1:] for line in lines if line[0] in (" ", sign)) for sign in "-+")
        source = changed.read_text(encoding="utf-8")
        assert source.count(old) == 1, f"{changed}: {old}"
        changed.write_text(source.replace(old, new), encoding="utf-8")
    return place


def test_it_takes_one_file_and_one_line(copy: Path) -> None:
    """In the package itself; its tests and the reference have lines of their own."""
    sources = {path.relative_to(copy) for path in (copy / "src").rglob("*.py")}
    before = {path.relative_to(ROOT) for path in (ROOT / "src").rglob("*.py")}
    assert len(sources - before) == 1
    added = []
    for path in before:
        old, new = ((root / path).read_text(encoding="utf-8").splitlines() for root in (ROOT, copy))
        added += [line for line in difflib.ndiff(old, new) if line[0] in "+-"] if old != new else []
    assert added == ["+ from plmu.nn.difference import Difference as Difference"]


def test_a_layer_of_plmu_is_saved_whole(copy: Path) -> None:
    program, printed = (text for kind, text in BLOCK.findall(INSIDE)[1:] if kind != "diff")
    assert _run("-W", "error", "-c", program, cwd=copy) == printed


def test_the_tests_of_all_layers_hold_for_it(copy: Path) -> None:
    """As they do for the layers that are there."""
    files = ("nn/test_layer_modes.py", "nn/test_layer_traces.py", "nn/test_export.py", "folded/test_folded.py")
    chosen = [f"tests/{name}" for name in (*files, "project/test_public.py", "project/test_pages.py")]
    pattern = "difference or names_are_frozen or the_reference_has"
    said = _run("-m", "pytest", "-p", "no:cacheprovider", "-k", pattern, *chosen, cwd=copy)
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None
    assert int(passed[1]) >= 25
