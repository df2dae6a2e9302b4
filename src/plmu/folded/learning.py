"""Forecasts that learn while they step: a correction of a model's forecasts, in closed form, whose sums are a state.

Of each window whose next `horizon` values have become known, the features φ and the errors r of the model's forecast
enter the sums G ← λG + φφᵀ and C ← λC + φrᵀ. The correction of a forecast is φᵀΔ, where

    (G + p G₀ + α (n + p) D) Δ = C.

n is the weight of the sums, G₀ the mean of φφᵀ over the windows of the fit, scaled to the mean power of those that
came, p how many windows that is worth, and D the power of each feature. So the readout that the model has counts as p
windows: the sums may be forgotten (λ < 1), and the system stays positive definite, in float64 for any number of
updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plmu.folded.forecast import CovariateForecast, WindowForecast
from plmu.folded.scoring import Scored, Scoring
from plmu.folded.windowed import Windowed, number_of

SOLVED = 8  # steps from one solution to the next, at least
SHIFT = 5  # odd samples in a row that are taken for a shift
FIRST_SIZES = 30  # samples before any is odd
SIZES = 200  # samples in which the running size of values halves

Features = Callable[[Tensor, Tensor], Tensor]  # of windows (batch, channels, lookback) that end at steps (batch,)


class Learned(NamedTuple):
    """The state of learning, float64 but for counts."""

    rows: Tensor  # (batch, lookback + horizon, channels): the last ones, missing ones as the one before
    odd: Tensor  # (batch, lookback + horizon), int64: 1 for a row that was filled, 2 for one that is far from others
    counts: Tensor  # (batch, 2), int64: of all rows, and of odd ones at the end
    sizes: Tensor  # (batch, channels, 3): running mean, mean absolute deviation from it, and number of values
    gram: Tensor  # (batch, readouts, order, order)
    cross: Tensor  # (batch, readouts, order, horizon)
    weight: Tensor  # (batch, 1): how many windows the sums count
    correction: Tensor  # (batch, readouts, order, horizon)
    scored: Scored


@dataclass(frozen=True)
class Learning:
    """What is learned, and how.

    Args:
        scoring: the horizon, the channels and the intervals.
        lookback: steps of a window.
        half_life: steps in which what was learned counts half; infinite to forget nothing.
        prior: the number of windows that the model's own readout counts as.
        alpha: penalty, for features of unit power.
        reject: samples whose distance from the running mean, and from the sample before, is so many mean absolute
            deviations are not learned, and larger errors than usual count as less; infinite to learn from all samples.
    """

    scoring: Scoring
    lookback: int
    half_life: float
    prior: float
    alpha: float
    reject: float

    @property
    def period(self) -> int:
        """Steps from one solution to the next."""
        return -(-SOLVED // self.scoring.spacing) * self.scoring.spacing

    def start(self, batch: int, gram: Tensor, low: Tensor, high: Tensor) -> Learned:
        """Before the first step, on the device of the arguments, which are as of `step` and `Scoring.start`."""
        horizon, channels = self.scoring.horizon, self.scoring.channels
        readouts, order, _ = gram.shape
        new = gram.new_zeros
        size, cross = self.lookback + horizon, new(batch, readouts, order, horizon)
        return Learned(
            new(batch, size, channels),
            new(batch, size, dtype=torch.int64),
            new(batch, 2, dtype=torch.int64),
            new(batch, channels, 3),
            new(batch, readouts, order, order),
            cross,
            new(batch, 1),
            torch.zeros_like(cross),
            self.scoring.start(batch, low, high),
        )

    def step(
        self,
        values: Tensor,
        base: Tensor,
        number: Tensor,
        features: Features,
        gram: Tensor,
        scale: Tensor,
        old: Learned,
    ) -> tuple[Tensor, Learned]:
        """The forecast (batch, horizon, channels) after a step, and the next state.

        Args:
            values: of the step, (batch, channels), NaN where they are missing.
            base: the model's forecast, (batch, horizon, channels).
            number: of the step, for its phase in a season, (batch,).
            features: of windows.
            gram: G₀ up to a factor, (readouts, order, order), of scaled features; zero if it is not known.
            scale: of the channels, (channels,).
            old: the state before the step.
        """
        horizon, lookback = self.scoring.horizon, self.lookback
        counts, filled = old.counts[:, 0], values.isnan().any(1)
        values = filled_by(values, old)
        sizes, far = self._sized(old, values)
        odd_now = torch.where(far, 2, filled.to(old.odd))
        first = (counts == 0)[:, None]
        rows = torch.cat([old.rows[:, 1:], values[:, None]], dim=1)
        rows = torch.where(first[..., None], values[:, None], rows)
        run = torch.where(far, old.counts[:, 1] + 1, 0)
        odd = torch.cat([old.odd[:, 1:], odd_now[:, None]], dim=1)
        shifted = run >= SHIFT  # these samples are as odd as those before, so they are how things are now
        recent = torch.arange(odd.shape[1], device=odd.device) >= odd.shape[1] - SHIFT
        odd = torch.where(shifted[:, None] & recent, 0, odd)
        sizes = torch.where(shifted[:, None, None], torch.cat([values[..., None], sizes[..., 1:]], dim=-1), sizes)
        count = counts + 1
        ages = self.scoring.ages(count)
        far_before = torch.cat([torch.zeros_like(odd[:, :1]), (odd == 2).cumsum(1)], dim=1)  # of each place
        ends = (lookback + horizon - ages).clamp(min=lookback)  # of the windows of the ring
        clean = far_before.gather(1, ends) == far_before.gather(1, ends - lookback)
        began = count[:, None] - ages >= 1
        scored = self.scoring.score(old.scored, values, ages, began & clean & (odd[:, -1:] == 0))
        learned = self._learned(old, rows, odd, number, count, features, scale, scored)
        correction = self._solved(learned, old.correction, gram, count)
        now = features(rows[:, horizon:].mT, number) / scale[:, None]
        change = (now[:, :, None] @ correction)[:, :, 0] * scale[:, None]  # (batch, channels, horizon)
        forecast, scored = self.scoring.issue(scored, base, change.mT, count)
        counts = torch.stack([count, torch.where(shifted, 0, run)], dim=1)
        return forecast, Learned(rows, odd, counts, sizes, *learned, correction, scored)

    def _sized(self, old: Learned, values: Tensor) -> tuple[Tensor, Tensor]:
        """The running sizes after values (batch, channels), and which samples are far from all before, (batch,)."""
        middle, deviation, count = old.sizes.unbind(-1)
        distance = values - middle
        limit = self.reject * deviation
        jump = (values - old.rows[:, -1]).abs()
        apart = (count >= FIRST_SIZES) & (deviation > 0) & (distance.abs() > limit) & (jump > limit)
        again = (count >= FIRST_SIZES) & (deviation > 0) & (distance.abs() > limit) & (old.counts[:, 1:] > 0)
        share = (1 / (count + 1)).clamp(min=1 - 0.5 ** (1 / SIZES))
        limited = torch.where((count >= FIRST_SIZES) & (deviation > 0), distance.clamp(-limit, limit), distance)
        deviation = deviation + share * (limited.abs() - deviation)
        return torch.stack([middle + share * limited, deviation, count + 1], dim=-1), (apart | again).any(1)

    def _learned(
        self,
        old: Learned,
        rows: Tensor,
        odd: Tensor,
        number: Tensor,
        count: Tensor,
        features: Features,
        scale: Tensor,
        scored: Scored,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The sums and their weight after the window whose horizon has become known, if there is one. Errors that are
        far larger than usual count as less, so that a few windows do not decide."""
        horizon, spacing = self.scoring.horizon, self.scoring.spacing
        due = ((count - horizon) % spacing == 0) & (count - horizon >= self.lookback)
        if self.reject < torch.inf:
            due = due & ~odd.any(1)
        sums = old.gram, old.cross, old.weight
        if not bool(due.any()):
            return tuple(part.clone() for part in sums)  # type: ignore[return-value]
        place = (horizon - self.scoring.ages(count)[:, :1]).clamp(min=0) // spacing  # in the ring
        issued = old.scored.ring[..., 0].gather(1, place[:, :, None, None].expand(-1, 1, *old.scored.ring.shape[2:4]))
        error = rows[:, self.lookback :] - issued[:, 0]  # (batch, horizon, channels)
        if self.reject < torch.inf:
            limit = self.scoring.largest(scored)
            error = error.minimum(limit).maximum(-limit)
        error = error.mT / scale[:, None]
        window = features(rows[:, : self.lookback].mT, number - horizon) / scale[:, None]  # (batch, channels, order)
        added = [
            window[..., None] * window[:, :, None],
            window[..., None] * error[:, :, None],
            torch.ones_like(old.weight),
        ]
        if old.gram.shape[1] == 1:  # channels share a readout
            added[:2] = [part.mean(1, keepdim=True) for part in added[:2]]
        decay = 0.5 ** (spacing / self.half_life)
        after = []
        for before, term in zip(sums, added, strict=True):
            mask = due.view(-1, *(1,) * (before.dim() - 1))
            after.append(torch.where(mask, before * decay + term * spacing, before))
        return after[0], after[1], after[2]

    def _solved(self, sums: Sequence[Tensor], before: Tensor, gram: Tensor, count: Tensor) -> Tensor:
        """The correction (batch, readouts, order, horizon): solved again for the sequences whose turn it is, one by
        one, so that the bits do not depend on which sequences these are."""
        after = before.clone()
        turns = (count % self.period == 0) & (sums[2][:, 0] > 0)
        power_of_fit = gram.diagonal(dim1=1, dim2=2).sum()
        for place in turns.nonzero().flatten().tolist():
            total, cross, weight = (part[place].clone() for part in sums)
            mean = (total / weight).diagonal(dim1=1, dim2=2)
            # Windows of the fit may be larger or smaller than those that come: only their shape counts.
            prior = gram * (mean.sum() / power_of_fit) if power_of_fit > 0 else torch.diag_embed(mean)
            total = total + self.prior * prior
            power = (total / (weight + self.prior)).diagonal(dim1=1, dim2=2).mean(0)
            power = power + 1e-12 * power.max() + 1e-300
            total.diagonal(dim1=1, dim2=2).add_(self.alpha * (weight + self.prior) * power)
            factor, failed = torch.linalg.cholesky_ex(total)
            if not bool(failed.any()):
                after[place] = torch.cholesky_solve(cross, factor)
        return after


