"""A folded model as a program: one function for each kind of `plmu.folded`, listed in `_KINDS`.

Each adds the operations of the kind's `advance` to the builder `b`, and returns the output and the next state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from plmu import folded
from plmu.exports import program as ops
from plmu.exports.builder import Builder, Lowering, NotExportable, cast, name_of
from plmu.exports.forecast import POSITION, lower_covariates, lower_forecast
from plmu.exports.pooled import lower_pooled
from plmu.exports.program import Program, Season, Value, Weight
from plmu.exports.timed import lower_timed
from plmu.exports.traced import traced
from plmu.folded import Folded
from plmu.folded.attention import rotation
from plmu.folded.functions import ACTIVATIONS, MODULES
from plmu.folded.shares import legendre
from plmu.folded.states import map_state

_ELEMENTWISE_OR_ROW = {name for name, _ in MODULES.values()} | set(ACTIVATIONS)


def lowered(model: Folded, features: int | None, tokens: int | None, int8: bool = False) -> Program:
    """The program of a folded model.

    Args:
        model: what `plmu.fold` returned for a float32 model.
        features: number of features of the input; None for token numbers.
        tokens: size of the vocabulary; None for features.
        int8: keep products of weights apart from those of Ā and B̄, which are never rounded.
    """
    dtype = model.sample_dtype or torch.float32
    start = model.initial_state(1, dtype, torch.device("cpu"))
    wide = (torch.float64, torch.int64)
    state = map_state(start, lambda leaf: Value(leaf[0].numel(), tuple(leaf.shape[1:]), leaf.dtype in wide))
    x = Value(1 if features is None else features, wide=dtype == torch.float64)
    builder = Builder(_KINDS, int8)
    y, after = builder.lower(model, x, state)
    states = tuple(_flat(state))
    kinds = tuple(builder.kinds[leaf] for leaf in states)
    seasons = tuple(Season(i, *builder.seasons[leaf]) for i, leaf in enumerate(states) if leaf in builder.seasons)
    program = Program(x, tokens, states, kinds, tuple(builder.operations), y, tuple(_flat(after)), seasons)
    if not all(bool(array.isfinite().all()) for array in program.constants):
        raise ValueError("the model has infinite or NaN weights: nothing was exported")
    return program


def _affine(b: Builder, part: folded.Affine, x: Value, state: Any) -> tuple[Value, Any]:
    return b.product(part.weight, x, bias=part.bias), None


def _scale(b: Builder, part: folded.Scale, x: Value, state: Any) -> tuple[Value, Any]:
    return b.add(ops.Scale, x.size, x, cast(part.scale), cast(part.offset)), None


def _lookup(b: Builder, part: folded.Lookup, x: Value, state: Any) -> tuple[Value, Any]:
    return b.add(ops.Lookup, part.table.shape[1], x, cast(part.table)), None


def _norm(b: Builder, part: folded.Norm, x: Value, state: Any) -> tuple[Value, Any]:
    eps = torch.finfo(torch.float32).eps if part.eps is None else part.eps
    weights = cast(part.weight), cast(part.bias)
    return b.add(ops.Normalize, x.size, x, part.features, eps, part.centred, *weights), None


def _unit(b: Builder, part: folded.Unit, x: Value, state: Any, features: int | None = None) -> tuple[Value, Any]:
    """x / √(|x|² + floor²), as an RMS norm over `features` numbers, divided by √n."""
    count = features or x.size
    weight = torch.full((count,), count**-0.5)
    return b.add(ops.Normalize, x.size, x, count, float(part.floor) ** 2 / count, False, weight), None


def _function(b: Builder, part: folded.Function, x: Value, state: Any) -> tuple[Value, Any]:
    name = part.function
    if not isinstance(name, str) or name not in _ELEMENTWISE_OR_ROW | {"prelu"}:
        shown = name if isinstance(name, str) else getattr(name, "__name__", repr(name))
        names = ", ".join(sorted(ACTIVATIONS))
        raise NotExportable(f"the function {shown} cannot be exported: use one of {names}, or a module of torch")
    options = dict(part.options)
    if name == "prelu":
        assert part.weight is not None
        name, options = "leaky_relu", {"negative_slope": float(part.weight)}
    return b.add(ops.Apply, x.size // 2 if name == "glu" else x.size, x, name, options), None


def _gate(b: Builder, part: folded.Gate, x: Value, state: Any) -> tuple[Value, Any]:
    value, gate = _halves(b, part.both, x)
    return b.add(ops.Multiply, value.size, b.each(part.activation, gate), value), None


def _carry(b: Builder, part: folded.Carry, x: Value, state: Any) -> tuple[Value, Any]:
    value, gate = _halves(b, part.both, x)
    return b.add(ops.Mix, x.size, x, b.each(part.activation, value), gate), None


def _halves(b: Builder, both: folded.Affine, x: Value) -> tuple[Value, ...]:
    """The two halves of a product."""
    half = both.weight.shape[0] // 2
    return b.split(b.product(both.weight, x, bias=both.bias), half, half)


def _linear_memory(b: Builder, part: folded.LinearMemory, x: Value, state: Any) -> tuple[Value, Any]:
    """A step that is linear up to the activation."""
    b.kinds[state] = "memory"
    out, m = _coupled(b, part, (state, x), state)
    return b.each(part.activation, out), m


def _coupled_memory(b: Builder, part: folded.CoupledMemory, x: Value, state: Any) -> tuple[Value, Any]:
    h, m = state
    b.kinds.update({h: "hidden", m: "memory"})
    out, after = _coupled(b, part, (m, h, x), m)
    out = b.each(part.activation, out)
    return out, (out, after)


def _coupled(b: Builder, part: folded.LinearMemory, inputs: tuple[Value, ...], m: Value) -> tuple[Value, Value]:
    """The output before its activation and the next m: one product, or two where only the output's may be rounded to
    int8, or only m is added."""
    size = part.memory_size
    matrix, constant = cast(part.matrix), cast(part.constant)
    outputs = matrix.shape[0] - size
    if b.int8 or part.near_identity:
        system = Weight(matrix[:size].contiguous(), True)
        added = m if part.near_identity else None
        after = b.add(ops.MatVec, size, system, inputs, constant[:size].contiguous(), added)
        return b.product(matrix[size:], *inputs, bias=constant[size:]), after
    both = b.add(ops.MatVec, size + outputs, Weight(matrix, True), inputs, constant)
    after, out = b.split(both, size, outputs)
    return out, after


def _delay(b: Builder, part: folded.Delay, x: Value, state: Any) -> tuple[Value, Any]:
    m = b.remember(part, x, state)
    return m, m


def _parallel_memory(b: Builder, part: folded.ParallelMemory, x: Value, state: Any) -> tuple[Value, Any]:
    u = b.each(part.input_activation, b.each(part.encoder, x))
    if part.gate is not None:
        u = b.add(ops.Mix, u.size, x, u, b.each(part.gate, x))
    m = b.remember(part.memory, u, state)
    if part.input_weight is None:
        out = b.product(part.readout, m, bias=part.bias)
    else:
        out = b.product(torch.cat([part.readout, part.input_weight], 1), m, x, bias=part.bias)
    return b.each(part.output_activation, out), m


def _taps(b: Builder, part: folded.Taps, x: Value, state: Any) -> tuple[Value, Any]:
    b.kinds[state] = "inputs"
    steps = b.add(ops.Concat, part.weight.numel(), (state, x))
    out = b.add(ops.Taps, x.size, steps, cast(part.weight))
    return out, b.split(steps, x.size, state.size)[1]


def _selective(b: Builder, part: folded.SelectiveMemory, x: Value, state: Any) -> tuple[Value, Any]:
    channels = part.memory.channels
    rows = part.both.weight.shape[0]
    u, weights = b.split(b.product(part.both.weight, x, bias=part.both.bias), channels, rows - channels)
    m = b.remember(part.memory, u, state)
    read = b.add(ops.Select, channels, weights, m, part.heads)
    return _over_heads(b, part.norm, read, channels // part.heads), m


def _over_heads(b: Builder, norm: Folded, x: Value, width: int) -> Value:
    """A norm over each head, of `width` features."""
    for step in norm.parts if isinstance(norm, folded.Chain) else (norm,):
        if isinstance(step, folded.Unit):
            x = _unit(b, step, x, None, width)[0]
        elif isinstance(step, folded.Scale):
            heads = x.size // width
            offset = None if step.offset is None else cast(step.offset).repeat(heads)
            x = b.add(ops.Scale, x.size, x, cast(step.scale).repeat(heads), offset)
        elif isinstance(step, folded.Norm):
            x = _norm(b, step, x, None)[0]
        else:
            raise NotExportable(f"{name_of(step)} cannot be exported as the norm of plmu.SelectiveLMU")
    return x


def _chain(b: Builder, part: folded.Chain, x: Value, state: Any) -> tuple[Value, Any]:
    if part.states is None:
        for inner in part.parts:
            x = b.each(inner, x)
        return x, None
    after: list[Any] = [None] * part.states
    for inner, place in zip(part.parts, part.places, strict=True):
        x, next_state = b.lower(inner, x, state[place])
        if next_state is not None:
            after[place] = next_state
    return x, tuple(after)


def _sum(b: Builder, part: folded.Sum, x: Value, state: Any) -> tuple[Value, Any]:
    out, after = b.lower(part.inner, x, state)
    if part.weight is not None:
        return b.product(part.weight, out, add=x), after
    return b.add(ops.Add, x.size, x, out), after


def _product(b: Builder, part: folded.Product, x: Value, state: Any) -> tuple[Value, Any]:
    out, after = b.lower(part.inner, x, state)
    return b.add(ops.Multiply, out.size, b.each(part.gate, x), out), after


def _weighted_sum(b: Builder, part: folded.WeightedSum, x: Value, state: Any) -> tuple[Value, Any]:
    after, total = [], None
    for inner, before, share in zip(part.parts, state, part.weights.tolist(), strict=True):
        x, next_state = b.lower(inner, x, before)
        after.append(next_state)
        weighed = b.add(ops.Scale, x.size, x, torch.full((x.size,), share), None)
        total = weighed if total is None else b.add(ops.Add, x.size, total, weighed)
    assert total is not None
    return total, tuple(after)


def _after(b: Builder, part: folded.After, x: Value, state: Any) -> tuple[Value, Any]:
    return b.lower(part.inner, b.each(part.first, x), state)


def _anomaly_score(b: Builder, part: folded.AnomalyScore, x: Value, state: Any) -> tuple[Value, Any]:
    """One step, traced: all of it is in float64."""
    start = part.initial_state(1, torch.float64, torch.device("cpu"))
    for name, leaf in zip(start._fields, state, strict=True):
        b.kinds[leaf] = f"what was learned: {name}"

    def step(sample: Tensor, *learned: Tensor) -> tuple[Tensor, ...]:
        out, after = part.advance(sample, type(start)(*learned))
        return out, *after

    graph = traced(step, torch.zeros(1, x.size, dtype=torch.float64), *start)
    if not any(isinstance(operation, ops.Begin) and operation.out is state[0] for operation in b.operations):
        steps = b.split(state[0], 1, state[0].size - 1)[0]  # of the clock
        state = [
            b.add_like(leaf, ops.Begin, leaf.size, leaf, steps, begin.flatten()) if leaf.size else leaf
            for leaf, begin in zip(state, start, strict=True)
        ]
    out = Value(sum(node.size for node in graph.outputs), wide=True)
    b.operations.append(ops.Traced(out, (x, *state), graph, step))
    y, *after = b.split(out, *(node.size for node in graph.outputs))
    return y, type(start)(*after)


def _continued(b: Builder, part: folded.Continued, x: Value, state: Any) -> tuple[Value, Any]:
    """The start is taken where the position's second number is 0."""
    inner, position = state
    b.kinds[position] = POSITION
    _, started = b.split(b.add(ops.Phase, 2, position, part.first, 1), 1, 1)
    starts = iter(part.start.split([leaf.size for leaf in _flat(inner)]))
    values: dict[Value, Value] = {}  # of the states of the part

    def begin(leaf: Value) -> Value:
        if not leaf.size:
            return leaf
        start = next(starts).to(leaf.dtype)
        values[leaf] = b.add_like(leaf, ops.Begin, leaf.size, leaf, started, start)
        return values[leaf]

    after = b.add_like(position, ops.Follow, 2, position, part.first)
    out, inner = b.lower(part.inner, x, _mapped(inner, begin))
    for leaf, value in values.items():
        b.kinds[leaf] = b.kinds.pop(value)
    return out, (inner, after)


