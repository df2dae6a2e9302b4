"""A table with anomalies for tests of detectors."""

from typing import Any

import numpy as np

COUNT, SEASON = 700, 24
SPIKE, DIP = 500, 600  # rows with an anomaly: of load, and of temp
GAP = slice(300, 303)  # rows that are not in the file


def values(count: int = COUNT) -> Any:
    """A day of 24 steps and noise, and noise around another level: (count, 2)."""
    k, rng = np.arange(count), np.random.default_rng(0)
    load = 50 + 10 * np.sin(2 * np.pi * k / SEASON) + rng.standard_normal(count)
    temp = 15 + rng.standard_normal(count)
    if count > DIP:
        load[SPIKE] += 40
        temp[DIP] -= 30
    return np.stack([load, temp], axis=1).round(3)


def stamps(count: int = COUNT) -> Any:
    return (np.datetime64("2024-01-01T00:00") + 60 * np.arange(count)).astype("datetime64[us]")


def written(count: int = COUNT, first: int = 0, label: str = "") -> str:
    """The table as CSV, without the rows of the gap; with a column of labels, if it has a name."""
    lines = ["time,load,temp" + (f",{label}" if label else "")]
    for row, (time, (load, temp)) in enumerate(zip(stamps(count), values(count).tolist(), strict=True)):
        if row >= first and not GAP.start <= row < GAP.stop:
            truth = f",{int(row in (SPIKE, DIP))}" if label else ""
            lines.append(f"{str(time)[:16].replace('T', ' ')},{load},{temp}{truth}")
    return "\n".join([*lines, ""])
