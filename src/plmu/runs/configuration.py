"""config.json, what a run is: a configuration as JSON and back, and how two configurations differ."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from plmu.errors import RunError
from plmu.runs import sources
from plmu.runs.experiment import Config, Experiment
from plmu.runs.folder import CONFIG_FILE, DATA_FILE, METRICS_FILE, PATHS_FILE, is_started, read_json, write_json


def as_json(experiment: Experiment, model: str, config: Config[Any]) -> dict[str, Any]:
    """All that determines the result, as it is read from config.json."""
    content = {
        "experiment": experiment.name,
        "model": model,
        "seed": config.seed,
        "config": sources.published(config),
    }
    result: dict[str, Any] = json.loads(json.dumps(content, default=str))
    return result


def write_config(folder: Path, content: dict[str, Any]) -> None:
    """Write config.json, unless the run has started, and remove what an earlier run left behind."""
    if not is_started(folder):
        for name in (METRICS_FILE, DATA_FILE, PATHS_FILE):
            (folder / name).unlink(missing_ok=True)
        write_json(folder / CONFIG_FILE, content)


def read_config(folder: Path, lookup: Callable[[str], Experiment]) -> tuple[Experiment, Config[Any]]:
    """The experiment and the configuration of a run, without paths: `sources.locate` sets those.

    Args:
        folder: of the run.
        lookup: returns the experiment of a name, or raises KeyError.

    Raises:
        RunError: it is not a run, or config.json is damaged.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise RunError(f"{folder} is not a run: it has no {CONFIG_FILE}. Runs are folders that `plmu train` writes")
    try:
        content = read_json(path)
        experiment = lookup(content["experiment"])
        config = experiment.defaults(content["model"])
        _fill(config, {name: value for name, value in renamed(content["config"]).items() if name != "start"})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is damaged or not of this version ({type(error).__name__}: {error})") from None
    return experiment, config


def check_same(folder: Path, wanted: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Raise RunError if the run in this folder, of any seed, has another configuration than the wanted one."""
    if not is_started(folder):
        return
    path = folder / CONFIG_FILE
    try:
        differences = differing(read_json(path), wanted, defaults)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise RunError(f"{path} is missing or damaged: remove {folder}, or choose another --name") from None
    if differences:
        raise RunError(
            f"{folder} holds a run of another configuration ({', '.join(differences)}): choose another --name, or"
            " remove it"
        )


Content = TypeVar("Content")
RENAMED = {"strength": "alpha"}  # fields of configurations, by their names in runs of version 0.1


def renamed(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration as JSON with today's names of fields."""
    return {
        RENAMED.get(key, key): renamed(value) if isinstance(value, dict) else value for key, value in values.items()
    }


def differing(run: dict[str, Any], wanted: dict[str, Any], defaults: dict[str, Any]) -> list[str]:
    """How a run differs from the wanted one, in words, seeds aside.

    The run may be of an older version without some of the fields: they count as today's defaults.
    """
    for key in ("experiment", "model"):
        if run[key] != wanted[key]:
            return [f"{key} was {run[key]}, now {wanted[key]}"]
    before = _completed(renamed(run["config"]), defaults)
    return _differences({**before, "seed": None}, {**wanted["config"], "seed": None})


def _completed(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """With the defaults of missing fields."""
    nested = {key: _completed(values[key], defaults[key]) for key in defaults if isinstance(values.get(key), dict)}
    return {**defaults, **values, **nested}


def _differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    differences = []
    for key in sorted({*before, *now}):
        x, y = before.get(key), now.get(key)
        if isinstance(x, dict) and isinstance(y, dict):
            differences += _differences(x, y, f"{prefix}{key}.")
        elif x != y:
            differences.append(f"{prefix}{key} was {x}, now {y}")
    return differences


def _fill(config: Any, values: dict[str, Any], prefix: str = "") -> None:
    """Set the fields of nested dataclasses from their JSON form."""
    hints = typing.get_type_hints(type(config))
    for name, value in values.items():
        default = getattr(config, name)
        if dataclasses.is_dataclass(default):
            _fill(default, value, f"{prefix}{name}.")
            continue
        converted = tuple(value) if isinstance(value, list) else value
        if not _fits(converted, hints[name]):
            raise ValueError(f"{prefix}{name} cannot be {value!r}")
        setattr(config, name, converted)
    if hasattr(config, "__post_init__"):
        config.__post_init__()  # the ranges


def typed(content: Content) -> Content:
    """A dataclass whose fields were read from a file.

    Raises:
        TypeError: a field is not of its type.
    """
    for name, hint in typing.get_type_hints(type(content)).items():
        if not _fits(getattr(content, name), hint):
            raise TypeError(f"{name} cannot be {getattr(content, name)!r}")
    return content


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a field's type."""
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind is typing.Literal:
        return value in inner
    if kind in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in inner)
    if kind is tuple:
        right_length = inner[-1] is ... or (isinstance(value, tuple) and len(value) == len(inner))
        return right_length and isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    if isinstance(value, bool) or not isinstance(hint, type):
        return hint is bool
    return isinstance(value, int | float if hint is float else hint)
