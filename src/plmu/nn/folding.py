"""How the modules inside a model fold: stacks, activations, and torch modules that act on each time step separately."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from plmu.core.modes import is_plain as is_plain  # for other modules of this room
from plmu.folded import (
    Affine,
    Applied,
    Chain,
    Folded,
    Function,
    Identity,
    Lookup,
    Norm,
    Place,
    Scale,
    Stateless,
    Unit,
    chain,
)
from plmu.folded.functions import MODULES as MODULES
from plmu.folded.functions import activation_name
from plmu.nn.steppable import Steppable

# Modules that do nothing after training.
TRAINING_ONLY = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.AlphaDropout)


def fold_module(module: nn.Module) -> Folded:
    """The folded form of a module of a stack: by its own `fold()` if it has one, else by the rules for torch
    modules."""
    if isinstance(module, nn.Sequential) and is_plain(module, nn.Sequential):
        return fold_stack([(inner, 0) for inner in module], None)
    if isinstance(module, Steppable) or (getattr(module, "per_step", False) and hasattr(module, "fold")):
        folded: Folded = module.fold()  # type: ignore[operator]
        return folded
    return _fold_torch(module)


def fold_stack(modules: list[tuple[nn.Module, int]], states: int | None) -> Chain:
    """The folded form of modules in a row, each with the place of its state in the stack's; `states` as in `Chain`."""
    parts: list[tuple[Folded, int]] = []
    for module, place in modules:
        part = fold_module(module)
        inside = part.parts if isinstance(part, Chain) and part.states is None else (part,)
        parts += [(inner, place) for inner in inside]
    return chain(parts, states)


def fold_activation(function: Callable[[Tensor], Tensor] | None) -> Stateless | None:
    """The folded form of a layer's activation: by its name if it has one."""
    if function is None:
        return None
    if isinstance(function, nn.Module):
        part = fold_module(function)
        return part if isinstance(part, Stateless) else Applied.of(function)
    return Function(activation_name(function) or function)


def fold_linear(module: nn.Linear) -> Affine:
    """W x + b of a linear layer."""
    weight, bias = module.weight, module.bias
    return Affine(exact(weight), None if bias is None else exact(bias), dtype=weight.dtype, device=weight.device)


def exact(value: Tensor) -> Tensor:
    """The tensor in float64 on the CPU, where arrays are multiplied out."""
    return value.detach().cpu().double()


def _fold_rms(module: nn.RMSNorm) -> Folded:
    """An RMS norm as x / √(|x|² + n · eps) and a scale, which `chain` can merge into the next product.

    It stays one `Norm` in half precision, which would be rounded twice, and on a GPU, where it is one kernel.
    """
    features, weight = int(module.normalized_shape[-1]), module.weight
    if weight is None:
        return Norm(None, None, features, module.eps, False)
    place = Place(dtype=weight.dtype, device=weight.device)
    if weight.dtype not in (torch.float32, torch.float64) or not weight.is_cpu:
        return Norm(weight, None, features, module.eps, False, **place)
    eps = torch.finfo(weight.dtype).eps if module.eps is None else module.eps
    scale = Scale(math.sqrt(features) * exact(weight), None, **place)
    unit = Unit(torch.tensor([math.sqrt(features * eps)], dtype=torch.float64), **place)
    return chain([(unit, 0), (scale, 0)], None)


def _fold_torch(module: nn.Module) -> Folded:
    """Fold a stock torch module; wrap anything else in `Applied`, such as subclasses and modules with hooks."""
    if not is_plain(module, type(module)):
        return Applied.of(module)
    kind = type(module)
    if kind in TRAINING_ONLY:
        return Identity()
    if kind in MODULES:
        name, options = MODULES[kind]
        return Function(name, tuple((option, getattr(module, option)) for option in options))
    weight: Any = getattr(module, "weight", None)
    place = {} if weight is None else {"dtype": weight.dtype, "device": weight.device}
    if isinstance(module, nn.Linear) and kind is nn.Linear:
        return fold_linear(module)
    if isinstance(module, nn.PReLU) and kind is nn.PReLU:
        return Function("prelu", (), weight, **place)
    if isinstance(module, nn.Embedding) and kind is nn.Embedding:
        table = weight.detach().clone()
        if module.max_norm is not None:  # apply to all rows what torch applies to rows that are looked up
            rows = torch.arange(table.shape[0], device=table.device)
            table = embedding(rows, table, None, module.max_norm, module.norm_type)
        return Lookup(table, **place)
    if isinstance(module, nn.LayerNorm) and kind is nn.LayerNorm:
        return Norm(weight, module.bias, int(module.normalized_shape[-1]), module.eps, True, **place)
    if isinstance(module, nn.RMSNorm) and kind is nn.RMSNorm:
        return _fold_rms(module)
    return Applied.of(module)
