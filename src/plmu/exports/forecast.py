"""`LookbackForecast` as operations: the window is shifted, and the season's phase becomes a choice among tables."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plmu.exports import program as ops
from plmu.exports.builder import Builder, NotExportable, cast
from plmu.exports.program import Value, Weight
from plmu.nn.forecast import AMPLITUDE, LookbackForecast

LARGEST = 2**26  # numbers of a matrix


def lower_forecast(b: Builder, layer: LookbackForecast, x: Value, state: Any) -> tuple[Value, Any]:
    """One step. `begun` is 0 before the first step and 1 after it, so that products with it select."""
    window, place = state
    b.kinds.update({window: "inputs", place: "phase, and 1 after the first step"})
    channels, lookback, horizon = layer.channels, layer.lookback, layer.horizon
    if horizon * lookback * channels**2 > LARGEST:
        raise NotExportable(
            f"a forecast of {horizon} steps of {channels} channels from {lookback} is too large to export"
        )
    phase, begun = b.split(place, 1, 1)
    fresh = b.add(ops.Scale, 1, begun, -torch.ones(1), torch.ones(1))
    repeated = b.add(ops.Concat, window.size, (x,) * lookback)
    shifted = b.add(ops.Concat, window.size, (b.split(window, channels, window.size - channels)[1], x))
    rows = _select(b, begun, shifted, fresh, repeated)
    changes = b.add(ops.Add, rows.size, rows, b.add(ops.Scale, rows.size, repeated, -torch.ones(rows.size), None))
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
    after = b.add(ops.MatVec, 1, Weight(wrap, True), (chosen,), torch.ones(1), now)
    one = b.add(ops.Constant, 1, torch.ones(1))
    level = b.add(ops.Concat, horizon * channels, (x,) * horizon)
    with torch.no_grad():
        exact = LookbackForecast(**layer.config).double()
        exact.load_state_dict(layer.state_dict())
        matrix = torch.zeros(horizon, channels, lookback, channels, dtype=torch.float64)
        for channel, read in enumerate(_read(exact)):
            matrix[:, channel, :, channel] = read
        flat = matrix.reshape(horizon * channels, lookback * channels)
        out = b.add(ops.MatVec, horizon * channels, Weight(cast(flat), True), (changes,), None, level)
        if layer.season:
            out = b.add(ops.Add, out.size, out, _seasonal(b, exact, changes, chosen))
    return out, (rows, b.add(ops.Concat, 2, (after, one)))


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
    plain = LookbackForecast(**{**layer.config, "season": 0, "phase": 0}).double()
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
    above = b.add(ops.MatVec, size, Weight(torch.ones(size, 1), True), (number,), -places)
    below = b.add(ops.Scale, size, above, -torch.ones(size), None)
    sides = [b.add(ops.Apply, size, one, "relu", {}) for one in (above, below)]
    distance = b.add(ops.Add, size, *sides)
    return b.add(ops.Apply, size, b.add(ops.Scale, size, distance, -torch.ones(size), torch.ones(size)), "relu", {})


def _table(b: Builder, rows: Tensor, chosen: Value) -> Value:
    """The chosen row of a table (places, numbers)."""
    return b.add(ops.MatVec, rows.shape[1], Weight(cast(rows.mT), True), (chosen,))
