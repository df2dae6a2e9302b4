"""A program run by torch: what every export of it should give, with weights rounded to int8 too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from plmu.exports import program as ops
from plmu.exports.program import Operation, Program, Value, fixed_limit, rounded


class Evaluator:
    """Takes steps.

    >>> evaluator = Evaluator(program, int8=True)
    >>> y = evaluator.step(x)  # x: (batch, features), or token numbers (batch,)

    With `fixed`, products of int8 weights are sums of whole numbers, as in C.
    """

    def __init__(
        self, program: Program, int8: bool = False, dtype: torch.dtype = torch.float32, fixed: bool = False
    ) -> None:
        self.program, self.int8, self.dtype, self.fixed = program, int8, dtype, fixed
        self.states: list[Tensor] | None = None
        self._arrays: dict[int, Tensor] = {}
        self._rounded: dict[int, list[Tensor]] = {}

    def step(self, x: Tensor) -> Tensor:
        found = self.values(x)
        self.states = [found[one] for one in self.program.next_states]
        return found[self.program.y]

    def values(self, x: Tensor) -> dict[Value, Tensor]:
        """All values of the next step (batch, size), which is not taken."""
        program, batch = self.program, x.shape[0]
        found: dict[Value, Tensor] = {program.x: x if program.tokens is not None else x.to(self.dtype)}
        states = self.states or [torch.zeros(batch, one.size, dtype=self.dtype) for one in program.states]
        found.update(zip(program.states, states, strict=True))
        for one in program.operations:
            _RULES[type(one)](self, one, found)
        return found

    def array(self, given: Tensor, rounding: bool = False) -> Tensor:
        """A constant in the precision of the evaluation, perhaps after rounding to int8."""
        key = id(given)
        if key not in self._arrays:
            if rounding and self.int8:
                numbers, rows, columns = (one.to(self.dtype) for one in rounded(given))
                self._arrays[key] = rows[:, None] * numbers * columns
            else:
                self._arrays[key] = given.to(self.dtype)
        return self._arrays[key]

    def rounded(self, given: Tensor) -> list[Tensor]:
        """A weight as int8 numbers, scales of its rows and of its columns."""
        if id(given) not in self._rounded:
            numbers, rows, columns = rounded(given)
            self._rounded[id(given)] = [numbers.double(), rows.to(self.dtype), columns.to(self.dtype)]
        return self._rounded[id(given)]

    def maybe(self, given: Tensor | None) -> Tensor | None:
        return None if given is None else self.array(given)


def _mat_vec(e: Evaluator, one: ops.MatVec, v: dict[Value, Tensor]) -> None:
    x, bias = torch.cat([v[part] for part in one.parts], 1), e.maybe(one.bias)
    if e.fixed and not one.weight.is_system:
        out = _fixed(e, one.weight.array, x)
        out = out if bias is None else out + bias
    else:
        out = F.linear(x, e.array(one.weight.array, rounding=not one.weight.is_system), bias)
    v[one.out] = out if one.add is None else out + v[one.add]


def _fixed(e: Evaluator, weight: Tensor, x: Tensor) -> Tensor:
    """W x with the inputs of each row of the batch as whole numbers, of which the largest is `fixed_limit`."""
    numbers, rows, columns = e.rounded(weight)
    x = x * columns
    limit = float(fixed_limit(x.shape[1]))
    largest = x.abs().amax(1, keepdim=True)
    whole = torch.where(largest > 0, torch.round(x * (limit / largest)), 0.0)
    sums = F.linear(whole.double(), numbers)  # exact
    return sums.to(e.dtype) * (largest / limit * rows)


def _remember(e: Evaluator, one: ops.Remember, v: dict[Value, Tensor]) -> None:
    groups, order, columns = one.matrix.shape
    batch, width = v[one.m].shape[0], one.channels // groups
    both = torch.cat([v[one.m], v[one.u]], 1).view(batch, columns, groups, width)
    matrix = e.array(one.matrix)
    out = torch.einsum("gok,bkgw->bogw", matrix, both)
    out = out + matrix.new_tensor(one.near_identity)[:, None] * both[:, :order]
    v[one.out] = out.flatten(1)


def _split(e: Evaluator, one: ops.Split, v: dict[Value, Tensor]) -> None:
    v.update(zip(one.pieces, v[one.x].split([piece.size for piece in one.pieces], 1), strict=True))


def _concat(e: Evaluator, one: ops.Concat, v: dict[Value, Tensor]) -> None:
    v[one.out] = torch.cat([v[part] for part in one.parts], 1)


def _apply(e: Evaluator, one: ops.Apply, v: dict[Value, Tensor]) -> None:
    options = {"dim": -1} if one.function in ("softmax", "log_softmax", "glu") else one.options
    function = getattr(torch, one.function, None) or getattr(F, one.function)
    v[one.out] = function(v[one.x], **options)


def _scale(e: Evaluator, one: ops.Scale, v: dict[Value, Tensor]) -> None:
    out = v[one.x] * e.array(one.scale)
    v[one.out] = out if one.offset is None else out + e.array(one.offset)


def _add(e: Evaluator, one: ops.Add, v: dict[Value, Tensor]) -> None:
    v[one.out] = v[one.x] + v[one.y]


def _multiply(e: Evaluator, one: ops.Multiply, v: dict[Value, Tensor]) -> None:
    v[one.out] = v[one.x] * v[one.y]


def _mix(e: Evaluator, one: ops.Mix, v: dict[Value, Tensor]) -> None:
    v[one.out] = v[one.x] + torch.sigmoid(v[one.g]) * (v[one.y] - v[one.x])


def _normalize(e: Evaluator, one: ops.Normalize, v: dict[Value, Tensor]) -> None:
    x, weight = v[one.x].unflatten(1, (-1, one.features)), e.maybe(one.weight)
    if one.centred:
        out = F.layer_norm(x, (one.features,), weight, e.maybe(one.bias), one.eps)
    else:
        out = F.rms_norm(x, (one.features,), weight, one.eps)
    v[one.out] = out.flatten(1)


def _lookup(e: Evaluator, one: ops.Lookup, v: dict[Value, Tensor]) -> None:
    v[one.out] = e.array(one.table, rounding=True)[v[one.x]]


def _taps(e: Evaluator, one: ops.Taps, v: dict[Value, Tensor]) -> None:
    v[one.out] = (v[one.x].view(-1, *one.weight.shape) * e.array(one.weight)).sum(1)


def _select(e: Evaluator, one: ops.Select, v: dict[Value, Tensor]) -> None:
    weights = v[one.weights].view(-1, one.weights.size // one.heads, one.heads, 1)
    v[one.out] = (weights * v[one.m].view(*weights.shape[:3], -1)).sum(1).flatten(1)


def _fill(e: Evaluator, one: ops.Fill, v: dict[Value, Tensor]) -> None:
    x = v[one.x]
    v[one.out] = torch.where(torch.isnan(x), 0.0 if one.held is None else v[one.held], x)


def _constant(e: Evaluator, one: ops.Constant, v: dict[Value, Tensor]) -> None:
    v[one.out] = e.array(one.array).expand(v[e.program.x].shape[0], -1)


def _attend(e: Evaluator, one: ops.Attend, v: dict[Value, Tensor]) -> None:
    steps, half = one.cos.shape
    first, second = v[one.keys].view(-1, steps, one.heads, 2, half).unbind(3)
    cos, sin = e.array(one.cos)[:, None], e.array(one.sin)[:, None]
    keys = torch.cat([first * cos - second * sin, first * sin + second * cos], -1)
    query = v[one.query].view(-1, one.heads, 2 * half)
    scores = torch.einsum("bhd,bshd->bhs", query, keys) / math.sqrt(2 * half)
    shares = scores.masked_fill(v[one.seen][:, None] == 0, -math.inf).softmax(-1)
    values = v[one.values].view(-1, steps, one.heads, 2 * half)
    v[one.out] = torch.einsum("bhs,bshd->bhd", shares, values).flatten(1)


def _count(e: Evaluator, one: ops.Count, v: dict[Value, Tensor]) -> None:
    counts = v[one.counts]
    above = (v[one.x][:, None] > e.array(one.thresholds)).flatten(1).to(counts.dtype)
    parts = [above * (counts[:, -1:] + 0.5) ** k for k in range(one.positions + 1)]
    v[one.out] = counts + torch.cat([*parts, torch.ones_like(counts[:, -1:])], 1)


def _shares(e: Evaluator, one: ops.Shares, v: dict[Value, Tensor]) -> None:
    counts, factors = v[one.counts], e.array(one.legendre)
    parts = counts[:, :-1].unflatten(1, (len(factors), -1))
    powers = counts[:, -1:] ** torch.arange(1, len(factors) + 1, device=counts.device)
    v[one.out] = (factors.to(counts.dtype) @ (parts / powers[:, :, None])).flatten(1)


_RULES: dict[type[Operation], Callable[[Evaluator, Any, dict[Value, Tensor]], None]] = {
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
