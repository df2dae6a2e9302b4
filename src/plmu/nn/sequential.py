"""Stacks of modules, which pass each module its own state; modules that act on each time step separately have none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, overload

import torch
from torch import Tensor, nn

from plmu.folded import Folded
from plmu.folded.joining import residual
from plmu.nn.folding import TRAINING_ONLY, fold_module, fold_stack, is_plain
from plmu.nn.missing import Filling, checked_missing
from plmu.nn.stacking import (
    EXACT,
    check_module,
    check_step,
    checked_input,
    checked_states,
    entrance,
    features_after,
    features_of,
    fills,
    first_entrance,
    keep_output,
    name_of,
    run,
    run_step,
)
from plmu.nn.steppable import Steppable, changed
from plmu.ops.check import Lengths, keep_valid


class Sequential(Filling):
    """Modules in a row: `out, state = model(x)`, `out_t, state = model.step(x_t, state)`.

    Takes steppable modules (those of plmu, or any `plmu.nn.Steppable`) and modules that act on each time step
    separately: torch's Linear, Embedding, norms over features, dropout and activations, `nn.Sequential` of those, and
    your own with a class attribute `per_step = True`. Other modules (for example Conv1d) raise ValueError: they mix
    time steps.
    Indices, slices, `len`, loops, `append`, `extend` and `insert` work as in `nn.Sequential`.

    `missing="hold"` or `"zero"` fills NaN in x before the first module, as in `ParallelLMU`.

    Args:
        modules: steppable modules, and modules that act on each time step separately, in their order.
        missing: treatment of NaN in x: None leaves it, "hold" repeats the last value of that feature, "zero"
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
        """Raise unless these modules can form the stack; else set `returns_sequences` and `input_size` for them."""
        if not modules:
            raise ValueError("Sequential needs at least one module")
        for index, module in enumerate(modules):
            check_module(module, f"module {index}")
        sequences = True
        for index, module in enumerate(modules):
            if isinstance(module, Steppable) and not sequences:
                raise ValueError(f"module {index} ({name_of(module)}) needs a sequence, but a module before it has"
                                 " return_sequences=False")  # fmt: skip
            sequences = sequences and (not isinstance(module, Steppable) or module.returns_sequences)
        features = None
        for index, module in enumerate(modules):
            first = entrance(module)
            expected = features_of(first) if first is not None and is_plain(first, *EXACT) else None
            if features is not None and expected is not None and features != expected:
                raise ValueError(f"module {index} ({name_of(module)}) takes {expected} features, but those before it"
                                 f" give {features}")  # fmt: skip
            features = features_after(module, features)
        first = first_entrance(modules)
        size = features_of(first)
        if self.missing is not None and isinstance(first, nn.Embedding):
            raise ValueError(f"missing must be None for a model that takes tokens, got {self.missing!r}")
        if self.missing == "hold" and size is None:
            raise ValueError("missing='hold' needs a first module with a known number of features")
        self.input_size = size
        if sequences != self.returns_sequences:  # an attribute that is set would be part of fingerprints
            self.returns_sequences = sequences

    def append(self, module: nn.Module) -> Self:
        """Add a module at the end, checked as the constructor does; returns this model.

        Args:
            module: the module.
        """
        return self.insert(len(self), module)

    def extend(self, modules: Iterable[nn.Module]) -> Self:
        """Add modules at the end: all of them, or none if one does not fit.

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
        """One module, or for a slice a `Sequential` of the same modules; it fills missing values if its first module is
        this stack's first."""
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
        if self.missing is None:
            return self._forward(x, state, lengths, resets)
        return self._filled_forward(x, state, lengths, resets)

    def _forward(
        self, x: Tensor, state: tuple[Any, ...] | None, lengths: Lengths, resets: Tensor | None
    ) -> tuple[Tensor, tuple[Any, ...]]:
        x, lengths, resets = checked_input(self, x, lengths, resets)
        states = list(checked_states(state, len(self.layers)))
        for index, module in enumerate(self.layers):
            x, states[index] = run(module, x, states[index], lengths, resets)
        return keep_output(x, lengths, self.returns_sequences), tuple(states)

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
        return next((fills(module) for module in self.layers if not isinstance(module, TRAINING_ONLY)), None)

    def _features_after(self, features: int | None) -> int | None:
        for module in self.layers:
            features = features_after(module, features)
        return features

    def extra_repr(self) -> str:
        return "" if self.missing is None else f"missing={self.missing}"

    def _entrance(self) -> nn.Module | None:
        return first_entrance(self.layers)


class Residual(Steppable):
    """x + module(x): a skip connection around a module with as many outputs as inputs.

    Args:
        module: a steppable module, or one that acts on each time step separately, with as many outputs as inputs.

    Shape:
        x: (batch, time, features). The output has the same shape.
        state: the module's state; None for a module without a state.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        check_module(module, "the module")
        if isinstance(module, Steppable) and not module.returns_sequences:
            raise ValueError(f"Residual needs a sequence, but {name_of(module)} has return_sequences=False")
        if fills(module) is not None:
            raise ValueError(f"Residual would add NaN to what {name_of(module)} makes of missing={fills(module)!r}:"
                             " give missing= to the plmu.Sequential around it")  # fmt: skip
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
        x, lengths, resets = checked_input(self, x, lengths, resets)
        out, state = run(self.module, x, state, lengths, resets)
        return keep_valid(self._sum(x, out), lengths), state

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        check_step(self, x)
        out, state = run_step(self.module, x, state)
        return self._sum(x, out), state

    def fold(self) -> Folded:
        return super().fold() if changed(self, "fold") else residual(fold_module(self.module))

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return self.module.initial_state(batch, dtype, device) if isinstance(self.module, Steppable) else None

    def _entrance(self) -> nn.Module | None:
        return entrance(self.module)

    def _features_after(self, features: int | None) -> int | None:
        return features_after(self.module, features)

    def _sum(self, x: Tensor, out: Tensor) -> Tensor:
        if x.shape != out.shape:
            raise ValueError(
                f"Residual adds its input to its module's output: {name_of(self.module)} turned"
                f" {x.shape[-1]} features into {out.shape[-1]}, which must be equal"
            )
        return x + out
