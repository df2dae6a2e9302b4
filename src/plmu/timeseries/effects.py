"""The effect of covariates on series, in closed form.

Forecast errors of the series are regressed on the errors of the same readout on the covariates: that part of a
covariate which its own past does not explain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from plmu.nn.covariates import CovariateForecast, spread
from plmu.nn.forecast import LookbackForecast, window_taps
from plmu.timeseries.ridge import ALPHAS, ScaledSeries, best_ridge
from plmu.timeseries.windows import Part, blocks

LAGS = (1, 4, 48)  # steps of a covariate that its effect may depend on
REPEATS = 20  # the longest series must be at least this many times as long as the lags
_ORDER = 8  # the largest number of Legendre coefficients of the lags
_ALPHAS = tuple(10.0**k for k in range(-5, 3))  # of the ridge, for features of unit power
_TRIED = 20_000  # windows over all channels, to which the readout is fitted
_ROUNDS = 2  # rounds of fitting the readout to series without the effect, and then the effect to its errors
_STEPS = 24  # largest number of steps ahead whose errors the effect is fitted to
_ROWS, _WHOLE = 2**19, 10  # rows of all series that are used, and at least this many windows with horizons of each
_WINDOWS, _LEAST = 200_000, 2000  # windows, counted over channels and features, that are used; and at least of each


@dataclass(frozen=True)
class Effect:
    """Weights (channels, covariates, 1 + lag_order) of scaled covariates, and their error on validation data."""

    weight: Tensor
    lags: int
    error: float

    @property
    def lag_order(self) -> int:
        return self.weight.shape[2] - 1


def lag_order(lags: int) -> int:
    """The number of Legendre coefficients of these lags, beside the present value."""
    return min(_ORDER, lags - 1)


def best_effect(
    data: ScaledSeries, covariates: Sequence[Tensor], layer: LookbackForecast, lags: int | None, alpha: float | None
) -> Effect:
    """The effect with the smallest error on validation data; without such data, the effect of present values alone.

    Args:
        data: the series.
        covariates: of each series, (covariates, time), scaled.
        layer: the forecast layer, whose readout is fitted here without being stored.
        lags: steps of a covariate that its effect depends on; by default the number with the smallest error.
        alpha: of the ridge of the readout; by default chosen.
    """
    data, covariates = _recent(data, covariates, layer)
    longest = max(part.values.shape[1] for part in data.train())
    options = [lags] if lags is not None else [option for option in LAGS if option == 1 or option * REPEATS <= longest]
    if not data.has_validation(layer.lookback):
        options = options[:1]
    effects = [_effect(data, covariates, layer, option, alpha) for option in options]
    return min(effects, key=lambda effect: effect.error)


def effects_of(effect: Effect, covariates: Sequence[Tensor]) -> list[Tensor]:
    """The effect (channels, time) on each series."""
    channels, count = effect.weight.shape[:2]
    reader = _model(channels, count, effect.lags)
    reader.effect_weight.copy_(effect.weight)
    return [reader.effect(padded(rows, effect.lags - 1)) for rows in covariates]


def padded(rows: Tensor, count: int) -> Tensor:
    """Rows (..., time) with `count` copies of the first one before it."""
    return torch.cat([rows[..., :1].expand(*rows.shape[:-1], count), rows], dim=-1)


def _recent(
    data: ScaledSeries, covariates: Sequence[Tensor], layer: LookbackForecast
) -> tuple[ScaledSeries, Sequence[Tensor]]:
    """The last rows of long series and of their covariates, so that memory stays bounded: features of all lags are held
    at once. At most a quarter of the rows are validation rows."""
    rows = max(_ROWS // len(data.series), _WHOLE * (layer.lookback + layer.horizon))
    validation_rows = [min(count, rows // 4) for count in data.validation_rows]
    counts = zip(data.series, data.validation_rows, validation_rows, strict=True)
    ends = [series.shape[1] - (before - after) for series, before, after in counts]  # the last validation rows go
    spans = [slice(max(0, end - rows), end) for end in ends]
    recent = replace(
        data,
        series=[series[:, span] for series, span in zip(data.series, spans, strict=True)],
        validation_rows=validation_rows,
        start_rows=[start + span.start for start, span in zip(data.start_rows, spans, strict=True)],
    )
    return recent, [rows[:, span] for rows, span in zip(covariates, spans, strict=True)]


def _model(channels: int, covariates: int, lags: int) -> CovariateForecast:
    """A layer that computes effects; its own forecasts, of look-back 1, are not used."""
    model = CovariateForecast(channels, covariates, 1, 1, 1.0, 1, lags=lags, lag_order=lag_order(lags))
    return model.requires_grad_(False)


def _effect(
    data: ScaledSeries, covariates: Sequence[Tensor], layer: LookbackForecast, lags: int, alpha: float | None
) -> Effect:
    """The effect with this number of lags, by alternately fitting the readout and the effect; its ridge penalty has the
    smallest error on validation data. The arguments are those of `best_effect`."""
    count, columns = covariates[0].shape[0], 1 + lag_order(lags)
    reader = _model(count * columns, count, lags)  # a channel for each covariate and column of its weight
    reader.effect_weight.copy_(torch.eye(count * columns).reshape(count * columns, count, columns))
    features = [reader.effect(padded(rows, lags - 1)) for rows in covariates]
    stacked = [torch.cat(pair) for pair in zip(data.series, features, strict=True)]
    both = replace(data, series=stacked, channels=data.channels + count * columns, effects=None)
    parts = both.train(), both.valid(layer.lookback)
    readout = torch.zeros(layer.order, layer.horizon)
    weight = torch.zeros(data.channels, count * columns)
    for number in range(1 + _ROUNDS):
        if number:
            without = replace(data, effects=[weight @ rows for rows in features])
            train, valid = without.sums(layer, _TRIED)
            alphas = ALPHAS if alpha is None else (alpha,)
            readout = best_ridge(train, valid, alphas, (float("inf"),)).weight[0].float()
        fitted, checked = (_Errors.of(layer, readout, both, split, data.relative) for split in parts)
        solved = [fitted.solve(option) for option in _ALPHAS]
        errors = [checked.error(weights) for weights in solved] if checked.count else [float("nan")] * len(solved)
        best = errors.index(min(errors)) if checked.count else len(solved) // 2
        weight = solved[best].float()
    return Effect(weight.reshape(data.channels, count, columns), lags, errors[best])


@dataclass(frozen=True)
class _Errors:
    """Means over windows and steps ahead, for each channel: products of the features' forecast errors with each other
    and with the channel's forecast errors, and squares of the latter."""

    gram: Tensor  # (channels, features, features)
    cross: Tensor  # (channels, features)
    square: Tensor  # (channels,)
    count: int

    @classmethod
    def of(
        cls, layer: LookbackForecast, readout: Tensor, data: ScaledSeries, parts: list[Part], relative: bool
    ) -> _Errors:
        """The means over windows of `parts`, whose channels are those of the layer and then the features.

        Args:
            layer: the forecast layer.
            readout: of the layer, (order, horizon).
            data: the series with the features as further channels.
            parts: the rows from which windows are taken.
            relative: whether features are multiplied by the spread of each window.
        """
        channels, count = layer.channels, data.channels - layer.channels
        ahead = torch.linspace(0, layer.horizon - 1, min(layer.horizon, _STEPS)).round().long()
        taps = window_taps(layer._system, layer.lookback).float() @ readout[:, ahead]  # (lookback, steps)
        gram = torch.zeros(channels, count, count, dtype=torch.float64)
        cross = torch.zeros(channels, count, dtype=torch.float64)
        square = torch.zeros(channels, dtype=torch.float64)
        total = 0
        reader = _Sizes(data.channels, layer.horizon, layer.lookback)
        limit = max(_WINDOWS, _LEAST * data.channels)
        for windows, future, _ in blocks(reader, parts, data.stride(reader, parts, limit)):
            last = windows[..., -1:]
            errors = future[..., ahead] - last - (windows - last) @ taps  # (windows, channels and features, steps)
            targets, features = errors.split([channels, count], dim=1)
            moved, sought = (
                rows.movedim(1, 2).flatten(0, 1) for rows in (features, targets)
            )  # (windows and steps, ...)
            if relative:
                size = spread(windows[:, :channels]).expand(-1, -1, len(ahead)).movedim(1, 2).flatten(0, 1)
                for channel in range(channels):
                    weighted = moved * size[:, channel, None]
                    gram[channel] += weighted.mT @ weighted
                    cross[channel] += weighted.mT @ sought[:, channel]
            else:
                gram += moved.mT @ moved
                cross += sought.mT @ moved
            square += sought.square().sum(0)
            total += len(moved)
        return cls(gram / max(total, 1), cross / max(total, 1), square / max(total, 1), total)

    def solve(self, alpha: float) -> Tensor:
        """The weights (channels, features) of the ridge regression; alpha is for features of unit power."""
        scale = self.gram.diagonal(dim1=1, dim2=2).sqrt()
        scale = torch.where(scale > 1e-9, scale, torch.inf)  # what does not vary has no effect
        scaled = self.gram / scale[:, :, None] / scale[:, None]
        eye = torch.eye(scaled.shape[1], dtype=torch.float64)
        weight: Tensor = torch.linalg.solve(scaled + alpha * eye, self.cross / scale) / scale
        return weight

    def error(self, weight: Tensor) -> float:
        """The mean squared error that these weights (channels, features) leave."""
        explained = (weight * (2 * self.cross - (self.gram @ weight[:, :, None])[..., 0])).sum(1)
        return float((self.square - explained).mean())


@dataclass(frozen=True)
class _Sizes:
    """What `blocks` asks of a layer."""

    channels: int
    horizon: int
    lookback: int
    season: int = 0
    phase: int = 0
