"""What torch does with a call besides running it."""

from __future__ import annotations

import torch


def autocasts(device: torch.device) -> bool:
    """Whether autocast is on for a device; the meta device, which computes nothing, has none."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def is_open(*sizes: int) -> bool:
    """Whether torch.export leaves one of these sizes open, so that nothing may be decided by it."""
    if not torch.compiler.is_exporting():
        return False
    return not all(torch.fx.experimental.symbolic_shapes.has_static_value(size) for size in sizes)


def surely(condition: bool) -> bool:
    """Whether a condition holds for all values that an open size may have."""
    if not torch.compiler.is_exporting():
        return condition
    return torch.fx.experimental.symbolic_shapes.statically_known_true(condition)


def forward_mode() -> bool:
    """Whether forward-mode gradients are taken."""
    return not torch.compiler.is_compiling() and torch.autograd.forward_ad._current_level >= 0


def transformed() -> bool:
    """Whether torch.func or forward-mode gradients are at work."""
    if torch.compiler.is_compiling():
        return False
    return forward_mode() or torch._C._functorch.peek_interpreter_stack() is not None


def watched() -> bool:
    """Whether the single operations of a call are looked at: also by torch.compile, tracing and dispatch modes."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return True
    return transformed() or torch._C._len_torch_dispatch_stack() > 0


def is_batched(gradient: torch.Tensor) -> bool:
    """Whether a gradient is many, as `torch.autograd.grad(is_grads_batched=True)` passes them."""
    return not torch.compiler.is_compiling() and torch._C._functorch.is_legacy_batchedtensor(gradient)
