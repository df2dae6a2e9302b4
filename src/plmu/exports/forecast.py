"""`WindowForecast` and `CovariateForecast` of `plmu.folded` as operations.

The window holds samples, which may be large and differ little: it is wide, and so is the forecast. Their differences
from the last sample, from which all else is computed, are float32. The phase is a float32 number, so tables of the
season are read by products with values that are 0 or 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plmu.exports import program as ops
from plmu.exports.builder import Builder, NotExportable, cast
from plmu.exports.program import Value, Weight
from plmu.folded import CovariateForecast, WindowForecast
from plmu.folded.forecast import AMPLITUDE, season_in

LARGEST = 2**26  # most elements of the readout matrix
POSITION = "number of the next step, and 1 after the first"  # a state; integers in torch


def lower_forecast(b: Builder, part: WindowForecast, x: Value, state: Any) -> tuple[Value, Any]:
    """One step of `WindowForecast`."""
    window, position = state
    _describe(b, part, window, position)
    clock, units = _Clock.of(b, part, position), _units(part)
    rows = clock.pushed(b, window, x)
    changes = b.add(ops.Changes, rows.size, rows, x, 1 / units)
    out = _readout(b, part, changes, clock, units)
    out = b.add_like(x, ops.Raise, out.size, out, x, units)
    return b.bounded(out, part.nonnegative, part.channels), (rows, clock.after)


def lower_covariates(b: Builder, part: CovariateForecast, x: Value, state: Any) -> tuple[Value, Any]:
    """One step of `CovariateForecast`: the covariates' effect is subtracted from the window, and added to the
    forecast. Effects, too, are relative to that on the last value, so that covariates may be large."""
    window, position, effects, recent = state
    _describe(b, part, window, position)
    b.kinds.update({effects: "effects of covariates", recent: "covariates"})
    channels, lookback, horizon = part.channels, part.lookback, part.horizon
    lags, count = part.lags, part.covariates
    clock, units = _Clock.of(b, part, position), _units(part)
    values, now, future = b.split(x, channels, count, count * horizon)
    recent = clock.pushed(b, recent, now)
    kernel = part.kernel().mT  # (channels, lags, covariates)
    effect = b.add_like(x, ops.Product, channels, cast(kernel.flatten(1)), (recent,))
    effects, rows = clock.pushed(b, effects, effect), clock.pushed(b, window, values)
    # The kernel for each step ahead, over the rows of recent and future covariates.
    reach = torch.zeros(horizon, channels, lags + horizon, count, dtype=torch.float64)
    for step in range(horizon):
        reach[step, :, step + 1 : step + 1 + lags] = kernel
    ahead = b.add_like(x, ops.Product, horizon * channels, cast(reach.flatten(2).flatten(0, 1)), (recent, future))
    changes = b.add(ops.Changes, rows.size, rows, values, 1 / units)
    factor = torch.ones(channels) if part.relative else 1 / units
    past, ahead = (b.add(ops.Changes, value.size, value, effect, factor) for value in (effects, ahead))
    if part.relative:
        size = _mean(b, _absolute(b, _minus(b, changes, _mean(b, changes, channels))), channels)
        past = b.add(ops.Multiply, past.size, past, b.add(ops.Concat, past.size, (size,) * lookback))
        ahead = b.add(ops.Multiply, ahead.size, ahead, b.add(ops.Concat, ahead.size, (size,) * horizon))
    unexplained = b.add(ops.Add, rows.size, changes, _negative(b, past))
    out = b.add(ops.Add, ahead.size, _readout(b, part, unexplained, clock, units), ahead)
    out = b.add_like(x, ops.Raise, out.size, out, values, units)
    return b.bounded(out, part.nonnegative, channels), (rows, clock.after, effects, recent)


def _describe(b: Builder, part: WindowForecast, window: Value, position: Value) -> None:
    """Say what these states are, and with which phase a sequence begins."""
    b.kinds.update({window: "inputs", position: POSITION})
    if part.season:
        b.seasons[position] = (part.season, part.phase)


def _units(part: WindowForecast) -> Tensor:
    """The units (channels,) of changes in float32: the size of the season to a power of two, whose squares are numbers
    then; 1 without a season."""
    if not part.season:
        return torch.ones(part.channels, dtype=torch.float64)
    largest = part.season_pattern.abs().amax(0)
    return torch.where(largest > 0, largest.log2().round().exp2(), 1.0)


@dataclass(frozen=True)
class _Clock:
    """The phase of a step in the season. `started` is 0 at a sequence's first step, else 1."""

    started: Value
    phase: Value  # of this step
    after: Value  # the position after it

    @classmethod
    def of(cls, b: Builder, part: WindowForecast, position: Value) -> _Clock:
        """The clock of a step, from the position before it."""
        phase, started = b.split(b.add(ops.Phase, 2, position, part.phase, max(part.season, 1)), 1, 1)
        return cls(started, phase, b.add_like(position, ops.Follow, 2, position, part.phase))

    def pushed(self, b: Builder, rows: Value, row: Value) -> Value:
        """Rows without the oldest and with a new one at the end; the first row fills all of them."""
        return b.add_like(rows, ops.Push, rows.size, rows, row, self.started)


