"""Neighbours that are linear where they meet, multiplied out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from plmu.folded.base import Folded, Stateless
from plmu.folded.functions import Affine, Gate, Identity, Scale
from plmu.folded.memory import LinearMemory, ParallelMemory
from plmu.folded.stacks import Chain, Product, Sum


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


def product(gate: Folded, inner: Folded) -> Folded:
    """gate(x) · inner(x): as one matrix product where both are one, the gate's with an activation or without."""
    first, *rest = _stateless(gate)
    value, *more = _stateless(inner)
    function = rest[0] if rest else None
    if (
        isinstance(first, Affine)
        and isinstance(value, Affine)
        and (first.dtype, first.device, first.weight.shape) == (value.dtype, value.device, value.weight.shape)
        and (function is None or isinstance(function, Stateless))
        and not (rest[1:] or more)
    ):
        return Gate(stacked(value, first), function, dtype=value.dtype, device=value.device)
    return Product(gate, inner)


def residual(inner: Folded) -> Sum:
    """x + inner(x): where `inner` ends with a product, x is added in it."""
    last = inner.parts[-1] if isinstance(inner, Chain) and inner.parts else None
    if not isinstance(inner, Chain) or not isinstance(last, Affine) or last.bias is not None:
        return Sum(inner)
    before = replace(inner, parts=inner.parts[:-1], places=inner.places[:-1])
    return Sum(before, last.weight, dtype=last.dtype, device=last.device)


def stacked(*parts: Affine) -> Affine:
    """Products of one input as one product, below each other."""
    biases = [one.weight.new_zeros(one.weight.shape[0]) if one.bias is None else one.bias for one in parts]
    bias = None if all(one.bias is None for one in parts) else torch.cat(biases)
    return replace(parts[0], weight=torch.cat([one.weight for one in parts]), bias=bias)


def joined(first: Folded, second: Folded) -> Folded | None:
    """The second after the first as one; None where that is not linear, takes more numbers than the two, or would be
    rounded to half precision, which the weights themselves are not."""
    if first.dtype in (torch.float16, torch.bfloat16):
        return None
    if isinstance(first, Scale) and isinstance(second, Product):
        gate, inner = _after_scale(first, second.gate), _after_scale(first, second.inner)
        return None if gate is None or inner is None else replace(second, gate=gate, inner=inner)
    if (first.dtype, first.device) != (second.dtype, second.device):
        return None
    if isinstance(first, Scale) and isinstance(second, Scale):
        return replace(first, scale=first.scale * second.scale, offset=_behind(second, first.offset))
    if isinstance(first, Affine) and isinstance(second, Scale):
        return replace(first, weight=_rows(second, first.weight), bias=_behind(second, first.bias))
    if isinstance(first, Affine | Scale) and isinstance(second, Affine):
        return _affine(first, second) if _pays(second.weight, _weight(first)) else None
    if isinstance(first, Scale) and isinstance(second, Gate):
        return replace(second, both=_affine(first, second.both))
    if isinstance(first, Scale) and isinstance(second, ParallelMemory):
        return _scaled_memory(first, second)
    if isinstance(first, Affine | Scale) and isinstance(second, LinearMemory):
        inputs = second.matrix[:, second.kept :]
        return _before_memory(first, second, inputs) if _pays(inputs, _weight(first)) else None
    if type(first) is LinearMemory and first.activation is None and isinstance(second, Affine | Scale):
        outputs = first.matrix[first.order :]
        return _after_memory(first, second, outputs) if _pays(_weight(second), outputs) else None
    return None


def _after_scale(first: Scale, second: Folded) -> Folded | None:
    """The second, perhaps a stack without a state, with the scale before it multiplied in; None where it cannot be."""
    if not isinstance(second, Chain):
        return joined(first, second)
    both = joined(first, second.parts[0]) if second.states is None and second.parts else None
    return None if both is None else replace(second, parts=(both, *second.parts[1:]))


def _scaled_memory(first: Scale, second: ParallelMemory) -> ParallelMemory | None:
    if second.gate is not None or first.offset is not None:
        return None
    weight = None if second.input_weight is None else second.input_weight * first.scale
    if second.encoder is not None:
        return replace(second, encoder=_affine(first, second.encoder), input_weight=weight)
    if len(first.scale) != second.memory.channels:
        return None
    return replace(second, memory=second.memory.scaled(first.scale), input_weight=weight)


def _stateless(part: Folded) -> tuple[Folded, ...]:
    """The parts of a stack without a state, or the part itself."""
    return part.parts if isinstance(part, Chain) and part.states is None and part.parts else (part,)


def _affine(first: Affine | Scale, second: Affine) -> Affine:
    weight, constant = _before(second.weight, first)
    return replace(second, weight=weight, bias=_sum(second.bias, constant))


def _before_memory(first: Affine | Scale, second: LinearMemory, inputs: Tensor) -> LinearMemory:
    product, constant = _before(inputs, first)
    matrix = torch.cat([second.matrix[:, : second.kept], product], dim=1)
    return replace(second, matrix=matrix, constant=second.constant if constant is None else second.constant + constant)


def _after_memory(first: LinearMemory, second: Affine | Scale, outputs: Tensor) -> LinearMemory:
    matrix = torch.cat([first.matrix[: first.order], _rows(second, outputs)])
    after = _behind(second, first.constant[first.order :])
    assert after is not None
    return replace(first, matrix=matrix, constant=torch.cat([first.constant[: first.order], after]))


def _weight(part: Affine | Scale) -> Tensor | None:
    return part.weight if isinstance(part, Affine) else None


def _pays(second: Tensor | None, first: Tensor | None) -> bool:
    """Whether the product of two matrices has no more numbers than the two, as that of thin ones has. None is a
    diagonal one."""
    return second is None or first is None or second.shape[0] * first.shape[1] <= second.numel() + first.numel()


def _before(weight: Tensor, first: Affine | Scale) -> tuple[Tensor, Tensor | None]:
    """weight · first(x) as a matrix and a constant."""
    if isinstance(first, Scale):
        return weight * first.scale, None if first.offset is None else weight @ first.offset
    return weight @ first.weight, None if first.bias is None else weight @ first.bias


def _rows(second: Affine | Scale, matrix: Tensor) -> Tensor:
    return second.scale[:, None] * matrix if isinstance(second, Scale) else second.weight @ matrix


def _behind(second: Affine | Scale, constant: Tensor | None) -> Tensor | None:
    """What becomes of a constant, where there is one."""
    if constant is None:
        return second.offset if isinstance(second, Scale) else second.bias
    if isinstance(second, Scale):
        return _sum(second.scale * constant, second.offset)
    return _sum(second.weight @ constant, second.bias)


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other
