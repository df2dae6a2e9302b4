"""A program as C99: constants, the helper functions that it uses, `init` and `step`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from plmu.exports import program as ops
from plmu.exports.c_helpers import DEFAULTS, FUNCTIONS, HELPERS
from plmu.exports.c_memory import Memory
from plmu.exports.program import Operation, Program, Value, fixed_limit, rounded

FEW_ROWS = 8  # a matrix with fewer is stored by rows
_ACROSS = 10  # numbers in a line


class Code:
    """Statements of a step and what they need."""

    def __init__(self, program: Program, int8: bool, fixed: bool = False) -> None:
        self.program, self.int8, self.fixed = program, int8, fixed
        self.fixed_inputs = 0  # int16 numbers that a fixed-point product needs at most
        self.memory = Memory(program)
        self.arrays: list[str] = []
        self.statements: list[str] = []
        self.helpers: dict[str, str] = {}
        for index, operation in enumerate(program.operations):
            if not isinstance(operation, ops.Split):
                _EMITTERS[type(operation)](self, operation)
            for state, after in self.memory.stores.get(index, ()):
                if self.memory.places[state] != self.memory.places[after]:
                    self.call("keep", self.at(state), self.at(after), state.size)
        if self.at(program.y) != "y":
            self.call("set", "y", self.at(program.y), program.y.size)

    def at(self, value: Value) -> str:
        return self.memory.pointer(value)

    def call(self, name: str, *arguments: Any) -> None:
        self.helpers.setdefault(name, HELPERS[name]) if name in HELPERS else None
        self.statements.append(f"{name}({', '.join(map(str, arguments))});")

    def constant(self, array: Tensor | None) -> str:
        """The name of a constant array, or NULL."""
        if array is None:
            return "NULL"
        name = f"constant_{len(self.arrays)}"
        is_int = array.dtype == torch.int8
        kind, write = ("int8_t", str) if is_int else ("float", number)
        values = [write(one) for one in array.flatten().tolist()]
        lines = (", ".join(values[i : i + _ACROSS]) for i in range(0, len(values), _ACROSS))
        body = ",\n    ".join(lines)
        self.arrays.append(f"static const {kind} {name}[{len(values)}] = {{\n    {body}\n}};\n")
        return name

    def function(self, name: str, options: dict[str, Any]) -> str:
        """The name of a helper that applies a function to each number."""
        body = FUNCTIONS[name].format(**{key: number(value) for key, value in options.items()})
        same = next((known for known, text in self.helpers.items() if f"= {body};" in text), None)
        if same is not None:
            return same
        helper = f"apply_{name}_{len(self.helpers)}"
        self.helpers[helper] = (
            f"static void {helper}(float *out, const float *from, size_t count)\n{{\n    size_t i;\n"
            "    for (i = 0; i < count; i++) {\n        const float x = from[i];\n"
            f"        out[i] = {body};\n    }}\n}}\n"
        )
        return helper


def number(value: float) -> str:
    """A float32 number in C, exactly."""
    text = f"{value:.9g}"
    return f"{text}f" if set(text) & set(".e") else f"{text}.0f"


def _mat_vec(c: Code, one: ops.MatVec) -> None:
    out, array, rows = c.at(one.out), one.weight.array, one.out.size
    int8 = c.int8 and not one.weight.is_system
    if int8 and c.fixed:
        _fixed(c, one)
        return
    scale = factors = None
    if int8:
        array, scale, columns = rounded(array)
        factors = c.constant(columns)
    if not int8 and one.bias is not None:
        c.call("set", out, c.constant(one.bias), rows)
    elif not int8 and one.add is not None:
        c.call("set", out, c.at(one.add), rows)
    else:
        c.call("clear", out, rows)
    few = rows < FEW_ROWS
    weight, start = c.constant(array if few else array.mT.contiguous()), 0
    for part in one.parts:
        offset = start if few else start * rows
        where = f"{weight} + {offset}" if offset else weight
        name = ("rows" if few else "columns") + ("8" if int8 else "")
        scaled = [] if factors is None else [f"{factors} + {start}" if start else factors]
        c.call(name, out, where, c.at(part), *scaled, rows, part.size, *([array.shape[1]] if few else []))
        start += part.size
    if int8:
        c.call("scale", out, out, c.constant(scale), c.constant(one.bias), rows)
    if one.add is not None and (int8 or one.bias is not None):
        c.call("add", out, out, c.at(one.add), rows)


def _fixed(c: Code, one: ops.MatVec) -> None:
    """A product of int8 weights and int16 inputs, summed in int32."""
    numbers, scale, columns = rounded(one.weight.array)
    count = columns.numel()
    c.fixed_inputs = max(c.fixed_inputs, count)
    factors, inputs, unit, start = c.constant(columns), [], "0.0f", 0
    for part in one.parts:
        inputs.append((start, c.at(part), f"{factors} + {start}" if start else factors, part.size))
        start += part.size
    for name in ("largest", "whole", "fixed8"):
        c.helpers.setdefault(name, HELPERS[name])
    for _, x, factor, size in inputs:
        unit = f"largest({unit}, {x}, {factor}, {size})"
    c.statements.append(f"unit = {unit} / {number(fixed_limit(count))};")
    for start, x, factor, size in inputs:
        c.call("whole", f"state->whole + {start}" if start else "state->whole", x, factor, "unit", size)
    weights = c.constant(numbers), "state->whole", "unit", c.constant(scale), c.constant(one.bias)
    c.call("fixed8", c.at(one.out), *weights, one.out.size, count)
    if one.add is not None:
        c.call("add", c.at(one.out), c.at(one.out), c.at(one.add), one.out.size)


def _remember(c: Code, one: ops.Remember) -> None:
    groups, order, columns = one.matrix.shape
    width = one.channels // groups
    out, m = c.at(one.out), c.at(one.m)
    c.call("clear", out, one.out.size)
    matrix = c.constant(one.matrix.permute(1, 2, 0).contiguous())
    c.call("remember", out, m, c.at(one.u), matrix, order, columns, groups, width)
    if any(one.near_identity):
        added = one.matrix.new_tensor(one.near_identity).repeat_interleave(width)
        c.call("remain", out, m, c.constant(added), order, one.channels)


def _concat(c: Code, one: ops.Concat) -> None:
    start = 0
    for part in one.parts:
        c.call("set", f"{c.at(one.out)} + {start}" if start else c.at(one.out), c.at(part), part.size)
        start += part.size


def _apply(c: Code, one: ops.Apply) -> None:
    name, options = one.function, {**DEFAULTS.get(one.function, {}), **one.options}
    out, x = c.at(one.out), c.at(one.x)
    if name in ("softmax", "log_softmax"):
        c.call("softmax", out, x, one.out.size, int(name == "log_softmax"))
    elif name == "glu":
        c.call("glu", out, x, one.out.size)
    else:
        if options.pop("approximate", "none") == "tanh":
            name = "gelu_tanh"
        c.call(c.function(name, options), out, x, one.out.size)


def _scale(c: Code, one: ops.Scale) -> None:
    c.call("scale", c.at(one.out), c.at(one.x), c.constant(one.scale), c.constant(one.offset), one.out.size)


def _add(c: Code, one: ops.Add) -> None:
    c.call("add", c.at(one.out), c.at(one.x), c.at(one.y), one.out.size)


def _multiply(c: Code, one: ops.Multiply) -> None:
    c.call("multiply", c.at(one.out), c.at(one.x), c.at(one.y), one.out.size)


def _mix(c: Code, one: ops.Mix) -> None:
    c.call("mix", c.at(one.out), c.at(one.x), c.at(one.y), c.at(one.g), one.out.size)


def _normalize(c: Code, one: ops.Normalize) -> None:
    weights = c.constant(one.weight), c.constant(one.bias)
    sizes = one.x.size, one.features, number(one.eps), int(one.centred)
    c.call("normalize", c.at(one.out), c.at(one.x), *weights, *sizes)


def _lookup(c: Code, one: ops.Lookup) -> None:
    size = one.out.size
    if not c.int8:
        c.call("set", c.at(one.out), f"{c.constant(one.table)} + (size_t)x[0] * {size}", size)
        return
    numbers, rows, columns = rounded(one.table)
    row = f"{c.constant(numbers)} + (size_t)x[0] * {size}"
    c.call("row8", c.at(one.out), row, f"{c.constant(rows)}[x[0]]", c.constant(columns), size)


def _taps(c: Code, one: ops.Taps) -> None:
    c.call("clear", c.at(one.out), one.out.size)
    c.call("taps", c.at(one.out), c.at(one.x), c.constant(one.weight), *one.weight.shape)


def _select(c: Code, one: ops.Select) -> None:
    order, width = one.weights.size // one.heads, one.m.size // one.weights.size
    c.call("clear", c.at(one.out), one.out.size)
    c.call("choose", c.at(one.out), c.at(one.weights), c.at(one.m), order, one.heads, width)


def _fill(c: Code, one: ops.Fill) -> None:
    c.call("fill", c.at(one.out), c.at(one.x), "NULL" if one.held is None else c.at(one.held), one.out.size)


def _constant(c: Code, one: ops.Constant) -> None:
    c.call("set", c.at(one.out), c.constant(one.array), one.out.size)


def _attend(c: Code, one: ops.Attend) -> None:
    steps, half = one.cos.shape
    values = (c.at(one.query), c.at(one.keys), c.at(one.values), c.at(one.seen))
    scores = f"work + {c.memory.extra[one].offset}"
    c.call("attend", c.at(one.out), *values, c.constant(one.cos), c.constant(one.sin), scores, steps, one.heads, half)


def _count(c: Code, one: ops.Count) -> None:
    given = c.at(one.x), c.at(one.counts), c.constant(one.thresholds)
    c.call("count", c.at(one.out), *given, *one.thresholds.shape, 1 + one.positions)


def _shares(c: Code, one: ops.Shares) -> None:
    degrees = len(one.legendre)
    c.call("shares", c.at(one.out), c.at(one.counts), c.constant(one.legendre), one.out.size // degrees, degrees)


_EMITTERS: dict[type[Operation], Callable[[Code, Any], None]] = {
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
    ops.Taps: _taps,
}
