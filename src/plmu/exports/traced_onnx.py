"""A traced step as nodes of ONNX, for any batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from onnx import TensorProto

from plmu.exports.traced import Graph as Traced
from plmu.exports.traced import Node

if TYPE_CHECKING:
    from plmu.exports.onnx_graph import Graph

_PLAIN = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "minimum": "Min", "maximum": "Max", "neg": "Neg",
    "abs": "Abs", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "gt": "Greater", "lt": "Less", "ge": "GreaterOrEqual",
    "le": "LessOrEqual", "eq": "Equal", "and": "And", "or": "Or", "not": "Not", "where": "Where", "matmul": "MatMul",
}  # fmt: skip
_TINY = 1e-37  # below it a double may be 0 in float32
_REDUCED = {"sum": "ReduceSum", "amin": "ReduceMin", "amax": "ReduceMax"}


def emit(g: Graph, traced: Traced, inputs: list[str]) -> list[str]:
    """Add the nodes of a graph for inputs of these names, in the shapes of the graph's; returns those of outputs."""
    names = dict(zip(traced.inputs, inputs, strict=True))
    for node in traced.nodes:
        names[node] = _Emitter(g, names).emit(node)
    return [names[node] for node in traced.outputs]


class _Emitter:
    def __init__(self, g: Graph, names: dict[Node, str]) -> None:
        self.g, self.names = g, names

    def emit(self, node: Node) -> str:
        """The name of a node's value, whose nodes are added."""
        g = self.g
        inputs = [self._name(value, node) for value in node.inputs]
        if node.kind == "add" and any(0 < abs(value) < _TINY for value in node.inputs if isinstance(value, float)):
            return g.node("Sum", *inputs)  # ONNX Runtime takes such a number for 0 in an Add, and leaves that out
        if node.kind in _PLAIN:
            return g.node(_PLAIN[node.kind], *self._typed(node, inputs))
        if node.kind == "ne":
            return g.node("Not", g.node("Equal", *inputs))
        if node.kind == "constant":
            array = node.options["array"]
            return g.constant(array.bool() if node.is_bool else array)
        return self._of(node, inputs[0])

    def _of(self, node: Node, x: str) -> str:
        g, kind, options = self.g, node.kind, node.options
        if kind == "log2":
            return g.node("Mul", g.node("Log", x), g.number(1.4426950408889634, True))
        if kind == "asinh":
            size = g.node("Abs", x)
            root = g.node("Sqrt", g.node("Add", g.node("Mul", x, x), g.number(1.0, True)))
            return g.node("Mul", g.node("Sign", x), g.node("Log", g.node("Add", size, root)))
        if kind == "fill":
            number = g.constant(torch.tensor([options["number"]], dtype=torch.float64))
            filled = g.node("Expand", number, g.node("Shape", x))
            return g.node("Cast", filled, to=TensorProto.BOOL) if node.is_bool else filled
        if kind == "view":
            return g.node("Reshape", x, g.integers(*_sizes(node, -1)))
        if kind == "expand":
            return g.node("Expand", x, g.integers(*_sizes(node, 1)))
        if kind == "select":
            return g.node("Gather", x, g.constant(torch.tensor(options["place"])), axis=options["axis"])
        if kind == "slice":
            begin, axis = options["begin"], options["axis"]
            return g.node("Slice", x, *(g.integers(part) for part in (begin, begin + node.shape[axis], axis)))
        if kind == "permute":
            return g.node("Transpose", x, perm=options["axes"])
        if kind == "diagonal":
            *front, rows, _ = _sizes(node.nodes()[0], -1)
            flat = g.node("Reshape", x, g.integers(*front, rows**2))
            return g.node("Gather", flat, g.integers(*range(0, rows**2, rows + 1)), axis=len(front))
        if kind == "cat":
            return g.node("Concat", *(self._full(part, node) for part in node.nodes()), axis=options["axis"])
        keeps = int(len(node.shape) == len(node.nodes()[0].shape))
        axes = options["axes"]
        if kind == "argmin":
            place = g.node("ArgMin", x, axis=axes[0], keepdims=keeps)
            return g.node("Cast", place, to=TensorProto.DOUBLE)
        if kind == "any":
            counted = g.node("Cast", x, to=TensorProto.DOUBLE)
            return g.node(
                "Greater", g.node("ReduceMax", counted, g.integers(*axes), keepdims=keeps), g.number(0.0, True)
            )
        return g.node(_REDUCED[kind], x, g.integers(*axes), keepdims=keeps)

    def _name(self, value: Node | float | bool, node: Node) -> str:
        if isinstance(value, Node):
            return self.names[value]
        if isinstance(value, bool):
            return self.g.constant(torch.tensor([value]))
        return self.g.constant(torch.tensor([float(value)], dtype=torch.float64))

    def _typed(self, node: Node, inputs: list[str]) -> list[str]:
        """Inputs of an elementwise function: bools are numbers where numbers are asked for."""
        if node.kind in ("and", "or", "not"):
            return inputs
        pairs = list(zip(node.inputs, inputs, strict=True))
        casts = []
        for place, (value, name) in enumerate(pairs):
            is_bool = value.is_bool if isinstance(value, Node) else isinstance(value, bool)
            is_condition = node.kind == "where" and place == 0
            wanted = node.is_bool and node.kind == "where"
            needs = is_bool and not is_condition and not wanted
            casts.append(self.g.node("Cast", name, to=TensorProto.DOUBLE) if needs else name)
        return casts

    def _full(self, part: Node, whole: Node) -> str:
        """A part of a concatenation, which has the batch of the others."""
        if part.varies or whole.batch is None:
            return self.names[part]
        like = next(other for other in whole.nodes() if other.varies)
        batch = self.g.node("Shape", self.names[like], start=whole.batch, end=whole.batch + 1)
        front, back = part.shape[: whole.batch], part.shape[whole.batch + 1 :]
        sizes = [*([self.g.integers(*front)] if front else []), batch, *([self.g.integers(*back)] if back else [])]
        return self.g.node("Expand", self.names[part], self.g.node("Concat", *sizes, axis=0))


def _sizes(node: Node, batch: int) -> list[int]:
    """The shape of a node, with a number in place of the batch."""
    return [batch if axis == node.batch else size for axis, size in enumerate(node.shape)]
