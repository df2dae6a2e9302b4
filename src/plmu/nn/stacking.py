"""The modules of a stack: which may be in it, their input and output features, and how they run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from plmu.core.modes import autocasts
from plmu.folded.functions import MODULES
from plmu.nn.delay import DelayLayer
from plmu.nn.dense import dense
from plmu.nn.folding import TRAINING_ONLY, is_plain
from plmu.nn.original import LMU
from plmu.nn.parallel import ParallelLMU
from plmu.nn.standardization import Standardize
from plmu.nn.steppable import Steppable
from plmu.nn.steppable import features_of as features_of
from plmu.ops.check import Lengths, check_padded, checked_lengths, checked_resets, keep_valid

# Modules of torch that act on each time step separately, on the last axis or on single elements.
PER_STEP: tuple[type[nn.Module], ...] = (
    nn.Linear,
    nn.Embedding,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.PReLU,
    *TRAINING_ONLY,  # nn.Dropout1d drops whole steps: it takes time for the channels
    *(kind for kind in MODULES if kind not in (nn.Softmax, nn.LogSoftmax, nn.GLU)),
)


def check_module(module: nn.Module, where: str) -> None:
    """Raise unless the module is steppable or acts on each time step separately, and does not change its input in
    place."""
    if getattr(module, "inplace", False):
        raise ValueError(f"{where} ({name_of(module)}) has inplace=True and would overwrite a state or the caller's"
                         " input: use inplace=False")  # fmt: skip
    if isinstance(module, Standardize) and len(module.features) != 1:
        raise ValueError(f"{where} (Standardize) must be over the features alone, got {module.features}")
    if isinstance(module, Steppable) or getattr(module, "per_step", False):
        return
    if isinstance(module, PER_STEP) and not _takes_time(module):
        return
    if isinstance(module, nn.Softmax | nn.LogSoftmax | nn.GLU) and module.dim == -1:
        return
    if isinstance(module, nn.Sequential):
        for name, inner in module.named_children():
            if isinstance(inner, Steppable):
                raise ValueError(f"{where}.{name} ({name_of(inner)}) has a state, which nn.Sequential would lose:"
                                 " use plmu.Sequential")  # fmt: skip
            check_module(inner, f"{where}.{name}")
        return
    if not isinstance(module, nn.Module):
        raise TypeError(f"{where} must be an nn.Module, got {type(module).__name__}")
    raise ValueError(
        f"{where} ({name_of(module)}) is neither steppable nor known to act on each time step separately, so parallel"
        " and step-by-step results could differ. If it does act so, give its class `per_step = True`;"
        " if it has a state, subclass plmu.nn.Steppable"
    )


# Classes that take a single number of input features.
EXACT = (nn.Linear, nn.LayerNorm, nn.RMSNorm, Standardize, ParallelLMU, DelayLayer, LMU)
# Modules in PER_STEP that take a single number of features, or tokens; the others take any number.
_SIZED = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm)


def entrance(module: nn.Module) -> nn.Module | None:
    """The first module inside that restricts the form of the input, such as its features; None where nothing does."""
    if isinstance(module, Steppable):
        return module._entrance()
    if isinstance(module, nn.Sequential):
        return first_entrance(module)
    any_size = isinstance(module, (*PER_STEP, nn.Softmax, nn.LogSoftmax)) and not isinstance(module, _SIZED)
    return None if any_size else module


def first_entrance(modules: Iterable[nn.Module]) -> nn.Module | None:
    """The first module that restricts the input of modules in a row; None where nothing does."""
    for module in modules:  # a loop: torch.compile of 2.11 cannot read a name bound inside a generator
        first = entrance(module)
        if first is not None:
            return first
    return None


def features_after(module: nn.Module, features: int | None) -> int | None:
    """The output features of a module for the given input features; None where they are unknown, as for classes outside
    plmu and torch, and modules with hooks."""
    if not is_plain(module, type(module)) or not type(module).__module__.startswith(("plmu.", "torch.")):
        return None
    if isinstance(module, nn.LazyLinear):
        return None
    if isinstance(module, Steppable):
        return module._features_after(features)
    if isinstance(module, nn.Sequential):
        for inner in module:
            features = features_after(inner, features)
        return features
    if isinstance(module, nn.Linear):
        return module.out_features
    if isinstance(module, nn.Embedding):
        return module.embedding_dim
    if isinstance(module, nn.GLU):
        return None if features is None else features // 2
    same = isinstance(module, (*PER_STEP, nn.Softmax, nn.LogSoftmax, Standardize))
    return (features_of(module) or features) if same else None


def fills(module: nn.Module) -> str | None:
    """How a model fills missing values of its input: "hold", "zero", or None if it does not."""
    return module._fills() if isinstance(module, Steppable) else None


def _takes_time(module: nn.Module) -> bool:
    """Whether a module of PER_STEP has options that make it mix time steps."""
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return len(module.normalized_shape) > 1
    return isinstance(module, nn.PReLU) and module.num_parameters > 1  # one for each index of the second axis


def run(module: nn.Module, x: Tensor, state: Any, lengths: Tensor | None, resets: Tensor | None) -> tuple[Tensor, Any]:
    """The output of a module of a stack for a whole sequence, and its next state; None if it has no state, and () in a
    trace, which has no None."""
    if isinstance(module, Steppable):
        result: tuple[Tensor, Any] = module(x, state, lengths, resets=resets)
        return result
    return _over_steps(module, x, lengths), () if torch.jit.is_tracing() else None  # type: ignore[attr-defined]


def run_step(module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    """The output of a module of a stack for one step, and its next state; as in `run` if it has no state."""
    if isinstance(module, Steppable):
        result: tuple[Tensor, Any] = module.step(x, state)
        return result
    return _each_step(module, x), () if torch.jit.is_tracing() else None  # type: ignore[attr-defined]


def checked_states(state: tuple[Any, ...] | None, count: int) -> tuple[Any, ...]:
    """The states of `count` modules, checked; None for each at the start."""
    if state is None:
        return (None,) * count
    if not isinstance(state, tuple) or len(state) != count:
        kind = f"a tuple of {len(state)}" if isinstance(state, tuple) else type(state).__name__
        raise ValueError(f"state must be a tuple of {count}, one for each module; got {kind}")
    return state


def checked_input(
    model: Steppable, x: Tensor, lengths: Lengths, resets: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The input of a stack, checked, with zeros in the padding of x."""
    check_padded(x, "x")
    if x.dim() < 2:
        raise ValueError(
            "x must have shape (batch, time, features), or (batch, time) for token numbers;"
            f" got {tuple(x.shape)}: for one sequence give x[None]"
        )
    lengths = checked_lengths(lengths, x.shape[0], x.shape[1], x.device)
    resets = checked_resets(resets, x.shape[0], x.shape[1], x.device)
    check_step(model, x)
    return keep_valid(x, lengths), lengths, resets


