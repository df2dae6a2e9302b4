"""Scores of anomalies, learned online: the step that `plmu.nn.AnomalyScore` and its folded form share.

A channel is seen in several views: its value, what is left without its season, the error of a forecast, and how calm
it has been lately. The novelty of its value in each (`folded/novelty.py`) is weighed, and the largest counts: the share
of the samples so far that were more novel is the p-value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plmu.folded.base import Folded, read_only
from plmu.folded.novelty import CODES, FINE, FIRST, LINEAR, OCTAVES, novel, placed, tail

VIEWS = (1.0, 0.3, 0.1, 0.4)  # weights of the novelty of the value, without its season, of the error, of calm
YOUNG = 700.0  # samples of a view after which its novelty counts half
SLOWER = 10.0  # how much slower normal values are forgotten than forecasts
SEASON_RATE = 0.2  # at which a seasonal profile follows
ERROR_RATE, CHANGE_RATE, BOUND_RATE = 0.02, 0.1, 0.02  # of the mean error, the last changes, the interval's bounds
CLIP, HUBER = 20.0, 5.0  # bounds of standardised changes; of errors that are learned from, in mean errors
ABSURD, SETTLED = (100.0, 30.0), 20.0  # mean errors and mean deviations that a value may be off; after so many samples
COVARIANCE = 10.0  # of weights at the start, and at most


class Learned(NamedTuple):
    """The state, (batch, channels, …) each."""

    clock: Tensor  # (2): steps so far, and how many of them had a value
    level: Tensor  # (4): the first value; relative to it the last one; the mean change; that of the last steps
    errors: Tensor  # (3): the mean error; the logarithms of the interval's bounds above and below, in mean errors
    memory: Tensor  # (order): the Delay Network's state
    weights: Tensor  # (features): of a constant, the memory and, with a season, two differences from its profile
    covariance: Tensor  # (features, features)
    profile: Tensor  # (season), or (1): the season from the present phase on
    place: Tensor  # (views, 2): mean and mean deviation
    codes: Tensor  # (views, CODES), in order
    ages: Tensor  # (views, CODES): steps since each was added
    counts: Tensor  # (bins): samples of each novelty


class Forecast(NamedTuple):
    """What is expected of the next value, relative to the first one; (batch, channels) each but for the features."""

    expected: Tensor
    features: Tensor  # of the regression, (batch, channels, features)
    unit: Tensor  # of changes: the mean change
    profile: Tensor  # the season's value
    in_season: Tensor  # whether there has been a whole season


class Sample(NamedTuple):
    """A value as it is judged and learned, (batch, channels) each."""

    origin: Tensor  # the first value, which the next two are relative to
    u: Tensor  # the value
    trusted: Tensor  # the value as it is learned: cut if it is of absurd size
    error: Tensor  # of the forecast
    started: Tensor  # whether there was a value before


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
        order, views, exact = len(self.steady), len(self.views), state_dtype(device)
        size = 1 + order + 2 * bool(self.season)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(batch, self.channels, *shape, dtype=exact, device=device)

        # As of normal errors, whose standard deviation is √(π/2) mean errors.
        sides = [
            0.0,
            *(float((torch.pi / 2) ** 0.5 * _normal(share)) for share in (self.bounds[1], 1 - self.bounds[0])),
        ]
        errors = zeros(3) + torch.tensor(sides, dtype=exact, device=device).clamp(min=1e-3).log()
        return Learned(
            clock=zeros(2),
            level=zeros(4),
            errors=torch.cat([zeros(1), errors[..., 1:]], dim=-1),
            memory=zeros(order),
            weights=zeros(size),
            covariance=zeros(size, size) + COVARIANCE * torch.eye(size, dtype=exact, device=device),
            profile=zeros(max(self.season, 1)),
            place=zeros(views, 2),
            codes=zeros(views, CODES),
            ages=zeros(views, CODES),
            counts=zeros(OCTAVES * FINE),
        )

    def finished(self) -> AnomalyScore:
        """Arrays stay float64: weights that are learned need its digits."""
        return self.on(self.device or torch.device("cpu"))

    def on(self, device: torch.device) -> AnomalyScore:
        """The same with arrays on a device."""
        place = state_dtype(device), device
        return replace(self, system=read_only(self.system, *place), steady=read_only(self.steady, *place))


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
    x = torch.where(present, x, 0.0)
    started = s.clock[..., 1] > 0
    origin = torch.where(started, s.level[..., 0], x)
    u = x - origin
    forecast = forecast_of(part, s)
    error = torch.where(started, u - forecast.expected, 0.0)
    limit = ABSURD[0] * s.errors[..., 0] + ABSURD[1] * s.place[..., 0, 1]
    limit = torch.where((limit > 0) & (s.clock[..., 1] > SETTLED), limit, torch.inf)
    trusted = u - error + error.minimum(limit).maximum(-limit)  # a value of absurd size is cut before it is learned
    p_value, after = _judged(part, s, Sample(origin, u, trusted, error, started), forecast)
    # Where a value is missing only time passes, and the profile takes what was expected.
    after = Learned(*(torch.where(_like(present, new), new, old) for new, old in zip(after, s, strict=True)))
    value = torch.where(present, trusted, torch.where(started, forecast.expected, 0.0))
    clock = torch.stack([s.clock[..., 0] + 1, after.clock[..., 1]], dim=-1)
    after = after._replace(clock=clock, profile=_turned(s, value, part.season))
    score = torch.where(present, 1 - p_value, torch.nan)
    least = torch.where(present, p_value, 1.0).amin(-1) * part.channels
    total = torch.where(present.any(-1), (1 - least).clamp(min=0.0), torch.nan)
    expected = torch.where(started, forecast.expected + origin, torch.nan)
    upper, lower = (s.errors[..., 0] * s.errors[..., side].exp() for side in (1, 2))
    each = torch.stack([score, expected, expected - lower, expected + upper], dim=-1)
    return torch.cat([total[..., None], each.flatten(1)], dim=-1), after


def forecast_of(part: AnomalyScore, s: Learned) -> Forecast:
    """The last value, and a change that is linear in what the memory and the season are relative to it."""
    last, pace = s.level[..., 1], s.level[..., 2]
    unit = torch.where(pace > 0, pace, 1.0)
    in_season = s.clock[..., 0] >= max(part.season, 1)
    differences, now = s.memory - last[..., None] * part.steady, s.profile[..., 0]
    if part.season:
        from_profile = torch.stack([now - s.profile[..., -1], now - last], dim=-1)
        differences = torch.cat([differences, torch.where(in_season[..., None], from_profile, 0.0)], dim=-1)
    changes = (differences / unit[..., None]).clamp(-CLIP, CLIP)
    features = torch.cat([torch.ones_like(changes[..., :1]), changes], dim=-1)
    change = (s.weights * features).sum(-1).clamp(-CLIP, CLIP)
    return Forecast(last + change * unit, features, unit, now, in_season)


def _judged(part: AnomalyScore, s: Learned, sample: Sample, forecast: Forecast) -> tuple[Tensor, Learned]:
    """The p-value of a sample and the state after it, but for time and the profile."""
    origin, u, trusted, error, started = sample
    steps, count = s.clock.unbind(-1)
    _, last, pace, quick = s.level.unbind(-1)
    half_life = SLOWER * part.half_life
    change = torch.where(started, trusted - last, 0.0)
    quick = quick + (1 / count.clamp(min=1.0)).clamp(min=CHANGE_RATE) * (change.abs() - quick)
    calm = torch.where(pace > 0, (quick / forecast.unit).clamp(min=0.01, max=1.0), 1.0).log()
    views = [u, torch.where(forecast.in_season, u - forecast.profile, 0.0), error, calm]
    values = torch.stack([views[view] for view in part.views], dim=-1)
    seasons = (steps - part.season).clamp(min=0.0).minimum(count)
    number = torch.stack([seasons if view == 1 else count for view in part.views], dim=-1)
    rounding = 1e-9 * (origin.abs() + s.place[..., 0, 1])
    novelty, codes, ages = novel(values, s.codes, s.ages, s.place, rounding[..., None], number <= 0, half_life)
    weights = u.new_tensor([VIEWS[view] for view in part.views])
    most = (novelty * weights * number / (number + YOUNG)).amax(-1)  # a view of few samples says little
    p_value, counts = tail(most, s.counts, half_life)
    slow = (1 / count.clamp(min=1.0)).clamp(min=1 - 0.5 ** (1 / part.half_life))
    clipped = change.abs().minimum(torch.where((pace > 0) & (count > FIRST), LINEAR * pace, torch.inf))
    learned, covariance = _regressed(s, forecast, change / forecast.unit, part.half_life)
    return p_value, s._replace(
        clock=torch.stack([steps, count + 1], dim=-1),
        level=torch.stack([origin, trusted, pace + slow * (clipped - pace), quick], dim=-1),
        errors=torch.where(started[..., None], _errors(s.errors, error, count, part.bounds), s.errors),
        memory=s.memory @ part.system[:, :-1].mT + trusted[..., None] * part.system[:, -1],
        weights=learned,
        covariance=covariance,
        place=placed(s.place, values, number, half_life),
        codes=codes,
        ages=ages,
        counts=counts,
    )


def _turned(s: Learned, value: Tensor, season: int) -> Tensor:
    """The profile from the next phase on, with the value at its end."""
    if not season:
        return s.profile
    steps = s.clock[..., 0]
    rate = torch.where(steps < season, 1.0, (season / (steps + season)).clamp(min=SEASON_RATE))
    now = s.profile[..., 0] + rate * (value - s.profile[..., 0])
    return torch.cat([s.profile[..., 1:], now[..., None]], dim=-1)


def _errors(errors: Tensor, error: Tensor, count: Tensor, bounds: tuple[float, float]) -> Tensor:
    """The next mean error and bounds of the interval: each bound moves so that its share of the errors is beyond it."""
    mean, above, below = errors.unbind(-1)
    size = error.abs().minimum(torch.where((mean > 0) & (count > FIRST), HUBER * mean, torch.inf))
    rate = (1 / count.clamp(min=1.0)).clamp(min=ERROR_RATE)
    low, high = bounds[0], 1 - bounds[1]
    over, under = error > mean * above.exp(), -error > mean * below.exp()
    above = above + BOUND_RATE / high**0.5 * (over.to(mean.dtype) - high)
    below = below + BOUND_RATE / low**0.5 * (under.to(mean.dtype) - low)
    return torch.stack([mean + rate * (size - mean), above, below], dim=-1)


def _regressed(s: Learned, forecast: Forecast, target: Tensor, half_life: float) -> tuple[Tensor, Tensor]:
    """Recursive least squares with forgetting: the next weights and their covariance."""
    features, count, usual = forecast.features, s.clock[..., 1], s.errors[..., 0] / forecast.unit
    limit = torch.where((usual > 0) & (count > FIRST), HUBER * usual, torch.inf)
    wrong = target.clamp(-CLIP, CLIP) - (s.weights * features).sum(-1)
    forget = 0.5 ** (1 / half_life)
    gain = (s.covariance @ features[..., None])[..., 0]
    scale = forget + (gain * features).sum(-1)
    weights = s.weights + gain * (wrong.minimum(limit).maximum(-limit) / scale)[..., None]
    root = gain / scale.sqrt()[..., None]  # products of it are symmetric to the last digit
    covariance = (s.covariance - root[..., :, None] * root[..., None, :]) / forget
    size = covariance.diagonal(dim1=-2, dim2=-1)
    bound = (COVARIANCE / size.clamp(min=COVARIANCE)).sqrt()  # of weights about which nothing is learned
    covariance = covariance * (bound[..., :, None] * bound[..., None, :])
    learns = (count > 1)[..., None]
    return torch.where(learns, weights, s.weights), torch.where(learns[..., None], covariance, s.covariance)


def _like(mask: Tensor, value: Tensor) -> Tensor:
    """A mask (batch, channels) with the axes of a value."""
    return mask.reshape(*mask.shape, *(1,) * (value.dim() - 2))
