"""A table of measurements for tests of forecasts, and what they read of its run."""

import csv
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np

COUNT, HORIZON = 360, 6
RUN = Path("runs/forecast-load-seed0")


def values(count: int = COUNT) -> Any:
    """A day of 12 steps, a slow wave and noise: (count, 2)."""
    k, rng = np.arange(count), np.random.default_rng(0)
    load = 50 + 10 * np.sin(2 * np.pi * k / 12) + 3 * np.sin(k / 50) + rng.standard_normal(count)
    return np.stack([load, 15 + 4 * np.cos(2 * np.pi * k / 12) + rng.standard_normal(count)], axis=1).round(3)


def written(count: int = COUNT, first: int = 0) -> str:
    times = np.datetime64("2024-01-01T00:00") + 120 * np.arange(first, count)
    rows = zip(times, values(count)[first:].tolist(), strict=True)
    return "\n".join(["time,load,temp", *(f"{str(t).replace('T', ' ')},{a},{b}" for t, (a, b) in rows), ""])


def result(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "result.json").read_text())
    return found


def copied_run(run: Path, folder: Path, command: str) -> None:
    """Copy the files of a run that docs/deploy.md lists for a command."""
    page = (Path(__file__).parents[1] / "docs" / "deploy.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith(f"| `plmu {command}`"))
    folder.mkdir()
    for name in re.findall(r"`([^`]+)`", row.split("|")[2]):
        if (run / name).is_file():
            shutil.copy(run / name, folder)


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))
