"""The fit of a forecaster, and what it chooses by the error on validation data: look-back, season, ridge, and whether
covariates help; and fits to fewer rows, for intervals and backtests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from plmu.nn.covariates import CovariateForecast
from plmu.nn.forecast import LookbackForecast
from plmu.timeseries.comparing import Chosen, Options, Summary, compared
from plmu.timeseries.effects import Effect, best_effect, effects_of
from plmu.timeseries.predictions import ForecastModel, with_options
from plmu.timeseries.ridge import ALPHAS, PULLS, ScaledSeries, best_ridge
from plmu.timeseries.season import calendar_patterns, pattern
from plmu.timeseries.series import Numbers, Piece
from plmu.timeseries.split import SCORED, Settings, Split, first_rows, order_of

_AMPLITUDES = (0.3, 3.0)  # pulls of a season's amplitude towards 1 that are tried
_FREE, _ROOM = 0.0, 100.0  # with several series the pull, and the factor by which an amplitude may exceed the largest
FOLDS = 4  # fits to fewer rows, for intervals where there are few validation rows
VALIDATED = 0.2  # share of validation rows in fits for intervals and backtests, and in the final refit
LOWER = 0.95  # error of a look-back, relative to the proposed one, below which it is taken for several columns
GAIN = 0.5  # covariates are used if they lower the error by this share, divided by the horizons in the validation rows
_TRIED = 20_000  # windows over all channels, up to which options are compared
_FITTED = 1_000_000  # windows over all channels, up to which the last fit takes every one


@dataclass(frozen=True)
class Choice:
    """Settings and options of a fit, and the models that they give."""

    settings: Settings
    options: Options
    unit: Numbers  # (channels,): the standard deviation that is 1 in the scaled series

    def best_lookback(self, data: ScaledSeries) -> Chosen:
        """The `best_model` of the proposed look-back, or of another whose error on the validation data is smaller; of
        several columns, clearly smaller."""
        choices, others = [self], self.settings.lookbacks
        for size in others:
            settings = replace(self.settings, lookback=size, order=order_of(size), theta=float(size))
            choices.append(replace(self, settings=settings))
        if not others or not data.has_validation(max(self.settings.lookback, *others)):
            return self.best_model(data)
        tried = [min(choice._tried(data, choice._options(data)), key=_error) for choice in choices]
        best = min(range(len(tried)), key=lambda place: _error(tried[place]))
        lower = LOWER if data.channels > 1 else 1.0
        best = best if _error(tried[best]) < lower * _error(tried[0]) else 0
        chosen = choices[best].best_model(data)
        errors = {choice.settings.lookback: _error(option) for choice, option in zip(choices, tried, strict=True)}
        return replace(chosen, summary=Summary(chosen.summary, lookbacks=errors))

    def best_model(self, data: ScaledSeries) -> Chosen:
        """The model with the smallest error on the validation data, over the seasons, amplitudes and penalties that the
        options leave open; refitted to all rows if they say so. Without validation data a season that was found is used
        with the last amplitude, and the median alpha."""
        options, tried = self._options(data), []
        alphas, pulls = self._penalties()
        if len(options) > 1 and data.has_validation(self.settings.lookback):
            tried = self._tried(data, options)
            options = [options[min(range(len(tried)), key=lambda place: _error(tried[place]))]]
        amplitude, shape = options[-1]
        layer = self._layer(data, amplitude, shape)
        train, valid = data.sums(layer, _FITTED)
        best = best_ridge(train, valid, alphas, pulls)
        unrefitted = model = self._in_data_units(layer, best.weight)
        if self.options.refit and valid is not None:
            again = best_ridge(data.all_sums(layer, _FITTED), valid, (best.alpha,), (best.pull,))
            model = self._in_data_units(layer, again.weight)
        summary = Summary(
            model="look-back",
            mse=best.error,
            lookback=layer.lookback,
            season=layer.season,
            amplitude=amplitude,
            calendar=amplitude is not None and len(shape) != self.settings.season,
            alpha=best.alpha,
            pull=best.pull,
            tried=tried,
        )
        return Chosen(model, unrefitted, summary)

    def _options(self, data: ScaledSeries) -> list[tuple[float | None, Tensor]]:
        """The seasonal patterns that are tried, each with a pull of its amplitude, or None for no season."""
        lookback, steps = self.settings.lookback, self.settings.season
        shape = pattern(data.past(), steps, data.start_rows) if steps else torch.zeros(0, data.channels)
        shapes = [shape] if steps and bool((shape.square().sum(0) > 0).any()) else []
        if self.options.calendar is not None and data.has_validation(lookback) and not data.relative:
            shapes += calendar_patterns(data.past(), self.options.calendar, data.start_rows)
        amplitudes = _AMPLITUDES if not data.relative else (_FREE,) if lookback >= steps else ()
        return [(None, shape), *product(amplitudes, shapes)]

    def _tried(self, data: ScaledSeries, options: Sequence[tuple[float | None, Tensor]]) -> list[dict[str, Any]]:
        """The options, with their errors on the validation data."""
        tried = []
        for amplitude, shape in options:
            train, valid = data.sums(self._layer(data, amplitude, shape), _TRIED)
            error = best_ridge(train, valid, *self._penalties()).error
            tried.append({"amplitude": amplitude, "season": 0 if amplitude is None else len(shape), "mse": error})
        return tried

    def _penalties(self) -> tuple[Sequence[float], Sequence[float]]:
        """The penalties of the ridge, and on the difference of each channel's readout from the shared one."""
        individual, alpha = self.options.individual, self.options.alpha
        pulls: Sequence[float] = PULLS if individual is None else (PULLS[1:] if individual else PULLS[:1])
        return ALPHAS if alpha is None else (alpha,), pulls

    def with_covariates(self, data: ScaledSeries, covariates: Sequence[Tensor], size: Tensor) -> Chosen:
        """The model with an effect of covariates, or one without if validation data show no clear gain; in both cases a
        `CovariateForecast`.

        Args:
            data: the series.
            covariates: of each series, (covariates, time), scaled.
            size: the scale of the covariates, (covariates,).
        """
        layer = self._layer(data, None, torch.zeros(0, data.channels))
        effect = best_effect(data, covariates, layer, self.options.lags, self.options.alpha)
        without = self.best_model(data)
        chosen = self.best_model(replace(data, effects=effects_of(effect, covariates)))
        errors = without.summary["mse"], chosen.summary["mse"]
        # The error on few horizons is uncertain, and a small gain proves nothing. Without validation data it is NaN.
        horizons = max(1.0, sum(data.validation_rows) / data.horizon)
        used = not errors[1] >= errors[0] * (1 - GAIN / horizons)
        if not used:
            chosen, effect = without, Effect(torch.zeros(data.channels, len(size), 1), 1, math.nan)
        unit = torch.ones(data.channels) if data.relative else torch.tensor(self.unit)
        weight = (effect.weight.double() * unit[:, None, None] / size[:, None]).float()

        def model(plain: ForecastModel) -> LookbackForecast:
            options: dict[str, Any] = {"lags": effect.lags, "lag_order": effect.lag_order, "relative": data.relative}
            layer = CovariateForecast(**plain.config, covariates=len(size), **options, dtype=torch.float32)
            layer.load_state_dict({**plain.state_dict(), "effect_weight": weight})
            return layer.eval()

        summary = Summary(chosen.summary, covariates=used, lags=effect.lags)
        summary |= {"mse without covariates": errors[0], "mse with covariates": errors[1]}
        return Chosen(model(chosen.model), model(chosen.unrefitted), summary, without.unrefitted)

    def _layer(self, data: ScaledSeries, amplitude: float | None, shape: Tensor) -> LookbackForecast:
        """A layer for scaled series, whose readout is still to be fitted.

        Args:
            data: the series.
            amplitude: pull of the season's amplitude towards 1; None for no season.
            shape: the season's pattern, (steps, channels).
        """
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

    def _in_data_units(self, layer: LookbackForecast, weight: Tensor) -> LookbackForecast:
        """The layer for series in the units of the data, with the readout `weight` (1 or channels, order, horizon)."""
        model = LookbackForecast(**{**layer.config, "individual": weight.shape[0] > 1}, dtype=torch.float32)
        scale = torch.tensor(self.unit, dtype=torch.float64)
        with torch.no_grad():
            model.weight.copy_(weight.mT)
            model.season_pattern.copy_(layer.season_pattern.double() * scale)
            model.prior.copy_(layer.prior.double() * scale**2)
        return model.eval()


