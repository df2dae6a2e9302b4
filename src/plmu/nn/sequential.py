"""Stacks that thread states: what acts on each step alone is used as it is, what has a state is given its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, overload

import torch
from torch import Tensor, nn

from plmu.folded import Folded, Sum
from plmu.modes import autocasts
from plmu.nn.delay import DelayLayer
from plmu.nn.dense import dense
from plmu.nn.folding import fold_module, fold_stack, is_plain
from plmu.nn.highway import Highway
from plmu.nn.missing import Filling, checked_missing
from plmu.nn.original import LMU
from plmu.nn.parallel import ParallelLMU
from plmu.nn.standardization import Standardize
from plmu.nn.steppable import Steppable, changed
from plmu.ops.check import Lengths, check_padded, checked_lengths, checked_resets, keep_valid

# Modules of torch that act on each time step alone, on the last axis or on single elements.
PER_STEP: tuple[type[nn.Module], ...] = (
    nn.Linear,
    nn.Embedding,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,  # of whole steps: it takes time for the channels
    nn.AlphaDropout,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.PReLU,
    nn.ELU,
    nn.CELU,
    nn.SELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Sigmoid,
    nn.Tanh,
    nn.Softplus,
    nn.Softsign,
    nn.Hardtanh,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.LogSigmoid,
    nn.Tanhshrink,
)


class Sequential(Filling):
    """Modules in a row: `out, state = model(x)`, `out_t, state = model.step(x_t, state)`.

    Takes steppable modules (those of plmu, or any `plmu.nn.Steppable`) and modules that act on each time step alone:
    torch's Linear, Embedding, norms over features, dropout and activations, `nn.Sequential` of those, and your own with
    a class attribute `per_step = True`. Other modules (for example Conv1d) raise ValueError: they mix time steps.
    Indices, slices, `len`, loops, `append`, `extend` and `insert` work as in `nn.Sequential`.

    `missing="hold"` or `"zero"` fills NaN in x before the first module, as in `ParallelLMU`.

    Args:
        modules: steppable modules, and modules that act on each step alone, in their order.
        missing: what NaN in x means: None takes it as it is, "hold" repeats the last value of that feature, "zero"
            takes zero.

    Shape:
        x: (batch, time, features), or token numbers (batch, time) if the first module is an `nn.Embedding`.
        out: (batch, time, features), or (batch, features) if a module has `return_sequences=False`.
        state: a tuple with one entry per module, None for a module without a state. With `missing="hold"` the pair of
            that and the last values (batch, features).
    """

    def __init__(self, *modules: nn.Module, missing: str | None = None) -> None:
        super().__init__()
        self.missing = checked_missing(missing)
        self._check_modules(modules)
        self.layers = nn.ModuleList(modules)

    def _check_modules(self, modules: Sequence[nn.Module]) -> None:
        """Raise unless these can be the modules; else note whether they return sequences, and how many features they
        take."""
        if not modules:
            raise ValueError("Sequential needs at least one module")
        for index, module in enumerate(modules):
            check_module(module, f"module {index}")
        sequences = True
        for index, module in enumerate(modules):
            if isinstance(module, Steppable) and not sequences:
                raise ValueError(f"module {index} ({_name(module)}) needs a sequence, but a module before it has"
                                 " return_sequences=False")  # fmt: skip
            sequences = sequences and (not isinstance(module, Steppable) or module.returns_sequences)
        given = None
        for index, module in enumerate(modules):
            first = entrance(module)
            wanted = features_of(first) if first is not None and is_plain(first, *_EXACT) else None
            if given is not None and wanted is not None and given != wanted:
                raise ValueError(f"module {index} ({_name(module)}) takes {wanted} features, but those before it give"
                                 f" {given}")  # fmt: skip
            given = features_after(module, given)
        first = first_entrance(modules)
        size = features_of(first)
        if self.missing is not None and isinstance(first, nn.Embedding):
            raise ValueError(f"missing must be None for a model that takes tokens, got {self.missing!r}")
        if self.missing == "hold" and size is None:
            raise ValueError("missing='hold' needs a first module with a known number of features")
        self.input_size = size
        if sequences != self.returns_sequences:  # an attribute of its own would be part of fingerprints
            self.returns_sequences = sequences

    def append(self, module: nn.Module) -> Self:
        """Add a module at the end, checked as the constructor does; returns this model.

        Args:
            module: the module.
        """
        return self.insert(len(self), module)

    def extend(self, modules: Iterable[nn.Module]) -> Self:
        """Add modules at the end: all of them, or none where one does not fit.

        Args:
            modules: the modules.
        """
        added = list(modules)
        self._check_modules([*self.layers, *added])
        self.layers.extend(added)
        return self

    def insert(self, index: int, module: nn.Module) -> Self:
        """Add a module before the one at `index`, which may be negative; returns this model.

        Args:
            index: where; the module at this index moves behind it.
            module: the module.
        """
        if not -len(self) <= index <= len(self):
            raise IndexError(f"index must be between {-len(self)} and {len(self)}, got {index}")
        modules = list(self.layers)
        modules.insert(index, module)
        self._check_modules(modules)
        self.layers.insert(index + len(self) if index < 0 else index, module)
        return self

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.layers)

    @overload
    def __getitem__(self, index: int) -> nn.Module: ...

    @overload
    def __getitem__(self, index: slice) -> Sequential: ...

    def __getitem__(self, index: int | slice) -> nn.Module:
        """One module, or for a slice a `Sequential` of the same modules; it fills missing values if it begins as this
        one does."""
        if not isinstance(index, slice):
            return self.layers[index]
        places = range(len(self))[index]
        missing = self.missing if places and places[0] == 0 else None
        return Sequential(*(self.layers[place] for place in places), missing=missing)

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """All steps at once: the outputs, and the state after the last step.

        Args:
            x: the input, (batch, time, features), or token numbers (batch, time).
            state: the state that the previous piece returned; None to start from zero.
            lengths: the length of each sequence, (batch,), where they are padded on the right; None if all have
                `time` steps.
            resets: (batch, time) of bools: steps before which the state is set to zero.

        Returns:
            The last module's output (batch, time, features), zero in the padding; or (batch, features), that of each
            sequence's last step, if a module has `return_sequences=False`. And the state, a tuple with one entry per
            module.
        """
        return self._filled_forward(x, state, lengths, resets)

    def _forward(
        self, x: Tensor, state: tuple[Any, ...] | None, lengths: Lengths, resets: Tensor | None
    ) -> tuple[Tensor, tuple[Any, ...]]:
        x, known, resets = checked_input(self, x, lengths, resets)
        states = list(checked_states(state, len(self.layers)))
        for index, module in enumerate(self.layers):
            x, states[index] = run(module, x, states[index], known, resets)
        return _keep_output(x, known, self.returns_sequences), tuple(states)

    def _step(self, x: Tensor, state: tuple[Any, ...] | None) -> tuple[Tensor, tuple[Any, ...]]:
        check_step(self, x)
        states = list(checked_states(state, len(self.layers)))
        for index, module in enumerate(self.layers):
            x, states[index] = run_step(module, x, states[index])
        return x, tuple(states)

    def _fold(self) -> Folded:
        return fold_stack([(module, place) for place, module in enumerate(self.layers)], len(self.layers))

    def _initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> tuple[Any, ...]:
        return tuple(
            module.initial_state(batch, dtype, device) if isinstance(module, Steppable) else None
            for module in self.layers
        )

    def _fills(self) -> str | None:
        if self.missing is not None:
            return self.missing
        unseen = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.AlphaDropout)
        return next((fills(module) for module in self.layers if not isinstance(module, unseen)), None)

    def extra_repr(self) -> str:
        return "" if self.missing is None else f"missing={self.missing}"

    def _entrance(self) -> nn.Module | None:
        return first_entrance(self.layers)


class Residual(Steppable):
    """x + module(x), for a steppable module or one that acts on each step alone, with as many outputs as inputs.

    Args:
        module: a steppable module, or one that acts on each step alone, with as many outputs as inputs.

    Shape:
        x: (batch, time, features). The output has the same shape.
        state: the module's; None for a module without one.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        check_module(module, "the module")
        if isinstance(module, Steppable) and not module.returns_sequences:
            raise ValueError(f"Residual needs a sequence, but {_name(module)} has return_sequences=False")
        if fills(module) is not None:
            raise ValueError(f"Residual would add NaN to what {_name(module)} makes of missing={fills(module)!r}: give"
                             " missing= to the plmu.Sequential around it")  # fmt: skip
        self.module = module

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """All steps at once: the outputs, and the state after the last step.

        Args:
            x: the input, (batch, time, features).
            state: the state that the previous piece returned; None to start from zero.
            lengths: the length of each sequence, (batch,), where they are padded on the right; None if all have
                `time` steps.
            resets: (batch, time) of bools: steps before which the state is set to zero.

        Returns:
            x plus the module's output, (batch, time, features), zero in the padding; and the module's state, None if it
            has none.
        """
        x, known, resets = checked_input(self, x, lengths, resets)
        out, state = run(self.module, x, state, known, resets)
        return keep_valid(self._sum(x, out), known), state

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        check_step(self, x)
        out, state = run_step(self.module, x, state)
        return self._sum(x, out), state

    def fold(self) -> Folded:
        return super().fold() if changed(self, "fold") else Sum(fold_module(self.module))

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return self.module.initial_state(batch, dtype, device) if isinstance(self.module, Steppable) else None

    def _entrance(self) -> nn.Module | None:
        return entrance(self.module)

    def _sum(self, x: Tensor, out: Tensor) -> Tensor:
        if x.shape != out.shape:
            raise ValueError(
                f"Residual adds its input to its module's output: {_name(self.module)} turned"
                f" {x.shape[-1]} features into {out.shape[-1]}, which must be equal"
            )
        return x + out


