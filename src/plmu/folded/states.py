"""States of models: a tensor, None, or nested tuples or lists of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def leaves(state: Any) -> list[Tensor]:
    """The tensors of a state, in their order."""
    if state is None:
        return []
    return [state] if isinstance(state, Tensor) else [leaf for part in state for leaf in leaves(part)]


def map_state(state: Any, function: Callable[[Tensor], Any]) -> Any:
    """A state of the same form, with `function` of each tensor in its place."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return function(state)
    parts = [map_state(part, function) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)  # a named tuple stays one