def _readout(b: Builder, part: WindowForecast, changes: Value, clock: _Clock, units: Tensor) -> Value:
    """The forecast (horizon · channels) from the rows of a window (lookback · channels), both relative to the last row
    and in these units."""
    channels, lookback, horizon = part.channels, part.lookback, part.horizon
    readouts = _read(part)
    if readouts.numel() > LARGEST:
        raise NotExportable(
            f"a forecast of {horizon} steps of {channels} channels from {lookback} is too large to export"
        )
    added = None
    if part.season:
        # The season's pattern times its amplitude is subtracted from the window, and added to the forecast.
        amplitude, past, ahead = _seasonal(b, part, changes, clock.phase, units)
        present = b.add(ops.Multiply, past.size, past, b.add(ops.Concat, past.size, (amplitude,) * lookback))
        changes = b.add(ops.Add, past.size, changes, _negative(b, present))
        added = b.add(ops.Multiply, ahead.size, ahead, b.add(ops.Concat, ahead.size, (amplitude,) * horizon))
    if channels == 1:
        return b.product(readouts[0], changes, add=added)
    # Products of each channel alone, so that NaN stays in it.
    rows = b.add(ops.Transpose, changes.size, changes, lookback)
    if len(part.weight) == 1:
        forecasts = b.products(readouts[0], rows, channels)
    else:
        apart = b.split(rows, *[lookback] * channels)
        forecasts = b.add(ops.Concat, horizon * channels, tuple(map(b.product, readouts, apart)))
    out = b.add(ops.Transpose, forecasts.size, forecasts, channels)
    return out if added is None else b.add(ops.Add, out.size, out, added)


def _seasonal(
    b: Builder, part: WindowForecast, changes: Value, phase: Value, units: Tensor
) -> tuple[Value, Value, Value]:
    """The season's amplitude in a window (channels,), and its pattern in the window and ahead, both relative to the
    last step and in these units."""
    channels, lookback, horizon = part.channels, part.lookback, part.horizon
    shape, prior = part.season_pattern / units, part.prior / units.square()
    pattern = _around(b, shape, phase, lookback - 1, horizon)
    past, ahead = b.split(pattern, lookback * channels, horizon * channels)
    last = past if lookback == 1 else b.split(past, past.size - channels, channels)[1]
    power = season_in(shape, torch.arange(part.season), part.taps, horizon).power[..., 0]
    windows = torch.arange(part.season)[:, None] + torch.arange(1 - lookback, 1)
    means = shape[windows % part.season].mean(1)
    factor, mean = b.split(_around(b, torch.cat([1 / (power + prior), means], 1), phase, 0, 0), channels, channels)
    fits = b.add(ops.Multiply, changes.size, changes, _minus(b, past, mean))
    total = b.add(ops.Taps, channels, fits, torch.ones(lookback, channels))
    agreement = b.add(ops.Scale, channels, total, torch.ones(channels), cast(prior))
    raw = b.add(ops.Multiply, channels, agreement, factor)
    # Between 0 and the largest amplitude: relu(raw) − relu(raw − largest).
    ones = torch.ones(channels)
    beyond = _positive(b, b.add(ops.Scale, channels, raw, ones, -AMPLITUDE * ones))
    amplitude = b.add(ops.Add, channels, _positive(b, raw), _negative(b, beyond))
    return amplitude, _minus(b, past, last), _minus(b, ahead, last)