def check_module(module: nn.Module, where: str) -> None:
    """Raise unless the module is steppable or acts on each time step alone, and leaves its input as it is."""
    if getattr(module, "inplace", False):
        raise ValueError(f"{where} ({_name(module)}) has inplace=True and would overwrite a state or the caller's"
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
                raise ValueError(f"{where}.{name} ({_name(inner)}) has a state, which nn.Sequential would lose:"
                                 " use plmu.Sequential")  # fmt: skip
            check_module(inner, f"{where}.{name}")
        return
    if not isinstance(module, nn.Module):
        raise TypeError(f"{where} must be an nn.Module, got {type(module).__name__}")
    raise ValueError(
        f"{where} ({_name(module)}) is neither steppable nor known to act on each time step alone, so parallel and"
        " step-by-step results could differ. If it acts on each step alone, give its class `per_step = True`;"
        " if it has a state, subclass plmu.nn.Steppable"
    )


# Classes whose number of input features is known for sure.
_EXACT = (nn.Linear, nn.LayerNorm, nn.RMSNorm, Standardize, ParallelLMU, DelayLayer, LMU)
# Of PER_STEP, those that ask for a number of features, or for tokens; the others take any.
_SIZED = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm)


def entrance(module: nn.Module) -> nn.Module | None:
    """The first module inside that decides what an input must look like; None where nothing does."""
    if isinstance(module, Steppable):
        return module._entrance()
    if isinstance(module, nn.Sequential):
        return first_entrance(module)
    any_size = isinstance(module, (*PER_STEP, nn.Softmax, nn.LogSoftmax)) and not isinstance(module, _SIZED)
    return None if any_size else module