def check_step(model: Steppable, x: Tensor) -> None:
    """Raise unless x has the features and precision that the model's first module takes, if that is a torch module that
    would not name them."""
    first = entrance(model)
    if not isinstance(first, nn.Linear | nn.LayerNorm | nn.RMSNorm):  # other modules name what they expect
        return
    size = features_of(first)
    if x.shape[-1] != size:
        shape = f"({'batch, time, ' if x.dim() > 2 else 'batch, '}{size})"
        raise ValueError(f"x must have shape {shape}, got {tuple(x.shape)}")
    if isinstance(first, nn.Linear) and x.dtype != first.weight.dtype and not autocasts(x.device):
        raise TypeError(
            f"x is {x.dtype} and nn.Linear {first.weight.dtype}: convert one of them, for example x.to(...)"
        )


def _over_steps(module: nn.Module, x: Tensor, lengths: Tensor | None) -> Any:
    """module(x) for all steps of a sequence. While `plmu.standardize` measures, `Standardize` also gets the lengths."""
    if isinstance(module, Standardize) and module.measuring:
        return module(x, lengths)
    if isinstance(module, nn.Sequential) and any(isinstance(part, Standardize) and part.measuring for part in module):
        for inner in module:
            x = _over_steps(inner, x, lengths)
        return x
    return dense(module, x) if isinstance(module, nn.Linear) else _each_step(module, x)


def _each_step(module: nn.Module, x: Tensor) -> Any:
    """module(x), with an error that names a bad token; not while compiling, nor on a GPU, where torch does not
    check."""
    if isinstance(module, nn.RMSNorm) and module.weight is not None and autocasts(x.device):
        return module(x.to(module.weight.dtype))  # as torch does for nn.LayerNorm; its kernel takes one precision
    first = entrance(module)
    if not isinstance(first, nn.Embedding) or torch.compiler.is_compiling():
        return module(x)
    if x.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"x must be token numbers for nn.Embedding, got {x.dtype}: convert it, for example x.long()")
    try:
        return module(x)
    except IndexError:
        size = first.num_embeddings
        bad = x[(x < 0) | (x >= size)][0].item()
        raise IndexError(f"x must be token numbers from 0 to {size - 1} for nn.Embedding, got {bad}") from None


def keep_output(out: Tensor, lengths: Tensor | None, sequences: bool) -> Tensor:
    """The output of a stack with zeros in the padding, or, unless it gives sequences, for empty sequences."""
    if sequences or lengths is None:
        return keep_valid(out, lengths)
    return torch.where((lengths > 0)[:, None], out, 0.0)


def name_of(module: nn.Module) -> str:
    return type(module).__name__
