"""The scores of the Numenta Anomaly Benchmark (NAB), by its rules (Lavin and Ahmad, 2015; NAB 1.1).

Each anomaly has a window around it. An alarm within a window gains up to 1, the more the earlier: a scaled sigmoid of
its position, of which a window counts its best alarm; a window without an alarm loses. Alarms outside of windows lose
up to the weight of a false alarm, less shortly after a window. The first 15 % of each file, 750 rows at most, do not
count. The threshold of alarms is one for all files: the one with the best sum of gains. The score is that sum from 0,
no alarm, to 100, an alarm on the first row of each window and no other.
"""

from __future__ import annotations

import csv
import io
import json
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PROFILES = ("standard", "reward_low_FP_rate", "reward_low_FN_rate")
PROBATION, PROBATION_ROWS = 0.15, 5000  # share of the rows, and of how many rows at most
STEEP, FAR = 5.0, 3.0  # slope of the sigmoid; window lengths after a window from which a false alarm costs all


class Weights(NamedTuple):
    """What an alarm in a window, a false alarm and a window without alarm count."""

    hit: float
    false: float
    miss: float


@dataclass(frozen=True, eq=False)
class Recording:
    """A file of NAB: values, their times, and the windows of its anomalies as first and last row."""

    name: str
    times: list[str]
    values: np.ndarray  # (rows,)
    windows: list[tuple[int, int]]

    @property
    def probation(self) -> int:
        """The number of first rows that are not scored."""
        return int(min(np.floor(PROBATION * len(self.values)), PROBATION * PROBATION_ROWS))

    def positions(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each row the gain of an alarm, from −1 to 1, and the number of its window, or −1."""
        rows = np.arange(len(self.values))
        gains, inside = np.full(len(rows), -1.0), np.full(len(rows), -1)
        for number, (first, last) in enumerate(self.windows):
            width = last - first + 1
            within, after = (rows >= first) & (rows <= last), rows > last
            gains[within] = sigmoid((rows[within] - last - 1) / width) / sigmoid(-1.0)
            gains[after] = sigmoid((rows[after] - last) / max(width - 1, 1))
            inside[within] = number
        return gains, inside


class Result(NamedTuple):
    """The score of a detector by a profile: from 0 to 100, its sum of gains, and the threshold that has it."""

    score: float
    gains: float
    threshold: float


def sigmoid(position: Any) -> np.ndarray:
    """The gain at a position in window lengths from a window's end: 1 before, 0 at it, −1 after."""
    position = np.asarray(position, dtype=np.float64)
    return np.where(position > FAR, -1.0, 2 / (1 + np.exp(STEEP * np.minimum(position, FAR))) - 1)


def score(recordings: list[Recording], scores: list[np.ndarray], weights: Weights) -> Result:
    """The score of a detector, at the best threshold for all files together.

    Args:
        recordings: the files.
        scores: of each row of each, higher where it is more of an anomaly.
        weights: of a profile.
    """
    points, count = _points(recordings, scores, weights)
    order = np.argsort(-points[:, 0], kind="stable")
    value, gain, window = points[order].T
    change = np.where(window < 0, gain, 0.0)
    for number in range(count):
        places = np.flatnonzero(window == number)
        best = np.maximum.accumulate(np.maximum(gain[places], -weights.miss))
        change[places] = np.diff(best, prepend=-weights.miss)
    last = np.append(value[1:] != value[:-1], True)  # of the rows with equal scores
    sums = np.append(-weights.miss * count, np.cumsum(change)[last] - weights.miss * count)
    thresholds = np.append(np.inf, value[last])
    best = int(np.argmax(sums))
    return Result(normalised(float(sums[best]), count, weights), float(sums[best]), float(thresholds[best]))


def normalised(gains: float, windows: int, weights: Weights) -> float:
    """A sum of gains, where no alarm is 0 and a perfect detector 100."""
    return 100 * (gains / windows + weights.miss) / (weights.hit + weights.miss)


def gains_at(recording: Recording, scores: np.ndarray, weights: Weights, threshold: float) -> tuple[float, int, int]:
    """Of one file at a threshold: the sum of gains, the number of windows with an alarm, and of false alarms."""
    points, count = _points([recording], [scores], weights)
    _, gain, window = points[points[:, 0] >= threshold].T
    best = [max([-weights.miss, *gain[window == number]]) for number in range(count)]
    hits = len(np.unique(window[window >= 0]))
    return float(gain[window < 0].sum() + sum(best)), hits, int((window < 0).sum())


def _points(recordings: list[Recording], scores: list[np.ndarray], weights: Weights) -> tuple[np.ndarray, int]:
    """The rows that are scored, with score, weighted gain and window number among all files; and how many windows."""
    points, count = [], 0
    for recording, values in zip(recordings, scores, strict=True):
        if len(values) != len(recording.values):
            raise ValueError(f"{recording.name} has {len(recording.values)} rows, got {len(values)} scores")
        gains, inside = recording.positions()
        gains = gains * np.where(inside < 0, weights.false, weights.hit)
        number = np.where(inside < 0, -1, inside + count)
        points.append(np.stack([values, gains, number], axis=1)[recording.probation :])
        count += len(recording.windows)
    return np.concatenate(points), count


class Archive:
    """`nab.tar.xz`: the files with their windows, the profiles, and what detectors published."""

    def __init__(self, data: Path | None = None) -> None:
        """
        Args:
            data: the folder that holds `nab/`; by default PLMU_DATA, or the present folder.
        """
        self.path = (data or Path(os.environ.get("PLMU_DATA", "."))) / "nab" / "nab.tar.xz"
        with tarfile.open(self.path) as archive:
            self.files = {
                member.name.removeprefix("./"): archive.extractfile(member).read().decode()  # type: ignore[union-attr]
                for member in archive
                if member.isfile()
            }

    def recordings(self) -> list[Recording]:
        """All files, by name."""
        windows = json.loads(self.files["labels/combined_windows.json"])
        return [self._recording(name, windows[name]) for name in sorted(windows)]

    def weights(self, profile: str) -> Weights:
        matrix = json.loads(self.files["config/profiles.json"])[profile]["CostMatrix"]
        return Weights(matrix["tpWeight"], matrix["fpWeight"], matrix["fnWeight"])

    def published(self) -> dict[str, dict[str, float]]:
        """The final scores of each detector by profile."""
        scores: dict[str, dict[str, float]] = json.loads(self.files["results/final_results.json"])
        return scores

    def scores(self, detector: str, recordings: list[Recording]) -> list[np.ndarray]:
        """The committed scores of a detector for each row of the files."""
        columns = []
        for recording in recordings:
            folder, name = recording.name.split("/")
            rows = self._rows(f"results/{detector}/{folder}/{detector}_{name}")
            columns.append(np.array([float(row["anomaly_score"]) for row in rows]))
        return columns

    def _recording(self, name: str, windows: list[list[str]]) -> Recording:
        rows = self._rows(f"data/{name}")
        times = [row["timestamp"] for row in rows]
        places = [(times.index(first.split(".")[0]), times.index(last.split(".")[0])) for first, last in windows]
        return Recording(name, times, np.array([float(row["value"]) for row in rows]), places)

    def _rows(self, name: str) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.files[name])))