def first_entrance(modules: Iterable[nn.Module]) -> nn.Module | None:
    for module in modules:  # a loop: torch.compile of 2.11 cannot read a name bound inside a generator
        found = entrance(module)
        if found is not None:
            return found
    return None


def features_of(module: nn.Module | None) -> int | None:
    """How many features a module takes; None where it takes any number, or tokens, or does not say."""
    if isinstance(module, nn.Linear):
        return module.in_features
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return int(module.normalized_shape[-1])
    if isinstance(module, Standardize):
        return module.features[-1]
    if isinstance(module, Highway):
        return module.features
    size = getattr(module, "input_size", None)
    return size if isinstance(module, Steppable) and isinstance(size, int) else None


def features_after(module: nn.Module, given: int | None) -> int | None:
    """How many features a module gives for so many; None where that is not known, as of classes that are not plmu's or
    torch's own, and of modules with hooks."""
    if not is_plain(module, type(module)) or not type(module).__module__.startswith(("plmu.", "torch.")):
        return None
    if isinstance(module, nn.LazyLinear):
        return None
    if isinstance(module, Sequential | nn.Sequential):
        for inner in module.layers if isinstance(module, Sequential) else module:
            given = features_after(inner, given)
        return given
    if isinstance(module, Residual):
        return features_after(module.module, given)
    if isinstance(module, nn.Linear):
        return module.out_features
    if isinstance(module, nn.Embedding):
        return module.embedding_dim
    if isinstance(module, nn.GLU):
        return None if given is None else given // 2
    if isinstance(module, Steppable):
        size = getattr(module, "output_size", None)
        return size if isinstance(size, int) else None
    same = isinstance(module, (*PER_STEP, nn.Softmax, nn.LogSoftmax, Standardize))
    return (features_of(module) or given) if same else None


