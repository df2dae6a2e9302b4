"""Making a program, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from plmu import folded
from plmu.exports import program as ops
from plmu.exports.program import Operation, Value, Weight
from plmu.folded import Folded

Lowering = Callable[..., tuple[Value, Any]]  # of a builder, a part, x and the state, to the output and the next state


class NotExportable(ValueError):
    """A part of a model that cannot be written in another format."""


class Builder:
    """Collects operations. `lower` calls the function of a part's kind, which mirrors its `advance`, with values in
    place of tensors."""

    def __init__(self, kinds: Mapping[type[Folded], Lowering], int8: bool) -> None:
        self.lowerings, self.int8 = kinds, int8
        self.operations: list[Operation] = []
        self.kinds: dict[Value, str] = {}  # of states

    def lower(self, part: Folded, x: Value, state: Any) -> tuple[Value, Any]:
        lower = self.lowerings.get(type(part))
        if lower is None:
            raise self.unknown(part)
        result: tuple[Value, Any] = lower(self, part, x, state)
        return result

    @staticmethod
    def unknown(part: Folded) -> NotExportable:
        return NotExportable(
            f"{name_of(part)} cannot be exported: plmu does not know what it computes."
            " Give its class a fold() that returns kinds of plmu.folded"
        )

    def each(self, part: Folded | None, x: Value) -> Value:
        """A part without a state; None does nothing."""
        return x if part is None else self.lower(part, x, None)[0]

    def add(self, kind: type[Operation], size: int, *arguments: Any, **options: Any) -> Value:
        out = Value(size)
        self.operations.append(kind(out, *arguments, **options))
        return out

    def product(self, weight: Tensor, *parts: Value, bias: Tensor | None = None, add: Value | None = None) -> Value:
        return self.add(ops.MatVec, weight.shape[0], Weight(cast(weight)), parts, cast(bias), add)

    def split(self, x: Value, *sizes: int) -> tuple[Value, ...]:
        pieces = tuple(Value(size) for size in sizes)
        self.operations.append(ops.Split(pieces[0], x, pieces))
        return pieces

    def remember(self, memory: folded.Delay, u: Value, m: Value) -> Value:
        self.kinds[m] = "memory"
        if memory.scale is not None:
            u = self.add(ops.Scale, u.size, u, cast(memory.scale), None)
        if memory.channels == 1:
            return self.linear(Weight(cast(memory.matrix[0]), True), m, u, memory.near_identity[0])
        return self.add(ops.Remember, m.size, m, u, cast(memory.matrix), memory.near_identity, memory.channels)

    def linear(self, system: Weight, m: Value, u: Value, near_identity: bool) -> Value:
        return self.add(ops.MatVec, m.size, system, (m, u), None, m if near_identity else None)


def name_of(part: Folded) -> str:
    """What to call a part in an error: its module where it holds one."""
    module = getattr(part, "module", None)
    return type(part).__name__ if module is None else type(module).__name__


def cast(value: Tensor | None) -> Any:
    """As float32, without subnormal numbers, on the CPU."""
    if value is None:
        return None
    array = value.detach().cpu().float()
    return torch.where(array.abs() < torch.finfo(torch.float32).tiny, 0.0, array).contiguous()
