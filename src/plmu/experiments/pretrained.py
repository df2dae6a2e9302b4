"""Reading a run that another experiment starts from, as in `plmu train imdb --from RUN`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

import plmu
from plmu.errors import RunError
from plmu.nn import Steppable
from plmu.runs.folder import MODEL_FILE
from plmu.runs.sources import checked_run, digest
from plmu.text import symbols
from plmu.text.symbols import Symbols


@dataclass
class Pretrained:
    """The text model of a finished run, and what its token numbers stand for."""

    model: Steppable
    symbols: Symbols
    name: str  # of the run's folder, such as reviews-plmu-seed0
    notes: dict[str, str]  # for the result of the run that starts from it
    sha256: str  # of model.plmu
    options: dict[str, Any] = field(default_factory=dict)  # of the model, by name, from result.json

    @property
    def embedding(self) -> nn.Embedding:
        """The model's table of embeddings."""
        return _embedding(self.model)


def read(folder: Path, experiments: Sequence[str] = ()) -> Pretrained:
    """The model of a finished run.

    Args:
        folder: of the run.
        experiments: names of the experiments that the run may be of; any if empty.

    Raises:
        RunError: something is missing or damaged, or the run is of another experiment.
    """
    result = checked_run(folder, experiments)
    try:
        model = plmu.load(folder / MODEL_FILE)
        table = _embedding(model)
    except (ValueError, TypeError) as error:
        raise RunError(f"--from {folder}: {error}") from None
    assert isinstance(model, Steppable)
    meanings, name = symbols.read(folder, table.num_embeddings), folder.resolve().name
    return Pretrained(model, meanings, name, _notes(result), digest(folder), _options(result))


def _embedding(model: nn.Module) -> nn.Embedding:
    first = model.layers[0] if isinstance(model, plmu.Sequential) else None
    if not isinstance(first, nn.Embedding):
        raise TypeError(f"{MODEL_FILE} is not a model of text: its first layer is no nn.Embedding")
    return first


def _options(result: dict[str, Any]) -> dict[str, Any]:
    config = result.get("config")
    options = config.get("model") if isinstance(config, dict) else None
    return options if isinstance(options, dict) else {}


def _notes(result: dict[str, Any]) -> dict[str, str]:
    """Which model it is, its test scores and its training data."""
    scores = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in result["test"].items())
    notes = {"started from": f"{result['experiment']} {result['model']}, seed {result.get('seed')}; test: {scores}"}
    data = [result["notes"][name] for name in ("pre-training data", "data") if name in result["notes"]]
    if data:
        notes["pre-training data"] = "; then ".join(map(str, data))
    return notes
