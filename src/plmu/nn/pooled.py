"""Forecasts of short series by readouts that many series share, as a layer that steps."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from plmu import folded
from plmu.core.modes import autocasts
from plmu.folded import Folded
from plmu.folded.base import wide_dtype
from plmu.folded.pooled import (
    Adjusted,
    Features,
    Member,
    Readout,
    adjusted,
    bank,
    changes_of,
    features,
    pooled,
    random_inputs,
    real_part,
)
from plmu.nn.folding import exact
from plmu.nn.savable import savable
from plmu.nn.steppable import changed, factory, positive
from plmu.nn.windowed import Ends, WindowedForecast

_SPREAD = 0.5  # standard deviation of the offsets of random features


@savable(modules=1)
class PooledForecast(WindowedForecast):
    """The next `horizon` values of each channel, each forecast from its own last `window` values by the same weights.

    A window is divided by its seasonal indices, which are computed from itself: no clock is needed. Each of the members
    takes the last values of the window, adjusted for a season of its own or for none, relative to their mean absolute
    value, or the logarithms of these. Features of them are read out linearly: differences from the last value, and
    random features of these or of smoothings of them. The output is the mean of the members that the sequence is long
    enough for, weighted by the buffer `shares`; before any is, the last value without its season times the season
    ahead. docs/math.md has the formulas.

    Weights start at zero, so that the forecast is the last value times the season. They can be fitted in closed form to
    the windows of many series: `adjusted` and `members[i].features` give the regressors, and `mean` and
    `scale` of a member standardise the input of its random features. The weights can be trained, too.

    Args:
        channels: features of x; each is forecast from itself.
        horizon: number of steps ahead.
        window: number of steps that the forecast depends on.
        members: (lookback, season, log, smooth) of each: the number of steps that it depends on, at least 2; the
            period of the season that is divided out before, 0 for none; whether it is linear in logarithms of the
            values; and whether its random features see smoothings at several rates, in place of each change.
        season: the seasonal period of the forecast before any member is long enough; 0 for none. A window of fewer than
            two seasons and a half, or so, has none; so it is with the members.
        random: number of random features of each member.
        seed: of the random features.
        return_sequences: False gives the forecast at each sequence's last step alone.
        device: of the weights.
        dtype: of the weights.

    Shape:
        x: (batch, time, channels), in the precision of the weights, or in float64: then all is computed in float64.
            Half precision is computed in float32.
        out: (batch, time, horizon · channels), or (batch, horizon · channels); `out.unflatten(-1, (horizon, channels))`
            has the steps ahead first. NaN while a value in the window is NaN or infinite.
        state: the window (batch, window, channels), and the position (batch, 2), of integers: the number of the next
            step, and how many steps the window has.
    """

    shares: Tensor

    def __init__(
        self,
        channels: int,
        horizon: int,
        window: int,
        members: Sequence[Member],
        *,
        season: int = 0,
        random: int = 0,
        seed: int = 0,
        return_sequences: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = self.channels = positive(channels, "channels")
        self.horizon, self.window = positive(horizon, "horizon"), positive(window, "window")
        self.season = 0 if season == 0 else positive(season, "season")
        self.random = 0 if random == 0 else positive(random, "random")
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise ValueError(f"seed must be an integer from 0 to 2**63 - 1, got {seed!r}")
        self.returns_sequences = return_sequences
        self.output_size = self.horizon * self.channels
        place = factory(device, dtype)
        kinds = _checked(members, self.window)
        sizes = self.horizon, self.random
        self.members = nn.ModuleList(PooledMember(kind, *sizes, seed + i, **place) for i, kind in enumerate(kinds))
        self.register_buffer("shares", torch.ones(len(kinds), **place))

    @property
    def window_size(self) -> int:
        return self.window

    @property
    def lookback(self) -> int:
        """The window, by the name that it has in other forecasts."""
        return self.window

    @property
    def counted(self) -> int:
        return self.window

    @property
    def _like(self) -> Tensor:
        return self.shares

    def reset_parameters(self) -> None:
        """Weights of zero, random features as drawn, equal shares: the forecast is the last value times the season."""
        for member in self.readouts:
            member.reset_parameters()
        nn.init.ones_(self.shares)

    def adjusted(self, windows: Tensor, steps: Tensor, season: int) -> Adjusted:
        """Windows without their season, and the season ahead: (..., window), zero in the padding, and (..., horizon).

        Args:
            windows: (..., window), of one channel; what is in the padding does not matter.
            steps: how many values of each are real, the last ones, (...).
            season: the seasonal period, such as that of a member; 0 or 1 for none.
        """
        return adjusted(real_part(windows, steps), steps, season, self.horizon)

    def read(self, windows: Tensor, steps: Tensor) -> Tensor:
        """Forecasts (..., horizon) of windows.

        Args:
            windows: (..., window), of one channel; what is in the padding does not matter.
            steps: how many values of each are real, the last ones, (...).
        """
        with _exactly(windows):
            exact_windows = windows.to(wide_dtype(windows.dtype))
            dtype = exact_windows.dtype
            members = [(member.kind, member.readout(dtype)) for member in self.readouts]
            return pooled(exact_windows, steps, self.season, self.horizon, members, self.shares.to(dtype))

    def _forecast(self, windows: Tensor, ends: Ends) -> Tensor:
        return self.read(windows, ends.steps[..., None])

    def _elements(self) -> int:
        widest = max(member.weight.shape[0] for member in self.readouts)
        seasons = {self.season, *(member.kind.season for member in self.readouts)}
        return (7 + len(seasons)) * self.window + 3 * widest + (len(self.members) + 3) * self.horizon

    @property
    def readouts(self) -> list[PooledMember]:
        """The members, as a list."""
        return list(self.members)  # type: ignore[arg-type]

    def fold(self) -> Folded:
        if changed(self, "fold"):
            return super().fold()
        readouts = [member.readout(torch.float64) for member in self.readouts]
        projections, offsets, weights = zip(*(map(exact, readout[:3]) for readout in readouts), strict=True)
        return folded.PooledForecast(
            projection=torch.cat(projections),
            offset=torch.stack(offsets),
            weight=torch.cat(weights),
            shares=exact(self.shares),
            members=tuple(member.kind for member in self.readouts),
            channels=self.channels,
            window=self.window,
            season=self.season,
        )

    def extra_repr(self) -> str:
        sizes = f"{self.channels}, horizon={self.horizon}, window={self.window}"
        names = ("season", "random", "seed", "return_sequences")
        usual = (0, 0, 0, True)
        options = (f", {name}={self.config[name]}" for name, value in zip(names, usual, strict=True)
                   if self.config[name] != value)  # fmt: skip
        return sizes + "".join(options)


class PooledMember(nn.Module):
    """A member of `PooledForecast`: its random features, and its readout `weight` (features, horizon).

    Attributes:
        kind: (lookback, season, log, smooth).
        weight: (features, horizon).
        projection: (inputs, random), drawn from the seed.
        bias: (random,), drawn from the seed.
        mean: (inputs,), which is subtracted from the inputs of the projection.
        scale: a positive number, by which they are divided.
    """

    projection: Tensor
    bias: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, kind: Member, horizon: int, random: int, seed: int, **place: Any) -> None:
        super().__init__()
        self.kind, self.seed = kind, seed
        inputs = kind.inputs(horizon)
        self.weight = nn.Parameter(torch.empty(kind.features(random), horizon, **place))
        self.register_buffer("projection", torch.empty(inputs, random, **place))
        self.register_buffer("bias", torch.empty(random, **place))
        self.register_buffer("mean", torch.empty(inputs, **place))
        self.register_buffer("scale", torch.empty((), **place))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A weight of zero, a projection drawn from the seed, no standardisation."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.mean)
        nn.init.ones_(self.scale)
        if self.projection.is_meta:
            return
        # In float64 on the CPU: other generators of torch depend on the processor.
        generator = torch.Generator().manual_seed(self.seed)
        for buffer, deviation in ((self.projection, 1.0), (self.bias, _SPREAD)):
            drawn = torch.randn(buffer.shape, dtype=torch.float64, generator=generator, device="cpu")
            buffer.copy_(deviation * drawn)

    def features(self, values: Tensor, ahead: Tensor) -> Features:
        """The regressors of this member, its last value, and the level.

        The forecast is last + features @ weight, where this product is kept within ±3; then exp if `log`; times the
        level; times `ahead` if the member has a season. So a weight is fitted to future / ahead / level, or its
        logarithm if `log`, minus last.

        Args:
            values: the last `lookback` values of windows, adjusted for the member's season, (..., lookback).
            ahead: the season ahead, as `PooledForecast.adjusted` returns it for the member's season, (..., horizon).

        Returns:
            features (..., features); last (..., 1), relative to the level; level (..., 1), the mean absolute value.
        """
        with _exactly(values):
            values = values.to(wide_dtype(values.dtype))
            return features(self.kind, self.readout(values.dtype), values, ahead.to(values.dtype))

    @torch.no_grad()
    def standardize(self, values: Tensor, ahead: Tensor) -> None:
        """Set `mean` and `scale` so that over these windows the inputs of the projection have mean 0, and a sum of
        variances of 1; arguments as of `features`, (windows, ...)."""
        kind, dtype = self.kind, wide_dtype(values.dtype)
        smoothing = bank(kind.lookback, values.device).to(dtype) if kind.smooth else None
        inputs = random_inputs(kind, smoothing, changes_of(kind, values.to(dtype)), ahead.to(dtype))
        self.mean.copy_(inputs.mean(0))
        self.scale.copy_(inputs.var(0, correction=0).sum().sqrt().clamp(min=1e-6))

    def readout(self, dtype: torch.dtype) -> Readout:
        """The arrays of the member in this precision, with `mean` and `scale` multiplied out, and its bank."""
        weight, projection, bias, mean, scale = (
            value.to(dtype) for value in (self.weight, self.projection, self.bias, self.mean, self.scale)
        )
        projection = projection / scale
        smoothing = bank(self.kind.lookback, weight.device).to(dtype) if self.kind.smooth else None
        return Readout(projection, bias - mean @ projection, weight, smoothing)

    def extra_repr(self) -> str:
        lookback, season, log, smooth = self.kind
        period = f", season={season}" if season else ""
        return f"lookback={lookback}" + period + ", log=True" * log + ", smooth=True" * smooth


def _checked(members: Sequence[Any], window: int) -> list[Member]:
    """The members, checked."""
    kinds = []
    for number, member in enumerate(members):
        if not isinstance(member, Sequence) or len(member) != 4:
            raise ValueError(f"members must be (lookback, season, log, smooth) each, got members[{number}]={member!r}")
        lookback = positive(member[0], f"the lookback of members[{number}]")
        if not 2 <= lookback <= window:
            raise ValueError(f"members[{number}] must have a lookback from 2 to the window of {window}, got {lookback}")
        for value, name in zip(member[2:], ("log", "smooth"), strict=True):
            if not isinstance(value, bool):
                raise ValueError(f"{name} of members[{number}] must be True or False, got {value!r}")
        kinds.append(Member(lookback, _period(member[1], f"the season of members[{number}]"), *member[2:]))
    if not kinds:
        raise ValueError("members must have at least one (lookback, season, log, smooth), got none")
    return kinds


def _period(value: Any, name: str) -> int:
    """The value as an int; raises, naming the option, unless it is an integer of at least 0."""
    try:
        period = operator.index(value)
    except TypeError:
        period = -1
    if isinstance(value, bool) or period < 0:
        raise ValueError(f"{name} must be an integer of at least 0, got {value!r}")
    return period


def _exactly(like: Tensor) -> AbstractContextManager[Any]:
    """A context without autocast on the device of a tensor."""
    return torch.autocast(like.device.type, enabled=False) if autocasts(like.device) else nullcontext()
