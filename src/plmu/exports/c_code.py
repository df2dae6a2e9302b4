"""A program as C99: constants, the helper functions that it uses, and the statements of `step`.

The function of each operation, such as `_scale`, adds its statements to the code `c`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from plmu.exports import program as ops
from plmu.exports import traced_c
from plmu.exports.c_helpers import DEFAULTS, FUNCTIONS, HELPERS
from plmu.exports.c_memory import Memory
from plmu.exports.c_wide import NEEDED, WIDE_FUNCTIONS
from plmu.exports.program import TERMS, Operation, Program, Value, fixed_limit, rounded

FEW_ROWS = 8  # a matrix with fewer rows is stored by rows, any other by columns
_ACROSS = 10  # numbers in a line of a constant array


class Code:
    """The statements of a step, and the constant arrays, helper functions and memory that they use."""

    def __init__(self, program: Program, int8: bool, fixed: bool = False) -> None:
        self.program, self.int8, self.fixed = program, int8, fixed
        self.fixed_inputs = 0  # inputs of the largest fixed-point product, which are rounded to int16
        self.memory = Memory(program)
        self.arrays: list[str] = []
        self._names: dict[Any, str] = {}  # of arrays, by what they hold
        self.statements: list[str] = []
        self.helpers: dict[str, str] = {}
        for index, operation in enumerate(program.operations):
            if not isinstance(operation, ops.Split):
                _EMITTERS[type(operation)](self, operation)
            for state, after in self.memory.stores.get(index, ()):
                if self.memory.places[state] != self.memory.places[after]:
                    self.call(wide("keep", state), self.at(state), self.at(after), state.size)
        if self.at(program.y) != "y":
            self.call(wide("set", program.y), "y", self.at(program.y), program.y.size)

    def at(self, value: Value) -> str:
        """The C expression of a pointer to a value."""
        return self.memory.pointer(value)

    def call(self, name: str, *arguments: Any) -> None:
        """Add a statement that calls a helper function, and the helper."""
        self.use(name)
        self.statements.append(f"{name}({', '.join(map(str, arguments))});")

    def use(self, name: str) -> None:
        """Add a helper function, after those that it calls."""
        if name in self.helpers or name not in HELPERS:
            return
        self.use_called(HELPERS[name])
        self.helpers[name] = HELPERS[name]

    def use_called(self, source: str) -> None:
        """Add the helper functions that a source calls."""
        for name in re.findall(r"\b([a-z_0-9]+)\(", source):
            if not re.search(rf"^static .*\b{name}\(", source, re.MULTILINE):
                self.use(name)

    def constant(self, array: Tensor | None) -> str:
        """Add a constant array of float, double or int8_t unless an equal one is there; returns its C name, NULL for
        None."""
        if array is None:
            return "NULL"
        key = (array.dtype, array.contiguous().numpy().tobytes())
        if key in self._names:
            return self._names[key]
        name = self._names[key] = f"constant_{len(self.arrays)}"
        kinds: dict[torch.dtype, tuple[str, Callable[[Any], str]]]
        kinds = {torch.int8: ("int8_t", str), torch.float64: ("double", repr)}
        kind, write = kinds.get(array.dtype, ("float", number))
        values = [write(value) for value in array.flatten().tolist()]
        lines = (", ".join(values[i : i + _ACROSS]) for i in range(0, len(values), _ACROSS))
        body = ",\n    ".join(lines)
        self.arrays.append(f"static const {kind} {name}[{len(values)}] = {{\n    {body}\n}};\n")
        return name

    def function(self, name: str, options: dict[str, Any], wide: bool = False) -> str:
        """The name of a helper that applies an activation to each number, which is added unless it is there already."""
        table, kind, write = (WIDE_FUNCTIONS, "double", repr) if wide else (FUNCTIONS, "float", number)
        body = table[name].format(**{key: write(value) for key, value in options.items()})
        same = next((name for name, code in self.helpers.items() if f"= {body};" in code), None)
        if same is not None:
            return same
        if name in NEEDED:
            self.helpers.setdefault(NEEDED[name], HELPERS[NEEDED[name]])
        self.use_called(body)
        helper = f"apply_{name}_{len(self.helpers)}"
        self.helpers[helper] = (
            f"static void {helper}({kind} *out, const {kind} *from, size_t count)\n{{\n    size_t i;\n"
            f"    for (i = 0; i < count; i++) {{\n        const {kind} x = from[i];\n"
            f"        out[i] = {body};\n    }}\n}}\n"
        )
        return helper


def wide(name: str, value: Value) -> str:
    """The helper of this name for values like this one."""
    return f"wide_{name}" if value.wide else name


def number(value: float) -> str:
    """A float32 number in C, exactly."""
    text = f"{value:.9g}"
    return f"{text}f" if set(text) & set(".e") else f"{text}.0f"


def _mat_vec(c: Code, op: ops.MatVec) -> None:
    fixed = c.int8 and c.fixed and not op.weight.is_system
    for i in range(op.vectors):
        sizes = [part.size // op.vectors for part in op.parts]
        parts = [(_after(c.at(part), i * size), size) for part, size in zip(op.parts, sizes, strict=True)]
        (_fixed if fixed else _matrix_product)(c, op, _after(c.at(op.out), i * len(op.weight.array)), parts)


def _after(pointer: str, count: int) -> str:
    """The C expression of a pointer `count` numbers after another."""
    return f"{pointer} + {count}" if count else pointer


def _matrix_product(c: Code, op: ops.MatVec, out: str, parts: list[tuple[str, int]]) -> None:
    """out = W x + bias + add: out is set to one term, each part of x adds its product, int8 scales the sum."""
    array, rows = op.weight.array, len(op.weight.array)
    int8 = c.int8 and not op.weight.is_system
    scale = factors = None
    if int8:
        array, scale, columns = rounded(array)
        factors = c.constant(columns)
    if not int8 and op.bias is not None:
        c.call("set", out, c.constant(op.bias), rows)
    elif not int8 and op.add is not None:
        c.call("set", out, c.at(op.add), rows)
    else:
        c.call("clear", out, rows)
    few = rows < FEW_ROWS
    weight, start = c.constant(array if few else array.mT.contiguous()), 0
    for part, size in parts:
        where = _after(weight, start if few else start * rows)
        name = ("rows" if few else "columns") + ("8" if int8 else "")
        scaled = [] if factors is None else [_after(factors, start)]
        c.call(name, out, where, part, *scaled, rows, size, *([array.shape[1]] if few else []))
        start += size
    if int8:
        c.call("scale", out, out, c.constant(scale), c.constant(op.bias), rows)
    if op.add is not None and (int8 or op.bias is not None):
        c.call("add", out, out, c.at(op.add), rows)


def _fixed(c: Code, op: ops.MatVec, out: str, parts: list[tuple[str, int]]) -> None:
    """A product of int8 weights and int16 inputs, summed in int32."""
    numbers, scale, columns = rounded(op.weight.array)
    count = columns.numel()
    c.fixed_inputs = max(c.fixed_inputs, count)
    factors, inputs, unit, start = c.constant(columns), [], "0.0f", 0
    for part, size in parts:
        inputs.append((start, part, _after(factors, start), size))
        start += size
    for name in ("largest", "whole", "fixed8"):
        c.use(name)
    for _, x, factor, size in inputs:
        unit = f"largest({unit}, {x}, {factor}, {size})"
    c.statements.append(f"unit = {unit} / {number(fixed_limit(count))};")
    for start, x, factor, size in inputs:
        c.call("whole", _after("state->whole", start), x, factor, "unit", size)
    weights = c.constant(numbers), "state->whole", "unit", c.constant(scale), c.constant(op.bias)
    c.call("fixed8", out, *weights, len(numbers), count)
    if op.add is not None:
        c.call("add", out, out, c.at(op.add), len(numbers))


def _remember(c: Code, op: ops.Remember) -> None:
    groups, order, columns = op.matrix.shape
    width = op.channels // groups
    out, m = c.at(op.out), c.at(op.m)
    c.call("clear", out, op.out.size)
    matrix = c.constant(op.matrix.permute(1, 2, 0).contiguous())
    c.call("remember", out, m, c.at(op.u), matrix, order, columns, groups, width)
    if any(op.near_identity):
        added = op.matrix.new_tensor(op.near_identity).repeat_interleave(width)
        c.call("remain", out, m, c.constant(added), order, op.channels)


def _elapse(c: Code, op: ops.Elapse) -> None:
    arrays = c.constant(op.moves), c.constant(op.rate), f"work + {c.memory.extra[op].offset}"
    sizes = len(op.rate), op.u.size, len(op.moves), op.near_identity, TERMS, number(op.unit), number(op.longest)
    c.call("elapse", c.at(op.out), c.at(op.m), c.at(op.u), f"({c.at(op.interval)})[0]", *arrays, *sizes)


def _concat(c: Code, op: ops.Concat) -> None:
    start = 0
    for part in op.parts:
        c.call(wide("set", part), _after(c.at(op.out), start), c.at(part), part.size)
        start += part.size


def _apply(c: Code, op: ops.Apply) -> None:
    name, options = op.function, {**DEFAULTS.get(op.function, {}), **op.options}
    out, x = c.at(op.out), c.at(op.x)
    if name in ("softmax", "log_softmax"):
        c.call("softmax", out, x, op.out.size, int(name == "log_softmax"))
    elif name == "glu":
        c.call("glu", out, x, op.out.size)
    else:
        if options.pop("approximate", "none") == "tanh":
            name = "gelu_tanh"
        c.call(c.function(name, options, op.x.wide), out, x, op.out.size)


def _scale(c: Code, op: ops.Scale) -> None:
    c.call(wide("scale", op.out), c.at(op.out), c.at(op.x), c.constant(op.scale), c.constant(op.offset), op.out.size)


def _add(c: Code, op: ops.Add) -> None:
    c.call(wide("add", op.out), c.at(op.out), c.at(op.x), c.at(op.y), op.out.size)


def _divide(c: Code, op: ops.Divide) -> None:
    c.call(wide("divide", op.out), c.at(op.out), c.at(op.x), c.at(op.y), op.out.size)


def _where(c: Code, op: ops.Where) -> None:
    y, otherwise = (c.at(op.y), "0") if isinstance(op.y, Value) else ("NULL", number(op.y))
    c.call(wide("where", op.out), c.at(op.out), c.at(op.condition), c.at(op.x), y, otherwise, op.out.size)


def _repeat(c: Code, op: ops.Repeat) -> None:
    c.call(wide("repeat", op.out), c.at(op.out), c.at(op.x), op.x.size, op.out.size)


def _transpose(c: Code, op: ops.Transpose) -> None:
    c.call(wide("transpose", op.out), c.at(op.out), c.at(op.x), op.rows, op.x.size // op.rows)


def _convert(c: Code, op: ops.Convert) -> None:
    c.call(wide("convert", op.out), c.at(op.out), c.at(op.x), op.out.size)


def _multiply(c: Code, op: ops.Multiply) -> None:
    c.call(wide("multiply", op.out), c.at(op.out), c.at(op.x), c.at(op.y), op.out.size)


def _mix(c: Code, op: ops.Mix) -> None:
    c.call("mix", c.at(op.out), c.at(op.x), c.at(op.y), c.at(op.g), op.out.size)


def _normalize(c: Code, op: ops.Normalize) -> None:
    weights = c.constant(op.weight), c.constant(op.bias)
    sizes = op.x.size, op.features, number(op.eps), int(op.centred)
    c.call("normalize", c.at(op.out), c.at(op.x), *weights, *sizes)


def _lookup(c: Code, op: ops.Lookup) -> None:
    size = op.out.size
    if not c.int8:
        c.call("set", c.at(op.out), f"{c.constant(op.table)} + (size_t)x[0] * {size}", size)
        return
    numbers, rows, columns = rounded(op.table)
    row = f"{c.constant(numbers)} + (size_t)x[0] * {size}"
    c.call("row8", c.at(op.out), row, f"{c.constant(rows)}[x[0]]", c.constant(columns), size)


def _taps(c: Code, op: ops.Taps) -> None:
    c.call("clear", c.at(op.out), op.out.size)
    c.call("taps", c.at(op.out), c.at(op.x), c.constant(op.weight), *op.weight.shape)


def _select(c: Code, op: ops.Select) -> None:
    order, width = op.weights.size // op.heads, op.m.size // op.weights.size
    c.call("clear", c.at(op.out), op.out.size)
    c.call("choose", c.at(op.out), c.at(op.weights), c.at(op.m), order, op.heads, width)


def _fill(c: Code, op: ops.Fill) -> None:
    c.call("fill", c.at(op.out), c.at(op.x), "NULL" if op.held is None else c.at(op.held), op.out.size)


def _constant(c: Code, op: ops.Constant) -> None:
    c.call("set", c.at(op.out), c.constant(op.array), op.out.size)


def _attend(c: Code, op: ops.Attend) -> None:
    steps, half = op.cos.shape
    values = (c.at(op.query), c.at(op.keys), c.at(op.values), c.at(op.present))
    scores = f"work + {c.memory.extra[op].offset}"
    c.call("attend", c.at(op.out), *values, c.constant(op.cos), c.constant(op.sin), scores, steps, op.heads, half)


def _count(c: Code, op: ops.Count) -> None:
    inputs = c.at(op.x), c.at(op.counts), c.constant(op.thresholds)
    c.call("count", c.at(op.out), *inputs, *op.thresholds.shape, 1 + op.positions)


def _shares(c: Code, op: ops.Shares) -> None:
    degrees = len(op.legendre)
    c.call("shares", c.at(op.out), c.at(op.counts), c.constant(op.legendre), op.out.size // degrees, degrees)


def _phase(c: Code, op: ops.Phase) -> None:
    c.call("phase", c.at(op.out), c.at(op.position), op.first, op.season)


def _follow(c: Code, op: ops.Follow) -> None:
    c.call("follow", c.at(op.out), c.at(op.position), f"{op.first}.0", f"{op.limit}.0")


def _begin(c: Code, op: ops.Begin) -> None:
    arguments = c.at(op.x), c.constant(op.array), f"({c.at(op.started)})[0] > 0"
    c.call(wide("begin", op.out), c.at(op.out), *arguments, op.out.size)


def _traced(c: Code, op: ops.Traced) -> None:
    name = f"traced_{len(c.helpers)}"
    source = traced_c.function(op.graph, name, lambda node: c.constant(node.options["array"]))
    c.use_called(source)
    c.helpers[name] = source
    work = f"wide + {c.memory.extra[op].offset}" if op in c.memory.extra else "wide"
    c.call(name, c.at(op.out), *map(c.at, op.parts), work)


def _push(c: Code, op: ops.Push) -> None:
    c.call(wide("push", op.row), c.at(op.out), c.at(op.rows), c.at(op.row), c.at(op.started), op.row.size, op.rows.size)


def _changes(c: Code, op: ops.Changes) -> None:
    arguments = c.at(op.x), c.at(op.level), c.constant(op.factor.float())
    c.call(wide("changes", op.x), c.at(op.out), *arguments, op.x.size, op.level.size)


def _raise(c: Code, op: ops.Raise) -> None:
    arguments = c.at(op.x), c.at(op.level), c.constant(op.factor.float())
    c.call(wide("lift", op.level), c.at(op.out), *arguments, op.x.size, op.level.size)


def _product(c: Code, op: ops.Product) -> None:
    rows, stride = op.array.shape
    by_columns = op.out.wide and rows >= FEW_ROWS
    weight, start, out = c.constant(op.array.mT.contiguous() if by_columns else op.array), 0, c.at(op.out)
    c.call(wide("clear", op.out), out, rows)
    for part in op.parts:
        if by_columns:
            c.call("wide_columns", out, _after(weight, start * rows), c.at(part), rows, part.size)
        else:
            c.call(wide("product", part), out, _after(weight, start), c.at(part), rows, part.size, stride)
        start += part.size


_EMITTERS: dict[type[Operation], Callable[[Code, Any], None]] = {
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
    ops.Taps: _taps,
    ops.Traced: _traced,
    ops.Transpose: _transpose,
    ops.Where: _where,
}
