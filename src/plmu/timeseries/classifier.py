"""Classes of whole series: ridge regression on how often projections of the memory's states exceed thresholds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plmu.nn import DelayLayer, Sequential
from plmu.timeseries import labelled_files, threshold_features
from plmu.timeseries.classification_report import ClassificationReport
from plmu.timeseries.frames import Array, is_table, series_of
from plmu.timeseries.labelled import LabelledConfig, LabelledData, by_number, checked_labels, classes_of
from plmu.timeseries.labelled_columns import Format
from plmu.timeseries.reader_options import configured
from plmu.timeseries.ridge_classes import Readout, leave_one_out
from plmu.timeseries.saved_classes import SavableClassifier

_MAX_COMPARED = 300  # training series by which the normalisation is chosen


class SequenceClassifier(SavableClassifier):
    """Classifies series of equal or unequal length, with one or many channels, fitted in closed form in seconds.

    The signal and its differences go into Delay Networks with windows from 9 steps up to the length of the series.
    Random projections of their states are compared with thresholds, which are quantiles of the training data. How often
    they exceed the thresholds, and where in the series, are the features of a ridge regression. Features are weighted
    by how well they separate the training classes; leave-one-out errors choose alpha.

    After `fit`, `model` is an ordinary plmu model, which computes a score for each class: it streams with running
    counts, saves, folds and exports. It takes series as `prepare` returns them.

    `X` may always be a file or folder, too, or what `plmu.timeseries.read_labelled` returns. After `fit` to a file,
    other files are read alike.

    >>> classifier = plmu.SequenceClassifier().fit(series, labels)  # (examples, time), or a list of arrays
    >>> classifier.predict(others)
    >>> plmu.save(classifier.model, "gestures.plmu")
    >>> print(plmu.SequenceClassifier().fit("gestures.csv").evaluate("test.csv"))

    Args:
        order: the number of Legendre coefficients of each memory.
        windows: θ of the memories in steps; by default 9, 18, 36 … up to the length of the longest series.
        projections: the number of random projections of each memory's state.
        thresholds: the number of thresholds of each projection.
        normalize: True scales each channel of each series to mean 0 and standard deviation 1. False leaves it as it is,
            so that the model can stream samples as they come. "both" uses a scaled and a plain copy. "auto" chooses
            among these by the smallest leave-one-out error: see `normalize_`.
        alphas: candidates for the strength of the ridge regression's penalty.
        random_state: seed of the projections.
        half_life: the number of later examples after which one counts half as much in the readout, so that it follows
            a drift; by default all count alike.
    """

    _renamed: ClassVar = {"strengths": "alphas", "strength_": "alpha_"}

    def __init__(
        self,
        *,
        order: int = 9,
        windows: Any = None,
        projections: int = 32,
        thresholds: int = 6,
        normalize: Any = "auto",
        alphas: Any = None,
        random_state: int = 0,
        half_life: float | None = None,
    ) -> None:
        self.order = order
        self.windows = windows
        self.projections = projections
        self.thresholds = thresholds
        self.normalize = normalize
        self.alphas = alphas
        self.random_state = random_state
        self.half_life = half_life

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to labelled series.

        Args:
            X: (examples, time) or (examples, time, channels), or a list of arrays (time,) or (time, channels); or a
                file or folder with labels, or what `plmu.timeseries.read_labelled` returns.
            y: the label of each series, (examples,): numbers or names. Files have their own.

        Returns:
            This estimator.

        Raises:
            ValueError: X and y do not fit together, or there is only one class.
            DataError: the file cannot be read.
        """
        self._check_parameters()
        return self._fit(*self._training_data(X, y))

    def _fit(self, arrays: list[Array], labels: NDArray[np.int64]) -> Self:
        """Fit to series (time, channels) whose classes have these places in `classes_`."""
        self.class_count_ = np.bincount(labels)
        self.n_channels_ = arrays[0].shape[1]
        target = torch.tensor(labels)
        self.normalize_, fitted = self.normalize, None
        if self.normalize == "auto":
            self.normalize_, fitted = self._best_normalization(arrays, target)
        front, features = self._features(arrays, self.normalize_) if fitted is None else fitted
        readout = self._readout(features, target)
        self.alpha_, self.loo_accuracy_ = readout.alpha, readout.accuracy
        self._read_out(front, readout.weight, readout.bias)
        self._begin(arrays, labels, readout.sharpness)
        return self

    def _check_parameters(self) -> None:
        for name in ("order", "projections", "thresholds"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if np.ndim(self.normalize) or self.normalize not in (True, False, "both", "auto"):
            raise ValueError(f'normalize must be True, False, "both" or "auto", got {self.normalize!r}')
        for name in ("windows", "alphas"):
            value = getattr(self, name)
            if value is not None and not _are_positive(value):
                raise ValueError(f"{name} must be None or a list of numbers above 0, got {value!r}")
        if not isinstance(self.random_state, int | np.integer):
            raise ValueError(f"random_state must be an integer, got {self.random_state!r}")
        if self.half_life is not None and (self.half_life is True or not _are_positive([self.half_life])):
            raise ValueError(f"half_life must be None or a positive number of examples, got {self.half_life!r}")

    def _training_data(self, X: Any, y: Any) -> tuple[list[Array], NDArray[np.int64]]:
        """Series (time, channels), and the index of the class of each."""
        if isinstance(X, str | Path):
            X = labelled_files.read_labelled(X)
        for name in ("n_features_in_", "format_"):
            if name in vars(self):
                delattr(self, name)
        if isinstance(X, LabelledData):
            if y is not None:
                raise ValueError("y must be None where X has labels of its own")
            if len(X.classes) < 2 or None in X.labels:
                raise ValueError(f"X must have a label for each series and at least two classes, got {X.classes}")
            self.classes_, self.format_ = np.array(X.classes), X.format
            return series_of(X.series), np.array([X.classes.index(str(label)) for label in X.labels])
        arrays = series_of(X)
        self.classes_, labels = classes_of(y, len(arrays))
        if is_table(X):
            self.n_features_in_ = len(arrays[0])
        return arrays, labels

    def _features(self, arrays: list[Array], normalize: Any) -> tuple[Sequential, Tensor]:
        """The layers before the readout, built for these series, and their outputs (examples, features). `normalize` is
        True, False or "both", as in `threshold_features.padded`."""
        x, lengths = threshold_features.padded(arrays, normalize)
        front = threshold_features.build(
            x,
            lengths,
            sources=2 if normalize == "both" else 1,
            order=self.order,
            windows=self._windows(x.shape[1]),
            projections=self.projections,
            thresholds=self.thresholds,
            generator=torch.Generator().manual_seed(int(self.random_state)),
        )
        return front, threshold_features.outputs(front, x, lengths)

    def _readout(self, features: Tensor, labels: Tensor, copies: int = 1) -> Readout:
        """The ridge regression to classes from features (examples, copies · features of each), where `copies` are the
        normalisations of the series whose features are joined."""
        alphas = [10.0 ** (k / 2) for k in range(-6, 11)] if self.alphas is None else list(self.alphas)
        scales = threshold_features.scales(features.shape[1] // copies).repeat(copies)
        return leave_one_out(features, labels, alphas, scales)

    def _best_normalization(
        self, arrays: list[Array], labels: Tensor
    ) -> tuple[bool | str, tuple[Sequential, Tensor] | None]:
        """The normalisation with the smallest leave-one-out error on a sample of the series, and what `_features`
        returned for it; None instead if the sample or the normalisation is another."""
        if _are_alike(arrays) or threshold_features.lacks_digits(arrays) is not None:
            return True, None
        generator = torch.Generator().manual_seed(int(self.random_state))
        sample = torch.randperm(len(arrays), generator=generator)[:_MAX_COMPARED].sort().values
        compared = [arrays[i] for i in sample.tolist()]
        fitted = {normalize: self._features(compared, normalize) for normalize in (True, False)}
        errors = {key: self._readout(features, labels[sample]).error for key, (_, features) in fitted.items()}
        both = torch.cat([features for _, features in fitted.values()], dim=1)
        best = min(errors, key=lambda key: errors[key])
        if self._readout(both, labels[sample], 2).error < errors[best]:
            return "both", None
        return best, fitted[best] if len(compared) == len(arrays) else None

    @classmethod
    def from_run(cls, folder: str | Path) -> SequenceClassifier:
        """The classifier of a run of `plmu train classify`.

        >>> plmu.SequenceClassifier.from_run("runs/classify-gestures-seed0").predict("new.csv")

        Args:
            folder: of the run.

        Raises:
            RunError: a file of the run is missing or damaged.
        """
        from plmu.timeseries.classify_files import read_fitted

        classifier = cls()
        vars(classifier).update(read_fitted(Path(folder)))
        return classifier

    @property
    def model(self) -> Sequential:
        """The fitted model: scores of the classes, whose softmax is their probability."""
        self._check_fitted()
        return self.model_

    def read(self, path: str | Path, **options: Any) -> LabelledData:
        """Series of a file or folder, read like the file this classifier was fitted to; labels may be missing.

        Args:
            path: CSV, Parquet, NumPy, .ts or .arff file, or a folder.
            options: as in `plmu.timeseries.read_labelled`.

        Raises:
            DataError: the file cannot be read.
        """
        self._check_fitted()
        form: Format | None = vars(self).get("format_")
        return labelled_files.load(configured(LabelledConfig, path, options, "read"), form, self.classes_.tolist())

    def prepare(self, X: Any) -> list[Array]:
        """Series as `model` takes them: (time, channels) each, normalised as `normalize_` says.

        With "both", the normalised channels come first.

        Args:
            X: as in `fit`.
        """
        x, lengths = self._prepared(X)
        return [series[:length].double().numpy() for series, length in zip(x, lengths.tolist(), strict=True)]

    def decision_function(self, X: Any) -> Array:
        """The score of each class, (examples, classes); with two classes the second's minus the first's, (examples,).

        Args:
            X: as in `fit`; lengths may differ.
        """
        scores = self.scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each series, (examples,).

        Args:
            X: as in `fit`; lengths may differ.
        """
        best = self.scores(X).argmax(axis=1)
        classes: NDArray[Any] = self.classes_[best]
        return classes

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, (examples, classes), in the order of `classes_`.

        Args:
            X: as in `fit`; lengths may differ.
        """
        return torch.softmax(torch.tensor(self.scores(X)), dim=1).numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """The fraction of series that are classified correctly.

        Args:
            X: as in `fit`.
            y: the label of each series; files have their own.

        Raises:
            ValueError: there are not as many labels as series.
        """
        X = self.read(X) if isinstance(X, str | Path) else X
        predicted = self.predict(X)
        return float(np.mean(predicted == self._labels(X, y, len(predicted))))

    def evaluate(self, X: Any, y: Any = None) -> ClassificationReport:
        """Accuracy beside that of the most frequent class, precision and recall of each class, and confusion matrix.

        Series of classes that this classifier was not fitted to count as wrong; the report names them.

        Args:
            X: as in `fit`.
            y: the label of each series; files have their own.

        Raises:
            ValueError: there are not as many labels as series, a series has none, or none has one of `classes_`.
        """
        X = self.read(X) if isinstance(X, str | Path) else X
        predicted = self.scores(X).argmax(axis=1)
        labels = self._labels(X, y, len(predicted)).tolist()
        trained = self.classes_.tolist()
        if None in labels or not set(labels) & set(trained):
            raise ValueError(f"{type(self).__name__} was fitted to series of the classes {trained}; the label"
                             f" {None if None in labels else labels[0]!r} is none of them")  # fmt: skip
        untrained = sorted(set(labels) - set(trained), key=by_number)
        indices = {label: index for index, label in enumerate([*trained, *untrained])}
        truth = np.array([indices[label] for label in labels])
        most_frequent = int(self.class_count_.argmax()) if "class_count_" in vars(self) else None
        return ClassificationReport.of(trained, truth, predicted, most_frequent, untrained)

    @staticmethod
    def _labels(X: Any, y: Any, series: int) -> NDArray[Any]:
        """The labels y, or else those that X was read with; ValueError unless there is one for each series."""
        return checked_labels(
            np.array(X.labels, dtype=object) if y is None and isinstance(X, LabelledData) else y, series
        )

    def scores(self, X: Any) -> Array:
        """The score of each class, (examples, classes), whose softmax is its probability.

        Args:
            X: as in `fit`; lengths may differ.
        """
        return threshold_features.outputs(self.model, *self._prepared(X)).double().numpy()

    def features(self, X: Any) -> Tensor:
        """The inputs of the readout, the model's last layer: (examples, features).

        Args:
            X: as in `fit`; lengths may differ.
        """
        return threshold_features.outputs(self.model[:-1], *self._prepared(X))

    def _prepared(self, X: Any) -> tuple[Tensor, Tensor]:
        """Series (examples, time, channels), normalised and padded, and their lengths."""
        self._check_fitted()
        X = self.read(X) if isinstance(X, str | Path) else X
        arrays = series_of(X.series if isinstance(X, LabelledData) else X)
        self._check_series(X, arrays)
        return threshold_features.padded(arrays, self.normalize_)

    def summary(self) -> str:
        """What was fitted, in a line of plain English."""
        memory = next(layer for layer in self.model if isinstance(layer, DelayLayer))
        windows = ", ".join(f"{theta:g}" for theta in memory.memory.thetas())
        kind = {
            True: "each series normalised",
            False: "series as they are",
            "both": "series as they are and normalised",
        }
        return (
            f"model: order {self.order} over windows of {windows} steps; {kind[self.normalize_]};"
            f" leave-one-out accuracy {100 * self.loo_accuracy_:.1f} %{self._since_fit()}"
        )

    def _windows(self, longest: int) -> list[float]:
        """θ of the memories: as given, or 9, 18, 36 … up to the number of steps of the longest series."""
        if self.windows is not None:
            return [float(window) for window in self.windows]
        windows = [9.0]
        while 2 * windows[-1] <= longest:
            windows.append(2 * windows[-1])
        return windows if longest >= 9 else [float(longest)]

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags

        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        tags.target_tags.required = True
        return tags


def _are_positive(values: Any) -> bool:
    """Whether these are a list or array (n,), not empty, of positive finite numbers."""
    try:
        return bool(np.ndim(values) == 1 and len(values)) and all(0 < float(value) < np.inf for value in values)
    except (TypeError, ValueError):
        return False


def _are_alike(arrays: list[Array]) -> bool:
    """Whether all series have about the same mean and spread, so that normalising them changes little."""
    means, spreads = (np.stack([function(array, axis=0) for array in arrays]) for function in (np.mean, np.std))
    typical = spreads.mean(axis=0)
    return bool((np.ptp(means, axis=0) <= 0.02 * typical).all() and (spreads.std(axis=0) <= 0.1 * typical).all())
