"""Forecasts of one's own series: ridge regression on the Delay Network's state over a look-back window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from plmu.estimators.base import Estimator
from plmu.estimators.season import aligned, pattern, period
from plmu.estimators.series import Array, Clock, Series, as_list, as_series, is_list_of_series
from plmu.estimators.windows import PULLS, STRENGTHS, Part, ScaledSeries, best_ridge, blocks
from plmu.nn.forecast import LookbackForecast
from plmu.stream import Stream

_LOOKBACK = 336
_ORDER = 96  # the highest that is taken where none is given
_AMPLITUDES = (0.3, 3.0)  # pulls of a season's amplitude towards 1 that are tried
_FREE, _ROOM = 0.0, 100.0  # of several series it is not pulled, and may be larger than that of the largest
_TRIED = 20_000  # windows over all channels, up to which options are compared
_FITTED = 1_000_000  # windows over all channels, up to which the last fit takes every one
_Each = TypeVar("_Each")


class Forecaster(Estimator):
    """Forecasts the next `horizon` steps of each channel, fitted in closed form in seconds.

    The Delay Network's final state over the last `lookback` values is read out by ridge regression (see
    `plmu.nn.LookbackForecast`). What is not given is chosen by the error on the last part of the data: the
    strength of the ridge, whether channels get readouts of their own, and whether to take out a season. After `fit`,
    `model` is an ordinary plmu model: it streams, saves and folds.

    >>> forecaster = plmu.Forecaster(horizon=24).fit(load)  # (time,) or (time, channels), or a data frame
    >>> forecaster.predict()  # the 24 steps after the last row
    >>> forecaster.predict(later)  # those after other rows
    >>> plmu.save(forecaster.model, "load.plmu")

    Args:
        horizon: how many steps ahead.
        lookback: how many steps a forecast depends on; by default 336, or half of a shorter series.
        order: how many Legendre coefficients the memory keeps; by default half of the look-back, at most 96.
        theta: the memory's window θ in steps; by default the look-back.
        season: steps of a repeated pattern, such as 24 for hourly data with a daily course; 0 for none; by default
            found in the data. It is used where it helps on the validation data.
        individual: whether each channel may have a readout of its own; by default where that helps.
        strength: of the ridge, for features of unit power; by default chosen.
        validation: how many rows at the end are kept to choose by; below 1 a share of them.
        refit: whether to fit once more on all rows with what was chosen.
    """

    model_: LookbackForecast

    def __init__(
        self,
        horizon: int = 24,
        *,
        lookback: int | None = None,
        order: int | None = None,
        theta: float | None = None,
        season: int | None = None,
        individual: bool | None = None,
        strength: float | None = None,
        validation: float = 0.2,
        refit: bool = False,
    ) -> None:
        self.horizon = horizon
        self.lookback = lookback
        self.order = order
        self.theta = theta
        self.season = season
        self.individual = individual
        self.strength = strength
        self.validation = validation
        self.refit = refit

    @property
    def model(self) -> LookbackForecast:
        """The fitted model: one sample in, the next `horizon` values out."""
        self._check_fitted()
        return self.model_

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        starts: Sequence[int] | None = None,
        validation_rows: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
    ) -> Self:
        """Fit to one series or several. Of several each counts in units of its own standard deviation.

        Args:
            X: (time,) or (time, channels), a data frame whose columns are channels, or a list of them. In a frame of
                pandas or polars, time stamps (a column, or the index) tell where later rows are in the season.
            y: not used; scikit-learn gives it.
            starts: the number of the first row of each series on a clock that they share, for the season. By default
                time stamps tell, or all begin together.
            validation_rows: how many rows at the end of each series are kept to choose by, instead of `validation`.
            names: of the series that each array is a part of. By default each is a series of its own.

        Returns:
            This estimator.

        Raises:
            ValueError: an argument is wrong, X has missing values, or it is too short.
        """
        self._check_arguments()
        series = as_list(X, "X")
        self.n_features_in_ = channels = series[0].values.shape[1]
        if series[0].names is not None:
            self.feature_names_in_ = np.array(series[0].names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self._clock = Clock.of(series[0])
        kept = [self._validation_rows(one.values.shape[0]) for one in series]
        if validation_rows is not None:
            kept = _for_each(series, validation_rows, "validation_rows")
        begun = [
            0 if self._clock is None or one.times is None else self._clock.row(int(one.times[0])) for one in series
        ]
        if starts is not None:
            begun = _for_each(series, starts, "starts")
        past = [one.values[: len(one.values) - rows] for one, rows in zip(series, kept, strict=True)]
        longest = max(len(one) for one in past)
        if longest < self.horizon + 2:
            needed = self.horizon + 2 + kept[0]
            raise ValueError(f"X must have at least {needed} rows for horizon={self.horizon}, got n_samples = "
                             f"{len(series[0].values)}")  # fmt: skip
        everything = np.concatenate(past)
        self.mean_ = everything.mean(axis=0)
        self.scale_ = _scale(everything)
        means, scales, self._unit = [self.mean_] * len(series), [self.scale_] * len(series), self.scale_
        owners = list(range(len(series))) if names is None else _for_each(series, names, "names")
        self._mixed = len(set(owners)) > 1
        if self._mixed:
            own = {}
            for name in set(owners):
                mine = [place for place, owner in enumerate(owners) if owner == name]
                rows = np.concatenate([past[place] for place in mine])
                if len(rows) < 2:  # a series that is kept whole to choose by
                    rows = np.concatenate([series[place].values for place in mine])
                own[name] = (rows.mean(axis=0), _scale(rows))
            means, scales = [own[name][0] for name in owners], [own[name][1] for name in owners]
            self._unit = np.max(scales, axis=0)
        scaled = [
            torch.tensor(((one.values - mean) / scale).T, dtype=torch.float32)
            for one, mean, scale in zip(series, means, scales, strict=True)
        ]
        data = ScaledSeries(scaled, kept, begun, channels, self.horizon)
        self.validation_ = self._choose(data, longest)
        self._last = [one.values[-self.model.lookback :].copy() for one in series]
        self._rows = [first + len(one.values) for first, one in zip(begun, series, strict=True)]
        self._given = [replace(one, values=one.values[:0], times=None) for one in series]
        self._several = is_list_of_series(X)
        return self

    def predict(self, X: Any = None, *, start: int | None = None) -> Any:
        """The `horizon` steps after the last row of X.

        Args:
            X: as in `fit`, of any length of at least one row; by default the series of `fit`. Only the last `lookback`
                rows matter.
            start: the number of X's first row, counted from the first row of `fit`: it tells where in the season X is.
                By default time stamps tell, or it is found by comparing X with the season.

        Returns:
            (horizon,) or (horizon, channels), as X is; frames for frames, a list for a list.
        """
        self._check_fitted()
        if X is None:
            pairs = zip(self._given, self._last, self._rows, strict=True)
            several = self._several
            found = [one.like(self._after(values, rows - len(values))) for one, values, rows in pairs]
        else:
            several = is_list_of_series(X)
            found = []
            for one in as_list(X, "X"):
                self._check_channels(one)
                found.append(one.like(self._after(one.values, self._start_of(one, start))))
        return found if several else found[0]

    def evaluate(self, X: Any, *, start: int | None = None) -> dict[str, float]:
        """Errors of the forecasts from every row of one series, in units of each channel's standard deviation in `fit`.

        Args:
            X: one series as in `fit`. Each window of `lookback` rows that has `horizon` rows behind it counts.
            start: as in `predict`.

        Returns:
            "mse" and "mae"; "last value mse" and "last value mae", of repeating the last value; "variance" of what was
            to be forecast; and "windows", their number.
        """
        self._check_fitted()
        one = as_series(X, "X")
        self._check_channels(one)
        layer, scale = self.model, torch.tensor(self.scale_, dtype=torch.float32)[:, None]
        part = Part(torch.tensor(one.values.T, dtype=torch.float32), self._start_of(one, start))
        if not part.windows(layer):
            needed = layer.lookback + layer.horizon
            raise ValueError(
                f"X must have at least {needed} rows for one window and its horizon, got {len(one.values)}"
            )
        sums = torch.zeros(6, dtype=torch.float64)
        with torch.no_grad():
            for windows, future, phase in blocks(layer, [part]):
                errors = (layer.read(windows, phase) - future) / scale
                naive = (windows[..., -1:] - future) / scale
                level = (future - torch.tensor(self.mean_, dtype=torch.float32)[:, None]) / scale
                values = (errors.square(), errors.abs(), naive.square(), naive.abs(), level, level.square())
                sums += torch.stack([value.double().sum() for value in values])
        count = part.windows(layer) * layer.channels * layer.horizon
        mse, mae, last_mse, last_mae, mean, square = (sums / count).tolist()
        return {
            "mse": mse,
            "mae": mae,
            "last value mse": last_mse,
            "last value mae": last_mae,
            "variance": square - mean**2,
            "windows": part.windows(layer),
        }

    def score(self, X: Any, y: Any = None, *, start: int | None = None) -> float:
        """R² of the forecasts from every row of one series: 1 is perfect, 0 is as good as the mean.

        Args:
            X: as in `evaluate`.
            y: not used; scikit-learn gives it.
            start: as in `predict`.
        """
        found = self.evaluate(X, start=start)
        return 1.0 - found["mse"] / found["variance"] if found["variance"] > 0 else float(found["mse"] == 0.0)

    def stream(self, *, start: int | None = None) -> Stream:
        """A stream of `model`: push a sample (channels,), get the next `horizon` values, flat, steps ahead first.

        Args:
            start: the number of the first sample, counted from the first row of `fit`. By default the stream continues
                the series of `fit`.
        """
        self._check_fitted()
        layer = self.model
        if start is not None:
            return Stream(self._at_phase(start))
        if self._several:
            raise ValueError("give start: the estimator was fitted to several series")
        stream = Stream(self._at_phase(self._rows[0] - len(self._last[0])))
        for row in self._last[0]:
            stream.push(torch.tensor(row, dtype=layer.weight.dtype))
        return stream

    def _at_phase(self, start: int) -> LookbackForecast:
        phase = (start + self.model.phase) % max(self.model.season, 1)
        other = LookbackForecast(**{**self.model.config, "phase": phase})
        other.load_state_dict(self.model.state_dict())
        return other.eval()

    def _after(self, values: Array, start: int) -> Array:
        """The forecast (horizon, channels) after values (time, channels), whose first row has the number `start`."""
        layer = self.model
        used = values[-layer.lookback :]
        x = torch.tensor(used, dtype=layer.weight.dtype)[None]
        with torch.no_grad():
            out, _ = self._at_phase(start + len(values) - len(used))(x)
        found: Array = out[0, -1].unflatten(0, (layer.horizon, layer.channels)).double().numpy()
        return found

    def _start_of(self, one: Series, start: int | None) -> int:
        if start is not None or not self.model.season:
            return 0 if start is None else start
        if self._clock is not None and one.times is not None:
            return self._clock.row(int(one.times[0]))
        rows = one.values[-self.model.lookback :]
        scale = _scale(rows) if self._mixed else self.scale_
        recent = torch.tensor((rows - rows.mean(axis=0)) / scale, dtype=torch.float32)
        phase = aligned(recent, self._pattern)
        return phase - (len(one.values) - len(recent))

    def _check_channels(self, one: Series) -> None:
        found = one.values.shape[1]
        if found != self.n_features_in_:
            hint = ". Reshape your data: give (time, channels)" if one.flat else ""
            raise ValueError(f"X has {found} features, but {type(self).__name__} is expecting {self.n_features_in_}"
                             f" features as input{hint}")  # fmt: skip

    def _check_arguments(self) -> None:
        for name, least in (("horizon", 1), ("lookback", 1), ("order", 1), ("season", 0)):
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= least
            if not whole and not (value is None and name != "horizon"):
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        for name in ("theta", "strength"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a positive number, got {value!r}")
        if not (math.isfinite(self.validation) and self.validation >= 0):
            raise ValueError(f"validation must be a share or a number of rows, at least 0, got {self.validation!r}")

    def _validation_rows(self, rows: int) -> int:
        """How many rows of a series are kept to choose by; none where too few would be left to fit."""
        wanted = round(self.validation * rows) if self.validation < 1 else int(self.validation)
        return wanted if wanted >= self.horizon and rows - wanted >= 2 * self.horizon + 2 else 0

    def _choose(self, data: ScaledSeries, longest: int) -> dict[str, Any]:
        """Compare options on the validation data, and set `model` to the best."""
        room = longest - self.horizon
        lookback = self.lookback or max(1, min(_LOOKBACK, room // 2))
        if self.lookback is not None and self.lookback > room:
            raise ValueError(f"lookback must be at most {room} for so many rows and this horizon, got {self.lookback}")
        steps = period(data.past()) if self.season is None else self.season
        self._pattern = pattern(data.past(), steps, data.starts) if steps else torch.zeros(0, data.channels)
        usable = steps and bool((self._pattern.square().sum(0) > 0).any())
        pulls: Sequence[float] = PULLS if self.individual is None else (PULLS[1:] if self.individual else PULLS[:1])
        strengths = STRENGTHS if self.strength is None else (self.strength,)
        tried: list[dict[str, Any]] = []
        amplitudes: Sequence[float | None] = (None,)
        if usable and not self._mixed:
            amplitudes = (None, *_AMPLITUDES)
        elif usable and lookback >= steps:  # a whole season shows how large it is
            amplitudes = (None, _FREE)
        if len(amplitudes) > 1 and data.has_validation(lookback):
            for amplitude in amplitudes:
                train, valid = data.sums(self._layer(data, lookback, amplitude, steps), _TRIED)
                tried.append({"amplitude": amplitude, "mse": best_ridge(train, valid, strengths, pulls).error})
            amplitudes = [min(tried, key=lambda one: one["mse"])["amplitude"]]
        amplitude = amplitudes[-1]
        layer = self._layer(data, lookback, amplitude, steps)
        train, valid = data.sums(layer, _FITTED)
        found = best_ridge(train, valid, strengths, pulls)
        if self.refit and valid is not None:
            again = best_ridge(data.all_sums(layer, _FITTED), valid, (found.strength,), (found.pull,))
            found = replace(again, error=found.error)
        self.model_ = self._final(layer, found.weight)
        return {
            "mse": found.error,
            "lookback": lookback,
            "season": layer.season,
            "amplitude": amplitude,
            "strength": found.strength,
            "pull": found.pull,
            "tried": tried,
        }

    def _layer(self, data: ScaledSeries, lookback: int, amplitude: float | None, steps: int) -> LookbackForecast:
        """A layer for scaled series, without its readout."""
        season = 0 if amplitude is None else steps
        order = self.order or min(_ORDER, max(lookback // 2, min(lookback, 8)))
        theta = float(lookback if self.theta is None else self.theta)
        with torch.random.fork_rng(devices=[]):
            layer = LookbackForecast(data.channels, self.horizon, order, theta, lookback, season=season)
        layer.requires_grad_(False)
        if amplitude is not None:
            power = lookback * self._pattern.square().mean(0)
            layer.season_pattern.copy_(self._pattern * (_ROOM if self._mixed else 1.0))
            layer.prior.copy_(1e-9 * _ROOM * power + 1e-30 if self._mixed else amplitude * power + 1e-9)
        return layer.float()

    def _final(self, layer: LookbackForecast, weight: Tensor) -> LookbackForecast:
        """The layer with its readout, in the units of the data."""
        model = LookbackForecast(**{**layer.config, "individual": weight.shape[0] > 1}, dtype=torch.float32)
        scale = torch.tensor(self._unit, dtype=torch.float64)
        with torch.no_grad():
            model.weight.copy_(weight.mT)
            model.season_pattern.copy_(layer.season_pattern.double() * scale)
            model.prior.copy_(layer.prior.double() * scale**2)
        return model.eval()


def _scale(rows: Array) -> Array:
    """The standard deviation of each channel; 1 where it is constant."""
    spread = rows.std(axis=0)
    found: Array = np.where(spread > 1e-12 * np.maximum(np.abs(rows.mean(axis=0)), 1e-300), spread, 1.0)
    return found


def _for_each(series: list[Series], given: Sequence[_Each], name: str) -> list[_Each]:
    if len(given) != len(series):
        raise ValueError(f"{name} must have one value for each of the {len(series)} series, got {len(given)}")
    return list(given)
