"""The run folder: the names of its files, and how they are read and written.

`plmu train` writes a folder for each seed. config.json says what is run, data.json and paths.json on which data
(`sources`), checkpoints/ and metrics.jsonl how far it is. model.plmu is the trained model, outputs.json the meaning of
its outputs. result.json is written last and says that the run is finished (`results`). Runs on people's own data have a
few files more. Symbols and vocabularies of models of text are named in `plmu.text`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from plmu.errors import RunError
from plmu.modelfiles.atomic import replacing

Content = TypeVar("Content")
CONFIG_FILE = "config.json"
RESULT_FILE = "result.json"
DATA_FILE = "data.json"
PATHS_FILE = "paths.json"
METRICS_FILE = "metrics.jsonl"
CHECKPOINTS_FOLDER = "checkpoints"
LOCK_FILE = ".lock"
MODEL_FILE = "model.plmu"
OUTPUTS_FILE = "outputs.json"
# Of runs on people's own data.
SERIES_FILE = "series.json"  # the columns and the settings by which files are read
INTERVALS_FILE = "intervals.json"  # prediction intervals of a forecast
LEARNING_FILE = "learning.plmu"  # the sums of a forecast, by which it learns while it runs
WHOLE_MODEL_FILE = "whole.plmu"  # a classifier of whole series, where it differs from that of streams
NORMALIZATION_FILE = "normalization.json"
STATES_FILE = "states.plmu"  # what a detector of anomalies has learned of each of several series


def model_file(path: Path) -> tuple[Path, Path]:
    """The folder and the model file of a run; `path` is either of them."""
    return (path, path / MODEL_FILE) if path.is_dir() else (path.parent, path)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file in one step: after an error the old file is still there."""
    write_text(path, json.dumps(content, indent=1, default=str, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step, as `write_json` does; an error names it."""
    with adding_path(path), replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_figure(path: Path, figure: Any, **options: Any) -> None:
    """Write a figure of matplotlib in one step, in the format that the ending names."""
    with adding_path(path), replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix(".") or "png", **options)


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ValueError: it is not JSON.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise ValueError("it is not a regular file")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parsed(path: Path, parse: Callable[[Any], Content]) -> Content:
    """The content of a JSON file of a run, through a function that may raise any error of wrong values and types.

    Raises:
        RunError: the file is missing or damaged.
    """
    try:
        return parse(read_json(path))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise RunError(f"{path} is missing or damaged ({type(error).__name__}): copy it again") from None


@contextmanager
def adding_path(path: Path) -> Iterator[None]:
    """Add this path to an OSError that names none, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def make(folder: Path) -> None:
    """Make a run folder, and check that it can be written to: now rather than after an hour of training."""
    try:
        (folder / CHECKPOINTS_FOLDER).mkdir(parents=True, exist_ok=True)
        with open(folder / LOCK_FILE, "a"):
            pass
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror or error}") from None


def clear(folder: Path) -> None:
    """Remove the temporary files of writers that were killed. The caller holds the folder's lock."""
    for pattern in (".*.tmp", ".tmp??????"):  # the latter are of safetensors, which versions before 0.2 wrote with
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def is_finished(folder: Path) -> bool:
    return (folder / RESULT_FILE).is_file()


def is_started(folder: Path) -> bool:
    """Whether the folder has a result or a checkpoint, which another configuration must not be mixed with."""
    return is_finished(folder) or has_checkpoint(folder)


def has_checkpoint(folder: Path) -> bool:
    return any((folder / CHECKPOINTS_FOLDER).glob("*.ckpt"))


def runs_of(stem: Path) -> list[Path]:
    """The run folders `STEM-seed0`, `STEM-seed1`, …, in the order of their seeds."""
    if not stem.parent.is_dir():
        return []
    matches = ((re.fullmatch(rf"{re.escape(stem.name)}-seed(\d+)", path.name), path) for path in stem.parent.iterdir())
    return [path for _, path in sorted((int(match[1]), path) for match, path in matches if match)]
