"""What scikit-learn expects of an estimator, without importing it."""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Self


class NotFittedError(ValueError, AttributeError):
    """An estimator was used before `fit`."""


class Estimator:
    """Parameters by name, as scikit-learn's `clone`, `Pipeline` and `GridSearchCV` read and set them."""

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in inspect.signature(cls).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments by name.

        Args:
            deep: is taken for scikit-learn's sake: no argument is an estimator.
        """
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **params: Any) -> Self:
        """Set arguments of the constructor; they are checked by `fit`.

        Args:
            params: new values by name.
        """
        names = self._names()
        for name, value in params.items():
            if name not in names:
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}: it has {', '.join(names)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        given = [
            f"{name}={value!r}" for name, value in self.get_params().items() if value is not defaults[name].default
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def _check_fitted(self) -> None:
        if self.__sklearn_is_fitted__():
            return
        message = f"this {type(self).__name__} is not fitted yet: call fit first"
        try:
            from sklearn.exceptions import NotFittedError as Known
        except ImportError:
            raise NotFittedError(message) from None
        raise Known(message)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None, target_tags=TargetTags(required=False), input_tags=InputTags(three_d_array=True)
        )


def warn_of_column() -> None:
    """Say that labels came as a column, with scikit-learn's own kind of warning where it is installed."""
    try:
        from sklearn.exceptions import DataConversionWarning as Kind
    except ImportError:
        Kind = UserWarning
    text = "A column-vector y was passed when a 1d array was expected: give y of shape (examples,)"
    warnings.warn(text, Kind, stacklevel=4)
