"""The table of single series, from the results of `python -m benchmarks.single_series`."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.tables import Results, markdown, number

OURS = "plmu"
TITLES = {
    OURS: OURS,
    "linear": "linear",
    "seasonal naive": "seasonal naive",
    "DynamicOptimizedTheta": "DOT",
    "LightGBM": "LightGBM",
}
WORSE = 1.1


def series(result: Results) -> str:
    """MSE and MAE of every method on every series, the lowest in bold; how often plmu is better than the best of the
    others; and every loss."""
    rows = result["rows"]
    names = [name for name in TITLES if all(name in row["methods"] for row in rows)]
    halves = list(dict.fromkeys(row["half"] for row in rows))
    parts = []
    for half in halves:
        members = [row for row in rows if row["half"] == half]
        lines = [[row["series"], row["step"], f"{row['rows']:,}", str(row["horizon"]), *_cells(row, names)]
                 for row in members]  # fmt: skip
        header = [f"MSE / MAE, {half} half", "step", "rows", "horizon", *(TITLES[name] for name in names)]
        parts += [markdown(header, lines), *(_summary(half, members, score) for score in ("mse", "mae"))]
    losses = [
        [row["series"], row["half"], score.upper(), number(_ratio(row, score)), TITLES[_best(row, score)]]
        for score in ("mse", "mae")
        for row in rows
        if _ratio(row, score) > 1
    ]
    losses.sort(key=lambda line: -float(line[3]))
    header = ["where plmu is not the best", "half", "score", "relative to the best", "best"]
    return "\n\n".join([*parts, markdown(header, losses)])


def _cells(row: dict[str, Any], names: list[str]) -> list[str]:
    cells = []
    for name in names:
        texts = []
        for score in ("mse", "mae"):
            lowest = min(scores[score] for scores in row["methods"].values())
            text = number(row["methods"][name][score])
            texts.append(f"**{text}**" if row["methods"][name][score] == lowest else text)
        cells.append(" / ".join(texts))
    return cells


def _summary(half: str, rows: list[dict[str, Any]], score: str) -> str:
    ratios = [_ratio(row, score) for row in rows]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    better, worse = sum(ratio < 1 for ratio in ratios), sum(ratio > WORSE for ratio in ratios)
    return (
        f"{half.capitalize()} half, {score.upper()}: plmu is better than the best of the others on {better} of"
        f" {len(rows)} series, and worse than {WORSE} times it on {worse}; the geometric mean relative to the best of"
        f" the others is {number(mean)}."
    )


def _best(row: dict[str, Any], score: str) -> str:
    """The best other method."""
    others = {name: scores[score] for name, scores in row["methods"].items() if name != OURS}
    return min(others, key=others.__getitem__)


def _ratio(row: dict[str, Any], score: str) -> float:
    """The score of plmu, relative to that of the best other method."""
    return float(row["methods"][OURS][score] / row["methods"][_best(row, score)][score])
