"""How often each feature has been above thresholds: running shares of time."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor

from plmu.core.modes import is_open, watched
from plmu.folded import Folded, RunningShares
from plmu.folded.shares import count_dtype, counted_above, legendre, monomials, powers, shares_of
from plmu.nn.savable import savable
from plmu.nn.steppable import Steppable, changed, check_features, factory, positive
from plmu.ops.check import Lengths, check_state, checked_lengths, checked_resets, keep_valid, result_dtype

_CACHED = {"cpu": 2**20, "cuda": 2**26}  # comparisons in memory at a time
_STEPS = 1024  # steps at a time: so many counts are exact in float32 and in TF32
_DEGREES = 8  # the highest degree of positions
_DOUBLINGS = 32  # of the steps that are summed where torch.export leaves their number open


@savable
class ThresholdShares(Steppable):
    """The share of the steps so far at which each feature was above each of its thresholds.

    With `positions` it also says where in the sequence those steps t are: for each degree, the sum of the Legendre
    polynomial of 2 (t + ½) / T − 1 over them, divided by the number T of all steps so far. Degree 1 is negative if
    they come early, degree 2 if they come in the middle. It has no parameters and no
    gradient; `thresholds` is a buffer, saved with the model. The size of the output does not depend on the
    length of the sequence, so that a linear layer can classify it. After a NaN the shares of that feature are NaN, up
    to the next reset.

    Args:
        features: features of x.
        count: number of thresholds of each feature.
        positions: the highest degree of the positions that follow the shares, at most 8. 0 or False gives none, and
            True is degree 1.
        return_sequences: False gives the shares at each sequence's last step alone.
        device: of the thresholds.
        dtype: of the thresholds.

    Shape:
        x: (batch, time, features).
        out: (batch, time, outputs), or (batch, outputs), where outputs are count · features · (1 + positions);
            `out.unflatten(-1, (-1, count, features))` has the degree first, where 0 are the shares.
        state: the number of steps t above each threshold, for each further degree k the sum of their (t + ½)ᵏ, and the
            number of all steps: (batch, outputs + 1), float64 (float32 on MPS, which has no other).

    Raises:
        ValueError: features or count is below 1, or positions is not an integer from 0 to 8.
    """

    thresholds: Tensor
    input_size: int

    def __init__(
        self,
        features: int,
        count: int,
        *,
        positions: int = 0,
        return_sequences: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.count = positive(features, "features"), positive(count, "count")
        if not isinstance(positions, int) or not 0 <= positions <= _DEGREES:
            raise ValueError(f"positions must be an integer from 0 to {_DEGREES}, got {positions!r}")
        self.positions = int(positions)
        self.output_size = self.count * self.input_size * (1 + self.positions)
        self.returns_sequences = return_sequences
        place = factory(device, dtype)
        self.register_buffer("thresholds", torch.zeros(self.count, self.input_size, **place))

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        check_features(x, 3, self.input_size, self.thresholds)
        batch, time, _ = x.shape
        lengths = checked_lengths(lengths, batch, time, x.device)
        resets = checked_resets(resets, batch, time, x.device)
        start = self._start(x, state)
        if self.returns_sequences or resets is not None or x.device.type not in _CACHED or watched():
            return self._all_steps(x, start, lengths, resets)
        steps = start.new_full((batch,), time) if lengths is None else lengths.to(start.dtype)
        sums = self._sums(x.detach(), steps)
        sums = _later(sums, start[:, -1:])  # steps are counted from the beginning of the sequence
        last = start + torch.cat([sums.flatten(1), steps[:, None]], dim=1).to(start.dtype)
        out = shares_of(last, self.positions).to(result_dtype(x))
        return (out if lengths is None else torch.where((lengths > 0)[:, None], out, 0.0)), last

    def _sums(self, x: Tensor, steps: Tensor) -> Tensor:
        """Σ (t + ½)ᵏ over the steps t < `steps` (batch,) of x that are above each threshold, for each degree k from 0:
        (batch, 1 + positions, count · features), float64. NaN for features with a NaN in those steps.

        Comparisons are made for few steps at a time, so that they stay in a processor's cache, and are summed by a
        matrix product with Legendre polynomials over those steps, which keeps their digits. TF32, which a GPU may take,
        has too few for that.
        """
        batch, time, features = x.shape
        exact = x.dtype == torch.float64 or (x.is_cuda and self.positions > 0)
        dtype = torch.float64 if exact else torch.float32
        width = self.thresholds.numel()
        cached = _CACHED[x.device.type]
        length = max(1, min(_STEPS, time, cached // width))
        rows = max(1, cached // (length * width))
        total = x.new_zeros(batch, 1 + self.positions, width, dtype=torch.float64)
        above = x.new_empty(min(rows, batch), length, self.count, features, dtype=dtype)
        polynomials, of_powers = (
            torch.tensor(table(self.positions), dtype=torch.float64, device=x.device) for table in (legendre, monomials)
        )
        x = x if x.dtype == torch.float64 else x.float()
        thresholds = self.thresholds.to(x.dtype)
        with torch.autocast(x.device.type, enabled=False):
            for place in range(0, time, length):
                number = torch.arange(min(length, time - place), dtype=torch.float64, device=x.device)
                size = len(number)
                within = polynomials @ torch.stack(list(powers(number, self.positions))).div_(_scales(of_powers, size))
                weight = (place + number < steps[:, None])[:, None] * within.to(dtype)  # (batch, degrees, time)
                for first in range(0, batch, rows):
                    part = x[first : first + rows, place : place + length]
                    held = above[: part.shape[0], : part.shape[1]]
                    # The result is written as numbers: comparisons that give bools are not vectorised.
                    torch.gt(part.unsqueeze(2), thresholds, out=held)
                    sums = of_powers @ (weight[first : first + rows] @ held.flatten(2)).double()
                    total[first : first + rows] += _later(sums * _scales(of_powers, size), float(place))
        spoilt = (x.isnan() & (torch.arange(time, device=x.device) < steps[:, None])[:, :, None]).any(1)
        return total.masked_fill(spoilt.repeat(1, self.count)[:, None], torch.nan)

    def _all_steps(self, x: Tensor, start: Tensor, lengths: Tensor | None, resets: Tensor | None) -> tuple[Tensor, Any]:
        """`forward` by the counts of every step, from the checked state `start`."""
        time = x.shape[1]
        at = torch.arange(time, device=x.device)
        no_resets = at.new_full((x.shape[0], time), -1)
        reset_steps = no_resets if resets is None else torch.where(resets, at, -1).cummax(1).values
        # Numbers of steps since the last reset, or since the sequence began.
        number = torch.where(reset_steps >= 0, at - reset_steps, at + start[:, -1:]).to(start.dtype)[:, :, None]
        above = counted_above(keep_valid(x, lengths), self.thresholds, number, self.positions)
        if resets is None:
            counts = above.cumsum(1) + start[:, None]
        else:
            counts = _since(above, reset_steps.clamp(min=0))
            counts = torch.where((reset_steps < 0)[:, :, None], counts + start[:, None], counts)
        out = keep_valid(shares_of(counts, self.positions).to(result_dtype(x)), lengths)
        if lengths is None:
            last = counts[:, -1]
            return (out if self.returns_sequences else out[:, -1]), last.clone()
        index = (lengths - 1).clamp(min=0)[:, None, None]
        not_empty = (lengths > 0)[:, None]
        last = torch.where(not_empty, counts.gather(1, index.expand(-1, 1, counts.shape[2]))[:, 0], start)
        if self.returns_sequences:
            return out, last
        return torch.where(not_empty, out.gather(1, index.expand(-1, 1, out.shape[2]))[:, 0], 0.0), last

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        check_features(x, 2, self.input_size, self.thresholds)
        start = self._start(x, state)
        counts = start + counted_above(x, self.thresholds, start[:, -1:], self.positions)
        return shares_of(counts, self.positions).to(result_dtype(x)), counts

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        return torch.zeros(batch, self.output_size + 1, dtype=count_dtype(device), device=device)

    def fold(self) -> Folded:
        if changed(self, "fold"):
            return super().fold()
        thresholds = self.thresholds
        return RunningShares(thresholds, self.positions, dtype=thresholds.dtype, device=thresholds.device)

    def _start(self, x: Tensor, state: Tensor | None) -> Tensor:
        start: Tensor = self.initial_state(x.shape[0], x.dtype, x.device)
        if state is None:
            return start
        check_state(state, tuple(start.shape), start.dtype, start.device)
        return state

    def extra_repr(self) -> str:
        last = "" if self.returns_sequences else ", return_sequences=False"
        where = f", positions={self.positions}" if self.positions else ""
        return f"{self.input_size}, count={self.count}{where}{last}"


def _scales(like: Tensor, steps: int) -> Tensor:
    """stepsᵏ for each degree k, as a column, to divide and multiply sums by."""
    return float(steps) ** torch.arange(len(like), dtype=like.dtype, device=like.device)[:, None]


def _since(values: Tensor, first: Tensor) -> Tensor:
    """Sums of values (batch, time, …) over the steps from `first` (batch, time) to each step.

    The number of steps that are summed is doubled until it is the whole sequence. Differences of sums from the
    beginning would lose the digits of small sums after large ones, and NaN would cross a reset.
    """
    time = values.shape[1]
    at, steps = torch.arange(time, device=values.device), 1
    for _ in range(_DOUBLINGS if is_open(time) else (operator.index(time) - 1).bit_length()):
        earlier = values[:, (at - steps).clamp(min=0)]
        values = torch.where((at - steps >= first)[:, :, None], values + earlier, values)
        steps *= 2
    return values


def _later(sums: Tensor, steps: Tensor | float) -> Tensor:
    """Sums of powers of step numbers (batch, degrees, …) as if each number were larger by `steps`: Σ (n + steps)ᵏ from
    the Σ nʲ."""
    parts = sums.unbind(1)
    moved = [
        sum((math.comb(k, j) * steps ** (k - j) * parts[j] for j in range(k)), parts[k])
        for k in range(len(parts))
    ]  # fmt: skip
    return torch.stack(moved, dim=1)
