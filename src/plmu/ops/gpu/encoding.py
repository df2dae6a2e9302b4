"""u = U x + b before the memory of a layer, for training in half precision on Hopper GPUs.

Where x is also multiplied by W_x, the product that makes one gradient of x adds the other to it. The gradient of b is
summed in one pass, in a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from plmu.modes import watched
from plmu.ops.check import result_dtype
from plmu.ops.gpu import launch
from plmu.ops.gpu.devices import aligned, on
from plmu.ops.gpu.output import PLAIN
from plmu.ops.gpu.projection import plain


def fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether an encoder is trained so; elsewhere torch does."""
    if watched() or not torch.is_grad_enabled() or not launch.has_hopper(x.device) or not x.shape[0]:
        return False
    tensors = [one for one in (x, weight, bias) if one is not None]
    half = result_dtype(x) in (torch.float16, torch.bfloat16)
    return half and weight.shape[0] % 8 == 0 and all(type(one) in PLAIN for one in tensors)


def encoded(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """u, and x for whatever else is made of it."""
    dtype = result_dtype(x)
    x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    u, same = _Encode.apply(x, weight, bias)
    return u, same if x.requires_grad else x


class _Encode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        ctx.set_materialize_grads(False)
        return linear(x, weight, bias), x.view_as(x)

    @staticmethod
    def backward(ctx: Any, of_u: Tensor | None, of_x: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        if of_u is None:
            return of_x, None, None
        of_weight = of_bias = None
        values = plain(of_u)
        rows = of_u.reshape(-1, of_u.shape[2])
        if need_weight:
            of_weight = rows.t() @ x.reshape(-1, x.shape[2])
        if need_bias and values:
            rows = aligned(rows.contiguous())
            with on(rows):
                of_bias = launch.through_output(rows, None, True)[1]
        elif need_bias:
            of_bias = of_u.sum((0, 1))
        if need_x and of_x is not None and values and of_x.is_contiguous():
            of_x.view(-1, of_x.shape[2]).addmm_(rows, weight)  # which nothing else has: it was made for this x alone
        elif need_x:
            added = of_u @ weight
            of_x = added if of_x is None else of_x + added
        return of_x if need_x else None, of_weight, None if of_bias is None else of_bias.to(of_u.dtype)
