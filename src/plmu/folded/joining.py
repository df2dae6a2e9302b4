"""Neighbours that are linear where they meet, multiplied out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from plmu.folded.base import Folded
from plmu.folded.functions import Affine, Identity, Scale
from plmu.folded.memory import LinearMemory
from plmu.folded.stacks import Chain


def chain(parts: Iterable[tuple[Folded, int]], states: int | None) -> Chain:
    """The parts, each with the place of its state, in a row: neighbours multiplied out and identities left out."""
    kept: list[tuple[Folded, int]] = []
    for part, place in parts:
        if isinstance(part, Identity):
            continue
        last = kept[-1] if kept else None
        both = None if last is None else joined(last[0], part)
        if last is None or both is None:
            kept.append((part, place))
        else:
            # The state is that of the one that has one.
            kept[-1] = (both, last[1] if isinstance(last[0], LinearMemory) else place)
    return Chain(tuple(part for part, _ in kept), tuple(place for _, place in kept), states)


def joined(first: Folded, second: Folded) -> Folded | None:
    """The second after the first as one; None where that is not linear, takes more numbers than the two, or would be
    rounded to half precision, which the weights themselves are not."""
    if (first.dtype, first.device) != (second.dtype, second.device) or first.dtype in (torch.float16, torch.bfloat16):
        return None
    found: Folded | None = None
    if isinstance(first, Affine | Scale):
        if isinstance(first, Scale) and isinstance(second, Scale):
            found = replace(first, scale=first.scale * second.scale, offset=_behind(second, first.offset))
        elif isinstance(first, Affine) and isinstance(second, Scale):
            found = replace(first, weight=_rows(second, first.weight), bias=_behind(second, first.bias))
        elif isinstance(second, Affine):
            weight, constant = _before(second.weight, first)
            found = Affine(weight, _sum(second.bias, constant), dtype=first.dtype, device=first.device)
        elif isinstance(second, LinearMemory):
            kept = second.matrix[:, : second.kept]
            inputs, constant = _before(second.matrix[:, second.kept :], first)
            total = second.constant if constant is None else second.constant + constant
            found = replace(second, matrix=torch.cat([kept, inputs], dim=1), constant=total)
    elif type(first) is LinearMemory and first.activation is None and isinstance(second, Affine | Scale):
        order = first.order
        matrix = torch.cat([first.matrix[:order], _rows(second, first.matrix[order:])])
        constant = torch.cat([first.constant[:order], _behind(second, first.constant[order:])])
        found = replace(first, matrix=matrix, constant=constant)
    if found is None or _numbers(found) > _numbers(first) + _numbers(second):
        return None
    return found


def _before(weight: Tensor, first: Affine | Scale) -> tuple[Tensor, Tensor | None]:
    """weight · first(x) as a matrix and a constant."""
    if isinstance(first, Scale):
        return weight * first.scale, weight @ first.offset
    return weight @ first.weight, None if first.bias is None else weight @ first.bias


def _rows(second: Affine | Scale, matrix: Tensor) -> Tensor:
    return second.scale[:, None] * matrix if isinstance(second, Scale) else second.weight @ matrix


def _behind(second: Affine | Scale, constant: Tensor | None) -> Tensor:
    """What becomes of a constant; of none, it is a zero."""
    if isinstance(second, Scale):
        return second.offset if constant is None else second.offset + second.scale * constant
    zero = second.weight.new_zeros(second.weight.shape[0]) if second.bias is None else second.bias
    return zero if constant is None else zero + second.weight @ constant


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other


def _numbers(part: Folded) -> int:
    return sum(array.numel() for array in part.arrays().values())