def _error(tried: dict[str, Any]) -> float:
    return float(tried["mse"])


def standard_deviation(rows: Numbers) -> Numbers:
    """The standard deviation of each column of rows (rows, columns); 1 for constant columns."""
    spread = rows.std(axis=0)
    varies = spread > 1e-12 * np.maximum(np.abs(rows.mean(axis=0)), 1e-300)
    deviation: Numbers = np.where(varies, spread, 1.0)
    return deviation


def units_of(
    pieces: Sequence[Piece], validation_rows: Sequence[int]
) -> tuple[tuple[Numbers, Numbers], dict[str, tuple[Numbers, Numbers]]]:
    """The mean and the standard deviation (channels,) of all rows before the validation rows; and those by which each
    series is scaled, by its name: of several series their own."""
    past = [piece.values[: len(piece) - rows] for piece, rows in zip(pieces, validation_rows, strict=True)]
    together = np.concatenate(past)
    whole = together.mean(axis=0), standard_deviation(together)
    places_of: dict[str, list[int]] = {}
    for place, piece in enumerate(pieces):
        places_of.setdefault(piece.name, []).append(place)
    if len(places_of) == 1:
        return whole, {pieces[0].name: whole}
    sizes = {}
    for name, places in places_of.items():
        rows = np.concatenate([past[place] for place in places])
        if len(rows) < 2:  # all rows of this series are validation rows
            rows = np.concatenate([pieces[place].values for place in places])
        sizes[name] = (rows.mean(axis=0), standard_deviation(rows))
    return whole, sizes


