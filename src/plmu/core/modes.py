"""torch modes active during a call (autocast, compiling, exporting, tracing, transforms, hooks), and whether values of
tensors can be read under them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def autocasts(device: torch.device) -> bool:
    """Whether autocast is on for a device; the meta device, which computes nothing, has none."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def exporting() -> bool:
    """Whether torch.export is at work. In torch 2.11 `torch.compiler.is_exporting` says so under torch.compile too."""
    return torch.compiler._is_exporting_flag


def is_open(*sizes: int) -> bool:
    """Whether torch.export leaves one of these sizes open, so that nothing may be decided by it."""
    if not exporting():
        return False
    return not all(torch.fx.experimental.symbolic_shapes.has_static_value(size) for size in sizes)


def surely(condition: bool) -> bool:
    """Whether a condition holds for all values that an open size may have."""
    if not exporting():
        return condition
    return torch.fx.experimental.symbolic_shapes.statically_known_true(condition)


def forward_mode() -> bool:
    """Whether forward-mode gradients are taken."""
    return not torch.compiler.is_compiling() and torch.autograd.forward_ad._current_level >= 0


def transformed() -> bool:
    """Whether torch.func or forward-mode gradients are at work, also in code that torch.compile traces."""
    stack = torch._C._functorch.peek_interpreter_stack()
    return torch.autograd.forward_ad._current_level >= 0 or isinstance(stack, torch._C._functorch.CInterpreter)


def watched() -> bool:
    """Whether torch intercepts each operation of a call: transforms, torch.compile, tracing or dispatch modes."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return True
    if torch.autograd.forward_ad._current_level >= 0 or torch._C._len_torch_dispatch_stack() > 0:
        return True
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_batched(gradient: Tensor) -> bool:
    """Whether a gradient is a batch of them, as `torch.autograd.grad(is_grads_batched=True)` passes it."""
    return not torch.compiler.is_compiling() and torch._C._functorch.is_legacy_batchedtensor(gradient)


def values_unknown(value: Tensor) -> bool:
    """Whether a tensor's values cannot be read: under torch.compile, make_fx or torch.func, or on the meta device."""
    if torch.compiler.is_compiling() or value.is_meta or hasattr(value, "fake_mode"):
        return True
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:
        return True
    return torch.func.debug_unwrap(value) is not value


def among_fakes(value: Tensor) -> Tensor:
    """The tensor converted to a fake tensor if the active FakeTensorMode accepts only those; else the tensor itself."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    if mode is None or mode.allow_non_fake_inputs or hasattr(value, "fake_mode"):
        return value
    fake: Tensor = mode.from_tensor(value)
    return fake


def copy_among_fakes(module: Module) -> Module:
    """A deep copy of a module, also of one with fake tensors, which `copy.deepcopy` would put into a mode of their
    own."""
    copies: dict[int, Any] = {}
    for value in (*module.parameters(), *module.buffers()):
        if hasattr(value, "fake_mode"):
            copied = value.detach().clone()
            copies[id(value)] = nn.Parameter(copied, value.requires_grad) if isinstance(value, nn.Parameter) else copied
    return copy.deepcopy(module, copies)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside an average of models, a data-parallel wrapper or what `torch.compile` returned."""
    wrappers = (torch.optim.swa_utils.AveragedModel, nn.parallel.DistributedDataParallel, nn.DataParallel)
    while True:
        # torch.compile's class has no public name, and importing it takes longer than torch.
        inner = model.module if isinstance(model, wrappers) else getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def is_plain(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether a module is of exactly one of these classes, and a call runs its `forward` alone, without hooks."""
    if type(module) not in kinds or nn.modules.module._has_any_global_hook():
        return False
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def watched_backward(module: nn.Module) -> bool:
    """Whether a module has backward hooks."""
    return bool(module._backward_hooks or module._backward_pre_hooks)


def without_modes(build: Callable[[], Tensor]) -> Tensor:
    """The result of `build`, run in a new thread, where none of the caller's modes is active.

    Inference mode, autocast, a default device, torch.func transforms and fake tensors all belong to a thread.
    A tensor that outlives the call must not be made under them.
    """
    result: list[Tensor] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            with torch.no_grad():
                result.append(build())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]
