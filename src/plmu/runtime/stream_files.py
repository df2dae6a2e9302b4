"""Files of saved states: streams and sessions share the format."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plmu.errors import FileFormatError
from plmu.modelfiles.files import Contents, reading, write
from plmu.runtime.frozen import MISSING, PASS, FrozenModel
from plmu.runtime.state_tree import finite, finite_state, leaves, map_state, spoiled


@dataclass
class Saved:
    """The state of one stream or one session."""

    steps: int
    missing: str
    single: bool  # whether samples come without a batch axis
    state: Any = None
    last: Tensor | None = None  # the last sample as it entered the model, with its batch axis
    row: int | None = None  # of a session
    note: Any = None  # what belongs to the state, as JSON


def write_state(path: str | os.PathLike[str], model: FrozenModel, saved: Saved) -> None:
    """Write a state, with the fingerprint of its model."""
    tensors = {f"state.{i}": value for i, value in enumerate(leaves(saved.state))}
    if saved.last is not None:
        tensors["last"] = saved.last
    description = {
        "kind": "stream",
        "steps": saved.steps,
        "single": saved.single,
        "missing": saved.missing,
        "fingerprint": model.fingerprint,
    }
    if saved.row is not None:
        description["row"] = saved.row
    if saved.note is not None:
        description["note"] = saved.note
    write(path, {name: value.clone() for name, value in tensors.items()}, description)


def read_state(path: str | os.PathLike[str], model: FrozenModel, stacklevel: int = 3) -> Saved:
    """Read a state of this model and check all of it.

    Raises:
        FileFormatError: the file is broken, or is of another model.
    """
    with reading(path, ("stream",)) as file:
        saved = _described(file, model)
        if saved.steps:
            tensors = file.tensors(list(file.shapes), "cpu" if model.place is None else model.place.device)
            last = tensors.pop("last", None)
            if last is None:
                raise FileFormatError(f"{path} has a state without the last sample")
            saved.state = _checked_state(model, last, saved.single, tensors, path)
            saved.last = model.tokens(last) if model.takes_tokens else last
        if "fingerprint" not in file.description:
            message = f"{path} has no fingerprint of its model: only shapes were compared"
            warnings.warn(message, stacklevel=stacklevel)
    return saved


def _described(file: Contents, model: FrozenModel) -> Saved:
    path, description = file.path, file.description
    missing, steps, single = (description.get(key) for key in ("missing", "steps", "single"))
    row = description.get("row")
    right = missing in (*MISSING, PASS) and type(steps) is int and steps >= 0 and type(single) is bool
    if not right or (row is not None and (type(row) is not int or row < 0)) or steps is None or single is None:
        shown = {"missing": missing, "steps": steps, "single": single}
        raise FileFormatError(f"{path} has a broken description: {shown!s:.300}")
    if description.get("fingerprint", model.fingerprint) != model.fingerprint:
        raise FileFormatError(f"{path} is the state of another model: its options or weights are not this one's")
    if (steps == 0) != (not file.shapes):
        raise FileFormatError(f"{path} is broken: it has {len(file.shapes)} tensors after {steps} steps")
    return Saved(steps, str(missing), single, row=row, note=description.get("note"))


def _checked_state(
    model: FrozenModel, last: Tensor, single: bool, tensors: dict[str, Tensor], path: str | os.PathLike[str]
) -> Any:
    """The state in a file. Shapes are compared first, and the model runs on one sequence only: a file of a few
    megabytes may declare a batch that takes gigabytes to run."""
    tokens, place = model.takes_tokens, model.place
    fits = last.dim() == (1 if tokens else 2) and last.numel() > 0 and (last.shape[0] == 1 or not single)
    if tokens:
        fits = fits and not last.is_floating_point() and not last.is_complex()
    else:
        fits = fits and last.is_floating_point() and finite(last)
    if not fits or (place is not None and not tokens and last.dtype != place.dtype):
        shown = f"{last.dtype} {tuple(last.shape)}"
        raise FileFormatError(f"{path} is the state of another model or broken: its last sample is {shown}")
    expected = model.initial_state(last, torch.device("meta"))
    values = [tensors[name] for i in range(len(tensors)) if (name := f"state.{i}") in tensors]
    in_model, in_file = ([(tuple(leaf.shape), leaf.dtype) for leaf in state] for state in (leaves(expected), values))
    if in_file != in_model or len(values) != len(tensors):
        differ = f"it has {str(in_file)[:300]}, this model {str(in_model)[:300]}"
        raise FileFormatError(f"{path} is the state of another model: {differ}")
    try:
        with torch.inference_mode():
            if tokens:
                model.tokens(last)
            model.folded.step(last[:1], None)  # as a first sample would be
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        other = "another model, whose samples this one cannot take"
        raise FileFormatError(f"{path} is the state of {other}: {error}") from None
    remaining = iter(values)
    state = map_state(expected, lambda _: next(remaining))
    if not finite_state(state) and any(
        bool(spoiled(value, start).any())
        for value, start in zip(values, leaves(model.initial_state(last, last.device)), strict=True)
    ):
        raise FileFormatError(f"{path} is broken: its state has infinite or NaN values")
    return state
