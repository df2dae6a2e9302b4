"""What a run is made from: its data, files of the user's own, and the run it starts from.

What determines the result is published without paths: config.json has the sha256 of the model a run starts from and the
options of the data. data.json has hashes of the data and of the user's own files. paths.json says where all that was on
this machine, and is not published.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import shlex
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plmu.data.files import DataConfig, cache_folder
from plmu.errors import DataError
from plmu.timeseries.tables import nested_files
from plmu.runs.experiment import Config
from plmu.errors import RunError
from plmu.runs.results import read_json, write_json

ROOT, START = "data.root", "from"  # as options and in paths.json; other paths of the data are "data.NAME"
MODEL = "model.plmu"


def path_fields(data: DataConfig) -> list[str]:
    """The fields of a data configuration that are paths."""
    hints = typing.get_type_hints(type(data))
    names = [field.name for field in dataclasses.fields(data)]
    return [name for name in names if Path in (hints[name], *typing.get_args(hints[name]))]


def published(config: Config[Any]) -> dict[str, Any]:
    """All fields of a configuration that determine the result, without paths."""
    fields = dataclasses.asdict(config)
    data, start = fields.pop("data"), fields.pop("start")
    kept = {name: value for name, value in data.items() if name not in path_fields(config.data)}
    if kept:
        fields["data"] = kept
    if start is not None:
        fields["start"] = digest(start)
    return fields


def _option(name: str) -> str:
    """The option of a field of the data."""
    return f"--data.{name}".replace("_", "-")


def command(words: Sequence[str], data: DataConfig) -> str:
    """What was typed, without the folders of this machine: of files and of a run to start from their names alone."""
    dropped = ("--runs", f"--{ROOT}")
    shortened = (f"--{START}", *map(_option, path_fields(data)))
    kept: list[str] = []
    given = iter(words)
    for word in given:
        option, equals, value = word.partition("=")
        option = option.replace("_", "-")
        if option in dropped or option in shortened:
            value = value if equals else next(given, "")
            kept += [] if option in dropped else [option, Path(value).resolve().name]
        else:
            kept.append(word)
    return shlex.join(["plmu", *kept])


def checked_run(run: Path, experiments: Sequence[str] = ()) -> dict[str, Any]:
    """The result of a finished run to start from, which must be of one of these experiments if any are named."""
    if not (run / "config.json").is_file():
        raise RunError(f"--from {run} is not a run: it has no config.json. Runs are folders that `plmu train` writes")
    if not (run / "result.json").is_file():
        raise RunError(f"--from {run} is not finished: `plmu train` continues it")
    if not (run / MODEL).is_file():
        raise RunError(
            f"--from {run} has no {MODEL}: models that stream are saved there, by the command that trained them"
        )
    try:
        result: dict[str, Any] = read_json(run / "result.json")
        if not isinstance(result["experiment"], str) or not isinstance(result["model"], str):
            raise TypeError
        scores = [value for value in result["test"].values() if isinstance(value, int | float)]
        if not scores or not isinstance(result["notes"], dict):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunError(f"{run / 'result.json'} is damaged: remove it, and the same command makes it again") from None
    if experiments and result["experiment"] not in experiments:
        raise RunError(f"--from {run} is a run of {result['experiment']}: it must be one of {' or '.join(experiments)}")
    return result


def digest(run: Path) -> str:
    """The sha256 of the model of a finished run."""
    checked_run(run)
    status = (run / MODEL).stat()
    return _sha256(run / MODEL, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=16)
def _sha256(path: Path, size: int, changed: int) -> str:
    """Of a file of this size that was last changed at this time."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def own_files(data: DataConfig) -> dict[str, Path]:
    """The files of the user's own that are given, by the names of their fields."""
    given = {name: getattr(data, name) for name in path_fields(data) if name != "root"}
    return {name: path for name, path in given.items() if path is not None}


def _hashes(data: DataConfig) -> dict[str, str]:
    found = {}
    for name, path in own_files(data).items():
        status = path.stat()
        if path.is_dir():
            found[name] = _folder_hash(path)
        elif path.is_file():
            found[name] = _sha256(path, status.st_size, status.st_mtime_ns)
    return found


def _folder_hash(folder: Path) -> str:
    """Of names and contents of the tables in a folder and its sub-folders."""
    whole = hashlib.sha256()
    for path in nested_files(folder):
        status = path.stat()
        whole.update(
            f"{path.relative_to(folder).as_posix()} {_sha256(path, status.st_size, status.st_mtime_ns)}\n".encode()
        )
    return whole.hexdigest()


