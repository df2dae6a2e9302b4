"""Kernels for parts of layers beside the memory: the encoder, highway layers, and the steps of the original LMU.

Layers ask for them where `DEVICES` says so; only then is `plmu.ops.gpu` imported.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

DEVICES = ("cuda",)  # kinds of devices for which layers ask for kernels


def encoded(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """(u, x) with u = U x + b, for training in half precision on Hopper GPUs; None elsewhere. The layer must use this x
    for its other operations: their gradients of x are then added to the encoder's in one product."""
    from plmu.ops.gpu import encoding

    return encoding.encoded(x, weight, bias) if encoding.fits(x, weight, bias) else None


def highway(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor | None:
    """g · relu(W x + b) + (1 − g) · x with the gate in the second half of W and b, in training; None where torch
    computes it."""
    from plmu.ops.gpu import highway as kernel

    return kernel.highway(x, weight, bias) if kernel.on_gpu(x) and kernel.fits(x, weight, bias) else None


def why_no_steps(device: torch.device, dtype: torch.dtype, batch: int) -> str | None:
    """The reason why no kernel runs the steps of an original LMU, or None."""
    reason = None
    if device.type != "cuda":
        reason = "our kernels run on a GPU alone"
    elif dtype != torch.float32:
        reason = "our kernels take float32 alone"
    elif not batch:
        reason = "the batch is empty"
    elif importlib.util.find_spec("triton") is None:
        reason = "our kernels need Triton: pip install triton"
    else:
        from plmu.ops.gpu.devices import lacking

        missing = lacking(device)
        reason = None if missing is None else f"our kernels need {missing}"
    return reason


@cache
def steps() -> ModuleType | None:
    """The module of kernels for the steps of an original LMU; None without Triton."""
    return importlib.import_module("plmu.ops.gpu.triton_coupled") if importlib.util.find_spec("triton") else None
