"""The encoder applied after the memory. A linear encoder and the memory commute,

    M(U x + b) = U M(x) + b M(1),

where M(u) are the states for an input u. M(x) has as many channels as x, which may be far fewer than those of u; and
if x is data, no gradient passes through the memory. M(1), the states of an input of ones, is constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from plmu.core.modes import autocasts, is_open, is_plain, watched_backward
from plmu.ops.matrices import power_of_2_from, unit_states
from plmu.ops.rates import FLOAT, rates_of

if TYPE_CHECKING:
    from plmu.nn.memory import Memory
    from plmu.nn.parallel import ParallelLMU

ENCODER_LAUNCHES = 8  # of an encoder before the memory, forward and backward
AFTER_LAUNCHES = 16  # of one after it, which is multiplied into the weight, and of its bias
FLOPS = 6  # a multiplication and an addition, forward, and backward for both factors
TRAFFIC = 4  # passes over what a product makes

_saving: WeakKeyDictionary[Memory, dict[tuple[object, ...], bool]] = WeakKeyDictionary()  # `_saves` by sizes


def applies(layer: ParallelLMU, batch: int, time: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether `layer` encodes after the memory: if that is exact, keeps all digits and saves work.

    The memory must be fixed and the same for all channels. The caller must see to it that all sequences begin with the
    call, from zero.
    """
    encoder, memory = layer.encoder, layer.memory
    if encoder is None or dtype not in (torch.float32, torch.float64) or autocasts(device) or is_open(batch, time):
        return False
    linear = is_plain(encoder, nn.Linear) and not watched_backward(encoder)
    same = memory.trainable == "none" and memory.groups == 1 and memory.systems()[0].inputs is None
    fewer = layer.input_size == 1 or layer.input_size < layer.memory_size
    exact = linear and layer.f1 is None and layer.gate is None and same and fewer and memory.algorithm == "auto"
    if not exact or device.type != "cpu" or not layer.returns_sequences or torch.compiler.is_compiling():
        return exact
    sizes = (batch, time, layer.input_size, layer.hidden_size, dtype)
    decisions = _saving.setdefault(memory, {})
    if sizes not in decisions:
        decisions[sizes] = _saves(layer, batch, time, dtype, device)
    return decisions[sizes]


def _saves(layer: ParallelLMU, batch: int, time: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a memory of the inputs alone saves more time than the encoder costs after it, by estimate: the product of
    W_m and the encoder, and for the bias that of M(1) and W_m b."""
    memory, rates = layer.memory, rates_of(device.type)
    inputs, width, hidden = layer.input_size, layer.memory_size, layer.hidden_size

    def seconds(channels: int) -> float:
        plan = memory.plan("project", batch=batch, time=time, width=channels, out=hidden, dtype=dtype, device=device)
        return min(plan.costs.values())

    encoded = batch * time * width
    before = seconds(width) + rates.seconds(
        flops=FLOPS * encoded * inputs, moved=FLOAT * TRAFFIC * encoded, launches=ENCODER_LAUNCHES
    )
    weight, joint, constant = hidden * memory.order * width, hidden * memory.order * inputs, time * hidden
    after = seconds(inputs) + rates.seconds(
        flops=FLOPS * (weight * (inputs + 1) + constant * memory.order),
        moved=FLOAT * TRAFFIC * (joint + weight + constant) + FLOAT * 2 * batch * time * hidden,
        launches=AFTER_LAUNCHES,
    )
    return after <= before


def encoded_state(layer: ParallelLMU, m: Tensor, time: int, lengths: Tensor | None) -> Tensor:
    """The final state (batch, order, channels) for the encoded input, from the final state for x, m (batch, order,
    inputs)."""
    weight, bias = _parts(layer)
    mixed = m * weight.mT if layer.input_size == 1 else m @ weight.mT
    if bias is None:
        return mixed
    ones = _ones(layer, time, m)  # (time, order)
    if lengths is None:
        return mixed + ones[-1][:, None] * bias
    at_end = torch.where((lengths > 0)[:, None], ones[(lengths - 1).clamp(min=0)], 0.0)  # (batch, order)
    return mixed + at_end[:, :, None] * bias


def encoded_states(layer: ParallelLMU, m: Tensor) -> Tensor:
    """All states (batch, time, order, channels) for the encoded input, from those for x, m (batch, time, order,
    inputs)."""
    weight, bias = _parts(layer)
    mixed = m * weight.mT if layer.input_size == 1 else m @ weight.mT
    return mixed if bias is None else mixed + _ones(layer, m.shape[1], m)[:, :, None] * bias


def readout(layer: ParallelLMU, memory_weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """W_m and the encoder as one weight (out, order, inputs) for the states of x; and the encoder bias's part of the
    output at each step (time, out), None without a bias."""
    weight, bias = _parts(layer)
    constant = None if bias is None else _ones(layer, x.shape[1], x) @ (memory_weight @ bias).mT
    return memory_weight @ weight, constant


def _parts(layer: ParallelLMU) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the encoder."""
    assert layer.encoder is not None
    return layer.encoder.weight, layer.encoder.bias


def _ones(layer: ParallelLMU, time: int, like: Tensor) -> Tensor:
    """M(1), (time, order)."""
    longer, system = power_of_2_from(time), layer.memory.systems()[0]
    return system.derive(unit_states, longer, dtype=like.dtype, device=like.device)[:time]
