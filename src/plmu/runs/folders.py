"""The files of a run's folder: config.json is what is run, result.json what came out; `sources` has data.json and
paths.json.

What is published is made of result.json alone, so that no path of this machine gets there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from plmu.runs import sources
from plmu.runs.experiment import Config, Experiment
from plmu.errors import RunError
from plmu.runs.results import read_json, write_json
from plmu.training.task import Batch

# Of each seed alone; and where it ran and from what, which seeds share unless they were run apart.
OWN = ("seed", "best_epoch", "valid", "test", "seconds_training", "seconds_in_all")
ORIGIN = ("processes", "command", "hardware", "torch", "python", "plmu", "source")
AGAIN = "remove it, and the same command makes it again"
# What other fields of result.json are, besides text.
KINDS: dict[str, type | tuple[type, ...]] = {
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


def described(experiment: Experiment, model: str, config: Config[Any]) -> dict[str, Any]:
    """What determines the result, as JSON gives it back."""
    fields = sources.published(config)
    content = {"experiment": experiment.name, "model": model, "seed": config.seed, "config": fields}
    read_back: dict[str, Any] = json.loads(json.dumps(content, default=str))
    return read_back


def of_name(stem: Path) -> list[Path]:
    """The run folders of this name, by seed."""
    if not stem.parent.is_dir():
        return []
    named = ((re.fullmatch(rf"{re.escape(stem.name)}-seed(\d+)", one.name), one) for one in stem.parent.iterdir())
    return [path for _, path in sorted((int(match[1]), path) for match, path in named if match)]


def begun(folder: Path) -> bool:
    """Whether there is anything in it that another configuration must not be mixed with."""
    return (folder / "result.json").is_file() or has_checkpoint(folder)


def has_checkpoint(folder: Path) -> bool:
    return any((folder / "checkpoints").glob("*.ckpt"))


def make(folder: Path) -> None:
    """Make the folder, and see that it can be written to: now rather than after an hour."""
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        with open(folder / ".lock", "a"):
            pass
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror or error}") from None


def describe(folder: Path, content: dict[str, Any]) -> None:
    """Write config.json into the folder of a new run."""
    if not begun(folder):
        for name in ("metrics.jsonl", "data.json", "paths.json"):
            (folder / name).unlink(missing_ok=True)
        write_json(folder / "config.json", content)


def fingerprint(companions: dict[str, str], splits: Iterable[Batch], frozen: Iterable[Tensor]) -> str:
    """A hash of a run's data: its texts, the shapes of all tensors, tokens and labels, and weights that stay as given.

    Other values may differ by rounding between machines.
    """
    digest = hashlib.sha256(json.dumps(companions, sort_keys=True).encode())
    tensors = [(values, not values.is_floating_point()) for split in splits for values in split]
    for values, exact in [*tensors, *((values, True) for values in frozen)]:
        digest.update(f"{values.dtype} {tuple(values.shape)}".encode())
        if exact:
            digest.update(values.cpu().flatten().contiguous().numpy().data)
    return digest.hexdigest()


def check_same(folder: Path, wanted: dict[str, Any], usual: dict[str, Any]) -> None:
    """See that the run in this folder, of whichever seed, is of this configuration."""
    if not begun(folder):
        return
    known = folder / "config.json"
    try:
        found = differing(read_json(known), wanted, usual)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise RunError(f"{known} is missing or damaged: remove {folder}, or choose another --name") from None
    if found:
        raise RunError(
            f"{folder} holds a run of another configuration ({', '.join(found)}): choose another --name, or remove it"
        )


def read_results(stem: Path, metric: str, wanted: dict[str, Any], usual: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of this name by seed, all of this configuration and with the same scores."""
    found: list[dict[str, Any]] = []
    for folder in of_name(stem):
        path = folder / "result.json"
        if not path.is_file():
            continue
        one = read_result(folder, metric, refit=wanted["config"]["training"]["refit"])
        different = differing(one, wanted, usual)
        if different:
            raise RunError(f"{path} is of another configuration ({', '.join(different)}): {AGAIN}")
        if found and any(one[key].keys() != found[0][key].keys() for key in ("valid", "test")):
            raise RunError(f"{path} has other scores than seed {found[0]['seed']}: {AGAIN}")
        found.append(one)
    return found


