"""Forecasts that learn while they stream, beside the same models frozen.

    python -m benchmarks.learning --json results

"sets": the test rows of ETTh1, ETTh2, ETTm1, Weather and Exchange, with the fits of `benchmarks.forecasting` (free
look-back). The stream continues the rows before the test rows, so it learns from what is past alone; needs the data of
that benchmark. "coverage": streams of noise with a season, and changes of them; coverage of 80 and 95 % intervals, and
how many samples after a change of all streams the coverage of the last 200 samples is within three points, averaged
over streams. "cost": processor time of a sample, and the size of a state.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import plmu
from benchmarks.forecasting import FILES, HORIZONS, read
from plmu.nn import LearningForecast, LookbackForecast
from plmu.runs.folder import read_json
from plmu.runs.provenance import provenance

PARTS = ("sets", "coverage", "cost")
LEVELS = (0.8, 0.95)
STREAMS, STEPS, BEFORE, SEASON = 100, 4000, 700, 24
EVERY = 600  # steps from one change of a stream to the next
CHANGE, LATER, LAST, POINTS = 1000, 1500, 200, 0.03  # of the streams that all change once
AHEAD = 12  # steps
SIZES = ((1, 24, 48, 96), (7, 96, 96, 336), (21, 720, 96, 576))  # channels, horizon, order and look-back


def online(name: str, horizon: int, folder: Path) -> dict[str, Any]:
    """Errors over the test windows of one set, frozen and learning."""
    values, (train, valid, test) = read(folder / "ltsf", name)
    forecaster = plmu.Forecaster(horizon, validation=valid - train, refit=False).fit(values[:valid])
    model, scale = forecaster.model, np.asarray(forecaster.scale_)
    first = valid - model.lookback
    frozen = forecaster.evaluate(values[first:test], start=first)
    output = np.asarray(forecaster.predict(values[first:valid], start=first))  # the stream begins one row later
    stream = forecaster.stream(learn=True)
    used = time.process_time()
    squares, absolute, count = 0.0, 0.0, 0
    for origin in range(valid - 1, test - horizon):
        if origin >= valid:
            output = stream.push(values[origin]).double().unflatten(0, (horizon, -1)).numpy()
        error = (values[origin + 1 : origin + 1 + horizon] - output) / scale
        squares, absolute, count = squares + np.square(error).sum(), absolute + np.abs(error).sum(), count + error.size
    return {
        "horizon": horizon,
        "windows": frozen["windows"],
        "mse frozen": frozen["mse"],
        "mse": squares / count,
        "mae frozen": frozen["mae"],
        "mae": absolute / count,
        "milliseconds a sample": 1000 * (time.process_time() - used) / (test - horizon - valid),
    }


def check(name: str, row: dict[str, Any], results: Path) -> None:
    """Stop unless the frozen model has the error of results/, but for the rounding of its fit."""
    published = read_json(results / f"forecast-{name.lower()}.json")["lookback free"]["rows"]
    expected = next(other["mse"] for other in published if other["horizon"] == row["horizon"])
    if abs(row["mse frozen"] / expected - 1) > 0.03:
        raise SystemExit(f"{name} {row['horizon']}: frozen mse {row['mse frozen']:.5f}, in results {expected:.5f}")


def tested(name: str, folder: Path, results: Path) -> dict[str, Any]:
    """All horizons of a set, and their means."""
    rows = []
    for horizon in HORIZONS:
        rows.append(online(name, horizon, folder))
        check(name, rows[-1], results)
        print(name, json.dumps(rows[-1]), flush=True)
    keys = ("mse frozen", "mse", "mae frozen", "mae")
    return {"rows": rows, "mean": {key: float(np.mean([row[key] for row in rows])) for key in keys}}


def noise(steps: int, rng: np.random.Generator) -> np.ndarray:
    values = rng.normal(size=steps)
    for at in range(1, steps):
        values[at] = 0.5 * values[at - 1] + np.sqrt(0.75) * values[at]
    return values


def season(steps: int) -> np.ndarray:
    return 2 * np.sin(2 * np.pi * np.arange(steps) / SEASON)


def changing(kind: str, starts: range, steps: int, rng: np.random.Generator) -> np.ndarray:
    """A season and noise of variance 1, which change at these steps: the level by 5, the trend or the variance."""
    random, values = noise(steps, rng), season(steps)
    for begin in starts:
        if kind in ("level shifts", "all"):
            values[begin:] += rng.choice([-5.0, 5.0])
        if kind in ("changes of trend", "all"):
            values[begin:] += 0.01 * rng.normal() * np.arange(steps - begin)
        if kind in ("changes of variance", "all"):
            random[begin:] *= rng.choice([0.5, 2.0])
    return values + random


def fitted() -> tuple[LearningForecast, Tensor]:
    """A layer that learns around a fitted model, and the intervals of the fit, (2, levels, horizon)."""
    rng = np.random.default_rng(0)
    past = season(BEFORE) + noise(BEFORE, rng)
    forecaster = plmu.Forecaster(AHEAD, lookback=2 * SEASON, season=SEASON, pooled=False).fit(past)
    layer = forecaster.stream(start=0, learn=True).model
    return layer, torch.stack([layer.low[:, 0], layer.high[:, 0]])


def covered(layer: LearningForecast, static: Tensor, x: Tensor) -> Tensor:
    """Whether each value is in its intervals, (2, streams, steps, horizon, levels): static ones of the frozen model,
    and those that adapt."""
    folded, frozen, steps = plmu.fold(layer), plmu.fold(layer.model), x.shape[1]
    scoring, state, other = layer.learning.scoring, None, None
    bounds = []
    with torch.inference_mode():
        for at in range(steps):
            out, state = folded.step(x[:, at], state)
            before, other = frozen.step(x[:, at], other)
            ends = torch.stack(scoring.ends(state[-1].scored))[:, :, :, 0]  # (2, streams, horizon, levels)
            bounds.append(torch.stack([before[..., None] + static.mT[:, None], out[..., None] + ends]))
    ends = torch.stack(bounds, dim=3)[:, :, :, : steps - AHEAD]  # (2, 2, streams, steps, horizon, levels)
    ahead = x[:, 1:, 0].unfold(1, AHEAD, 1)[..., None]
    return (ahead >= ends[:, 0]) & (ahead <= ends[:, 1])


def coverage() -> dict[str, Any]:
    layer, static = fitted()
    rng, result = np.random.default_rng(1), {}
    kinds = ("no change", "level shifts", "changes of trend", "changes of variance", "all")
    for kind in kinds:
        starts = range(EVERY, STEPS, EVERY)
        x = torch.tensor(np.stack([changing(kind, starts, STEPS, rng) for _ in range(STREAMS // 4)]))[..., None]
        inside = covered(layer, static, x)[:, :, 100:].double()
        result[kind] = {
            name: {
                "coverage": inside[place].mean((0, 1, 2)).tolist(),
                "worst step ahead": _worst(inside[place].mean((0, 1))),
                "worst stream": _worst(inside[place].mean((1, 2))),
            }
            for place, name in enumerate(("frozen", "learning"))
        }
        print(kind, json.dumps(result[kind]), flush=True)
    after = {}
    for kind in kinds[1:4]:
        starts = range(CHANGE, CHANGE + 1)
        x = torch.tensor(np.stack([changing(kind, starts, CHANGE + LATER, rng) for _ in range(STREAMS)]))[..., None]
        if kind == "changes of variance":  # all upwards
            more = torch.tensor(np.stack([2 * noise(CHANGE + LATER, rng) for _ in range(STREAMS)]))
            x[:, CHANGE:, 0] = (torch.tensor(season(CHANGE + LATER)) + more)[:, CHANGE:]
        inside = covered(layer, static, x)
        after[kind] = {name: _recovered(inside[place]) for place, name in enumerate(("frozen", "learning"))}
        print(kind, json.dumps(after[kind]), flush=True)
    return {"streams": STREAMS // 4, "steps": STEPS, "horizon": AHEAD, "kinds": result,
            "after one change": {"streams": STREAMS, **after}}  # fmt: skip


def _worst(shares: Tensor) -> list[float]:
    """Of each level, the share that is farthest from it, of (many, levels)."""
    distance = (shares - torch.tensor(LEVELS, dtype=torch.float64)).abs()
    return [float(shares[int(distance[:, place].argmax()), place]) for place in range(len(LEVELS))]


def _recovered(inside: Tensor) -> dict[str, Any]:
    """Of each level, how many samples after the change the coverage of the last 200 comes within three points, on the
    average of streams and steps ahead, and stays there; None if it does not."""
    by_step = inside.double().mean((0, 2))  # (steps, levels), by the origin
    sums = torch.cat([torch.zeros(1, len(LEVELS), dtype=torch.float64), by_step.cumsum(0)])
    recent = (sums[LAST:] - sums[:-LAST]) / LAST  # that of the last 200 origins, from the 200th on
    recent = recent[CHANGE - LAST :]  # from the origins before the change on
    outside = (recent - torch.tensor(LEVELS, dtype=torch.float64)).abs() > POINTS
    counts = [int(outside[:, place].nonzero().max()) + 1 if outside[:, place].any() else 0 for place in range(2)]
    return {
        "samples": [None if count >= len(recent) else count for count in counts],
        "lowest": recent.min(0).values.tolist(),
        "after 300": recent[300].tolist(),
    }


def cost() -> list[dict[str, Any]]:
    """Processor time of a sample, mean and largest, and the bytes of a state."""
    rows = []
    for channels, horizon, order, lookback in SIZES:
        model = LookbackForecast(channels, horizon, order, float(lookback), lookback)
        layer = LearningForecast(model)
        x = torch.randn(lookback + horizon + 300, 1, channels, dtype=torch.float64)
        times: dict[str, list[float]] = {}
        for name, folded in (("frozen", plmu.fold(model)), ("learning", plmu.fold(layer))):
            state: Any = None
            for sample in x[:-200]:
                _, state = folded.step(sample, state)
            times[name] = [_seconds(lambda: folded.step(x[-1], state)) for _ in range(20)]  # noqa: B023
            for sample in x[-200:]:
                used = time.process_time()
                _, state = folded.step(sample, state)
                times[name].append(time.process_time() - used)
        size = sum(leaf.nbytes for leaf in _leaves(state))
        row: dict[str, Any] = {"channels": channels, "horizon": horizon, "order": order, "lookback": lookback}
        for name, seconds in times.items():
            row |= {f"{name} ms": 1000 * float(np.mean(seconds)), f"{name} worst ms": 1000 * max(seconds)}
        rows.append({**row, "state bytes": size})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def _seconds(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def _leaves(state: Any) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else [leaf for part in state for leaf in _leaves(part)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("results"), help="folder for learning.json (results)")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS, help="what to measure (all)")
    parser.add_argument("--sets", nargs="+", default=list(FILES), choices=list(FILES))
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("PLMU_DATA", ".")))
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.json / "learning.json"
    result: dict[str, Any] = read_json(path) if path.is_file() else {}
    result |= {"command": "python -m benchmarks.learning --json results", "machine": provenance(torch.device("cpu"))}
    measures: dict[str, Callable[[], Any]] = {"coverage": coverage, "cost": cost}
    for part in options.parts:
        if part in measures:
            result[part] = measures[part]()
            path.write_text(json.dumps(result, indent=1) + "\n")
            continue
        for name in options.sets:
            result.setdefault("sets", {})[name] = tested(name, options.data, options.json)
            path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
