"""What a folded model is, and `plmu.fold`, which makes one."""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self, TypedDict

import torch
from torch import Tensor, nn

from plmu.core.modes import autocasts, unwrapped


class Place(TypedDict):
    """The precision and the device of arrays, as options of a kind."""

    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, eq=False)
class Folded:
    """A model that takes steps and cannot be trained: arrays, and options that are numbers and names.

    Arrays are made in float64 on the CPU. `plmu.fold` casts them once, to `dtype` and `device`, once all constants are
    multiplied out; where these are None the arrays stay as they are. From then on they are read-only: torch
    refuses to change them in place outside of `torch.inference_mode()`.
    """

    dtype: torch.dtype | None = field(default=None, kw_only=True)
    device: torch.device | None = field(default=None, kw_only=True)
    sample_dtype: ClassVar[torch.dtype | None] = None  # of the samples of a stream; None for that of the weights

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """One step, without gradients and, under autocast too, in the precision of the arrays.

        Args:
            x: (batch, features), or token numbers (batch,); in the precision of the arrays.
            state: what the step before returned, or the model's own `step` or `forward`; None at the start.

        Returns:
            The output (batch, features) and the next state; they share no memory with the inputs.
        """
        if not isinstance(x, Tensor) or not 1 <= x.dim() <= 2:
            kind = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"x must be a tensor (batch, features), or (batch,) for token numbers; got {kind}")
        if not x.is_floating_point() and not self.takes_tokens():
            raise TypeError(f"x must be floating point, got {x.dtype}: convert it, for example x.float()")
        if torch.is_grad_enabled() or autocasts(x.device):
            with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
                return self.advance(x, state)
        return self.advance(x, state)

    @abstractmethod
    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """`step` without its checks, called without gradients and without autocast.

        Args:
            x: (batch, features), or token numbers (batch,).
            state: what the step before returned; None at the start.

        Returns:
            The output and the next state; they share no memory with the inputs.
        """

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        """The state that None stands for, as the model's own `initial_state` gives it.

        Args:
            batch: number of sequences.
            dtype: the precision of the input; states are float32 or wider.
            device: where the state is.

        Returns:
            A tensor, None or nested tuples of them.
        """
        return None

    def trial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        """A state from which a few steps do all that later steps do: sessions try with it whether equal rows of a
        batch round equally. Arguments as of `initial_state`."""
        return self.initial_state(batch, dtype, device)

    def takes_tokens(self) -> bool:
        """Whether x may be token numbers."""
        return False

    @property
    def reads_missing(self) -> bool:
        """Whether x may have NaN, for which the model itself holds the last value."""
        return False

    def arrays(self) -> dict[str, Tensor]:
        """All arrays by name, such as "0.matrix" for the `matrix` of the first part."""
        arrays: dict[str, Tensor] = {}
        for name, value in self._fields().items():
            if isinstance(value, Tensor):
                arrays[name] = value
            for prefix, part in _parts(name, value):
                arrays |= {f"{prefix}.{key}": array for key, array in part.arrays().items()}
        return arrays

    def finished(self) -> Self:
        """The same model with read-only copies of its arrays in their final precision; the last step of `plmu.fold`."""
        final: dict[str, Any] = {}
        for name, value in self._fields().items():
            if isinstance(value, Tensor):
                final[name] = read_only(value, self.dtype or value.dtype, self.device or value.device)
            elif isinstance(value, Folded):
                final[name] = value.finished()
            elif isinstance(value, tuple):
                final[name] = tuple(part.finished() if isinstance(part, Folded) else part for part in value)
        return replace(self, **final)

    def _fields(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def fold(model: nn.Module) -> Folded:
    """A trained model as an inference-only model: read-only arrays and a `step` method.

    >>> folded = plmu.fold(model)
    >>> out, state = folded.step(x_t, state)  # as model.step, without gradients and with dropout off
    >>> folded.arrays()  # {"0.matrix": ..., "1.weight": ...}

    Constants are multiplied out in float64 and cast once to the precision of the weights: a linear memory with its
    encoder and readout, linear layers in a row. States have the form of the model's own, so that a sequence can begin
    with `model(x)` and go on with `folded.step`. Later changes to the model do not affect it. A layer of your own
    is copied, unless it overrides `plmu.nn.Steppable.fold`.

    Args:
        model: any steppable module. AveragedModel, DDP and torch.compile wrappers are removed.

    Returns:
        The folded model.

    Raises:
        TypeError: the model is not steppable.
        ValueError: the model is on the meta device, or has a part that needs the whole sequence.
    """
    inner = foldable(model)
    with torch.no_grad(), torch.device("cpu"):
        folded: Folded = inner.fold().finished()
    return folded


def foldable(model: nn.Module) -> Any:
    """The steppable module inside a model's wrappers; raises as `fold` does."""
    inner: Any = unwrapped(model) if isinstance(model, nn.Module) else model
    if not (isinstance(inner, nn.Module) and hasattr(inner, "step") and hasattr(inner, "fold")):
        raise TypeError(
            f"model must be steppable (a layer of plmu, plmu.Sequential or a plmu.nn.Steppable),"
            f" got {type(inner).__name__}"
        )
    if any(value.is_meta for value in inner.parameters()):
        raise ValueError("model is on the meta device: its weights have no values")
    return inner


def _parts(name: str, value: Any) -> list[tuple[str, Folded]]:
    """The folded parts in a field, each with the prefix of its arrays."""
    if isinstance(value, Folded):
        return [(name, value)]
    if isinstance(value, tuple):
        return [(str(i), part) for i, part in enumerate(value) if isinstance(part, Folded)]
    return []


@dataclass(frozen=True, eq=False)
class Stateless(Folded):
    """A function that acts on each time step separately, without a state."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self(x), None


def read_only(value: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A copy that torch refuses to change in place outside of inference mode, without subnormal numbers of float32:
    a CPU multiplies them many times slower."""
    with torch.inference_mode():
        array = value.detach().to(dtype)  # before the device, which may have no float64
        if dtype in (torch.float32, torch.float64):
            array = torch.where(array.abs() < torch.finfo(dtype).tiny, 0.0, array)
        return array.to(device, copy=True).contiguous()


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision of states."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def copied(module: nn.Module) -> nn.Module:
    """A copy of a module for steps alone."""
    return copy.deepcopy(module).eval().requires_grad_(False)


def copies(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the tensors in a state_dict: the module's own may change."""
    with torch.inference_mode():
        return {name: value.clone() for name, value in module.state_dict().items() if isinstance(value, Tensor)}


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x.to(dtype), without the call where the dtype is right: a step takes few microseconds."""
    return x if x.dtype == dtype else x.to(dtype)
