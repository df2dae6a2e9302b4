"""The model of a run as files for other programs, with what its numbers mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

import plmu
from plmu.errors import RunError
from plmu.exports import Exported, export
from plmu.nn import Steppable
from plmu.runs.folder import read_json
from plmu.text.symbols import Bytes, Characters, Words, read
from plmu.text.words import FIRST

MODEL_FILE, OUTPUTS_FILE, CONFIG_FILE = "model.plmu", "outputs.json", "config.json"
FROM_OUTPUTS = {
    "labels": "classes",
    "ahead": "steps_ahead",
    "start": "first_tokens",
    "inputs": "columns",
    "horizon": "horizon",
    "columns": "forecast_columns",
}


def export_run(path: Path, out: Path, to: str, more: dict[str, Any], **options: Any) -> Exported:
    """Export the model of a run's folder, or a model file, with the metadata of the files beside it and `more`.

    The other options are those of `plmu.export`.
    """
    folder, file = (path, path / MODEL_FILE) if path.is_dir() else (path.parent, path)
    if not file.is_file():
        raise RunError(
            f"no model at {path}: expected the folder of a finished run of a steppable model, or its model.plmu"
        )
    model = plmu.load(file)
    if not isinstance(model, Steppable):
        raise RunError(f"{file} has no steps to export: it is a {type(model).__name__}")
    return export(model, out, to, metadata={**described(folder, model), **more}, **options)


def described(folder: Path, model: Steppable) -> dict[str, Any]:
    """What the files beside a model say of it: experiment, symbols or vocabulary, names of classes."""
    found: dict[str, Any] = {}
    config = _json(folder / CONFIG_FILE)
    found |= {key: config[key] for key in ("experiment", "model") if isinstance(config.get(key), str)}
    outputs = _json(folder / OUTPUTS_FILE)
    found |= {name: outputs[key] for key, name in FROM_OUTPUTS.items() if outputs.get(key)}
    embedding = next((one for one in model.modules() if isinstance(one, nn.Embedding)), None)
    if embedding is None:
        return found
    symbols = read(folder, embedding.num_embeddings)
    found["symbols"] = symbols.kind
    if isinstance(symbols, Words):
        found |= {"vocabulary": symbols.words, "first_word": FIRST}
    elif isinstance(symbols, Characters):
        found["alphabet"] = "".join(symbols.alphabet)
    else:
        assert isinstance(symbols, Bytes)
    return found


def _json(path: Path) -> dict[str, Any]:
    """A file's content; nothing where there is none."""
    if not path.is_file():
        return {}
    try:
        found: Any = read_json(path)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RunError(f"{path} is damaged: it says what the model is of")
    return found
