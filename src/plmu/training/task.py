"""An experiment as the training loop sees it: data as tensors, a loss, and a score."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from plmu.errors import RunError

Batch = tuple[Tensor, ...]


@dataclass
class Group:
    """Parameters that learn alike."""

    parameters: list[nn.Parameter]
    rate: float = 1.0  # times the learning rate
    decay: bool = True  # whether weight decay applies
    begins: float = 0.0  # the epoch, possibly fractional, from which they learn
    matrices: bool = False  # whether those with two axes or more are matrices that Muon may train


@dataclass
class Task:
    """Data and scoring of an experiment; the loop shuffles, batches, optimises and keeps the best.

    Each split is a tuple of tensors whose first axis is the example; or, with `window`, a stream of tokens (time,),
    which is trained on in windows of `window` steps. `measure` turns a model and a batch into sums that may be added
    over batches and processes; `finish` turns the totals into named scores, of which `metric` decides. Where batches
    are not independent, `score` scores a whole split instead.
    """

    train: Batch
    valid: Batch
    test: Batch
    loss: Callable[[nn.Module, Batch], Tensor]
    metric: str
    higher_is_better: bool
    measure: Callable[[nn.Module, Batch], Tensor] | None = None
    finish: Callable[[Tensor], dict[str, float]] | None = None
    score: Callable[[nn.Module, Batch], dict[str, float]] | None = None
    evaluation_batch: int = 512
    window: int | None = None
    # For a stream whose state is carried: (model, batch, state) to loss and state. The state may be None.
    carried_loss: Callable[[nn.Module, Batch, Any], tuple[Tensor, Any]] | None = None
    groups: Callable[[nn.Module], list[Group]] | None = None  # by default all parameters learn alike
    # Of examples: the lengths (examples,) of each tensor that has a time axis. For batches of similar length.
    lengths: Callable[[Batch], tuple[Tensor | None, ...]] | None = None
    # The weight of a batch in the mean loss, such as its number of tokens. By default all batches count alike.
    weight: Callable[[Batch], Tensor] | None = None
    notes: dict[str, object] = field(default_factory=dict)  # for the result, such as completeness of the data
    messages: list[str] = field(default_factory=list)  # about the data, printed before training

    def __post_init__(self) -> None:
        if (self.measure is None) != (self.finish is None) or (self.measure is None) == (self.score is None):
            raise TypeError("a task has either measure and finish, or score")

    def check(self) -> None:
        """Raise RunError unless all data are finite, so that training is not blamed for a loss that is not a number."""
        for name in ("train", "valid", "test"):
            check_finite(name, getattr(self, name))

    def to(self, device: torch.device, splits: tuple[str, ...] = ("train", "valid", "test")) -> Task:
        """The same task with the data of these splits on a device."""
        moved: dict[str, Any] = {name: tuple(t.to(device) for t in getattr(self, name)) for name in splits}
        return dataclasses.replace(self, **moved)

    def better(self, score: float, than: float | None) -> bool:
        if than is None:
            return math.isfinite(score)
        return score > than if self.higher_is_better else score < than


def check_finite(name: str, data: Batch) -> None:
    """Raise RunError unless a split's tensors are finite; it names the first value that is not."""
    for number, values in enumerate(data):
        if not values.is_floating_point():
            continue
        wrong = ~values.isfinite()
        if wrong.any():
            first = tuple(wrong.nonzero()[0].tolist())
            raise RunError(
                f"the {name} data hold {int(wrong.sum())} values that are not finite: the first is"
                f" {float(values[first])}, in tensor {number} at index {first}. Fix the data, or leave the example out"
            )
