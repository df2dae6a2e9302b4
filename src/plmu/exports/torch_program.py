"""A model as a program of torch.export: one step, or a whole sequence, for any batch and length."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from plmu.exports.program import Program
from plmu.folded.states import leaves, map_state

METADATA = "metadata.json"  # among the program's extra files


def torch_program(model: Any, program: Program, metadata: Mapping[str, str], whole: bool) -> bytes:
    """The .pt2 file of a program (x, state_0, …) → (y, state_0, …) with operations of torch only.

    Args:
        model: in evaluation mode, on the CPU.
        program: the lowered model, for the sizes of its input.
        metadata: kept in the file as `metadata.json`.
        whole: whether x is a sequence (batch, time, features), or token numbers (batch, time), instead of one step.
    """
    dtype = program.x.dtype
    start = model.initial_state(2, dtype, torch.device("cpu"))
    states = [leaf.to(_in_file(leaf, program)) for leaf in leaves(start)]
    shape = (2, 20) if whole else (2,)
    tokens = program.tokens
    x = torch.zeros(*shape, program.x.size, dtype=dtype) if tokens is None else torch.zeros(shape, dtype=torch.int64)
    batch, time = Dim("batch", min=1), Dim("time", min=1)
    shapes: list[Any] = [{0: batch, 1: time} if whole else {0: batch}]
    shapes += [tuple({0: batch} for _ in states)] if states else []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of torch, about its own code
        exported = torch.export.export(
            _Flat(model, start, [state.dtype for state in states], whole),
            (x, *states),
            dynamic_shapes=tuple(shapes),
            strict=False,
        )
        data = io.BytesIO()
        torch.export.save(exported, data, extra_files={METADATA: json.dumps(dict(metadata))})
    return data.getvalue()


def runs_whole(model: nn.Module) -> bool:
    """Whether a program for sequences of any length can be made: not if a layer runs one step after another."""
    return all(getattr(module, "parallel", True) for module in model.modules())


def _in_file(leaf: Tensor, program: Program) -> torch.dtype:
    """The type of a part of the state in the file: the model's own for samples in float64; else float32, also where it
    is float64 in the model, as counts are."""
    return leaf.dtype if program.x.wide or not leaf.is_floating_point() else torch.float32


class _Flat(nn.Module):
    """A model that takes and returns its state as separate tensors of these types; `like` is a state of the same
    form."""

    def __init__(self, model: Any, like: Any, dtypes: list[torch.dtype], whole: bool) -> None:
        super().__init__()
        self.model, self.like, self.dtypes, self.whole = model, like, dtypes, whole

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        values = iter(states)
        state = map_state(self.like, lambda leaf: next(values).to(leaf.dtype))
        y, after = self.model(x, state) if self.whole else self.model.step(x, state)
        return (y, *(leaf.to(dtype) for leaf, dtype in zip(leaves(after), self.dtypes, strict=True)))
