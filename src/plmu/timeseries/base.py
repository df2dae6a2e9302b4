"""What scikit-learn expects of an estimator, without importing scikit-learn."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self


class NotFittedError(ValueError, AttributeError):
    """An estimator was used before `fit`."""


class Estimator:
    """Parameters by name, as scikit-learn's `clone`, `Pipeline` and `GridSearchCV` read and set them.

    A subclass lists parameters and attributes that were renamed as `_renamed = {old name: new name}`. The constructor,
    `set_params`, pickled estimators and attributes accept an old name for one version, with a DeprecationWarning.
    """

    _renamed: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = _accepts_old_names(cls.__init__)  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        if name in type(self)._renamed:
            return getattr(self, _new_name(type(self), name))
        return object.__getattribute__(self, name)  # raises the usual error, or that of a property

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({self._renamed.get(name, name): value for name, value in state.items()})

    @classmethod
    def _names(cls) -> list[str]:
        """The names of the constructor's arguments."""
        return [name for name in inspect.signature(cls).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments by name.

        Args:
            deep: for scikit-learn; it changes nothing, as no argument is an estimator.
        """
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **params: Any) -> Self:
        """Set arguments of the constructor; `fit` checks them.

        Args:
            params: new values by name.
        """
        names = self._names()
        for name, value in params.items():
            if name in self._renamed:
                name = _new_name(type(self), name)
            if name not in names:
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}: it has {', '.join(names)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = [
            f"{name}={value!r}" for name, value in self.get_params().items() if value is not defaults[name].default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def _check_fitted(self) -> None:
        if self.__sklearn_is_fitted__():
            return
        message = f"this {type(self).__name__} is not fitted yet: call fit first"
        try:
            from sklearn.exceptions import NotFittedError as SklearnError
        except ImportError:
            raise NotFittedError(message) from None
        raise SklearnError(message)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None, target_tags=TargetTags(required=False), input_tags=InputTags(three_d_array=True)
        )


def _accepts_old_names(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that also takes the old names of its arguments, with a warning; its signature has only the new."""

    @functools.wraps(init)
    def accepting(self: Estimator, *args: Any, **params: Any) -> None:
        for old in params.keys() & self._renamed.keys():
            if (new := self._renamed[old]) in params:
                raise TypeError(f"{type(self).__name__} got both {old} and {new}, which is its new name")
            params[_new_name(type(self), old)] = params.pop(old)
        init(self, *args, **params)

    return accepting


def _new_name(cls: type[Estimator], old: str) -> str:
    """The new name of a renamed parameter or attribute, with a DeprecationWarning."""
    new = cls._renamed[old]
    message = f"{cls.__name__}: {old} is now called {new}; the old name will go with the next version"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return new


def warn_of_column() -> None:
    """Warn that labels have the shape (examples, 1), with scikit-learn's kind of warning if it is installed."""
    try:
        from sklearn.exceptions import DataConversionWarning as Kind
    except ImportError:
        Kind = UserWarning
    text = "A column-vector y was passed when a 1d array was expected: give y of shape (examples,)"
    warnings.warn(text, Kind, stacklevel=4)
