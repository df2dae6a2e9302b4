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

from plmu.exports.evaluate import Evaluator
from plmu.exports.program import Elapse, Program, Traced
from plmu.folded.states import leaves, map_state

METADATA = "metadata.json"  # among the program's extra files
# A trained system is a function of its parameters, which a step would compute again; few runtimes have it.
_EXPONENTIAL = torch.ops.aten.linalg_matrix_exp.default


def torch_program(model: Any, program: Program, metadata: Mapping[str, Any], whole: bool) -> bytes:
    """The .pt2 file of a program (x, state_0, …) → (y, state_0, …) with operations of torch only.

    Args:
        model: in evaluation mode, on the CPU.
        program: the lowered model, for the sizes of its input.
        metadata: kept in the file as `metadata.json`.
        whole: whether x is a sequence (batch, time, features), or token numbers (batch, time), instead of one step.
    """
    dtype = program.x.dtype
    start = model.initial_state(2, dtype, torch.device("cpu"))
    states = list(leaves(start))
    shape = (2, 20) if whole else (2,)
    tokens = program.tokens
    x = torch.zeros(*shape, program.x.size, dtype=dtype) if tokens is None else torch.zeros(shape, dtype=torch.int64)
    batch, time = Dim("batch", min=1), Dim("time", min=1)
    shapes: list[Any] = [{0: batch, 1: time} if whole else {0: batch}]
    shapes += [tuple({0: batch} for _ in states)] if states else []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of torch, about its own code
        by_program = _times(program) and not whole
        module: nn.Module = _Steps(program, states) if by_program else _Flat(model, start, whole)
        exported = torch.export.export(module, (x, *states), dynamic_shapes=tuple(shapes), strict=False)
        if not whole and any(node.target is _EXPONENTIAL for node in exported.graph.nodes):
            module = _Steps(program, states)
            exported = torch.export.export(module, (x, *states), dynamic_shapes=tuple(shapes), strict=False)
        data = io.BytesIO()
        torch.export.save(exported, data, extra_files={METADATA: json.dumps(dict(metadata))})
    return data.getvalue()


def runs_whole(model: nn.Module) -> bool:
    """Whether a program for sequences of any length can be made: not if a layer runs one step after another."""
    return all(getattr(module, "parallel", True) for module in model.modules())


def _times(program: Program) -> bool:
    """Whether a step is that of the program: with intervals, whose exponentials not every runtime of torch programs
    has, and where sequences do not begin with zeros."""
    return any(isinstance(operation, Elapse | Traced) for operation in program.operations)


class _Steps(nn.Module):
    """A step by the lowered program; `like` are states of the same shapes."""

    def __init__(self, program: Program, like: list[Tensor]) -> None:
        super().__init__()
        self.program, self.shapes = program, [value.shape[1:] for value in like]

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        evaluator = Evaluator(self.program)
        evaluator.states = [state.flatten(1) for state in states]
        y = evaluator.step(x)
        after = zip(evaluator.states, self.shapes, strict=True)
        return (y, *(state.unflatten(1, shape) if len(shape) > 1 else state for state, shape in after))


class _Flat(nn.Module):
    """A model that takes and returns its state as separate tensors; `like` is a state of the same form."""

    def __init__(self, model: Any, like: Any, whole: bool) -> None:
        super().__init__()
        self.model, self.like, self.whole = model, like, whole

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        values = iter(states)
        state = map_state(self.like, lambda _: next(values))
        y, after = self.model(x, state) if self.whole else self.model.step(x, state)
        return (y, *leaves(after))
