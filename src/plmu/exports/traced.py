"""A step that is written as operations of torch on float64 numbers, traced: for folded kinds that learn while they run.

A graph is a list of nodes. Each is an elementwise function with broadcasting, another view of a tensor, a
concatenation, a reduction, a product or a constant. `plmu.exports.traced_c` and `plmu.exports.traced_onnx` write it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from plmu.exports.builder import NotExportable

# The functions of each number that a graph may have, by the names that torch gives them.
ELEMENTWISE = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "div", "minimum": "minimum", "maximum": "maximum",
    "neg": "neg", "abs": "abs", "exp": "exp", "log": "log", "log2": "log2", "sqrt": "sqrt", "asinh": "asinh",
    "gt": "gt", "lt": "lt", "ge": "ge", "le": "le", "eq": "eq", "ne": "ne",
    "bitwise_and": "and", "logical_and": "and", "bitwise_or": "or", "logical_or": "or",
    "bitwise_not": "not", "logical_not": "not", "where": "where",
}  # fmt: skip
COPIES = {"detach", "alias", "_to_copy", "lift_fresh_copy", "clone", "contiguous"}
FILLS: dict[str, Any] = {"full_like": None, "zeros_like": 0.0, "ones_like": 1.0}
CONSTANTS = {"arange", "full", "zeros", "ones", "scalar_tensor", "eye"}
REDUCTIONS = {"sum": "sum", "amin": "amin", "amax": "amax", "any": "any"}


@dataclass(eq=False)
class Node:
    """A value of a graph, in the shape that it has for a batch of one."""

    kind: str
    shape: tuple[int, ...]
    inputs: tuple[Any, ...] = ()  # nodes and numbers
    is_bool: bool = False
    varies: bool = True  # whether it depends on the sample or the state
    options: dict[str, Any] = field(default_factory=dict)
    batch: int | None = None  # the axis that is longer in a larger batch

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def nodes(self) -> list[Node]:
        """The inputs that are nodes."""
        return [value for value in self.inputs if isinstance(value, Node)]


@dataclass(eq=False)
class Graph:
    """A traced step.

    Args:
        inputs: the sample, then the tensors of the state.
        nodes: all others, in order; each depends on earlier ones.
        outputs: the output, then the tensors of the next state.
    """

    inputs: list[Node]
    nodes: list[Node]
    outputs: list[Node]

    @property
    def constants(self) -> list[Tensor]:
        """The constant arrays."""
        return [node.options["array"] for node in self.nodes if node.kind == "constant"]


def traced(step: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> Graph:
    """The graph of a function of float64 tensors that has no branches.

    Args:
        step: called with the inputs; returns as many tensors as it likes.
        inputs: with a batch of one.

    Raises:
        NotExportable: it has an operation that no export knows.
    """
    tracer = _run(step, inputs)
    _find_batches(tracer, _run(step, [torch.cat([value, value]) for value in inputs]))
    used: set[Node] = set()
    waiting = [*tracer.outputs]
    while waiting:
        node = waiting.pop()
        if node not in used:
            used.add(node)
            waiting += node.nodes()
    return Graph(tracer.entrances, [node for node in tracer.nodes if node in used], tracer.outputs)


def _run(step: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor]) -> _Tracer:
    """The nodes of a function for these inputs."""
    with torch.no_grad():
        module = make_fx(step)(*inputs)
    module.graph.eliminate_dead_code()
    tracer = _Tracer(module)
    try:
        tracer.run(*inputs)
    except NotExportable as error:
        raise NotExportable(str(error).partition("\n")[0]) from None  # without what torch adds about its own code
    return tracer


def _find_batches(tracer: _Tracer, doubled: _Tracer) -> None:
    """Set the batch axis of each node, by the shapes that it has for a batch of two."""
    pairs = [(tracer.entrances, doubled.entrances), (tracer.nodes, doubled.nodes)]
    for nodes, others in pairs:
        if [node.kind for node in nodes] != [node.kind for node in others]:
            raise NotExportable("a step that depends on the size of the batch cannot be exported")
        for node, other in zip(nodes, others, strict=True):
            sizes = zip(node.shape, other.shape, strict=True)
            axes = [axis for axis, (size, double) in enumerate(sizes) if size != double]
            if len(axes) > 1:
                raise NotExportable("a step that compares the sequences of a batch cannot be exported")
            node.batch = axes[0] if axes else None


class _Tracer(fx.Interpreter):
    """Runs a module, and makes a node of each of its operations."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.nodes: list[Node] = []
        self.entrances: list[Node] = []
        self.outputs: list[Node] = []
        self.made: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op == "placeholder":
            self.made[n] = Node("input", tuple(value.shape))
            self.entrances.append(self.made[n])
        elif n.op == "get_attr":
            self.made[n] = self._constant(value)
        elif n.op == "output":
            self.outputs = [self.made[part] for part in n.args[0]]  # type: ignore[union-attr, index]
        elif n.op == "call_function":
            self.made[n] = self._of(n, value)
        return value

    def _of(self, n: fx.Node, value: Any) -> Any:
        """The node of an operation of torch; of one that returns several tensors a list."""
        name = n.name if isinstance(n.target, str) else getattr(n.target, "__name__", str(n.target)).partition(".")[0]
        arguments = [self._taken(argument) for argument in n.args]
        if name == "getitem":
            return arguments[0][arguments[1]]
        if name == "unbind":
            axis = self._axis(arguments, arguments[0].shape)
            return [self._select(arguments[0], axis, place) for place in range(arguments[0].shape[axis])]
        shape = tuple(value.shape)
        tensors = [argument for argument in arguments if isinstance(argument, Node)]
        if name in CONSTANTS or (not tensors and not any(isinstance(argument, list) for argument in arguments)):
            return self._constant(value)
        return self._made(name, n, arguments, shape, value.dtype == torch.bool)

    def _made(self, name: str, n: fx.Node, arguments: list[Any], shape: tuple[int, ...], is_bool: bool) -> Node:
        x = arguments[0]
        if name in ELEMENTWISE and not n.kwargs:
            kind = "and" if name == "mul" and is_bool else ELEMENTWISE[name]
            return self._add(kind, shape, arguments, is_bool)
        if name in COPIES:
            return x if x.is_bool == is_bool else self._add("add", shape, [x, 0.0], is_bool)
        if name in FILLS:
            number = arguments[1] if FILLS[name] is None else FILLS[name]
            return self._add("fill", shape, [x], is_bool, number=float(number))
        if name == "isnan":
            return self._add("ne", shape, [x, x], True)
        if name == "rsub":
            return self._add("sub", shape, [arguments[1], x])
        if name == "reciprocal":
            return self._add("div", shape, [1.0, x])
        if name == "pow" and arguments[1] == 2:
            return self._add("mul", shape, [x, x])
        if name in ("clamp", "clamp_min", "clamp_max"):
            return self._clamped(name, x, [*arguments[1:], None], n.kwargs, shape)
        if name in ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze"):
            return self._add("view", shape, [x], is_bool)
        if name == "expand":
            return self._add("expand", shape, [x], is_bool)
        if name == "select":
            return self._select(x, self._axis(arguments, x.shape), arguments[2])
        if name == "slice":
            return self._slice(x, arguments, shape)
        if name in ("transpose", "permute", "t"):
            return self._add("permute", shape, [x], is_bool, axes=_axes(name, len(x.shape), arguments))
        if name == "diagonal":
            return self._diagonal(x, n, shape)
        if name in ("cat", "stack"):
            return self._joined(name, arguments, shape, is_bool)
        if name in REDUCTIONS and len(arguments) > 1:
            axes = arguments[1] if isinstance(arguments[1], list | tuple) else [arguments[1]]
            axes = [axis % len(x.shape) for axis in axes]
            return self._add(REDUCTIONS[name], shape, [x], is_bool, axes=axes)
        if name == "argmin" and len(arguments) > 1:
            return self._add("argmin", shape, [x], axes=[arguments[1] % len(x.shape)])
        if name in ("mm", "bmm"):
            return self._add("matmul", shape, arguments)
        raise NotExportable(f"the operation {name} of torch cannot be exported")

    def _add(
        self, kind: str, shape: tuple[int, ...], inputs: Sequence[Any], is_bool: bool = False, **options: Any
    ) -> Node:
        varies = any(value.varies for value in inputs if isinstance(value, Node))
        node = Node(kind, shape, tuple(inputs), is_bool, varies, options)
        self.nodes.append(node)
        return node

    def _constant(self, value: Tensor) -> Any:
        """A constant; a number as such."""
        if not value.dim():
            number = value.item()
            return number if isinstance(number, bool) else float(number)
        return self._add("constant", tuple(value.shape), [], value.dtype == torch.bool, array=value.double())

    def _taken(self, argument: Any) -> Any:
        """An argument with nodes in place of those of torch."""
        if isinstance(argument, fx.Node):
            return self.made[argument]
        if isinstance(argument, list | tuple):
            return [self._taken(part) for part in argument]
        return argument

    @staticmethod
    def _axis(arguments: list[Any], shape: tuple[int, ...]) -> int:
        return int(arguments[1] if len(arguments) > 1 else 0) % len(shape)

    def _select(self, x: Node, axis: int, place: int) -> Node:
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        return self._add("select", shape, [x], x.is_bool, axis=axis, place=place % x.shape[axis])

    def _slice(self, x: Node, arguments: list[Any], shape: tuple[int, ...]) -> Node:
        axis, begin = self._axis(arguments, x.shape), int(arguments[2] if len(arguments) > 2 else 0)
        if len(arguments) > 4 and arguments[4] != 1:
            raise NotExportable("a slice with steps cannot be exported")
        begin = min(max(begin + x.shape[axis] if begin < 0 else begin, 0), x.shape[axis])
        return x if shape == x.shape else self._add("slice", shape, [x], x.is_bool, axis=axis, begin=begin)

    def _diagonal(self, x: Node, n: fx.Node, shape: tuple[int, ...]) -> Node:
        axes = [*n.args[1:], *n.kwargs.values()]
        if [axis % len(x.shape) for axis in axes if axis != 0] != [len(x.shape) - 2, len(x.shape) - 1]:  # type: ignore[operator]
            raise NotExportable("a diagonal can be exported of the last two axes alone")
        return self._add("diagonal", shape, [x], x.is_bool)

    def _clamped(self, name: str, x: Node, bounds: list[Any], options: Any, shape: tuple[int, ...]) -> Node:
        low, high = (None, bounds[0]) if name == "clamp_max" else bounds[:2]
        low, high = options.get("min", low), options.get("max", high)
        for kind, bound in (("maximum", low), ("minimum", high)):
            if bound is not None:
                x = self._add(kind, shape, [x, bound])
        return x

    def _joined(self, name: str, arguments: list[Any], shape: tuple[int, ...], is_bool: bool) -> Node:
        axis = self._axis(arguments, shape)
        parts = arguments[0]
        if name == "stack":
            whole = (*shape[:axis], 1, *shape[axis + 1 :])
            parts = [self._add("view", whole, [part], is_bool) if isinstance(part, Node) else part for part in parts]
        parts = [part for part in parts if not isinstance(part, Node) or part.shape[axis]]
        if len(parts) == 1:
            return parts[0]  # type: ignore[no-any-return]
        if not all(isinstance(part, Node) for part in parts):
            raise NotExportable("a number cannot be joined with tensors")
        return self._add("cat", shape, parts, is_bool, axis=axis)


def _axes(name: str, count: int, arguments: list[Any]) -> list[int]:
    """Of each axis of a transposed tensor that of the original."""
    axes = list(range(count))
    if name == "permute":
        return [axis % count for axis in arguments[1]]
    first, second = (0, 1) if name == "t" else (arguments[1] % count, arguments[2] % count)
    axes[first], axes[second] = second, first
    return axes