def fitted_pieces(split: Split) -> tuple[list[Piece], list[int]]:
    """The rows of each piece before the test rows, if there are any, and how many of them are validation rows."""
    parts = [
        (piece.until(end), rows)
        for piece, (_, end), rows in zip(split.data.pieces, split.cuts, split.validation_rows, strict=True)
        if end > 0
    ]
    return [piece for piece, _ in parts], [rows for _, rows in parts]


def fit(split: Split, options: Options) -> tuple[Chosen, Numbers, Numbers]:
    """Fit to the rows before the test rows, with forecasts of at least 0 where the options say so. Several series are
    each scaled by a standard deviation of their own.

    Returns:
        What was chosen; and the mean and the standard deviation of each channel before the validation rows.
    """
    chosen, mean, scale = _fit(split, options)
    fitted = [piece.values[:end] for piece, (_, end) in zip(split.data.pieces, split.cuts, strict=True)]
    least = np.min([rows.min(axis=0) for rows in fitted if len(rows)], axis=0)
    above = np.full(len(least), bool(options.nonnegative)) if options.nonnegative is not None else least >= 0
    nonnegative = np.flatnonzero(above).tolist()
    chosen.summary["nonnegative"] = nonnegative
    if not nonnegative:
        return chosen, mean, scale
    model, unrefitted = (with_options(m, nonnegative=nonnegative) for m in (chosen.model, chosen.unrefitted))
    return replace(chosen, model=model, unrefitted=unrefitted), mean, scale


def _fit(split: Split, options: Options) -> tuple[Chosen, Numbers, Numbers]:
    """Fit to the rows before the test rows. Several series are each scaled by a standard deviation of their own.

    Returns:
        What was chosen; and the mean and the standard deviation of each channel before the validation rows.
    """
    settings = split.settings
    pieces, validation_rows = fitted_pieces(split)
    channels = pieces[0].values.shape[1]
    names = [piece.name for piece in pieces]
    relative = len(set(names)) > 1
    (mean, scale), sizes = units_of(pieces, validation_rows)
    means, scales = [sizes[name][0] for name in names], [sizes[name][1] for name in names]
    unit = np.max(scales, axis=0)
    scaled = [
        torch.tensor(((piece.values - level) / size).T, dtype=torch.float32)
        for piece, level, size in zip(pieces, means, scales, strict=True)
    ]
    starts = [piece.start for piece in pieces]
    data = ScaledSeries(scaled, validation_rows, starts, channels, settings.horizon, relative=relative)
    calendar = split.calendar if options.calendar is None else options.calendar
    choice = Choice(settings, options._replace(calendar=calendar), unit)
    if settings.covariates:
        covariates = [piece.covariates[: len(piece)] for piece in pieces if piece.covariates is not None]
        pairs = zip(covariates, validation_rows, strict=True)
        trained = np.concatenate([rows[: len(rows) - count] for rows, count in pairs])
        middle, size = trained.mean(axis=0), standard_deviation(trained)
        scaled = [torch.tensor(((rows - middle) / size).T, dtype=torch.float32) for rows in covariates]
        return choice.with_covariates(data, scaled, torch.tensor(size)), mean, scale
    if settings.window:
        choice = replace(choice, options=choice.options._replace(refit=options.refit is not False))
        return compared(split, options, pieces, validation_rows, data, lambda: choice.best_lookback(data)), mean, scale
    return choice.best_model(data), mean, scale


class Fold(NamedTuple):
    """A fit to the first rows of series, for tests on later rows."""

    model: ForecastModel
    split: Split  # the rows of the fit
    origins: Tensor  # of windows whose horizon follows these rows


def rolling(split: Split, options: Options, rows: list[int], folds: int) -> Iterator[Fold]:
    """Fits with the settings of `split` to a growing share, from a half, of the first `rows` of each piece. Horizons of
    a fold's origins lie between its last row and that of the next fold; folds with too few rows are left out."""
    settings = split.settings
    for share, following in pairwise(np.linspace(0.5, 1.0, folds + 1)):
        ends, after = (first_rows(split.data, rows, part) for part in (share, following))
        spans = list(zip(ends, after, strict=True))
        origins = split.windows.origins(spans, settings.least, split.horizon, SCORED // 10, settings.season)
        past = max(first_rows(split.data, ends, 1 - VALIDATED))
        if len(origins) and past - split.horizon > settings.least:
            first = split.until(ends, VALIDATED)
            refit = None if settings.window else False
            yield Fold(fit(first, options._replace(refit=refit))[0].model, first, origins)
