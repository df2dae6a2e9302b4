"""A program run by torch: the reference of every export, also with weights rounded to int8.

The function of each operation, such as `_scale`, puts its output into `v`, the values (batch, size) so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from plmu.exports import program as ops
from plmu.exports.program import TERMS, Operation, Program, Value, fixed_limit, rounded


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread. The products of a step are small: where other programs run, several threads would wait for
    each other at each of them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Evaluator:
    """Runs a program step by step, and keeps its states.

    >>> evaluator = Evaluator(program, int8=True)
    >>> y = evaluator.step(x)  # x: (batch, features), or token numbers (batch,)

    With `fixed`, products with int8 weights are sums of integers, as in C.
    """

    def __init__(
        self, program: Program, int8: bool = False, dtype: torch.dtype = torch.float32, fixed: bool = False
    ) -> None:
        self.program, self.int8, self.dtype, self.fixed = program, int8, dtype, fixed
        self.states: list[Tensor] | None = None
        self._arrays: dict[int, Tensor] = {}
        self._rounded: dict[int, list[Tensor]] = {}

    def step(self, x: Tensor) -> Tensor:
        """The output (batch, outputs) of one step."""
        values = self.values(x)
        self.states = [values[state] for state in self.program.next_states]
        return values[self.program.y]

    def values(self, x: Tensor) -> dict[Value, Tensor]:
        """All values (batch, size) of the next step; the states stay as they are."""
        program, batch = self.program, x.shape[0]
        values: dict[Value, Tensor] = {program.x: x if program.tokens is not None else x.to(self.precision(program.x))}
        states = self.states or [
            torch.zeros(batch, state.size, dtype=self.precision(state)) for state in program.states
        ]
        values.update(zip(program.states, states, strict=True))
        for operation in program.operations:
            self.run(operation, values)
        return values

    def run(self, operation: Operation, values: dict[Value, Tensor]) -> None:
        """Add the outputs of an operation to the values, which hold its inputs."""
        _RULES[type(operation)](self, operation, values)

    def integers(self, x: Tensor) -> Tensor:
        """The inputs (batch, inputs) of a fixed-point sum as integers."""
        return torch.round(x)

    def precision(self, value: Value) -> torch.dtype:
        return value.dtype if value.wide else self.dtype

    def array(self, array: Tensor, rounding: bool = False) -> Tensor:
        """A constant in the precision of the evaluation; with `rounding`, as int8 would store it if the evaluator says
        so."""
        key = id(array)
        if key not in self._arrays:
            if rounding and self.int8:
                numbers, rows, columns = (part.to(self.dtype) for part in rounded(array))
                self._arrays[key] = rows[:, None] * numbers * columns
            else:
                self._arrays[key] = array.to(self.dtype)
        return self._arrays[key]

    def rounded(self, weight: Tensor) -> list[Tensor]:
        """A weight as int8 numbers, and the scales of its rows and columns; cached."""
        if id(weight) not in self._rounded:
            numbers, rows, columns = rounded(weight)
            self._rounded[id(weight)] = [numbers.double(), rows.to(self.dtype), columns.to(self.dtype)]
        return self._rounded[id(weight)]

    def maybe(self, array: Tensor | None) -> Tensor | None:
        """`array` for a constant that may be None."""
        return None if array is None else self.array(array)


def _mat_vec(e: Evaluator, op: ops.MatVec, v: dict[Value, Tensor]) -> None:
    x, bias = torch.cat([v[part] for part in op.parts], 1), e.maybe(op.bias)
    x = x.unflatten(1, (op.vectors, -1)).flatten(0, 1)
    if e.fixed and not op.weight.is_system:
        out = _fixed(e, op.weight.array, x)
        out = out if bias is None else out + bias
    else:
        out = F.linear(x, e.array(op.weight.array, rounding=not op.weight.is_system), bias)
    out = out.unflatten(0, (-1, op.vectors)).flatten(1)
    v[op.out] = out if op.add is None else out + v[op.add]


def _fixed(e: Evaluator, weight: Tensor, x: Tensor) -> Tensor:
    """W x with each row of x (batch, inputs) rounded to integers of at most `fixed_limit`, as in C."""
    numbers, rows, columns = e.rounded(weight)
    x = x * columns
    limit = float(fixed_limit(x.shape[1]))
    largest = x.abs().amax(1, keepdim=True)
    whole = torch.where(largest > 0, e.integers(x * (limit / largest)), 0.0)
    sums = F.linear(whole.double(), numbers)  # exact
    return sums.to(e.dtype) * (largest / limit * rows)


def _remember(e: Evaluator, op: ops.Remember, v: dict[Value, Tensor]) -> None:
    groups, order, columns = op.matrix.shape
    batch, width = v[op.m].shape[0], op.channels // groups
    both = torch.cat([v[op.m], v[op.u]], 1).view(batch, columns, groups, width)
    matrix = e.array(op.matrix)
    out = torch.einsum("gok,bkgw->bogw", matrix, both)
    out = out + matrix.new_tensor(op.near_identity)[:, None] * both[:, :order]
    v[op.out] = out.flatten(1)


def _elapse(e: Evaluator, op: ops.Elapse, v: dict[Value, Tensor]) -> None:
    moves, rate, interval = e.array(op.moves), e.array(op.rate), v[op.interval]
    m, u = v[op.m].unflatten(1, (len(op.rate), -1)), v[op.u][:, None]
    rest = torch.where((interval >= 0) & interval.isfinite(), interval, math.nan).clamp(max=op.longest)
    for bit in reversed(range(len(moves))):
        bound = op.unit * 2.0**bit
        moved = moves[bit] @ torch.cat([m, u], 1)
        moved = m + moved if bit < op.near_identity else moved
        m = torch.where((rest >= bound)[:, :, None], moved, m)
        rest = torch.where(rest >= bound, rest - bound, rest)
    term = rest[:, :, None] * (rate @ torch.cat([m, u], 1))
    m = m + term
    for number in range(2, TERMS + 1):
        term = (rest / number)[:, :, None] * (rate[:, :-1] @ term)
        m = m + term
    v[op.out] = m.flatten(1)


def _split(e: Evaluator, op: ops.Split, v: dict[Value, Tensor]) -> None:
    v.update(zip(op.pieces, v[op.x].split([piece.size for piece in op.pieces], 1), strict=True))


def _concat(e: Evaluator, op: ops.Concat, v: dict[Value, Tensor]) -> None:
    v[op.out] = torch.cat([v[part] for part in op.parts], 1)


def _apply(e: Evaluator, op: ops.Apply, v: dict[Value, Tensor]) -> None:
    options = {"dim": -1} if op.function in ("softmax", "log_softmax", "glu") else op.options
    function = getattr(torch, op.function, None) or getattr(F, op.function)
    v[op.out] = function(v[op.x], **options)


def _scale(e: Evaluator, op: ops.Scale, v: dict[Value, Tensor]) -> None:
    out = v[op.x] * e.array(op.scale)
    v[op.out] = out if op.offset is None else out + e.array(op.offset)


def _add(e: Evaluator, op: ops.Add, v: dict[Value, Tensor]) -> None:
    v[op.out] = v[op.x] + v[op.y]


def _multiply(e: Evaluator, op: ops.Multiply, v: dict[Value, Tensor]) -> None:
    v[op.out] = v[op.x] * v[op.y]


def _divide(e: Evaluator, op: ops.Divide, v: dict[Value, Tensor]) -> None:
    v[op.out] = v[op.x] / v[op.y]


def _where(e: Evaluator, op: ops.Where, v: dict[Value, Tensor]) -> None:
    v[op.out] = torch.where(v[op.condition] > 0, v[op.x], v[op.y] if isinstance(op.y, Value) else op.y)


def _repeat(e: Evaluator, op: ops.Repeat, v: dict[Value, Tensor]) -> None:
    v[op.out] = v[op.x].repeat(1, op.out.size // op.x.size)


def _transpose(e: Evaluator, op: ops.Transpose, v: dict[Value, Tensor]) -> None:
    v[op.out] = v[op.x].unflatten(1, (op.rows, -1)).mT.flatten(1)


def _convert(e: Evaluator, op: ops.Convert, v: dict[Value, Tensor]) -> None:
    v[op.out] = v[op.x].to(e.precision(op.out))


def _mix(e: Evaluator, op: ops.Mix, v: dict[Value, Tensor]) -> None:
    v[op.out] = v[op.x] + torch.sigmoid(v[op.g]) * (v[op.y] - v[op.x])


def _normalize(e: Evaluator, op: ops.Normalize, v: dict[Value, Tensor]) -> None:
    x, weight = v[op.x].unflatten(1, (-1, op.features)), e.maybe(op.weight)
    if op.centred:
        out = F.layer_norm(x, (op.features,), weight, e.maybe(op.bias), op.eps)
    else:
        out = F.rms_norm(x, (op.features,), weight, op.eps)
    v[op.out] = out.flatten(1)


def _lookup(e: Evaluator, op: ops.Lookup, v: dict[Value, Tensor]) -> None:
    v[op.out] = e.array(op.table, rounding=True)[v[op.x]]


def _taps(e: Evaluator, op: ops.Taps, v: dict[Value, Tensor]) -> None:
    v[op.out] = (v[op.x].view(-1, *op.weight.shape) * e.array(op.weight)).sum(1)


def _select(e: Evaluator, op: ops.Select, v: dict[Value, Tensor]) -> None:
    weights = v[op.weights].view(-1, op.weights.size // op.heads, op.heads, 1)
    v[op.out] = (weights * v[op.m].view(*weights.shape[:3], -1)).sum(1).flatten(1)


def _fill(e: Evaluator, op: ops.Fill, v: dict[Value, Tensor]) -> None:
    x = v[op.x]
    v[op.out] = torch.where(torch.isnan(x), 0.0 if op.held is None else v[op.held], x)


def _constant(e: Evaluator, op: ops.Constant, v: dict[Value, Tensor]) -> None:
    v[op.out] = e.array(op.array).expand(v[e.program.x].shape[0], -1)


def _attend(e: Evaluator, op: ops.Attend, v: dict[Value, Tensor]) -> None:
    steps, half = op.cos.shape
    first, second = v[op.keys].view(-1, steps, op.heads, 2, half).unbind(3)
    cos, sin = e.array(op.cos)[:, None], e.array(op.sin)[:, None]
    keys = torch.cat([first * cos - second * sin, first * sin + second * cos], -1)
    query = v[op.query].view(-1, op.heads, 2 * half)
    scores = torch.einsum("bhd,bshd->bhs", query, keys) / math.sqrt(2 * half)
    attention = scores.masked_fill(v[op.present][:, None] == 0, -math.inf).softmax(-1)
    values = v[op.values].view(-1, steps, op.heads, 2 * half)
    v[op.out] = torch.einsum("bhs,bshd->bhd", attention, values).flatten(1)


def _count(e: Evaluator, op: ops.Count, v: dict[Value, Tensor]) -> None:
    counts = v[op.counts]
    x = v[op.x][:, None]
    above = torch.where(x.isnan(), torch.nan, (x > e.array(op.thresholds)).to(counts.dtype)).flatten(1)
    parts = [above * (counts[:, -1:] + 0.5) ** k for k in range(op.positions + 1)]
    v[op.out] = counts + torch.cat([*parts, torch.ones_like(counts[:, -1:])], 1)


def _shares(e: Evaluator, op: ops.Shares, v: dict[Value, Tensor]) -> None:
    counts, factors = v[op.counts], e.array(op.legendre)
    parts = counts[:, :-1].unflatten(1, (len(factors), -1))
    powers = counts[:, -1:] ** torch.arange(1, len(factors) + 1, device=counts.device)
    v[op.out] = (factors.to(counts.dtype) @ (parts / powers[:, :, None])).flatten(1).to(e.dtype)


def _phase(e: Evaluator, op: ops.Phase, v: dict[Value, Tensor]) -> None:
    number, flag = v[op.position].split(1, 1)
    phase = torch.where(flag != 0, number, float(op.first)) % op.season
    v[op.out] = torch.cat([phase, (flag > 0).to(phase.dtype)], 1).to(e.dtype)


def _follow(e: Evaluator, op: ops.Follow, v: dict[Value, Tensor]) -> None:
    number, flag = v[op.position].split(1, 1)
    number = torch.where(flag != 0, number, float(op.first))
    v[op.out] = torch.cat([number + 1, (flag.clamp(min=0) + 1).clamp(max=op.limit)], 1)


def _begin(e: Evaluator, op: ops.Begin, v: dict[Value, Tensor]) -> None:
    v[op.out] = torch.where(v[op.started] > 0, v[op.x], op.array.to(e.precision(op.x)))


def _traced(e: Evaluator, op: ops.Traced, v: dict[Value, Tensor]) -> None:
    shapes = [node.shape[1:] for node in op.graph.inputs]
    inputs = [v[part].view(-1, *shape) for part, shape in zip(op.parts, shapes, strict=True)]
    v[op.out] = torch.cat([output.flatten(1) for output in op.step(*inputs)], 1)


def _push(e: Evaluator, op: ops.Push, v: dict[Value, Tensor]) -> None:
    rows, row = v[op.rows], v[op.row]
    newer = torch.cat([rows[:, op.row.size :], row], 1)
    v[op.out] = torch.where(v[op.started] > 0, newer, row.repeat(1, op.out.size // op.row.size))


def _changes(e: Evaluator, op: ops.Changes, v: dict[Value, Tensor]) -> None:
    x = v[op.x].unflatten(1, (-1, op.level.size)) - v[op.level][:, None]
    v[op.out] = (x * op.factor.to(x.dtype)).flatten(1).to(e.dtype)


def _raise(e: Evaluator, op: ops.Raise, v: dict[Value, Tensor]) -> None:
    level = v[op.level][:, None]
    x = v[op.x].unflatten(1, (-1, op.level.size)).to(level.dtype)
    v[op.out] = (level + x * op.factor.to(x.dtype)).flatten(1)


def _product(e: Evaluator, op: ops.Product, v: dict[Value, Tensor]) -> None:
    x = torch.cat([v[part] for part in op.parts], 1)
    v[op.out] = F.linear(x, op.array.to(x.dtype))


_RULES: dict[type[Operation], Callable[[Evaluator, Any, dict[Value, Tensor]], None]] = {
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