def _read(part: WindowForecast) -> Tensor:
    """The weights of a window's values, relative to the last, in the forecast: (channels, horizon, lookback)."""
    taps = part.taps.clone()
    taps[-1] = 0.0  # the last value is the level
    return torch.einsum("lo,cho->chl", taps, part.weight.expand(part.channels, -1, -1))


def _select(b: Builder, first: Value, x: Value, second: Value, y: Value) -> Value:
    """first · x + second · y, for numbers that are 0 or 1: exact."""
    ones = torch.ones(x.size, 1)
    parts = [
        b.add(ops.Multiply, x.size, b.add(ops.MatVec, x.size, Weight(ones, True), (selector,)), value)
        for selector, value in ((first, x), (second, y))
    ]
    return b.add(ops.Add, x.size, *parts)


def _around(b: Builder, table: Tensor, phase: Value, before: int, after: int) -> Value:
    """The rows of a periodic table (season, numbers) from `before` rows before the phase to `after` rows after it,
    flat.

    Phases are divided into blocks of a power of two. One product chooses the rows that any phase of the block needs;
    these are shifted by the offset of the phase in the block, bit by bit. A matrix with all rows for each phase would
    take megabytes for a year of days.
    """
    season, numbers = table.shape
    bits = season.bit_length() // 2
    block, count = 1 << bits, before + 1 + after
    blocks = -(-season // block)
    first = torch.arange(blocks)[:, None] * block - before
    needed = table[(first + torch.arange(block - 1 + count)) % season].flatten(1)  # (blocks, rows · numbers)
    starts = block * torch.arange(1.0, blocks)
    offset = phase
    if blocks == 1:
        rows = b.add(ops.Constant, needed.shape[1], cast(needed[0]))
    else:
        reached = _at_least(b, phase, starts)
        steps = torch.eye(blocks)[:, 1:] - torch.eye(blocks)[:, :-1]  # pick the last block that is reached
        chosen = b.add(ops.MatVec, blocks, Weight(steps, True), (reached,), torch.eye(blocks)[0])
        rows = b.add(ops.MatVec, needed.shape[1], Weight(cast(needed.mT), True), (chosen,))
        back = torch.full((1, blocks - 1), -float(block))
        offset = b.add(ops.MatVec, 1, Weight(back, True), (reached,), None, phase)
    for bit in reversed(range(bits)):
        size = 1 << bit
        bit_set = _at_least(b, offset, torch.tensor([float(size)]))
        bit_clear = b.add(ops.Scale, 1, bit_set, -torch.ones(1), torch.ones(1))
        remaining = rows.size - size * numbers
        shifted, unshifted = b.split(rows, size * numbers, remaining)[1], b.split(rows, remaining, size * numbers)[0]
        rows = _select(b, bit_set, shifted, bit_clear, unshifted)
        offset = b.add(ops.Add, 1, offset, b.add(ops.Scale, 1, bit_set, torch.full((1,), -float(size)), None))
    return rows


def _at_least(b: Builder, number: Value, bounds: Tensor) -> Value:
    """1 for each bound that an integer reaches, else 0: relu(n − bound + 1) − relu(n − bound)."""
    ones = Weight(torch.ones(len(bounds), 1), True)
    above, below = (_positive(b, b.add(ops.MatVec, len(bounds), ones, (number,), -bounds + step)) for step in (1, 0))
    return b.add(ops.Add, len(bounds), above, _negative(b, below))


def _mean(b: Builder, rows: Value, channels: int) -> Value:
    """The mean (channels,) of rows (steps, channels)."""
    steps = rows.size // channels
    return b.add(ops.Taps, channels, rows, torch.full((steps, channels), 1 / steps))


def _minus(b: Builder, rows: Value, row: Value) -> Value:
    """Each of the rows minus `row`."""
    repeated = b.add(ops.Concat, rows.size, (row,) * (rows.size // row.size))
    return b.add(ops.Add, rows.size, rows, _negative(b, repeated))


def _absolute(b: Builder, x: Value) -> Value:
    """|x| as relu(x) + relu(−x)."""
    return b.add(ops.Add, x.size, _positive(b, x), _positive(b, _negative(b, x)))


def _positive(b: Builder, x: Value) -> Value:
    return b.add(ops.Apply, x.size, x, "relu", {})


def _negative(b: Builder, x: Value) -> Value:
    return b.add(ops.Scale, x.size, x, -torch.ones(x.size), None)
