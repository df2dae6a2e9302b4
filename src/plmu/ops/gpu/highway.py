"""The backward pass of a highway layer with ReLU, g · relu(a) + (1 − g) · x of [a ; c] = W x + b and g = σ(c).

The forward pass is torch's, so that `torch.compile` fuses it with what follows. It would compile a backward pass that
loads all operands for each half of the gradient of W x + b, and that gradient once more for its sum. Here one kernel
makes these gradients and their sums for the bias. What reaches x directly is added by the product that makes the rest
of its gradient.
"""

from __future__ import annotations

import functools
import importlib
import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from plmu.core.modes import autocasts, exporting, transformed, watched
from plmu.ops.gpu.devices import lacking, laid_out, on
from plmu.ops.gpu.direct import Launch
from plmu.ops.gpu.division import prepared
from plmu.ops.gpu.projection import plain
from plmu.ops.gpu.tables import tiles
from plmu.ops.gpu.triton_launch import kernels

PLAIN = (Tensor, torch.nn.Parameter)
KINDS = (torch.float32, torch.bfloat16, torch.float16)
TILE, WIDTHS = 1024, (256, 128, 64)  # numbers, and features
PROGRAMS = 512  # in all, at most: no property of the GPU, so that sums are the same on all
SHARES, SUMS = 512, 8  # of a tile that adds shares up

Gradients = tuple[Tensor, Tensor | None, Tensor | None]  # of W x + b, x and b


