"""The operations of a program as nodes of ONNX: the function of each, such as `_scale`, adds nodes to the graph `g`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from onnx import TensorProto
from torch import Tensor

from plmu.exports import program as ops
from plmu.exports import traced_onnx
from plmu.exports.onnx_functions import FUNCTIONS
from plmu.exports.onnx_graph import Graph, type_of
from plmu.exports.program import TERMS, Operation, Value, rounded


def emit_step(graph: Graph, x: str, states: list[str]) -> tuple[str, list[str]]:
    """Add the nodes of a step for inputs of these names; returns the names of y and of the next states."""
    program = graph.program
    graph.put(program.x, x)
    for value, name in zip(program.states, states, strict=True):
        graph.put(value, name, value.shape)
    for operation in program.operations:
        _EMITTERS[type(operation)](graph, operation)
    after = zip(program.next_states, program.states, strict=True)
    return graph.get(program.y), [graph.get(new, state.shape) for new, state in after]


def _mat_vec(g: Graph, op: ops.MatVec) -> None:
    parts = [g.get(part, None if op.vectors == 1 else (op.vectors, part.size // op.vectors)) for part in op.parts]
    x = parts[0] if len(parts) == 1 else g.node("Concat", *parts, axis=1)
    array, add = op.weight.array, None if op.add is None else g.get(op.add)
    if g.int8 and not op.weight.is_system:
        numbers, rows, columns = rounded(array)
        # As constants that a runtime multiplies out when it loads them: a DequantizeLinear would run at each step.
        weight = g.node("Cast", g.constant(numbers.mT), to=TensorProto.FLOAT)
        weight = g.node("Mul", g.node("Mul", weight, g.constant(rows)), g.constant(columns[:, None]))
    else:
        weight = g.constant(array.mT)
    if op.vectors > 1:
        g.put(op.out, g.node("MatMul", x, weight), (op.vectors, array.shape[0]))
    elif op.bias is not None:
        out = g.node("Gemm", x, weight, g.constant(op.bias))
        g.put(op.out, out if add is None else g.node("Add", out, add))
    else:
        g.put(op.out, g.node("Gemm", x, weight) if add is None else g.node("Gemm", x, weight, add))


def _remember(g: Graph, op: ops.Remember) -> None:
    groups, order, columns = op.matrix.shape
    shape = (order, op.channels)
    m = g.get(op.m, shape)
    both = g.node("Concat", m, g.get(op.u, (columns - order, op.channels)), axis=1)
    if groups == 1:
        after = g.node("MatMul", g.constant(op.matrix[0]), both)
    else:
        apart = g.reshape(both, columns, groups, op.channels // groups)
        product = g.node("MatMul", g.constant(op.matrix), g.node("Transpose", apart, perm=[0, 2, 1, 3]))
        after = g.reshape(g.node("Transpose", product, perm=[0, 2, 1, 3]), *shape)
    if all(op.near_identity):
        after = g.node("Add", after, m)
    elif any(op.near_identity):
        added = op.matrix.new_tensor(op.near_identity).repeat_interleave(op.channels // groups)
        after = g.node("Add", after, g.node("Mul", m, g.constant(added)))
    g.put(op.out, after, shape)


def _elapse(g: Graph, op: ops.Elapse) -> None:
    shape = (len(op.rate), op.u.size)
    m, u, interval = g.get(op.m, shape), g.get(op.u, (1, op.u.size)), g.get(op.interval, (1, 1))
    is_one = g.node("And", g.node("GreaterOrEqual", interval, g.number(0.0)), g.node("Not", g.node("IsInf", interval)))
    rest = g.node("Where", is_one, interval, g.number(math.nan))
    rest = g.node("Where", g.node("Greater", rest, g.number(op.longest)), g.number(op.longest), rest)
    for bit in reversed(range(len(op.moves))):
        bound = g.number(op.unit * 2.0**bit)
        reached = g.node("GreaterOrEqual", rest, bound)
        moved = g.node("MatMul", g.constant(op.moves[bit]), g.node("Concat", m, u, axis=1))
        moved = g.node("Add", m, moved) if bit < op.near_identity else moved
        m = g.node("Where", reached, moved, m)
        rest = g.node("Where", reached, g.node("Sub", rest, bound), rest)
    term = g.node("Mul", rest, g.node("MatMul", g.constant(op.rate), g.node("Concat", m, u, axis=1)))
    m, rate = g.node("Add", m, term), g.constant(op.rate[:, :-1])
    for number in range(2, TERMS + 1):
        part = g.node("Div", rest, g.number(float(number)))
        term = g.node("Mul", part, g.node("MatMul", rate, term))
        m = g.node("Add", m, term)
    g.put(op.out, m, shape)


def _split(g: Graph, op: ops.Split) -> None:
    sizes = g.integers(*(piece.size for piece in op.pieces))
    names = g.nodes_of("Split", (g.get(op.x), sizes), len(op.pieces), axis=1)
    for piece, name in zip(op.pieces, names, strict=True):
        g.put(piece, name)


def _concat(g: Graph, op: ops.Concat) -> None:
    g.put(op.out, g.node("Concat", *(g.get(part) for part in op.parts), axis=1))


def _apply(g: Graph, op: ops.Apply) -> None:
    options = {**op.options, "wide": True} if op.x.wide and op.function == "hardtanh" else op.options
    g.put(op.out, FUNCTIONS[op.function](g, g.get(op.x), **options))


def _scale(g: Graph, op: ops.Scale) -> None:
    out = g.get(op.x)
    if bool((op.scale != 1).any()):
        out = g.node("Mul", out, g.constant(op.scale.to(op.x.dtype)))
    g.put(op.out, out if op.offset is None else g.node("Add", out, g.constant(op.offset.to(op.x.dtype))))


def _add(g: Graph, op: ops.Add) -> None:
    g.put(op.out, g.node("Add", g.get(op.x), g.get(op.y)))


def _multiply(g: Graph, op: ops.Multiply) -> None:
    g.put(op.out, g.node("Mul", g.get(op.x), g.get(op.y)))


def _divide(g: Graph, op: ops.Divide) -> None:
    g.put(op.out, g.node("Div", g.get(op.x), g.get(op.y)))


def _where(g: Graph, op: ops.Where) -> None:
    wide = op.condition.wide
    y = g.get(op.y) if isinstance(op.y, Value) else g.number(op.y, op.x.wide)
    g.put(op.out, g.node("Where", g.node("Greater", g.get(op.condition), g.number(0.0, wide)), g.get(op.x), y))


def _repeat(g: Graph, op: ops.Repeat) -> None:
    g.put(op.out, g.node("Tile", g.get(op.x), g.integers(1, op.out.size // op.x.size)))


def _transpose(g: Graph, op: ops.Transpose) -> None:
    columns = op.x.size // op.rows
    g.put(op.out, g.node("Transpose", g.get(op.x, (op.rows, columns)), perm=[0, 2, 1]), (columns, op.rows))


def _convert(g: Graph, op: ops.Convert) -> None:
    g.put(op.out, g.node("Cast", g.get(op.x), to=type_of(op.out)))


def _mix(g: Graph, op: ops.Mix) -> None:
    x = g.get(op.x)
    change = g.node("Mul", g.node("Sigmoid", g.get(op.g)), g.node("Sub", g.get(op.y), x))
    g.put(op.out, g.node("Add", x, change))


def _normalize(g: Graph, op: ops.Normalize) -> None:
    shape = (op.features,) if op.x.size == op.features else (op.x.size // op.features, op.features)
    x = g.get(op.x, shape)
    if op.centred:
        inputs = [x, g.constant(torch.ones(op.features) if op.weight is None else op.weight)]
        inputs += [] if op.bias is None else [g.constant(op.bias)]
        g.put(op.out, g.node("LayerNormalization", *inputs, axis=-1, epsilon=op.eps), shape)
        return
    mean = g.node("ReduceMean", g.node("Pow", x, g.number(2.0)), g.integers(-1), keepdims=1)
    out = g.node("Div", x, g.node("Sqrt", g.node("Add", mean, g.number(op.eps))))
    g.put(op.out, out if op.weight is None else g.node("Mul", out, g.constant(op.weight)), shape)


def _lookup(g: Graph, op: ops.Lookup) -> None:
    x = g.get(op.x)
    if not g.int8:
        g.put(op.out, g.node("Gather", g.constant(op.table), x, axis=0))
        return
    numbers, rows, columns = rounded(op.table)
    row = g.node("Cast", g.node("Gather", g.constant(numbers), x, axis=0), to=TensorProto.FLOAT)
    scaled = g.node("Mul", row, g.node("Gather", g.constant(rows[:, None]), x, axis=0))
    g.put(op.out, g.node("Mul", scaled, g.constant(columns)))


def _taps(g: Graph, op: ops.Taps) -> None:
    products = g.get(op.x, tuple(op.weight.shape))
    if bool((op.weight != 1).any()):
        products = g.node("Mul", products, g.constant(op.weight))
    g.put(op.out, g.node("ReduceSum", products, g.integers(1), keepdims=0))


def _select(g: Graph, op: ops.Select) -> None:
    order = op.weights.size // op.heads
    width = op.m.size // op.weights.size
    products = g.node("Mul", g.get(op.weights, (order, op.heads, 1)), g.get(op.m, (order, op.heads, width)))
    g.put(op.out, g.node("ReduceSum", products, g.integers(1), keepdims=0), (op.heads, width))


def _fill(g: Graph, op: ops.Fill) -> None:
    x = g.get(op.x)
    held = g.number(0.0) if op.held is None else g.get(op.held)
    g.put(op.out, g.node("Where", g.node("IsNaN", x), held, x))


def _constant(g: Graph, op: ops.Constant) -> None:
    """A constant array, repeated for each sequence of the batch."""
    batch = g.node("Shape", g.get(g.program.x), start=0, end=1)
    shape = g.node("Concat", batch, g.integers(op.out.size), axis=0)
    g.put(op.out, g.node("Expand", g.constant(op.array), shape))


def _attend(g: Graph, op: ops.Attend) -> None:
    steps, half = op.cos.shape
    heads, width = op.heads, 2 * half
    keys = _rotated(g, g.get(op.keys, (steps, heads, width)), op.cos[:, None], op.sin[:, None])
    turned = g.node("Transpose", keys, perm=[0, 2, 3, 1])
    scores = g.node("MatMul", g.get(op.query, (heads, 1, width)), turned)  # (batch, heads, 1, steps)
    visible = g.node("Greater", g.get(op.present, (1, 1, steps)), g.number(0.0))
    scores = g.node("Mul", scores, g.number(1 / math.sqrt(width)))
    shares = g.node("Softmax", g.node("Where", visible, scores, g.number(-math.inf)), axis=-1)
    values = g.node("Transpose", g.get(op.values, (steps, heads, width)), perm=[0, 2, 1, 3])
    g.put(op.out, g.node("MatMul", shares, values), (heads, 1, width))


def _rotated(g: Graph, x: str, cos: Tensor, sin: Tensor) -> str:
    """x (…, features) with pairs of features, one of each half, rotated by angles with these cosines and sines."""
    half, c, s = cos.shape[-1], g.constant(cos), g.constant(sin)
    first_half, second_half = g.nodes_of("Split", (x, g.integers(half, half)), 2, axis=-1)
    first = g.node("Sub", g.node("Mul", first_half, c), g.node("Mul", second_half, s))
    second = g.node("Add", g.node("Mul", first_half, s), g.node("Mul", second_half, c))
    return g.node("Concat", first, second, axis=-1)


def _count(g: Graph, op: ops.Count) -> None:
    size, kind = op.thresholds.numel(), type_of(op.counts)
    x = g.get(op.x, (1, op.x.size))
    above = g.node("Cast", g.node("Greater", x, g.constant(op.thresholds)), to=kind)
    above = g.node("Where", g.node("IsNaN", x), g.node("Cast", x, to=kind), above)  # NaN stays in the counts
    above = g.reshape(above, size)
    counts = g.get(op.counts)
    before, steps = g.nodes_of("Split", (counts, g.integers(op.counts.size - 1, 1)), 2, axis=1)
    parts, number = [above], g.node("Add", steps, g.number(0.5, op.counts.wide))
    for _ in range(op.positions):
        parts.append(g.node("Mul", parts[-1], number))
    above = g.node("Concat", *parts, axis=1)
    after = g.node("Add", before, above), g.node("Add", steps, g.number(1.0, op.counts.wide))
    g.put(op.out, g.node("Concat", *after, axis=1))


def _shares(g: Graph, op: ops.Shares) -> None:
    degrees = len(op.legendre)
    size = op.out.size // degrees
    *parts, steps = g.nodes_of("Split", (g.get(op.counts), g.integers(*[size] * degrees, 1)), degrees + 1, axis=1)
    means, out = [], []
    for k, part in enumerate(parts):
        for _ in range(k + 1):
            part = g.node("Div", part, steps)
        means.append(part)
    for row in op.legendre.tolist():
        factors = [(mean, g.number(factor, op.counts.wide)) for mean, factor in zip(means, row, strict=True) if factor]
        terms = [g.node("Mul", *pair) for pair in factors]
        out.append(reduce(lambda sum_, term: g.node("Add", sum_, term), terms))
    g.put(op.out, g.node("Cast", g.node("Concat", *out, axis=1), to=type_of(op.out)))


def _number(g: Graph, op: ops.Phase | ops.Follow) -> tuple[str, str]:
    """The number of a step, and the flag beside it."""
    number, flag = g.nodes_of("Split", (g.get(op.position), g.integers(1, 1)), 2, axis=1)
    is_set = g.node("Cast", flag, to=TensorProto.BOOL)
    return g.node("Where", is_set, number, g.constant(torch.tensor([op.first]).to(op.position.dtype))), flag


def _phase(g: Graph, op: ops.Phase) -> None:
    (number, flag), season = _number(g, op), g.constant(torch.tensor([op.season]).to(op.position.dtype))
    seasons = g.node("Floor", g.node("Div", number, season))
    phase = g.node("Sub", number, g.node("Mul", seasons, season))
    started = g.node("Cast", g.node("Greater", flag, g.node("Sub", flag, flag)), to=type_of(op.position))
    g.put(op.out, g.node("Cast", g.node("Concat", phase, started, axis=1), to=TensorProto.FLOAT))


def _follow(g: Graph, op: ops.Follow) -> None:
    number, flag = _number(g, op)
    unit = g.constant(torch.ones(1, dtype=op.position.dtype))
    before = g.node("Clip", flag, *(g.number(float(bound), op.position.wide) for bound in (0, op.limit - 1)))
    g.put(op.out, g.node("Concat", g.node("Add", number, unit), g.node("Add", before, unit), axis=1))


def _begin(g: Graph, op: ops.Begin) -> None:
    started = g.node("Greater", g.get(op.started), g.number(0.0, op.started.wide))
    g.put(op.out, g.node("Where", started, g.get(op.x), g.constant(op.array)))


def _traced(g: Graph, op: ops.Traced) -> None:
    inputs = [g.get(part, node.shape[1:]) for part, node in zip(op.parts, op.graph.inputs, strict=True)]
    outputs = traced_onnx.emit(g, op.graph, inputs)
    flat = [g.reshape(name, node.size) for name, node in zip(outputs, op.graph.outputs, strict=True)]
    g.put(op.out, g.node("Concat", *flat, axis=1))


def _push(g: Graph, op: ops.Push) -> None:
    row = g.get(op.row)
    repeated = g.node("Tile", row, g.integers(1, op.out.size // op.row.size))
    if op.rows.size == op.row.size:
        g.put(op.out, repeated)
        return
    sizes = g.integers(op.row.size, op.rows.size - op.row.size)
    newer = g.node("Concat", g.nodes_of("Split", (g.get(op.rows), sizes), 2, axis=1)[1], row, axis=1)
    g.put(op.out, g.node("Where", g.node("Greater", g.get(op.started), g.number(0.0)), newer, repeated))


def _changes(g: Graph, op: ops.Changes) -> None:
    shape = (op.x.size // op.level.size, op.level.size)
    apart = g.node("Sub", g.get(op.x, shape), g.get(op.level, (1, op.level.size)))
    scaled = g.node("Mul", apart, g.constant(op.factor.to(op.level.dtype)))
    g.put(op.out, g.node("Cast", scaled, to=TensorProto.FLOAT), shape)


def _raise(g: Graph, op: ops.Raise) -> None:
    shape = (op.x.size // op.level.size, op.level.size)
    x = g.node("Cast", g.get(op.x, shape), to=type_of(op.level))
    scaled = g.node("Mul", x, g.constant(op.factor.to(op.level.dtype)))
    g.put(op.out, g.node("Add", g.get(op.level, (1, op.level.size)), scaled), shape)


def _product(g: Graph, op: ops.Product) -> None:
    parts = [g.get(part) for part in op.parts]
    x = parts[0] if len(parts) == 1 else g.node("Concat", *parts, axis=1)
    g.put(op.out, g.node("MatMul", x, g.node("Cast", g.constant(op.array.mT), to=type_of(op.out))))


_EMITTERS: dict[type[Operation], Callable[[Graph, Any], None]] = {
    ops.Add: _add,
    ops.Apply: _apply,
    ops.Attend: _attend,
    ops.Begin: _begin,
    ops.Changes: _changes,
    ops.Concat: _concat,
    ops.Constant: _constant,
    ops.Convert: _convert,
    ops.Count: _count,
    ops.Divide: _divide,
    ops.Elapse: _elapse,
    ops.Fill: _fill,
    ops.Follow: _follow,
    ops.Lookup: _lookup,
    ops.MatVec: _mat_vec,
    ops.Mix: _mix,
    ops.Multiply: _multiply,
    ops.Normalize: _normalize,
    ops.Phase: _phase,
    ops.Product: _product,
    ops.Push: _push,
    ops.Raise: _raise,
    ops.Remember: _remember,
    ops.Repeat: _repeat,
    ops.Scale: _scale,
    ops.Select: _select,
    ops.Shares: _shares,
    ops.Split: _split,
    ops.Taps: _taps,
    ops.Traced: _traced,
    ops.Transpose: _transpose,
    ops.Where: _where,
}
