"""The effect of covariates on series, in closed form: forecast errors of the series are regressed on the errors that
the same readout makes for the covariates, which nothing in their past foretells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from plmu.nn.covariates import CovariateForecast, spread
from plmu.nn.forecast import LookbackForecast, window_taps
from plmu.timeseries.ridge import STRENGTHS, Part, ScaledSeries, best_ridge, blocks

LAGS = (1, 4, 48)  # steps of a covariate that its effect may depend on
REPEATS = 20  # of these steps that the longest series must have
_ORDER = 8  # the most Legendre coefficients of these steps
_STRENGTHS = tuple(10.0**k for k in range(-5, 3))  # of the ridge, for features of unit power
_TRIED = 20_000  # windows over all channels, to which the readout is fitted
_ROUNDS = 2  # in which the readout is fitted to the rest, and the effect to the readout's errors
_STEPS = 24  # ahead that are looked at, at most
_ROWS, _WHOLE = 2**19, 10  # rows of all series that are looked at, and at least so many windows of each
_WINDOWS, _LEAST = 200_000, 2000  # windows over all channels and features, and at least of each


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
    """How many Legendre coefficients stand for so many lags, beside the present value."""
    return min(_ORDER, lags - 1)


def best_effect(
    data: ScaledSeries, covariates: Sequence[Tensor], layer: LookbackForecast, lags: int | None, strength: float | None
) -> Effect:
    """The effect with the smallest error on validation data; without such data, that of present values alone.

    Args:
        data: the series.
        covariates: scaled, (covariates, time) of each.
        layer: of which the readout is fitted.
        lags: how many steps of a covariate count; by default the number that is best.
        strength: of the ridge of the readout; by default chosen.
    """
    data, covariates = _recent(data, covariates, layer)
    longest = max(one.values.shape[1] for one in data.train())
    tried = [one for one in LAGS if one == 1 or one * REPEATS <= longest] if lags is None else [lags]
    if not data.has_validation(layer.lookback):
        tried = tried[:1]
    found = [_effect(data, covariates, layer, one, strength) for one in tried]
    return min(found, key=lambda one: one.error)


def effects_of(effect: Effect, covariates: Sequence[Tensor]) -> list[Tensor]:
    """The effect (channels, time) on each series."""
    channels, count = effect.weight.shape[:2]
    reader = _model(channels, count, effect.lags)
    reader.effect_weight.copy_(effect.weight)
    return [reader.effect(padded(one, effect.lags - 1)) for one in covariates]


def padded(rows: Tensor, more: int) -> Tensor:
    """Rows (..., time) with the first one repeated so many times before it."""
    return torch.cat([rows[..., :1].expand(*rows.shape[:-1], more), rows], dim=-1)


def _recent(
    data: ScaledSeries, covariates: Sequence[Tensor], layer: LookbackForecast
) -> tuple[ScaledSeries, Sequence[Tensor]]:
    """The last rows of long series, so that memory stays bounded: features of all lags are held at once."""
    rows = max(_ROWS // len(data.series), _WHOLE * (layer.lookback + layer.horizon))
    kept = [min(one, rows // 4) for one in data.kept]
    ends = [one.shape[1] - more + less for one, more, less in zip(data.series, data.kept, kept, strict=True)]
    spans = [slice(max(0, end - rows), end) for end in ends]
    series = [one[:, span] for one, span in zip(data.series, spans, strict=True)]
    starts = [start + span.start for start, span in zip(data.starts, spans, strict=True)]
    return replace(data, series=series, kept=kept, starts=starts), [
        one[:, span] for one, span in zip(covariates, spans, strict=True)
    ]


def _model(channels: int, covariates: int, lags: int) -> CovariateForecast:
    found = CovariateForecast(channels, covariates, 1, 1, 1.0, 1, lags=lags, lag_order=lag_order(lags))
    return found.requires_grad_(False)


def _effect(
    data: ScaledSeries, covariates: Sequence[Tensor], layer: LookbackForecast, lags: int, strength: float | None
) -> Effect:
    count, columns = covariates[0].shape[0], 1 + lag_order(lags)
    reader = _model(count * columns, count, lags)  # a channel for each covariate and column of its weight
    reader.effect_weight.copy_(torch.eye(count * columns).reshape(count * columns, count, columns))
    features = [reader.effect(padded(one, lags - 1)) for one in covariates]
    rows = [torch.cat(pair) for pair in zip(data.series, features, strict=True)]
    both = replace(data, series=rows, channels=data.channels + count * columns, effects=None)
    split = both.train(), both.valid(layer.lookback)
    readout = torch.zeros(layer.order, layer.horizon)
    weight = torch.zeros(data.channels, count * columns)
    for number in range(1 + _ROUNDS):
        if number:
            rest = replace(data, effects=[weight @ one for one in features])
            train, valid = rest.sums(layer, _TRIED)
            strengths = STRENGTHS if strength is None else (strength,)
            readout = best_ridge(train, valid, strengths, (float("inf"),)).weight[0].float()
        fitted, checked = (_Errors.of(layer, readout, both, parts, data.relative) for parts in split)
        solved = [fitted.solve(one) for one in _STRENGTHS]
        errors = [checked.error(one) for one in solved] if checked.count else [float("nan")] * len(solved)
        best = errors.index(min(errors)) if checked.count else len(solved) // 2
        weight = solved[best].float()
    return Effect(weight.reshape(data.channels, count, columns), lags, errors[best])


@dataclass(frozen=True)
class _Errors:
    """Means over windows and steps ahead, for each channel: errors of forecasts of the features by themselves, by those
    of the channel; and squares of the channel's."""

    gram: Tensor  # (channels, features, features)
    cross: Tensor  # (channels, features)
    square: Tensor  # (channels,)
    count: int

    @classmethod
    def of(
        cls, layer: LookbackForecast, readout: Tensor, data: ScaledSeries, parts: list[Part], relative: bool
    ) -> _Errors:
        """Over windows of the rows of `parts`, in which the features follow the channels of the layer."""
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
            errors = future[..., ahead] - last - (windows - last) @ taps  # (some, channels and features, steps)
            own, features = errors.split([channels, count], dim=1)
            moved, sought = (one.movedim(1, 2).flatten(0, 1) for one in (features, own))  # (some and steps, ...)
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

    def solve(self, strength: float) -> Tensor:
        """The ridge (channels, features), of features of unit power."""
        scale = self.gram.diagonal(dim1=1, dim2=2).sqrt()
        scale = torch.where(scale > 1e-9, scale, torch.inf)  # what does not vary has no effect
        scaled = self.gram / scale[:, :, None] / scale[:, None]
        eye = torch.eye(scaled.shape[1], dtype=torch.float64)
        found: Tensor = torch.linalg.solve(scaled + strength * eye, self.cross / scale) / scale
        return found

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
