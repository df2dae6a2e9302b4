"""A result as a JSON file: what was run, on what, and what came out, so that a number never stands alone."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import plmu
from plmu.modelfiles.atomic import replacing
from plmu.runs.folder import naming

CURVE = 100  # entries of a learning curve in a result


def write_json(path: Path, content: Any) -> None:
    with naming(path), replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, default=str, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """The content of a JSON file; ValueError if it is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def spread(values: list[float]) -> dict[str, float]:
    """Mean and sample standard deviation."""
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
    return {"mean": mean, "std": math.sqrt(variance)}


def thinned(history: list[dict[str, float]], best_epoch: int, most: int = CURVE) -> list[dict[str, float]]:
    """At most so many entries of a learning curve, evenly, with the first, the last and that of the best epoch.

    Where not every epoch was validated, those that were come first. What is not finite is left out of its entry.
    """
    places = range(len(history))
    if len(history) > most:
        scored = [place for place in places if any(name.startswith("valid_") for name in history[place])]
        some = scored if 2 * len(scored) >= most else sorted({*scored, *_evenly(places, most // 2)})
        best = [place for place in places if history[place]["epoch"] == best_epoch]
        kept = sorted({places[0], *_evenly(some, most - 3), places[-1], *best[:1]})
    else:
        kept = list(places)
    return [{name: value for name, value in history[place].items() if math.isfinite(value)} for place in kept]


def _evenly(values: Sequence[int], count: int) -> list[int]:
    """At most `count` of the values, evenly, with the first and the last."""
    if len(values) <= count:
        return list(values)
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]


def provenance(device: torch.device) -> dict[str, str]:
    """The machine and the code."""
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
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()}, {torch.get_num_threads()} threads"
    except OSError:
        pass
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
