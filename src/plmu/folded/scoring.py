"""Forecasts scored as they come true: running errors, and prediction intervals that adapt to them.

The forecasts of the last `horizon` steps wait in a ring until their values are known; of long horizons every
`spacing`-th one. For each step ahead and channel a running mean absolute error is the unit of the interval's ends, each
of which is a quantile that moves up by η(1 − a) after an error beyond it and down by ηa after another (a is the share
that shall be beyond). What share that is adapts, too, to the misses of the intervals that were issued (adaptive
conformal inference, Gibbs and Candès 2021): over a long stream as many values are covered as shall be.

An event such as a level shift is in the errors of many forecasts, one after the other. The unit and the quantiles count
it once, so that intervals do not become wide after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from plmu.folded.windowed import bounded

SLOTS = 32  # forecasts that wait, at most
UNIT = 0.5 ** (1 / 30)  # by how much the running error keeps of what it was
STEP = 0.05  # of the quantiles, in units of the running error
FIRST = 4.0  # the first steps are as large as this over the number of errors
RATE = 0.001  # at which the share that shall be beyond follows the misses
GROSS = 8.0  # an error of so many running errors is one of an event
LARGEST = 4.0  # running errors; larger errors count as this in the running error
SURE = 40.0  # errors that given quantiles count as
LONG = 16  # horizons in which the running error of all steps, and the trust in corrections, halve
TRUST = 2  # horizons without errors after which a correction would still be trusted
_COUNT, _UNIT, _EVENT, _FREE = 0, 1, 2, 3  # numbers of a step ahead; then lower ends, upper ends, and shares
NORMAL = 1.2533141373155001  # standard deviation of normal errors, in mean absolute ones


class Scored(NamedTuple):
    """What is known of past forecasts."""

    ring: Tensor  # (batch, slots, horizon, channels, 3 + 2 levels): `Issued`, the newest first
    steps: Tensor  # (batch, horizon, channels, 3 + 3 levels): of each step ahead
    errors: Tensor  # (batch, channels, 5): sums by which corrections are trusted, weight, absolute errors


class Issued(NamedTuple):
    """A forecast as it was issued, (..., horizon, channels)."""

    base: Tensor  # of the model that does not learn
    correction: Tensor  # that was learned
    forecast: Tensor
    lower: Tensor  # (..., horizon, channels, levels)
    upper: Tensor


@dataclass(frozen=True)
class Scoring:
    """The scores of forecasts, and their intervals.

    Args:
        horizon: steps ahead.
        channels: of the series.
        levels: of the intervals, as fractions.
        nonnegative: channels whose intervals are not below 0.
    """

    horizon: int
    channels: int
    levels: tuple[float, ...]
    nonnegative: Sequence[int] = ()

    @property
    def spacing(self) -> int:
        """Every how many steps a forecast is scored."""
        return -(-self.horizon // SLOTS)

    @property
    def slots(self) -> int:
        return -(-self.horizon // self.spacing)

    def start(self, batch: int, low: Tensor, high: Tensor) -> Scored:
        """Before the first forecast.

        Args:
            batch: number of sequences.
            low: ends of the intervals, relative to the forecast, (levels, channels, horizon); or empty.
            high: the same.
        """
        levels, shape = len(self.levels), (batch, self.horizon, self.channels)
        ring = low.new_zeros(batch, self.slots, *shape[1:], 3 + 2 * levels)
        normal = torch.special.ndtri((1 + low.new_tensor(self.levels)) / 2) * NORMAL
        count, unit = low.new_zeros(shape), low.new_zeros(shape)
        lower, upper = (sign * normal.expand(*shape, -1) for sign in (-1, 1))
        if low.numel() and levels:
            ends = [
                end.permute(2, 1, 0).expand(*shape, -1) for end in (low, high)
            ]  # (batch, horizon, channels, levels)
            width = ((ends[1] - ends[0]) / (2 * normal)).mean(-1)
            sure = width > 0
            count, unit = torch.where(sure, SURE, 0.0), width
            safe = torch.where(sure, width, 1.0)[..., None]
            lower, upper = (
                torch.where(sure[..., None], end / safe, old) for end, old in zip(ends, (lower, upper), strict=True)
            )
        steps = torch.cat([torch.stack([count, unit, torch.zeros_like(unit)], dim=-1), lower, upper,
                           torch.zeros_like(lower)], dim=-1)  # fmt: skip
        return Scored(ring, steps, low.new_zeros(batch, self.channels, 5))

    def ends(self, scored: Scored) -> tuple[Tensor, Tensor]:
        """The ends of intervals relative to the next forecast, (batch, horizon, channels, levels); NaN where no error
        is known."""
        unit, levels = scored.steps[..., _UNIT, None], len(self.levels)
        unit = torch.where(scored.steps[..., _COUNT, None] > 0, unit, torch.nan)
        return unit * scored.steps[..., _FREE : _FREE + levels], unit * scored.steps[
            ..., _FREE + levels : _FREE + 2 * levels
        ]

    def largest(self, scored: Scored) -> Tensor:
        """The largest errors that are usual, (batch, horizon, channels); infinite where none is known."""
        count, unit = scored.steps[..., _COUNT], scored.steps[..., _UNIT]
        return torch.where(count > 0, LARGEST * unit, torch.inf)

    def trust(self, scored: Scored) -> Tensor:
        """The share of the learned correction in the forecast, (batch, channels): the one with the least squared error
        over past forecasts, pulled towards 1 and from 0 to 1."""
        product, square, weight = scored.errors[..., :3].unbind(-1)
        prior = TRUST * self.horizon * self.slots / weight.clamp(min=1.0) * square
        total = square + prior
        return torch.where(total > 0, (product + prior) / torch.where(total > 0, total, 1.0), 1.0).clamp(0, 1)

    def ages(self, count: Tensor) -> Tensor:
        """How many steps ago the forecasts of the ring were issued when the step of this number comes, (batch,
        slots)."""
        newest = (count - 1) % self.spacing + 1
        return newest[:, None] + self.spacing * torch.arange(self.slots, device=count.device)

    def score(self, scored: Scored, values: Tensor, ages: Tensor, valid: Tensor) -> Scored:
        """After the values of a step.

        Args:
            scored: before it.
            values: (batch, channels).
            ages: of the forecasts in the ring, (batch, slots).
            valid: which of them are scored, (batch, slots).
        """
        levels = len(self.levels)
        place = (ages - 1).clamp(0, self.horizon - 1)
        valid = valid & (ages <= self.horizon)
        ring = scored.ring.gather(2, place[:, :, None, None, None].expand(-1, -1, 1, *scored.ring.shape[3:]))[:, :, 0]
        base, correction, forecast = ring[..., :3].unbind(-1)
        lower, upper = ring[..., 3 : 3 + levels], ring[..., 3 + levels :]
        truth = values[:, None]  # (batch, 1, channels)
        of_step = place[:, :, None, None].expand(-1, -1, *scored.steps.shape[2:])
        before = scored.steps.gather(1, of_step)
        covered = (truth[..., None] >= lower) & (truth[..., None] <= upper)
        after = self._adapted(before, truth - forecast, covered, ages)
        after = torch.where(valid[..., None, None], after, before)
        # A forecast that is too old has no step: what it would write goes to a row that is left out.
        of_step = torch.where((ages <= self.horizon)[..., None, None], of_step, self.horizon)
        steps = torch.cat([scored.steps, torch.zeros_like(scored.steps[:, :1])], dim=1)
        steps = steps.scatter(1, of_step, after)[:, : self.horizon]
        parts = torch.stack(
            [correction * (truth - base), correction.square(), torch.ones_like(base), (truth - forecast).abs(),
             (truth - base).abs()], dim=-1,
        )  # fmt: skip
        total = torch.where(valid[..., None, None], parts, 0.0).sum(1)
        faded = scored.errors * 0.5 ** (1 / (LONG * self.horizon)) + total
        return Scored(scored.ring, steps, torch.where(valid.any(1)[:, None, None], faded, scored.errors))

    def _adapted(self, before: Tensor, error: Tensor, covered: Tensor, ages: Tensor) -> Tensor:
        """The numbers of steps ahead after one error of each.

        Args:
            before: (batch, slots, channels, numbers).
            error: (batch, slots, channels).
            covered: (batch, slots, channels, levels).
            ages: (batch, slots).
        """
        levels = len(self.levels)
        count, unit, event = before[..., :_FREE].unbind(-1)
        lower, upper, share = before[..., _FREE:].unflatten(-1, (3, levels)).unbind(-2)
        sign = error.sign()
        gross = (error.abs() > GROSS * unit) & (count > 0)
        event = torch.where(gross, torch.where(event * sign > 0, event, 0.0) + sign, 0.0)
        repeats = -(-ages // self.spacing)[..., None]  # forecasts that an event can be in the errors of
        counts = (event.abs() < 2) | (event.abs() > repeats)
        relative = torch.where(unit > 0, error / torch.where(unit > 0, unit, 1.0), 0.0)[..., None]
        missing = 1 - before.new_tensor(self.levels)
        beyond = ((missing + share) / 2).clamp(0, 0.5)
        rate = (FIRST / (count + 1)).clamp(min=STEP)[..., None]
        new_lower = (lower - rate * ((relative < lower).to(lower) - beyond)).clamp(max=0)
        new_upper = (upper + rate * ((relative > upper).to(upper) - beyond)).clamp(min=0)
        weight = (1 / (count + 1)).clamp(min=1 - UNIT)
        limited = torch.where(count > 0, error.abs().minimum(LARGEST * unit), error.abs())
        new_unit = unit + weight * (limited - unit)
        issued = (count > 0)[..., None]
        new_share = torch.where(issued, share + RATE * (missing - (~covered).to(share)), share)
        new_share = new_share.maximum(-missing).minimum(1 - missing)
        open_ends = counts[..., None] & issued & (unit > 0)[..., None]
        return torch.cat(
            [
                torch.stack([count + 1, torch.where(counts, new_unit, unit), event], dim=-1),
                torch.where(open_ends, new_lower, lower),
                torch.where(open_ends, new_upper, upper),
                new_share,
            ],
            dim=-1,
        )  # fmt: skip

    def issue(self, scored: Scored, base: Tensor, correction: Tensor, count: Tensor) -> tuple[Tensor, Scored]:
        """The forecast of this step, which enters the ring if it is to be scored.

        Args:
            scored: after the step.
            base: of the model that does not learn, (batch, horizon, channels).
            correction: the learned one.
            count: the number of the step, (batch,), from 1.
        """
        trusted = base + self.trust(scored)[:, None] * correction
        forecast = bounded(trusted.mT, self.nonnegative).mT
        lower, upper = (forecast[..., None] + end.nan_to_num(0.0) for end in self.ends(scored))
        due, ring = (count % self.spacing == 0)[:, None, None, None, None], scored.ring
        if bool(due.any()):  # a ring is large
            now = torch.cat([torch.stack([base, correction, forecast], dim=-1), lower, upper], dim=-1)
            ring = torch.where(due, torch.cat([now[:, None], ring[:, :-1]], dim=1), ring)
        return forecast, Scored(ring if ring is not scored.ring else ring.clone(), scored.steps, scored.errors)
