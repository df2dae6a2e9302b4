"""The operations of a program in nodes of ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from onnx import TensorProto
from torch import Tensor

from plmu.exports import program as ops
from plmu.exports.onnx_functions import FUNCTIONS
from plmu.exports.onnx_graph import Graph
from plmu.exports.program import Operation, rounded


def emit_step(graph: Graph, x: str, states: list[str]) -> tuple[str, list[str]]:
    """Add the nodes of the step for these inputs: the names of y and of the next states."""
    program = graph.program
    graph.put(program.x, x)
    for value, name in zip(program.states, states, strict=True):
        graph.put(value, name, value.shape)
    for operation in program.operations:
        _EMITTERS[type(operation)](graph, operation)
    after = zip(program.next_states, program.states, strict=True)
    return graph.get(program.y), [graph.get(one, state.shape) for one, state in after]


def _mat_vec(g: Graph, one: ops.MatVec) -> None:
    parts = [g.get(part) for part in one.parts]
    x = parts[0] if len(parts) == 1 else g.node("Concat", *parts, axis=1)
    array, add = one.weight.array, None if one.add is None else g.get(one.add)
    if g.int8 and not one.weight.is_system:
        numbers, rows, columns = rounded(array)
        # As constants that a runtime multiplies out when it loads them: a DequantizeLinear would run at each step.
        weight = g.node("Cast", g.constant(numbers.mT), to=TensorProto.FLOAT)
        weight = g.node("Mul", g.node("Mul", weight, g.constant(rows)), g.constant(columns[:, None]))
    else:
        weight = g.constant(array.mT)
    if one.bias is not None:
        out = g.node("Gemm", x, weight, g.constant(one.bias))
        g.put(one.out, out if add is None else g.node("Add", out, add))
    else:
        g.put(one.out, g.node("Gemm", x, weight) if add is None else g.node("Gemm", x, weight, add))


def _remember(g: Graph, one: ops.Remember) -> None:
    groups, order, columns = one.matrix.shape
    shape = (order, one.channels)
    m = g.get(one.m, shape)
    both = g.node("Concat", m, g.get(one.u, (columns - order, one.channels)), axis=1)
    if groups == 1:
        after = g.node("MatMul", g.constant(one.matrix[0]), both)
    else:
        apart = g.reshape(both, columns, groups, one.channels // groups)
        product = g.node("MatMul", g.constant(one.matrix), g.node("Transpose", apart, perm=[0, 2, 1, 3]))
        after = g.reshape(g.node("Transpose", product, perm=[0, 2, 1, 3]), *shape)
    if all(one.near_identity):
        after = g.node("Add", after, m)
    elif any(one.near_identity):
        added = one.matrix.new_tensor(one.near_identity).repeat_interleave(one.channels // groups)
        after = g.node("Add", after, g.node("Mul", m, g.constant(added)))
    g.put(one.out, after, shape)


def _split(g: Graph, one: ops.Split) -> None:
    sizes = g.integers(*(piece.size for piece in one.pieces))
    names = g.nodes_of("Split", (g.get(one.x), sizes), len(one.pieces), axis=1)
    for piece, name in zip(one.pieces, names, strict=True):
        g.put(piece, name)


def _concat(g: Graph, one: ops.Concat) -> None:
    g.put(one.out, g.node("Concat", *(g.get(part) for part in one.parts), axis=1))


def _apply(g: Graph, one: ops.Apply) -> None:
    g.put(one.out, FUNCTIONS[one.function](g, g.get(one.x), **one.options))


def _scale(g: Graph, one: ops.Scale) -> None:
    out = g.node("Mul", g.get(one.x), g.constant(one.scale))
    g.put(one.out, out if one.offset is None else g.node("Add", out, g.constant(one.offset)))


def _add(g: Graph, one: ops.Add) -> None:
    g.put(one.out, g.node("Add", g.get(one.x), g.get(one.y)))


def _multiply(g: Graph, one: ops.Multiply) -> None:
    g.put(one.out, g.node("Mul", g.get(one.x), g.get(one.y)))


def _mix(g: Graph, one: ops.Mix) -> None:
    x = g.get(one.x)
    change = g.node("Mul", g.node("Sigmoid", g.get(one.g)), g.node("Sub", g.get(one.y), x))
    g.put(one.out, g.node("Add", x, change))


def _normalize(g: Graph, one: ops.Normalize) -> None:
    shape = (one.features,) if one.x.size == one.features else (one.x.size // one.features, one.features)
    x = g.get(one.x, shape)
    if one.centred:
        inputs = [x, g.constant(torch.ones(one.features) if one.weight is None else one.weight)]
        inputs += [] if one.bias is None else [g.constant(one.bias)]
        g.put(one.out, g.node("LayerNormalization", *inputs, axis=-1, epsilon=one.eps), shape)
        return
    mean = g.node("ReduceMean", g.node("Pow", x, g.number(2.0)), g.integers(-1), keepdims=1)
    out = g.node("Div", x, g.node("Sqrt", g.node("Add", mean, g.number(one.eps))))
    g.put(one.out, out if one.weight is None else g.node("Mul", out, g.constant(one.weight)), shape)


def _lookup(g: Graph, one: ops.Lookup) -> None:
    x = g.get(one.x)
    if not g.int8:
        g.put(one.out, g.node("Gather", g.constant(one.table), x, axis=0))
        return
    numbers, rows, columns = rounded(one.table)
    row = g.node("Cast", g.node("Gather", g.constant(numbers), x, axis=0), to=TensorProto.FLOAT)
    scaled = g.node("Mul", row, g.node("Gather", g.constant(rows[:, None]), x, axis=0))
    g.put(one.out, g.node("Mul", scaled, g.constant(columns)))


def _taps(g: Graph, one: ops.Taps) -> None:
    products = g.node("Mul", g.get(one.x, tuple(one.weight.shape)), g.constant(one.weight))
    g.put(one.out, g.node("ReduceSum", products, g.integers(1), keepdims=0))


def _select(g: Graph, one: ops.Select) -> None:
    order = one.weights.size // one.heads
    width = one.m.size // one.weights.size
    products = g.node("Mul", g.get(one.weights, (order, one.heads, 1)), g.get(one.m, (order, one.heads, width)))
    g.put(one.out, g.node("ReduceSum", products, g.integers(1), keepdims=0), (one.heads, width))


def _fill(g: Graph, one: ops.Fill) -> None:
    x = g.get(one.x)
    held = g.number(0.0) if one.held is None else g.get(one.held)
    g.put(one.out, g.node("Where", g.node("IsNaN", x), held, x))


def _constant(g: Graph, one: ops.Constant) -> None:
    """The same for each sequence: as many as x has."""
    batch = g.node("Shape", g.get(g.program.x), start=0, end=1)
    shape = g.node("Concat", batch, g.integers(one.out.size), axis=0)
    g.put(one.out, g.node("Expand", g.constant(one.array), shape))


def _attend(g: Graph, one: ops.Attend) -> None:
    steps, half = one.cos.shape
    heads, width = one.heads, 2 * half
    keys = _rotated(g, g.get(one.keys, (steps, heads, width)), one.cos[:, None], one.sin[:, None])
    turned = g.node("Transpose", keys, perm=[0, 2, 3, 1])
    scores = g.node("MatMul", g.get(one.query, (heads, 1, width)), turned)  # (batch, heads, 1, steps)
    visible = g.node("Greater", g.get(one.seen, (1, 1, steps)), g.number(0.0))
    scores = g.node("Mul", scores, g.number(1 / math.sqrt(width)))
    shares = g.node("Softmax", g.node("Where", visible, scores, g.number(-math.inf)), axis=-1)
    values = g.node("Transpose", g.get(one.values, (steps, heads, width)), perm=[0, 2, 1, 3])
    g.put(one.out, g.node("MatMul", shares, values), (heads, 1, width))


def _rotated(g: Graph, x: str, cos: Tensor, sin: Tensor) -> str:
    """Pairs of features, the halves of the last axis, turned by their angles."""
    half, c, s = cos.shape[-1], g.constant(cos), g.constant(sin)
    one, other = g.nodes_of("Split", (x, g.integers(half, half)), 2, axis=-1)
    first = g.node("Sub", g.node("Mul", one, c), g.node("Mul", other, s))
    second = g.node("Add", g.node("Mul", one, s), g.node("Mul", other, c))
    return g.node("Concat", first, second, axis=-1)


def _count(g: Graph, one: ops.Count) -> None:
    size = one.thresholds.numel()
    x = g.get(one.x, (1, one.x.size))
    above = g.node("Cast", g.node("Greater", x, g.constant(one.thresholds)), to=TensorProto.FLOAT)
    above = g.reshape(above, size)
    counts = g.get(one.counts)
    before, steps = g.nodes_of("Split", (counts, g.integers(one.counts.size - 1, 1)), 2, axis=1)
    parts, number = [above], g.node("Add", steps, g.number(0.5))
    for _ in range(one.positions):
        parts.append(g.node("Mul", parts[-1], number))
    above = g.node("Concat", *parts, axis=1)
    after = g.node("Add", before, above), g.node("Add", steps, g.number(1.0))
    g.put(one.out, g.node("Concat", *after, axis=1))


def _shares(g: Graph, one: ops.Shares) -> None:
    degrees = len(one.legendre)
    size = one.out.size // degrees
    *parts, steps = g.nodes_of("Split", (g.get(one.counts), g.integers(*[size] * degrees, 1)), degrees + 1, axis=1)
    means, out = [], []
    for k, part in enumerate(parts):
        for _ in range(k + 1):
            part = g.node("Div", part, steps)
        means.append(part)
    for row in one.legendre.tolist():
        terms = [g.node("Mul", mean, g.number(factor)) for mean, factor in zip(means, row, strict=True) if factor]
        out.append(reduce(lambda sum_, term: g.node("Add", sum_, term), terms))
    g.put(one.out, g.node("Concat", *out, axis=1))


_EMITTERS: dict[type[Operation], Callable[[Graph, Any], None]] = {
    ops.Add: _add,
    ops.Apply: _apply,
    ops.Attend: _attend,
    ops.Concat: _concat,
    ops.Constant: _constant,
    ops.Count: _count,
    ops.Fill: _fill,
    ops.Lookup: _lookup,
    ops.MatVec: _mat_vec,
    ops.Mix: _mix,
    ops.Multiply: _multiply,
    ops.Normalize: _normalize,
    ops.Remember: _remember,
    ops.Scale: _scale,
    ops.Select: _select,
    ops.Shares: _shares,
    ops.Split: _split,
    ops.Taps: _taps,
}
