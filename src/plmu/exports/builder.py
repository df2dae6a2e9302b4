"""Making a program, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from plmu import folded
from plmu.exports import program as ops
from plmu.exports.program import Operation, Value, Weight
from plmu.folded import Folded, LearningForecast

Lowering = Callable[..., tuple[Value, Any]]  # (builder, part, x, state) -> (output, next state)


class NotExportable(ValueError):
    """A part of a model that cannot be written in another format."""


class Builder:
    """Collects operations. `lower` calls the function of a part's kind, which mirrors its `advance`, with values in
    place of tensors."""

    def __init__(self, kinds: Mapping[type[Folded], Lowering], int8: bool) -> None:
        self.lowerings, self.int8 = kinds, int8
        self.operations: list[Operation] = []
        self.kinds: dict[Value, str] = {}  # what each state is, such as "memory"
        self.seasons: dict[Value, tuple[int, int]] = {}  # of states that hold a phase: season, and phase at the start

    def lower(self, part: Folded, x: Value, state: Any) -> tuple[Value, Any]:
        """Add the operations of a part; returns its output and next state."""
        lower = self.lowerings.get(type(part))
        if lower is None:
            raise self.unknown(part)
        result: tuple[Value, Any] = lower(self, part, x, state)
        return result

    @staticmethod
    def unknown(part: Folded) -> NotExportable:
        """The error for a kind of part that has no lowering."""
        if isinstance(part, LearningForecast):
            return NotExportable(
                "LearningForecast cannot be exported, since files of other programs do not learn: export its model,"
                " whose forecasts are those before anything is learned"
            )
        return NotExportable(
            f"{name_of(part)} cannot be exported: plmu does not know what it computes."
            " Give its class a fold() that returns kinds of plmu.folded"
        )

    def each(self, part: Folded | None, x: Value) -> Value:
        """Add the operations of a part without a state, and return its output; None is the identity."""
        return x if part is None else self.lower(part, x, None)[0]

    def add(self, kind: type[Operation], size: int, *arguments: Any, **options: Any) -> Value:
        """Append an operation; returns its output, a new value of `size` numbers."""
        out = Value(size)
        self.operations.append(kind(out, *arguments, **options))
        return out

    def product(self, weight: Tensor, *parts: Value, bias: Tensor | None = None, add: Value | None = None) -> Value:
        """W [parts] + bias + add, with a weight that int8 may round."""
        return self.add(ops.MatVec, weight.shape[0], Weight(cast(weight)), parts, cast(bias), add)

    def products(self, weight: Tensor, x: Value, vectors: int) -> Value:
        """W times each of the vectors x (vectors, inputs): (vectors, outputs)."""
        weights = Weight(cast(weight))
        return self.add(ops.MatVec, weight.shape[0] * vectors, weights, (x,), None, None, vectors)

    def add_like(self, like: Value, kind: type[Operation], size: int, *arguments: Any) -> Value:
        """`add` of a value that is as wide as another."""
        out = Value(size, wide=like.wide)
        self.operations.append(kind(out, *arguments))
        return out

    def bounded(self, forecasts: Value, nonnegative: Sequence[int], channels: int) -> Value:
        """Forecasts (steps · channels), of which those of these channels are at least 0. NaN stays."""
        if not nonnegative:
            return forecasts
        size = forecasts.size
        below = torch.zeros(channels)
        below[list(nonnegative)] = -1.0
        negative = self.add_like(forecasts, ops.Scale, size, forecasts, below.repeat(size // channels), None)
        zero = self.add_like(forecasts, ops.Scale, size, forecasts, torch.zeros(size), None)
        return self.add_like(forecasts, ops.Where, size, negative, zero, forecasts)

    def split(self, x: Value, *sizes: int) -> tuple[Value, ...]:
        """x cut into consecutive values of these sizes."""
        pieces = tuple(Value(size, wide=x.wide) for size in sizes)
        self.operations.append(ops.Split(pieces[0], x, pieces))
        return pieces

    def remember(self, memory: folded.Delay, u: Value, m: Value) -> Value:
        """The next m of a memory with input u."""
        self.kinds[m] = "memory"
        if memory.scale is not None:
            u = self.add(ops.Scale, u.size, u, cast(memory.scale), None)
        if memory.channels == 1:
            return self.linear(Weight(cast(memory.matrix[0]), True), m, u, memory.near_identity[0])
        return self.add(ops.Remember, m.size, m, u, cast(memory.matrix), memory.near_identity, memory.channels)

    def linear(self, system: Weight, m: Value, u: Value, near_identity: bool) -> Value:
        """[Ā | B̄] [m ; u]; near the identity the matrix holds Ā − I and m is added."""
        return self.add(ops.MatVec, m.size, system, (m, u), None, m if near_identity else None)


def name_of(part: Folded) -> str:
    """The class name of a part for an error, or that of the module that it holds a copy of."""
    module = getattr(part, "module", None)
    return type(part).__name__ if module is None else type(module).__name__


def cast(value: Tensor | None) -> Any:
    """An array as float32 on the CPU, without subnormal numbers; None stays None."""
    if value is None:
        return None
    array = value.detach().cpu().float()
    return torch.where(array.abs() < torch.finfo(torch.float32).tiny, 0.0, array).contiguous()
