"""Folded functions that act on each time step separately."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plmu.folded.base import Stateless, as_dtype, copied, copies

# Activations that have a name.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "silu": F.silu,
    "elu": F.elu,
    "leaky_relu": F.leaky_relu,
    "softplus": F.softplus,
    "softsign": F.softsign,
}
# Modules of torch as functions of torch, with the options that they keep as attributes.
MODULES: dict[type[nn.Module], tuple[str, tuple[str, ...]]] = {
    nn.ReLU: ("relu", ()),
    nn.ReLU6: ("relu6", ()),
    nn.LeakyReLU: ("leaky_relu", ("negative_slope",)),
    nn.ELU: ("elu", ("alpha",)),
    nn.CELU: ("celu", ("alpha",)),
    nn.SELU: ("selu", ()),
    nn.GELU: ("gelu", ("approximate",)),
    nn.SiLU: ("silu", ()),
    nn.Mish: ("mish", ()),
    nn.Sigmoid: ("sigmoid", ()),
    nn.Tanh: ("tanh", ()),
    nn.Softplus: ("softplus", ("beta", "threshold")),
    nn.Softsign: ("softsign", ()),
    nn.Hardtanh: ("hardtanh", ("min_val", "max_val")),
    nn.Hardsigmoid: ("hardsigmoid", ()),
    nn.Hardswish: ("hardswish", ()),
    nn.LogSigmoid: ("logsigmoid", ()),
    nn.Tanhshrink: ("tanhshrink", ()),
    nn.Softmax: ("softmax", ("dim",)),
    nn.LogSoftmax: ("log_softmax", ("dim",)),
    nn.GLU: ("glu", ("dim",)),
}


def activation_name(function: object) -> str | None:
    """The name of a function in ACTIVATIONS, if it is there."""
    return next((name for name, activation in ACTIVATIONS.items() if activation is function), None)


@dataclass(frozen=True, eq=False)
class Identity(Stateless):
    """The input unchanged, as dropout is after training."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True, eq=False)
class Affine(Stateless):
    """W x + b."""

    weight: Tensor  # (out, in)
    bias: Tensor | None  # (out,)

    def finished(self) -> Self:
        """With the longer axis of the weight next to each other in memory: a CPU then reads it fastest."""
        final = super().finished()
        out, inputs = final.weight.shape
        with torch.inference_mode():
            return replace(final, weight=final.weight.mT.contiguous().mT) if out > inputs else final

    def __post_init__(self) -> None:
        object.__setattr__(self, "_transposed", self.weight.mT)

    def __call__(self, x: Tensor) -> Tensor:
        weight: Tensor = self._transposed  # type: ignore[attr-defined]
        return torch.mm(x, weight) if self.bias is None else torch.addmm(self.bias, x, weight)


@dataclass(frozen=True, eq=False)
class Scale(Stateless):
    """s · x + b for each feature alone, in the precision of x; its arrays may be wider."""

    scale: Tensor  # (features,)
    offset: Tensor | None  # (features,)

    def __call__(self, x: Tensor) -> Tensor:
        wide = as_dtype(x, self.scale.dtype)
        out = wide * self.scale if self.offset is None else torch.addcmul(self.offset, wide, self.scale)
        return as_dtype(out, x.dtype)


@dataclass(frozen=True, eq=False)
class Lookup(Stateless):
    """Rows of a table (tokens, features) by token numbers (batch,)."""

    table: Tensor

    def takes_tokens(self) -> bool:
        return True

    def __call__(self, x: Tensor) -> Tensor:
        try:
            return torch.embedding(self.table, x)
        except IndexError:
            size = self.table.shape[0]
            bad = x[(x < 0) | (x >= size)][0].item()
            raise IndexError(f"x must be token numbers from 0 to {size - 1} for nn.Embedding, got {bad}") from None


@dataclass(frozen=True, eq=False)
class Norm(Stateless):
    """Layer normalisation over the features; RMS normalisation where they are not centred."""

    weight: Tensor | None  # (features,)
    bias: Tensor | None  # (features,)
    features: int
    eps: float | None
    centred: bool

    def __call__(self, x: Tensor) -> Tensor:
        if self.centred:
            return F.layer_norm(x, (self.features,), self.weight, self.bias, self.eps or 0.0)
        return F.rms_norm(x, (self.features,), self.weight, self.eps)


@dataclass(frozen=True, eq=False)
class Unit(Stateless):
    """x / √(‖x‖² + floor²) over the features: RMS normalisation without its weight, in the fewest calls of torch."""

    floor: Tensor  # (1,)

    def __call__(self, x: Tensor) -> Tensor:
        size: Tensor = torch.linalg.vector_norm(x, 2, -1, True)
        return x / size.hypot_(self.floor)


@dataclass(frozen=True, eq=False)
class Function(Stateless):
    """A function by its name in torch, or in torch.nn.functional, with its options; or a callable."""

    function: str | Callable[..., Tensor]
    options: tuple[tuple[str, Any], ...] = ()
    weight: Tensor | None = None  # of prelu

    def __post_init__(self) -> None:
        function = self.function
        object.__setattr__(self, "_call", _by_name(function) if isinstance(function, str) else function)
        object.__setattr__(self, "_plain", not self.options and self.weight is None)

    def __call__(self, x: Tensor) -> Tensor:
        call: Callable[..., Tensor] = self._call  # type: ignore[attr-defined]
        if self._plain:  # type: ignore[attr-defined]
            return call(x)
        return call(x, **dict(self.options)) if self.weight is None else call(x, self.weight)


def _by_name(name: str) -> Any:
    """A function of torch, without the wrapper in torch.nn.functional where there is one around it."""
    for module in (torch, torch._C._nn, F):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"torch has no function {name!r}")


@dataclass(frozen=True, eq=False)
class Applied(Stateless):
    """A module that acts on each time step separately and has no `fold()`: a copy of it, in evaluation mode."""

    module: nn.Module

    @classmethod
    def of(cls, module: nn.Module) -> Applied:
        return cls(copied(module))

    def takes_tokens(self) -> bool:
        return True  # unknown

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out

    def arrays(self) -> dict[str, Tensor]:
        return copies(self.module)


@dataclass(frozen=True, eq=False)
class Gate(Stateless):
    """f(g) · z, where z and the gate g before its activation are the halves of one product."""

    both: Affine
    activation: Stateless | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "_halves", [self.both.weight.shape[0] // 2] * 2)

    def __call__(self, x: Tensor) -> Tensor:
        value, gate = self.both(x).split_with_sizes(self._halves, -1)  # type: ignore[attr-defined]
        return (gate if self.activation is None else self.activation(gate)) * value


@dataclass(frozen=True, eq=False)
class Carry(Stateless):
    """g · f(z) + (1 − g) · x, where z and the gate g before its sigmoid are the halves of one product: a highway."""

    both: Affine
    activation: Stateless | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "_halves", [self.both.weight.shape[0] // 2] * 2)

    def __call__(self, x: Tensor) -> Tensor:
        transformed, gate = self.both(x).split_with_sizes(self._halves, -1)  # type: ignore[attr-defined]
        return torch.lerp(x, transformed if self.activation is None else self.activation(transformed), gate.sigmoid())
