"""A fitted forecaster: what its methods read, its forecasts, and its scores and intervals."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from plmu.clock import NO_ZONE
from plmu.errors import DataError
from plmu.nn.pooled import PooledForecast
from plmu.runs.intervals import Intervals as StoredIntervals
from plmu.timeseries import series
from plmu.timeseries.choosing import FOLDS, rolling
from plmu.timeseries.comparing import Options
from plmu.timeseries.forecast_tables import forecast_table, formed
from plmu.timeseries.frames import (
    Form,
    SeriesTable,
    as_list,
    check_ahead,
    is_list_of_series,
    moved_to,
    note_rows,
    with_future,
)
from plmu.timeseries.intervals import Intervals, Unseen, unseen_errors
from plmu.timeseries.learning import Grown
from plmu.timeseries.long_frames import LongFrame, library_of
from plmu.timeseries.partial import Learning, grown, grown_split, tables_of, test_rows
from plmu.timeseries.plans import with_plans
from plmu.timeseries.predictions import Ahead, ForecastModel, forecast, found_start
from plmu.timeseries.public_holidays import country_of, with_holidays
from plmu.timeseries.scores import (
    Scores,
    baselines,
    first_rows_to_score,
    last_value,
    model_method,
    score,
    variance,
)
from plmu.timeseries.series import Key, Piece, SeriesData, last_pieces
from plmu.timeseries.series_scores import SeriesUnits
from plmu.timeseries.split import Settings, Split
from plmu.timeseries.windows import Method, Windows

_log = logging.getLogger("plmu")
_WITHOUT_ZONE = "its times have no time zone, and those of the training data have one: give it one"


class Input(NamedTuple):
    """Series to forecast."""

    pieces: list[Piece]
    forms: list[Form] | None  # what they were given as; None for a file or a frame in long format
    placed: bool  # whether the numbers of their first rows are known
    several: bool = False  # whether they were given as a list
    frame: LongFrame | None = None  # in long format


@dataclass(eq=False)
class Fitted:
    """What `Forecaster.fit` leaves, or what the files of a run hold."""

    model: ForecastModel
    unrefitted: ForecastModel  # fitted without the validation rows
    settings: Settings
    covariates: Sequence[str | int]  # their columns, as they were given
    stored: StoredIntervals | None = None  # of a run
    split: Split | None = None  # the series of the fit
    options: Options = field(default_factory=Options)
    without_covariates: ForecastModel | None = None
    tables: list[SeriesTable] | None = None  # arrays and wide frames as they were given
    several: bool = False  # whether as a list
    validation_rows: Sequence[int] | None = None  # of each, if they were given
    learning: Learning | None = None  # of all rows, once there were some after those of the fit
    tails: bool = False  # whether the series are the last rows alone
    started: Learning | None = None  # of the rows of the fit, once it was asked for

    def series(self, method: str) -> Split:
        """Those of the fit, which this method needs."""
        if self.split is None:
            raise ValueError(f"{method} needs the series of fit, and this estimator is of a run's folder")
        if self.tails and method not in ("predict", "stream", "partial_fit"):
            raise ValueError(
                f"{method} needs the rows that were learned: this estimator was loaded, and has the last rows of each"
                " series alone"
            )
        return self.split

    def short(self, pieces: Sequence[Piece]) -> int:
        """How many of these series are too short for a forecast as good as that of others."""
        return sum(len(piece) < self._least for piece in pieces)

    def less_certain(self, count: int) -> str:
        """What to say of so many series that are too short."""
        return f"{count:,} series shorter than {self._least} steps: less certain"

    @property
    def _least(self) -> int:
        """Rows of the shortest series that the whole model can be used for, or half of its members, by their shares."""
        if not isinstance(self.model, PooledForecast):
            return self.settings.least
        shares = self.model.shares.tolist()
        ordered = sorted(zip((member.kind.lookback for member in self.model.readouts), shares, strict=True))
        totals = accumulate(share for _, share in ordered)
        return next(rows for (rows, _), total in zip(ordered, totals, strict=True) if total >= sum(shares) / 2)

    def predict(
        self,
        X: Any,
        levels: tuple[float, ...] | None,
        start: int | None,
        future: Any,
        horizon: int | None = None,
        quantiles: Sequence[float] | None = None,
    ) -> Any:
        """The steps after the last row of X, in its form.

        Args:
            X: as in `Forecaster.predict`, as `start`, `future` and `horizon` are.
            levels: of intervals, as fractions.
            start: of X.
            future: covariates.
            horizon: steps ahead; by default all.
            quantiles: instead of intervals. Their levels are `levels`.
        """
        settings = replace(self.settings, horizon=self.checked_horizon(horizon))
        inputs = self.read(X, start, future)
        if self.settings.covariates:
            for place, piece in enumerate(inputs.pieces):
                name = f"X[{place}]" if inputs.forms is not None and len(inputs.pieces) > 1 else "X"
                check_ahead(piece, settings.horizon, self.covariates, name)
        intervals = None if levels is None else self.intervals(levels, settings.horizon)
        ahead = self.forecast(inputs.pieces, inputs.placed, settings.horizon, intervals)
        if short := self.short(inputs.pieces):
            _log.info(self.less_certain(short))
        if inputs.forms is None:
            return forecast_table(settings, inputs.pieces, ahead.lines(intervals, quantiles), inputs.frame)
        shown = [
            formed(settings, piece, form, ahead.of_series(place), intervals, quantiles)
            for place, (piece, form) in enumerate(zip(inputs.pieces, inputs.forms, strict=True))
        ]
        return shown if inputs.several else shown[0]

    def forecast(
        self, pieces: Sequence[Piece], placed: bool, horizon: int, intervals: StoredIntervals | None = None
    ) -> Ahead:
        """The first `horizon` steps after each piece, for these intervals; later covariates are not read."""
        unit = intervals or self.stored or self._unit
        return forecast(self.model, unit, [piece.ahead(horizon) for piece in pieces], placed).until(horizon)

    def checked_horizon(self, horizon: int | None) -> int:
        """The number of steps that are forecast, by default all.

        Raises:
            ValueError: the model does not forecast so many.
        """
        most = self.settings.horizon
        if horizon is None:
            return most
        if isinstance(horizon, bool) or not isinstance(horizon, int | np.integer) or not 1 <= horizon <= most:
            raise ValueError(f"horizon must be an integer from 1 to {most}, which was fitted, got {horizon!r}")
        return int(horizon)

    def intervals(self, levels: Sequence[float], horizon: int | None = None) -> StoredIntervals:
        """Of forecasts of the first steps, from errors on rows that the model has not seen."""
        whole: StoredIntervals
        if self.stored is not None:
            whole = self.stored.only(levels)
        else:
            if self.learning is None:
                unit, unseen = self.errors
                errors, share = unseen.errors, unseen.share
            else:
                unit = self.learning.calibration.unit
                if not len(self.learning.calibration.errors):
                    raise ValueError("prediction intervals need rows that were learned, and there are none yet")
                errors, share = self.learning.calibration.unseen(self.learning.forgetting)
            whole = replace(unit, levels=tuple(sorted(levels))).fitted(errors, share)
        return whole.until(horizon)

    @property
    def _unit(self) -> StoredIntervals:
        """Says what intervals are relative to."""
        if self.learning is not None:
            return self.learning.calibration.unit
        return Intervals.of(self.series("predict"), (), self.model)

    @cached_property
    def errors(self) -> tuple[Intervals, Unseen]:
        """Errors on rows that the model has not seen, and their unit."""
        split, method = self.series("level"), model_method(self.unrefitted)
        unit = Intervals.of(split, (), self.unrefitted).scaled(split, method)
        return unit, unseen_errors(split, method, self.folds, unit)

    def folds(self) -> list[tuple[Method, Tensor]]:
        """Models fitted to the first rows before the validation rows, and the origins that follow those rows: for
        intervals where there are few validation rows."""
        split = self.series("level")
        rows = [a for a, _ in split.cuts]
        most = max(rows) // (4 * split.horizon)  # a fold has two horizons
        folds = rolling(split, self.options, rows, max(1, min(FOLDS, most)))
        return [(model_method(fold.model), fold.origins) for fold in folds]

    def backtest(self, X: Any, folds: int) -> list[dict[str, float]]:
        """Scores of fits to more and more rows, each on the rows that follow."""
        split = self.series("backtest")
        if X is not None:
            pieces = self.read(X, whole=True).pieces
            lengths = [len(piece) for piece in pieces]
            data = replace(split.data, pieces=pieces)
            split = replace(split, data=data, cuts=[(rows, rows) for rows in lengths], validation_rows=lengths)
        tested = []
        for fold in rolling(split, self.options, [len(piece) for piece in split.data.pieces], folds):
            methods = {"model": model_method(fold.model), "last value": last_value(split.horizon)}
            scores = score(methods, split, fold.origins)
            errors = {f"{name}_mse".replace(" ", "_"): error.mse for name, error in scores.errors.items()}
            rows = sum(end for _, end in fold.split.cuts)
            tested.append({"rows": rows, "windows": scores.windows, **errors})
        return tested

    @cached_property
    def baselines(self) -> dict[str, Method]:
        """What the model is compared with."""
        methods = baselines(self.series("evaluate"))
        if self.without_covariates is not None:
            methods["without covariates"] = model_method(self.without_covariates)
        return methods

    def scores(self, X: Any, start: int | None, methods: dict[str, Method], mean: Tensor) -> tuple[Scores, float]:
        """Errors over every window of the model and of other methods, and the variance around the mean of what was to
        be forecast."""
        split = self.series("evaluate")
        windows, origins, pieces, units = split.windows, split.scored("test"), split.data.pieces, None
        if X is not None:
            inputs = self.read(X, start, whole=True)
            pieces = inputs.pieces
            if not inputs.placed:
                pieces = [replace(piece, start=found_start(self.model, piece)) for piece in pieces]
            windows = Windows.of(pieces)
            lengths = [len(piece) for piece in pieces]
            rows = list(zip(first_rows_to_score(self.model, split.settings, pieces), lengths, strict=True))
            units = SeriesUnits.of(pieces, lengths, split.settings.season)
            origins = windows.origins(rows, split.settings.least, split.horizon)
        if not len(origins):
            if X is None:
                raise ValueError("there are no test rows: give X, or hold some out as Forecaster(test=0.2)")
            needed, longest = split.settings.least + split.horizon, max(map(len, pieces))
            raise ValueError(f"X must have at least {needed} rows for one window and its horizon, got {longest}")
        methods = {"model": model_method(self.model), **methods}
        scores = score(methods, split, origins, windows=None if X is None else windows, units=units)
        return scores, variance(windows, origins, split, mean)

    def learned(self, X: Any, learning: Learning) -> Fitted:
        """With the rows of X, which follow those that were learned.

        Args:
            X: as in `Forecaster.partial_fit`.
            learning: of the rows so far, those of test included.
        """
        split = self.series("partial_fit")
        inputs = self.read(X, whole=True, after=last_pieces(split.data.pieces))
        self._check_named(inputs.pieces)
        pieces, series = grown(split.data.pieces, inputs.pieces, learning.reach(split))
        learning = self._learned(learning, series)
        split = grown_split(split, pieces)
        tables = self.tables
        if tables is None:
            split.data.frame = _joined_frames(split.data.frame, inputs.frame)
        else:
            new_tables = as_list(X, "X", self.covariates, held=len(tables))[len(tables) :]
            tables = tables_of([*tables, *new_tables], pieces, self.settings.clock)
        several = self.several or len(tables or ()) > 1
        return self.with_learning(learning, split=split, tables=tables, several=several, validation_rows=None)

    def with_test_rows(self, learning: Learning) -> Learning:
        """With the rows that were not fitted, if there are any."""
        rows = test_rows(self.series("partial_fit"))
        return self._learned(learning, rows) if rows else learning

    def _learned(self, learning: Learning, series: Sequence[Grown]) -> Learning:
        """With new rows. Unless channels of at least 0 were given, one is no longer bounded once it is below 0."""
        learning = learning.learned(series, self.model, self.series("partial_fit"))
        if self.options.nonnegative is not None:
            return learning
        return learning.bounded([channel for channel in learning.model.nonnegative
                                 if all((each.piece.values[:, channel] >= 0).all() for each in series)])  # fmt: skip

    def with_learning(self, learning: Learning, **changes: Any) -> Fitted:
        """With the model that was learned."""
        return replace(self, model=learning.solved(), learning=learning, started=None, **changes)

    def read(
        self,
        X: Any,
        start: int | None = None,
        future: Any = None,
        whole: bool = False,
        after: Mapping[Key, Piece] | None = None,
    ) -> Input:
        """The series to forecast, of each its last piece, or if `whole` all pieces; without X those of the fit. Where
        they follow earlier rows, `after` has the last piece of each."""
        settings = self.settings
        if future is not None and not settings.covariates:
            raise ValueError("future is for covariates: give their columns as Forecaster(covariates=...)")
        source = self._source(X)
        if source is not None or (X is None and self.tables is None):
            data = self._file_data(source, future, after)
            if data.columns.read != (*settings.values, *settings.covariates):
                raise ValueError(f"X must have the columns {', '.join((*settings.values, *settings.covariates))}")
            placed = X is None or start is not None or data.clock.kind != "rows"
            return Input(_chosen(data.pieces, start, whole), None, placed, frame=data.frame)
        held = 0 if after is None else len(after)  # any of which may be without new rows
        tables = self.tables if X is None else self._ordered(as_list(X, "X", self.covariates, held=held), held > 0)
        assert tables is not None
        if not tables:
            raise ValueError("X must be given: there are no rows yet")
        several = self.several if X is None else is_list_of_series(X)
        for table in tables:
            self._check_channels(table)
            self._check_zone(table)
        tables = [table.on(settings.clock) for table in tables]
        if future is not None:
            tables = self._with_future(tables, future, several)
        forms = [table.form for table in tables]
        if X is None and future is None:
            return Input(_chosen(self.series("predict").data.pieces), forms, True, several)
        columns, clock = settings.like
        data = SeriesData(columns, clock, [], other=True)
        names: dict[int, str] = {}
        if after is not None:
            if self.tables is None and any(name for name, _ in after):
                raise ValueError("X must be a file or a data frame that names its series, as that of fit does")
            data.after = {str(source): piece for (_, source), piece in after.items()}
            names = {source: name for name, source in after}
            if len(tables) < len(names):
                raise ValueError(f"X must have the {len(names)} series that were learned, in their order, got"
                                 f" {len(tables)}")  # fmt: skip
        config = None if self.split is None else self.split.data.config  # of a file that was fitted
        config = None if config is None else replace(config, file=Path("X"))
        for place, table in enumerate(tables):
            if not len(table.values):
                continue
            new = table.pieces(place, data, f"X[{place}]" if several else "X", config)
            data.pieces += [replace(piece, name=names.get(place, piece.name)) for piece in new]
        pieces = _chosen(data.pieces, start, whole)
        if X is None:
            pairs = zip(pieces, _chosen(self.series("predict").data.pieces), strict=True)
            return Input([replace(piece, start=same.start) for piece, same in pairs], forms, True, several)
        note_rows(data, [table for table in tables if len(table.values)], False, config)
        for note in data.notes:
            _log.info(note)
        timed = settings.clock.kind != "rows" and all(table.times is not None for table in tables)
        return Input(pieces, forms, timed or start is not None, several)

    def _source(self, X: Any) -> Path | SeriesData | LongFrame | None:
        """X if it is read as a file is: what it is read from; else None."""
        if isinstance(X, str | os.PathLike):
            return Path(X)
        if isinstance(X, SeriesData):
            return X
        if library_of(X) is None:
            return None
        settings, fitted = self.settings, None if self.split is None else self.split.data.frame
        frame = LongFrame.of(X, (settings.id, settings.time)) if fitted is not None or settings.id is not None else None
        if frame is None or not (fitted is not None or frame.has_names(settings.id)):
            return None
        if fitted is not None and fitted.zoned(settings.time) and not frame.zoned(settings.time):
            raise ValueError(f"X: {_WITHOUT_ZONE}")
        return frame

    def _file_data(
        self,
        source: Path | SeriesData | LongFrame | None,
        future: Any,
        after: Mapping[Key, Piece] | None = None,
    ) -> SeriesData:
        """The series of a file or a frame in long format, or of the fit, on the clock of the fit."""
        as_it_is = future is None and after is None
        if isinstance(source, SeriesData) and source.clock == self.settings.clock and as_it_is:
            country = country_of(self.settings.covariates)
            if country in (None, country_of(source.columns.covariates)):
                return source
            return with_holidays(source, str(country))
        if future is not None:
            names = (self.settings.id, self.settings.time)
            future = Path(future) if library_of(future) is None else LongFrame.of(future, names)
        if source is None:
            held = self.series("predict").data
            if not held.pieces:
                raise ValueError("X must be given: there are no rows yet")
            return held if future is None else with_plans(held, future)
        frame = source if isinstance(source, LongFrame) else None
        if isinstance(source, SeriesData):
            config, frame = source.config, source.frame
        else:
            config = None if self.split is None else self.split.data.config
            file = Path("X") if isinstance(source, LongFrame) else source
            config = replace(config or series.SeriesConfig(), file=file, most_rows=0)
        assert config is not None
        before = None if after is None else {name: piece for (name, _), piece in after.items()}
        data = series.load(config, self.settings.like, future, frame, after=before)
        for note in data.notes:
            _log.info(note)
        return data

    def _with_future(self, tables: list[SeriesTable], future: Any, several: bool) -> list[SeriesTable]:
        if not several:
            return [with_future(tables[0], future, self.covariates, "future", self.settings.clock)]
        if not is_list_of_series(future) or len(future) != len(tables):
            raise ValueError(f"future must be a list with covariates for each of the {len(tables)} series")
        pairs = enumerate(zip(tables, future, strict=True))
        clock = self.settings.clock
        return [with_future(table, plan, self.covariates, f"future[{i}]", clock) for i, (table, plan) in pairs]

    def _check_zone(self, table: SeriesTable) -> None:
        """Raise ValueError where times could be hours off: they have a time zone and those of the fit none, or the
        other way round."""
        clock = self.settings.clock
        if table.times is None or clock.kind == "rows":
            return
        zoned = self.tables[0].form.zoned if self.tables else clock.zone is not None
        if table.form.zoned and not zoned:
            raise ValueError(f"X: {NO_ZONE}")
        if zoned and not table.form.zoned and self.tables is not None:
            raise ValueError(f"X: {_WITHOUT_ZONE}")

    def _ordered(self, tables: list[SeriesTable], learned: bool) -> list[SeriesTable]:
        """Data frames with their columns in the order of those of the fit. A single column may have another name,
        unless it goes on with what was `learned`.

        Raises:
            ValueError: the columns have other names than those of a data frame that was fitted.
        """
        of_fit = self.tables[0].form.names if self.tables else self.settings.values
        ordered = []
        for place, table in enumerate(tables):
            names = table.form.names
            if of_fit is None or names is None or names == of_fit:
                ordered.append(table)
            elif sorted(names) == sorted(of_fit):
                values = table.values[:, [names.index(name) for name in of_fit]]
                ordered.append(replace(table, values=values, form=replace(table.form, names=of_fit)))
            elif self.tables and len(names) == len(of_fit) and (learned or len(names) > 1):
                name = "X" if len(tables) == 1 else f"X[{place}]"
                raise ValueError(f"{name} must have the columns {', '.join(of_fit)}, got {', '.join(names)}")
            else:
                ordered.append(table)  # `_check_channels` counts columns
        return ordered

    def _check_named(self, pieces: Sequence[Piece]) -> None:
        """Raise DataError where series of files have names and those of the fit have none, or the other way round."""
        if self.tables is not None or not pieces:
            return
        held = {piece.name for piece in self.series("partial_fit").data.pieces}
        if not held or ("" in held) == any(piece.name == "" for piece in pieces):
            return
        column = self.settings.id
        how = "name" if "" not in held else "not name"
        by = f" by column {column!r}" if column is not None else ""
        raise DataError(f"X must {how} its series{by}, as that of fit does")

    def _check_channels(self, table: SeriesTable) -> None:
        features = table.values.shape[1] + len(self.covariates)
        expected = len(self.settings.values) + len(self.settings.covariates)
        if features != expected:
            hint = ". Reshape your data: give (time, channels)" if table.form.flat else ""
            raise ValueError(
                f"X has {features} features, but Forecaster is expecting {expected} features as input{hint}"
            )


def _joined_frames(frame: LongFrame | None, other: LongFrame | None) -> LongFrame | None:
    """A frame in long format with the names of series of both; None where they are not of the same library."""
    return None if frame is None or other is None else frame.joined(other)


def _chosen(pieces: Sequence[Piece], start: int | None = None, whole: bool = False) -> list[Piece]:
    """Of each series its last piece, or if `whole` all of them; `start`, if not None, is the step of its first row."""
    series: dict[tuple[str, int], list[Piece]] = {}
    for piece in pieces:
        series.setdefault((piece.name, piece.source), []).append(piece)
    moved = [parts if start is None else moved_to(parts, start) for parts in series.values()]
    return [piece for parts in moved for piece in (parts if whole else parts[-1:])]
