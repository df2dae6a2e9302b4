"""Forecasts of one's own series: ridge regression on the Delay Network's state over a look-back window."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from plmu.nn.covariates import CovariateForecast
from plmu.nn.forecast import LookbackForecast
from plmu.runtime.stream import Stream
from plmu.timeseries.base import Estimator
from plmu.timeseries.choosing import CHOICES, Choice, rows_to_choose_by, standard_deviation
from plmu.timeseries.effects import padded
from plmu.timeseries.frames import (
    Array,
    Clock,
    Series,
    as_list,
    as_series,
    calendar_of,
    check_ahead,
    is_list_of_series,
    with_future,
)
from plmu.timeseries.ridge import Part, ScaledSeries, blocks
from plmu.timeseries.season import CALENDARS, aligned

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

    Covariates are columns that are known ahead, such as a holiday, a planned price or a weather forecast. They are not
    forecast. Their effect is fitted, too (see `plmu.nn.CovariateForecast`), and used where it helps on the validation
    data.

    >>> forecaster = plmu.Forecaster(horizon=24, covariates=["holiday"]).fit(frame)
    >>> forecaster.predict(frame, future=plan)  # the holidays of the next 24 rows

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
        covariates: columns that are known ahead: names in a data frame, or numbers of columns in an array.
        lags: how many steps of a covariate its effect depends on, the present one included; by default 1, 4 or 48.
        calendar: what a row is, "day", "weekday" or "week": where one series has two years of them, a course over the
            week and the year is tried, too. "none" tries none. By default the time stamps of a data frame tell.
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
        covariates: Sequence[str | int] = (),
        lags: int | None = None,
        calendar: str | None = None,
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
        self.covariates = covariates
        self.lags = lags
        self.calendar = calendar

    @property
    def _covariates(self) -> list[str | int]:
        given = self.covariates
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise ValueError(f"covariates must be a list of columns, got {given!r}")
        return list(given)

    @property
    def model(self) -> LookbackForecast:
        """The fitted model: one sample in, the next `horizon` values out. With covariates it is a
        `plmu.nn.CovariateForecast`, whose samples hold those of the next steps, too."""
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
                pandas or polars, time stamps (a column, or the index) tell where later rows are in the season. Rows at
                the end in which only covariates have values are ahead of the series.
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
        series = as_list(X, "X", self._covariates)
        channels = series[0].values.shape[1]
        self.n_features_in_ = channels + len(self._covariates)
        if series[0].columns is not None:
            self.feature_names_in_ = np.array(series[0].columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self._clock = Clock.of(series[0])
        kept = [rows_to_choose_by(self.validation, self.horizon, one.values.shape[0]) for one in series]
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
        self.scale_ = standard_deviation(everything)
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
                own[name] = (rows.mean(axis=0), standard_deviation(rows))
            means, scales = [own[name][0] for name in owners], [own[name][1] for name in owners]
            self._unit = np.max(scales, axis=0)
        scaled = [
            torch.tensor(((one.values - mean) / scale).T, dtype=torch.float32)
            for one, mean, scale in zip(series, means, scales, strict=True)
        ]
        data = ScaledSeries(scaled, kept, begun, channels, self.horizon, relative=self._mixed)
        calendar = calendar_of(series[0]) if self.calendar is None else self.calendar
        options = {name: getattr(self, name) for name in CHOICES}
        choice = Choice(**options, calendar=calendar, longest=longest, unit=self._unit)
        if len(self._covariates):
            given = [one.covariates[: len(one.values)] for one in series if one.covariates is not None]
            known = np.concatenate([rows[: len(rows) - more] for rows, more in zip(given, kept, strict=True)])
            middle, size = known.mean(axis=0), standard_deviation(known)
            scaled_known = [torch.tensor(((one - middle) / size).T, dtype=torch.float32) for one in given]
            chosen = choice.with_covariates(data, scaled_known, torch.tensor(size))
        else:
            chosen = choice.of(data)
        self.model_, self._pattern, self.validation_ = chosen.model, chosen.pattern, chosen.told
        lags = self.model.lags - 1 if isinstance(self.model, CovariateForecast) else 0
        self._last = [one.tail(self.model.lookback + lags) for one in series]
        self._rows = [first + len(one.values) for first, one in zip(begun, series, strict=True)]
        self._several = is_list_of_series(X)
        return self

    def predict(self, X: Any = None, *, start: int | None = None, future: Any = None) -> Any:
        """The `horizon` steps after the last row of X.

        Args:
            X: as in `fit`, of any length of at least one row; by default the series of `fit`. Only the last rows
                matter: `lookback` of the series, and `lags` more of the covariates.
            start: the number of X's first row, counted from the first row of `fit`: it tells where in the season X is.
                By default time stamps tell, or it is found by comparing X with the season.
            future: covariates of the next `horizon` rows or more, (time, covariates) or a data frame; a list for
                a list. By default they are in the last rows of X, in which the other columns are empty.

        Returns:
            (horizon,) or (horizon, channels), as X is; frames for frames, a list for a list.

        Raises:
            ValueError: an argument is wrong, or a covariate is not known for `horizon` rows.
        """
        self._check_fitted()
        series = self._last if X is None else as_list(X, "X", self._covariates)
        several = self._several if X is None else is_list_of_series(X)
        if future is not None:
            series = self._with_future(series, future, several)
        found = []
        for place, one in enumerate(series):
            self._check_channels(one)
            name = f"X[{place}]" if several else "X"
            if len(self._covariates):
                check_ahead(one, self.horizon, self._covariates, name)
            begun = self._rows[place] - len(one.values) if X is None else self._start_of(one, start)
            found.append(one.like(self._after(one, begun)))
        return found if several else found[0]

    def _with_future(self, series: list[Series], future: Any, several: bool) -> list[Series]:
        if not len(self._covariates):
            raise ValueError("future is for covariates: give their columns as Forecaster(covariates=...)")
        if not several:
            return [with_future(series[0], future, self._covariates, "future")]
        if not is_list_of_series(future) or len(future) != len(series):
            raise ValueError(f"future must be a list with covariates for each of the {len(series)} series")
        pairs = zip(series, future, strict=True)
        return [with_future(one, more, self._covariates, f"future[{i}]") for i, (one, more) in enumerate(pairs)]

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
        one = as_series(X, "X", self._covariates)
        self._check_channels(one)
        layer, scale = self.model, torch.tensor(self.scale_, dtype=torch.float32)[:, None]
        part = Part(torch.tensor(one.values.T, dtype=torch.float32), self._start_of(one, start))
        if not part.windows(layer):
            needed = layer.lookback + layer.horizon
            raise ValueError(
                f"X must have at least {needed} rows for one window and its horizon, got {len(one.values)}"
            )
        rest = part
        if isinstance(layer, CovariateForecast):
            rest = replace(part, effect=self._effect(layer, one)[:, : len(one.values)], relative=layer.relative)
        sums = torch.zeros(6, dtype=torch.float64)
        with torch.no_grad():
            for (windows, future, _), (seen, left, phase) in zip(
                blocks(layer, [part]), blocks(layer, [rest]), strict=True
            ):
                errors = (layer.read(seen, phase) - left) / scale  # those of the rest are those of the series
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
        one = self._last[0]
        stream = Stream(self._at_phase(self._rows[0] - len(one.values)))
        for row in range(len(one.values)):
            sample = one.values[row]
            if one.covariates is not None:  # the state does not depend on those ahead, which may be missing
                ahead = np.minimum(np.arange(row, row + self.horizon + 1), len(one.known) - 1)
                sample = np.concatenate([sample, one.known[ahead].ravel()])
            stream.push(torch.tensor(sample, dtype=layer.weight.dtype))
        return stream

    def _at_phase(self, start: int) -> LookbackForecast:
        phase = (start + self.model.phase) % max(self.model.season, 1)
        other = type(self.model)(**{**self.model.config, "phase": phase})
        other.load_state_dict(self.model.state_dict())
        return other.eval()

    def _after(self, one: Series, start: int) -> Array:
        """The forecast (horizon, channels) after a series whose first row has the number `start`."""
        layer, last = self.model, len(one.values) - 1
        rows = torch.tensor(one.values[-layer.lookback :].T, dtype=layer.weight.dtype)
        windows = padded(rows, layer.lookback - rows.shape[1])
        phase = torch.tensor((start + last + layer.phase) % max(layer.season, 1))
        with torch.no_grad():
            if isinstance(layer, CovariateForecast):
                effect = self._effect(layer, one)[:, : last + 1 + layer.horizon]
                effect = padded(effect, max(0, layer.lookback + layer.horizon - effect.shape[1]))
                out = layer.forecast(windows, phase, effect[:, -layer.lookback - layer.horizon :])
            else:
                out = layer.read(windows, phase)
        found: Array = out.mT.double().numpy()
        return found

    def _effect(self, layer: CovariateForecast, one: Series) -> Tensor:
        """The effect of covariates on a series and as far ahead as they are known."""
        rows = torch.tensor(
            (one.known - one.known[len(one.values) - 1]).T, dtype=torch.float32
        )  # a level has no effect
        with torch.no_grad():
            return layer.effect(padded(rows, layer.lags - 1))

    def _start_of(self, one: Series, start: int | None) -> int:
        if start is not None or not self.model.season:
            return 0 if start is None else start
        if self._clock is not None and one.times is not None:
            return self._clock.row(int(one.times[0]))
        rows = one.values[-self.model.lookback :]
        if isinstance(self.model, CovariateForecast):
            effect = self._effect(self.model, one)[:, len(one.values) - len(rows) : len(one.values)]
            rows = self.model.rest(torch.tensor(rows.T), effect.double()).mT.numpy()
        scale = standard_deviation(rows) if self._mixed else self.scale_
        recent = torch.tensor((rows - rows.mean(axis=0)) / scale, dtype=torch.float32)
        phase = aligned(recent, self._pattern)
        return phase - (len(one.values) - len(recent))

    def _check_channels(self, one: Series) -> None:
        found = one.values.shape[1] + len(self._covariates)
        if found != self.n_features_in_:
            hint = ". Reshape your data: give (time, channels)" if one.flat else ""
            raise ValueError(f"X has {found} features, but {type(self).__name__} is expecting {self.n_features_in_}"
                             f" features as input{hint}")  # fmt: skip

    def _check_arguments(self) -> None:
        for name, least in (("horizon", 1), ("lookback", 1), ("order", 1), ("season", 0), ("lags", 1)):
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= least
            if not whole and not (value is None and name != "horizon"):
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        for name in ("theta", "strength"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a positive number, got {value!r}")
        if self.calendar not in (None, "none", *CALENDARS):
            raise ValueError(f"calendar must be 'day', 'weekday', 'week' or 'none', got {self.calendar!r}")
        if not (math.isfinite(self.validation) and self.validation >= 0):
            raise ValueError(f"validation must be a share or a number of rows, at least 0, got {self.validation!r}")


def _for_each(series: list[Series], given: Sequence[_Each], name: str) -> list[_Each]:
    if len(given) != len(series):
        raise ValueError(f"{name} must have one value for each of the {len(series)} series, got {len(given)}")
    return list(given)
