"""u = U x + b before the memory of a layer, for training in half precision on Hopper GPUs.

If x is also multiplied by W_x, the product that makes one of the two gradients of x adds it to the other. The gradient
of b is summed in one pass, in a fixed order. In repeated calls the encoder and the output of the layer are one node of
autograd's graph (`output`); else the encoder is a node by itself (`encoded`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from plmu.core.modes import watched
from plmu.ops.check import Epilogue, result_dtype
from plmu.ops.gpu import launch
from plmu.ops.gpu.devices import laid_out, on
from plmu.ops.gpu.output import PLAIN, Gradients, Prepared, gradients, prepared
from plmu.ops.gpu.projection import plain
from plmu.ops.gpu.tables import Constants


def fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether this module suits an encoder; torch's operations do otherwise."""
    if watched() or not torch.is_grad_enabled() or not launch.has_hopper(x.device) or not x.shape[0]:
        return False
    tensors = [tensor for tensor in (x, weight, bias) if tensor is not None]
    half = result_dtype(x) in (torch.float16, torch.bfloat16)
    return half and weight.shape[0] % 8 == 0 and all(type(tensor) in PLAIN for tensor in tensors)


def encoded(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """u, and x for the other operations of the layer, so that their gradients of x meet here."""
    dtype = result_dtype(x)
    x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    u, viewed = _Encode.apply(x, weight, bias)
    return u, viewed if x.requires_grad else x


def output(
    x: Tensor,
    encoder: tuple[Tensor, Tensor | None],
    weight: Tensor,
    first: Tensor | None,
    segments: Tensor | None,
    constants: Constants,
    epilogue: Epilogue,
) -> tuple[Tensor, Tensor] | None:
    """The output of a layer for u = U x + b, and the final state; None unless all tensors are plain, and have x's
    precision and device. `epilogue.x` is x, or None."""
    if epilogue.weight is not None and epilogue.weight.shape[1] % 8:
        return None
    for tensor in (*encoder, weight, epilogue.weight, epilogue.bias):
        if tensor is not None and (tensor.dtype != x.dtype or tensor.device != x.device or type(tensor) not in PLAIN):
            return None
    call = prepared(x.shape, weight, epilogue, segments, constants)
    if not torch.is_grad_enabled():
        inputs = None if epilogue.weight is None else x
        return call.forward(linear(x, *encoder), weight, first, inputs, epilogue.weight, epilogue.bias, segments)[:2]
    o: Tensor
    last: Tensor
    o, last = _Output.apply(x, *encoder, weight, first, epilogue.weight, epilogue.bias, segments, constants, call)
    return o, last


class _Output(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        encoder: Tensor,
        encoder_bias: Tensor | None,
        weight: Tensor,
        first: Tensor | None,
        input_weight: Tensor | None,
        bias: Tensor | None,
        segments: Tensor | None,
        constants: Constants,
        call: Prepared,
    ) -> tuple[Tensor, Tensor]:
        u = linear(x, encoder, encoder_bias)
        inputs = None if input_weight is None else x
        o, last, states = call.forward(u, weight, first, inputs, input_weight, bias, segments)
        relu_output, states = o if call.relu else None, states if ctx.needs_input_grad[3] else None
        ctx.save_for_backward(x, encoder, u, weight, first, segments, inputs, input_weight, relu_output, states)
        ctx.constants, ctx.call = constants, call
        ctx.set_materialize_grads(False)
        return o, last

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor | None, grad_last: Tensor | None) -> Gradients:
        x, encoder, *saved = ctx.saved_tensors
        need_x, *need_encoder, need_weight, need_first, need_input_weight, need_bias = ctx.needs_input_grad[:7]
        direct = need_x and saved[4] is not None  # by W_x
        needed = (need_x or any(need_encoder), need_weight, need_first, direct, need_input_weight, need_bias)
        result = gradients(ctx.constants, ctx.call, tuple(saved), needed, grad_o, grad_last)
        grad_u, grad_weight, grad_first, grad_x, grad_input_weight, grad_bias = result
        before = _through(x, encoder, (need_x, *need_encoder), grad_u, grad_x)
        return *before, grad_weight, grad_first, grad_input_weight, grad_bias, None, None, None


class _Encode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        ctx.set_materialize_grads(False)
        return linear(x, weight, bias), x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad_u: Tensor | None, grad_x: Tensor | None) -> Gradients:
        x, weight = ctx.saved_tensors
        return _through(x, weight, ctx.needs_input_grad, grad_u, grad_x)


def _through(
    x: Tensor, weight: Tensor, needed: tuple[bool, ...], grad_u: Tensor | None, grad_x: Tensor | None
) -> Gradients:
    """The gradients of x, U and b from that of u. `grad_x`: the direct gradient of x, which is added."""
    need_x, need_weight, need_bias = needed
    if grad_u is None:
        return grad_x if need_x else None, None, None
    grad_weight = grad_bias = None
    values = plain(grad_u)
    rows = grad_u.reshape(-1, grad_u.shape[2])
    if need_weight:
        grad_weight = torch.mm(rows.t(), x.reshape(-1, x.shape[2]))
    if need_bias and values:
        rows = laid_out(rows)
        with on(rows):
            grad_bias = launch.through_output(rows, None, True)[1]
    elif need_bias:
        grad_bias = grad_u.sum((0, 1))
    if need_x and grad_x is not None and values and grad_x.is_contiguous():
        grad_x.view(-1, grad_x.shape[2]).addmm_(rows, weight)  # in place: nothing else uses it
    elif need_x:
        added = grad_u @ weight
        grad_x = added if grad_x is None else grad_x + added
    return grad_x if need_x else None, grad_weight, grad_bias
