"""Neighbouring parts that are linear where they meet, multiplied together."""

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
    """The parts, each with the place of its state, in a row; neighbours are merged, identities dropped."""
    merged: list[tuple[Folded, int]] = []
    for part, place in parts:
        if isinstance(part, Identity):
            continue
        last = merged[-1] if merged else None
        both = None if last is None else joined(last[0], part)
        if last is None or both is None:
            merged.append((part, place))
        else:
            # The place of the part that has a state.
            merged[-1] = (both, last[1] if isinstance(last[0], LinearMemory) else place)
    return Chain(tuple(part for part, _ in merged), tuple(place for _, place in merged), states)


def product(gate: Folded, inner: Folded) -> Folded:
    """gate(x) · inner(x): as one matrix product where both are one, the gate's with an activation or without."""
    first, *after_gate = _stateless(gate)
    value, *after_value = _stateless(inner)
    function = after_gate[0] if after_gate else None
    if (
        isinstance(first, Affine)
        and isinstance(value, Affine)
        and (first.dtype, first.device, first.weight.shape) == (value.dtype, value.device, value.weight.shape)
        and (function is None or isinstance(function, Stateless))
        and not (after_gate[1:] or after_value)
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
    """Several products of one input as one product, with their outputs concatenated."""
    biases = [part.weight.new_zeros(part.weight.shape[0]) if part.bias is None else part.bias for part in parts]
    bias = None if all(part.bias is None for part in parts) else torch.cat(biases)
    return replace(parts[0], weight=torch.cat([part.weight for part in parts]), bias=bias)


def joined(first: Folded, second: Folded) -> Folded | None:
    """Both parts as one; None where they are not linear where they meet, where merging needs more parameters, or in
    half precision, which would round the product."""
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
        return _affine(first, second) if _saves_parameters(second.weight, _weight(first)) else None
    if isinstance(first, Scale) and isinstance(second, Gate):
        return replace(second, both=_affine(first, second.both))
    if isinstance(first, Scale) and isinstance(second, ParallelMemory):
        return _scaled_memory(first, second)
    if isinstance(first, Affine | Scale) and isinstance(second, LinearMemory):
        inputs = second.matrix[:, second.state_columns :]
        return _before_memory(first, second, inputs) if _saves_parameters(inputs, _weight(first)) else None
    if type(first) is LinearMemory and first.activation is None and isinstance(second, Affine | Scale):
        outputs = first.matrix[first.order :]
        return _after_memory(first, second, outputs) if _saves_parameters(_weight(second), outputs) else None
    return None


def _after_scale(first: Scale, second: Folded) -> Folded | None:
    """The second part, or stateless stack, with the scale before it multiplied in; None where that is not possible."""
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
    matrix = torch.cat([second.matrix[:, : second.state_columns], product], dim=1)
    return replace(second, matrix=matrix, constant=second.constant if constant is None else second.constant + constant)


def _after_memory(first: LinearMemory, second: Affine | Scale, outputs: Tensor) -> LinearMemory:
    matrix = torch.cat([first.matrix[: first.order], _rows(second, outputs)])
    after = _behind(second, first.constant[first.order :])
    assert after is not None
    return replace(first, matrix=matrix, constant=torch.cat([first.constant[: first.order], after]))


def _weight(part: Affine | Scale) -> Tensor | None:
    return part.weight if isinstance(part, Affine) else None


def _saves_parameters(second: Tensor | None, first: Tensor | None) -> bool:
    """Whether merging two matrices saves parameters: their product has no more elements than both. None stands for a
    diagonal matrix."""
    return second is None or first is None or second.shape[0] * first.shape[1] <= second.numel() + first.numel()


def _before(weight: Tensor, first: Affine | Scale) -> tuple[Tensor, Tensor | None]:
    """weight · first(x) as a matrix and a constant."""
    if isinstance(first, Scale):
        return weight * first.scale, None if first.offset is None else weight @ first.offset
    return weight @ first.weight, None if first.bias is None else weight @ first.bias


def _rows(second: Affine | Scale, matrix: Tensor) -> Tensor:
    return second.scale[:, None] * matrix if isinstance(second, Scale) else second.weight @ matrix


def _behind(second: Affine | Scale, constant: Tensor | None) -> Tensor | None:
    """The constant after the second part."""
    if constant is None:
        return second.offset if isinstance(second, Scale) else second.bias
    if isinstance(second, Scale):
        return _sum(second.scale * constant, second.offset)
    return _sum(second.weight @ constant, second.bias)


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first + second
