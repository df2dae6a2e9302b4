"""`PooledForecast` of `plmu.folded` as operations.

Each channel is forecast alone, by the same constants. All values are wide: where a series changes
little, relative to its level, its forecast change is a small difference of large features. With int8 weights, which err
by more, features are float32. Conditions are numbers, which hold above 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plmu.exports import program as ops
from plmu.exports.builder import Builder, cast
from plmu.exports.program import Value
from plmu.folded import PooledForecast
from plmu.folded.adaptive import FLOOR, Tables, options
from plmu.folded.pooled import (
    CLIP,
    CLIP_LEVEL,
    FLAT,
    HIGHEST_RATIO,
    LEAST_LEVEL,
    LOWEST,
    LOWEST_INDEX,
    NOISE,
    SLOPE,
    STILL,
    Member,
    Readout,
    has_season,
)

COUNTED = "number of the next step, and the steps in the window"  # a state; integers in torch
_ENDLESS = 1e300  # no upper bound
_WIDE = torch.float64


def lower_pooled(b: Builder, part: PooledForecast, x: Value, state: Any) -> tuple[Value, Any]:
    """One step of `PooledForecast`."""
    window, position = state
    b.kinds.update({window: "inputs", position: COUNTED})
    _, started = b.split(b.add(ops.Phase, 2, position, 0, 1), 1, 1)
    after = b.add_like(position, ops.Follow, 2, position, 0, part.window)
    rows = b.add_like(window, ops.Push, window.size, window, x, started)
    steps = _Steps.of(b, part, b.split(after, 1, 1)[1])
    if part.channels == 1:
        return b.bounded(_forecast(b, part, rows, steps), part.nonnegative, 1), (rows, after)
    series = b.split(b.add_like(rows, ops.Transpose, rows.size, rows, part.window), *[part.window] * part.channels)
    forecasts = tuple(_forecast(b, part, one_channel, steps) for one_channel in series)
    size = part.horizon * part.channels
    joined = b.add_like(rows, ops.Concat, size, forecasts)
    out = b.add_like(rows, ops.Transpose, size, joined, part.channels)
    return b.bounded(out, part.nonnegative, part.channels), (rows, after)


@dataclass(frozen=True)
class _Phases:
    """The ratios of a window by their phase, which depend on the number of steps alone."""

    matrix: Tensor  # (season, ratios): sums the ratios of each phase
    valid: Value  # 1 for each ratio that exists
    number: Value  # of each phase
    spare: Value  # residual degrees of freedom, at least 1
    usable: Value  # above 0 where there are enough ratios

    @classmethod
    def of(cls, b: Builder, size: int, season: int, count: Value) -> _Phases:
        """Those of a window of this size, for a seasonal period, from how many steps it has."""
        ratios = size - 2 * (season // 2)
        columns = torch.arange(season // 2, season // 2 + ratios)
        matrix = ((columns - size) % season == torch.arange(season)[:, None]).float()
        valid = _reached(b, count, torch.arange(size, size - ratios, -1))
        number = b.add_like(count, ops.Product, season, matrix, (valid,))
        spare = _scaled(b, _sum(b, valid), 1, -season)
        present = _scaled(b, _sum(b, _clipped(b, number, 0, 1)), 1, 0.5 - season)
        usable = _where(b, present, _scaled(b, spare, 1, 0.25 - season / 2), -1.0)
        return cls(matrix, valid, number, _where(b, usable, spare, 1.0), usable)


@dataclass(frozen=True)
class _Steps:
    """How many steps a window has, and what follows from it for all channels."""

    count: Value
    real: Value  # 1 for each value of the window that is real
    phases: dict[int, _Phases]  # by seasonal period, for those that the window is long enough for
    available: tuple[Value, ...]  # 1 for each member if there are enough steps for it

    @classmethod
    def of(cls, b: Builder, part: PooledForecast, count: Value) -> _Steps:
        size = part.window
        needed = torch.arange(size, 0, -1)  # steps for which a value is real
        available = b.split(
            _reached(b, count, torch.tensor([m.lookback for m in part.members])), *[1] * len(part.members)
        )
        periods = dict.fromkeys([part.season, *(member.season for member in part.members)])
        phases = {season: _Phases.of(b, size, season, count) for season in periods if has_season(size, season)}
        return cls(count, _reached(b, count, needed), phases, available)


def _forecast(b: Builder, part: PooledForecast, rows: Value, steps: _Steps) -> Value:
    """The forecast (horizon,) of the window (window,) of one channel."""
    window = _where(b, steps.real, rows, 0.0)
    level = b.add_like(window, ops.Divide, 1, _sum(b, _apply(b, window, "abs")), steps.count)
    adjusted: dict[int, tuple[Value, Value]] = {}  # the window without its season, and the season ahead; by period
    for season, phases in steps.phases.items():
        indices = _indices(b, season, window, level, phases)
        past = _last(b, _cycled(b, indices, window.size), window.size)
        without = b.add_like(window, ops.Divide, window.size, window, past)
        adjusted[season] = without, _first(b, _cycled(b, indices, part.horizon), part.horizon)
    # The mean of the members that are available, or the last value without its season.
    total = mean = None
    for (member, readout), share, available in zip(
        part.readouts(part.cast(part.shares)), part.shares.tolist(), steps.available, strict=True
    ):
        past, ahead = adjusted.get(member.season, (window, None))
        forecast = _member(b, member, readout, _last(b, past, member.lookback), ahead)
        forecast = _scaled(b, forecast, share)
        forecast = _where(b, _repeated(b, available, forecast.size), forecast, 0.0)
        counted = _scaled(b, available, share)
        total = counted if total is None else _plus(b, total, counted)
        mean = forecast if mean is None else _plus(b, mean, forecast)
    assert total is not None
    assert mean is not None
    past, ahead = adjusted.get(part.season, (window, None))
    fallback = _repeated(b, _last(b, past, 1), part.horizon)
    fallback = fallback if ahead is None else _times(b, fallback, ahead)
    divisor = _repeated(b, _where(b, total, total, 1.0), part.horizon)
    mean = b.add_like(mean, ops.Divide, part.horizon, mean, divisor)
    out = _where(b, _repeated(b, total, part.horizon), mean, fallback)
    # NaN from anywhere in the window: 0 · NaN, and 0 · ∞.
    return _plus(b, out, _repeated(b, _scaled(b, level, 0), part.horizon))


def _indices(b: Builder, season: int, window: Value, level: Value, phases: _Phases) -> Value:
    """The seasonal indices (season,) of a window, in order of time, of which the last is that of the last step."""
    half, ratios = season // 2, phases.valid.size
    weights = torch.ones(2 * half + 1)
    if season % 2 == 0:
        weights[0] = weights[-1] = 0.5
    sums_of = torch.zeros(ratios, window.size)
    for i in range(ratios):
        sums_of[i, i : i + len(weights)] = weights
    sums = b.add_like(window, ops.Product, ratios, sums_of, (window,))  # `season` times the moving averages
    rises = _plus(b, sums, _repeated(b, _scaled(b, level, -FLAT * season), ratios))
    middle = b.split(window, half, ratios, half)[1] if half else window
    quotient = b.add_like(sums, ops.Divide, ratios, _scaled(b, middle, season), _where(b, rises, sums, 1.0))
    ratio = _clipped(b, _where(b, rises, quotient, 1.0), 0, HIGHEST_RATIO)
    totals = b.add_like(window, ops.Product, season, phases.matrix, (_times(b, ratio, phases.valid),))
    divisor = _where(b, phases.number, phases.number, 1.0)
    means = _where(b, phases.number, b.add_like(totals, ops.Divide, season, totals, divisor), 1.0)
    scale = _where(b, phases.usable, _sum(b, means), float(season))  # `season` times the mean
    ratio, means = (
        b.add_like(value, ops.Divide, value.size, _scaled(b, value, season), _repeated(b, scale, value.size))
        for value in (ratio, means)
    )
    fitted = b.add_like(means, ops.Product, ratios, phases.matrix.mT.contiguous(), (means,))
    off, deviation = _plus(b, ratio, _scaled(b, fitted, -1)), _scaled(b, means, 1, -1)
    within = _sum(b, _times(b, _times(b, off, off), phases.valid))
    noise = _scaled(b, b.add_like(within, ops.Divide, 1, within, phases.spare), season - 1, (season - 1) * NOISE)
    between = _sum(b, _times(b, _times(b, deviation, deviation), phases.number))
    between = _clipped(b, between, (season - 1) * NOISE, _ENDLESS)
    share = _clipped(b, _scaled(b, b.add_like(noise, ops.Divide, 1, noise, between), -1, 1), 0, 1)
    share = _where(b, phases.usable, share, 0.0)
    shrunk = _times(b, deviation, _repeated(b, share, season))
    return _clipped(b, _scaled(b, shrunk, 1, 1), LOWEST_INDEX, _ENDLESS)


def _member(b: Builder, member: Member, readout: Readout, values: Value, ahead: Value | None) -> Value:
    """The forecast (horizon,) of a member from its last values (lookback,)."""
    past, horizon = member.lookback - 1, readout.weight.shape[1]
    level = _scaled(b, _sum(b, _apply(b, values, "abs")), 1 / member.lookback)
    divisor = _repeated(b, _clipped(b, level, LEAST_LEVEL, _ENDLESS), member.lookback)
    before, last = b.split(values, past, 1)
    if member.log:
        scaled = _clipped(b, b.add_like(values, ops.Divide, values.size, values, divisor), LOWEST, _ENDLESS)
        logs, lowest = b.split(_apply(b, scaled, "log"), past, 1), _scaled(b, level, LOWEST)
        changes = _plus(b, logs[0], _scaled(b, _repeated(b, logs[1], past), -1))
        last = _where(b, _plus(b, last, _scaled(b, lowest, -1)), last, lowest)
    else:
        apart = _plus(b, before, _scaled(b, _repeated(b, last, past), -1))
        changes = b.add_like(values, ops.Divide, past, apart, _first(b, divisor, past))
    if b.int8:
        changes = b.add(ops.Convert, past, changes)
    limit = member.largest_change
    change = _clipped(b, _read(b, member, readout, changes, ahead), -limit, limit)
    if not change.wide:
        change = b.add_like(values, ops.Convert, horizon, change)
    last = _repeated(b, last, horizon)
    if member.log:
        out = _times(b, last, _apply(b, change, "exp"))
    else:
        out = _plus(b, last, _times(b, _repeated(b, level, horizon), change))
    return out if ahead is None else _times(b, out, ahead)


def _read(b: Builder, member: Member, readout: Readout, changes: Value, ahead: Value | None) -> Value:
    """The forecast change (horizon,) by features, from changes relative to the last value (lookback − 1,)."""
    past, weight = member.lookback - 1, readout.weight.mT
    steps = changes
    if past > 1:
        earlier, later = b.split(changes, past - 1, 1), b.split(changes, 1, past - 1)
        rises = _plus(b, later[1], _scaled(b, earlier[0], -1))
        steps = b.add_like(changes, ops.Concat, past, (rises, earlier[1]))
    pace = _plus_exactly(b, _scaled(b, _sum(b, _apply(b, steps, "abs")), 1 / past), torch.tensor([STILL], dtype=_WIDE))
    paced = b.add_like(changes, ops.Divide, past, changes, _repeated(b, pace, past))
    parts = [_clipped(b, paced, -CLIP, CLIP)]
    if member.hidden:
        shown, shown_paced, width = changes, parts[0], member.width
        if readout.bank is not None:
            shown = b.add_like(changes, ops.Product, width, cast(readout.bank.mT), (changes,))
            shown_paced = b.add_like(changes, ops.Divide, width, shown, _repeated(b, pace, width))
            shown_paced = _clipped(b, shown_paced, -CLIP, CLIP)
        inputs = [shown_paced, _apply(b, pace, "log"), _clipped(b, shown, -CLIP_LEVEL, CLIP_LEVEL)]
        first = readout.hidden[0][0].clone()
        first[:width] /= 3
        first[width] /= 2
        first[width + 1 : 2 * width + 1] *= 3
        rounded = first.float().to(first)
        rounded[width] = first[width]  # other inputs are small where a series changes little, and so are their errors
        first = rounded
        if ahead is not None:
            apart = _scaled(b, ahead, 1, -1)
            inputs.append(apart if changes.wide else b.add(ops.Convert, ahead.size, apart))
        first = first[: sum(value.size for value in inputs)]  # without a season it is 1 ahead
        for matrix, (_, bias) in zip(
            [first, *(weight for weight, _ in readout.hidden[1:])], readout.hidden, strict=True
        ):
            inputs = [_apply(b, _product(b, matrix.mT, *inputs, bias=bias), "relu")]
        parts += inputs
    constant, of_changes, of_paced, of_pace, of_hidden = weight.split(
        [1, past, past, 1, weight.shape[1] - 2 * past - 2], 1
    )
    by_pace = _product(b, torch.cat([SLOPE * of_paced, of_hidden], 1), *parts, bias=of_pace[:, 0])
    by_pace = _times(b, by_pace, _repeated(b, pace, by_pace.size))
    change = _plus(b, _product(b, of_changes, changes, bias=constant[:, 0]), by_pace)
    if readout.tables is None:
        return change
    return _plus(b, change, _adaptive(b, member.adaptive, readout.tables, changes, pace))


def _adaptive(b: Builder, power: int, matrices: Tables, changes: Value, pace: Value) -> Value:
    """The mean of classical forecasts (horizon,), weighted by their errors within the window."""
    count = len(options())
    pairs, horizon = matrices.errors.shape[1] // count, matrices.ahead.shape[1] // count
    errors = _apply(b, _linear(b, matrices.errors.mT, changes), "abs")
    error = _linear(b, torch.eye(count).repeat_interleave(pairs, dim=1) / pairs, errors)
    paced = b.add_like(error, ops.Divide, count, error, _repeated(b, pace, count))
    logs = _apply(b, _scaled(b, paced, 1, FLOOR), "log")
    weights = _apply(b, _scaled(b, logs, -power), "exp")
    shares = b.add_like(weights, ops.Divide, count, weights, _repeated(b, _sum(b, weights), count))
    ahead = _linear(b, matrices.ahead.mT, changes)
    weighted = _times(b, ahead, _repeated(b, shares, count * horizon))
    return _linear(b, torch.eye(horizon).repeat_interleave(count, dim=1), weighted)


def _linear(b: Builder, matrix: Tensor, x: Value) -> Value:
    """A constant matrix times x, which int8 does not round."""
    return b.add_like(x, ops.Product, len(matrix), cast(matrix), (x,))


def _product(b: Builder, weight: Tensor, *parts: Value, bias: Tensor) -> Value:
    """W [parts] + bias, in the precision of the parts; with a weight that int8 may round if that is float32."""
    if not parts[0].wide:
        return b.product(weight, *parts, bias=bias)
    most, *rest = _parts_of(weight)
    out = b.add_like(parts[0], ops.Product, len(most), most, parts)
    for small in rest:
        pairs = zip(small.split([part.size for part in parts], 1), parts, strict=True)
        matrices, read = zip(*((matrix, part) for matrix, part in pairs if matrix.any()), strict=True)
        out = _plus(b, out, b.add_like(out, ops.Product, out.size, torch.cat(matrices, 1), read))
    return _plus_exactly(b, out, bias)


def _plus_exactly(b: Builder, x: Value, constants: Tensor) -> Value:
    """x + constants of float64; in float32 where x is."""
    for part in _parts_of(constants)[: 2 if x.wide else 1]:
        x = b.add_like(x, ops.Scale, x.size, x, torch.ones(x.size), part)
    return x


def _parts_of(array: Tensor) -> list[Tensor]:
    """An array of float64 as one of float32, or as the sum of two where that has too few digits."""
    most = cast(array)
    rest = cast(array - most.to(array))
    return [most, rest] if rest.any() else [most]


def _reached(b: Builder, count: Value, needed: Tensor) -> Value:
    """1 for each of these numbers of steps that there are, else 0."""
    repeated, ones = _repeated(b, count, len(needed)), torch.ones(len(needed))
    excess = b.add_like(count, ops.Scale, len(needed), repeated, ones, cast(1 - needed))
    return _clipped(b, excess, 0, 1)


def _last(b: Builder, x: Value, size: int) -> Value:
    """The last `size` numbers."""
    return x if size == x.size else b.split(x, x.size - size, size)[1]


def _first(b: Builder, x: Value, size: int) -> Value:
    """The first `size` numbers."""
    return x if size == x.size else b.split(x, size, x.size - size)[0]


def _cycled(b: Builder, indices: Value, size: int) -> Value:
    """The indices, repeated to at least `size` numbers."""
    return _repeated(b, indices, -(-size // indices.size) * indices.size)


def _repeated(b: Builder, x: Value, size: int) -> Value:
    """x again and again, to `size` numbers."""
    return x if x.size == size else b.add_like(x, ops.Repeat, size, x)


def _sum(b: Builder, x: Value) -> Value:
    """The sum of the numbers of x."""
    return b.add_like(x, ops.Product, 1, torch.ones(1, x.size), (x,))


def _scaled(b: Builder, x: Value, factor: float, offset: float = 0.0) -> Value:
    """x · factor + offset."""
    added = torch.full((x.size,), float(offset)) if offset else None
    return b.add_like(x, ops.Scale, x.size, x, torch.full((x.size,), float(factor)), added)


def _plus(b: Builder, x: Value, y: Value) -> Value:
    return b.add_like(x, ops.Add, x.size, x, y)


def _times(b: Builder, x: Value, y: Value) -> Value:
    return b.add_like(x, ops.Multiply, x.size, x, y)


def _where(b: Builder, condition: Value, x: Value, y: Value | float) -> Value:
    """x where the condition is above 0, else y."""
    return b.add_like(x, ops.Where, x.size, condition, x, y)


def _apply(b: Builder, x: Value, function: str) -> Value:
    return b.add_like(x, ops.Apply, x.size, x, function)


def _clipped(b: Builder, x: Value, low: float, high: float) -> Value:
    return b.add_like(x, ops.Apply, x.size, x, "hardtanh", {"min_val": float(low), "max_val": float(high)})
