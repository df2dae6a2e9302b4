"""Functions on the state of a model: a tensor, None, or nested tuples or lists of them."""

from __future__ import annotations

import cmath
from typing import Any

import torch
from torch import Tensor

from plmu.folded.states import leaves as leaves  # and for those who handle states of streams
from plmu.folded.states import map_state as map_state

_SUBNORMAL = 1e-30
_FEW = 64  # numbers that Python sums faster than torch


def finite(values: Tensor) -> bool:
    """Whether all are finite. One sum is cheaper than `isfinite`."""
    few = values.numel() <= _FEW and values.is_cpu
    total = sum(values.flatten().tolist()) if few else values.sum().item()
    return cmath.isfinite(total) or bool(torch.isfinite(values).all())  # a sum may overflow


def finite_state(state: Any) -> bool:
    if isinstance(state, Tensor):
        return finite(state)
    if state is not None:
        for part in state:  # a generator in all() would double the time
            if part is not None and not finite_state(part):
                return False
    return True


def spoiled(value: Tensor, before: Tensor | None) -> Tensor:
    """A mask of the numbers that are infinite or NaN and were not so before."""
    bad = ~torch.isfinite(value)
    if before is None or before.shape != value.shape:
        return bad
    return bad & (value != before) & ~(torch.isnan(value) & torch.isnan(before))


def without_subnormal(value: Tensor) -> Tensor:
    return torch.where(value.abs() < _SUBNORMAL, 0.0, value) if value.is_floating_point() else value


def widened(state: Any, dtype: torch.dtype) -> Any:
    """A state for samples of this precision: that of a float32 model in float64 where these are."""
    if dtype != torch.float64:
        return state
    return map_state(state, lambda leaf: leaf.double() if leaf.is_floating_point() else leaf)


def check_kind(state: Any) -> None:
    """Raise unless a stream can keep and save a state of this kind."""
    if state is None or isinstance(state, Tensor):
        return
    if not isinstance(state, tuple | list):
        raise TypeError(
            f"the model's state must be a tensor, None or nested tuples of them, got {type(state).__name__} in it"
        )
    for part in state:
        check_kind(part)
