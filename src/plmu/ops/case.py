"""What is asked, how it may be run, and the answer: `Case`, `Option` and `Plan`."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from plmu.ops.rates import Rates, rates_of


@dataclass(frozen=True)
class Case:
    """All that a choice may depend on: sizes, precision, device, and what is known of the system, but no values."""

    kind: str  #: "states", "project" or "final_state"
    batch: int  #: sequences
    time: int  #: steps
    order: int  #: numbers of a channel's state
    inputs: int  #: that drive one system together
    channels: int  #: that each drive a copy of their own
    out: int  #: 0 but for `project`
    dtype: torch.dtype  #: of m and o
    device: str  #: such as "cuda"
    lengths: bool  #: whether sequences differ in length
    resets: bool  #: whether the state is reset inside sequences
    several_inputs: bool  #: whether B̄ has the shape (order, inputs)
    bounded: bool  #: whether the powers of Ā are known to die out
    constant: bool  #: whether Ā and B̄ are known and stay
    trained: bool  #: whether Ā or B̄ has a gradient
    reach: int  #: steps after which an input has faded; 0 where that is not known, or operations are traced
    transformed: bool  #: whether torch.func or forward-mode gradients are at work
    graph: bool  #: whether the call is planned for a CUDA graph
    groups: int = 1  #: equal groups of channels, each with a system of its own

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
        """How many numbers m has."""
        return self.batch * self.time * self.order * self.channels

    @property
    def moved(self) -> int:
        """How many numbers u and o have."""
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
    """What runs: `print(plan)` explains it.

    Attributes:
        kind: "states", "project" or "final_state"; for an `LMU`, "recurrence".
        algorithm: the name of the algorithm.
        chunk: steps of a chunk, where time is cut into chunks.
        fold: whether the weight is multiplied into the chunk's matrix first.
        tile: chunks of m that exist at a time in `project`.
        reason: what the algorithm does, and why it was taken.
        kernel: what computes the products: "library" (torch's), "Triton" or "Hopper" (kernels of our own).
        stored: what is kept for the backward pass, beside constants.
        costs: estimated seconds, forward and backward, of all candidates.
        passed_over: why each other algorithm, or a faster kernel, was no candidate.
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
