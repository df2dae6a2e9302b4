"""Classes of whole series: ridge regression on how often projections of the memory's states exceed thresholds."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from plmu.nn import Sequential
from plmu.timeseries import threshold_features
from plmu.timeseries.base import Estimator
from plmu.timeseries.frames import Array
from plmu.timeseries.ridge_classes import Classes, leave_one_out
from plmu.timeseries.sequences import classes_of, is_table, labels_of, series_of

_COMPARED = 300  # training series by which the normalisation is chosen


class SequenceClassifier(Estimator):
    """Classifies series of equal or unequal length, with one or many channels, fitted in closed form in seconds.

    The signal and its differences go into Delay Networks with windows from 9 steps up to the series' length. For
    random projections of their states it counts how often they exceed thresholds, which are quantiles of the training
    data, and where in the series. These shares of time and positions are the features of a ridge regression. A feature
    counts by how well it tells the classes of the training series apart; leave-one-out errors choose alpha.
    After `fit`, `model` is an ordinary plmu model, which gives a score for each class: it streams with running counts,
    saves, folds and exports. It takes series as `prepare` returns them.

    >>> classifier = plmu.SequenceClassifier().fit(series, labels)  # (examples, time), or a list of arrays
    >>> classifier.predict(others)
    >>> plmu.save(classifier.model, "gestures.plmu")

    Args:
        order: how many Legendre coefficients each memory keeps.
        windows: θ of the memories in steps; by default 9, 18, 36 … up to the length of the longest series.
        projections: random projections of each memory's state.
        thresholds: of each projection.
        normalize: True brings each channel of each series to mean 0 and standard deviation 1. False takes it as it is,
            so that the model can stream samples as they come. "both" takes a normalised and a plain copy. "auto" takes
            the one of them with the smallest leave-one-out error: see `normalize_`.
        alphas: candidates for the strength of the ridge regression's penalty.
        random_state: seed of the projections.
    """

    model_: Sequential
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
    ) -> None:
        self.order = order
        self.windows = windows
        self.projections = projections
        self.thresholds = thresholds
        self.normalize = normalize
        self.alphas = alphas
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to labelled series.

        Args:
            X: (examples, time) or (examples, time, channels), or a list of arrays (time,) or (time, channels).
            y: the label of each series, (examples,): numbers or names.

        Returns:
            This estimator.

        Raises:
            ValueError: X and y do not fit together, or there is only one class.
        """
        for name in ("order", "projections", "thresholds"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if np.ndim(self.normalize) or self.normalize not in (True, False, "both", "auto"):
            raise ValueError(f'normalize must be True, False, "both" or "auto", got {self.normalize!r}')
        for name in ("windows", "alphas"):
            value = getattr(self, name)
            if value is not None and not _are_positive(value):
                raise ValueError(f"{name} must be None or a list of numbers above 0, got {value!r}")
        if not isinstance(self.random_state, int | np.integer):
            raise ValueError(f"random_state must be a whole number, got {self.random_state!r}")
        arrays = series_of(X)
        self.classes_, labels = classes_of(y, len(arrays))
        self.n_channels_ = arrays[0].shape[1]
        if is_table(X):
            self.n_features_in_ = len(arrays[0])
        elif hasattr(self, "n_features_in_"):
            del self.n_features_in_
        target = torch.tensor(labels)
        self.normalize_, made = self.normalize, None
        if self.normalize == "auto":
            self.normalize_, made = self._compared(arrays, target)
        front, features = self._features(arrays, self.normalize_) if made is None else made
        found = self._readout(features, target)
        self.alpha_, self.loo_accuracy_ = found.alpha, found.accuracy
        readout = nn.Linear(found.weight.shape[1], len(self.classes_), device="meta").to_empty(device="cpu")
        with torch.no_grad():
            readout.weight.copy_(found.weight)
            readout.bias.copy_(found.bias)
        self.model_ = Sequential(*front, readout).requires_grad_(False).eval()
        return self

    def _features(self, arrays: list[Array], normalize: Any) -> tuple[Sequential, Tensor]:
        """All but the readout, made for these series, and its outputs (examples, features)."""
        x, lengths = threshold_features.padded(arrays, normalize)
        front = threshold_features.build(
            x,
            lengths,
            2 if normalize == "both" else 1,
            order=self.order,
            windows=self._windows(x.shape[1]),
            projections=self.projections,
            thresholds=self.thresholds,
            generator=torch.Generator().manual_seed(int(self.random_state)),
        )
        return front, torch.cat(list(threshold_features.over_blocks(front, x, lengths)))

    def _readout(self, features: Tensor, labels: Tensor, parts: int = 1) -> Classes:
        alphas = [10.0 ** (k / 2) for k in range(-6, 11)] if self.alphas is None else list(self.alphas)
        scales = threshold_features.scales(features.shape[1] // parts).repeat(parts)
        return leave_one_out(features, labels, alphas, scales)

    def _compared(self, arrays: list[Array], labels: Tensor) -> tuple[bool | str, tuple[Sequential, Tensor] | None]:
        """The normalisation with the smallest leave-one-out error, and its features where all series were compared."""
        if _alike(arrays):
            return True, None
        generator = torch.Generator().manual_seed(int(self.random_state))
        some = torch.randperm(len(arrays), generator=generator)[:_COMPARED].sort().values
        picked = [arrays[i] for i in some.tolist()]
        made = {kind: self._features(picked, kind) for kind in (True, False)}
        errors = {kind: self._readout(features, labels[some]).error for kind, (_, features) in made.items()}
        together = torch.cat([features for _, features in made.values()], dim=1)
        best = min(errors, key=lambda kind: errors[kind])
        if self._readout(together, labels[some], 2).error < errors[best]:
            return "both", None
        return best, made[best] if len(picked) == len(arrays) else None

    @property
    def model(self) -> Sequential:
        """The fitted model: scores of the classes, whose softmax is their probability."""
        self._check_fitted()
        return self.model_

    def prepare(self, X: Any) -> list[Array]:
        """Series as `model` takes them: (time, channels) each, as `normalize_` says.

        Of "both", the normalised channels come first.

        Args:
            X: as in `fit`.
        """
        self._check_fitted()
        x, lengths = threshold_features.padded(series_of(X), self.normalize_)
        return [one[:length].double().numpy() for one, length in zip(x, lengths.tolist(), strict=True)]

    def decision_function(self, X: Any) -> Array:
        """The score of each class, (examples, classes); of two classes the second's over the first's, (examples,).

        Args:
            X: as in `fit`; lengths may be others.
        """
        scores = self.scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each series, (examples,).

        Args:
            X: as in `fit`; lengths may be others.
        """
        best = self.scores(X).argmax(axis=1)
        found: NDArray[Any] = self.classes_[best]
        return found

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, (examples, classes), in the order of `classes_`.

        Args:
            X: as in `fit`; lengths may be others.
        """
        return torch.softmax(torch.tensor(self.scores(X)), dim=1).numpy()

    def score(self, X: Any, y: Any) -> float:
        """The share of series that are classified correctly.

        Args:
            X: as in `fit`.
            y: the label of each series.

        Raises:
            ValueError: there are not as many labels as series.
        """
        found = self.predict(X)
        given = labels_of(y, len(found))
        return float(np.mean(found == given))

    def scores(self, X: Any) -> Array:
        """The score of each class, (examples, classes), whose softmax is its probability.

        Args:
            X: as in `fit`; lengths may be others.
        """
        x, lengths = self._prepared(X)
        return torch.cat(list(threshold_features.over_blocks(self.model, x, lengths))).double().numpy()

    def features(self, X: Any) -> Tensor:
        """What the readout, the model's last layer, takes: (examples, features).

        Args:
            X: as in `fit`; lengths may be others.
        """
        x, lengths = self._prepared(X)
        return torch.cat(list(threshold_features.over_blocks(self.model[:-1], x, lengths)))

    def _prepared(self, X: Any) -> tuple[Tensor, Tensor]:
        self._check_fitted()
        arrays = series_of(X)
        if arrays[0].shape[1] != self.n_channels_:
            raise ValueError(
                f"X has {arrays[0].shape[1]} channels, but {type(self).__name__} was fitted to {self.n_channels_}"
            )
        known = getattr(self, "n_features_in_", None)
        if known is not None and is_table(X) and len(arrays[0]) != known:
            raise ValueError(f"X has {len(arrays[0])} features, but {type(self).__name__} is expecting {known} features"
                             " as input: give series of another length as a list of arrays")  # fmt: skip
        return threshold_features.padded(arrays, self.normalize_)

    def _windows(self, longest: int) -> list[float]:
        if self.windows is not None:
            return [float(one) for one in self.windows]
        found, window = [], 9
        while window <= longest:
            found.append(float(window))
            window *= 2
        return found or [float(longest)]

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags

        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        tags.target_tags.required = True
        return tags


def _are_positive(value: Any) -> bool:
    try:
        return bool(np.ndim(value) == 1 and len(value)) and all(0 < float(one) < np.inf for one in value)
    except (TypeError, ValueError):
        return False


def _alike(arrays: list[Array]) -> bool:
    """Whether all series have about the same mean and spread, so that normalising them changes little."""
    mean, spread = (np.stack([kind(one, axis=0) for one in arrays]) for kind in (np.mean, np.std))
    usual = spread.mean(axis=0)
    return bool((np.ptp(mean, axis=0) <= 0.02 * usual).all() and (spread.std(axis=0) <= 0.1 * usual).all())
