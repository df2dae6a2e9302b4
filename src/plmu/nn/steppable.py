"""`Steppable`, the base of plmu's layers: a module that runs over a whole sequence, its pieces, or single steps."""

from __future__ import annotations

import inspect
import operator
import warnings
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from plmu.folded import Folded, Stepped
from plmu.folded.functions import ACTIVATIONS as ACTIVATIONS
from plmu.folded.functions import activation_name as activation_name
from plmu.ops.check import Lengths, checked_lengths, reversed_steps
from plmu.ops.check import check_features as check_features

Activation = str | Callable[[Tensor], Tensor] | None


class Steppable(nn.Module):
    """A module with `forward(x, state, lengths) -> (out, state)` and `step(x_t, state) -> (out_t, state)` that agree.

    Subclass it to put a layer of your own into `plmu.Sequential` and `plmu.Stream`; docs/adding-a-layer.md shows how.

    Attributes:
        returns_sequences: whether `forward` returns the output of every step, or only of each sequence's last step.
        parallel: whether `forward` computes all steps at once, whatever their number, rather than one after another.
    """

    returns_sequences = True
    parallel = True
    config: dict[str, Any]  # of a layer that is `savable`: the arguments of its constructor

    @abstractmethod
    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """All steps at once: the outputs, and the state after the last step.

        Args:
            x: the input, (batch, time, features).
            state: the state that the previous piece returned, or None to start from `initial_state`.
            lengths: the length of each sequence, (batch,), where they are padded on the right; None if all have
                `time` steps.
            resets: (batch, time) of bools: steps before which the state is set to zero.

        Returns:
            The output (batch, time, features), zero in the padding; or (batch, features), that of each sequence's last
            step, if `returns_sequences` is False. And the state after each sequence's last step.
        """

    @abstractmethod
    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """One step: its output, and the next state.

        Args:
            x: one step of the input, (batch, features).
            state: the state that the previous step or piece returned; None to start.

        Returns:
            The output (batch, features), and the state for the next step.
        """

    def fold(self) -> Folded:
        """The folded form of this layer, before `plmu.fold` casts its arrays; by default a copy of the layer itself.

        Override it to fold a layer of your own to one of the kinds in `plmu.folded`, or to a kind of your own.

        Returns:
            The folded layer, with arrays in float64 on the CPU.
        """
        if hasattr(self, "frozen_step"):
            warnings.warn(
                f"{type(self).__name__}.frozen_step is no longer used: override fold() instead",
                DeprecationWarning,
                stacklevel=2,
            )
        return Stepped.of(self)

    @abstractmethod
    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        """The state that `None` stands for.

        Args:
            batch: number of sequences.
            dtype: the precision of the input; states are float32 or wider.
            device: where the state is.

        Returns:
            A tensor, None or nested tuples of them; the batch is the first axis of each tensor.
        """

    def input_sizes(self) -> tuple[int | None, int | None]:
        """The number of features of the input, and the size of its vocabulary; None where unknown or not applicable."""
        first = self._entrance()
        if isinstance(first, nn.Embedding):
            return None, first.num_embeddings
        return features_of(first), None

    def _fills(self) -> str | None:
        """How missing values of the input are filled: "hold", "zero", or None if they are not."""
        return None

    def _entrance(self) -> nn.Module | None:
        """The first module inside that restricts the form of the input; None where nothing does."""
        return self

    def _features_after(self, features: int | None) -> int | None:
        """Output features for the given input features; None where they are unknown."""
        size = getattr(self, "output_size", None)
        return size if isinstance(size, int) else None


def features_of(module: nn.Module | None) -> int | None:
    """The number of features that a module takes; None where it takes any number, or tokens, or does not say."""
    if isinstance(module, nn.Linear):
        return module.in_features
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return int(module.normalized_shape[-1])
    size = getattr(module, "input_size", None)
    says = isinstance(module, Steppable) or getattr(module, "per_step", False)
    return size if says and isinstance(size, int) else None


def changed(layer: Steppable, method: str) -> bool:
    """Whether a subclass, or the layer itself, overrides methods of the class that defines `method`, such as "fold":
    that method then does not describe the layer."""
    defining = next(kind for kind in type(layer).__mro__ if method in vars(kind))
    between = type(layer).__mro__[: type(layer).__mro__.index(defining)]
    harmless = {"forward", "extra_repr", "reset_parameters"}
    names = {name for kind in between for name in vars(kind)} - harmless
    if any(hasattr(defining, name) for name in names if not name.startswith("__")):
        return True
    return any(callable(getattr(defining, name, None)) for name in vars(layer))


