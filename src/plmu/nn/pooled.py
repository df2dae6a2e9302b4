"""Forecasts of short series by readouts that many series share, as a layer that steps."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from plmu import folded
from plmu.core.modes import autocasts
from plmu.folded import Folded
from plmu.folded.adaptive import Tables, tables
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
    hidden_inputs,
    pooled,
    real_part,
)
from plmu.nn.folding import exact
from plmu.nn.savable import savable
from plmu.nn.steppable import changed, factory, positive
from plmu.nn.windowed import Ends, WindowedForecast, checked_channels

_SPREAD = 0.5  # standard deviation of the biases of the first hidden layer
_LEAST = 0.05  # added to the standard deviation of an input of the hidden layers


@savable(modules=1)
class PooledForecast(WindowedForecast):
    """The next `horizon` values of each channel, each forecast from its own last `window` values by the same weights.

    A window is divided by its seasonal indices, which are computed from itself: no clock is needed. Each of the members
    takes the last values of the window, adjusted for a season of its own or for none, relative to their mean absolute
    value, or the logarithms of these. Features of them are read out linearly: differences from the last value, and
    the last of a member's hidden layers, which see these or smoothings of them. The output is the mean of the members
    that the sequence is long enough for, weighted by the buffer `shares`; before any is, the last value without its
    season times the season ahead. docs/math.md has the formulas.

    Readouts start at zero, so that the forecast is the last value times the season; hidden layers are drawn from the
    seed. Readouts can be fitted in closed form to the windows of many series: `adjusted` and `members[i].features` give
    the regressors, and `mean` and `scale` of a member standardise the input of its hidden layers. All weights can be
    trained, too.

    Args:
        channels: features of x; each is forecast from itself.
        horizon: number of steps ahead.
        window: number of steps that the forecast depends on.
        members: (lookback, season, log, smooth, hidden, adaptive) of each: the number of steps that it depends on, at
            least 2; the period of the season that is divided out before, 0 for none; whether it is linear in logarithms
            of the values; whether its hidden layers see smoothings at several rates, in place of each change; the sizes
            of its hidden layers; and the power of the errors within the window by which classical forecasts are
            averaged that it starts from, 0 for none. The last three may be left out.
        season: the seasonal period of the forecast before any member is long enough; 0 for none. A window of fewer than
            two seasons and a half, or so, has none; so it is with the members.
        seed: of the hidden layers.
        nonnegative: numbers of channels whose forecasts are at least 0, such as those of counts.
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
        seed: int = 0,
        nonnegative: Sequence[int] = (),
        return_sequences: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = self.channels = positive(channels, "channels")
        self.horizon, self.window = positive(horizon, "horizon"), positive(window, "window")
        self.season = 0 if season == 0 else positive(season, "season")
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise ValueError(f"seed must be an integer from 0 to 2**63 - 1, got {seed!r}")
        self.returns_sequences = return_sequences
        self.nonnegative = checked_channels(nonnegative, self.channels)
        self.output_size = self.horizon * self.channels
        place = factory(device, dtype)
        kinds = _checked(members, self.window)
        self.members = nn.ModuleList(PooledMember(kind, horizon, seed + i, **place) for i, kind in enumerate(kinds))
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
        """Readouts of zero, hidden layers as drawn, equal shares: the forecast is the last value times the season."""
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
        """Forecasts (..., horizon) of windows, without the bound of `nonnegative` channels.

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
        widest = max(member.weight.shape[0] + sum(member.kind.hidden) for member in self.readouts)
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
        hidden = [value for readout in readouts for layer in readout.hidden for value in layer]
        return folded.PooledForecast(
            hidden=torch.cat([exact(value).flatten() for value in hidden] or [torch.zeros(0)]),
            weight=torch.cat([exact(readout.weight) for readout in readouts]),
            shares=exact(self.shares),
            members=tuple(member.kind for member in self.readouts),
            channels=self.channels,
            window=self.window,
            season=self.season,
            nonnegative=self.nonnegative,
        )

    def extra_repr(self) -> str:
        sizes = f"{self.channels}, horizon={self.horizon}, window={self.window}"
        usual = {"season": 0, "seed": 0, "nonnegative": [], "return_sequences": True}
        options = (f", {name}={self.config[name]}" for name, value in usual.items() if self.config[name] != value)
        return sizes + "".join(options)


class PooledMember(nn.Module):
    """A member of `PooledForecast`: its hidden layers, and its readout `weight` (features, horizon).

    Attributes:
        kind: (lookback, season, log, smooth, hidden, adaptive).
        weight: (features, horizon).
        projections: of each hidden layer its weight (inputs, outputs), drawn from the seed.
        biases: of each hidden layer (outputs,), drawn from the seed for the first one, else zero.
        mean: (inputs,), which is subtracted from the inputs of the first hidden layer.
        scale: (inputs,), positive numbers, by which they are divided.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, kind: Member, horizon: int, seed: int = 0, **place: Any) -> None:
        super().__init__()
        self.kind, self.seed = kind, seed
        layers, inputs = kind.layers(horizon), kind.inputs(horizon)
        self.weight = nn.Parameter(torch.empty(kind.features, horizon, **place))
        self.projections = nn.ParameterList(torch.empty(*layer, **place) for layer in layers)
        self.biases = nn.ParameterList(torch.empty(outputs, **place) for _, outputs in layers)
        self.register_buffer("mean", torch.empty(inputs, **place))
        self.register_buffer("scale", torch.empty(inputs, **place))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """A readout of zero, hidden layers drawn from the seed, no standardisation."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.mean)
        nn.init.ones_(self.scale)
        if self.weight.is_meta:
            return
        generator = torch.Generator().manual_seed(self.seed)
        for place, (projection, bias) in enumerate(zip(self.projections, self.biases, strict=True)):
            # The inputs of the first one have a sum of variances of 1, those of the others about 1 each.
            drawn = _drawn(projection, generator)
            projection.copy_(drawn if place == 0 else drawn * math.sqrt(2 / len(projection)))
            bias.copy_(_SPREAD * _drawn(bias, generator) if place == 0 else torch.zeros_like(bias))

    def features(self, values: Tensor, ahead: Tensor) -> Features:
        """The regressors of this member, its last value, and the level.

        The forecast is last + features @ weight, where this product is kept within ±3, or within ±1,000 if the member
        has neither hidden layers nor logarithms; then exp if `log`; times the level; times `ahead` if the member has a
        season. So a weight is fitted to future / ahead / level, or its logarithm if `log`, minus last.

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
    def standardize(self, values: Tensor, ahead: Tensor, each: bool = False) -> None:
        """Set `mean` and `scale` so that over these windows the inputs of the hidden layers have mean 0, and a sum of
        variances of 1; if `each`, about equal ones. Other arguments as of `features`, (windows, ...)."""
        kind, dtype = self.kind, wide_dtype(values.dtype)
        smoothing = bank(kind.lookback, values.device).to(dtype) if kind.smooth else None
        inputs = hidden_inputs(kind, smoothing, changes_of(kind, values.to(dtype)), ahead.to(dtype))
        self.mean.copy_(inputs.mean(0))
        deviation = inputs.std(0, correction=0)
        spread = deviation.square().sum().sqrt().clamp(min=1e-6)
        self.scale.copy_((deviation + _LEAST) * math.sqrt(len(deviation)) if each else spread.expand_as(deviation))

    def readout(self, dtype: torch.dtype) -> Readout:
        """The arrays of the member in this precision, with `mean` and `scale` multiplied out, and its bank."""
        hidden = [(projection.to(dtype), bias.to(dtype))
                  for projection, bias in zip(self.projections, self.biases, strict=True)]  # fmt: skip
        if hidden:
            projection = hidden[0][0] / self.scale.to(dtype)[:, None]
            hidden[0] = (projection, hidden[0][1] - self.mean.to(dtype) @ projection)
        smoothing = bank(self.kind.lookback, self.weight.device).to(dtype) if self.kind.smooth else None
        matrices = None
        if self.kind.adaptive:
            horizon = self.weight.shape[1]
            matrices = Tables(*(m.to(dtype) for m in tables(self.kind.lookback, horizon, self.weight.device)))
        return Readout(hidden, self.weight.to(dtype), smoothing, matrices)

    def extra_repr(self) -> str:
        lookback, season, log, smooth, hidden, power = self.kind
        period = f", season={season}" if season else ""
        layers = f", hidden={hidden}" if hidden else ""
        layers += f", adaptive={power}" if power else ""
        return f"lookback={lookback}" + period + ", log=True" * log + ", smooth=True" * smooth + layers


