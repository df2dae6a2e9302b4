"""How often each feature has been above thresholds: running shares of time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plmu.folded import wide_dtype
from plmu.nn.steppable import Steppable, check_features, factory, positive
from plmu.ops.check import Lengths, check_state, checked_lengths, checked_resets, keep_valid, result_dtype

_CACHED = 2**19  # comparisons that are held at a time


class ThresholdShares(Steppable):
    """The share of the steps so far at which each feature was above each of its thresholds.

    It has no parameters and no gradient; `thresholds` is a buffer, saved with the model. A sequence of any length gives
    equally many numbers, so that a linear layer can classify it.

    Args:
        features: features of x.
        count: thresholds of each feature.
        return_sequences: False gives the shares at each sequence's last step alone.
        device: of the thresholds.
        dtype: of the thresholds.

    Shape:
        x: (batch, time, features).
        out: (batch, time, count · features), or (batch, count · features); `out.unflatten(-1, (count, features))` has
            the thresholds first.
        state: how many steps were above each, and how many there were: (batch, count · features + 1).
    """

    thresholds: Tensor
    input_size: int

    def __init__(
        self,
        features: int,
        count: int,
        *,
        return_sequences: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.count = positive(features, "features"), positive(count, "count")
        self.output_size = self.count * self.input_size
        self.returns_sequences = return_sequences
        self.config = {"features": self.input_size, "count": self.count, "return_sequences": return_sequences}
        place = factory(device, dtype)
        self.register_buffer("thresholds", torch.zeros(self.count, self.input_size, **place))

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        check_features(x, 3, self.input_size, self.thresholds)
        batch, time, _ = x.shape
        known = checked_lengths(lengths, batch, time, x.device)
        resets = checked_resets(resets, batch, time, x.device)
        start = self._start(x, state)
        if self.returns_sequences or resets is not None:
            return self._every_step(x, start, known, resets)
        counts = _counts(keep_valid(x.detach(), known), self.thresholds)
        if known is not None:  # zeros in the padding, which may be above a threshold too
            counts -= (time - known)[:, None, None] * (self.thresholds < 0)
        counts = counts.flatten(1)
        steps = counts.new_full((batch, 1), time) if known is None else known[:, None]
        last = start + torch.cat([counts, steps], dim=1)
        out = self._shares(last).to(result_dtype(x))
        return (out if known is None else torch.where((known > 0)[:, None], out, 0.0)), last

    def _every_step(self, x: Tensor, start: Tensor, known: Tensor | None, resets: Tensor | None) -> tuple[Tensor, Any]:
        time = x.shape[1]
        above = self._above(keep_valid(x, known)).to(start.dtype)  # (batch, time, count · features + 1)
        totals = above.cumsum(1)
        if resets is None:
            counts = totals + start[:, None]
        else:
            at = torch.arange(time, device=x.device)
            first = torch.where(resets, at, -1).cummax(1).values[:, :, None].expand_as(totals)
            before = (totals - above).gather(1, first.clamp(min=0))  # up to the reset
            counts = torch.where(first >= 0, totals - before, totals + start[:, None])
        out = keep_valid(self._shares(counts).to(result_dtype(x)), known)
        if known is None:
            last = counts[:, -1]
            return (out if self.returns_sequences else out[:, -1]), last.clone()
        index = (known - 1).clamp(min=0)[:, None, None]
        some = (known > 0)[:, None]
        last = torch.where(some, counts.gather(1, index.expand(-1, 1, counts.shape[2]))[:, 0], start)
        if self.returns_sequences:
            return out, last
        return torch.where(some, out.gather(1, index.expand(-1, 1, out.shape[2]))[:, 0], 0.0), last

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        check_features(x, 2, self.input_size, self.thresholds)
        start = self._start(x, state)
        counts = start + self._above(x).to(start.dtype)
        return self._shares(counts).to(result_dtype(x)), counts

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return torch.zeros(batch, self.output_size + 1, dtype=wide_dtype(dtype), device=device)

    def _above(self, x: Tensor) -> Tensor:
        """Whether x is above each threshold, and a 1 for the step itself."""
        above = (x.detach().unsqueeze(-2) > self.thresholds).flatten(-2)
        return torch.cat([above, torch.ones_like(above[..., :1])], dim=-1)

    def _shares(self, counts: Tensor) -> Tensor:
        return counts[..., :-1] / counts[..., -1:].clamp(min=1)

    def _start(self, x: Tensor, state: Any) -> Tensor:
        start: Tensor = self.initial_state(x.shape[0], x.dtype, x.device)
        if state is None:
            return start
        check_state(state, tuple(start.shape), start.dtype, start.device)
        given: Tensor = state
        return given

    def extra_repr(self) -> str:
        last = "" if self.returns_sequences else ", return_sequences=False"
        return f"{self.input_size}, count={self.count}{last}"


def _counts(x: Tensor, thresholds: Tensor) -> Tensor:
    """How many steps of x (batch, time, features) are above thresholds (count, features): (batch, count, features).

    Comparisons are made for few steps at a time, so that they stay in a processor's cache, and summed as bytes, which
    is exact up to 255 steps.
    """
    batch, time, _ = x.shape
    total = torch.zeros(batch, *thresholds.shape, dtype=torch.int64, device=x.device)
    steps = max(1, min(255, time, _CACHED // thresholds.numel()))
    rows = max(1, _CACHED // (steps * thresholds.numel()))
    for first in range(0, batch, rows):
        some = x[first : first + rows]
        for piece in some.split(steps, dim=1):
            above = (piece.unsqueeze(2) > thresholds).view(torch.uint8)
            total[first : first + rows] += above.sum(1, dtype=torch.uint8)
    return total