def filled_by(values: Tensor, old: Learned) -> Tensor:
    """Values (batch, channels) of a step, where missing ones are those of the step before, or 0."""
    return torch.where(values.isnan(), old.rows[:, -1], values)


@dataclass(frozen=True, eq=False)
class LearningForecast(Windowed):
    """A forecast of `base` and what is learned of its errors: `plmu.nn.LearningForecast`.

    The state is that of `base`, then the `Learned`.
    """

    base: Windowed
    taps: Tensor  # (lookback, order): the impulse response of the memory whose states are features; empty for `base`'s
    gram: Tensor  # (readouts, order, order)
    scale: Tensor  # (channels,)
    low: Tensor  # (levels, channels, horizon), or empty
    high: Tensor
    learning: Learning
    first_number: int

    @property
    def reads_missing(self) -> bool:
        return not isinstance(self.base, CovariateForecast)

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        *before, old = self.initial_state(x.shape[0], x.dtype, x.device) if state is None else state
        scoring = self.learning.scoring
        filled = torch.cat(
            [filled_by(x[:, : scoring.channels].double(), old).to(x.dtype), x[:, scoring.channels :]], dim=1
        )
        number = number_of(before[1], self.first_number)
        out, after = self.base.advance(filled, tuple(before))
        base = out.double().unflatten(1, (scoring.horizon, scoring.channels))
        values = x[:, : scoring.channels].double()
        gram, scale = (array.to(x.device) for array in (self.gram, self.scale))
        forecast, new = self.learning.step(values, base, number, self._features, gram, scale, old)
        return forecast.flatten(1).to(x.dtype), (*after, new)

    def _features(self, windows: Tensor, number: Tensor) -> Tensor:
        if self.taps.numel():
            return (windows - windows[..., -1:]) @ self.taps.to(windows.device)
        assert isinstance(self.base, WindowForecast)
        return self.base.standard(windows, number).features

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        base = self.base.initial_state(batch, dtype, device)
        arrays = (array.to(device) for array in (self.gram, self.low, self.high))
        return (*base, self.learning.start(batch, *arrays))

    def trial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        *base, start = self.initial_state(batch, dtype, device)
        correction = torch.arange(1.0, 1 + start.correction[0].numel(), dtype=torch.float64, device=device).sin()
        correction = correction.view(start.correction.shape[1:]).expand_as(start.correction).clone()
        counts = start.counts + self.learning.lookback + self.learning.scoring.horizon
        return (*base, start._replace(correction=correction, counts=counts))