def fills(module: nn.Module) -> str | None:
    """How a model fills missing values of its input, if it does."""
    return module._fills() if isinstance(module, Steppable) else None


def _takes_time(module: nn.Module) -> bool:
    """Whether a module of PER_STEP has options that reach the time axis."""
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return len(module.normalized_shape) > 1
    return isinstance(module, nn.PReLU) and module.num_parameters > 1  # one for each index of the second axis


def run(module: nn.Module, x: Tensor, state: Any, lengths: Tensor | None, resets: Tensor | None) -> tuple[Tensor, Any]:
    """A module of a stack over a whole sequence, and its next state; None where it has none."""
    if isinstance(module, Steppable):
        found: tuple[Tensor, Any] = module(x, state, lengths, resets=resets)
        return found
    return _over_steps(module, x, lengths), None


def run_step(module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    """A module of a stack for one step, and its next state; None where it has none."""
    return module.step(x, state) if isinstance(module, Steppable) else (_each_step(module, x), None)


def checked_states(state: tuple[Any, ...] | None, count: int) -> tuple[Any, ...]:
    """The states of so many modules."""
    if state is None:
        return (None,) * count
    if not isinstance(state, tuple) or len(state) != count:
        kind = f"a tuple of {len(state)}" if isinstance(state, tuple) else type(state).__name__
        raise ValueError(f"state must be a tuple of {count}, one for each module; got {kind}")
    return state


def checked_input(
    model: Steppable, x: Tensor, lengths: Lengths, resets: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """What a stack is given, checked, with zeros in the padding of x."""
    check_padded(x, "x")
    if x.dim() < 2:
        raise ValueError(
            "x must have shape (batch, time, features), or (batch, time) for token numbers;"
            f" got {tuple(x.shape)}: for one sequence give x[None]"
        )
    known = checked_lengths(lengths, x.shape[0], x.shape[1], x.device)
    resets = checked_resets(resets, x.shape[0], x.shape[1], x.device)
    check_step(model, x)
    return keep_valid(x, known), known, resets


def check_step(model: Steppable, x: Tensor) -> None:
    """Raise unless x has the features and the precision of the first module, for modules that do not say so."""
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
    """module(x) for all steps of a sequence. While a model is standardised, what measures is told the lengths."""
    if isinstance(module, Standardize) and module.measuring:
        return module(x, lengths)
    if isinstance(module, nn.Sequential) and any(isinstance(one, Standardize) and one.measuring for one in module):
        for inner in module:
            x = _over_steps(inner, x, lengths)
        return x
    return dense(module, x) if isinstance(module, nn.Linear) else _each_step(module, x)


def _each_step(module: nn.Module, x: Tensor) -> Any:
    """module(x), with a bad token named where torch itself finds it: not while compiling, and not on a GPU."""
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


def _keep_output(out: Tensor, lengths: Tensor | None, sequences: bool) -> Tensor:
    if sequences or lengths is None:
        return keep_valid(out, lengths)
    return torch.where((lengths > 0)[:, None], out, 0.0)


def _name(module: nn.Module) -> str:
    return type(module).__name__
