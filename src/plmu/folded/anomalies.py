"""Scores of anomalies, learned online: the step that `plmu.nn.AnomalyScore` and its folded form share.

A channel is seen in several views: its value, what is left without its season, the error of a forecast, and how large
errors have been lately. Each view remembers which values it has had, by `CODES` of them that are as far apart as
possible. The novelty of a value is its distance to the nearest of these, relative to their range. What share of the
samples so far was more novel is its p-value, and the least p-value of the views, weighed, that of the channel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plmu.folded.base import Folded, read_only

CODES = 128  # values that a view remembers
OCTAVES, FINE = 14, 4  # the novelty 2^-14 to 1 is counted in `FINE` bins for each factor of 2
PRIOR, USUAL = 30.0, 0.002  # samples that the prior of novelty counts for, and its median
YOUNG, FIRST = 300.0, 100.0  # samples after which novelty counts half; before which nothing is clipped
LINEAR = 10.0  # mean deviations up to which distances are linear, beyond which logarithmic
LARGEST = 1e6  # deviations of that size, beyond which all are equal
SLOWER = 10.0  # how much slower normal values are forgotten than forecasts
SEASON_RATE = 0.2  # at which a seasonal profile follows
ERROR_RATE, QUICK_RATE, QUANTILE_RATE = 0.02, 0.1, 0.02  # of the size of errors, lately, and of interval bounds
WEIGHTS = (1.0, 0.5, 0.25, 0.25)  # of the novelty in each view: value, without season, error, size of errors
CLIP, HUBER = 20.0, 5.0  # bounds of standardised changes, and of errors learned from, in mean errors
LEAST_COVARIANCE = 10.0  # of weights at the start


class Learned(NamedTuple):
    """The state of a channel, (batch, channels, …) each."""

    clock: Tensor  # (2): steps so far, and how many of them had a value
    level: Tensor  # (3): the first value; relative to it the last one; the mean change
    errors: Tensor  # (4): mean size of errors, that of the last few, logarithms of the bounds above and below
    memory: Tensor  # (order): the Delay Network's state
    weights: Tensor  # (features): of a constant, the memory and, with a season, two differences from its profile
    covariance: Tensor  # (features, features)
    profile: Tensor  # (season), or (1): the season from the present phase on
    place: Tensor  # (views, 2): mean and mean deviation
    codes: Tensor  # (views, CODES), in order
    ages: Tensor  # (views, CODES): steps since each was added
    counts: Tensor  # (bins): samples of each novelty


@dataclass(frozen=True, eq=False)
class AnomalyScore(Folded):
    """Anomaly scores for single steps: `plmu.nn.AnomalyScore`. The state is `Learned`, in float64."""

    system: Tensor  # [Ā | B̄] of the memory, (order, order + 1), float64
    steady: Tensor  # the memory's state after a constant 1, (order,), float64
    channels: int
    season: int
    half_life: float
    bounds: tuple[float, float]  # probabilities of the interval's ends
    sample_dtype = torch.float64

    @property
    def views(self) -> tuple[int, ...]:
        """Which of the views there are: without a season not the one that leaves it out."""
        return (0, 1, 2, 3) if self.season else (0, 2, 3)

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        out, after = advanced(self, x, state)
        return out.to(x.dtype), after

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        order, views = len(self.steady), len(self.views)
        size = 1 + order + 2 * bool(self.season)
        exact = state_dtype(device)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(batch, self.channels, *shape, dtype=exact, device=device)

        covariance = zeros(size, size) + LEAST_COVARIANCE * torch.eye(size, dtype=exact, device=device)
        codes, bins = zeros(views, CODES), zeros(OCTAVES * FINE)
        half, low, high = zeros(1)[..., 0] + (torch.pi / 2) ** 0.5, *self.bounds
        sides = [(half * _normal(share)).log() for share in (high, 1 - low)]
        errors = torch.stack([torch.zeros_like(half), torch.zeros_like(half), *sides], dim=-1)
        return Learned(
            zeros(2), zeros(3), errors, zeros(order), zeros(size), covariance, zeros(max(self.season, 1)),
            zeros(views, 2), codes, codes.clone(), bins,
        )  # fmt: skip

    def finished(self) -> AnomalyScore:
        """Arrays stay float64: weights that are learned need its digits."""
        return self.on(self.device or torch.device("cpu"))

    def on(self, device: torch.device) -> AnomalyScore:
        """The same with arrays on a device."""
        arrays = {name: read_only(array, state_dtype(device), device) for name, array in self.arrays().items()}
        return replace(self, **arrays)


def _normal(share: float) -> float:
    """The quantile of the normal distribution."""
    return float(torch.special.ndtri(torch.tensor(share, dtype=torch.float64, device="cpu")))


def state_dtype(device: torch.device) -> torch.dtype:
    """The precision of states: covariances and counts need more digits than float32 has."""
    return torch.float32 if device.type == "mps" else torch.float64


def advanced(part: AnomalyScore, x: Tensor, state: Any) -> tuple[Tensor, Learned]:
    """One step: the scores (batch, 1 + 4 · channels), and the next state.

    Args:
        part: the constants.
        x: samples (batch, channels); what is not finite is missing.
        state: `Learned`; None at the start.
    """
    if state is None:
        state = part.initial_state(x.shape[0], x.dtype, x.device)
    s = Learned(*state)
    x = x.detach().to(s.clock.dtype)
    present = x.isfinite()
    steps, count = s.clock.unbind(-1)
    begun = count > 0
    x = torch.where(present, x, 0.0)
    origin = torch.where(begun, s.level[..., 0], x)
    u = x - origin
    # The forecast: the last value, and a change that is linear in the memory and the season relative to it.
    last, pace = s.level[..., 1], s.level[..., 2]
    unit = torch.where(pace > 0, pace, 1.0)
    differences = [s.memory - last[..., None] * part.steady]
    if part.season:
        in_season = steps >= part.season
        now, before = s.profile[..., 0], s.profile[..., -1]
        differences.append(torch.where(in_season[..., None], torch.stack([now - before, now - last], dim=-1), 0.0))
    changes = (torch.cat(differences, dim=-1) / unit[..., None]).clamp(-CLIP, CLIP)
    features = torch.cat([torch.ones_like(changes[..., :1]), changes], dim=-1)
    expected = last + (s.weights * features).sum(-1).clamp(-CLIP, CLIP) * unit
    error = torch.where(begun, u - expected, 0.0)
    place, errors = s.place, _errors(s.errors, error, count, part.bounds)
    # How large the last errors are, relative to all.
    usual = place[..., part.views.index(2), 1]
    size = torch.log((errors[..., 1] + 0.01 * usual) / torch.where(usual > 0, usual, 1.0))
    size = torch.where(usual > 0, size, 0.0)
    without = torch.where(in_season, u - now, 0.0) if part.season else u
    values = torch.stack([(u, without, error, size)[view] for view in part.views], dim=-1)
    number = torch.stack([_number(view, count, steps, part.season) for view in part.views], dim=-1)
    rounding = 1e-9 * (origin.abs() + place[..., 0, 1])
    half_life = SLOWER * part.half_life
    novelty, codes, ages = novel(values, s.codes, s.ages, place, rounding[..., None], number <= 0, half_life)
    weights = x.new_tensor([WEIGHTS[view] for view in part.views])
    trust = number / (number + YOUNG)  # a view that has had few samples says little
    most = (novelty * weights * trust).amax(-1)
    p_value, counts = tail(most, s.counts, count, half_life)
    # The next state.
    weights, covariance = _regressed(s, features, (u - last) / unit, s.errors[..., 0] / unit, part)
    rate = 1 / (count + 1)
    slow = 1 - 0.5 ** (1 / part.half_life)
    moved = (u - last).abs().minimum(torch.where((pace > 0) & (count > FIRST), LINEAR * pace, torch.inf))
    level = torch.stack([origin, u, torch.where(begun, pace + rate.clamp(min=slow) * (moved - pace), 0.0)], dim=-1)
    remembered = s.memory @ part.system[:, :-1].mT + u[..., None] * part.system[:, -1]
    after = Learned(
        torch.stack([steps + 1, count + 1], dim=-1), level, torch.where(begun[..., None], errors, s.errors),
        remembered, weights, covariance, s.profile, _placed(place, values, number, half_life), codes, ages, counts,
    )  # fmt: skip
    kept = Learned(*(torch.where(_like(present, new), new, old) for new, old in zip(after, s, strict=True)))
    value = torch.where(present, u, torch.where(begun, expected, 0.0))
    clock = torch.stack([steps + 1, kept.clock[..., 1]], dim=-1)
    kept = kept._replace(clock=clock, profile=_turned(s.profile, value, steps, part.season))
    # The scores.
    score = torch.where(present, 1 - p_value, torch.nan)
    fewest = torch.where(present, p_value, 1.0).amin(-1) * part.channels
    total = torch.where(present.any(-1), (1 - fewest).clamp(min=0.0), torch.nan)
    middle = torch.where(begun, expected + origin, torch.nan)
    upper, lower = (s.errors[..., 0] * s.errors[..., side].exp() for side in (2, 3))
    each = torch.stack([score, middle, middle - lower, middle + upper], dim=-1)
    return torch.cat([total[..., None], each.flatten(1)], dim=-1), kept


def novel(
    values: Tensor, codes: Tensor, ages: Tensor, place: Tensor, rounding: Tensor, new: Tensor, half_life: float
) -> tuple[Tensor, Tensor, Tensor]:
    """How far values are from those that are remembered, from 0 to 1; and what is remembered next.

    A value is added to the codes. Then the code is left out that is closest to another; of two equally close ones the
    older one.

    Args:
        values: (..., views).
        codes: (..., views, CODES), in order.
        ages: (..., views, CODES), in steps.
        place: mean and mean deviation, (..., views, 2).
        rounding: a size below which differences do not count, (..., 1).
        new: whether nothing is remembered yet, (..., views).
        half_life: steps after which a code counts half.
    """
    values = values[..., None]
    codes = torch.where(new[..., None], values, codes)
    unit = LINEAR * place[..., 1:] + rounding[..., None] + torch.finfo(values.dtype).tiny
    mapped, at = (((z - place[..., :1]) / unit).clamp(-LARGEST, LARGEST).asinh() for z in (codes, values))
    distance = (mapped - at).abs().amin(-1)
    span = mapped[..., -1] - mapped[..., 0]
    novelty = distance / (span + distance + torch.finfo(values.dtype).tiny)
    end = torch.full_like(values, torch.inf)
    younger, older = torch.cat([-end, codes], dim=-1), torch.cat([codes, end], dim=-1)
    added = younger.maximum(older.minimum(values))
    zero = torch.zeros_like(values)
    age = torch.where(older < values, torch.cat([ages + 1, zero], dim=-1), 0.0)
    age = torch.where(younger >= values, torch.cat([zero, ages + 1], dim=-1), age)
    among = torch.cat([-end, mapped], dim=-1).maximum(torch.cat([mapped, end], dim=-1).minimum(at))
    gaps = among.diff(dim=-1)
    apart = torch.cat([end, gaps], dim=-1).minimum(torch.cat([gaps, end], dim=-1))
    worth = (apart + 1e-3 * (span + distance)[..., None] + torch.finfo(values.dtype).tiny).log2() - age / half_life
    leave = worth.argmin(-1, keepdim=True)
    before = torch.arange(CODES, device=values.device) < leave
    return (
        novelty,
        torch.where(before, added[..., :-1], added[..., 1:]),
        torch.where(before, age[..., :-1], age[..., 1:]),
    )


def tail(novelty: Tensor, counts: Tensor, number: Tensor, half_life: float) -> tuple[Tensor, Tensor]:
    """The share of samples so far that were more novel, with a prior; and the next counts.

    Args:
        novelty: (...).
        counts: of samples of each novelty, (..., bins).
        number: of samples so far, (...).
        half_life: samples after which a sample counts half.
    """
    bins = OCTAVES * FINE
    floor = 2.0**-OCTAVES
    position = (FINE * (novelty.clamp(min=floor).log2() + OCTAVES)).clamp(max=bins - 1e-6)[..., None]
    at = torch.arange(bins, dtype=counts.dtype, device=counts.device)
    above = (counts * (at + 1 - position).clamp(0, 1)).sum(-1)
    prior = PRIOR / (1 + (novelty / USUAL).square())
    p_value = (above + prior) / (counts.sum(-1) + PRIOR)
    here = (at <= position) & (position < at + 1)
    return p_value.clamp(max=1.0), counts * 0.5 ** (1 / half_life) + here.to(counts.dtype)


def _number(view: int, count: Tensor, steps: Tensor, season: int) -> Tensor:
    """How many samples a view has had."""
    return (steps - season).clamp(min=0.0).minimum(count) if view == 1 else count


def _turned(profile: Tensor, value: Tensor, steps: Tensor, season: int) -> Tensor:
    """The profile at the next phase, with a value at the end."""
    if not season:
        return profile
    rate = torch.where(steps < season, 1.0, (season / (steps + season)).clamp(min=SEASON_RATE))
    now = profile[..., 0] + rate * (value - profile[..., 0])
    return torch.cat([profile[..., 1:], now[..., None]], dim=-1)


def _errors(errors: Tensor, error: Tensor, count: Tensor, bounds: tuple[float, float]) -> Tensor:
    """The next sizes of errors and bounds of the interval."""
    mean, quick, above, below = errors.unbind(-1)
    size = error.abs().minimum(torch.where((mean > 0) & (count > FIRST), HUBER * mean, torch.inf))
    rate = 1 / count.clamp(min=1.0)
    next_mean = mean + rate.clamp(min=ERROR_RATE) * (size - mean)
    next_quick = quick + rate.clamp(min=QUICK_RATE) * (error.abs() - quick)
    over, under = error > mean * above.exp(), -error > mean * below.exp()
    low, high = bounds
    above = above + QUANTILE_RATE * (over.to(mean.dtype) - (1 - high)) / (1 - high) ** 0.5
    below = below + QUANTILE_RATE * (under.to(mean.dtype) - low) / low**0.5
    return torch.stack([next_mean, next_quick, above, below], dim=-1)


def _placed(place: Tensor, values: Tensor, number: Tensor, half_life: float) -> Tensor:
    """The next mean and mean deviation of each view."""
    mean, deviation = place.unbind(-1)
    rate = (1 / (number + 1)).clamp(min=1 - 0.5 ** (1 / half_life))
    limit = torch.where((deviation > 0) & (number > FIRST), CLIP * deviation, torch.inf)
    off = torch.where(number > 0, values - mean, 0.0)
    off = off.maximum(-limit).minimum(limit)
    return torch.stack([torch.where(number > 0, mean, values) + rate * off, deviation + rate * (off.abs() - deviation)], -1)


def _regressed(
    s: Learned, features: Tensor, target: Tensor, usual: Tensor, part: AnomalyScore
) -> tuple[Tensor, Tensor]:
    """Recursive least squares with forgetting: the next weights and their covariance."""
    begun = s.clock[..., 1] > 1
    limit = torch.where((usual > 0) & (s.clock[..., 1] > FIRST), HUBER * usual, torch.inf)
    wrong = (target.clamp(-CLIP, CLIP) - (s.weights * features).sum(-1)).maximum(-limit).minimum(limit)
    forget = 0.5 ** (1 / part.half_life)
    gain = (s.covariance @ features[..., None])[..., 0]
    scale = forget + (gain * features).sum(-1)
    weights = s.weights + gain * (wrong / scale)[..., None]
    part_of = gain / scale.sqrt()[..., None]  # products of it are symmetric to the last digit
    covariance = (s.covariance - part_of[..., :, None] * part_of[..., None, :]) / forget
    size = covariance.diagonal(dim1=-2, dim2=-1)
    bound = (LEAST_COVARIANCE / size.clamp(min=LEAST_COVARIANCE)).sqrt()  # of weights that nothing is learned about
    covariance = covariance * (bound[..., :, None] * bound[..., None, :])
    learns = begun[..., None]
    return torch.where(learns, weights, s.weights), torch.where(learns[..., None], covariance, s.covariance)


def _like(mask: Tensor, value: Tensor) -> Tensor:
    """A mask (batch, channels) with the axes of a value."""
    return mask.reshape(*mask.shape, *(1,) * (value.dim() - 2))
