"""What a run is made from: its data, the user's own files, and the run it starts from.

What determines the result is published without paths: config.json has the options of the data and the sha256 of the
model that a run starts from, data.json has hashes of the data and of the user's own files. paths.json, which is not
published, says where all that was on this machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shlex
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from plmu.data.files import DataConfig, cache_folder, file_sha256
from plmu.data.table_files import nested_files
from plmu.errors import DataError, RunError
from plmu.runs.experiment import Config
from plmu.runs.folder import CONFIG_FILE, DATA_FILE, MODEL_FILE, PATHS_FILE, RESULT_FILE, read_json, write_json
from plmu.training.task import Batch

ROOT, START = "data.root", "from"  # as options and in paths.json; other paths of the data are "data.NAME"


def path_fields(data: DataConfig) -> list[str]:
    """The fields of a data configuration that are paths."""
    hints = typing.get_type_hints(type(data))
    names = [field.name for field in dataclasses.fields(data)]
    return [name for name in names if Path in (hints[name], *typing.get_args(hints[name]))]


def published(config: Config[Any]) -> dict[str, Any]:
    """All fields of a configuration that determine the result, without paths."""
    fields = dataclasses.asdict(config)
    data, start = fields.pop("data"), fields.pop("start")
    options = {name: value for name, value in data.items() if name not in path_fields(config.data)}
    if options:
        fields["data"] = options
    if start is not None:
        fields["start"] = digest(start)
    return fields


def _option(name: str) -> str:
    """The option of a field of the data."""
    return f"--data.{name}".replace("_", "-")


def command(words: Sequence[str], data: DataConfig) -> str:
    """The command as it was typed, without this machine's folders: of files and of the run to start from only names."""
    dropped = ("--runs", f"--{ROOT}")
    shortened = (f"--{START}", *map(_option, path_fields(data)))
    published_words: list[str] = []
    remaining = iter(words)
    for word in remaining:
        option, equals, value = word.partition("=")
        option = option.replace("_", "-")
        if option in dropped or option in shortened:
            value = value if equals else next(remaining, "")
            published_words += [] if option in dropped else [option, Path(value).resolve().name]
        else:
            published_words.append(word)
    return shlex.join(["plmu", *published_words])


def checked_run(run: Path, experiments: Sequence[str] = ()) -> dict[str, Any]:
    """The result of a finished run to start from.

    Raises:
        RunError: it is not a finished run with a saved model, or not of one of these experiments, if any are named.
    """
    if not (run / CONFIG_FILE).is_file():
        raise RunError(f"--from {run} is not a run: it has no {CONFIG_FILE}. Runs are folders that `plmu train` writes")
    if not (run / RESULT_FILE).is_file():
        raise RunError(f"--from {run} is not finished: `plmu train` continues it")
    if not (run / MODEL_FILE).is_file():
        raise RunError(
            f"--from {run} has no {MODEL_FILE}: models that stream are saved there, by the command that trained them"
        )
    try:
        result: dict[str, Any] = read_json(run / RESULT_FILE)
        if not isinstance(result["experiment"], str) or not isinstance(result["model"], str):
            raise TypeError
        scores = [value for value in result["test"].values() if isinstance(value, int | float)]
        if not scores or not isinstance(result["notes"], dict):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunError(f"{run / RESULT_FILE} is damaged: remove it, and the same command makes it again") from None
    if experiments and result["experiment"] not in experiments:
        raise RunError(f"--from {run} is a run of {result['experiment']}: it must be one of {' or '.join(experiments)}")
    return result


def digest(run: Path) -> str:
    """The sha256 of the model of a finished run."""
    checked_run(run)
    return file_sha256(run / MODEL_FILE)


def own_files(data: DataConfig) -> dict[str, Path]:
    """The user's own files, by the names of their fields."""
    paths = {name: getattr(data, name) for name in path_fields(data) if name != "root"}
    return {name: path for name, path in paths.items() if path is not None}


def own_hashes(data: DataConfig) -> dict[str, str]:
    """The sha256 of each of the user's own files that is there, by the names of their fields."""
    hashes = {}
    for name, path in own_files(data).items():
        if path.is_dir():
            hashes[name] = _folder_hash(path)
        elif path.is_file():
            hashes[name] = file_sha256(path)
    return hashes


def _folder_hash(folder: Path) -> str:
    """Of names and contents of the tables in a folder and its sub-folders."""
    digest = hashlib.sha256()
    for path in nested_files(folder):
        digest.update(f"{path.relative_to(folder).as_posix()} {file_sha256(path)}\n".encode())
    return digest.hexdigest()


def fingerprint(companions: dict[str, str], splits: Iterable[Batch], frozen: Iterable[Tensor]) -> str:
    """A hash of a run's data: its texts, the shapes of all tensors, tokens and labels, and frozen weights.

    Other values are left out: they may differ by rounding between machines.
    """
    digest = hashlib.sha256(json.dumps(companions, sort_keys=True).encode())
    tensors = [(values, not values.is_floating_point()) for split in splits for values in split]
    for values, exact in [*tensors, *((values, True) for values in frozen)]:
        digest.update(f"{values.dtype} {tuple(values.shape)}".encode())
        if exact:
            digest.update(values.cpu().flatten().contiguous().numpy().data)
    return digest.hexdigest()