def _drawn(like: Tensor, generator: torch.Generator) -> Tensor:
    """Normal numbers, in float64 on the CPU: other generators of torch depend on the processor."""
    return torch.randn(like.shape, dtype=torch.float64, generator=generator, device="cpu")


def _checked(members: Sequence[Any], window: int) -> list[Member]:
    """The members, checked."""
    kinds = []
    for number, member in enumerate(members):
        if not isinstance(member, Sequence) or not 3 <= len(member) <= 6:
            raise ValueError(
                "members must be (lookback, season, log, smooth, hidden, adaptive) each, got"
                f" members[{number}]={member!r}"
            )
        lookback = positive(member[0], f"the lookback of members[{number}]")
        if not 2 <= lookback <= window:
            raise ValueError(f"members[{number}] must have a lookback from 2 to the window of {window}, got {lookback}")
        season = _from_zero(member[1], f"the season of members[{number}]")
        for value, name in zip(member[2:4], ("log", "smooth"), strict=False):
            if not isinstance(value, bool):
                raise ValueError(f"{name} of members[{number}] must be True or False, got {value!r}")
        sizes = member[4] if len(member) > 4 else ()
        if not isinstance(sizes, Sequence) or isinstance(sizes, str):
            raise ValueError(f"the hidden layers of members[{number}] must be a list of sizes, got {sizes!r}")
        hidden = [positive(size, f"a hidden layer of members[{number}]") for size in sizes]
        power = _from_zero(member[5], f"adaptive of members[{number}]") if len(member) > 5 else 0
        kinds.append(Member(lookback, season, *member[2:4])._replace(hidden=tuple(hidden), adaptive=power))
    if not kinds:
        raise ValueError("members must have at least one (lookback, season, log, smooth, hidden, adaptive), got none")
    return kinds


def _from_zero(value: Any, name: str) -> int:
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
