"""usage: PYTHON .ci/install.py [--editable] PROJECT     PROJECT is a folder or a wheel, with extras: '.[train,data]'

Install the project and what it needs where PYTHON is: the versions in requirements.txt, from wheels with its hashes.

On Linux the default wheels of torch bring CUDA: 3.2 GB to download, 6.2 GB on disk. Without an NVIDIA driver the CPU
build is taken: 0.2 GB to download, 0.9 GB on disk. TORCH_INDEX chooses an index for torch; empty means pip's. Builds
without hashes in requirements.txt, such as those for ROCm, are to be installed before: a torch that is there is kept.
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CPU = "https://download.pytorch.org/whl/cpu"


def main() -> None:
    *options, project = sys.argv[1:]
    path, _, extras = project.partition("[")
    entries = locked()
    try:
        install_torch(entries["torch"])  # first, since its build decides what else it needs
        print(f"installing {project}", flush=True)
        names = selected(required(*re.findall(r"\w+", extras)) | {"hatchling", "editables"}, entries)
        pip("".join(entries[name] for name in sorted(names)))
        pip("", "--no-build-isolation", *options, path)
    except subprocess.CalledProcessError:
        full = "pip failed, see above. If the disk is full: torch with CUDA takes 6.2 GB, torch for the CPU 0.9 GB."
        sys.exit(f"{full} To take that:\n  TORCH_INDEX={CPU} make setup")


def install_torch(entry: str) -> None:
    usual = CPU if sys.platform == "linux" and not shutil.which("nvidia-smi") else ""
    index = os.environ.get("TORCH_INDEX", usual)
    if index and not importlib.util.find_spec("torch"):
        print(f"installing torch from {index}", flush=True)
        try:
            return pip(entry, "--retries", "1", "--timeout", "20", "--index-url", index, stderr=subprocess.DEVNULL)
        except subprocess.CalledProcessError:
            print("not there, or without a hash here: torch comes from pip's own index", flush=True)
    return pip(entry)


def locked() -> dict[str, str]:
    """The packages of requirements.txt: each with its version, hashes and, as comments, the packages that need it."""
    lock = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    return {name: entry for entry, name in re.findall(r"^((\S+)==.*\n(?: .*\n)+)", lock, re.MULTILINE)}


def required(*extras: str) -> set[str]:
    """The packages that pyproject.toml names for the library and these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    nested = [extra for line in lines if line.startswith("plmu[") for extra in re.findall(r"\w+", line)[1:]]
    return names_of(lines) - {"plmu"} | (required(*nested) if nested else set())


def selected(names: set[str], entries: dict[str, str]) -> set[str]:
    """These packages and all that they need. What torch needs, its installed build says."""
    of_torch = names_of(importlib.metadata.requires("torch") or [])
    for name, entry in entries.items():
        needing = names.intersection(re.findall(r"^ +#(?: via)? +([\w.-]+)$", entry, re.MULTILINE))
        if name not in names and needing - (set() if name in of_torch else {"torch"}):
            return selected(names | {name}, entries)
    return names


def names_of(requirements: list[str]) -> set[str]:
    return {re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", line)[0]).lower() for line in requirements}


def pip(entries: str, *options: str, stderr: int | None = None) -> None:
    """Install wheels with the hashes of these entries. No source is built: what builds it has no hashes."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", *options]
    with tempfile.TemporaryDirectory() as folder:
        if entries:
            Path(folder, "entries.txt").write_text(entries, encoding="utf-8")
            command += ["--require-hashes", "--only-binary", ":all:", "--requirement", f"{folder}/entries.txt"]
        subprocess.run(command, check=True, stderr=stderr)


if __name__ == "__main__":
    main()
