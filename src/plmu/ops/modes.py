"""What torch does with a call besides running it."""

from __future__ import annotations

import torch


def forward_mode() -> bool:
    """Whether forward-mode gradients are taken."""
    return not torch.compiler.is_compiling() and torch.autograd.forward_ad._current_level >= 0


def transformed() -> bool:
    """Whether torch.func or forward-mode gradients are at work."""
    if torch.compiler.is_compiling():
        return False
    return forward_mode() or torch._C._functorch.peek_interpreter_stack() is not None


def looked_at() -> bool:
    """Whether the single operations of a call are looked at: also by torch.compile and by tracing."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or transformed()  # type: ignore[attr-defined]
