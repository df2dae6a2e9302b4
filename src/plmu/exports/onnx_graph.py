"""Nodes and constants of an ONNX graph while it is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from plmu.exports.program import Program, Value


def type_of(value: Value) -> int:
    """The type of a value's tensor in ONNX."""
    return int(TensorProto.DOUBLE if value.wide else TensorProto.FLOAT)


class Graph:
    """Nodes and constants of one step. A value of the program is a named tensor for each shape in which it is used."""

    def __init__(self, program: Program, int8: bool) -> None:
        self.program, self.int8 = program, int8
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self._names: dict[Value, dict[tuple[int, ...], str]] = {}

    def get(self, value: Value, shape: tuple[int, ...] | None = None) -> str:
        """The name of a value's tensor (batch, *shape), by default (batch, size); reshapes it where needed."""
        names = self._names[value]
        shape = shape or (value.size,)
        if shape not in names:
            names[shape] = self.reshape(next(iter(names.values())), *shape)
        return names[shape]

    def put(self, value: Value, name: str, shape: tuple[int, ...] | None = None) -> None:
        """Name the tensor (batch, *shape) that holds a value."""
        self._names[value] = {shape or (value.size,): name}

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; returns the name of its output."""
        return self.nodes_of(kind, inputs, 1, **attributes)[0]

    def nodes_of(self, kind: str, inputs: tuple[str, ...], outputs: int, **attributes: Any) -> list[str]:
        """Add a node with several outputs; returns their names."""
        names = [f"{kind.lower()}_{len(self.nodes)}{f'_{i}' if i else ''}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names

    def reshape(self, name: str, *shape: int) -> str:
        return self.node("Reshape", name, self.integers(0, *shape))  # 0 keeps the batch

    def constant(self, array: Tensor) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(array.contiguous().numpy(), name)
        return name

    def number(self, value: float, kind: int = TensorProto.FLOAT) -> str:
        wide = "wide_" if kind == TensorProto.DOUBLE else ""
        return self._shared(f"{wide}number_{value!r}", lambda name: helper.make_tensor(name, kind, [], [value]))

    def integer(self, value: int) -> str:
        return self._shared(f"integer_{value}", lambda name: helper.make_tensor(name, TensorProto.INT64, [], [value]))

    def integers(self, *values: int) -> str:
        name = "integers_" + "_".join(map(str, values))
        return self._shared(name, lambda name: helper.make_tensor(name, TensorProto.INT64, [len(values)], values))

    def _shared(self, name: str, make: Callable[[str], Any]) -> str:
        """The name of a constant, which `make` builds at its first use."""
        if name not in self.constants:
            self.constants[name] = make(name)
        return name
