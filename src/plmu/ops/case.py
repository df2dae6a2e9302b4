"""`Case`: what is to be run. `Option`: one way to run it. `Plan`: the choice, explained."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from plmu.ops.rates import Rates, rates_of


@dataclass(frozen=True)
class Case:
    """All that a choice may depend on: sizes, precision, device and properties of the system, but no tensors."""

    kind: str  #: "states", "project" or "final_state"
    batch: int  #: number of sequences
    time: int  #: number of steps
    order: int  #: size of a channel's state
    inputs: int  #: inputs that drive one system together
    channels: int  #: channels, each with a copy of the system
    out: int  #: outputs of `project`, else 0
    dtype: torch.dtype  #: of m and o
    device: str  #: such as "cuda"
    lengths: bool  #: whether sequences differ in length
    resets: bool  #: whether the state is reset inside sequences
    several_inputs: bool  #: whether B̄ has the shape (order, inputs)
    bounded: bool  #: whether the system is stable: the powers of Ā go to zero
    constant: bool  #: whether the values of Ā and B̄ can be read and stay
    trained: bool  #: whether Ā or B̄ has a gradient
    reach: int  #: steps after which an input has faded; 0 if unknown, or if operations are traced
    transformed: bool  #: whether torch.func or forward-mode gradients are at work
    graph: bool  #: whether the call is planned for a CUDA graph
    groups: int = 1  #: number of equal groups of channels, each with its own system

    @property
    def target(self) -> torch.device:
        return torch.device(self.device)

    @property
    def rates(self) -> Rates:
        return rates_of(self.target.type, self.graph)

    @property
    def half(self) -> bool:
        """Whether products run in half precision."""
        return self.rates.gpu and self.dtype in (torch.float16, torch.bfloat16)

    @property
    def states(self) -> int:
        """The number of elements of m."""
        return self.batch * self.time * self.order * self.channels

    @property
    def moved(self) -> int:
        """The number of elements of u and o."""
        return self.batch * self.time * (self.inputs * self.channels + self.out)


@dataclass(frozen=True)
class Option:
    """One way in which an algorithm may run a case."""

    label: str  #: as a plan lists it
    seconds: float  #: estimated, forward and backward
    chunk: int = 0  #: steps a chunk
    fold: bool = False  #: whether the weight is multiplied into the chunk's matrix first
    tile: int = 0  #: chunks of m that exist at a time in `project`


@dataclass(frozen=True)
class Plan:
    """The chosen algorithm and its options: `print(plan)` explains them.

    Attributes:
        kind: "states", "project" or "final_state"; for an `LMU`, "recurrence".
        algorithm: the name of the algorithm.
        chunk: steps of a chunk, where time is cut into chunks.
        fold: whether the weight is multiplied into the chunk's matrix first.
        tile: chunks of m that exist at a time in `project`.
        reason: what the algorithm does, and why it was taken.
        kernel: what computes the products: "library" (torch), "Triton" or "Hopper" (plmu's own kernels).
        stored: what is stored for the backward pass, beside constants.
        costs: estimated seconds, forward and backward, of all candidates.
        passed_over: why each other algorithm, or a faster kernel, was rejected.
    """

    kind: str
    algorithm: str
    chunk: int = 0
    fold: bool = False
    tile: int = 0
    reason: str = ""
    kernel: str = "library"
    stored: tuple[str, ...] = field(default=(), compare=False)
    costs: dict[str, float] = field(default_factory=dict, compare=False)
    passed_over: dict[str, str] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.algorithm}. {self.reason}"]
        lines.append(f"  kernel: {self.kernel}; stored for the backward pass: {', '.join(self.stored) or 'nothing'}")
        for name, seconds in sorted(self.costs.items(), key=lambda item: item[1]):
            lines.append(f"  {name:<28} about {_pretty(seconds)} forward + backward")
        lines += [f"  not {name}: {reason}" for name, reason in self.passed_over.items()]
        return "\n".join(lines)


def _pretty(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
