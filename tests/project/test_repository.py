"""Files for people and services around the code: the citation, pre-commit and the workflow."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import plmu

ROOT = Path(__file__).parents[2]


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    return content


def test_the_citation_names_this_version_and_the_paper() -> None:
    citation = _read("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # what the format requires
    assert str(citation["version"]) == plmu.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["license"] == project["license"]
    assert [one["name"] for one in citation["authors"]] == [one["name"] for one in project["authors"]]
    (paper,) = citation["references"]
    assert paper["title"] == "Parallelizing Legendre Memory Unit Training"
    assert {"type", "authors", "title"} <= paper.keys()
    assert [one["family-names"] for one in paper["authors"]] == ["Chilkuri", "Eliasmith"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert paper["identifiers"][0]["value"].removeprefix("arXiv:") in readme


def test_the_workflow_runs_what_runs_everywhere() -> None:
    (job,) = _read(".github/workflows/ci.yml")["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    assert job["strategy"]["matrix"]["python"][0] == requires.removeprefix(">=")


def test_every_target_that_ci_calls_is_there() -> None:
    called, extra = (
        re.findall(r"^make (\S+)$", (ROOT / ".ci" / name).read_text(encoding="utf-8"), re.MULTILINE)
        for name in ("run", "extra")
    )
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([\w-]+):", makefile, re.MULTILINE)
    assert {"demo", "lint", "types", "docs", "extras", "test"} <= set(called) <= set(targets)
    assert called[0] == "demo"  # which has to work in an environment that holds nothing else
    assert re.search("^extras: wheel$", makefile, re.MULTILINE)
    assert "test-browser" in set(extra) <= set(targets) - set(called)  # which need more than Python and make


@pytest.mark.parametrize("check", ["ruff check", "ruff format", "mypy"])
def test_pre_commit_runs_the_checks_of_make(check: str) -> None:
    (local,) = _read(".pre-commit-config.yaml")["repos"]
    entries = [hook["entry"] for hook in local["hooks"]]
    assert any(entry.startswith(f".venv/bin/{check}") for entry in entries)
    assert f"$(BIN)/{check}" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_every_requirement_has_its_pinned_version() -> None:
    """`make setup` gives the same versions everywhere, of the documentation's packages too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split()}
    groups = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *(one for name in ("train", "export", "serve", "data", "docs", "dev") for one in groups[name]),
    ]
    names = {re.split(r"[\[<>=;! ]", one)[0].lower() for one in wanted} - {"plmu"}
    assert names <= pinned