def activation(function: Activation, name: str) -> Callable[[Tensor], Tensor] | None:
    """An activation by name, a callable as it is, or None for none."""
    if isinstance(function, type):
        raise TypeError(f"{name} must be a function or a name, got the class {function.__name__}: pass an instance,"
                        f" {function.__name__}(), or a name such as 'relu'")  # fmt: skip
    if function is None or (callable(function) and not isinstance(function, str)):
        return function
    if not isinstance(function, str) or function not in ACTIVATIONS:
        raise ValueError(f"{name} must be None, a callable or one of {', '.join(ACTIVATIONS)}; got {function!r}")
    return ACTIVATIONS[function]


def positive(value: int, name: str) -> int:
    """The value as an int; raises, naming the option, unless it is an integer of at least 1."""
    try:
        whole = operator.index(value)
    except TypeError:
        whole = 0
    if isinstance(value, bool) or whole < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return whole


def probability(value: float, name: str) -> float:
    """A dropout probability as a float; raises, naming the option, unless it is from 0 to below 1."""
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"{name} must be a number of at least 0 and below 1, got {value!r}")
    return float(value)


# Options that `extra_repr` shows without their names, or the memory's `repr` shows.
_SHOWN = {"input_size", "hidden_size", "channels", "memory_size", "order", "theta", "system", "trainable"}
_SHOWN |= {"num_embeddings", "embedding_dim"}


def options_repr(layer: Any, kind: type[nn.Module], **activations: Callable[[Tensor], Tensor] | None) -> str:
    """The end of an `extra_repr`: activations, and options that differ from the defaults of `kind`'s constructor."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()}
    options: dict[str, Any] = {name: shown(function) for name, function in activations.items()}
    hidden = {*_SHOWN, *activations}
    options |= {
        name: value for name, value in layer.config.items() if name not in hidden and value != defaults.get(name)
    }
    return "".join(f", {name}={value}" for name, value in options.items())


def shown(function: Callable[[Tensor], Tensor] | None) -> str | None:
    """The name of an activation for `extra_repr`."""
    return activation_name(function) or getattr(function, "__name__", None if function is None else str(function))


class Factory(TypedDict):
    """Where and in which precision a layer makes its parameters."""

    device: torch.device | str | None
    dtype: torch.dtype | None


def factory(device: torch.device | str | None, dtype: torch.dtype | None) -> Factory:
    """The options `device` and `dtype` of a constructor, checked."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype must be a floating-point torch.dtype, got {dtype!r}")
    return {"device": device, "dtype": dtype}


def last_valid(x: Tensor, lengths: Lengths = None) -> Tensor:
    """The last step of x (batch, time, features) that is not padding, (batch, features); zero where a length is 0.

    Args:
        x: a sequence, padded on the right.
        lengths: the length of each sequence, (batch,); None for no padding.
    """
    lengths = checked_lengths(lengths, x.shape[0], x.shape[1], x.device)
    if lengths is None:
        return x[:, -1]
    index = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, x.shape[2])
    return torch.where((lengths > 0)[:, None], x.gather(1, index).squeeze(1), 0.0)


def detached(state: Any) -> Any:
    """A state without its history, for truncated backpropagation: `state = detached(state)` between two pieces.

    Args:
        state: a state as a layer returns it: a tensor, None or nested tuples of them.
    """
    if state is None:
        return None
    if isinstance(state, Tensor):
        return state.detach()
    if not isinstance(state, tuple | list):
        raise TypeError(f"state must be a tensor, None or nested tuples of them, got {type(state).__name__}")
    return tuple(detached(part) for part in state)


def reverse(x: Tensor, lengths: Lengths = None) -> Tensor:
    """x (batch, time, ...) backwards in time, each sequence within its own length; the padding stays where it is.

    With it a layer reads from the right: `reverse(layer(reverse(x, lengths), lengths=lengths)[0], lengths)`.

    Args:
        x: (batch, time, ...).
        lengths: the length of each sequence, (batch,), where they are padded on the right; None if all have `time`
            steps.
    """
    if not isinstance(x, Tensor) or x.dim() < 2:
        kind = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"x must be a tensor (batch, time, ...), got {kind}")
    lengths = checked_lengths(lengths, x.shape[0], x.shape[1], x.device)
    if lengths is None:
        return x.flip(1)
    index = reversed_steps(lengths, x.shape[1])
    return x.gather(1, index.reshape(*index.shape, *(1,) * (x.dim() - 2)).expand_as(x))
