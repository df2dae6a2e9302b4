"""A `SequenceClassifier` that learns new examples: exactly, without a fit."""

from __future__ import annotations

import copy
from dataclasses import replace
from numbers import Number
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from plmu.nn import Sequential
from plmu.timeseries import threshold_features
from plmu.timeseries.base import Estimator
from plmu.timeseries.frames import Array, is_table, series_of
from plmu.timeseries.labelled import LabelledData, by_number, checked_labels
from plmu.timeseries.learning_classes import ClassSums

HELD_VALUES = 2**25  # values in the latest examples that are held, for `choose`


class UpdatableClassifier(Estimator):
    """The methods of `SequenceClassifier` for examples that come after those of `fit`."""

    half_life: float | None
    model_: Sequential
    classes_: NDArray[Any]
    class_count_: NDArray[Any]
    alpha_: float
    n_channels_: int
    normalize_: Any
    _sharpness: float
    _sums: ClassSums | None  # None before they are asked for
    _examples: tuple[list[Array], NDArray[np.int64]] | None  # the latest ones; None where there are too few

    def fit(self, *args: Any, **options: Any) -> Self:
        raise NotImplementedError

    def read(self, path: str | Path, **options: Any) -> LabelledData:
        raise NotImplementedError

    def _fit(self, arrays: list[Array], labels: NDArray[np.int64]) -> Self:
        raise NotImplementedError

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None) -> Self:
        """Learn new examples: the sums of the regression grow by them, and the readout is solved again.

        Fitting in pieces gives what one fit to all examples with the same choices gives. What `fit` chose is held:
        normalisation, projections and thresholds, alpha, and the factor that makes scores probabilities; `choose`
        chooses again. New classes may come. Another `half_life` (`set_params`) holds from the next call on. The first
        call computes the features of all examples of `fit` in float64.

        >>> classifier.fit(series, labels).partial_fit(new_series, new_labels)

        Args:
            X: series as in `fit`, before which this is `fit`.
            y: the label of each series; files have their own.
            classes: not used; for scikit-learn.

        Returns:
            This estimator.

        Raises:
            ValueError: X and y do not fit together, or are not like those of `fit`.
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y)
        sums = self._learned()
        arrays, names = self._new_examples(X, y)
        union, places = self._with_new(names)
        labels = places[len(self.classes_) :]
        sums = sums.with_classes(places[: len(self.classes_)].tolist(), len(union))
        sums = sums.learned(self._features_of(arrays), torch.from_numpy(labels))
        counts = np.zeros(len(union), dtype=np.int64)
        counts[places[: len(self.classes_)]] = self.class_count_
        if self._examples is not None:
            held, held_labels = self._examples
            self._hold([*held, *arrays], np.concatenate([places[held_labels], labels]))
        self.classes_, self.class_count_ = union, counts + np.bincount(labels, minlength=len(union))
        self._solve(sums)
        return self

    def choose(self) -> Self:
        """Choose again, as `fit` does, by the examples that are held: those of `fit` and `partial_fit`, of which the
        latest with at most 33,554,432 values. The sums are then those of these examples.

        Returns:
            This estimator.

        Raises:
            ValueError: the estimator was loaded, and holds none.
        """
        self._check_fitted()
        if self._held() is None:
            raise ValueError("choose needs the examples that were learned, and this estimator was loaded: call fit")
        arrays, labels = self._held() or ([], np.zeros(0, np.int64))
        there = np.unique(labels)
        self.classes_ = self.classes_[there]
        return self._fit(arrays, np.searchsorted(there, labels))

    def _begin(self, arrays: list[Array], labels: NDArray[np.int64], sharpness: float) -> None:
        """Hold the examples of `fit`; where older ones count less, solve the readout from sums."""
        self._sums, self._sharpness = None, sharpness
        self._examples = arrays, labels
        if self.half_life is not None:
            self._solve(self._sums_of(arrays, labels))

    def _hold(self, arrays: list[Array], labels: NDArray[np.int64]) -> None:
        """Hold the latest examples with at most `HELD_VALUES` values, and at least one."""
        sizes = np.cumsum([array.size for array in reversed(arrays)])
        count = max(1, int((sizes <= HELD_VALUES).sum()))
        self._examples = arrays[-count:], labels[-count:]

    def _held(self) -> tuple[list[Array], NDArray[np.int64]] | None:
        examples: tuple[list[Array], NDArray[np.int64]] | None = vars(self).get("_examples")
        return examples

    def _learned(self) -> ClassSums:
        """The sums so far: those of `fit` before any other examples."""
        sums = vars(self).get("_sums")
        if sums is None:
            held = self._held()
            if held is None:
                raise ValueError("partial_fit needs the examples of fit, and this estimator is of a run's folder")
            self._sums = sums = self._sums_of(*held)
        return replace(sums, factor=self._factor())

    def _sums_of(self, arrays: list[Array], labels: NDArray[np.int64]) -> ClassSums:
        features = self._features_of(arrays)
        empty = ClassSums.zeros(features.shape[1], len(self.classes_), self._factor())
        return empty.learned(features, torch.from_numpy(labels))

    def _factor(self) -> float:
        return 1.0 if self.half_life is None else 2.0 ** (-1 / self.half_life)

    def _features_of(self, arrays: list[Array]) -> Tensor:
        """Features in float64, so that rounding does not depend on which examples are computed together."""
        front = copy.deepcopy(self.model_[:-1]).double()
        return threshold_features.outputs(front, *threshold_features.padded(arrays, self.normalize_, torch.float64))

    def _new_examples(self, X: Any, y: Any) -> tuple[list[Array], NDArray[Any]]:
        """Series (time, channels) and their labels."""
        X = self.read(X) if isinstance(X, str | Path) else X
        if isinstance(X, LabelledData):
            if y is not None:
                raise ValueError("y must be None where X has labels of its own")
            if None in X.labels:
                raise ValueError("X must have a label for each series")
            arrays, labels = series_of(X.series), np.array(X.labels)
        else:
            arrays = series_of(X)
            if y is None:
                raise ValueError("requires y to be passed, but the target y is None: give a label for each series")
            labels = checked_labels(y, len(arrays))
        self._check_series(X, arrays)
        return arrays, labels

    def _check_series(self, X: Any, arrays: list[Array]) -> None:
        """Raise ValueError unless series have the channels, and tables the steps, of those of `fit`."""
        name, features = type(self).__name__, vars(self).get("n_features_in_")
        if arrays[0].shape[1] != self.n_channels_:
            raise ValueError(f"X has {arrays[0].shape[1]} channels, but {name} was fitted to {self.n_channels_}")
        if features is not None and not isinstance(X, LabelledData) and is_table(X) and len(arrays[0]) != features:
            raise ValueError(f"X has {len(arrays[0])} features, but {name} is expecting {features} features as input:"
                             " give series of another length as a list of arrays")  # fmt: skip

    def _with_new(self, labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The classes with those of other labels, sorted; and the places of the classes so far and of these labels."""
        if absent := [label for label in labels.tolist() if label is None or label != label]:
            raise ValueError(f"y must have a label for each series, got {absent[0]!r}")
        numbers = [all(isinstance(label, Number) for label in kind.tolist()) for kind in (self.classes_, labels)]
        if len(labels) and numbers[0] != numbers[1]:
            kinds = ["numbers" if number else "names" for number in numbers]
            raise ValueError(f"y must be {kinds[0]}, as the labels of fit are, got {kinds[1]}: {labels.tolist()[0]!r}")
        if labels.dtype.kind in "fc" and not (np.isfinite(labels) & (labels == np.round(labels))).all():
            raise ValueError("y must be classes, got numbers with fractions, NaN or infinity")
        both = np.concatenate([self.classes_, labels])
        union, places = np.unique(both, return_inverse=True)
        if "format_" in vars(self):  # classes of files: numbers by their value, then names
            order = np.array(sorted(range(len(union)), key=lambda place: by_number(union[place])))
            union, places = union[order], np.argsort(order)[places]
        return union, places

    def _solve(self, sums: ClassSums) -> None:
        """Take over sums, and the readout that is solved from them."""
        self._sums = sums
        scales = threshold_features.scales(sums.sums.shape[1])
        self._read_out(self.model_[:-1], *sums.readout(self.alpha_, scales, self._sharpness))

    def _read_out(self, front: Sequential, weight: Tensor, bias: Tensor) -> None:
        """The model with this readout, (classes, features) and (classes,)."""
        linear = nn.Linear(weight.shape[1], len(weight), device="meta").to_empty(device="cpu")
        with torch.no_grad():
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        self.model_ = Sequential(*front, linear).requires_grad_(False).eval()

    def _since_fit(self) -> str:
        """A note for `summary` where examples were learned after `fit`."""
        held = self._held()
        fitted = held is not None and len(held[0]) == int(self.class_count_.sum()) and vars(self).get("_sums") is None
        return "" if fitted else " at the fit"
