"""The model of a run as files for other programs, with what its numbers mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

import plmu
from plmu.errors import RunError
from plmu.exports import Exported, export
from plmu.nn import Steppable
from plmu.runs.folder import CONFIG_FILE, OUTPUTS_FILE, model_file, read_json
from plmu.text.symbols import Bytes, Characters, Words, read
from plmu.text.words import FIRST

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
    folder, file = model_file(path)
    if not file.is_file():
        raise RunError(
            f"no model at {path}: expected the folder of a finished run of a steppable model, or its model.plmu"
        )
    model = plmu.load(file)
    if not isinstance(model, Steppable):
        raise RunError(f"{file} has no steps to export: it is a {type(model).__name__}")
    return export(model, out, to, metadata={**described(folder, model), **more}, **options)


def described(folder: Path, model: Steppable) -> dict[str, Any]:
    """Metadata from the files beside a model: experiment, symbols or vocabulary, names of classes."""
    metadata: dict[str, Any] = {}
    config = _json(folder / CONFIG_FILE)
    metadata |= {key: config[key] for key in ("experiment", "model") if isinstance(config.get(key), str)}
    outputs = _json(folder / OUTPUTS_FILE)
    metadata |= {name: outputs[key] for key, name in FROM_OUTPUTS.items() if outputs.get(key)}
    embedding = next((module for module in model.modules() if isinstance(module, nn.Embedding)), None)
    if embedding is None:
        return metadata
    symbols = read(folder, embedding.num_embeddings)
    metadata["symbols"] = symbols.kind
    if isinstance(symbols, Words):
        metadata |= {"vocabulary": symbols.words, "first_word": FIRST}
    elif isinstance(symbols, Characters):
        metadata["alphabet"] = "".join(symbols.alphabet)
    else:
        assert isinstance(symbols, Bytes)
    return metadata


def _json(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if there is no file."""
    if not path.is_file():
        return {}
    try:
        content: Any = read_json(path)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise RunError(f"{path} is damaged: it says what the model is of")
    return content
