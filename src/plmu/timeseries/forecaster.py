"""Forecasts of series: ridge regression on the Delay Network's state over a look-back window."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch

from plmu.clock import steps_in
from plmu.errors import DataError
from plmu.runs.learning import LEVELS
from plmu.runtime.stream import Stream
from plmu.timeseries.choosing import fit
from plmu.timeseries.comparing import Options
from plmu.timeseries.cross_validation import Tested, before, tested_table
from plmu.timeseries.fitted import Fitted
from plmu.timeseries.frames import as_list, is_list_of_series
from plmu.timeseries.learning_stream import LearningStream, learning_model
from plmu.timeseries.long_frames import is_long, library_of
from plmu.timeseries.predictions import ForecastModel, at_phase, level_of, stream_after
from plmu.timeseries.public_holidays import column_of, country_of, with_holidays
from plmu.timeseries.season import CALENDARS
from plmu.timeseries.series import SeriesConfig, SeriesData, last_pieces, read_series
from plmu.timeseries.split import Settings, Split, Wanted
from plmu.timeseries.updatable import UpdatableForecaster

_log = logging.getLogger("plmu")


_OF_LOOKBACK = ("lookback", "order", "theta", "individual", "alpha")  # options of a LookbackForecast


class Forecaster(UpdatableForecaster):
    """Forecasts the next `horizon` steps of each channel, fitted in closed form in seconds.

    The Delay Network's final state over the last `lookback` values is read out by ridge regression (see
    `plmu.nn.LookbackForecast`). Options that are None are chosen by the error on the last part of the data, the
    validation rows: the regularisation, whether channels get readouts of their own, and whether to take out a season.
    Several series may be forecast by readouts that all series share instead (`pooled`); a single one by a mean of such
    readouts, linear maps of windows and classical forecasts, among them the seasonal last value and Theta (see
    `plmu.nn.PooledForecast`), where its error on the validation rows is smaller. After `fit`, `model` is an ordinary
    plmu model: it streams, saves and folds.

    >>> forecaster = plmu.Forecaster(horizon=24).fit(load)  # (time,) or (time, channels), a data frame, or a file
    >>> forecaster.predict()  # the 24 steps after the last row
    >>> forecaster.predict(level=[80, 95])  # with prediction intervals
    >>> forecaster.predict(later)  # the steps after other rows
    >>> plmu.Forecaster(horizon=12).fit(sales).predict()  # a frame with a row for each time of each series
    >>> forecaster.cross_validation(windows=3)  # forecasts from earlier rows beside what was measured
    >>> forecaster.partial_fit(tomorrow)  # learns new rows, without another fit
    >>> plmu.save(forecaster.model, "load.plmu")

    Covariates are columns that are known ahead, such as a holiday, a planned price or a weather forecast. They are not
    forecast. Their effect is fitted, too (see `plmu.nn.CovariateForecast`), and used where it helps on the validation
    data.

    >>> forecaster = plmu.Forecaster(horizon=24, covariates=["holiday"]).fit(frame)
    >>> forecaster.predict(frame, future=plan)  # the holidays of the next 24 rows

    Args:
        horizon: steps ahead.
        lookback: steps that a forecast depends on; by default 336 or two seasons, or half of a shorter series; of a
            single series the best of several.
        order: Legendre coefficients of the memory; by default half of the look-back, at most 96.
        theta: the memory's window θ in steps; by default the look-back.
        season: the seasonal period in steps, such as 24 for hourly data with a daily profile; 0 for none; by default
            detected. It is used where it helps on the validation data.
        individual: whether each channel may have a readout of its own; by default where that helps.
        alpha: regularisation of the ridge regression, for features of unit power; by default chosen.
        validation: the validation rows, which options are chosen by: their number, or below 1 their share.
        refit: whether to fit once more on all rows, with the options that were chosen; by default yes, unless an option
            of the memory or covariates are given.
        covariates: columns that are known ahead: names in a data frame or file, or numbers of columns in an array.
        holidays: the country whose public holidays are a covariate, too, such as "DE" or, for a part of it, "DE-BY".
            They are built from the dates of files and frames by the package holidays, also for the steps ahead.
        lags: steps of a covariate that its effect depends on, the present one included; by default 1, 4 or 48.
        calendar: what a row is, "day", "weekday" or "week": where one series has two years of them, a seasonal profile
            of the week and the year is tried, too. "none" tries none. By default time stamps tell.
        test: the share of the rows at the end that are not fitted: `evaluate()` tests on them.
        pooled: whether to forecast by a mean of members, relative to the level of each series
            (`plmu.nn.PooledForecast`), which takes none of `lookback`, `order`, `theta`, `individual`, `alpha` and
            `covariates`. By default it is tried, and used where its error on the validation rows is smaller.
        nonnegative: whether forecasts and intervals are at least 0; by default those of channels without a value below
            0 in the rows of `fit`, such as counts.
        half_life: the age at which rows count half as much in the readout, so that it follows a drift: a number of
            rows, or with time stamps a length of time such as "12h", "7d" or "3mo". By default all rows count alike.
            What is chosen is chosen by rows that count alike.

    Attributes:
        validation_: the options that were chosen, and the errors by which: "model" is "pooled" or "look-back", and
            "errors" has the mean absolute error of these and of the baselines, relative to that of the last value with
            its season.
        notes_: for a file or a frame with times, what was done with gaps, duplicates and odd dates; and once there are
            prediction intervals, how many errors they rest on.
    """

    model_: ForecastModel
    _fitted: Fitted
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
        refit: bool | None = None,
        covariates: Sequence[str | int] = (),
        lags: int | None = None,
        calendar: str | None = None,
        test: float = 0.0,
        pooled: bool | None = None,
        nonnegative: bool | None = None,
        holidays: str | None = None,
        half_life: float | str | None = None,
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
        self.pooled = pooled
        self.nonnegative = nonnegative
        self.holidays = holidays
        self.half_life = half_life

    @property
    def model(self) -> ForecastModel:
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
        id: str | None = None,
        time: str | None = None,
        values: Sequence[str] | None = None,
    ) -> Self:
        """Fit to one series or several. Each of several counts in units of its own standard deviation.

        >>> forecaster.fit(frame)  # unique_id, ds, y: detected
        >>> forecaster.fit(frame, id="store", time="when", values=["sales"])

        Args:
            X: (time,) or (time, channels), a data frame whose columns are channels, or a list of them; or the path of a
                CSV, Parquet, NumPy, JSON or Excel file, or what `plmu.timeseries.read_series` returns. In a frame of
                pandas or polars, time stamps (a column, or the index) tell where later rows are in the season, and
                which rows are missing: these are treated as in a file, by holding the last value for up to 48 steps
                (`notes_`). Rows at the end in which only covariates have values are ahead of the series. A frame in
                long format, with a row for each time of each series, is read as a file with its content is.
            y: not used; for scikit-learn.
            starts: for arrays and frames, the number of the first row of each series on a clock that they share. By
                default time stamps tell, or all begin together.
            validation_rows: for arrays and frames, the number of validation rows of each, instead of `validation`.
            names: for arrays and frames, the series that each is a part of. By default each is a series.
            id: for files and frames in long format, the column that names the series of a row; or columns, with commas;
                "" for a single series. By default it is detected where times repeat, or called unique_id.
            time: for the same, the column of times. By default detected.
            values: for the same, the columns to forecast. By default all columns of numbers that vary.

        Returns:
            This estimator.

        Raises:
            ValueError: an argument is wrong, X has missing values, or it is too short.
            DataError: the file is missing or wrong, or the frame in long format is.
        """
        self._check_arguments()
        for name in ("feature_names_in_", "notes_"):
            vars(self).pop(name, None)
        columns = {name: value for name, value in (("id", id), ("time", time), ("values", values)) if value is not None}
        is_path = isinstance(X, str | os.PathLike)
        if columns and not is_path and library_of(X) is None:
            raise ValueError(f"{next(iter(columns))} names a column: X must be a data frame or a file")
        if self.holidays is not None and library_of(X) is None and not is_path and not isinstance(X, SeriesData):
            raise ValueError(f"holidays={self.holidays!r} needs dates: X must be a data frame with times, or a file")
        if is_path or columns or (library_of(X) and self.holidays) or is_long(X, SeriesConfig()):
            X = read_series(X, covariates=tuple(map(str, self._columns)), **columns)
        if isinstance(X, SeriesData):
            if starts is not None or validation_rows is not None or names is not None:
                raise ValueError(
                    "starts, validation_rows and names are for arrays and frames, and X is a file or in long format"
                )
            split = self.split(X)
            self.feature_names_in_ = np.array(X.columns.read, dtype=object)
            self.notes_ = [*X.notes, *split.notes, split.summary(calendar=self.calendar != "none")]
            for note in self.notes_:
                _log.info(note)
        else:
            tables = as_list(X, "X", self._columns)
            split = Split.of_tables(tables, self._columns, self._wanted(), starts, validation_rows, names)
            if (channels := tables[0].form.columns) is not None:
                self.feature_names_in_ = np.array(channels, dtype=object)
            if split.data.clock.kind != "rows":
                self.notes_ = [*split.data.notes, *split.notes]
                for note in self.notes_:
                    _log.info(note)
            self.fit_split(split)
            self._fitted.tables, self._fitted.several = tables, is_list_of_series(X)
            self._fitted.validation_rows = validation_rows
            return self
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
        if self.holidays is not None and column_of(self.holidays) not in data.columns.covariates:
            data = with_holidays(data, self.holidays)
        covariates = list(data.columns.covariates)
        of_file = covariates[:-1] if country_of(data.columns.covariates) is not None else covariates
        if self._columns and self._columns not in (of_file, covariates):
            raise ValueError(f"covariates are {self._columns}, and those of the file {of_file}")
        return Split.of_file(data, self._wanted())

    def fit_split(self, split: Split) -> Self:
        """The second half of `fit`: fit to the rows before the test rows.

        Args:
            split: what `split` returns.

        Returns:
            This estimator.
        """
        steps_in(self.half_life, split.data.clock)
        chosen, self.mean_, self.scale_ = fit(split, self._options())
        self.model_, self.validation_ = chosen.model, chosen.summary
        self._fitted = Fitted(
            chosen.model,
            chosen.unrefitted,
            split.settings,
            self._columns if split.data.config is None else split.settings.covariates,
            split=split,
            options=self._options(),
            without_covariates=chosen.without_covariates,
        )
        self.n_features_in_ = len(split.settings.values) + len(split.settings.covariates)
        if self.half_life is not None:
            self._take(self._fitted.with_learning(self._learning()))
        return self

    def predict(
        self,
        X: Any = None,
        *,
        level: float | Sequence[float] | None = None,
        start: int | None = None,
        future: Any = None,
        horizon: int | None = None,
        quantiles: Sequence[float] | None = None,
    ) -> Any:
        """The `horizon` steps after the last row of X.

        >>> forecaster.predict(level=80)
        >>> forecaster.predict(later, horizon=6)
        >>> forecaster.predict(quantiles=[0.1, 0.5, 0.9])

        Args:
            X: as in `fit`, of any length of at least one row; by default the series of `fit`. Only the last rows
                matter: `lookback` of the series, and `lags` more of the covariates. In long format it may have other
                series than those of `fit`.
            level: levels of prediction intervals in percent, such as [80, 95].
            start: the number of X's first row, counted from the first row of `fit`: it tells where in the season X is.
                By default time stamps tell, or it is found by comparing X with the season.
            future: covariates of the next `horizon` rows or more, (time, covariates) or a data frame; a list for
                a list; a path for a file. By default they are in the last rows of X, in which the other columns are
                empty.
            horizon: the number of steps, at most those that were fitted, which is the default.
            quantiles: of the values ahead, between 0 and 1, instead of intervals: their ends are quantiles, and the
                point forecast is the median.

        Returns:
            For arrays (horizon,) or (horizon, channels), or with levels a `Forecast`, or with quantiles (quantiles,
            horizon) or (quantiles, horizon, channels); for frames a frame of the columns alone, or with levels a frame
            with times, each column and its `column-lo-80`, `column-hi-80`, … or `column-q-10`, …; a list for a list.
            For a frame in long format, and for a file, which gives one of polars, a frame with the names of series,
            times and these columns.

        Raises:
            ValueError: an argument is wrong, or a covariate is not known for `horizon` rows.
            DataError: the file is missing or wrong.
        """
        self._check_fitted()
        levels = _levels(level)
        if quantiles is not None:
            if level is not None:
                raise ValueError("give level or quantiles: both are ends of the same intervals")
            quantiles = _quantiles(quantiles)
            levels = tuple(sorted({level_of(quantile) for quantile in quantiles} - {0.0}))
        forecasts = self._fitted.predict(X, levels, start, future, horizon, quantiles)
        if levels and (basis := self._fitted.intervals(levels, horizon).basis) not in ("", *self._notes):
            self.notes_ = [*self._notes, basis]
            _log.info(basis)
        return forecasts

    def evaluate(self, X: Any = None, *, start: int | None = None) -> dict[str, float]:
        """Errors of the forecasts from every row, in units of each channel's standard deviation in `fit`.

        Args:
            X: as in `fit`. Each window of all rows that the model reads that has `horizon` rows after it counts, and of
                a shorter series its longest window. By default the test rows of `fit` (`test`).
            start: as in `predict`.

        Returns:
            "mse" and "mae"; of several series also "mase" and "smape", averages over series as in forecasting
            competitions; the same of each baseline, such as "last value mse", "seasonal last value mse", "linear mse"
            and "Theta mse"; "variance" of what was to be forecast; and "windows", their number. MASE is relative to
            the mean change over a season in the rows before the test rows, or in X.
        """
        self._check_fitted()
        scores, variance = self._fitted.scores(X, start, self._fitted.baselines, torch.tensor(self.mean_))
        results: dict[str, float] = {}
        for name, errors in scores.errors.items():
            prefix = "" if name == "model" else f"{name} "
            values = {"mse": errors.mse, "mae": errors.mae, **errors.averages()}
            results |= {f"{prefix}{kind}": value for kind, value in values.items()}
        return {**results, "variance": variance, "windows": scores.windows}

    def score(self, X: Any, y: Any = None, *, start: int | None = None) -> float:
        """R² of the forecasts from every row: 1 is perfect, 0 is as good as the mean.

        Args:
            X: as in `evaluate`.
            y: not used; for scikit-learn.
            start: as in `predict`.
        """
        self._check_fitted()
        scores, variance = self._fitted.scores(X, start, {}, torch.tensor(self.mean_))
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
        return self._fitted.backtest(X, folds)

    def cross_validation(
        self,
        windows: int = 3,
        *,
        step: int | None = None,
        horizon: int | None = None,
        refit: bool = True,
        level: float | Sequence[float] | None = None,
    ) -> Any:
        """Rolling origin at the ends of the series of `fit`: forecasts from earlier rows beside what was measured.

        For each cutoff an estimator with the same arguments is fitted to the rows up to it, `test` rows included, and
        its forecasts begin at the next step. They have not seen later rows; but covariates are known ahead.

        >>> table = forecaster.cross_validation(windows=3, level=80)
        >>> (table["y"] - table["forecast"]).abs().mean()

        Args:
            windows: the number of cutoffs. The horizon of the last one ends with each series.
            step: steps from one cutoff to the next; by default `horizon`.
            horizon: steps ahead, at most those that were fitted, which is the default.
            refit: whether to fit for each cutoff. If not, the fit for the first one forecasts from all.
            level: levels of prediction intervals in percent, such as [80, 95].

        Returns:
            A data frame like that of `fit`, of polars for files and arrays: the name of the series, if it has several
            or a column of them; the time; "cutoff", the time of the last row that was known; the column, NaN or null
            where nothing was measured; "forecast"; and "forecast-lo-80", "forecast-hi-80", … Of several columns the
            forecasts are called "load-forecast" and so on. Series that are too short for a cutoff are left out of it.

        Raises:
            ValueError: an argument is wrong, or the rows before a cutoff are too few.
        """
        self._check_fitted()
        fitted, levels = self._fitted, _levels(level)
        horizon = fitted.checked_horizon(horizon)
        step = horizon if step is None else step
        for name, value in (("windows", windows), ("step", step)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        data = fitted.series("cross_validation").data
        tests: list[Tested] = []
        model = fitted
        for number in range(windows):
            back = horizon + (windows - 1 - number) * step
            past = before(data, back, horizon)
            if not past.pieces:
                raise ValueError(
                    f"the first of {windows} cutoffs is {back} steps before the end of the series, none of which has"
                    " so many rows: give fewer windows or a smaller step"
                )
            if refit or not number:
                try:
                    model = self._fitted_to(past)
                except (ValueError, DataError) as error:
                    raise ValueError(
                        f"cutoff {number + 1} of {windows}, {back} steps before the end: {error}"
                    ) from None
            pieces = [*last_pieces(past.pieces).values()]
            intervals = None if levels is None else model.intervals(levels, horizon)
            ahead = model.forecast(pieces, True, horizon, intervals)
            tests.append(Tested(pieces, ahead.lines(intervals)))
        form = None if fitted.tables is None else fitted.tables[0].form
        return tested_table(data, fitted.settings, tests, horizon, form)

    def _fitted_to(self, data: SeriesData) -> Fitted:
        """An estimator with the same arguments, fitted to all rows of these series."""
        other = type(self)(**{**self.get_params(), "test": 0.0})
        return other.fit_split(other._split_of(self._fitted, data)).fitted_

    def _split_of(self, fitted: Fitted, data: SeriesData) -> Split:
        """The split of rows of the series that another estimator was fitted to."""
        if data.config is not None:
            return self.split(data)
        assert fitted.tables is not None
        return Split.of_each(data, len(fitted.tables), self._wanted(), fitted.validation_rows)

    def plot(self, path: str | Path, level: float | Sequence[float] = (80, 95)) -> None:
        """Draw forecasts of the last rows with their intervals on what was measured: of the test rows, or without
        (`test`) of the validation rows.

        Args:
            path: of the image, such as "forecast.png".
            level: levels of the intervals in percent.
        """
        from plmu.timeseries.forecast_files import plot_forecasts

        self._check_fitted()
        fitted = self._fitted
        plot_forecasts(Path(path), fitted.series("plot"), fitted.unrefitted, fitted.intervals(_levels(level) or ()))

    def stream(self, *, start: int | None = None, learn: bool = False, half_life: float | str | None = None) -> Stream:
        """A stream of `model`: push a sample (channels,), get the next `horizon` values, flat, steps ahead first.

        >>> stream = forecaster.stream(learn=True)
        >>> stream.push(sample)  # is forecast, and earlier forecasts are scored and learned as they come true
        >>> stream.report().lower  # of intervals that adapt, and the running error

        Args:
            start: the number of the first sample, counted from the first row of `fit`. By default the stream continues
                the series of `fit`.
            learn: whether it learns from what it forecasts, and its intervals adapt (`plmu.nn.LearningForecast`).
            half_life: the age at which what was learned counts half, in steps, or a length of time such as "7d"; by
                default that of the estimator, or 8,000 steps. `math.inf` forgets nothing.

        Returns:
            The stream; with `learn` it has a method `report`.
        """
        self._check_fitted()
        if half_life is not None and not learn:
            raise ValueError(f"half_life={half_life!r} is for streams that learn: give learn=True")
        streamed: Callable[[ForecastModel], Stream] = Stream
        if learn:
            wanted = self.half_life if half_life is None else half_life
            steps = None if wanted is None else steps_in(wanted, self._fitted.settings.clock)
            streamed = partial(self._learning_stream, half_life=steps)
        if start is not None:
            return streamed(at_phase(self.model, start))
        pieces = self._fitted.series("stream").data.pieces
        if not pieces:
            raise ValueError("give start: there are no rows yet")
        if len({piece.name for piece in pieces}) > 1 or self._fitted.several:
            raise ValueError("give start: the estimator was fitted to several series")
        return stream_after(self.model, pieces[-1], streamed)

    def _learning_stream(self, model: ForecastModel, half_life: float | None) -> LearningStream:
        """A stream of a model, this one's or the same at another phase, that learns."""
        split, intervals = self._fitted.series("stream(learn=True)"), self._fitted.intervals(LEVELS)
        return LearningStream(learning_model(model, split, intervals, self.validation_, half_life))

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
        forecaster.model_ = model
        forecaster._fitted = Fitted(model, model, settings, settings.covariates, intervals)
        forecaster.n_features_in_ = len(settings.values) + len(settings.covariates)
        return forecaster

    @property
    def settings_(self) -> Settings:
        """What the fitted model reads and forecasts."""
        self._check_fitted()
        return self._fitted.settings

    @property
    def levels_(self) -> tuple[float, ...]:
        """The levels of intervals, in percent, that a saved model has."""
        self._check_fitted()
        stored = self._fitted.stored
        return () if stored is None else stored.percent

    @property
    def fitted_(self) -> Fitted:
        """What the methods above share: baselines, and fits to fewer rows."""
        self._check_fitted()
        return self._fitted

    @property
    def _notes(self) -> list[str]:
        return list(vars(self).get("notes_", ()))

    @property
    def _columns(self) -> list[str | int]:
        if isinstance(self.covariates, str) or not isinstance(self.covariates, Iterable):
            raise ValueError(f"covariates must be a list of columns, got {self.covariates!r}")
        return list(self.covariates)

    def _wanted(self) -> Wanted:
        season, lags = self.season, self.lags
        of_lookback = [name for name in _OF_LOOKBACK if getattr(self, name) is not None]
        if self.pooled and of_lookback:
            raise ValueError(f"pooled=True takes no {of_lookback[0]}: leave out one of the two")
        return Wanted(
            self.horizon,
            self.lookback,
            self.order,
            self.theta,
            season,
            lags,
            self.validation,
            self.test,
            False if of_lookback else self.pooled,
        )

    def _options(self) -> Options:
        return Options(
            self.individual, self.alpha, self.refit, self.lags, self.calendar, bool(self.pooled), self.nonnegative
        )

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
        steps_in(self.half_life, None)
        if not 0 <= self.test < 1:
            raise ValueError(f"test must be a share, at least 0 and below 1, got {self.test!r}")


def _quantiles(quantiles: Sequence[float]) -> list[float]:
    """Quantiles as different numbers between 0 and 1."""
    listed = [float(value) for value in quantiles] if isinstance(quantiles, Iterable) else []
    if not listed or not all(0 < value < 1 for value in listed) or len(set(listed)) < len(listed):
        raise ValueError(f"quantiles must be different numbers between 0 and 1, such as [0.1, 0.9], got {quantiles!r}")
    return listed


def _levels(level: float | Sequence[float] | None) -> tuple[float, ...] | None:
    """Levels in percent as fractions."""
    if level is None:
        return None
    levels = [level] if isinstance(level, int | float | np.number) else list(level)
    if not levels or not all(0 < value < 100 for value in levels):
        raise ValueError(f"level must be percentages between 0 and 100, such as [80, 95], got {level!r}")
    return tuple(sorted({round(float(value) / 100, 12) for value in levels}))
