"""Where a number comes from: the machine, the versions and the code that made it."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from pathlib import Path

import torch

import plmu


def provenance(device: torch.device) -> dict[str, str]:
    """Hardware, versions and source, for a file of results."""
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return {
        "hardware": hardware,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "plmu": plmu.__version__,
        "source": _source(),
    }


def _source() -> str:
    """The commit, if this is an unchanged checkout; else a hash of the package's source."""
    folder = Path(plmu.__file__).parent
    try:
        if not _git(folder, "status", "--porcelain", "."):
            return f"commit {_git(folder, 'rev-parse', 'HEAD')}"
    except (OSError, subprocess.CalledProcessError):
        pass
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return f"source sha256 {digest.hexdigest()[:16]}"


def _git(folder: Path, *words: str) -> str:
    result = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return result.stdout.strip()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()}, {torch.get_num_threads()} threads"
    except OSError:
        pass
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
