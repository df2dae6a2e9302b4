"""result.json, what came out of a run: read and checked, with its learning curve; and one summary over seeds.

What is published is made of result.json alone, so that no path of this machine gets there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plmu.errors import RunError
from plmu.runs.configuration import differing
from plmu.runs.experiment import Experiment
from plmu.runs.folder import RESULT_FILE, read_json, runs_of

CURVE = 100  # entries of a learning curve in a result
# Fields of each seed alone; and where it ran and from what, which seeds share unless they were run apart.
OF_SEED = ("seed", "best_epoch", "valid", "test", "seconds_training", "seconds_in_all")
ORIGIN = ("processes", "command", "hardware", "torch", "python", "plmu", "source")
AGAIN = "remove it, and the same command makes it again"
# The types of fields that are not text.
TYPES: dict[str, type | tuple[type, ...]] = {
    "seed": int,
    "best_epoch": int,
    "valid": dict,
    "test": dict,
    "seconds_training": (int, float),
    "seconds_in_all": (int, float),
    "processes": int,
    "parameters": int,
    "config": dict,
    "notes": dict,
}


def read_results(stem: Path, metric: str, wanted: dict[str, Any], defaults: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of this name by seed, all of the wanted configuration and with the same scores."""
    results: list[dict[str, Any]] = []
    for folder in runs_of(stem):
        path = folder / RESULT_FILE
        if not path.is_file():
            continue
        result = read_result(folder, metric, refit=wanted["config"]["training"]["refit"])
        differences = differing(result, wanted, defaults)
        if differences:
            raise RunError(f"{path} is of another configuration ({', '.join(differences)}): {AGAIN}")
        if results and any(result[key].keys() != results[0][key].keys() for key in ("valid", "test")):
            raise RunError(f"{path} has other scores than seed {results[0]['seed']}: {AGAIN}")
        results.append(result)
    return results


def read_result(folder: Path, metric: str, refit: bool = False) -> dict[str, Any]:
    """The content of result.json, with all fields of the right type. A refit has no validation score, nor has
    a run whose notes say why."""
    path = folder / RESULT_FILE
    try:
        result: dict[str, Any] = read_json(path)
        names = ("experiment", "model", "metric", "config", "parameters", "notes", *OF_SEED, *ORIGIN)
        right = {name: name in result and _is(result[name], TYPES.get(name, str)) for name in names}
        right["metric"] = right["metric"] and result["metric"] == metric
        right["seed"] = right["seed"] and folder.name.endswith(f"-seed{result['seed']}")
        for name in ("valid", "test"):
            right[name] = right[name] and all(_is(value, (int, float)) for value in result[name].values())
            unscored = name == "valid" and (refit or "validation" in result.get("notes", {}))
            right[name] = right[name] and (metric in result[name] or unscored)
        right["history"] = is_history(result.get("history", []))  # absent from runs of earlier versions
    except (ValueError, TypeError, AttributeError):
        raise RunError(f"{path} is damaged: {AGAIN}") from None
    wrong = [name for name, is_right in right.items() if not is_right]
    if wrong:
        raise RunError(f"{path} has a missing or wrong {', '.join(wrong)}: {AGAIN}")
    return result


def is_history(value: Any) -> bool:
    """Whether this is a learning curve: entries of finite numbers by name, each with its epoch."""
    entries = value if isinstance(value, list) else [None]
    return all(
        isinstance(entry, dict) and "epoch" in entry and all(_is(number, (int, float)) for number in entry.values())
        for entry in entries
    )


def _is(value: Any, kind: type | tuple[type, ...]) -> bool:
    """Whether a value has a field's type, and is finite if it is a number."""
    if not isinstance(value, kind) or isinstance(value, bool):
        return False
    return not isinstance(value, int | float) or abs(value) <= sys.float_info.max


def thinned(history: list[dict[str, float]], best_epoch: int, most: int = CURVE) -> list[dict[str, float]]:
    """At most this many entries of a learning curve, evenly spaced, with the first, the last and the best epoch's.

    Entries with a validation score come first. Values that are not finite are left out.
    """
    places: Sequence[int] = range(len(history))
    if len(history) > most:
        scored = [place for place in places if any(name.startswith("valid_") for name in history[place])]
        inner = scored if 2 * len(scored) >= most else sorted({*scored, *_evenly(places, most // 2)})
        best = [place for place in places if history[place]["epoch"] == best_epoch]
        places = sorted({places[0], *_evenly(inner, most - 3), places[-1], *best[:1]})
    return [{name: value for name, value in history[place].items() if math.isfinite(value)} for place in places]


def _evenly(values: Sequence[int], count: int) -> list[int]:
    """At most `count` of the values, evenly, with the first and the last."""
    if len(values) <= count:
        return list(values)
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]


def spread(values: list[float]) -> dict[str, float]:
    """Mean and sample standard deviation."""
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
    return {"mean": mean, "std": math.sqrt(variance)}


def summarised(
    experiment: Experiment, paper: float | None, config: dict[str, Any], results: list[dict[str, Any]]
) -> dict[str, Any]:
    """The summary of all seeds: what they share once, what differs for each, mean and spread of each test score."""
    shared = {key: value for key, value in results[0].items() if key not in (*OF_SEED, "history")}
    of_seed = [*OF_SEED]
    for key in ORIGIN:
        values = list(dict.fromkeys(result[key] for result in results))
        if len(values) > 1:
            of_seed.append(key)
            shared[key] = "; ".join(str(value) for value in values)
    return {
        **shared,
        "notes": _shared_notes(results),
        "config": {**config, "seed": [result["seed"] for result in results]},
        "paper": paper,
        "percent": experiment.percent,
        "test": {name: spread([result["test"][name] for result in results]) for name in results[0]["test"]},
        "seeds": [{key: result[key] for key in (*of_seed, "history") if key in result} for result in results],
    }


def _shared_notes(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The notes of all seeds; notes that differ are prefixed by their seed."""
    notes: dict[str, Any] = {}
    for key in dict.fromkeys(key for result in results for key in result["notes"]):
        of_seeds = [(result["seed"], result["notes"][key]) for result in results if key in result["notes"]]
        same = len(of_seeds) == len(results) and all(note == of_seeds[0][1] for _, note in of_seeds)
        notes[key] = of_seeds[0][1] if same else "; ".join(f"seed {seed}: {note}" for seed, note in of_seeds)
    return notes
