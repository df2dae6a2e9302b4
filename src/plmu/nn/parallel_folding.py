"""How the parallel LMU folds: see `plmu.fold`."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from plmu.folded import Folded, LinearMemory, ParallelMemory, Place, Stateless, Stepped, wide_dtype
from plmu.nn.folding import fold_activation, fold_linear, is_plain

if TYPE_CHECKING:
    from plmu.nn.parallel import ParallelLMU


def fold_parallel(layer: ParallelLMU) -> Folded:
    """The folded layer: one product if a step is linear up to f2 and has one memory channel, else equation by
    equation."""
    if not all(linear is None or is_plain(linear, nn.Linear) for linear in (layer.encoder, layer.gate)):
        return Stepped.of(layer)
    weight = layer.memory_weight
    place = Place(dtype=wide_dtype(weight.dtype), device=weight.device)
    exact = copy.deepcopy(layer).cpu().double()
    readout, bias = exact.readout()
    one_channel = layer.memory.groups == layer.memory.channels == 1
    if one_channel and layer.f1 is None and layer.gate is None:
        return _multiplied_out(exact, readout.flatten(1), bias, fold_activation(layer.f2), place)
    return ParallelMemory(
        encoder=None if layer.encoder is None else fold_linear(layer.encoder),
        gate=None if layer.gate is None else fold_linear(layer.gate),
        memory=replace(layer.memory.fold(), **place),
        readout=readout.flatten(1),
        input_weight=exact.input_weight,
        bias=bias,
        input_activation=fold_activation(layer.f1),
        output_activation=fold_activation(layer.f2),
        dtype=weight.dtype,
        device=weight.device,
    )


def _multiplied_out(
    layer: ParallelLMU, readout: Tensor, bias: Tensor | None, activation: Stateless | None, place: Place
) -> LinearMemory:
    """Equations 18 to 20 as one product, for a float64 layer with one memory channel and no f1: in a step of a
    stream, calls take longer than arithmetic."""
    system, order = layer.memory.systems()[0], layer.memory.order
    A, B = system.A, system.B.reshape(order, -1)
    offset = A.new_zeros(order)
    if layer.encoder is not None:
        if layer.encoder.bias is not None:
            offset = B @ layer.encoder.bias
        B = B @ layer.encoder.weight
    from_input, output_offset = readout @ B, readout @ offset
    if layer.input_weight is not None:
        from_input = from_input + layer.input_weight
    if bias is not None:
        output_offset = output_offset + bias
    change = A - torch.eye(order, dtype=A.dtype) if system.near_identity else A
    rows = [torch.cat([change, B], dim=1), torch.cat([readout @ A, from_input], dim=1)]
    constant = torch.cat([offset, output_offset])
    return LinearMemory(torch.cat(rows), constant, order, system.near_identity, activation, **place)
