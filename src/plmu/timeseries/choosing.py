"""What a forecaster chooses by the error on validation data: season, ridge, and whether covariates help."""

from __future__ import annotations

import math
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
from plmu.timeseries.frames import Array
from plmu.timeseries.ridge import PULLS, STRENGTHS, ScaledSeries, best_ridge
from plmu.timeseries.season import calendar_patterns, pattern, period

CHOICES = ("lookback", "order", "theta", "season", "individual", "strength", "refit", "lags")
_LOOKBACK = 336
_ORDER = 96  # the highest that is taken where none is given
_AMPLITUDES = (0.3, 3.0)  # pulls of a season's amplitude towards 1 that are tried
_FREE, _ROOM = 0.0, 100.0  # of several series it is not pulled, and may be larger than that of the largest
GAIN = 0.5  # share of the error that covariates must take away, by the number of horizons that it was measured on
_TRIED = 20_000  # windows over all channels, up to which options are compared
_FITTED = 1_000_000  # windows over all channels, up to which the last fit takes every one


def rows_to_choose_by(share: float, horizon: int, rows: int) -> int:
    """How many rows of a series are kept to choose by, a share or a number of them; none where too few would be left to
    fit."""
    wanted = round(share * rows) if share < 1 else int(share)
    return wanted if wanted >= horizon and rows - wanted >= 2 * horizon + 2 else 0


@dataclass(frozen=True)
class Chosen:
    """A model in the units of the data, the season's pattern in scaled units, and what to tell of the choice."""

    model: LookbackForecast
    pattern: Tensor  # (season, channels)
    told: dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """Options of a `Forecaster`, None where they are to be chosen; the rows of the longest series; and the units."""

    lookback: int | None
    order: int | None
    theta: float | None
    season: int | None
    individual: bool | None
    strength: float | None
    refit: bool
    lags: int | None
    calendar: str | None  # what a row is, if that is known
    longest: int
    unit: Array  # (channels,)

    def of(self, data: ScaledSeries) -> Chosen:
        """The model with the smallest error on the validation data."""
        lookback = self._lookback(data.horizon)
        steps = period(data.past()) if self.season is None else self.season
        shape = pattern(data.past(), steps, data.starts) if steps else torch.zeros(0, data.channels)
        courses: list[Tensor] = []
        shapes = [shape] if steps and bool((shape.square().sum(0) > 0).any()) else []
        pulls: Sequence[float] = PULLS if self.individual is None else (PULLS[1:] if self.individual else PULLS[:1])
        strengths = STRENGTHS if self.strength is None else (self.strength,)
        tried: list[dict[str, Any]] = []
        if self.calendar is not None and data.has_validation(lookback) and not data.relative:
            courses = calendar_patterns(data.past(), self.calendar, data.starts)
        amplitudes = _AMPLITUDES if not data.relative else (_FREE,) if lookback >= steps else ()
        options: list[tuple[float | None, Tensor]] = [(None, shape), *product(amplitudes, shapes + courses)]
        if len(options) > 1 and data.has_validation(lookback):
            for amplitude, shape in options:
                train, valid = data.sums(self._layer(data, lookback, amplitude, shape), _TRIED)
                error = best_ridge(train, valid, strengths, pulls).error
                tried.append({"amplitude": amplitude, "season": 0 if amplitude is None else len(shape), "mse": error})
            options = [options[min(range(len(tried)), key=lambda place: tried[place]["mse"])]]
        amplitude, shape = options[-1]
        layer = self._layer(data, lookback, amplitude, shape)
        train, valid = data.sums(layer, _FITTED)
        found = best_ridge(train, valid, strengths, pulls)
        if self.refit and valid is not None:
            again = best_ridge(data.all_sums(layer, _FITTED), valid, (found.strength,), (found.pull,))
            found = replace(again, error=found.error)
        told = {
            "mse": found.error,
            "lookback": lookback,
            "season": layer.season,
            "amplitude": amplitude,
            "calendar": amplitude is not None and any(shape is one for one in courses),
            "strength": found.strength,
            "pull": found.pull,
            "tried": tried,
        }
        return Chosen(self._final(layer, found.weight), shape, told)

    def with_covariates(self, data: ScaledSeries, covariates: Sequence[Tensor], size: Tensor) -> Chosen:
        """The better of a model with an effect of covariates and one without.

        Args:
            data: the series.
            covariates: (covariates, time) of each, scaled.
            size: by which they are divided, (covariates,).
        """
        layer = self._layer(data, self._lookback(data.horizon), None, torch.zeros(0, data.channels))
        effect = best_effect(data, covariates, layer, self.lags, self.strength)
        plain = self.of(data)
        found = self.of(replace(data, effects=effects_of(effect, covariates)))
        errors = plain.told["mse"], found.told["mse"]
        # Of few horizons the error is known badly, and a small gain is none. Without validation data errors are NaN.
        horizons = max(1.0, sum(data.kept) / data.horizon)
        used = not errors[1] >= errors[0] * (1 - GAIN / horizons)
        if not used:
            found, effect = plain, Effect(torch.zeros(data.channels, len(size), 1), 1, math.nan)
        model = CovariateForecast(
            **found.model.config,
            covariates=len(size),
            lags=effect.lags,
            lag_order=effect.lag_order,
            relative=data.relative,
            dtype=torch.float32,
        )
        unit = torch.ones(data.channels) if data.relative else torch.tensor(self.unit)
        weight = effect.weight.double() * unit[:, None, None] / size[:, None]
        model.load_state_dict({**found.model.state_dict(), "effect_weight": weight.float()})
        more = {"covariates": used, "lags": effect.lags, "mse without covariates": errors[0]}
        return Chosen(model.eval(), found.pattern, {**found.told, **more, "mse with covariates": errors[1]})

    def _lookback(self, horizon: int) -> int:
        room = self.longest - horizon
        if self.lookback is not None and self.lookback > room:
            raise ValueError(f"lookback must be at most {room} for so many rows and this horizon, got {self.lookback}")
        return self.lookback or max(1, min(_LOOKBACK, room // 2))

    def _layer(self, data: ScaledSeries, lookback: int, amplitude: float | None, shape: Tensor) -> LookbackForecast:
        """A layer for scaled series, without its readout."""
        season = 0 if amplitude is None else len(shape)
        order = self.order or min(_ORDER, max(lookback // 2, min(lookback, 8)))
        theta = float(lookback if self.theta is None else self.theta)
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


def standard_deviation(rows: Array) -> Array:
    """Of each column; 1 where it is constant."""
    spread = rows.std(axis=0)
    found: Array = np.where(spread > 1e-12 * np.maximum(np.abs(rows.mean(axis=0)), 1e-300), spread, 1.0)
    return found
