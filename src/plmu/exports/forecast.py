"""`LookbackForecast` and `CovariateForecast` as operations: windows are shifted, and the season's phase becomes a
choice among tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from plmu.exports import program as ops
from plmu.exports.builder import Builder, NotExportable, cast
from plmu.exports.program import Value, Weight
from plmu.nn.covariates import CovariateForecast
from plmu.nn.forecast import AMPLITUDE, LookbackForecast

LARGEST = 2**26  # numbers of a matrix
_Layer = TypeVar("_Layer", bound=LookbackForecast)


def lower_forecast(b: Builder, layer: LookbackForecast, x: Value, state: Any) -> tuple[Value, Any]:
    """One step."""
    window, place = state
    b.kinds.update({window: "inputs", place: "phase, and 1 after the first step"})
    clock = _Clock.of(b, layer, place)
    rows = clock.pushed(b, window, x)
    return _readout(b, layer, rows, x, clock), (rows, clock.after)


def lower_covariates(b: Builder, layer: CovariateForecast, x: Value, state: Any) -> tuple[Value, Any]:
    """One step with covariates: their effect is subtracted from the window, and added ahead."""
    window, place, effects, recent = state
    b.kinds.update({window: "inputs", place: "phase, and 1 after the first step"})
    b.kinds.update({effects: "effects of covariates", recent: "covariates"})
    channels, lookback, horizon, lags, count = (
        layer.channels,
        layer.lookback,
        layer.horizon,
        layer.lags,
        layer.covariates,
    )
    clock = _Clock.of(b, layer, place)
    values, now, future = b.split(x, channels, count, count * horizon)
    recent = clock.pushed(b, recent, now)
    with torch.no_grad():
        kernel = _exact(layer).kernel().mT  # (channels, lags, covariates)
    effect = b.add(ops.MatVec, channels, Weight(cast(kernel.flatten(1)), True), (recent,))
    effects, rows = clock.pushed(b, effects, effect), clock.pushed(b, window, values)
    # The kernel at each step ahead, over the last covariates and the next ones.
    reach = torch.zeros(horizon, channels, lags + horizon, count, dtype=torch.float64)
    for step in range(horizon):
        reach[step, :, step + 1 : step + 1 + lags] = kernel
    table = Weight(cast(reach.flatten(2).flatten(0, 1)), True)
    past, ahead = effects, b.add(ops.MatVec, horizon * channels, table, (recent, future))
    if layer.relative:
        total = torch.eye(channels).repeat(1, lookback) / lookback
        mean = b.add(ops.MatVec, channels, Weight(-total, True), (rows,))
        around = b.add(ops.Add, rows.size, rows, b.add(ops.Concat, rows.size, (mean,) * lookback))
        size = b.add(ops.MatVec, channels, Weight(total, True), (_absolute(b, around),))
        past = b.add(ops.Multiply, past.size, past, b.add(ops.Concat, past.size, (size,) * lookback))
        ahead = b.add(ops.Multiply, ahead.size, ahead, b.add(ops.Concat, ahead.size, (size,) * horizon))
    rest = b.add(ops.Add, rows.size, rows, b.add(ops.Scale, rows.size, past, -torch.ones(rows.size), None))
    last = rest if lookback == 1 else b.split(rest, rest.size - channels, channels)[1]
    out = b.add(ops.Add, ahead.size, _readout(b, layer, rest, last, clock), ahead)
    return out, (rows, clock.after, effects, recent)


@dataclass(frozen=True)
class _Clock:
    """Where in the season a step is. `begun` is 0 before the first step and 1 after it, `fresh` the opposite, so that
    products with them select."""

    begun: Value
    fresh: Value
    chosen: Value  # 1 at the phase of this step, 0 elsewhere
    after: Value  # the place after it

    @classmethod
    def of(cls, b: Builder, layer: LookbackForecast, place: Value) -> _Clock:
        phase, begun = b.split(place, 1, 1)
        fresh = b.add(ops.Scale, 1, begun, -torch.ones(1), torch.ones(1))
        season = max(layer.season, 1)
        now = b.add(
            ops.Add,
            1,
            b.add(ops.Multiply, 1, begun, phase),
            b.add(ops.Scale, 1, fresh, torch.full((1,), float(layer.phase)), None),
        )
        chosen = _one_hot(b, now, season)
        # The phase after this step: one more, and 0 after the last.
        wrap = torch.zeros(1, season)
        wrap[0, -1] = -float(season)
        following = b.add(ops.MatVec, 1, Weight(wrap, True), (chosen,), torch.ones(1), now)
        one = b.add(ops.Constant, 1, torch.ones(1))
        return cls(begun, fresh, chosen, b.add(ops.Concat, 2, (following, one)))

    def pushed(self, b: Builder, rows: Value, row: Value) -> Value:
        """Rows with a new one at the end, which fills them if it is the first."""
        repeated = b.add(ops.Concat, rows.size, (row,) * (rows.size // row.size))
        if rows.size == row.size:
            return repeated
        kept = b.split(rows, row.size, rows.size - row.size)[1]
        shifted = b.add(ops.Concat, rows.size, (kept, row))
        return _select(b, self.begun, shifted, self.fresh, repeated)


def _readout(b: Builder, layer: LookbackForecast, rows: Value, last: Value, clock: _Clock) -> Value:
    """The forecast from the rows of a window, of which `last` is the last."""
    channels, lookback, horizon = layer.channels, layer.lookback, layer.horizon
    if horizon * lookback * channels**2 > LARGEST:
        raise NotExportable(
            f"a forecast of {horizon} steps of {channels} channels from {lookback} is too large to export"
        )
    repeated = b.add(ops.Concat, rows.size, (last,) * lookback)
    changes = b.add(ops.Add, rows.size, rows, b.add(ops.Scale, rows.size, repeated, -torch.ones(rows.size), None))
    level = b.add(ops.Concat, horizon * channels, (last,) * horizon)
    with torch.no_grad():
        exact = _exact(layer)
        matrix = torch.zeros(horizon, channels, lookback, channels, dtype=torch.float64)
        for channel, read in enumerate(_read(exact)):
            matrix[:, channel, :, channel] = read
        flat = matrix.reshape(horizon * channels, lookback * channels)
        out = b.add(ops.MatVec, horizon * channels, Weight(cast(flat), True), (changes,), None, level)
        if layer.season:
            out = b.add(ops.Add, out.size, out, _seasonal(b, exact, changes, clock.chosen))
    return out


def _exact(layer: _Layer) -> _Layer:
    """The same in float64."""
    found = type(layer)(**layer.config).double()
    found.load_state_dict(layer.state_dict())
    return found


def _seasonal(b: Builder, layer: LookbackForecast, changes: Value, chosen: Value) -> Value:
    """What a season of this phase adds to the forecast: its amplitude in the window times its course, of which the
    readout of the window has seen a part."""
    channels, horizon = layer.channels, layer.horizon
    season = layer._season(torch.arange(layer.season))
    weight = layer.weight.expand(channels, -1, -1)
    course = season.ahead - torch.einsum("pco,cho->pch", season.features, weight)
    fits = b.add(ops.Multiply, changes.size, changes, _table(b, season.centred.movedim(2, 1).flatten(1), chosen))
    total = Weight(torch.eye(channels).repeat(1, layer.lookback), True)
    agreement = b.add(ops.MatVec, channels, total, (fits,), cast(layer.prior))
    raw = b.add(ops.Multiply, channels, agreement, _table(b, 1 / (season.power[..., 0] + layer.prior), chosen))
    # Between 0 and the largest amplitude: relu(raw) − relu(raw − largest).
    ones = torch.ones(channels)
    beyond = b.add(ops.Apply, channels, b.add(ops.Scale, channels, raw, ones, -AMPLITUDE * ones), "relu", {})
    amplitude = b.add(
        ops.Add, channels, b.add(ops.Apply, channels, raw, "relu", {}), b.add(ops.Scale, channels, beyond, -ones, None)
    )
    repeated = b.add(ops.Concat, horizon * channels, (amplitude,) * horizon)
    return b.add(ops.Multiply, repeated.size, repeated, _table(b, course.movedim(2, 1).flatten(1), chosen))


def _read(layer: LookbackForecast) -> Tensor:
    """The readout of each value of a window, relative to its last: (channels, horizon, lookback)."""
    plain = type(layer)(**{**layer.config, "season": 0, "phase": 0}).double()
    windows = torch.eye(layer.lookback, dtype=torch.float64)[:, None].expand(-1, layer.channels, -1).clone()
    windows[-1] = 0.0  # the last value is the level
    features = plain.standard(windows, torch.zeros(layer.lookback, dtype=torch.long)).features
    return torch.einsum("lco,cho->chl", features, layer.weight.expand(layer.channels, -1, -1))


def _select(b: Builder, first: Value, x: Value, second: Value, y: Value) -> Value:
    """first · x + second · y, for numbers that are 0 or 1: exact."""
    ones = torch.ones(x.size, 1)
    parts = [
        b.add(ops.Multiply, x.size, b.add(ops.MatVec, x.size, Weight(ones, True), (which,)), value)
        for which, value in ((first, x), (second, y))
    ]
    return b.add(ops.Add, x.size, *parts)


def _one_hot(b: Builder, number: Value, size: int) -> Value:
    """1 at the place of a whole number, 0 elsewhere: relu(1 − |number − place|)."""
    places = torch.arange(size, dtype=torch.float32)
    distance = _absolute(b, b.add(ops.MatVec, size, Weight(torch.ones(size, 1), True), (number,), -places))
    return b.add(ops.Apply, size, b.add(ops.Scale, size, distance, -torch.ones(size), torch.ones(size)), "relu", {})


def _absolute(b: Builder, x: Value) -> Value:
    other = b.add(ops.Scale, x.size, x, -torch.ones(x.size), None)
    sides = [b.add(ops.Apply, x.size, one, "relu", {}) for one in (x, other)]
    return b.add(ops.Add, x.size, *sides)


def _table(b: Builder, rows: Tensor, chosen: Value) -> Value:
    """The chosen row of a table (places, numbers)."""
    return b.add(ops.MatVec, rows.shape[1], Weight(cast(rows.mT), True), (chosen,))
