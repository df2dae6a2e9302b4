"""Checks and preparations before a launch: what a GPU supports, aligned tensors, the current device and its context."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import threading

import torch
from torch import Tensor

OLDEST = (7, 0)  # compute capability that Triton supports
WITH_PRODUCTS = (8, 0)  # and from which it uses tensor cores
ALIGNED = 16  # bytes to which operands, and for Hopper their rows, must be aligned
_SAME: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
_entered = threading.local()  # the devices whose context each thread has


def lacking(device: torch.device) -> str | None:
    """What is missing for Triton to compile simple kernels for a GPU; None if nothing is, or if this machine has no
    GPU."""
    if not torch.cuda.is_available():
        return None
    return (None if is_amd() else _too_old(device, OLDEST)) or _fault_of_triton()


def lacking_for_products(device: torch.device) -> str | None:
    """What a GPU lacks for our kernels with matrix products, which are for NVIDIA's tensor cores; None if nothing.
    Triton is not checked, since it takes a while to start."""
    if not torch.cuda.is_available():
        return None
    return "an NVIDIA GPU" if is_amd() else _too_old(device, WITH_PRODUCTS)


def is_amd() -> bool:
    """Whether the GPUs are AMD's, whose compute capabilities mean something else."""
    return torch.version.hip is not None


def _too_old(device: torch.device, oldest: tuple[int, int]) -> str | None:
    capability = torch.cuda.get_device_capability(device)
    if capability >= oldest:
        return None
    required, actual = (".".join(map(str, version)) for version in (oldest, capability))
    return f"a GPU of compute capability {required} or newer, not {actual}"


@functools.cache
def _fault_of_triton() -> str | None:
    """Why Triton cannot compile here, for instance without a C compiler; None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton: pip install triton"
    try:
        importlib.import_module("triton").runtime.driver.active.get_current_target()
    except Exception as error:  # compilers and drivers may raise anything; torch's operations run instead
        return f"a working Triton ({(str(error) or repr(error)).splitlines()[0].rstrip('.')})"
    return None


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if it is not aligned to 16 bytes."""
    return tensor if tensor.data_ptr() % ALIGNED == 0 else tensor.clone()


def laid_out(tensor: Tensor) -> Tensor:
    """The tensor as kernels need it: contiguous and aligned."""
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % ALIGNED == 0 else tensor.clone()  # as `aligned`, without a call on the host


def laid_out_if(tensor: Tensor | None) -> Tensor | None:
    """`laid_out`, or None."""
    return None if tensor is None else laid_out(tensor)


def aligned_if(tensor: Tensor | None) -> Tensor | None:
    """`aligned`, or None."""
    return None if tensor is None else aligned(tensor)


def on(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """A context in which the tensor's device is the current device."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return _SAME
    return torch.cuda.device(tensor.device)


def enter(device: torch.device) -> None:
    """Make the GPU's context current in this thread, before the copy engine's descriptors are made. A thread that has
    not called CUDA yet has none, as autograd's when all its memory was cached. Any kernel of torch sets it."""
    try:
        if device in _entered.devices:
            return
    except AttributeError:
        _entered.devices = set()
    torch.zeros(1, device=device)
    _entered.devices.add(device)
