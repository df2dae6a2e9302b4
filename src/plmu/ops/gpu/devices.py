"""What kernels ask of tensors and their device: where memory begins, the current device, its context and its kind."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import threading

import torch
from torch import Tensor

OLDEST = (7, 0)  # compute capability of a GPU that Triton knows
WITH_PRODUCTS = (8, 0)  # and of one whose tensor cores it uses
ALIGNED = 16  # bytes at which operands, and for Hopper the rows of these, must begin
_SAME: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
_entered = threading.local()  # the devices whose context each thread has


def lacking(device: torch.device) -> str | None:
    """What is missing for Triton to compile simple kernels for a GPU, if anything. Nothing is asked of one that is not
    here."""
    if not torch.cuda.is_available():
        return None
    return (None if is_amd() else _too_old(device, OLDEST)) or _fault_of_triton()


def lacking_for_products(device: torch.device) -> str | None:
    """What a GPU lacks for our kernels with matrix products, if anything: they are for tensor cores of NVIDIA. Triton,
    which takes a while to start, is not asked."""
    if not torch.cuda.is_available():
        return None
    return "an NVIDIA GPU" if is_amd() else _too_old(device, WITH_PRODUCTS)


def is_amd() -> bool:
    """Whether GPUs are AMD's, whose compute capabilities mean something else."""
    return torch.version.hip is not None


def _too_old(device: torch.device, oldest: tuple[int, int]) -> str | None:
    found = torch.cuda.get_device_capability(device)
    if found >= oldest:
        return None
    wanted, given = (".".join(map(str, one)) for one in (oldest, found))
    return f"a GPU of compute capability {wanted} or newer, not {given}"


@functools.cache
def _fault_of_triton() -> str | None:
    """Why Triton compiles nothing here: it needs a C compiler, for one."""
    if importlib.util.find_spec("triton") is None:
        return "Triton: pip install triton"
    try:
        importlib.import_module("triton").runtime.driver.active.get_current_target()
    except Exception as error:  # whatever a compiler or a driver may raise: torch's own operations run then
        return f"a working Triton ({(str(error) or repr(error)).splitlines()[0].rstrip('.')})"
    return None


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
