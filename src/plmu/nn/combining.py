"""Combined modules: one gated by another, and a stack whose output is a weighted sum of its modules' outputs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from plmu.folded import Folded, WeightedSum
from plmu.folded.joining import product
from plmu.nn.folding import exact, fold_module
from plmu.nn.stacking import (
    check_module,
    check_step,
    checked_input,
    checked_states,
    entrance,
    fills,
    first_entrance,
    run,
    run_step,
)
from plmu.nn.steppable import Steppable, changed, factory
from plmu.ops.check import Lengths, keep_valid


class Gated(Steppable):
    """gate(x) · module(x), elementwise.

    >>> swiglu = plmu.Gated(nn.Linear(64, 128), nn.Sequential(nn.Linear(64, 128), nn.SiLU()))

    Args:
        module: a steppable module, or one that acts on each time step separately.
        gate: acts on each time step separately, with as many outputs as `module`; for instance an `nn.Linear` and an
            activation.

    Shape:
        x: (batch, time, features).
        out: (batch, time, outputs). The state is that of `module`.
    """

    def __init__(self, module: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        check_module(module, "module")
        check_module(gate, "gate")
        if isinstance(gate, Steppable):
            raise ValueError(f"gate must act pointwise in time, but {type(gate).__name__} has a state: make it module")
        if isinstance(module, Steppable) and not module.returns_sequences:
            raise ValueError(f"Gated needs a sequence, but {type(module).__name__} has return_sequences=False")
        if fills(module) is not None:
            raise ValueError(f"the gate would see NaN where {type(module).__name__} has missing={fills(module)!r}: give"
                             " missing= to the plmu.Sequential around Gated")  # fmt: skip
        self.module = module
        self.gate = gate

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        x, lengths, resets = checked_input(self, x, lengths, resets)
        out, state = run(self.module, x, state, lengths, resets)
        gate, _ = run(self.gate, x, None, lengths, resets)
        return keep_valid(_product(gate, out), lengths), state

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        check_step(self, x)
        out, state = run_step(self.module, x, state)
        return _product(run_step(self.gate, x, None)[0], out), state

    def fold(self) -> Folded:
        return super().fold() if changed(self, "fold") else product(fold_module(self.gate), fold_module(self.module))

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return self.module.initial_state(batch, dtype, device) if isinstance(self.module, Steppable) else None

    def _entrance(self) -> nn.Module | None:
        return entrance(self.module) or entrance(self.gate)


class WeightedStack(Steppable):
    """Stacked modules, with a learned weighted sum of all their outputs as the output.

        h_k = module_k(h_{k-1}), out = γ · Σ_k s_k h_k, s = softmax(w)

    As in ELMo, the weights s are positive and sum to one, and the scale γ is learned too. At first all weights are
    equal and γ is 1. To include the input h_0 itself, make `nn.Identity()` the first module.

    Args:
        modules: steppable modules, and modules that act on each time step separately, in order; all with equally many
            outputs.
        device, dtype: of w and γ, as in `torch.nn`.

    Shape:
        x: (batch, time, features), or token numbers (batch, time) where the first module is an `nn.Embedding`.
        out: (batch, time, outputs). The state is a tuple, one for each module.
    """

    def __init__(
        self,
        *modules: nn.Module,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not modules:
            raise ValueError("WeightedStack needs at least one module")
        for index, module in enumerate(modules):
            check_module(module, f"module {index}")
            if isinstance(module, Steppable) and not module.returns_sequences:
                raise ValueError(f"module {index} ({type(module).__name__}) must return sequences, to be summed with"
                                 " the others'")  # fmt: skip
        self.layers = nn.ModuleList(modules)
        self.mix = _Mix(len(modules), **factory(device, dtype))

    def shares(self) -> Tensor:
        """γ · s, (modules,): what each module's output is multiplied by."""
        return self.mix.shares()

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        x, lengths, resets = checked_input(self, x, lengths, resets)
        outputs, states = [], []
        for module, before in zip(self.layers, checked_states(state, len(self.layers)), strict=True):
            x, after = run(module, x, before, lengths, resets)
            outputs.append(x)
            states.append(after)
        return keep_valid(self.mix(outputs), lengths), tuple(states)

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        check_step(self, x)
        outputs, states = [], []
        for module, before in zip(self.layers, checked_states(state, len(self.layers)), strict=True):
            x, after = run_step(module, x, before)
            outputs.append(x)
            states.append(after)
        return self.mix(outputs), tuple(states)

    def fold(self) -> Folded:
        if changed(self, "fold"):
            return super().fold()
        parts = tuple(fold_module(module) for module in self.layers)
        weight = self.mix.weights
        return WeightedSum(parts, self.mix.shares(exact), dtype=weight.dtype, device=weight.device)

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return tuple(
            module.initial_state(batch, dtype, device) if isinstance(module, Steppable) else None
            for module in self.layers
        )

    def _entrance(self) -> nn.Module | None:
        return first_entrance(self.layers)

    def _fills(self) -> str | None:
        return fills(self.layers[0])


class _Mix(nn.Module):
    """γ · Σ_k softmax(w)_k h_k."""

    def __init__(self, count: int, **place: Any) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.empty(count, **place))
        self.scale = nn.Parameter(torch.empty((), **place))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weights)
        nn.init.ones_(self.scale)

    def shares(self, read: Callable[[Tensor], Tensor] = lambda value: value) -> Tensor:
        """γ · softmax(w), with `read` applied to w and γ first, such as a cast."""
        return read(self.scale) * torch.softmax(read(self.weights), dim=0)

    def forward(self, outputs: list[Tensor]) -> Tensor:
        sizes = [operator.index(output.shape[-1]) for output in outputs]  # torch.jit.trace makes tensors of sizes
        if len(set(sizes)) > 1:
            raise ValueError(f"WeightedStack sums the outputs of its modules, which have {sizes} features: they must"
                             " be equal")  # fmt: skip
        shares = self.shares().to(outputs[-1].dtype).unbind()
        total = shares[0] * outputs[0]
        for share, output in zip(shares[1:], outputs[1:], strict=True):
            total = total + share * output
        return total


def _product(gate: Tensor, out: Tensor) -> Tensor:
    """gate · out; raises if their sizes differ."""
    if gate.shape != out.shape:
        raise ValueError(f"gate must have as many outputs as module: got {gate.shape[-1]} and {out.shape[-1]}")
    return gate * out
