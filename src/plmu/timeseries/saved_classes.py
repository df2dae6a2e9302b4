"""A `SequenceClassifier` that goes on elsewhere: saved with its sums, loaded, and merged with another."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from plmu.errors import FileFormatError
from plmu.modelfiles.files import Attachment, save, save_attached
from plmu.nn import Sequential
from plmu.timeseries.labelled_columns import Format
from plmu.timeseries.learning_classes import ClassSums
from plmu.timeseries.saved_learning import checked_tensor, read_saved
from plmu.timeseries.updatable_classifier import UpdatableClassifier

_NUMBERS = ("n_channels_", "n_features_in_", "alpha_", "loo_accuracy_", "normalize_")


class SavableClassifier(UpdatableClassifier):
    """The methods of `SequenceClassifier` for files and several machines."""

    def save(self, path: str | os.PathLike[str], *, updatable: bool = False) -> None:
        """Write the model to a file that `plmu.load` reads; if `updatable`, with all that `partial_fit` needs. A loaded
        estimator goes on as this one does, bit for bit.

        >>> classifier.save("gestures.plmu", updatable=True)
        >>> plmu.SequenceClassifier.load("gestures.plmu").partial_fit(series, labels)

        Args:
            path: of the file. It is replaced only when all of it has been written.
            updatable: whether `load` can read it.
        """
        self._check_fitted()
        if not updatable:
            save(self.model_, path)
            return
        sums = self._learned()
        names = ("sums", "counts", "rows", "labels", "weights", "gram")
        tensors = {name: getattr(sums, name) for name in names if getattr(sums, name) is not None}
        params = {name: value for name, value in self.get_params().items() if value is not None}
        form = vars(self).get("format_")
        content = {
            "estimator": type(self).__name__,
            "params": {name: np.asarray(value).tolist() for name, value in params.items()},
            "attributes": {name: np.asarray(vars(self)[name]).tolist() for name in _NUMBERS if name in vars(self)},
            "classes": self.classes_.tolist(),
            "kind": self.classes_.dtype.str if self.classes_.dtype != object else "object",
            "class_count": self.class_count_.tolist(),
            "format": None if form is None else asdict(form),
            "sharpness": self._sharpness,
        }
        save_attached(self.model_, path, Attachment(content, tensors))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, empty: bool = False) -> Self:
        """The estimator that `save` wrote with `updatable=True`. It holds no examples to `choose` by.

        Args:
            path: of the file.
            empty: whether to take what was chosen alone, without what was learned: for examples that another machine
                learns, and `merge`.

        Raises:
            FileFormatError: the file is broken, or was saved without `updatable=True`.
        """
        model, attachment = read_saved(path, cls, Sequential)
        content = attachment.content
        try:
            classifier = cls(**content["params"])
            attributes = content["attributes"]
            vars(classifier).update({name: attributes[name] for name in _NUMBERS if name in attributes})
            classifier.n_channels_, classifier.alpha_ = int(attributes["n_channels_"]), float(attributes["alpha_"])
            classifier._take(model, content, attachment.tensors, empty)
        except (ArithmeticError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise FileFormatError(f"{path} has a broken description of what was learned: {error!r}") from None
        return classifier

    def _take(self, model: Sequential, content: Any, tensors: Mapping[str, Tensor], empty: bool) -> None:
        """Take over what `save` wrote."""
        self.model_ = model.requires_grad_(False).eval()
        self.classes_ = np.array(content["classes"], dtype=content["kind"])
        self.class_count_ = np.array(content["class_count"], dtype=np.int64)
        count, features = model[-1].get_parameter("weight").shape
        if self.class_count_.shape != (count,) or self.classes_.shape != (count,):
            raise ValueError(f"the model has {count} classes")
        if content["format"] is not None:
            tuples = ("values", "left_out", "names")
            form = {**content["format"], **{name: tuple(content["format"][name]) for name in tuples}}
            self.format_ = Format(**form)
        self._sharpness, self._examples = float(content["sharpness"]), None
        if empty:
            self.class_count_ = np.zeros_like(self.class_count_)
            self._sums = ClassSums.zeros(features, count, self._factor())
            return
        rows, gram, labels = tensors.get("rows"), tensors.get("gram"), tensors["labels"]
        if (rows is None) == (gram is None) or not ((labels >= 0) & (labels < count)).all():
            raise ValueError("the sums have neither examples of these classes nor a Gram matrix, or both")
        self._sums = ClassSums(
            checked_tensor(tensors["sums"], torch.float64, count, features),
            checked_tensor(tensors["counts"], torch.float64, count),
            None if rows is None else checked_tensor(rows, torch.float32, len(labels), features),
            checked_tensor(labels, torch.int64, None),
            checked_tensor(tensors["weights"], torch.float64, len(labels)),
            None if gram is None else checked_tensor(gram, torch.float64, features, features),
            self._factor(),
        )

    def merge(self, other: SavableClassifier) -> Self:
        """Add what another estimator with the same choices has learned, such as one on another machine that was loaded
        with `load(path, empty=True)`.

        Args:
            other: an estimator, which stays as it is.

        Returns:
            This estimator.

        Raises:
            ValueError: something else was chosen, which is named.
        """
        self._check_fitted()
        if not isinstance(other, SavableClassifier):
            raise TypeError(f"other must be a SequenceClassifier, got {type(other).__name__}")
        other._check_fitted()
        for (name, value), (_, other_value) in zip(self._choices(), other._choices(), strict=False):
            same = torch.equal(value, other_value) if isinstance(value, Tensor) else value == other_value
            if not same:
                values = "" if isinstance(value, Tensor) else f": {value} and {other_value}"
                raise ValueError(f"merge needs the same choices in both, and {name} differs{values}. Fit once, save"
                                 " with updatable=True, and load on each machine with empty=True")  # fmt: skip
        sums, others = self._learned(), other._learned()
        union, places = self._with_new(other.classes_)
        before, added = places[: len(self.classes_)], places[len(self.classes_) :]
        counts = np.zeros(len(union), dtype=np.int64)
        np.add.at(counts, before, self.class_count_)
        np.add.at(counts, added, other.class_count_)
        whole = sums.with_classes(before.tolist(), len(union)).merged(others.with_classes(added.tolist(), len(union)))
        held, other_held = self._held(), other._held()
        if held is not None and other_held is not None:
            self._hold([*held[0], *other_held[0]], np.concatenate([before[held[1]], added[other_held[1]]]))
        else:
            self._examples = None
        self.classes_, self.class_count_ = union, counts
        self._solve(whole)
        return self

    def _choices(self) -> list[tuple[str, Any]]:
        """What was chosen, by name."""
        names = ("normalize_", "n_channels_", "alpha_", "half_life")
        front = self.model_[:-1]
        shapes = [(f"the layer {type(layer).__name__}", str(layer)) for layer in front]
        tensors = [(f"the tensor {name}", tensor) for name, tensor in front.state_dict().items()]
        chosen = [(name.removesuffix("_"), getattr(self, name)) for name in names]
        return [*chosen, *shapes, *tensors, ("the sharpness of scores", self._sharpness)]
