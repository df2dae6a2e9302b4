"""The backward pass of a highway layer with ReLU, g · relu(a) + (1 − g) · x of [a ; c] = W x + b and g = σ(c).

The forward pass is torch's, so that `torch.compile` fuses it with the next operations. Its backward pass would load all
operands for each half of the gradient of W x + b, and that gradient again for its sum. Here one kernel makes both
gradients and their sums for the bias. The product that makes the gradient of x adds its direct part.
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
PROGRAMS = 512  # at most; the same on all GPUs, so that sums are equal
SHARES, SUMS = 512, 8  # of a tile that sums shares

Gradients = tuple[Tensor, Tensor | None, Tensor | None]  # of W x + b, x and b


def fits(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether the kernel suits: in training, eager or compiled, for plain tensors. `on_gpu` says whether it can run."""
    if not torch.is_grad_enabled() or (_seen_by_compiler() if torch.compiler.is_compiling() else watched()):
        return False
    tensors = (x, weight, bias)
    if not all(type(tensor) in PLAIN for tensor in tensors):
        return False
    if not (x.requires_grad or weight.requires_grad or bias.requires_grad):
        return False
    if not all(tensor.dtype in KINDS and tensor.device == x.device for tensor in tensors):
        return False
    return _dtype(x) in KINDS and (autocasts(x.device) or x.dtype == weight.dtype == bias.dtype)


def _seen_by_compiler() -> bool:
    """Whether torch.compile must see single operations: for an export, a transform, or second derivatives, which a
    traced `autograd.Function` does not have."""
    return exporting() or transformed() or _gradients_are_traced()


def _gradients_are_traced() -> bool:
    """Whether torch.compile may trace `torch.autograd.grad`. A constant while it traces."""
    return bool(getattr(torch._dynamo.config, "trace_autograd_ops", False))


def on_gpu(x: Tensor) -> bool:
    """Whether the kernel can run at all."""
    return x.is_cuda and _has_triton(str(x.device))


def _has_triton(device: str) -> bool:
    """Whether `_can_run`. A constant while torch.compile traces."""
    return _can_run(device)


# As torch.compiler.assume_constant_result does, without importing the compiler, which takes longer than torch.
_has_triton._dynamo_marked_constant = True  # type: ignore[attr-defined]
_gradients_are_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _can_run(device: str) -> bool:
    return torch.cuda.is_available() and lacking(torch.device(device)) is None


def highway(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The output for x (..., features), if it `fits`; the weight is (2 · features, features)."""
    dtype = _dtype(x)
    if torch.compiler.is_compiling():
        weight = weight.to(dtype)  # once for both passes
    out: Tensor = _Highway.apply(x.to(dtype), weight, bias)
    return out


def _dtype(x: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype(x.device.type) if autocasts(x.device) else x.dtype


class _Highway(torch.autograd.Function):
    """Saves x, W x + b and, for the gradient of x, the weight in its own precision."""

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
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, pre = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        kind, bias_kind = ctx.dtypes
        weight = None if weight is None else weight.to(x.dtype)
        grad_x: Tensor | None
        grad_bias: Tensor | None
        if torch.compiler.is_compiling():
            grad_pre, grad_x, grad_bias = _highway_backward(grad_out, x, weight, pre, bias_kind, need_bias)
        elif plain(grad_out):
            grad_pre, grad_x, grad_bias = gradients(grad_out, x, weight, pre, bias_kind, need_bias)
        else:
            if ctx.versions != tuple(parameter._version for parameter in ctx.parameters):
                raise RuntimeError("the weights of a highway layer were changed before a second derivative was taken")
            grad_pre, grad_x, grad_bias = by_operations(grad_out, x, *ctx.parameters)
        grad_weight = (_rows(grad_pre).mT @ _rows(x)).to(kind) if need_weight else None
        return grad_x if need_x else None, grad_weight, grad_bias if need_bias else None


def gradients(
    grad_out: Tensor, x: Tensor, weight: Tensor | None, pre: Tensor, bias_dtype: torch.dtype, need_bias: bool
) -> Gradients:
    """The gradients by the kernel; None for x without a weight, and for the bias if not needed."""
    grad_out, x, pre = laid_out(grad_out), laid_out(x), laid_out(pre)
    features = x.shape[-1]
    total = x.numel() // features
    grad_pre, grad_x = pre.new_empty(pre.shape), None if weight is None else x.new_empty(x.shape)
    if not total:
        return grad_pre, grad_x, x.new_zeros(2 * features, dtype=bias_dtype) if need_bias else None
    launch, add_up, shares = _launches(x.device, x.dtype, bias_dtype, total, features, grad_x is not None, need_bias)
    sums = x.new_empty(shares, 2 * features, dtype=torch.float32) if need_bias else grad_pre
    grad_bias = None
    with on(x):
        # `grad_pre` also stands for a grad_x or sums that nobody needs: the kernel then does not write to them.
        launch(grad_out, x, pre, grad_pre, grad_pre if grad_x is None else grad_x, sums)
        if need_bias:
            grad_bias = x.new_empty(2 * features, dtype=bias_dtype)
            add_up(sums, grad_bias)
        if grad_x is not None and weight is not None:
            _rows(grad_x).addmm_(_rows(grad_pre), weight)
    return grad_pre, grad_x, grad_bias


def by_operations(grad_out: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by torch's operations, which can be differentiated again."""
    weight = weight.to(x.dtype)
    transformed, gate = linear(x, weight, bias.to(x.dtype)).chunk(2, dim=-1)
    gate = torch.sigmoid(gate)
    grad_transformed = torch.where(transformed <= 0, 0.0, grad_out * gate)
    grad_gate = grad_out * (torch.relu(transformed) - x) * (gate * (1 - gate))
    grad_pre = torch.cat([grad_transformed, grad_gate], dim=-1)
    return grad_pre, grad_out * (1 - gate) + grad_pre @ weight, _rows(grad_pre).sum(0).to(bias.dtype)


@torch.library.custom_op("plmu::highway_backward", mutates_args=())
def _highway_backward(
    grad_out: Tensor, x: Tensor, weight: Tensor | None, pre: Tensor, bias_dtype: torch.dtype, need_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of W x + b, x and b; empty if not needed. `pre` is W x + b of the forward pass."""
    grad_pre, grad_x, grad_bias = gradients(grad_out, x, weight, pre, bias_dtype, need_bias)
    nothing = x.new_empty(0, dtype=bias_dtype)
    return grad_pre, x.new_empty(0) if grad_x is None else grad_x, nothing if grad_bias is None else grad_bias


@_highway_backward.register_fake
def _(
    grad_out: Tensor, x: Tensor, weight: Tensor | None, pre: Tensor, bias_dtype: torch.dtype, need_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    grad_bias = x.new_empty(pre.shape[-1] if need_bias else 0, dtype=bias_dtype)
    return pre.new_empty(pre.shape), x.new_empty(0 if weight is None else x.shape), grad_bias


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
    """The launches of the kernel and of the sum over its programs, and the number of shares of the rows."""
    width = min(
        WIDTHS, key=lambda candidate: tiles(features, candidate) * candidate
    )  # the widest that covers them best
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
