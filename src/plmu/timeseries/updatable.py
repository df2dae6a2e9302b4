"""A `Forecaster` that learns new rows: exactly, without a fit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from plmu.clock import steps_in
from plmu.errors import FileFormatError
from plmu.modelfiles.files import Attachment, save, save_attached
from plmu.timeseries.base import Estimator
from plmu.timeseries.comparing import Summary
from plmu.timeseries.fitted import Fitted
from plmu.timeseries.learning import ReadoutSums, WindowSums
from plmu.timeseries.merging import merged
from plmu.timeseries.partial import Learning
from plmu.timeseries.predictions import ForecastModel
from plmu.timeseries.saved_learning import as_json, packed, read_saved, unpacked
from plmu.timeseries.series import SeriesData
from plmu.timeseries.split import Split

_ATTRIBUTES = ("mean_", "scale_", "n_features_in_", "feature_names_in_")


class UpdatableForecaster(Estimator):
    """The methods of `Forecaster` for rows that come after those of `fit`."""

    half_life: float | str | None
    model_: ForecastModel
    validation_: dict[str, Any]
    _fitted: Fitted

    def fit(self, *args: Any, **options: Any) -> Self:
        raise NotImplementedError

    def fit_split(self, split: Split) -> Self:
        raise NotImplementedError

    def _check_arguments(self) -> None:
        raise NotImplementedError

    def _split_of(self, fitted: Fitted, data: SeriesData) -> Split:
        raise NotImplementedError

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        id: str | None = None,
        time: str | None = None,
        values: Sequence[str] | None = None,
    ) -> Self:
        """Learn new rows: the sums of the regression grow by them, and the readout is solved again.

        Fitting in pieces gives what one fit to all rows with the same choices gives. What `fit` chose is held:
        look-back, season and its pattern, penalties, units of series, which model; `choose` chooses again. All rows are
        learned, those of validation and test included, and every window of a look-back, where `fit` takes some of very
        many. Of a `plmu.nn.PooledForecast` windows are as far apart as in `fit`; their weights rest on the errors of
        the readout of `fit`; hidden layers are held, and members that are classical or trained.

        New rows are forecast before they are learned, and these errors are added to those that prediction intervals
        rest on. The first call computes the sums of all rows of `fit`; the time of later ones depends on the number of
        new rows alone. Another `half_life` (`set_params`) holds from the next call on.

        >>> forecaster.fit(january).partial_fit(february).predict(level=80)

        Args:
            X: rows that follow those that were learned, as in `fit`: arrays and frames in a list in the same order,
                without rows where a series has no new ones; in long format and in files series go on by their names.
                New series may come. A gap is filled as in `fit`, or splits the series. Before `fit` this is `fit`.
            y: not used; for scikit-learn.
            id: as in `fit`, for the first rows.
            time: as in `fit`, for the first rows.
            values: as in `fit`, for the first rows.

        Returns:
            This estimator.

        Raises:
            ValueError: X has not the columns of `fit`, or does not follow the rows that were learned.
            DataError: the same for a file or a frame in long format.
        """
        columns = {"id": id, "time": time, "values": values}
        if not self.__sklearn_is_fitted__():
            return self.fit(X, **{name: value for name, value in columns.items() if value is not None})
        for name, value in columns.items():
            if value is not None:
                raise ValueError(f"{name}={value!r} is for the first rows: later ones have the columns of fit")
        self._take(self._fitted.learned(X, self._fitted.with_test_rows(self._learning())))
        return self

    def choose(self) -> Self:
        """Choose again, as `fit` does, by the rows that are held: those of `fit` and `partial_fit`, at most the last
        1,000,000 of each series. The sums are then those of these rows.

        Returns:
            This estimator.

        Raises:
            ValueError: the estimator was loaded, and holds the last rows of each series alone.
        """
        self._check_fitted()
        split = self._split_of(self._fitted, self._fitted.series("choose").data)
        tables, several = self._fitted.tables, self._fitted.several
        self.fit_split(split)
        self._fitted.tables, self._fitted.several = tables, several
        return self

    def save(self, path: str | os.PathLike[str], *, updatable: bool = False) -> None:
        """Write the model to a file that `plmu.load` reads; if `updatable`, with all that `partial_fit` needs: sums,
        errors and the last rows of each series. A loaded estimator goes on as this one does, bit for bit.

        >>> forecaster.save("load.plmu", updatable=True)
        >>> plmu.Forecaster.load("load.plmu").partial_fit(tomorrow)

        Args:
            path: of the file. It is replaced only when all of it has been written.
            updatable: whether `load` can read it.
        """
        self._check_fitted()
        if not updatable:
            save(self.model_, path)
            return
        learned = packed(self._fitted, self._fitted.with_test_rows(self._learning()))
        attributes = {name: np.asarray(vars(self)[name]).tolist() for name in _ATTRIBUTES if name in vars(self)}
        defaults = type(self)().get_params()
        params = {name: value for name, value in self.get_params().items() if value != defaults[name]}
        whole = {"params": params, "attributes": attributes, "chosen": self.validation_}
        content = as_json({"estimator": type(self).__name__, **whole, "learned": learned.content})
        save_attached(self.model_, path, Attachment(content, learned.tensors))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, empty: bool = False) -> Self:
        """The estimator that `save` wrote with `updatable=True`. It forecasts and learns; for `choose`, `evaluate`,
        `score`, `plot`, `backtest` and `cross_validation` it has too few rows. Frames that it returns without X have
        times to the microsecond; for files and frames in long format they are of polars.

        Args:
            path: of the file.
            empty: whether to take what was chosen alone, without rows, sums and errors: for rows that another machine
                learns, and `merge`.

        Raises:
            FileFormatError: the file is broken, or was saved without `updatable=True`.
        """
        model, attachment = read_saved(path, cls, ForecastModel)
        content = attachment.content
        try:
            estimator = cls(**content["params"])
            estimator._check_arguments()
            estimator.validation_ = Summary(content["chosen"])
            for name in _ATTRIBUTES:
                if (value := content["attributes"].get(name)) is not None:
                    kind = object if name == "feature_names_in_" else None
                    setattr(estimator, name, np.array(value, dtype=kind) if isinstance(value, list) else value)
            learned = Attachment(content["learned"], attachment.tensors)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"{path} has a broken description of the estimator: {error!r}") from None
        estimator._take(unpacked(learned, model.eval(), empty))
        return estimator

    def merge(self, other: UpdatableForecaster) -> Self:
        """Add what another estimator with the same choices has learned, such as one on another machine.

        >>> plmu.Forecaster(horizon=24).fit(first).save("choices.plmu", updatable=True)
        >>> part = plmu.Forecaster.load("choices.plmu", empty=True).partial_fit(rows)  # on each machine
        >>> whole = plmu.Forecaster.load("choices.plmu").merge(part)

        Series of files and frames in long format are told by name; both may have rows of a series from different times,
        of which the windows over the border are not learned. Arrays and wide frames of `other` come after those of
        this one.

        Args:
            other: an estimator, which stays as it is.

        Returns:
            This estimator.

        Raises:
            ValueError: something else was chosen, which is named; or both have learned rows of a series from the same
                times.
        """
        self._check_fitted()
        if not isinstance(other, UpdatableForecaster):
            raise TypeError(f"other must be a Forecaster, got {type(other).__name__}")
        other._check_fitted()
        parts = [(each._fitted, each._fitted.with_test_rows(each._learning())) for each in (self, other)]
        self._take(merged(*parts[0], *parts[1]))
        return self

    @property
    def sums_(self) -> ReadoutSums:
        """The sums of products over all windows from which the readout of a `plmu.nn.LookbackForecast` is solved, with
        its penalties. Test rows are in them after the first `partial_fit`."""
        self._check_fitted()
        sums = self._learning().sums
        if not isinstance(sums, WindowSums):
            raise ValueError("sums_ are those of a LookbackForecast: this model is a PooledForecast, which has several")
        return sums.sums

    def _learning(self) -> Learning:
        """The sums so far: those of `fit` before any other rows."""
        learning, split = self._fitted.learning, self._fitted.series("partial_fit")
        if learning is not None:
            steps = steps_in(self.half_life, split.data.clock)
            return replace(learning, forgetting=learning.forgetting._replace(half_life=steps))
        if self._fitted.started is None:
            self._fitted.started = Learning.of(self._fitted, self.validation_, self.half_life)
        return self._fitted.started

    def _take(self, fitted: Fitted) -> None:
        """Take over what was learned."""
        self._fitted, self.model_ = fitted, fitted.model
