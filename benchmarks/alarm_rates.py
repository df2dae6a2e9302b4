"""How often `plmu.nn.AnomalyScore` takes normal samples for anomalies, how its intervals hold, and what a step costs.

    python -m benchmarks.alarm_rates --json results

Streams are synthetic and have no anomalies: the share of samples with a score above 1 − threshold, divided by the
threshold, would be 1. The layer has its defaults and the seasonal period of the streams that have one.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import plmu
from plmu.runs.provenance import provenance

ROWS, EACH, SEASON = 40_000, 2, 48  # samples of a stream, streams of a kind, their seasonal period
THRESHOLDS = (0.05, 0.01, 0.001)
SPANS = ((0, 500), (500, 5_000), (5_000, 15_000), (15_000, ROWS))
SHIFTED, SHIFT, LEVEL, RECENT = 40, 2_000, 0.9, 200  # streams with a level shift, when, the interval, samples counted


def streams(seed: int) -> dict[str, np.ndarray]:
    """A stream of each kind."""
    generator = np.random.default_rng(seed)
    swing = np.sin(2 * np.pi * np.arange(ROWS) / SEASON)
    noise, slow = generator.standard_normal((2, ROWS)), np.zeros(ROWS)
    for row in range(1, ROWS):
        slow[row] = 0.9 * slow[row - 1] + noise[0, row]
    return {
        "normal noise": generator.standard_normal(ROWS),
        "autoregressive, 0.9": slow,
        "sine and normal noise": 5 * swing + noise[1],
        "uniform": generator.random(ROWS),
        "lognormal": np.exp(generator.standard_normal(ROWS)),
        "Student t, 3 degrees of freedom": generator.standard_t(3, ROWS),
        "counts: Poisson, mean 3": generator.poisson(3, ROWS).astype(float),
        "counts: Poisson with a season": generator.poisson(10 + 8 * swing).astype(float),
        "0 or 1, a share of 0.02": (generator.random(ROWS) < 0.02).astype(float),
    }


def rates() -> list[dict[str, Any]]:
    """For each kind the alarms in multiples of each threshold, by span, and the coverage of the intervals."""
    kinds = [streams(seed) for seed in range(EACH)]
    names = list(kinds[0])
    x = torch.from_numpy(np.stack([part[name] for name in names for part in kinds]))[:, :, None]
    layer = plmu.nn.AnomalyScore(1, season=SEASON)
    out, state = [], None
    for piece in x.split(1_000, dim=1):
        scores, state = layer(piece, state)
        out.append(scores)
    output = torch.cat(out, dim=1).unflatten(0, (len(names), EACH))
    x = x.unflatten(0, (len(names), EACH))[..., 0]
    rows = []
    for name, score, values in zip(names, output, x, strict=True):
        inside = (values >= score[..., 3]) & (values <= score[..., 4])
        spans = {
            f"{first}-{last}": {
                str(share): float((score[:, first:last, 0] > 1 - share).double().mean()) / share for share in THRESHOLDS
            }
            for first, last in SPANS
        }
        rows.append({"stream": name, "alarms by threshold": spans, "coverage": float(inside[:, 500:].double().mean())})
    return rows


def coverage() -> dict[str, Any]:
    """The share of the last samples in the interval, after a level shift of five standard deviations."""
    values = np.random.default_rng(0).standard_normal((SHIFTED, SHIFT + 600))
    values[:, SHIFT:] += 5
    out, _ = plmu.nn.AnomalyScore(1, level=LEVEL)(torch.from_numpy(values)[:, :, None])
    inside = (values >= out[:, :, 3].numpy()) & (values <= out[:, :, 4].numpy())
    recent = [float(inside[:, end - RECENT : end].mean()) for end in range(SHIFT, SHIFT + 600)]
    return {"streams": SHIFTED, "level": LEVEL, "least": min(recent), "most": max(recent)}


def cost(season: int) -> dict[str, Any]:
    """Milliseconds of a processor for a sample of a stream, and the bytes of its state."""
    stream = plmu.Stream(plmu.nn.AnomalyScore(1, season=season))
    samples = torch.randn(1_500, 1, dtype=torch.float64)
    for sample in samples[:500]:
        stream.push(sample)
    begin = time.process_time()
    for sample in samples[500:]:
        stream.push(sample)
    milliseconds = time.process_time() - begin  # of 1,000 samples, in seconds
    return {"milliseconds": milliseconds, "bytes": sum(part.numel() * 8 for part in stream.state)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="folder for alarm-rates.json")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    table: dict[str, Any] = {"rates": rates(), "after a level shift": coverage(), "season": 288, "step": cost(288)}
    table["machine"] = provenance(torch.device("cpu"))
    text = json.dumps(table, indent=2)
    if options.json is None:
        print(text)
        return
    options.json.mkdir(parents=True, exist_ok=True)
    (options.json / "alarm-rates.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
