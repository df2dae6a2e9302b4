"""The layers that `plmu.Forecaster` and `plmu.SequenceClassifier` fit, as operations of a program."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from plmu.exports import estimator_operations as more
from plmu.exports import program as ops
from plmu.exports.builder import Builder, cast
from plmu.exports.program import Value
from plmu.nn.forecast import AMPLITUDE, LookbackForecast
from plmu.nn.shares import ThresholdShares


def threshold_shares(b: Builder, layer: ThresholdShares, x: Value, state: Any) -> tuple[Value, Any]:
    b.kinds[state] = "counts"
    size = layer.output_size
    above = b.add(more.Above, size, x, cast(layer.thresholds))
    one = b.add(ops.Constant, 1, torch.ones(1))
    counts = b.add(ops.Add, size + 1, state, b.add(ops.Concat, size + 1, (above, one)))
    shares, steps = b.split(counts, size, 1)
    return b.add(more.Divide, size, shares, steps), counts


def lookback_forecast(b: Builder, layer: LookbackForecast, x: Value, state: Any) -> tuple[Value, Any]:
    """The next window is the first sample repeated, or the last one with the sample at its end. `place` is the phase
    and whether a sequence has begun."""
    window, place = state
    b.kinds.update({window: "window", place: "phase, begun"})
    channels, steps, size = layer.channels, layer.lookback, layer.lookback * layer.channels
    phase, begun = b.split(place, 1, 1)
    shifted = x if steps == 1 else b.add(ops.Concat, size, (b.split(window, channels, size - channels)[1], x))
    first = b.add(ops.Scale, 1, begun, -torch.ones(1), torch.ones(1))
    after = b.add(
        ops.Add,
        size,
        b.add(ops.Multiply, size, shifted, b.add(more.Repeat, size, begun, size)),
        b.add(ops.Multiply, size, b.add(more.Repeat, size, x, steps), b.add(more.Repeat, size, first, size)),
    )
    minus = b.add(ops.Scale, channels, x, -torch.ones(channels), None)
    changes = b.add(ops.Add, size, after, b.add(more.Repeat, size, minus, steps))
    wide = copy.deepcopy(layer).double()
    outputs = layer.horizon * channels
    read = b.add(more.PerChannel, outputs, changes, cast(wide.weight @ wide.taps().mT), channels)
    y = b.add(ops.Add, outputs, read, b.add(more.Repeat, outputs, x, layer.horizon))
    if not layer.season:
        return y, (after, b.add(ops.Constant, 2, torch.tensor([0.0, 1.0])))
    index = b.add(ops.Add, 1, phase, b.add(ops.Scale, 1, first, torch.tensor([float(layer.phase)]), None))
    table = _seasons(wide)
    row = b.add(more.RowAt, table.shape[1], index, cast(table))
    pattern, share, ahead, then = b.split(row, size, channels, outputs, 1)
    matched = b.add(ops.Select, channels, pattern, changes, channels)
    fit = b.add(ops.Scale, channels, matched, torch.ones(channels), cast(wide.prior))
    fit = b.add(ops.Multiply, channels, fit, share)
    amplitude = b.add(ops.Apply, channels, fit, "hardtanh", {"min_val": 0.0, "max_val": AMPLITUDE})
    season = b.add(ops.Multiply, outputs, b.add(more.Repeat, outputs, amplitude, layer.horizon), ahead)
    one = b.add(ops.Constant, 1, torch.ones(1))
    return b.add(ops.Add, outputs, y, season), (after, b.add(ops.Concat, 2, (then, one)))


def _seasons(layer: LookbackForecast) -> Tensor:
    """For each phase: the pattern in the window (lookback, channels), 1 / (its power + prior), what an amplitude of 1
    adds to the forecast (horizon, channels), and the next phase."""
    phases = torch.arange(layer.season)
    season = layer.seasons(phases)
    weight = layer.weight.expand(layer.channels, -1, -1)
    ahead = season.ahead - torch.einsum("pco,cho->pch", season.features, weight)
    share = 1 / (season.power[..., 0] + layer.prior)
    then = ((phases + 1) % layer.season)[:, None].double()
    return torch.cat([season.centred.mT.flatten(1), share, ahead.mT.flatten(1), then], dim=1).detach()
