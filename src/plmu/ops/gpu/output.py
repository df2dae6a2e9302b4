"""The output of a layer, relu(W_m m + W_x x + b), in one launch of the kernels for Hopper.

The sum is rounded once, and neither W_m m nor W_x x reaches memory. Backward: one pass over the gradient takes it
through ReLU and sums it up for the bias. Where x itself enters the memory, W_x adds to its gradient as to the output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plmu.modes import watched
from plmu.ops.gpu import launch
from plmu.ops.gpu.devices import aligned, on
from plmu.ops.gpu.launch import Rest
from plmu.ops.gpu.projection import Constants, forward, plain, through

PLAIN = (Tensor, torch.nn.Parameter)


def fits(u: Tensor, weight: Tensor, rest: Rest) -> bool:
    """Whether the kernels for Hopper take the rest of a layer with W_m m, of operands that they take."""
    tensors = [one for one in (u, weight, *rest[:3]) if one is not None]
    if watched() or not all(type(one) in PLAIN and one.device == u.device for one in tensors):
        return False
    return (rest.weight is None or rest.weight.shape[1] % 8 == 0) and launch.for_hopper(u, weight)


def output(
    u: Tensor, weight: Tensor, first: Tensor | None, segments: Tensor | None, given: Constants, rest: Rest
) -> tuple[Tensor, Tensor]:
    """o and the final state, where it `fits`. All tensors of `rest` are cast to the precision of u."""
    x, input_weight, bias = (None if one is None else one.to(u.dtype) for one in rest[:3])
    x = None if input_weight is None else x
    if not torch.is_grad_enabled():
        return forward(u, weight, first, segments, given, _laid_out(Rest(x, input_weight, bias, rest.relu)))
    o: Tensor
    last: Tensor
    o, last = _Output.apply(u, weight, first, x, input_weight, bias, segments, given, rest.relu)
    return o, last


def _laid_out(rest: Rest) -> Rest:
    """With tensors as kernels take them."""
    x, weight, bias = (None if one is None else aligned(one.contiguous()) for one in rest[:3])
    return Rest(x, weight, bias, rest.relu)


class _Output(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        weight: Tensor,
        first: Tensor | None,
        x: Tensor | None,
        input_weight: Tensor | None,
        bias: Tensor | None,
        segments: Tensor | None,
        given: Constants,
        relu: bool,
    ) -> tuple[Tensor, Tensor]:
        rest = _laid_out(Rest(x, input_weight, bias, relu))
        o, last = forward(u, weight, first, segments, given, rest)
        ctx.save_for_backward(u, weight, first, segments, x, input_weight, o if relu else None)
        ctx.given = given
        ctx.set_materialize_grads(False)
        return o, last

    @staticmethod
    def backward(ctx: Any, of_o: Tensor | None, of_last: Tensor | None) -> tuple[Tensor | None, ...]:
        *saved, x, input_weight, o = ctx.saved_tensors
        need_u, need_weight, need_first, need_x, need_input_weight, need_bias = ctx.needs_input_grad[:6]
        needed = (need_u, need_weight, need_first)
        of_x = of_input_weight = of_bias = None
        own = x is None and input_weight is not None  # u itself is multiplied by W_x
        fused = of_o is not None and plain(of_o)
        if of_o is not None:
            if fused:
                of_o, of_bias = _through_output(of_o, o, need_bias)
            else:
                of_o = of_o if o is None else torch.where(o <= 0, 0.0, of_o)
                of_bias = of_o.sum((0, 1)) if need_bias else None
            if need_x:
                of_x = of_o @ input_weight
            if need_input_weight:
                taken = saved[0] if x is None else x
                of_input_weight = of_o.reshape(-1, of_o.shape[2]).t() @ taken.reshape(-1, taken.shape[2])
        rest = _laid_out(Rest(weight=input_weight)) if own and fused else None
        of_u, of_weight, of_first = through(tuple(saved), ctx.given, needed, of_o, of_last, rest)
        if own and need_u and of_o is not None and not fused:
            of_u = of_u + of_o @ input_weight
        of_bias = None if of_bias is None else of_bias.to(saved[0].dtype)
        return of_u, of_weight, of_first, of_x, of_input_weight, of_bias, None, None, None


def _through_output(of_o: Tensor, o: Tensor | None, need_bias: bool) -> tuple[Tensor, Tensor | None]:
    if o is None and not need_bias:
        return of_o, None
    of_o = aligned(of_o.contiguous())
    with on(of_o):
        return launch.through_output(of_o, o, need_bias)
