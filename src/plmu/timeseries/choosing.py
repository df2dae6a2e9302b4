"""What a forecaster chooses by the error on validation data: season, ridge, and whether covariates help."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plmu.nn.covariates import CovariateForecast
from plmu.nn.forecast import LookbackForecast
from plmu.timeseries.effects import Effect, best_effect, effects_of
from plmu.timeseries.ridge import ALPHAS, PULLS, ScaledSeries, best_ridge
from plmu.timeseries.season import calendar_patterns, pattern
from plmu.timeseries.series import Numbers
from plmu.timeseries.split import Settings

_AMPLITUDES = (0.3, 3.0)  # pulls of a season's amplitude towards 1 that are tried
_FREE, _ROOM = 0.0, 100.0  # of several series the amplitude is not pulled, and may exceed that of the largest series
GAIN = 0.5  # share of the error that covariates must take away, divided by the number of horizons it is measured on
_TRIED = 20_000  # windows over all channels, up to which options are compared
_FITTED = 1_000_000  # windows over all channels, up to which the last fit takes every one


class Summary(dict[str, Any]):
    """What was chosen, and the errors by which."""

    def __missing__(self, name: str) -> Any:
        if name != "strength":
            raise KeyError(name)
        warnings.warn("validation_['strength'] is now validation_['alpha']", DeprecationWarning, stacklevel=2)
        return self["alpha"]


@dataclass(frozen=True)
class Chosen:
    """The model in the units of the data."""

    model: LookbackForecast
    unrefitted: LookbackForecast  # the model fitted without the validation rows
    summary: Summary
    without_covariates: LookbackForecast | None = None  # fitted without the validation rows, too


@dataclass(frozen=True)
class Choice:
    """Settings of a fit and options of a `Forecaster`, None where an option is to be chosen."""

    settings: Settings
    individual: bool | None
    alpha: float | None
    refit: bool
    lags: int | None
    calendar: str | None  # what a row is, if that is known
    unit: Numbers  # of the scaled series, (channels,)

    def of(self, data: ScaledSeries) -> Chosen:
        """The model with the smallest error on the validation data."""
        lookback, steps = self.settings.lookback, self.settings.season
        shape = pattern(data.past(), steps, data.start_rows) if steps else torch.zeros(0, data.channels)
        calendars: list[Tensor] = []
        shapes = [shape] if steps and bool((shape.square().sum(0) > 0).any()) else []
        pulls: Sequence[float] = PULLS if self.individual is None else (PULLS[1:] if self.individual else PULLS[:1])
        alphas = ALPHAS if self.alpha is None else (self.alpha,)
        tried: list[dict[str, Any]] = []
        if self.calendar is not None and data.has_validation(lookback) and not data.relative:
            calendars = calendar_patterns(data.past(), self.calendar, data.start_rows)
        amplitudes = _AMPLITUDES if not data.relative else (_FREE,) if lookback >= steps else ()
        options: list[tuple[float | None, Tensor]] = [(None, shape), *product(amplitudes, shapes + calendars)]
        if len(options) > 1 and data.has_validation(lookback):
            for amplitude, shape in options:
                train, valid = data.sums(self._layer(data, amplitude, shape), _TRIED)
                error = best_ridge(train, valid, alphas, pulls).error
                tried.append({"amplitude": amplitude, "season": 0 if amplitude is None else len(shape), "mse": error})
            options = [options[min(range(len(tried)), key=lambda place: tried[place]["mse"])]]
        amplitude, shape = options[-1]
        layer = self._layer(data, amplitude, shape)
        train, valid = data.sums(layer, _FITTED)
        best = best_ridge(train, valid, alphas, pulls)
        unrefitted = model = self._final(layer, best.weight)
        if self.refit and valid is not None:
            again = best_ridge(data.all_sums(layer, _FITTED), valid, (best.alpha,), (best.pull,))
            model = self._final(layer, again.weight)
        summary = Summary(
            mse=best.error,
            lookback=lookback,
            season=layer.season,
            amplitude=amplitude,
            calendar=amplitude is not None and any(shape is option for option in calendars),
            alpha=best.alpha,
            pull=best.pull,
            tried=tried,
        )
        return Chosen(model, unrefitted, summary)

    def with_covariates(self, data: ScaledSeries, covariates: Sequence[Tensor], size: Tensor) -> Chosen:
        """The better of a model with an effect of covariates and one without.

        Args:
            data: the series.
            covariates: (covariates, time) of each, scaled.
            size: their scale, (covariates,).
        """
        layer = self._layer(data, None, torch.zeros(0, data.channels))
        effect = best_effect(data, covariates, layer, self.lags, self.alpha)
        without = self.of(data)
        chosen = self.of(replace(data, effects=effects_of(effect, covariates)))
        errors = without.summary["mse"], chosen.summary["mse"]
        # The error on few horizons is uncertain, and a small gain proves nothing. Without validation data it is NaN.
        horizons = max(1.0, sum(data.validation_rows) / data.horizon)
        used = not errors[1] >= errors[0] * (1 - GAIN / horizons)
        if not used:
            chosen, effect = without, Effect(torch.zeros(data.channels, len(size), 1), 1, math.nan)
        unit = torch.ones(data.channels) if data.relative else torch.tensor(self.unit)
        weight = (effect.weight.double() * unit[:, None, None] / size[:, None]).float()

        def model(plain: LookbackForecast) -> LookbackForecast:
            options: dict[str, Any] = {"lags": effect.lags, "lag_order": effect.lag_order, "relative": data.relative}
            layer = CovariateForecast(**plain.config, covariates=len(size), **options, dtype=torch.float32)
            layer.load_state_dict({**plain.state_dict(), "effect_weight": weight})
            return layer.eval()

        summary = Summary(chosen.summary, covariates=used, lags=effect.lags)
        summary |= {"mse without covariates": errors[0], "mse with covariates": errors[1]}
        return Chosen(model(chosen.model), model(chosen.unrefitted), summary, without.unrefitted)

    def _layer(self, data: ScaledSeries, amplitude: float | None, shape: Tensor) -> LookbackForecast:
        """A layer for scaled series, without its readout."""
        lookback, order, theta = self.settings.lookback, self.settings.order, self.settings.theta
        season = 0 if amplitude is None else len(shape)
        with torch.random.fork_rng(devices=[]):
            layer = LookbackForecast(data.channels, data.horizon, order, theta, lookback, season=season)
        layer.requires_grad_(False)
        if amplitude is not None:
            power = lookback * shape.square().mean(0)
            layer.season_pattern.copy_(shape * (_ROOM if data.relative else 1.0))
            layer.prior.copy_(1e-9 * _ROOM * power + 1e-30 if data.relative else amplitude * power + 1e-9)
        return layer.float()

    def _final(self, layer: LookbackForecast, weight: Tensor) -> LookbackForecast:
        """The layer with its readout, in the units of the data."""
        model = LookbackForecast(**{**layer.config, "individual": weight.shape[0] > 1}, dtype=torch.float32)
        scale = torch.tensor(self.unit, dtype=torch.float64)
        with torch.no_grad():
            model.weight.copy_(weight.mT)
            model.season_pattern.copy_(layer.season_pattern.double() * scale)
            model.prior.copy_(layer.prior.double() * scale**2)
        return model.eval()


def standard_deviation(rows: Numbers) -> Numbers:
    """Of each column; 1 where it is constant."""
    spread = rows.std(axis=0)
    varies = spread > 1e-12 * np.maximum(np.abs(rows.mean(axis=0)), 1e-300)
    deviation: Numbers = np.where(varies, spread, 1.0)
    return deviation