def read_result(folder: Path, metric: str, refit: bool = False) -> dict[str, Any]:
    """The content of result.json, whose fields are there and of their types; a refit has no validation score."""
    path = folder / "result.json"
    try:
        result: dict[str, Any] = read_json(path)
        names = ("experiment", "model", "metric", "config", "parameters", "notes", *OWN, *ORIGIN)
        right = {name: name in result and _is(result[name], KINDS.get(name, str)) for name in names}
        right["metric"] = right["metric"] and result["metric"] == metric
        right["seed"] = right["seed"] and folder.name.endswith(f"-seed{result['seed']}")
        for name in ("valid", "test"):
            right[name] = right[name] and all(_is(value, (int, float)) for value in result[name].values())
            right[name] = right[name] and (metric in result[name] or (refit and name == "valid"))
        right["history"] = is_history(result.get("history", []))  # which earlier versions did not write
    except (ValueError, TypeError, AttributeError):
        raise RunError(f"{path} is damaged: {AGAIN}") from None
    wrong = [name for name, fits in right.items() if not fits]
    if wrong:
        raise RunError(f"{path} has a missing or wrong {', '.join(wrong)}: {AGAIN}")
    return result


def is_history(value: Any) -> bool:
    """Whether this is a learning curve: entries of finite numbers by name, each with its epoch."""
    entries = value if isinstance(value, list) else [None]
    return all(
        isinstance(one, dict) and "epoch" in one and all(_is(number, (int, float)) for number in one.values())
        for one in entries
    )


def _is(value: Any, kind: type | tuple[type, ...]) -> bool:
    """Whether a value is of a field's kind, and finite if it is a number."""
    if not isinstance(value, kind) or isinstance(value, bool):
        return False
    return not isinstance(value, int | float) or abs(value) <= sys.float_info.max


def differing(a: dict[str, Any], b: dict[str, Any], usual: dict[str, Any]) -> list[str]:
    """What differs between a run that is there and one that is asked for, seeds aside. The former may be of a version
    that did not have all fields yet: these had what is usual now."""
    for key in ("experiment", "model"):
        if a[key] != b[key]:
            return [f"{key} was {a[key]}, now {b[key]}"]
    return _differences({**_filled(a["config"], usual), "seed": None}, {**b["config"], "seed": None})


def _filled(values: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    """With the usual values of fields that are missing."""
    nested = {key: _filled(values[key], usual[key]) for key in usual if isinstance(values.get(key), dict)}
    return {**usual, **values, **nested}


def _differences(a: dict[str, Any], b: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key in sorted({*a, *b}):
        x, y = a.get(key), b.get(key)
        if isinstance(x, dict) and isinstance(y, dict):
            found += _differences(x, y, f"{prefix}{key}.")
        elif x != y:
            found.append(f"{prefix}{key} was {x}, now {y}")
    return found


def read_config(folder: Path, experiments: dict[str, Experiment]) -> tuple[Experiment, Config[Any]]:
    """The experiment and the configuration that config.json says, without paths: `sources.locate` sets those."""
    known = folder / "config.json"
    if not known.is_file():
        raise RunError(f"{folder} is not a run: it has no config.json. Runs are folders that `plmu train` writes")
    try:
        content = read_json(known)
        experiment = experiments[content["experiment"]]
        config = experiment.defaults(content["model"])
        fields = {name: value for name, value in content["config"].items() if name != "start"}
        _fill(config, fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{known} is damaged or not of this version ({type(error).__name__}: {error})") from None
    return experiment, config


def _fill(config: Any, values: dict[str, Any], prefix: str = "") -> None:
    """Set the fields of nested dataclasses from their JSON form."""
    hints = typing.get_type_hints(type(config))
    for name, value in values.items():
        known = getattr(config, name)
        if dataclasses.is_dataclass(known):
            _fill(known, value, f"{prefix}{name}.")
            continue
        converted = tuple(value) if isinstance(value, list) else value
        if not _fits(converted, hints[name]):
            raise ValueError(f"{prefix}{name} cannot be {value!r}")
        setattr(config, name, converted)
    if hasattr(config, "__post_init__"):
        config.__post_init__()  # the ranges


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a field's type."""
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind is typing.Literal:
        return value in inner
    if kind in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if kind is tuple:
        whole = inner[-1] is ... or (isinstance(value, tuple) and len(value) == len(inner))
        return whole and isinstance(value, tuple) and all(_fits(one, inner[0]) for one in value)
    if isinstance(value, bool) or not isinstance(hint, type):
        return hint is bool
    return isinstance(value, int | float if hint is float else hint)
