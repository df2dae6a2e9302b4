"""Layers that `plmu.save` describes and `plmu.load` builds: each class registered once, by its name."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from torch import nn

_Layer = TypeVar("_Layer", bound=type[nn.Module])
_LEFT_OUT = {"self", "device", "dtype", "model"}  # the tensors have a device and a dtype; a model is described apart


@dataclass(frozen=True)
class Savable:
    """A class of layers as model files see it."""

    kind: type[nn.Module]
    options: dict[str, inspect.Parameter]  # arguments of the constructor, without device and dtype
    modules: int | None  # number of modules inside; None for a layer with a memory, which costs more to build


REGISTERED: dict[str, Savable] = {}  # by the name of the class


@overload
def savable(kind: _Layer) -> _Layer: ...
@overload
def savable(*, modules: int) -> Callable[[_Layer], _Layer]: ...
def savable(kind: Any = None, *, modules: int | None = None) -> Any:
    """Class decorator: `plmu.save` writes the layer as its class and the arguments of its constructor.

    These are kept in `config`, defaults included, as plain numbers, names and lists. A subclass that is not decorated
    has the `config` of its base, and is refused by `plmu.save`.

    >>> @savable
    ... class Difference(Steppable): ...

    Args:
        kind: a class of plmu with a unique name.
        modules: number of modules that its constructor builds; None costs as much as one memory. Loading refuses files
            whose models would take too long to build.
    """
    if kind is None:
        return functools.partial(_register, modules=modules)
    return _register(kind, None)


def _register(kind: type[nn.Module], modules: int | None) -> type[nn.Module]:
    """Register the class, and make its constructor set `config`."""
    if not kind.__module__.startswith("plmu."):  # a file may build what is registered
        raise ValueError(f"only layers of plmu can be registered, got {kind.__module__}.{kind.__qualname__}")
    if kind.__name__ in REGISTERED:
        raise ValueError(f"there is a layer named {kind.__name__} already")
    init = kind.__init__
    signature = inspect.signature(init)
    options = {name: option for name, option in signature.parameters.items() if name not in _LEFT_OUT}

    @functools.wraps(init)
    def with_config(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        self.config = {name: _plain(bound.arguments[name], option.annotation) for name, option in options.items()}

    kind.__init__ = with_config  # type: ignore[method-assign]
    REGISTERED[kind.__name__] = Savable(kind, options, modules)
    return kind


def savable_base(module: nn.Module) -> Savable | None:
    """The registered class of a layer, or the nearest registered base of its class; None if there is none."""
    for kind in type(module).__mro__:
        registered = REGISTERED.get(kind.__name__)
        if registered is not None and registered.kind is kind:
            return registered
    return None


def _plain(value: Any, annotation: str) -> Any:
    """An argument as JSON can hold it: tensors and sequences as lists, numbers as Python numbers of the annotated
    type."""
    if value is None or isinstance(value, str):
        return value
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence):
        return [_plain(part, annotation) for part in value]
    if "bool" in annotation:
        return bool(value)
    if "float" in annotation:
        return float(value)
    if "int" in annotation:
        return operator.index(value)
    return value