def check_files(folder: Path, data: DataConfig, advice: str = ", or choose another --name") -> None:
    """Raise RunError unless the run in this folder was trained on these files of the user's own, if any.

    No other data is read.

    Args:
        folder: of the run.
        data: with the files.
        advice: what else to do, at the end of the error.
    """
    if not (folder / DATA_FILE).is_file():
        return
    for path in own_files(data).values():
        path.stat()  # a missing file is an error
    before, now = _read_data_file(folder).get("files", {}), own_hashes(data)
    for name in sorted({*before, *now}):
        if name not in now:
            raise RunError(f"{folder} was trained on a file of your own: give it as {_option(name)}{advice}")
        if before.get(name) != now[name]:
            raise _other_data(folder, data, advice)


def check_data(folder: Path, fingerprint: str, data: DataConfig) -> None:
    """Raise RunError unless the run in this folder was trained on the data with this fingerprint."""
    if _read_data_file(folder).get("sha256", fingerprint) != fingerprint:
        raise _other_data(folder, data)


def _read_data_file(folder: Path) -> dict[str, Any]:
    """The content of data.json; empty for runs of versions that did not write it."""
    path = folder / DATA_FILE
    if not path.is_file():
        return {}
    try:
        content: dict[str, Any] = read_json(path)
        if not isinstance(content["sha256"], str) or not isinstance(content.get("files", {}), dict):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunError(f"{path} is damaged: remove it if the data is the run's") from None
    return content


def _other_data(folder: Path, data: DataConfig, advice: str = "") -> RunError:
    files = own_files(data)
    where = ", ".join(map(str, files.values())) or str(_root(data) or cache_folder())
    option = " and ".join(map(_option, files)) or f"--{ROOT}"
    return RunError(f"the data in {where} is not what {folder} was trained on: give that run's {option}{advice}")


def remember(folder: Path, fingerprint: str, config: Config[Any], hashes: dict[str, str]) -> None:
    """Write data.json, what the data of a run is; and paths.json, where it and the run to start from are.

    Args:
        folder: of the run.
        fingerprint: of the data.
        config: of the run.
        hashes: `own_hashes` before the data was read.

    Raises:
        RunError: the user's own files have changed since.
    """
    if own_hashes(config.data) != hashes:
        names = ", ".join(map(str, own_files(config.data).values()))
        raise RunError(f"{names} changed while it was read: start again when nothing writes to it")
    write_json(folder / DATA_FILE, {"sha256": fingerprint, **({"files": hashes} if hashes else {})})
    paths = {ROOT: _root(config.data), START: config.start}
    paths |= {f"data.{name}": path for name, path in own_files(config.data).items()}
    absolute = {name: str(path.absolute()) for name, path in paths.items() if path is not None}
    if absolute:
        write_json(folder / PATHS_FILE, absolute)


def _root(data: DataConfig) -> Path | None:
    try:
        return data.folder()
    except DataError:  # an experiment that makes its data needs no folder
        return None


def locate(folder: Path, config: Config[Any], options: dict[str, Path]) -> None:
    """Set the paths of a run's configuration, where it had them.

    Args:
        folder: of the run.
        config: its configuration, which is changed.
        options: paths that have moved since, such as {"data.root": …, "from": …}.
    """
    start = read_json(folder / CONFIG_FILE)["config"].get("start")
    fields = {f"data.{name}": name for name in path_fields(config.data)}
    for name in options.keys() - {*fields, *([START] if start is not None else [])}:
        raise RunError(f"{folder} takes no --{name}")
    paths = {**_remembered(folder, needed={*fields} - options.keys()), **options}
    for option, name in fields.items():
        path = paths.get(option)
        if option in options or path is None or path.exists():
            setattr(config.data, name, path)
        elif option != ROOT:
            raise RunError(f"{folder} was trained on {path}, which is not there: give --{option.replace('_', '-')}")
        elif not os.environ.get("PLMU_DATA") and not own_files(config.data) and not paths.keys() - {ROOT, START}:
            raise RunError(f"the data of {folder} was in {path}, which is not there: give --{ROOT}, or set PLMU_DATA")
    if start is not None:
        config.start = _start(folder, start, paths.get(START))


def _remembered(folder: Path, needed: set[str]) -> dict[str, Path]:
    """The content of paths.json, which is read only if a path is needed."""
    path = folder / PATHS_FILE
    if not needed or not path.is_file():
        return {}
    try:
        content = read_json(path)
        if not content or not all(isinstance(value, str) for value in content.values()):
            raise TypeError
    except (ValueError, TypeError, AttributeError):
        raise RunError(f"{path} is damaged: give --{' and --'.join(sorted(needed))}, or remove it") from None
    return {name: Path(value) for name, value in content.items()}


def _start(folder: Path, sha256: str, run: Path | None) -> Path:
    """The run that the one in this folder started from."""
    if run is None:
        raise RunError(f"{folder} started from another run: give that run's folder as --{START}")
    if not run.is_dir():
        raise RunError(f"{folder} started from {run}, which is not there: give --{START}")
    if digest(run) != sha256:
        raise RunError(f"{folder} started from another model than {run / MODEL_FILE}: give that run as --{START}")
    return run