def check_files(folder: Path, data: DataConfig) -> None:
    """See that the run in this folder was trained on these files of the user's own, if any. Reads no other data."""
    if not (folder / "data.json").is_file():
        return
    known, found = _known(folder).get("files", {}), _hashes(data)
    for name in sorted({*known, *found}):
        if name not in found:
            raise RunError(
                f"{folder} was trained on a file of your own: give it as {_option(name)}, or choose another --name"
            )
        if known.get(name) != found[name]:
            raise _another(folder, data, ", or choose another --name")


def check_data(folder: Path, found: str, data: DataConfig) -> None:
    """See that the data of this fingerprint is what the run in this folder was trained on."""
    if _known(folder).get("sha256", found) != found:
        raise _another(folder, data)


def _known(folder: Path) -> dict[str, Any]:
    """The content of data.json; nothing of a run of a version that did not write it."""
    path = folder / "data.json"
    if not path.is_file():
        return {}
    try:
        content: dict[str, Any] = read_json(path)
        if not isinstance(content["sha256"], str) or not isinstance(content.get("files", {}), dict):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunError(f"{path} is damaged: remove it if the data is the run's") from None
    return content


def _another(folder: Path, data: DataConfig, more: str = "") -> RunError:
    files = own_files(data)
    where = ", ".join(map(str, files.values())) or str(_root(data) or cache_folder())
    option = " and ".join(map(_option, files)) or f"--{ROOT}"
    return RunError(f"the data in {where} is not what {folder} was trained on: give that run's {option}{more}")


def remember(folder: Path, found: str, config: Config[Any]) -> None:
    """Write what the data of a run is, and where it and the run to start from are."""
    hashes = _hashes(config.data)
    write_json(folder / "data.json", {"sha256": found, **({"files": hashes} if hashes else {})})
    paths = {ROOT: _root(config.data), START: config.start}
    paths |= {f"data.{name}": path for name, path in own_files(config.data).items()}
    known = {name: str(path.absolute()) for name, path in paths.items() if path is not None}
    if known:
        write_json(folder / "paths.json", known)


def _root(data: DataConfig) -> Path | None:
    try:
        return data.folder()
    except DataError:  # an experiment that makes its data needs no folder
        return None


def locate(folder: Path, config: Config[Any], given: dict[str, Path]) -> None:
    """Set the paths of a run's configuration: those that are given, such as {"data.root": …}, else those it had."""
    started = read_json(folder / "config.json")["config"].get("start")
    wanted = {f"data.{name}": name for name in path_fields(config.data)}
    for name in given.keys() - {*wanted, *([START] if started is not None else [])}:
        raise RunError(f"{folder} takes no --{name}")
    paths = {**_remembered(folder, needed={*wanted} - given.keys()), **given}
    for option, name in wanted.items():
        path = paths.get(option)
        if option in given or path is None or path.exists():
            setattr(config.data, name, path)
        elif option != ROOT:
            raise RunError(f"{folder} was trained on {path}, which is not there: give --{option.replace('_', '-')}")
        elif not os.environ.get("PLMU_DATA") and not own_files(config.data) and not paths.keys() - {ROOT, START}:
            raise RunError(f"the data of {folder} was in {path}, which is not there: give --{ROOT}, or set PLMU_DATA")
    if started is not None:
        config.start = _start(folder, started, paths.get(START))


def _remembered(folder: Path, needed: set[str]) -> dict[str, Path]:
    """The content of paths.json, which is read if a path is needed."""
    path = folder / "paths.json"
    if not needed or not path.is_file():
        return {}
    try:
        known = read_json(path)
        if not known or not all(isinstance(value, str) for value in known.values()):
            raise TypeError
    except (ValueError, TypeError, AttributeError):
        raise RunError(f"{path} is damaged: give --{' and --'.join(sorted(needed))}, or remove it") from None
    return {name: Path(value) for name, value in known.items()}


def _start(folder: Path, sha256: str, run: Path | None) -> Path:
    """The run that this one started from."""
    if run is None:
        raise RunError(f"{folder} started from another run: give that run's folder as --{START}")
    if not run.is_dir():
        raise RunError(f"{folder} started from {run}, which is not there: give --{START}")
    if digest(run) != sha256:
        raise RunError(f"{folder} started from another model than {run / MODEL}: give that run as --{START}")
    return run
