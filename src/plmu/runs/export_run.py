"""The model of a run as files for other programs, with what its numbers mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plmu.exports import Exported, export
from plmu.nn import Steppable
from plmu.runs.deployed import load_steppable, symbols_of, trained_as
from plmu.runs.folder import model_file
from plmu.runs.outputs import Outputs, read
from plmu.text.symbols import Characters, Words
from plmu.text.words import FIRST

FROM_OUTPUTS = {
    "labels": "classes",
    "ahead": "steps_ahead",
    "start": "first_tokens",
    "inputs": "columns",
    "horizon": "horizon",
    "columns": "forecast_columns",
    "threshold": "threshold",
}


def export_run(path: Path, out: Path, to: str, more: dict[str, Any], **options: Any) -> Exported:
    """Export the model of a run's folder, or a model file, with the metadata of the files beside it and `more`.

    The other options are those of `plmu.export`.
    """
    model = load_steppable(path, "expected the folder of a finished run of a steppable model, or its model.plmu")
    return export(model, out, to, metadata={**described(model_file(path)[0], model), **more}, **options)


def described(folder: Path, model: Steppable) -> dict[str, Any]:
    """Metadata from the files beside a model: experiment, symbols or vocabulary, names of classes."""
    names = zip(("experiment", "model"), trained_as(folder), strict=True)
    metadata: dict[str, Any] = {key: name for key, name in names if name}
    outputs = read(folder) or Outputs()
    metadata |= {name: getattr(outputs, key) for key, name in FROM_OUTPUTS.items() if getattr(outputs, key)}
    if outputs.clock is not None:
        clock = outputs.clock.described()
        metadata["step_number"] = clock.pop("step_number")
        metadata["clock"] = {**clock, "season": outputs.season, "next_step": outputs.next_step}
    symbols = symbols_of(folder, model)
    if symbols is not None:
        metadata["symbols"] = symbols.kind
    if isinstance(symbols, Words):
        metadata |= {"vocabulary": symbols.words, "first_word": FIRST}
    elif isinstance(symbols, Characters):
        metadata["alphabet"] = "".join(symbols.alphabet)
    return metadata