def _filled(b: Builder, part: folded.Filled, x: Value, state: Any) -> tuple[Value, Any]:
    if part.missing == "zero":
        return b.lower(part.inner, b.add(ops.Fill, x.size, x, None), state)
    inner, held = state
    b.kinds[held] = "last input"
    filled = b.add(ops.Fill, x.size, x, held)
    out, inner = b.lower(part.inner, filled, inner)
    return out, (inner, filled)


def _identity(b: Builder, part: folded.Identity, x: Value, state: Any) -> tuple[Value, Any]:
    return x, None


def _shares(b: Builder, part: folded.RunningShares, x: Value, state: Any) -> tuple[Value, Any]:
    b.kinds[state] = "counts"
    after = b.add_like(state, ops.Count, state.size, x, state, cast(part.thresholds), part.positions)
    return b.add(ops.Shares, state.size - 1, after, cast(torch.tensor(legendre(part.positions)))), after


def _attention(b: Builder, part: folded.WindowAttention, x: Value, state: Any) -> tuple[Value, Any]:
    width, steps = part.width, part.window
    query, key, value = b.split(b.product(part.input_weight, x, bias=part.input_bias), width, width, width)
    keys, values, present = state
    b.kinds.update({keys: "keys", values: "values", present: "steps seen"})
    keys = b.add(ops.Concat, steps * width, (keys, key))
    values = b.add(ops.Concat, steps * width, (values, value))
    present = b.add(ops.Concat, steps, (present, b.add(ops.Constant, 1, torch.ones(1))))
    cos, sin = rotation(0, steps, width // part.heads // 2, torch.float32, torch.device("cpu"))
    cos, sin = cos.double(), sin.double()
    # Angles relative to the query, which is the last step.
    turned = cos * cos[-1] + sin * sin[-1], sin * cos[-1] - cos * sin[-1]
    mixed = b.add(ops.Attend, width, query, keys, values, present, part.heads, *map(cast, turned))
    out = b.product(part.output_weight, mixed, bias=part.output_bias)
    size = (steps - 1) * width
    next_state = (b.split(keys, width, size)[1], b.split(values, width, size)[1], b.split(present, 1, steps - 1)[1])
    return out, next_state


_KINDS: dict[type[Folded], Lowering] = {
    folded.Affine: _affine,
    folded.After: _after,
    folded.AnomalyScore: _anomaly_score,
    folded.Carry: _carry,
    folded.Chain: _chain,
    folded.Continued: _continued,
    folded.CoupledMemory: _coupled_memory,
    folded.CovariateForecast: lower_covariates,
    folded.Delay: _delay,
    folded.Filled: _filled,
    folded.Function: _function,
    folded.Gate: _gate,
    folded.Identity: _identity,
    folded.LinearMemory: _linear_memory,
    folded.Lookup: _lookup,
    folded.Norm: _norm,
    folded.ParallelMemory: _parallel_memory,
    folded.PooledForecast: lower_pooled,
    folded.Product: _product,
    folded.RunningShares: _shares,
    folded.Scale: _scale,
    folded.SelectiveMemory: _selective,
    folded.Sum: _sum,
    folded.Taps: _taps,
    folded.TimedDelay: lower_timed,
    folded.Unit: _unit,
    folded.WeightedSum: _weighted_sum,
    folded.WindowAttention: _attention,
    folded.WindowForecast: lower_forecast,
}


def _mapped(state: Any, function: Callable[[Value], Value]) -> Any:
    """A nested state with `function` of each value in its place."""
    if state is None or isinstance(state, Value):
        return None if state is None else function(state)
    parts = [_mapped(part, function) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)


def _flat(state: Any) -> list[Value]:
    """The values of a nested state, in order."""
    if state is None:
        return []
    return [state] if isinstance(state, Value) else [value for part in state for value in _flat(part)]
