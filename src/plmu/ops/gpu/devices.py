"""What kernels ask of tensors and of their device: where memory begins, the current device, and its context."""

from __future__ import annotations

import contextlib
import threading

import torch
from torch import Tensor

ALIGNED = 16  # bytes at which operands, and for Hopper the rows of these, must begin
_SAME: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
_entered = threading.local()  # the devices whose context each thread has


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it where it does not begin at a multiple of 16 bytes."""
    return tensor if tensor.data_ptr() % ALIGNED == 0 else tensor.clone()


def laid_out(tensor: Tensor) -> Tensor:
    """The tensor as kernels take it: contiguous and aligned."""
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % ALIGNED == 0 else tensor.clone()


def laid_out_if(tensor: Tensor | None) -> Tensor | None:
    """The same of a tensor that need not be given."""
    return None if tensor is None else laid_out(tensor)


def aligned_if(tensor: Tensor | None) -> Tensor | None:
    """The same of a tensor that need not be given."""
    return None if tensor is None else aligned(tensor)


def on(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Makes the tensor's device the current one, where it is not."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return _SAME
    return torch.cuda.device(tensor.device)


def enter(device: torch.device) -> None:
    """Bring the GPU's context into this thread, where descriptors for the copy engine are made. A thread that has not
    called CUDA yet has none, as autograd's may when it finds all memory at hand; any kernel of torch brings it."""
    try:
        if device in _entered.devices:
            return
    except AttributeError:
        _entered.devices = set()
    torch.zeros(1, device=device)
    _entered.devices.add(device)
