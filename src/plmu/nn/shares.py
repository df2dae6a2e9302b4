"""How often each feature has been above thresholds: running shares of time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from plmu.folded import wide_dtype
from plmu.nn.steppable import Steppable, check_features, factory, positive
from plmu.nn.stretches import followed, followed_at_steps
from plmu.ops.check import Lengths, check_state, checked_lengths, checked_resets, keep_valid, result_dtype

_CACHED = {"cpu": 2**20, "cuda": 2**26}  # comparisons that are held at a time
_STEPS = 1024  # of which counts and positions of degree 1 are exact in float32, and in TF32
_DEGREES = 8  # the highest; above it float32 sums lose their digits


class ThresholdShares(Steppable):
    """The share of the steps so far at which each feature was above each of its thresholds.

    With `positions` it also says where in the sequence those steps are: the mean over all T steps so far of the
    Legendre polynomials of 2 (t + ½) / T − 1 at steps above the threshold, and 0 at the others. That of degree 1 is
    negative where they come early; that of degree 2 where they come in the middle. With `stretches` it also tells one
    long stretch of steps above the threshold from many short ones: the number of stretches and the length of the
    longest, both divided by T. It has no parameters and no gradient; `thresholds` is a buffer, saved with the model. A
    sequence of any length gives equally many numbers, so that a linear layer can classify it.

    Args:
        features: features of x.
        count: thresholds of each feature.
        positions: the highest degree of the positions that follow the shares, at most 8. 0 or False gives none, and
            True is degree 1.
        stretches: whether the number of stretches and the longest one follow the positions.
        return_sequences: False gives the shares at each sequence's last step alone.
        device: of the thresholds.
        dtype: of the thresholds.

    Shape:
        x: (batch, time, features).
        out: (batch, time, outputs), or (batch, outputs), where outputs are count · features · kinds. There are
            1 + positions kinds, and 2 more with stretches. `out.unflatten(-1, (-1, count, features))` has the kind
            first: shares, positions by degree, number of stretches, longest stretch.
        state: how many steps t were above each, and for each further degree k the sum of their (t + ½)ᵏ; with
            stretches their number, the longest, and the one that has not ended; last, how many steps there were:
            (batch, outputs + 1), or with stretches (batch, outputs + count · features + 1).

    Raises:
        ValueError: features or count is below 1, or positions is no whole number from 0 to 8.
    """

    thresholds: Tensor
    input_size: int

    def __init__(
        self,
        features: int,
        count: int,
        *,
        positions: int = 0,
        stretches: bool = False,
        return_sequences: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.count = positive(features, "features"), positive(count, "count")
        if not isinstance(positions, int) or not 0 <= positions <= _DEGREES:
            raise ValueError(f"positions must be a whole number from 0 to {_DEGREES}, got {positions!r}")
        self.positions = int(positions)
        self.stretches = bool(stretches)
        self._width = self.count * self.input_size
        self._moments = self._width * (1 + self.positions)  # numbers of the state that are sums of powers
        self.output_size = self._moments + 2 * self._width * self.stretches
        self.returns_sequences = return_sequences
        self.config = {"features": self.input_size, "count": self.count, "return_sequences": return_sequences}
        if positions:
            self.config["positions"] = self.positions
        if stretches:
            self.config["stretches"] = True
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
        if self.returns_sequences or resets is not None or torch.compiler.is_compiling():
            return self._every_step(x, start, known, resets)
        steps = start.new_full((batch,), time) if known is None else known.to(start.dtype)
        sums, runs = self._followed(x.detach(), steps, start) if self.stretches else (self._sums(x.detach(), steps), [])
        sums = _later(sums, start[:, -1:])  # steps are counted from the beginning of the sequence
        parts = [start[:, : self._moments] + sums.flatten(1), *runs, start[:, -1:] + steps[:, None]]
        last = torch.cat([part.to(start.dtype) for part in parts], dim=1)
        out = self._shares(last).to(result_dtype(x))
        return (out if known is None else torch.where((known > 0)[:, None], out, 0.0)), last

    def _sums(self, x: Tensor, steps: Tensor) -> Tensor:
        """How many of the first steps t of x are above each threshold, and the sums of their (t + ½)ᵏ for each degree:
        (batch, 1 + positions, count · features).

        Comparisons are made for few steps at a time, so that they stay in a processor's cache, and are summed by a
        matrix product. It is in float64 on a GPU, whose TF32 has too few digits for the higher powers.
        """
        batch, time, _ = x.shape
        exact = x.dtype == torch.float64 or (x.is_cuda and self.positions > 1)
        dtype = torch.float64 if exact else torch.float32
        width = self.thresholds.numel()
        cached = _CACHED.get(x.device.type, 2**20)
        length = max(1, min(_STEPS, time, cached // width))
        rows = max(1, cached // (length * width))
        total = x.new_zeros(batch, 1 + self.positions, width, dtype=torch.float64)
        above = x.new_empty(min(rows, batch), length, self.count, self.input_size, dtype=dtype)
        x = x if x.dtype == torch.float64 else x.float()
        thresholds = self.thresholds.to(x.dtype)
        with torch.autocast(x.device.type, enabled=False):
            for place in range(0, time, length):
                number = torch.arange(min(length, time - place), device=x.device)
                weight = (place + number < steps[:, None]).to(dtype)[:, None]  # (batch, 1, time)
                weight = weight * torch.stack(list(self._powers(number.to(dtype))))
                for first in range(0, batch, rows):
                    some = x[first : first + rows, place : place + length]
                    held = above[: some.shape[0], : some.shape[1]]
                    # Written as numbers: as truth values they would be compared one by one.
                    torch.gt(some.unsqueeze(2), thresholds, out=held)
                    found = weight[first : first + rows] @ held.flatten(2)
                    total[first : first + rows] += _later(found.double(), place)
        return total

    def _followed(self, x: Tensor, steps: Tensor, start: Tensor) -> tuple[Tensor, list[Tensor]]:
        """What `_sums` returns, and the state's numbers of stretches after x."""
        number, longest, run = self._stretches(start)
        total = x.new_zeros(len(x), 1 + self.positions, self._width, dtype=torch.float64)
        for place in range(0, x.shape[1], _STEPS):
            some, left = x[:, place : place + _STEPS], (steps.long() - place).clamp(0, _STEPS)
            sums, went_on, longest, run = followed(some, self.thresholds, longest, run, self.positions, left)
            total += _later(sums.double(), place)
            number = number + sums[:, 0] - went_on
        return total, [number, longest, run]

    def _powers(self, number: Tensor) -> Iterable[Tensor]:
        """(t + ½)ᵏ of steps t, from degree 0."""
        power = torch.ones_like(number)
        yield power
        for _ in range(self.positions):
            power = power * (number + 0.5)
            yield power

    def _every_step(self, x: Tensor, start: Tensor, known: Tensor | None, resets: Tensor | None) -> tuple[Tensor, Any]:
        time = x.shape[1]
        found = self._above(keep_valid(x, known))  # (batch, time, count · features)
        at = torch.arange(time, device=x.device)
        begun = at.new_full((x.shape[0], time), -1) if resets is None else torch.where(resets, at, -1).cummax(1).values
        # Numbers of steps since the last reset, or since the sequence began.
        number = torch.where(begun >= 0, at - begun, at + start[:, -1:]).to(start.dtype)[:, :, None]
        summed, earlier = [found * one for one in self._powers(number)], [start[:, : self._moments], start[:, -1:]]
        if self.stretches:
            stretches, longest, run = self._stretches(start)
            begins, *runs = followed_at_steps(found, longest, run, resets)
            summed.append(begins.to(start.dtype))
            earlier.insert(1, stretches)
        above = torch.cat([*summed, torch.ones_like(number)], dim=-1)
        totals = above.cumsum(1)
        counts = totals + torch.cat(earlier, dim=1)[:, None]
        if resets is not None:
            first = begun[:, :, None].expand_as(totals)
            before = (totals - above).gather(1, first.clamp(min=0))  # up to the reset
            counts = torch.where(first >= 0, totals - before, counts)
        if self.stretches:
            counts = torch.cat([counts[..., :-1], *(one.to(start.dtype) for one in runs), counts[..., -1:]], dim=-1)
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
        above = self._above(x).to(start.dtype)
        sums = torch.cat([above * one for one in self._powers(start[:, -1:])], dim=1)
        parts = [start[:, : self._moments] + sums, start[:, -1:] + 1]
        if self.stretches:
            number, longest, run = self._stretches(start)
            run = above * (run + 1)
            parts[1:1] = [number + (run == 1), torch.maximum(longest, run), run]
        counts = torch.cat(parts, dim=1)
        return self._shares(counts).to(result_dtype(x)), counts

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        size = self.output_size + self._width * self.stretches + 1
        return torch.zeros(batch, size, dtype=wide_dtype(dtype), device=device)

    def _above(self, x: Tensor) -> Tensor:
        """Whether x is above each threshold: (…, count · features)."""
        return (x.detach().unsqueeze(-2) > self.thresholds).flatten(-2)

    def _stretches(self, counts: Tensor) -> tuple[Tensor, ...]:
        """Of a state (…, numbers): how many stretches, the longest, and the one that has not ended."""
        return counts[..., self._moments : -1].chunk(3, dim=-1)

    def _shares(self, counts: Tensor) -> Tensor:
        steps = counts[..., -1:].clamp(min=1)
        parts = counts[..., : self._moments].chunk(1 + self.positions, dim=-1)
        means = [part / steps ** (k + 1) for k, part in enumerate(parts)]  # of ((t + ½) / T)ᵏ
        zero = torch.zeros_like(means[0])
        rows = legendre(self.positions)
        out = [sum((factor * one for factor, one in zip(row, means, strict=True) if factor), zero) for row in rows]
        runs = [one / steps for one in self._stretches(counts)[:2]] if self.stretches else []
        return torch.cat([*out, *runs], dim=-1)

    def _start(self, x: Tensor, state: Any) -> Tensor:
        start: Tensor = self.initial_state(x.shape[0], x.dtype, x.device)
        if state is None:
            return start
        check_state(state, tuple(start.shape), start.dtype, start.device)
        given: Tensor = state
        return given

    def extra_repr(self) -> str:
        last = "" if self.returns_sequences else ", return_sequences=False"
        where = f", positions={self.positions}" if self.positions else ""
        runs = ", stretches=True" if self.stretches else ""
        return f"{self.input_size}, count={self.count}{where}{runs}{last}"


def legendre(degree: int) -> list[list[float]]:
    """Legendre polynomials of 2 s − 1 up to a degree, a row each: the coefficients of the powers of s, from 0."""
    all_ = range(degree + 1)
    return [[(-1.0) ** (k + j) * math.comb(k, j) * math.comb(k + j, j) for j in all_] for k in all_]


def _later(sums: Tensor, steps: Tensor | int) -> Tensor:
    """Sums (batch, degrees, …) of powers of step numbers, if those steps were so many later."""
    parts = sums.unbind(1)
    moved = [
        sum((math.comb(k, j) * steps ** (k - j) * parts[j] for j in range(k)), parts[k])
        for k in range(len(parts))
    ]  # fmt: skip
    return torch.stack(moved, dim=1)
