"""Forecasts of series: ridge regression on the Delay Network's state over a look-back window."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from plmu.nn.covariates import CovariateForecast
from plmu.nn.forecast import LookbackForecast
from plmu.runtime.stream import Stream
from plmu.timeseries import series
from plmu.timeseries.base import Estimator
from plmu.timeseries.choosing import Choice, standard_deviation
from plmu.timeseries.frames import (
    Form,
    Table,
    as_list,
    calendar_of,
    check_ahead,
    data_of,
    is_list_of_series,
    with_future,
)
from plmu.timeseries.intervals import Intervals, unseen_errors
from plmu.timeseries.predictions import Ahead, at_phase, file_frame, forecast, formed, found_start, known_covariates
from plmu.timeseries.ridge import ScaledSeries
from plmu.timeseries.scores import Method, Scores, baselines, last_value, model_method, score
from plmu.timeseries.season import CALENDARS
from plmu.timeseries.series import Piece, SeriesData, read_series
from plmu.timeseries.split import SCORED, Fixed, Settings, Split
from plmu.timeseries.windows import BLOCK, Windows

FOLDS = 4  # fits to fewer rows, for intervals where there are few validation rows
VALIDATED = 0.2  # share of the rows to choose by, of fits for intervals and backtests and of the final refit
_Value = TypeVar("_Value")
_log = logging.getLogger("plmu")


class Input(NamedTuple):
    """Series to forecast."""

    pieces: list[Piece]
    forms: list[Form] | None  # what they were given as; None for a file
    placed: bool  # whether the numbers of their first rows are known


class Forecaster(Estimator):
    """Forecasts the next `horizon` steps of each channel, fitted in closed form in seconds.

    The Delay Network's final state over the last `lookback` values is read out by ridge regression (see
    `plmu.nn.LookbackForecast`). Options that are None are chosen by the error on the last part of the data, the
    validation rows: the regularisation, whether channels get readouts of their own, and whether to take out a season.
    After `fit`, `model` is an ordinary plmu model: it streams, saves and folds.

    >>> forecaster = plmu.Forecaster(horizon=24).fit(load)  # (time,) or (time, channels), a data frame, or a file
    >>> forecaster.predict()  # the 24 steps after the last row
    >>> forecaster.predict(level=[80, 95])  # with prediction intervals
    >>> forecaster.predict(later)  # the steps after other rows
    >>> plmu.save(forecaster.model, "load.plmu")

    Covariates are columns that are known ahead, such as a holiday, a planned price or a weather forecast. They are not
    forecast. Their effect is fitted, too (see `plmu.nn.CovariateForecast`), and used where it helps on the validation
    data.

    >>> forecaster = plmu.Forecaster(horizon=24, covariates=["holiday"]).fit(frame)
    >>> forecaster.predict(frame, future=plan)  # the holidays of the next 24 rows

    Args:
        horizon: steps ahead.
        lookback: steps that a forecast depends on; by default 336 or two seasons, or half of a shorter series.
        order: Legendre coefficients of the memory; by default half of the look-back, at most 96.
        theta: the memory's window θ in steps; by default the look-back.
        season: the seasonal period in steps, such as 24 for hourly data with a daily profile; 0 for none; by default
            detected. It is used where it helps on the validation data.
        individual: whether each channel may have a readout of its own; by default where that helps.
        alpha: regularisation of the ridge regression, for features of unit power; by default chosen.
        validation: the validation rows, which options are chosen by: their number, or below 1 their share.
        refit: whether to fit once more on all rows, with the options that were chosen.
        covariates: columns that are known ahead: names in a data frame or file, or numbers of columns in an array.
        lags: steps of a covariate that its effect depends on, the present one included; by default 1, 4 or 48.
        calendar: what a row is, "day", "weekday" or "week": where one series has two years of them, a seasonal profile
            of the week and the year is tried, too. "none" tries none. By default time stamps tell.
        test: the share of the rows at the end that are not fitted: `evaluate()` tests on them.

    Attributes:
        validation_: the options that were chosen, and the errors by which.
        notes_: for a file, what was done with gaps, duplicates and odd dates.
    """

    model_: LookbackForecast
    _stored: Intervals  # of a saved model
    _renamed: ClassVar[Mapping[str, str]] = {"strength": "alpha"}

    def __init__(
        self,
        horizon: int = 24,
        *,
        lookback: int | None = None,
        order: int | None = None,
        theta: float | None = None,
        season: int | None = None,
        individual: bool | None = None,
        alpha: float | None = None,
        validation: float = 0.2,
        refit: bool = False,
        covariates: Sequence[str | int] = (),
        lags: int | None = None,
        calendar: str | None = None,
        test: float = 0.0,
    ) -> None:
        self.horizon = horizon
        self.lookback = lookback
        self.order = order
        self.theta = theta
        self.season = season
        self.individual = individual
        self.alpha = alpha
        self.validation = validation
        self.refit = refit
        self.covariates = covariates
        self.lags = lags
        self.calendar = calendar
        self.test = test

    @property
    def model(self) -> LookbackForecast:
        """The fitted model: one sample in, the next `horizon` values out. With covariates it is a
        `plmu.nn.CovariateForecast`, whose samples also hold the covariates of the next steps."""
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
        """Fit to one series or several. Each of several counts in units of its own standard deviation.

        Args:
            X: (time,) or (time, channels), a data frame whose columns are channels, or a list of them; or the path of a
                CSV, Parquet or NumPy file, or what `plmu.timeseries.read_series` returns. In a frame of pandas or
                polars, time stamps (a column, or the index) tell where later rows are in the season. Rows at the end in
                which only covariates have values are ahead of the series.
            y: not used; for scikit-learn.
            starts: for arrays and frames, the number of the first row of each series on a clock that they share. By
                default time stamps tell, or all begin together.
            validation_rows: for arrays and frames, the number of validation rows of each, instead of `validation`.
            names: for arrays and frames, the series that each is a part of. By default each is a series.

        Returns:
            This estimator.

        Raises:
            ValueError: an argument is wrong, X has missing values, or it is too short.
            DataError: the file is missing or wrong.
        """
        self._check_arguments()
        for name in ("feature_names_in_", "notes_"):
            vars(self).pop(name, None)
        if isinstance(X, str | os.PathLike):
            X = read_series(Path(X), covariates=tuple(map(str, self._columns)))
        if isinstance(X, SeriesData):
            if starts is not None or validation_rows is not None or names is not None:
                raise ValueError("starts, validation_rows and names are for arrays and frames, and X is a file")
            split = self.split(X)
            self.feature_names_in_ = np.array(X.columns.read, dtype=object)
            self.notes_ = [*X.notes, split.summary(calendar=self.calendar != "none")]
            for note in self.notes_:
                _log.info(note)
        else:
            split = self._split_tables(as_list(X, "X", self._columns), starts, validation_rows, names)
            self._several = is_list_of_series(X)
        return self.fit_split(split)

    def split(self, data: SeriesData) -> Split:
        """The first half of `fit` for a file: cut all series at the same times, and find the settings that are None.

        Args:
            data: the series of a file.

        Returns:
            The series with where they are cut and the settings.

        Raises:
            ValueError: an argument is wrong.
            DataError: there are too few rows, or a column varies too little.
        """
        self._check_arguments()
        if self._columns and tuple(self._columns) != data.columns.covariates:
            raise ValueError(f"covariates are {self._columns}, and those of the file {list(data.columns.covariates)}")
        share = self.validation if self.validation < 1 else 0.0
        training = 1 - share - self.test
        if training <= 0:
            raise ValueError(f"validation and test must leave rows to fit, got {self.validation} and {self.test}")
        cuts = series.cuts(data, share, self.test)
        if self.validation >= 1:
            cuts = [(max(0, b - int(self.validation)), b) for _, b in cuts]
        rows = [b - a if b - a >= self.horizon else 0 for a, b in cuts]
        return Split.of(data, cuts, rows, self.horizon, self._fixed(), self.lags, training)

    def _split_tables(
        self,
        tables: list[Table],
        starts: Sequence[int] | None,
        validation_rows: Sequence[int] | None,
        names: Sequence[str] | None,
    ) -> Split:
        """Arrays and frames, each cut by its own length."""
        starts = None if starts is None else _for_each(tables, starts, "starts")
        data = data_of(tables, self._columns, starts)
        if names is not None:
            named = zip(data.pieces, _for_each(tables, names, "names"), strict=True)
            data.pieces = [replace(piece, name=str(name)) for piece, name in named]
        ends = [len(piece) - round(self.test * len(piece)) for piece in data.pieces]
        rows = [rows_to_choose_by(self.validation, self.horizon, end) for end in ends]
        if validation_rows is not None:
            rows = _for_each(tables, validation_rows, "validation_rows")
        cuts = [(end - count, end) for end, count in zip(ends, rows, strict=True)]
        if max(a for a, _ in cuts) < self.horizon + 2:
            needed = self.horizon + 2 + rows[0]
            raise ValueError(f"X must have at least {needed} rows for horizon={self.horizon}, got n_samples = "
                             f"{len(data.pieces[0])}")  # fmt: skip
        if tables[0].form.columns is not None:
            self.feature_names_in_ = np.array(tables[0].form.columns, dtype=object)
        calendar = calendar_of(tables[0]) or "none"
        split = Split.of(data, cuts, rows, self.horizon, self._fixed(), self.lags)
        return replace(split, tables=tables, calendar=calendar)

    def fit_split(self, split: Split) -> Self:
        """The second half of `fit`: fit to the rows before the test rows.

        Args:
            split: what `split` returns.

        Returns:
            This estimator.
        """
        settings = split.settings
        parts = [
            (piece.until(end), rows)
            for piece, (_, end), rows in zip(split.data.pieces, split.cuts, split.validation_rows, strict=True)
            if end > 0
        ]
        pieces, validation_rows = [piece for piece, _ in parts], [rows for _, rows in parts]
        channels = pieces[0].values.shape[1]
        self.n_features_in_ = channels + len(settings.covariates)
        past = [piece.values[: len(piece) - rows] for piece, rows in parts]
        together = np.concatenate(past)
        self.mean_ = together.mean(axis=0)
        self.scale_ = unit = standard_deviation(together)
        means, scales = [self.mean_] * len(pieces), [self.scale_] * len(pieces)
        names = [piece.name for piece in pieces]
        relative = len(set(names)) > 1
        if relative:
            sizes = {}
            for name in set(names):
                places = [place for place, other in enumerate(names) if other == name]
                rows = np.concatenate([past[place] for place in places])
                if len(rows) < 2:  # all rows of this series are validation rows
                    rows = np.concatenate([pieces[place].values for place in places])
                sizes[name] = (rows.mean(axis=0), standard_deviation(rows))
            means, scales = [sizes[name][0] for name in names], [sizes[name][1] for name in names]
            unit = np.max(scales, axis=0)
        scaled = [
            torch.tensor(((piece.values - mean) / scale).T, dtype=torch.float32)
            for piece, mean, scale in zip(pieces, means, scales, strict=True)
        ]
        starts = [piece.start for piece in pieces]
        data = ScaledSeries(scaled, validation_rows, starts, channels, settings.horizon, relative=relative)
        calendar = split.calendar if self.calendar is None else self.calendar
        choice = Choice(settings, self.individual, self.alpha, self.refit, self.lags, calendar, unit)
        if settings.covariates:
            covariates = [piece.covariates[: len(piece)] for piece in pieces if piece.covariates is not None]
            pairs = zip(covariates, validation_rows, strict=True)
            trained = np.concatenate([rows[: len(rows) - count] for rows, count in pairs])
            middle, size = trained.mean(axis=0), standard_deviation(trained)
            scaled = [torch.tensor(((rows - middle) / size).T, dtype=torch.float32) for rows in covariates]
            chosen = choice.with_covariates(data, scaled, torch.tensor(size))
        else:
            chosen = choice.of(data)
        self.model_, self.validation_ = chosen.model, chosen.summary
        self._unrefitted, self._without_covariates = chosen.unrefitted, chosen.without_covariates
        self._split: Split | None = split
        self._tables = split.tables
        self._settings = settings
        self._errors: Tensor | None = None
        self._cached_baselines: dict[str, Method] | None = None
        return self

    def predict(
        self,
        X: Any = None,
        *,
        level: float | Sequence[float] | None = None,
        start: int | None = None,
        future: Any = None,
    ) -> Any:
        """The `horizon` steps after the last row of X.

        Args:
            X: as in `fit`, of any length of at least one row; by default the series of `fit`. Only the last rows
                matter: `lookback` of the series, and `lags` more of the covariates.
            level: levels of prediction intervals in percent, such as [80, 95].
            start: the number of X's first row, counted from the first row of `fit`: it tells where in the season X is.
                By default time stamps tell, or it is found by comparing X with the season.
            future: covariates of the next `horizon` rows or more, (time, covariates) or a data frame; a list for
                a list; a path for a file. By default they are in the last rows of X, in which the other columns are
                empty.

        Returns:
            For arrays (horizon,) or (horizon, channels), or with levels a `Forecast`; for frames a frame of the columns
            alone, or with levels a frame with times, each column and its `column-lo-80`, `column-hi-80`, …; a list for
            a list. For a file a polars frame with times and, of several series, their names.

        Raises:
            ValueError: an argument is wrong, or a covariate is not known for `horizon` rows.
            DataError: the file is missing or wrong.
        """
        self._check_fitted()
        levels = _levels(level)
        inputs = self._input(X, start, future)
        if self._settings.covariates:
            for place, piece in enumerate(inputs.pieces):
                name = f"X[{place}]" if inputs.forms is not None and len(inputs.pieces) > 1 else "X"
                check_ahead(piece, self._settings.horizon, self._covariate_names, name)
        ahead = self._ahead(inputs)
        intervals = None if levels is None else self._intervals(levels)
        if inputs.forms is None:
            return file_frame(self._settings, inputs.pieces, ahead, intervals)
        shown = [
            formed(self._settings, piece, form, ahead, place, intervals)
            for place, (piece, form) in enumerate(zip(inputs.pieces, inputs.forms, strict=True))
        ]
        several = self._several if X is None else is_list_of_series(X)
        return shown if several else shown[0]

    def evaluate(self, X: Any = None, *, start: int | None = None) -> dict[str, float]:
        """Errors of the forecasts from every row, in units of each channel's standard deviation in `fit`.

        Args:
            X: as in `fit`. Each window of `lookback` rows that has `horizon` rows after it counts. By default the test
                rows of `fit` (`test`).
            start: as in `predict`.

        Returns:
            "mse" and "mae"; the same of each baseline, such as "last value mse", "seasonal last value mse" and
            "linear mse"; "variance" of what was to be forecast; and "windows", their number.
        """
        self._check_fitted()
        scores, variance = self._scores(X, start, {"model": model_method(self.model), **self.baselines()})
        results: dict[str, float] = {}
        for name, errors in scores.errors.items():
            prefix = "" if name == "model" else f"{name} "
            results |= {f"{prefix}mse": errors.mse, f"{prefix}mae": errors.mae}
        return {**results, "variance": variance, "windows": scores.windows}

    def score(self, X: Any, y: Any = None, *, start: int | None = None) -> float:
        """R² of the forecasts from every row: 1 is perfect, 0 is as good as the mean.

        Args:
            X: as in `evaluate`.
            y: not used; for scikit-learn.
            start: as in `predict`.
        """
        self._check_fitted()
        scores, variance = self._scores(X, start, {"model": model_method(self.model)})
        mse = scores.errors["model"].mse
        return 1.0 - mse / variance if variance > 0 else float(mse == 0.0)

    def backtest(self, X: Any = None, *, folds: int = 4) -> list[dict[str, float]]:
        """Rolling origin: fit to more and more rows, each time with the settings of this fit, and test on the rows that
        follow.

        Args:
            X: as in `fit`; by default the series of `fit`.
            folds: the number of fits.

        Returns:
            Of each fold "rows" that were fitted, "windows" that were tested, "model_mse" and "last_value_mse". Folds
            with too few rows are left out.
        """
        self._check_fitted()
        if isinstance(folds, bool) or not isinstance(folds, int) or folds < 1:
            raise ValueError(f"folds must be an integer of at least 1, got {folds!r}")
        split = self._fitted_split("backtest")
        if X is not None:
            pieces = self._input(X, None, None).pieces
            lengths = [len(piece) for piece in pieces]
            data = replace(split.data, pieces=pieces)
            split = replace(split, data=data, cuts=[(rows, rows) for rows in lengths], validation_rows=lengths)
        tested = []
        for fold, origins, rows in self._rolling(split, [len(piece) for piece in split.data.pieces], folds):
            methods = {"model": model_method(fold.model), "last value": last_value(split.horizon)}
            scores = score(methods, split.windows, origins, split.length, split.horizon, split.scale)
            errors = {f"{name}_mse".replace(" ", "_"): error.mse for name, error in scores.errors.items()}
            tested.append({"rows": rows, "windows": len(origins), **errors})
        return tested

    def plot(self, path: str | Path, level: float | Sequence[float] = (80, 95)) -> None:
        """Draw forecasts of the last rows with their intervals on what was measured: of the test rows, or without
        (`test`) of the validation rows.

        Args:
            path: of the image, such as "forecast.png".
            level: levels of the intervals in percent.
        """
        from plmu.timeseries.forecast_report import plot_forecasts

        self._check_fitted()
        plot_forecasts(Path(path), self._fitted_split("plot"), self._unrefitted, self._intervals(_levels(level) or ()))

    def stream(self, *, start: int | None = None) -> Stream:
        """A stream of `model`: push a sample (channels,), get the next `horizon` values, flat, steps ahead first.

        Args:
            start: the number of the first sample, counted from the first row of `fit`. By default the stream continues
                the series of `fit`.
        """
        self._check_fitted()
        layer = self.model
        if start is not None:
            return Stream(at_phase(layer, start))
        pieces = self._fitted_split("stream").data.pieces
        if len({piece.name for piece in pieces}) > 1 or (self._tables is not None and self._several):
            raise ValueError("give start: the estimator was fitted to several series")
        piece = pieces[-1]
        lags = layer.lags - 1 if isinstance(layer, CovariateForecast) else 0
        first = max(0, len(piece) - layer.lookback - lags)
        stream = Stream(at_phase(layer, piece.start + first))
        covariates = known_covariates(piece)
        for row in range(first, len(piece)):
            sample = piece.values[row]
            if covariates is not None:  # the state does not depend on covariates ahead, which may be missing
                ahead = np.minimum(np.arange(row, row + layer.horizon + 1), len(covariates) - 1)
                sample = np.concatenate([sample, covariates[ahead].ravel()])
            stream.push(torch.tensor(sample, dtype=layer.weight.dtype))
        return stream

    @classmethod
    def from_run(cls, folder: str | Path) -> Forecaster:
        """The estimator of a run of `plmu train forecast`. It predicts; it has no series to test on.

        >>> forecaster = plmu.Forecaster.from_run("runs/forecast-load-seed0")
        >>> forecaster.predict("load.csv", level=forecaster.levels_)

        Args:
            folder: of the run, which has model.plmu, series.json and intervals.json.

        Raises:
            RunError: a file is missing or damaged.
        """
        from plmu.timeseries.forecast_files import read_run

        model, settings, intervals = read_run(Path(folder))
        forecaster = cls(settings.horizon, covariates=settings.covariates)
        forecaster.model_, forecaster._settings, forecaster._stored = model, settings, intervals
        forecaster._split = forecaster._tables = None
        forecaster.n_features_in_ = len(settings.values) + len(settings.covariates)
        return forecaster

    @property
    def settings_(self) -> Settings:
        """What the fitted model reads and forecasts."""
        self._check_fitted()
        return self._settings

    @property
    def _columns(self) -> list[str | int]:
        if isinstance(self.covariates, str) or not isinstance(self.covariates, Iterable):
            raise ValueError(f"covariates must be a list of columns, got {self.covariates!r}")
        return list(self.covariates)

    @property
    def _covariate_names(self) -> Sequence[str | int]:
        """Of the covariates, as they were given."""
        return self._columns or self._settings.covariates

    def _fixed(self) -> Fixed:
        return Fixed(self.lookback, self.order, self.theta, self.season)

    @property
    def levels_(self) -> tuple[float, ...]:
        """The levels of intervals, in percent, that a saved model has."""
        return tuple(round(100 * level, 10) for level in self._stored.levels)

    def _fitted_split(self, name: str) -> Split:
        if self._split is None:
            raise ValueError(f"{name} needs the series of fit, and this estimator is of a run's folder")
        return self._split

    def baselines(self) -> dict[str, Method]:
        """What the model is compared with: last value, seasonal last value, linear, the model without covariates."""
        if self._cached_baselines is None:
            self._cached_baselines = baselines(self._fitted_split("baselines"))
            if self._without_covariates is not None:
                self._cached_baselines["without covariates"] = model_method(self._without_covariates)
        return self._cached_baselines

    def _scores(self, X: Any, start: int | None, methods: dict[str, Method]) -> tuple[Scores, float]:
        """Errors of methods over every window, and the variance of what was to be forecast."""
        split = self._fitted_split("evaluate")
        if X is None:
            windows, origins = split.windows, split.scored("test")
        else:
            inputs = self._input(X, start, None)
            pieces = inputs.pieces
            if not inputs.placed:
                pieces = [replace(piece, start=found_start(self.model, piece)) for piece in inputs.pieces]
            windows = Windows.of(pieces)
            rows = [(0, len(piece)) for piece in pieces]
            origins = windows.origins(rows, split.settings.lookback, split.horizon)
        if not len(origins):
            needed = split.settings.lookback + split.horizon
            if X is None:
                raise ValueError("there are no test rows: give X, or hold some out as Forecaster(test=0.2)")
            longest = max(len(piece) for piece in pieces)
            raise ValueError(f"X must have at least {needed} rows for one window and its horizon, got {longest}")
        scores = score(methods, windows, origins, split.length, split.horizon, split.scale)
        return scores, _variance(windows, origins, split, torch.tensor(self.mean_))

    def _intervals(self, levels: Sequence[float]) -> Intervals:
        """Of forecasts, from errors on rows that the model has not seen."""
        if self._split is None:
            return self._stored_intervals(levels)
        if self._errors is None:
            self._errors = unseen_errors(self._split, model_method(self._unrefitted), self.folds)
        return Intervals.of(self._split, levels).fitted(self._errors)

    def _stored_intervals(self, levels: Sequence[float]) -> Intervals:
        stored = self._stored
        places = [stored.levels.index(level) for level in levels if level in stored.levels]
        if len(places) < len(levels):
            shown = ", ".join(f"{100 * level:g}" for level in stored.levels)
            raise ValueError(f"level must be of those of the run: {shown}")
        return replace(stored, levels=tuple(levels), low=stored.low[places], high=stored.high[places])

    def folds(self) -> list[tuple[Method, Tensor]]:
        """Models fitted to the first rows before the validation rows, and the origins that follow those rows: for
        intervals where there are few validation rows."""
        split = self._fitted_split("intervals")
        rows = [a for a, _ in split.cuts]
        most = max(rows) // (4 * split.horizon)  # a fold has two horizons
        folds = self._rolling(split, rows, max(1, min(FOLDS, most)))
        return [(model_method(fold.model), origins) for fold, origins, _ in folds]

    def _rolling(self, split: Split, rows: list[int], folds: int) -> Iterator[tuple[Forecaster, Tensor, int]]:
        """Forecasters fitted to a half and more of these first rows of each series, the origins that follow the rows of
        each, and the number of rows it was fitted to."""
        settings = split.settings
        for share, following in pairwise(np.linspace(0.5, 1.0, folds + 1)):
            ends, after = (series.first_rows(split.data, rows, part) for part in (share, following))
            spans = list(zip(ends, after, strict=True))
            origins = split.windows.origins(spans, settings.lookback, split.horizon, SCORED // 10, settings.season)
            past = max(series.first_rows(split.data, ends, 1 - VALIDATED))
            if len(origins) and past - split.horizon > settings.lookback:
                yield self._until(split, ends), origins, sum(ends)

    def _until(self, split: Split, ends: list[int]) -> Forecaster:
        """With the same settings, fitted to the first rows of each series."""
        first = series.first_rows(split.data, ends, 1 - VALIDATED)
        cuts = [(min(begin, end), end) for begin, end in zip(first, ends, strict=True)]
        rows = [b - a if b - a >= split.horizon else 0 for a, b in cuts]
        other = type(self)(**{**self.get_params(), "refit": False})
        return other.fit_split(replace(split, cuts=cuts, validation_rows=rows))

    def _input(self, X: Any, start: int | None, future: Any) -> Input:
        """The series to forecast."""
        if future is not None and not self._settings.covariates:
            raise ValueError("future is for covariates: give their columns as Forecaster(covariates=...)")
        like = self._settings
        if (X is None and self._tables is None) or isinstance(X, str | os.PathLike | SeriesData):
            data = self._file_data(X, future)
            if data.columns.values != like.values or data.columns.covariates != like.covariates:
                raise ValueError(f"X must have the columns {', '.join((*like.values, *like.covariates))}")
            last = list({piece.name: piece for piece in data.pieces}.values())  # of each series its last piece
            if start is not None:
                last = [replace(piece, start=start) for piece in last]
            return Input(last, None, X is None or start is not None or data.clock.kind != "rows")
        tables = self._tables if X is None else as_list(X, "X", self._columns)
        assert tables is not None
        several = self._several if X is None else is_list_of_series(X)
        for table in tables:
            self._check_channels(table)
        if future is not None:
            tables = self._with_future(tables, future, several)
        forms = [table.form for table in tables]
        if X is None:
            fitted = self._fitted_split("predict").data.pieces
            pieces = [replace(piece, covariates=t.covariates) for piece, t in zip(fitted, tables, strict=True)]
            return Input(pieces, forms, True)
        pieces = [table.piece(str(place), like.clock, start or 0) for place, table in enumerate(tables)]
        if start is not None:
            return Input([replace(piece, start=start) for piece in pieces], forms, True)
        timed = like.clock.kind != "rows" and all(table.times is not None for table in tables)
        return Input(pieces, forms, timed)

    def _file_data(self, X: Any, future: Any) -> SeriesData:
        """The series of a file, or of `fit`, on the clock of `fit`."""
        if isinstance(X, SeriesData):
            if X.clock == self._settings.clock and future is None:
                return X
            config = X.config
        elif X is None:
            data = self._fitted_split("predict").data
            if future is None:
                return data
            config = data.config
        else:
            base = self._split.data.config if self._split is not None else None
            config = replace(base or series.SeriesConfig(), file=Path(X))
        assert config is not None
        data = series.load(config, self._settings.like, None if future is None else Path(future))
        for note in data.notes if X is not None else ():
            _log.info(note)
        return data

    def _with_future(self, tables: list[Table], future: Any, several: bool) -> list[Table]:
        if not several:
            return [with_future(tables[0], future, self._columns, "future")]
        if not is_list_of_series(future) or len(future) != len(tables):
            raise ValueError(f"future must be a list with covariates for each of the {len(tables)} series")
        pairs = enumerate(zip(tables, future, strict=True))
        return [with_future(table, plan, self._columns, f"future[{i}]") for i, (table, plan) in pairs]

    def _ahead(self, inputs: Input) -> Ahead:
        unit = self._stored if self._split is None else Intervals.of(self._split, ())
        return forecast(self.model, unit, inputs.pieces, inputs.placed)

    def _check_channels(self, table: Table) -> None:
        features = table.values.shape[1] + len(self._columns)
        if features != self.n_features_in_:
            hint = ". Reshape your data: give (time, channels)" if table.form.flat else ""
            raise ValueError(f"X has {features} features, but {type(self).__name__} is expecting {self.n_features_in_}"
                             f" features as input{hint}")  # fmt: skip

    def _check_arguments(self) -> None:
        for name, least in (("horizon", 1), ("lookback", 1), ("order", 1), ("season", 0), ("lags", 1)):
            value = getattr(self, name)
            integer = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= least
            if not integer and not (value is None and name != "horizon"):
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
        for name in ("theta", "alpha"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a positive number, got {value!r}")
        if self.calendar not in (None, "none", *CALENDARS):
            raise ValueError(f"calendar must be 'day', 'weekday', 'week' or 'none', got {self.calendar!r}")
        if not (math.isfinite(self.validation) and self.validation >= 0):
            raise ValueError(f"validation must be a share or a number of rows, at least 0, got {self.validation!r}")
        if not 0 <= self.test < 1:
            raise ValueError(f"test must be a share, at least 0 and below 1, got {self.test!r}")


def rows_to_choose_by(share: float, horizon: int, rows: int) -> int:
    """The number of validation rows of a series of so many rows; 0 where too few rows would be left to fit.

    Args:
        share: of the rows that is wanted, or their number.
        horizon: steps ahead.
        rows: of the series.
    """
    wanted = round(share * rows) if share < 1 else int(share)
    return wanted if wanted >= horizon and rows - wanted >= 2 * horizon + 2 else 0


def _levels(level: float | Sequence[float] | None) -> tuple[float, ...] | None:
    """Levels in percent as fractions."""
    if level is None:
        return None
    levels = [level] if isinstance(level, int | float | np.number) else list(level)
    if not levels or not all(0 < value < 100 for value in levels):
        raise ValueError(f"level must be percentages between 0 and 100, such as [80, 95], got {level!r}")
    return tuple(sorted({round(float(value) / 100, 12) for value in levels}))


def _variance(windows: Windows, origins: Tensor, split: Split, mean: Tensor) -> float:
    """Of what is to be forecast, in units of each channel's standard deviation."""
    count, total, squares = 0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for block in origins.split(max(1, BLOCK // (split.horizon * len(mean)))):
        examples = windows.take(block, 1, split.horizon)
        level = windows.level[torch.searchsorted(windows.offsets, block, right=True) - 1] - mean
        values = (examples.future.double() + level[:, :, None]) / split.scale[:, None]
        values = values.flatten() if examples.measured is None else values[examples.measured]
        count, total, squares = count + len(values), total + values.sum(), squares + values.square().sum()
    return float(squares / count - (total / count) ** 2)


def _for_each(tables: Sequence[Table], values: Sequence[_Value], name: str) -> list[_Value]:
    if len(values) != len(tables):
        raise ValueError(f"{name} must have one value for each of the {len(tables)} series, got {len(values)}")
    return list(values)
