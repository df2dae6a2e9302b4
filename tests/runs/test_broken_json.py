"""JSON files of a run that are damaged in any way: one kind of error, which names the file."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import plmu
from plmu.cli.catalogue import lookup
from plmu.errors import RunError
from plmu.runs.configuration import read_config
from plmu.runs.outputs import read as read_outputs
from plmu.runs.results import read_result
from plmu.timeseries.classify_files import read_fitted
from plmu.timeseries.forecast_files import read_run, read_scale, read_settings

WRONG = (None, True, -1, 2**70, 3.7, float("nan"), 1e308, "", "x", [], {}, [[]], [None, "x"], {"a": 1})
READERS: dict[str, Callable[[Path], Any]] = {
    "config.json": lambda folder: read_config(folder, lookup),
    "outputs.json": read_outputs,
    "result.json": lambda folder: read_result(folder, "mse"),
    "series.json": read_settings,
    "intervals.json": lambda folder: (read_run(folder), read_scale(folder)),
}


def places(content: Any) -> Iterator[list[Any]]:
    yield []
    keys = content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    for key in keys:
        yield from ([key, *place] for place in places(content[key]))


def mutated(content: Any, rng: random.Random) -> Any:
    """With one value, somewhere, replaced or removed."""
    place = rng.choice(list(places(content)))
    if not place:
        return rng.choice(WRONG)
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    if rng.random() < 0.2:
        del inner[place[-1]]
    else:
        inner[place[-1]] = rng.choice(WRONG)
    return content


def check(path: Path, read: Callable[[Path], Any], count: int) -> None:
    rng, messages, text = random.Random(0), [], path.read_text()
    for _ in range(count):
        path.write_text(json.dumps(mutated(json.loads(text), rng)))
        try:
            read(path.parent)
        except (RunError, plmu.FileFormatError) as error:
            messages.append(str(error))
    assert [message for message in messages if path.name not in message] == []
    assert len(messages) > count / 4
    path.write_text(text)
    read(path.parent)


@pytest.mark.parametrize("name", READERS)
def test_of_a_forecast(name: str, load_folder: Path, tmp_path: Path) -> None:
    source = next((load_folder / "runs").glob("*-seed0"))
    shutil.copytree(source, tmp_path / source.name)
    check(tmp_path / source.name / name, READERS[name], 150)


@pytest.mark.parametrize("name", ["series.json", "normalization.json"])
def test_of_a_classifier(name: str, tmp_path: Path) -> None:
    form = {"layout": "rows", "id": "i", "label": "y", "time": None, "values": ["x"], "left_out": []}
    (tmp_path / "series.json").write_text(json.dumps({"form": form, "channels": 1, "classes": ["a", "b"]}))
    (tmp_path / "normalization.json").write_text(json.dumps({"normalize": False, "training series": [3, 4]}))
    plmu.save(
        plmu.Sequential(plmu.ParallelLMU(1, 2, order=2, theta=3.0), torch.nn.Linear(2, 2)), tmp_path / "model.plmu"
    )

    def read(folder: Path) -> None:
        try:
            read_fitted(folder)
        except (plmu.FileFormatError, FileNotFoundError):  # True takes another model, which this run has not
            raise RunError(name) from None

    check(tmp_path / name, read, 150)
