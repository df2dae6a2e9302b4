"""`WindowForecast` and `CovariateForecast` of `plmu.folded` as operations.

Windows are shifted by Split and Concat. The phase is a float32 number, so tables of the season are read by products
with values that are 0 or 1.
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


def lower_forecast(b: Builder, part: WindowForecast, x: Value, state: Any) -> tuple[Value, Any]:
    """One step of `WindowForecast`."""
    window, position = state
    _describe(b, part, window, position)
    clock = _Clock.of(b, part, position)
    rows = clock.pushed(b, window, x)
    return _readout(b, part, rows, x, clock), (rows, clock.after)


def lower_covariates(b: Builder, part: CovariateForecast, x: Value, state: Any) -> tuple[Value, Any]:
    """One step of `CovariateForecast`: the covariates' effect is subtracted from the window, and added to the
    forecast."""
    window, position, effects, recent = state
    _describe(b, part, window, position)
    b.kinds.update({effects: "effects of covariates", recent: "covariates"})
    channels, lookback, horizon = part.channels, part.lookback, part.horizon
    lags, count = part.lags, part.covariates
    clock = _Clock.of(b, part, position)
    values, now, future = b.split(x, channels, count, count * horizon)
    recent = clock.pushed(b, recent, now)
    kernel = part.kernel().mT  # (channels, lags, covariates)
    effect = b.add(ops.MatVec, channels, Weight(cast(kernel.flatten(1)), True), (recent,))
    effects, rows = clock.pushed(b, effects, effect), clock.pushed(b, window, values)
    # The kernel for each step ahead, over the rows of recent and future covariates.
    reach = torch.zeros(horizon, channels, lags + horizon, count, dtype=torch.float64)
    for step in range(horizon):
        reach[step, :, step + 1 : step + 1 + lags] = kernel
    table = Weight(cast(reach.flatten(2).flatten(0, 1)), True)
    past, ahead = effects, b.add(ops.MatVec, horizon * channels, table, (recent, future))
    if part.relative:
        total = torch.eye(channels).repeat(1, lookback) / lookback
        mean = b.add(ops.MatVec, channels, Weight(-total, True), (rows,))
        around = b.add(ops.Add, rows.size, rows, b.add(ops.Concat, rows.size, (mean,) * lookback))
        size = b.add(ops.MatVec, channels, Weight(total, True), (_absolute(b, around),))
        past = b.add(ops.Multiply, past.size, past, b.add(ops.Concat, past.size, (size,) * lookback))
        ahead = b.add(ops.Multiply, ahead.size, ahead, b.add(ops.Concat, ahead.size, (size,) * horizon))
    unexplained = b.add(ops.Add, rows.size, rows, b.add(ops.Scale, rows.size, past, -torch.ones(rows.size), None))
    last = unexplained if lookback == 1 else b.split(unexplained, unexplained.size - channels, channels)[1]
    out = b.add(ops.Add, ahead.size, _readout(b, part, unexplained, last, clock), ahead)
    return out, (rows, clock.after, effects, recent)


def _describe(b: Builder, part: WindowForecast, window: Value, position: Value) -> None:
    """Say what these states are, and with which phase a sequence begins."""
    b.kinds.update({window: "inputs", position: "phase, and 1 after the first step"})
    if part.season:
        b.seasons[position] = (part.season, part.phase)


@dataclass(frozen=True)
class _Clock:
    """The phase of a step in the season. `started` is 0 at a sequence's first step, else 1, and `fresh` is 1 − started:
    products with them select."""

    started: Value
    fresh: Value
    phase: Value  # of this step
    after: Value  # the position after it: the next phase, and 1

    @classmethod
    def of(cls, b: Builder, part: WindowForecast, position: Value) -> _Clock:
        """The clock of a step, from the position before it, whose flag is 1, 0 or −1."""
        phase, flag = b.split(position, 1, 1)
        started = _positive(b, flag)
        fresh = b.add(ops.Scale, 1, started, -torch.ones(1), torch.ones(1))
        is_set = _absolute(b, flag)  # else the phase is the layer's own
        season = max(part.season, 1)
        now = b.add(
            ops.Add,
            1,
            b.add(ops.Multiply, 1, is_set, phase),
            b.add(ops.Scale, 1, is_set, torch.full((1,), -float(part.phase)), torch.full((1,), float(part.phase))),
        )
        # The next phase: now + 1, less the season at its last phase.
        last = _at_least(b, now, torch.tensor([season - 1.0]))
        following = b.add(ops.MatVec, 1, Weight(torch.full((1, 1), -float(season)), True), (last,), torch.ones(1), now)
        one = b.add(ops.Constant, 1, torch.ones(1))
        return cls(started, fresh, now, b.add(ops.Concat, 2, (following, one)))

    def pushed(self, b: Builder, rows: Value, row: Value) -> Value:
        """Rows without the oldest and with a new one at the end; the first row fills all of them."""
        repeated = b.add(ops.Concat, rows.size, (row,) * (rows.size // row.size))
        if rows.size == row.size:
            return repeated
        newer = b.split(rows, row.size, rows.size - row.size)[1]
        shifted = b.add(ops.Concat, rows.size, (newer, row))
        return _select(b, self.started, shifted, self.fresh, repeated)


def _readout(b: Builder, part: WindowForecast, rows: Value, last: Value, clock: _Clock) -> Value:
    """The forecast (horizon · channels) from the rows of a window (lookback · channels), of which `last` is the
    last."""
    channels, lookback, horizon = part.channels, part.lookback, part.horizon
    if horizon * lookback * channels**2 > LARGEST:
        raise NotExportable(
            f"a forecast of {horizon} steps of {channels} channels from {lookback} is too large to export"
        )
    changes = _minus(b, rows, last)
    level = b.add(ops.Concat, horizon * channels, (last,) * horizon)
    if part.season:
        # The season's pattern times its amplitude is subtracted from the window, and added to the forecast.
        amplitude, past, ahead = _seasonal(b, part, changes, clock.phase)
        present = b.add(ops.Multiply, past.size, past, b.add(ops.Concat, past.size, (amplitude,) * lookback))
        changes = b.add(ops.Add, past.size, changes, _negative(b, present))
        added = b.add(ops.Multiply, ahead.size, ahead, b.add(ops.Concat, ahead.size, (amplitude,) * horizon))
        level = b.add(ops.Add, level.size, level, added)
    matrix = torch.zeros(horizon, channels, lookback, channels, dtype=torch.float64)
    for channel, read in enumerate(_read(part)):
        matrix[:, channel, :, channel] = read
    flat = matrix.reshape(horizon * channels, lookback * channels)
    return b.add(ops.MatVec, horizon * channels, Weight(cast(flat), True), (changes,), None, level)


def _seasonal(b: Builder, part: WindowForecast, changes: Value, phase: Value) -> tuple[Value, Value, Value]:
    """The season's amplitude in a window (channels,), and its pattern in the window and ahead, both relative to the
    last step."""
    channels, lookback, horizon = part.channels, part.lookback, part.horizon
    pattern = _around(b, part.season_pattern, phase, lookback - 1, horizon)
    past, ahead = b.split(pattern, lookback * channels, horizon * channels)
    last = past if lookback == 1 else b.split(past, past.size - channels, channels)[1]
    total = torch.eye(channels).repeat(1, lookback)
    mean = b.add(ops.MatVec, channels, Weight(total / lookback, True), (past,))
    fits = b.add(ops.Multiply, changes.size, changes, _minus(b, past, mean))
    agreement = b.add(ops.MatVec, channels, Weight(total, True), (fits,), cast(part.prior))
    power = season_in(part.season_pattern, torch.arange(part.season), part.taps, horizon).power[..., 0]
    raw = b.add(ops.Multiply, channels, agreement, _around(b, 1 / (power + part.prior), phase, 0, 0))
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
