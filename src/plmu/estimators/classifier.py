"""Classes of whole series: ridge regression on how often projections of the memory's states exceed thresholds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from plmu.estimators.base import Estimator, warn_of_column
from plmu.estimators.loo import leave_one_out
from plmu.estimators.series import Array, is_list_of_series, numbers
from plmu.nn import CausalConvolution, DelayLayer, Sequential, ThresholdShares

_BLOCK = 2**24  # numbers of projections that are held at a time
_SAMPLE = 4000  # steps of training series from which thresholds are taken
_SERIES = 256  # training series from which scales and thresholds are taken


class SequenceClassifier(Estimator):
    """Classifies series of equal or unequal length, with one or many channels, fitted in closed form in seconds.

    The signal and its differences go into Delay Networks with windows from 9 steps up to the series' length. For
    random projections of their states it counts how often they exceed thresholds, which are quantiles of the training
    data. The shares of time are the features of a ridge regression, whose strength is chosen by leave-one-out errors.
    After `fit`, `model` is an ordinary plmu model, which gives a score for each class: it streams with running counts,
    saves and folds. It takes series as `prepare` returns them.

    >>> classifier = plmu.SequenceClassifier().fit(series, labels)  # (examples, time), or a list of arrays
    >>> classifier.predict(others)
    >>> plmu.save(classifier.model, "gestures.plmu")

    Args:
        order: how many Legendre coefficients each memory keeps.
        windows: θ of the memories in steps; by default 9, 18, 36 … up to the length of the longest series.
        projections: random projections of each memory's state.
        thresholds: of each projection.
        normalize: whether each channel of each series is brought to mean 0 and standard deviation 1. Without it, the
            model can stream samples as they come.
        strengths: of the ridge, of which one is chosen.
        random_state: seed of the projections.
    """

    model_: Sequential

    def __init__(
        self,
        *,
        order: int = 9,
        windows: Any = None,
        projections: int = 42,
        thresholds: int = 8,
        normalize: bool = True,
        strengths: Any = None,
        random_state: int = 0,
    ) -> None:
        self.order = order
        self.windows = windows
        self.projections = projections
        self.thresholds = thresholds
        self.normalize = normalize
        self.strengths = strengths
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
        x, lengths = self._padded(X)
        self.classes_, labels = _labels(y, len(x))
        self.n_channels_ = x.shape[2]
        if _is_table(X):
            self.n_features_in_ = x.shape[1]
        elif hasattr(self, "n_features_in_"):
            del self.n_features_in_
        generator = torch.Generator().manual_seed(int(self.random_state))
        front = self._front(x, lengths, generator)
        shares = torch.cat(list(_over_blocks(front, x, lengths)))
        strengths = [10.0 ** (k / 2) for k in range(-6, 11)] if self.strengths is None else list(self.strengths)
        found = leave_one_out(shares, torch.tensor(labels), strengths)
        self.strength_, self.loo_accuracy_ = found.strength, found.accuracy
        readout = nn.Linear(shares.shape[1], len(self.classes_), device="meta").to_empty(device="cpu")
        with torch.no_grad():
            readout.weight.copy_(found.weight)
            readout.bias.copy_(found.bias)
        self.model_ = Sequential(*front, readout).requires_grad_(False).eval()
        return self

    @property
    def model(self) -> Sequential:
        """The fitted model: scores of the classes, whose softmax is their probability."""
        self._check_fitted()
        return self.model_

    def prepare(self, X: Any) -> list[Array]:
        """Series as `model` takes them: (time, channels) each, normalised where `normalize` is on.

        Args:
            X: as in `fit`.
        """
        x, lengths = self._padded(X)
        return [one[:length].double().numpy() for one, length in zip(x, lengths.tolist(), strict=True)]

    def decision_function(self, X: Any) -> Array:
        """The score of each class, (examples, classes); of two classes the second's over the first's, (examples,).

        Args:
            X: as in `fit`; lengths may be others.
        """
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each series, (examples,).

        Args:
            X: as in `fit`; lengths may be others.
        """
        best = self._scores(X).argmax(axis=1)
        found: NDArray[Any] = self.classes_[best]
        return found

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, (examples, classes), in the order of `classes_`.

        Args:
            X: as in `fit`; lengths may be others.
        """
        return torch.softmax(torch.tensor(self._scores(X)), dim=1).numpy()

    def score(self, X: Any, y: Any) -> float:
        """The share of series that are classified correctly.

        Args:
            X: as in `fit`.
            y: the label of each series.
        """
        return float(np.mean(self.predict(X) == np.asarray(y)))

    def _scores(self, X: Any) -> Array:
        self._check_fitted()
        x, lengths = self._padded(X)
        if x.shape[2] != self.n_channels_:
            raise ValueError(f"X has {x.shape[2]} channels, but {type(self).__name__} was fitted to {self.n_channels_}")
        known = getattr(self, "n_features_in_", None)
        if known is not None and _is_table(X) and x.shape[1] != known:
            raise ValueError(f"X has {x.shape[1]} features, but {type(self).__name__} is expecting {known} features"
                             " as input: give series of another length as a list of arrays")  # fmt: skip
        return torch.cat(list(_over_blocks(self.model, x, lengths))).double().numpy()

    def _padded(self, X: Any) -> tuple[Tensor, Tensor]:
        """Series (examples, time, channels), padded on the right with zeros, and their lengths."""
        arrays = _arrays(X)
        lengths = torch.tensor([len(one) for one in arrays])
        out = torch.zeros(len(arrays), int(lengths.max()), arrays[0].shape[1])
        for row, one in zip(out, arrays, strict=True):
            if self.normalize:
                spread = one.std(axis=0)
                one = (one - one.mean(axis=0)) / np.where(spread > 1e-12 * np.abs(one).max(axis=0), spread, 1.0)
            row[: len(one)] = torch.from_numpy(one)
        if not bool(out.isfinite().all()):
            raise ValueError("X has numbers too large for float32")
        return out, lengths

    def _windows(self, longest: int) -> list[float]:
        if self.windows is not None:
            return [float(one) for one in self.windows]
        found, window = [], 9
        while window <= longest:
            found.append(float(window))
            window *= 2
        return found or [float(longest)]

    def _front(self, x: Tensor, lengths: Tensor, generator: torch.Generator) -> Sequential:
        """All but the readout: the signal and its differences, the memories, projections and their thresholds."""
        windows, channels = self._windows(x.shape[1]), x.shape[2]
        groups = len(windows)
        copies = nn.Linear(channels, 2 * groups * channels, bias=False)
        changes = CausalConvolution(2 * groups * channels, 2)
        memory = DelayLayer(2 * groups * channels, self.order, windows)
        width = self.order * 2 * groups * channels
        projection = nn.Linear(width, 2 * groups * self.projections)
        counts = ThresholdShares(2 * groups * self.projections, self.thresholds, return_sequences=False)
        front = Sequential(copies, changes, memory, projection, counts).requires_grad_(False)
        sample = torch.randperm(len(x), generator=generator)[:_SERIES]
        some, known = x[sample], lengths[sample]
        valid = torch.arange(x.shape[1]) < known[:, None]
        # Channels of the memory: for each window the signal's, then the differences'.
        copies.weight.copy_(torch.eye(channels).repeat(2 * groups, 1))
        changes.weight.zero_()[0] = 1
        changes.weight.unflatten(1, (groups, 2, channels))[1, :, 1] = -1
        states = torch.cat([block[mask] for block, mask in _states(front[:3], some, known, valid, width)])
        spread, mean = torch.std_mean(states.double(), dim=0, correction=0)
        spread = torch.where(spread > 1e-6 * spread.max(), spread, torch.inf).float()
        weight = torch.zeros(2 * groups, self.projections, self.order, 2 * groups, channels)
        for place in range(2 * groups):
            random = torch.randn(self.projections, self.order, channels, generator=generator)
            weight[place, :, :, place] = random / random.flatten(1).norm(dim=1)[:, None, None]
        projection.weight.copy_(weight.flatten(0, 1).flatten(1) / spread)
        projection.bias.copy_(-projection.weight.double() @ mean)
        picked = states[torch.randint(len(states), (_SAMPLE,), generator=generator)]
        levels = (torch.arange(self.thresholds) + 0.5) / self.thresholds
        counts.thresholds.copy_(torch.quantile(projection(picked), levels, dim=0))
        return front

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags

        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        tags.target_tags.required = True
        return tags


def _states(
    front: Sequential, x: Tensor, lengths: Tensor, valid: Tensor, width: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """States (some, time, width) of some series at a time, and which of their steps are no padding."""
    rows = max(1, _BLOCK // (x.shape[1] * width))
    for first in range(0, len(x), rows):
        some = slice(first, first + rows)
        yield front(x[some], lengths=lengths[some])[0], valid[some]


def _over_blocks(model: Sequential, x: Tensor, lengths: Tensor) -> Iterator[Tensor]:
    """The model's outputs of some series at a time, so that memory stays bounded."""
    widest = max(module.out_features for module in model if isinstance(module, nn.Linear))
    rows = max(1, _BLOCK // (x.shape[1] * widest))
    equal = bool((lengths == x.shape[1]).all())
    with torch.no_grad():
        for first in range(0, len(x), rows):
            some = slice(first, first + rows)
            yield model(x[some], lengths=None if equal else lengths[some])[0]


def _is_table(X: Any) -> bool:
    """Whether series come as (examples, time), which for scikit-learn are so many features."""
    return not is_list_of_series(X) and np.asarray(X).ndim == 2


def _arrays(X: Any) -> list[Array]:
    """Series (time, channels), checked."""
    if is_list_of_series(X):
        arrays = [numbers(one, f"X[{i}]") for i, one in enumerate(X)]
        odd = next((i for i, one in enumerate(arrays) if one.ndim not in (1, 2)), None)
        if odd is not None:
            raise ValueError(f"X[{odd}] must have shape (time,) or (time, channels), got {arrays[odd].shape}")
        arrays = [one[:, None] if one.ndim == 1 else one for one in arrays]
        widths = sorted({one.shape[1] for one in arrays})
        if len(widths) > 1:
            raise ValueError(f"all series of X must have the same number of channels, got {widths}")
    else:
        whole = numbers(X, "X")
        if whole.ndim not in (2, 3):
            hint = " Reshape your data: for one series give X[None]" if whole.ndim == 1 else ""
            raise ValueError(
                f"X must have shape (examples, time) or (examples, time, channels), got {whole.shape}.{hint}"
            )
        arrays = list(whole[:, :, None] if whole.ndim == 2 else whole)
        if not arrays:
            raise ValueError(f"Found array with 0 sample(s) (shape={whole.shape}) while a minimum of 1 is required.")
        if 0 in whole.shape:
            raise ValueError(f"Found array with 0 feature(s) (shape={whole.shape}) while a minimum of 1 is required.")
    for i, one in enumerate(arrays):
        if 0 in one.shape:
            raise ValueError(f"X[{i}] has no steps")
        if not np.isfinite(one).all():
            row = int(np.argwhere(~np.isfinite(one))[0, 0])
            kind = "NaN" if np.isnan(one[row]).any() else "infinity"
            raise ValueError(f"X has {kind} in series {i}, step {row}: fill missing values first, and give series of"
                             " unequal length as a list of arrays")  # fmt: skip
    return arrays


def _labels(y: Any, examples: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The classes, and the number of each label's class."""
    if y is None:
        raise ValueError(
            "This estimator requires y to be passed, but the target y is None: give a label for each series"
        )
    given = np.asarray(y)
    if given.ndim == 2 and given.shape[1] == 1:
        warn_of_column()
        given = given[:, 0]
    if given.shape != (examples,):
        raise ValueError(f"y must have one label for each of the {examples} series, got shape {given.shape}")
    if given.dtype.kind in "fc":
        if not np.isfinite(given).all():
            raise ValueError("y has NaN or infinity: Input y contains NaN or infinity")
        if (given != np.round(given)).any():
            raise ValueError("Unknown label type: continuous. y must be classes, not measurements")
    classes, labels = np.unique(given, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"y must have at least two classes, got 1 class: {classes[0]!r}")
    return classes, labels