def fits(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether the kernel makes the gradients, where it can run: in training, eager or compiled, of plain tensors."""
    if not torch.is_grad_enabled() or (_seen_by_compiler() if torch.compiler.is_compiling() else watched()):
        return False
    given = (x, weight, bias)
    if not all(type(one) in PLAIN for one in given):
        return False
    if not (x.requires_grad or weight.requires_grad or bias.requires_grad):
        return False
    if not all(one.dtype in KINDS and one.device == x.device for one in given):
        return False
    return _dtype(x) in KINDS and (autocasts(x.device) or x.dtype == weight.dtype == bias.dtype)


def _seen_by_compiler() -> bool:
    """Whether torch.compile is to see single operations: for an export, a transform, or derivatives of derivatives,
    which an `autograd.Function` that is traced does not have."""
    return exporting() or transformed() or _gradients_are_traced()


def _gradients_are_traced() -> bool:
    """Worked out once, while torch.compile traces: whether it may trace `torch.autograd.grad`."""
    return bool(getattr(torch._dynamo.config, "trace_autograd_ops", False))


def on_gpu(x: Tensor) -> bool:
    """Whether the kernel can run at all."""
    return x.is_cuda and _has_triton(str(x.device))


def _has_triton(device: str) -> bool:
    """Worked out once, while torch.compile traces."""
    return _can_run(device)


# What torch.compiler.assume_constant_result does, without importing the compiler, which takes longer than torch.
_has_triton._dynamo_marked_constant = True  # type: ignore[attr-defined]
_gradients_are_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _can_run(device: str) -> bool:
    return torch.cuda.is_available() and lacking(torch.device(device)) is None


def highway(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The output for x (..., features), where it `fits`; the weight is (2 · features, features)."""
    dtype = _dtype(x)
    if torch.compiler.is_compiling():
        weight = weight.to(dtype)  # once for both passes
    found: Tensor = _Highway.apply(x.to(dtype), weight, bias)
    return found


def _dtype(x: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype(x.device.type) if autocasts(x.device) else x.dtype


class _Highway(torch.autograd.Function):
    """Saves what `nn.Linear` saves, and W x + b: the weight in its own precision, and only for the gradient of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        pre = linear(x, weight.to(x.dtype), bias.to(x.dtype))
        ctx.save_for_backward(x, weight if ctx.needs_input_grad[0] else None, pre)
        ctx.dtypes = weight.dtype, bias.dtype
        ctx.versions = None
        if not torch.compiler.is_compiling():  # for further derivatives
            ctx.parameters, ctx.versions = (weight, bias), (weight._version, bias._version)
        transformed, gate = pre.chunk(2, dim=-1)
        return torch.lerp(x, torch.relu(transformed), torch.sigmoid(gate))

    @staticmethod
    def backward(ctx: Any, of_out: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, pre = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        kind, bias_kind = ctx.dtypes
        weight = None if weight is None else weight.to(x.dtype)
        of_x: Tensor | None
        of_bias: Tensor | None
        if torch.compiler.is_compiling():
            of_pre, of_x, of_bias = _highway_backward(of_out, x, weight, pre, bias_kind, need_bias)
        elif plain(of_out):
            of_pre, of_x, of_bias = gradients(of_out, x, weight, pre, bias_kind, need_bias)
        else:
            if ctx.versions != tuple(one._version for one in ctx.parameters):
                raise RuntimeError("the weights of a highway layer were changed before a second derivative was taken")
            of_pre, of_x, of_bias = by_operations(of_out, x, *ctx.parameters)
        of_weight = (_rows(of_pre).mT @ _rows(x)).to(kind) if need_weight else None
        return of_x if need_x else None, of_weight, of_bias if need_bias else None


def gradients(
    of_out: Tensor, x: Tensor, weight: Tensor | None, pre: Tensor, bias_dtype: torch.dtype, need_bias: bool
) -> Gradients:
    """By the kernel, and None where not needed: that of x is if there is a weight. That of the bias is rounded once."""
    of_out, x, pre = laid_out(of_out), laid_out(x), laid_out(pre)
    features = x.shape[-1]
    total = x.numel() // features
    of_pre, of_x = pre.new_empty(pre.shape), None if weight is None else x.new_empty(x.shape)
    if not total:
        return of_pre, of_x, x.new_zeros(2 * features, dtype=bias_dtype) if need_bias else None
    launch, add_up, shares = _launches(x.device, x.dtype, bias_dtype, total, features, of_x is not None, need_bias)
    sums = x.new_empty(shares, 2 * features, dtype=torch.float32) if need_bias else of_pre
    of_bias = None
    with on(x):
        launch(of_out, x, pre, of_pre, of_pre if of_x is None else of_x, sums)
        if need_bias:
            of_bias = x.new_empty(2 * features, dtype=bias_dtype)
            add_up(sums, of_bias)
        if of_x is not None and weight is not None:
            _rows(of_x).addmm_(_rows(of_pre), weight)
    return of_pre, of_x, of_bias


def by_operations(of_out: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All of them by torch, which may look at single operations and differentiate them again."""
    weight = weight.to(x.dtype)
    transformed, gate = linear(x, weight, bias.to(x.dtype)).chunk(2, dim=-1)
    gate = torch.sigmoid(gate)
    of_transformed = torch.where(transformed <= 0, 0.0, of_out * gate)
    of_gate = of_out * (torch.relu(transformed) - x) * (gate * (1 - gate))
    of_pre = torch.cat([of_transformed, of_gate], dim=-1)
    return of_pre, of_out * (1 - gate) + of_pre @ weight, _rows(of_pre).sum(0).to(bias.dtype)


@torch.library.custom_op("plmu::highway_backward", mutates_args=())
def _highway_backward(
    of_out: Tensor, x: Tensor, weight: Tensor | None, pre: Tensor, bias_dtype: torch.dtype, need_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of W x + b, x and b; empty where not needed. `pre` is W x + b as the forward pass left it."""
    of_pre, of_x, of_bias = gradients(of_out, x, weight, pre, bias_dtype, need_bias)
    nothing = x.new_empty(0, dtype=bias_dtype)
    return of_pre, x.new_empty(0) if of_x is None else of_x, nothing if of_bias is None else of_bias


@_highway_backward.register_fake
def _(
    of_out: Tensor, x: Tensor, weight: Tensor | None, pre: Tensor, bias_dtype: torch.dtype, need_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    of_bias = x.new_empty(pre.shape[-1] if need_bias else 0, dtype=bias_dtype)
    return pre.new_empty(pre.shape), x.new_empty(0 if weight is None else x.shape), of_bias


@prepared
def _launches(
    device: torch.device,
    dtype: torch.dtype,
    bias_dtype: torch.dtype,
    total: int,
    features: int,
    need_x: bool,
    need_bias: bool,
) -> tuple[Launch, Launch, int]:
    """Of the kernel, of the sum over its programs, and how many shares the rows are divided into."""
    width = min(WIDTHS, key=lambda one: tiles(features, one) * one)  # the widest of those that cover them best
    rows, columns = TILE // width, tiles(features, width)
    share = tiles(tiles(total, max(1, PROGRAMS // columns)), rows) * rows
    shares = tiles(total, share)
    constants = {"ROWS": rows, "WIDTH": width, "UNIT": math.gcd(features, 8), "DIRECT": need_x, "BIAS": need_bias}
    launch = Launch(_kernels, "through_gate", (shares, columns), (total, features, share), constants, num_warps=8)
    constants = {"ROWS": SHARES, "WIDTH": SUMS, "UNIT": math.gcd(2 * features, 8)}
    add_up = Launch(kernels, "add_up", (tiles(2 * features, SUMS),), (shares, 2 * features), constants)
    return launch, add_up, shares


def _kernels() -> ModuleType:
    return importlib.import_module("plmu.ops.gpu.triton_highway")


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])
