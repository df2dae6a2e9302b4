"""`PooledForecast` against its formula in plain loops, and with itself: whole, in pieces, with lengths and resets, in
steps."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from closeness import assert_same, within
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import plmu
from plmu.folded.pooled import bank
from plmu.nn import PooledForecast
from plmu.nn.pooled import Member
from plmu.runtime.state_tree import leaves

EPS = torch.finfo(torch.float64).eps
# Sums of some 1,000 products, and quotients by numbers as small as 0.002 and 0.05.
TOLERANCE = 1e4 * EPS


def every(season: int, *hidden: int) -> list[Member]:
    """Members of every kind, some with this season, with hidden layers of these sizes."""
    plain = [(2, 0, False, False), (5, season, False, False), (9, season, True, False), (4, 0, True, False)]
    plain += [(15, 0, False, False), (12, 0, False, True), (10, season, True, True)]
    return [Member(*member, hidden) for member in plain]


def several(*hidden: int) -> list[Member]:
    """Members with seasons of their own."""
    kinds = [(2, 3, False, True), (6, 7, False, False), (3, 0, True, True), (14, 7, True, True), (4, 3, True, False)]
    return [Member(*kind, hidden) for kind in kinds]


MIXED = [Member(3, 4, False, True), Member(9, 4, True, False, (3, 5, 2)), Member(7, 0, False, False, (4,))]
CLASSICAL = [Member(9, 0, False, adaptive=3), Member(12, 4, True, True, (3,), 8), Member(5, 0, True, adaptive=2)]
CLASSICAL += [Member(4, 0, False, adaptive=1), Member(2, 4, False, adaptive=1)]
CASES: dict[str, dict[str, Any]] = {
    "no season": {"window": 15, "members": every(0, 3)},
    "even": {"window": 23, "members": every(4, 7), "season": 4},
    "odd": {"window": 24, "members": every(5, 2), "season": 5},
    "two": {"window": 15, "members": every(2, 1), "season": 2},
    "window too short for the season": {"window": 15, "members": every(8, 4), "season": 8},
    "of one step": {"window": 15, "members": every(1), "season": 1},
    "several seasons": {"window": 29, "members": several(6), "season": 4},
    "one season too long": {"window": 15, "members": several(6), "season": 3},
    "seasons of members alone": {"window": 24, "members": several(3)},
    "layers of several sizes": {"window": 20, "members": MIXED, "season": 4},
    "without hidden layers": {"window": 31, "members": [(3, 12, False, False), (12, 12, True, True)], "season": 12},
    "classical forecasts": {"window": 21, "members": CLASSICAL, "season": 4},
    "one long member": {"window": 19, "members": [(19, 3, False, False, [5])], "season": 3},
}


def build(name: str = "even", channels: int = 2, horizon: int = 6, **options: Any) -> PooledForecast:
    """A layer with no weight, mean or share at its start."""
    layer = PooledForecast(channels, horizon, **{**CASES[name], **options}).double()
    torch.manual_seed(3)
    with torch.no_grad():
        for member in layer.members:
            member.weight.normal_(0, 0.2)
            member.mean.normal_(0, 0.3)
            member.scale.uniform_(1, 2)
            for bias in member.biases:  # a ReLU of 0 has no derivative
                bias.normal_(0, 0.5)
        layer.shares.uniform_(0.5, 2)
    return layer


def series(batch: int, time: int, channels: int = 2, season: int = 4) -> Tensor:
    """Positive, with a season that differs from channel to channel."""
    torch.manual_seed(4)
    at = torch.arange(time, dtype=torch.float64)[None, :, None]
    phases = torch.rand(batch, 1, channels, dtype=torch.float64) * 7
    wave = 1 + 0.5 * torch.sin(2 * math.pi * at / season + phases)
    return (3 + 0.02 * at) * wave + 0.3 * torch.rand(batch, time, channels, dtype=torch.float64)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def clipped(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def indices_of(x: list[float], window: int, season: int) -> list[float]:
    """The index of each phase p, of the steps p before the last, modulo the season. `x` are the real values alone."""
    none, size, half = [1.0] * season, len(x), season // 2
    ratios: list[tuple[int, float]] = []
    for j in range(half, size - half):
        around = x[j - half : j + half + 1]
        weights = [1.0] * len(around)
        if season % 2 == 0:
            weights[0] = weights[-1] = 0.5
        average = sum(w * v for w, v in zip(weights, around, strict=True)) / season
        ratio = x[j] / average if average > 0.05 * mean([abs(v) for v in x]) else 1.0
        ratios.append(((size - 1 - j) % season, clipped(ratio, 0, 4)))
    groups = [[ratio for phase, ratio in ratios if phase == p] for p in range(season)]
    spare = len(ratios) - season
    if not all(groups) or spare < season / 2:
        return none
    scale = mean([mean(group) for group in groups])
    means = [mean(group) / scale for group in groups]
    within_phases = sum((ratio / scale - means[phase]) ** 2 for phase, ratio in ratios)
    between = sum((means[phase] - 1) ** 2 for phase, _ in ratios) / (season - 1)
    f = between / (within_phases / max(spare, 1) + 1e-12)
    shrink = clipped(1 - 1 / max(f, 1e-9), 0, 1)
    return [max(1 + shrink * (value - 1), 0.05) for value in means]


def adjusted_of(x: list[float], window: int, season: int, horizon: int) -> tuple[list[float], list[float]]:
    """The values without their season, and the season ahead."""
    indices = indices_of(x, window, season) if season > 1 else [1.0]
    period = len(indices)
    without = [value / indices[(len(x) - 1 - j) % period] for j, value in enumerate(x)]
    return without, [indices[-k % period] for k in range(1, horizon + 1)]


def smoothings(changes: list[float]) -> list[float]:
    """Changes (the first one first), smoothed at six rates, then twice at these; and the last three."""
    values = [*changes, 0.0]
    out = []
    for twice in (False, True):
        for rate in (0.1, 0.2, 0.35, 0.5, 0.7, 0.85):
            weights = [(1 - rate) ** age * (age + 1 if twice else 1) for age in reversed(range(len(values)))]
            out.append(sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights))
    return out + changes[-3:]


def smoothing(values: list[float], rate: float, slope: float, horizon: int) -> list[float]:
    """Exponential smoothing that begins with the first value, and goes on with a share of the slope of the line through
    the values. The smoothed level is that of an earlier time: the line leads from there."""
    level, time = values[0], 0.0
    for step, value in enumerate(values):
        level, time = level + rate * (value - level), time + rate * (step - time)
    middle, rows = (len(values) - 1) / 2, range(len(values))
    line = sum((row - middle) * value for row, value in zip(rows, values, strict=True))
    line /= sum((row - middle) ** 2 for row in rows)
    return [level + slope * line * (len(values) - 1 + step - time) for step in range(1, horizon + 1)]


def classical_mean(values: list[float], power: int, pace: float, horizon: int) -> list[float]:
    """Forecasts relative to the last value: of several, by the power of their errors at the last six origins."""
    weights, forecasts = [], []
    for rate in (0.2, 0.4, 0.6, 0.8, 1.0):
        for slope in (0.0, 0.5, 1.0):
            errors = []
            for back in range(1, min(6, len(values) - 4) + 1):
                past, later = values[:-back], values[-back:][:horizon]
                errors += [abs(a - b) for a, b in zip(smoothing(past, rate, slope, len(later)), later, strict=True)]
            weights.append((mean(errors) / pace + 0.02 if errors else 1.0) ** -power)
            forecasts.append(smoothing(values, rate, slope, horizon))
    return [sum(w * f[k] for w, f in zip(weights, forecasts, strict=True)) / sum(weights) - values[-1]
            for k in range(horizon)]  # fmt: skip


def by_formula(layer: PooledForecast, x: list[float]) -> list[float]:
    """The forecast of one series, of which these are the values in the window."""
    if not all(math.isfinite(value) for value in x):
        return [math.nan] * layer.horizon
    total, out = 0.0, [0.0] * layer.horizon
    for member, share in zip(layer.members, layer.shares.tolist(), strict=True):
        lookback, season, log, smooth, _, power = member.kind
        if lookback > len(x):
            continue
        without, ahead = adjusted_of(x, layer.window, season, layer.horizon)
        values = without[-lookback:]
        level = mean([abs(value) for value in values])
        v = [value / max(level, 1e-30) for value in values]
        v = [math.log(max(value, 0.01)) for value in v] if log else v
        changes = [value - v[-1] for value in v[:-1]]
        pace = mean([abs(b - a) for a, b in pairwise(v)]) + 2e-3
        paced = [clipped(change / pace, -8, 8) for change in changes]
        shown = smoothings(changes) if smooth else changes
        z = [clipped(value / pace, -8, 8) / 3 for value in shown] + [math.log(pace) / 2]
        z += [3 * clipped(value, -2, 2) for value in shown] + [value - 1 for value in ahead if season > 1]
        z = [(a - b) / c for a, b, c in zip(z, member.mean.tolist(), member.scale.tolist(), strict=True)]
        for projection, bias in zip(member.projections, member.biases, strict=True):
            sums = [sum(a * b for a, b in zip(z, column, strict=True)) for column in projection.t().tolist()]
            z = [max(a + b, 0.0) for a, b in zip(sums, bias.tolist(), strict=True)]
        hidden = z if len(member.projections) else []
        features = [1.0, *changes, *(0.3 * pace * a for a in paced), pace, *(pace * a for a in hidden)]
        weight = member.weight.tolist()
        base = classical_mean(v, power, pace, layer.horizon) if power else [0.0] * layer.horizon
        limit = 3 if log or hidden else 1000
        for k in range(layer.horizon):
            change = base[k] + sum(a * row[k] for a, row in zip(features, weight, strict=True))
            forecast = v[-1] + clipped(change, -limit, limit)
            forecast = level * (math.exp(forecast) if log else forecast)
            out[k] += share * forecast * ahead[k]
        total += share
    without, ahead = adjusted_of(x, layer.window, layer.season, layer.horizon)
    return [a / total for a in out] if total else [without[-1] * a for a in ahead]


def expected_of(layer: PooledForecast, x: Tensor) -> Tensor:
    """The forecasts (time, horizon, channels) after each step of a sequence (time, channels)."""
    rows = []
    for t in range(x.shape[0]):
        windows = x[max(0, t + 1 - layer.window) : t + 1].t().tolist()
        rows.append([by_formula(layer, window) for window in windows])
    return torch.tensor(rows, dtype=torch.float64).mT


@pytest.mark.parametrize("name", CASES)
def test_forecasts_follow_the_formula(name: str) -> None:
    layer = build(name)
    layer = layer.float() if name == "odd" else layer  # float64 input is computed in float64 by float32 weights, too
    x = series(1, layer.window + 6, season=max(layer.season, 2))
    x[0, :, 1] -= 3  # some are negative
    out, _ = layer(x)
    assert out.dtype == torch.float64
    expected = expected_of(layer, x[0])
    error = (out[0].detach().unflatten(-1, (layer.horizon, 2)) - expected).abs().max()
    within(error, TOLERANCE * expected.abs().max())


@pytest.mark.parametrize("season", [2, 3, 4, 7, 12])
def test_seasonal_indices_of_short_and_long_windows(season: int) -> None:
    """At each length, so that some have too few ratios; with values at and below zero, and with no season at all."""
    layer = PooledForecast(1, 2 * season + 1, 4 * season + 1, [(2, 0, False, False)])
    noise = torch.randn(4 * season + 1, 1, dtype=torch.float64)
    for x in (series(1, 4 * season + 1, 1, season)[0], noise, noise.relu(), noise - 2):
        for steps in range(1, len(x) + 1):
            indices = indices_of(x[:steps, 0].tolist(), layer.window, season)
            window = torch.full((layer.window,), math.nan, dtype=torch.float64)
            window[-steps:] = x[:steps, 0]
            without, ahead = layer.adjusted(window, torch.tensor(steps), season)
            expected = torch.tensor([indices[-k % season] for k in range(1, layer.horizon + 1)], dtype=torch.float64)
            within((ahead - expected).abs().max(), TOLERANCE)
            past = torch.tensor([indices[k % season] for k in reversed(range(steps))], dtype=torch.float64)
            within((without[-steps:] * past - x[:steps, 0]).abs().max(), TOLERANCE)
            assert not without[:-steps].any()


def test_a_season_is_in_the_forecast() -> None:
    """Weights of zero continue a series that is nothing but a season."""
    layer = PooledForecast(1, 7, 21, [(4, 4, False, False), (5, 4, True, True)], season=4).double()
    x = torch.tensor([1.0, 2.0, 5.0, 4.0], dtype=torch.float64).repeat(10)[None, :, None]
    out, _ = layer(x)
    following = x[0, :, 0].unfold(0, 8, 1)[:, 1:]
    torch.testing.assert_close(out[0, 20:33].detach(), following[20:33], rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", ["even", "several seasons", "classical forecasts"])
def test_regressors_give_the_forecasts(name: str) -> None:
    """What a fit reads of the layer: adjusted windows, the season ahead, features, last values and levels."""
    layer = build(name)
    windows, steps = (
        series(7, layer.window, 1)[..., 0],
        torch.tensor([23, 20, 16, 15, 14, 9, 8]).clamp(max=layer.window),
    )
    total, out = torch.zeros(7, 1, dtype=torch.float64), torch.zeros(7, 6, dtype=torch.float64)
    for member, share in zip(layer.members, layer.shares, strict=True):
        lookback, season, log, *_ = member.kind
        without, ahead = layer.adjusted(windows, steps, season)
        features, last, level, base = member.features(without[:, -lookback:], ahead)
        assert features.shape == (7, member.weight.shape[0])
        forecast = last + (base + features @ member.weight).clamp(-3, 3)
        forecast = level * (forecast.exp() if log else forecast)
        mask = (steps >= lookback)[:, None]
        out = out + torch.where(mask, share * forecast * ahead, 0.0)
        total = total + torch.where(mask, share, 0.0)
    torch.testing.assert_close(out / total, layer.read(windows, steps))


@pytest.mark.parametrize(
    "name", ["no season", "even", "odd", "window too short for the season", "several seasons", "classical forecasts"]
)
def test_whole_pieces_steps_a_stream_and_sessions_agree(name: str) -> None:
    layer = build(name)
    x = series(2, layer.window + 17)
    whole, end = layer(x)
    first, state = layer(x[:, :11])
    second, state = layer(x[:, 11:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    stepped, stepped_state = [], None
    for x_t in x.unbind(1):
        out, stepped_state = layer.step(x_t, stepped_state)
        stepped.append(out)
    torch.testing.assert_close(torch.stack(stepped, dim=1), whole)
    for part, other, third in zip(end, state, stepped_state, strict=True):
        assert torch.equal(part, other)
        assert torch.equal(part, third)
    assert end[1].tolist() == [[layer.window + 17, layer.window]] * 2
    stream, folded = plmu.Stream(layer), plmu.fold(layer)
    torch.testing.assert_close(torch.stack([stream.push(x_t) for x_t in x.unbind(1)], dim=1), whole)
    torch.testing.assert_close(folded.step(x[:, 11], layer(x[:, :11])[1])[0], whole[:, 11])
    sessions = plmu.Sessions(layer, width=4)
    late, early = sessions.add(), sessions.add()
    for t in range(layer.window):
        out = sessions.push({early: x[1, t]} | ({late: x[0, t - 5]} if t >= 5 else {}))
        torch.testing.assert_close(torch.as_tensor(out[early]), whole[1, t].detach())
        if t >= 5:
            torch.testing.assert_close(torch.as_tensor(out[late]), whole[0, t - 5].detach())


def test_lengths_and_resets() -> None:
    layer = build()
    x = series(3, 40)
    before = layer(series(3, 5))[1]
    padded = x.clone()
    padded[1, 27:] = math.nan
    padded[2] = math.nan
    for start in (None, before):
        out, state = layer(padded, start, lengths=[40, 27, 0])
        alone = None if start is None else tuple(part[1:2] for part in start)
        expected, end = layer(x[1:2, :27], alone)
        torch.testing.assert_close(out[1:2, :27], expected)
        assert not out[1, 27:].any()
        assert not out[2].any()
        kept = layer.initial_state(3, x.dtype, x.device) if start is None else start
        for part, other, unchanged in zip(state, end, kept, strict=True):
            assert torch.equal(part[1:2], other)
            assert torch.equal(part[2], unchanged[2])
    resets = torch.zeros(3, 40, dtype=torch.bool)
    resets[:, 9] = True
    resets[1, 30] = True
    out, state = layer(x, before, resets=resets)
    torch.testing.assert_close(out[:, :9], layer(x[:, :9], before)[0])
    for row, first in ((0, 9), (1, 30)):
        expected, end = layer(x[row : row + 1, first:])
        torch.testing.assert_close(out[row, first:], expected[0])
        for part, other in zip(state, end, strict=True):
            assert torch.equal(part[row], other[0])


def test_only_the_last_forecast() -> None:
    layer, last = build(), build(return_sequences=False)
    x = series(2, 30)
    whole, _ = layer(x, lengths=[30, 6])
    torch.testing.assert_close(last(x, lengths=[30, 6])[0], torch.stack([whole[0, 29], whole[1, 5]]))
    torch.testing.assert_close(last(x)[0], layer(x)[0][:, -1])


@pytest.mark.parametrize("log", [False, True])
def test_forecast_changes_are_bounded(log: bool) -> None:
    """To three levels, or to a factor of e³. A smaller change stays, and so does NaN."""
    layer = PooledForecast(1, 3, 6, [(4, 0, log, True, (2,))]).double()
    with torch.no_grad():
        layer.members[0].weight[0] = torch.tensor([1e6, -1e6, 0.5])  # the feature 1
    x = torch.tensor([2.0, 3.0, 1.0, 2.0], dtype=torch.float64)
    out = layer.read(torch.cat([x.new_zeros(2), x]), torch.tensor(4))
    change = torch.tensor([3.0, -3.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(out, x[-1] * change.exp() if log else x[-1] + x.mean() * change)
    for step in (layer.step, plmu.fold(layer).step):
        state = layer(x[None, :-1, None])[1]
        torch.testing.assert_close(step(x[-1:, None], state)[0], out[None])
    expected = by_formula(layer, x.tolist())
    within(max(abs(a - b) for a, b in zip(out.tolist(), expected, strict=True)), TOLERANCE * max(expected))
    with torch.no_grad():
        layer.members[0].weight[0, 1] = math.nan
    assert layer.read(torch.cat([x.new_zeros(2), x]), torch.tensor(4)).isnan().tolist() == [False, True, False]


def test_smoothed_changes_are_bounded() -> None:
    """In mean absolute changes, which a long ramp exceeds; and in levels, which a series that ends in a spike does."""
    layer = build(channels=1, window=80, season=0, members=[(80, 0, False, True, (9,)), (12, 0, False, True, (9,))])
    ramp = [float(t) for t in range(80)]
    spike = [1.0] * 68 + [0.01 * t for t in range(11)] + [3.0]
    for x, bound in ((ramp, 8), (spike, 2)):
        kind = layer.members[0 if bound == 8 else 1].kind
        values = torch.tensor(x[-kind.lookback :], dtype=torch.float64)
        shown = torch.tensor(smoothings((values[:-1] - values[-1]).tolist()), dtype=torch.float64)
        relative = shown / values.diff().abs().mean() if bound == 8 else shown / values.abs().mean()
        assert relative.abs().max() > 1.2 * bound
        expected = torch.tensor(by_formula(layer, x), dtype=torch.float64)
        out = layer.read(torch.tensor(x, dtype=torch.float64), torch.tensor(80))
        within((out - expected).abs().max().detach(), TOLERANCE * expected.abs().max())


@pytest.mark.parametrize("lookback", [2, 3, 5, 400])
def test_the_bank_smooths(lookback: int) -> None:
    changes = torch.randn(lookback - 1, dtype=torch.float64)
    matrix = bank(lookback)
    expected = torch.tensor(smoothings(changes.tolist()), dtype=torch.float64)
    within((changes @ matrix - expected).abs().max(), 4 * lookback * EPS * changes.abs().max())
    kind = Member(lookback, 4, False, True)
    assert matrix.shape == (lookback - 1, kind.width)
    assert kind.inputs(5) == 2 * kind.width + 1 + 5
    assert not ((matrix > 0) & (matrix < torch.finfo(torch.float32).tiny)).any()


def test_seasonal_indices_are_computed_once_for_each_period(monkeypatch: pytest.MonkeyPatch) -> None:
    periods: list[int] = []
    original = plmu.folded.pooled.seasonal_indices
    monkeypatch.setattr("plmu.folded.pooled.seasonal_indices", lambda *a: periods.append(a[2]) or original(*a))
    build("several seasons").read(series(1, 29, 1)[0, :, 0], torch.tensor(29))
    assert periods == [4, 3, 7]


def test_a_state_begins_at_a_preset_number() -> None:
    layer, x = build(), series(1, 30)
    out, (_, position) = layer(x, layer.state_at(100, torch.float64))
    assert torch.equal(out, layer(x)[0])
    assert position.tolist() == [[130, 23]]


def test_long_sequences_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows are gathered for few steps at a time, which changes nothing."""
    layer, x = build(), series(2, 50)
    whole, _ = layer(x)
    sizes = []
    read = PooledForecast.read
    monkeypatch.setattr("plmu.nn.windowed._LARGEST", 8 * 2 * 2 * layer._elements())
    monkeypatch.setattr(PooledForecast, "read", lambda self, *a: sizes.append(a[0].shape[1]) or read(self, *a))
    torch.testing.assert_close(layer(x)[0], whole)
    assert sizes == [8, 8, 8, 8, 8, 8, 2]


@pytest.mark.parametrize("name", ["even", "no season"])
def test_series_of_zeros_and_constants(name: str) -> None:
    layer = build(name)
    zeros, _ = layer(torch.zeros(1, 40, 2, dtype=torch.float64))
    assert not zeros.any()
    x = torch.full((1, 40, 2), -2.5, dtype=torch.float64)
    expected = expected_of(layer, x[0])
    within((layer(x)[0][0].unflatten(-1, (6, 2)) - expected).abs().max().detach(), TOLERANCE * expected.abs().max())
    fresh = PooledForecast(2, 6, **CASES[name]).double()
    torch.testing.assert_close(fresh(-x)[0][:, :, :2].detach(), -x, rtol=40 * EPS, atol=0)


@pytest.mark.parametrize("name", ["even", "no season"])
def test_nan_stays_until_it_has_passed(name: str) -> None:
    """Also where it is older than every lookback, and where a clamp or a comparison would hide it."""
    layer = build(name, members=[(2, 4, True, False), (4, 0, False, False), (5, 3, False, True)])
    window = layer.window
    for bad in (math.nan, math.inf, -math.inf):
        for first in (0, 6):
            x = series(1, 2 * window + 8)
            clean, _ = layer(x)
            x[0, first, 0] = bad
            out = layer(x)[0].unflatten(-1, (6, 2))
            clean = clean.unflatten(-1, (6, 2))
            assert out[0, first : first + window, :, 0].isnan().all()
            torch.testing.assert_close(out[0, :first], clean[0, :first])
            torch.testing.assert_close(out[0, first + window :], clean[0, first + window :])
            torch.testing.assert_close(out[..., 1], clean[..., 1])
            stepped, state = [], None
            for x_t in x.unbind(1):
                y, state = plmu.fold(layer).step(x_t, state) if name == "even" else layer.step(x_t, state)
                stepped.append(y)
            torch.testing.assert_close(torch.stack(stepped, 1).unflatten(-1, (6, 2)), out, equal_nan=True)


def test_padding_is_never_read() -> None:
    layer = build()
    x = series(1, 20)
    _, (window, position) = layer(x[:, :7])
    poisoned = window.clone()
    poisoned[:, :-7] = math.nan
    out, expected = (layer(x[:, 7:9], (start, position))[0] for start in (poisoned, window))
    assert torch.equal(out, expected)
    for step in (layer.step, plmu.fold(layer).step):
        out, expected = (step(x[:, 7], (start, position))[0] for start in (poisoned, window))
        assert torch.equal(out, expected)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e12])
def test_scaled_series_have_scaled_forecasts(scale: float) -> None:
    for name in ("even", "no season"):
        layer, x = build(name), series(1, 40)
        expected = layer(x)[0]
        error = (layer(scale * x)[0] / scale - expected).abs().max().detach()
        within(error, TOLERANCE * expected.abs().max().detach())


@pytest.mark.parametrize("name", ["no season", "even"])
def test_values_at_a_large_offset_keep_their_digits(name: str) -> None:
    """Forecasts without logarithms are relative to the last value: at an offset of 1e12 with changes that are integers,
    differences are exact. Such a series has no season."""
    hidden = (CASES[name]["members"][0].hidden,)
    options = {"members": [(2, 0, False, False, *hidden), (5, 4, False, False, *hidden), (9, 0, False, True, *hidden)]}
    layer = build(name, horizon=3, **options)
    changes = torch.randint(-20, 20, (1, 40, 2)).double()
    x = 1e12 + changes
    out = layer(x)[0]
    # The same by fractions of 1e12: changes / level, whose pace is far below the constant that is added to it.
    pace = 2e-3
    readouts = [member.readout(torch.float64) for member in layer.members]
    out = out.unflatten(-1, (3, 2))
    expected = torch.zeros_like(out)
    for member, readout, share in zip(layer.members, readouts, layer.shares, strict=True):
        lookback = member.kind.lookback
        windows = changes[0].unfold(0, lookback, 1)  # (windows, channels, lookback)
        level = 1e12 + windows.mean(-1, keepdim=True)
        v = (windows[..., :-1] - windows[..., -1:]) / level
        steps = (windows.diff(dim=-1) / level).abs().mean(-1, keepdim=True) + pace
        shown = v if readout.bank is None else v @ readout.bank
        z = torch.cat([shown / steps / 3, steps.log() / 2, 3 * shown], -1)
        projection, bias = readout.hidden[0]
        if projection.shape[0] > z.shape[-1]:
            z = torch.cat([z, torch.zeros(*z.shape[:-1], 3, dtype=torch.float64)], -1)
        hidden = torch.relu(z @ projection + bias)
        features = torch.cat([torch.ones_like(steps), v, 0.3 * v, steps, steps * hidden], -1)
        forecast = level * (features @ readout.weight)
        expected[0, lookback - 1 :] += share * forecast.mT
    expected = expected[:, 8:] / layer.shares.sum()
    off = (out[:, 8:] - x[:, 8:, None]) - expected
    within(off.abs().max().detach(), 16 * EPS * 1e12)


def test_gradients() -> None:
    members = [(3, 4, False, False, (2,)), (5, 0, True, False, (3, 2)), (6, 3, True, True)]
    layer = build(channels=1, horizon=2, window=13, members=members)
    x = series(1, 16, 1).requires_grad_()
    parameters = [x, *layer.parameters()]
    assert torch.autograd.gradcheck(lambda *_: layer(x)[0], parameters)
    zeros = torch.zeros(1, 16, 1, dtype=torch.float64, requires_grad=True)
    layer(zeros)[0].sum().backward()
    assert zeros.grad is not None
    assert zeros.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_other_precisions(dtype: torch.dtype) -> None:
    """Half precision is computed in float32; the state is float32."""
    layer = build().to(dtype)
    x = series(2, 40).to(dtype)
    out, (window, _) = layer(x)
    assert out.dtype == dtype
    assert window.dtype == torch.float32
    expected, _ = layer.double()(x.double())
    # Float32 sums of some 100 products, with quotients by small numbers; then one rounding to the output's precision.
    bound = (torch.finfo(dtype).eps + 500 * torch.finfo(torch.float32).eps) * expected.abs().max().detach()
    within((out.double() - expected).abs().max().detach(), bound)


def test_autocast_changes_the_outputs_precision_alone() -> None:
    layer = build().float()
    x = series(2, 30).float()
    expected, _ = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _ = layer(x)
        stepped, _ = layer.step(x[:, 0])
    assert torch.equal(out, expected.bfloat16())
    assert stepped.dtype == torch.bfloat16


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    layer = build().float()
    model = plmu.Sequential(plmu.Standardize(2), layer)
    plmu.save(model, tmp_path / "model.plmu")
    loaded = plmu.load(tmp_path / "model.plmu")
    x = torch.randn(1, 40, 2)
    assert torch.equal(loaded(x)[0], model(x)[0])
    assert loaded[1].config == layer.config
    assert layer.config["members"] == [[*member[:4], [7], 0] for member in every(4)]
    assert {".".join(name.split(".")[2:]) or name for name in layer.state_dict()} == {
        "weight", "projections.0", "biases.0", "mean", "scale", "shares"
    }  # fmt: skip


def test_members_of_three_parts_are_saved(path: Path) -> None:
    layer = PooledForecast(1, 3, 8, [(4, 0, False), (8, 0, True, True), (5, 0, False, False, (3,))])
    plmu.save(layer, path)
    x = torch.randn(1, 12, 1)
    assert torch.equal(plmu.load(path)(x)[0], layer(x)[0])


def test_the_folded_form_has_named_arrays() -> None:
    layer = build()
    folded = plmu.fold(layer)
    assert set(folded.arrays()) == {"hidden", "weight", "shares"}
    x = series(2, 30).float()
    state = None
    for t, x_t in enumerate(x.unbind(1)):
        out, state = folded.step(x_t, state)
        assert out.dtype == torch.float32
        if t in (3, 29):
            assert_same(out, layer(x[:, : t + 1].double())[0][:, -1].detach(), 50_000)
    assert [leaf.dtype for leaf in leaves(state)] == [torch.float32, torch.int64]


def test_hidden_layers_come_from_the_seed() -> None:
    layer, same, other = (build(seed=seed) for seed in (1, 1, 2))
    for ours, theirs, others in zip(layer.members, same.members, other.members, strict=True):
        assert torch.equal(ours.projections[0], theirs.projections[0])
        assert not torch.equal(ours.projections[0], others.projections[0])
    first, second = (member.biases[0] for member in list(layer.members)[:2])
    assert not torch.equal(first, second)
    before = torch.get_rng_state()
    PooledForecast(1, 2, 5, [(3, 0, False, True, (4, 3))])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("last", [False, True])
def test_a_batch_without_series(last: bool) -> None:
    layer, x = build(return_sequences=not last), torch.zeros(0, 5, 2, dtype=torch.float64)
    out, state = layer(x)
    assert out.shape == (0, *(() if last else (5,)), 12)
    assert layer(x, state, torch.zeros(0, dtype=torch.int64))[0].shape == out.shape
    assert plmu.fold(layer).step(x[:, 0])[0].shape == layer.step(x[:, 0])[0].shape == (0, 12)


GOOD = Member(3, 2, False, True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"horizon": 0}, "horizon must be an integer of at least 1, got 0"),
        ({"window": 2.5}, "window must be an integer of at least 1"),
        ({"season": -1}, "season must be an integer of at least 1, got -1"),
        ({"members": [(3, 2, True, True, (4, 0))]}, r"a hidden layer of members\[0\] must be .* at least 1, got 0"),
        ({"members": [(3, 2, True, True, 4)]}, r"the hidden layers of members\[0\] must be a list of sizes, got 4"),
        ({"seed": -1}, "seed must be an integer from 0 to"),
        (
            {"members": []},
            r"members must have at least one \(lookback, season, log, smooth, hidden, adaptive\), got none",
        ),
        ({"members": [(3, 2)]}, r"\(lookback, season, log, smooth, hidden, adaptive\) each, got members\[0\]=\(3, 2\)"),
        (
            {"members": [(3, 2, True, False, [], -1)]},
            r"adaptive of members\[0\] must be an integer of at least 0, got -1",
        ),
        ({"members": [3]}, r"\(lookback, season, log, smooth, hidden, adaptive\) each, got members\[0\]=3"),
        ({"members": [GOOD, (1, 0, True, True)]}, r"members\[1\] must have a lookback from 2 to .* 9, got 1"),
        ({"members": [(10, 0, True, True)]}, r"members\[0\] must have a lookback from 2 to .* 9, got 10"),
        ({"members": [("3", 0, True, True)]}, r"lookback of members\[0\] must be an integer of at least 1, got '3'"),
        ({"members": [GOOD, (3, -2, True, True)]}, r"season of members\[1\] must be an integer of at least 0, got -2"),
        ({"members": [(3, True, True, True)]}, r"season of members\[0\] must be an integer of at least 0, got True"),
        ({"members": [(3, 2.0, True, True)]}, r"season of members\[0\] must be an integer of at least 0, got 2.0"),
        ({"members": [(3, 2, 1, True)]}, r"log of members\[0\] must be True or False, got 1"),
        ({"members": [(3, 2, True, None)]}, r"smooth of members\[0\] must be True or False, got None"),
    ],
)
def test_wrong_arguments_are_named(wrong: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"horizon": 2, "window": 9, "members": [GOOD], **wrong}
    with pytest.raises(ValueError, match=message):
        PooledForecast(1, **options)


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
@pytest.mark.filterwarnings("ignore:Converting a tensor to a Python")
def test_it_works_in_the_modes_of_torch() -> None:
    members = [(4, 2, True, False, (2,)), (5, 3, False, True, (3, 2))]
    layer = build(channels=1, horizon=2, window=9, members=members, season=2)
    x = series(2, 12, 1, 2)
    expected = layer(x)[0]
    assert layer.to("meta")(x.to("meta"))[0].shape == expected.shape
    layer = build(channels=1, horizon=2, window=9, members=members, season=2)
    torch.testing.assert_close(torch.func.vmap(lambda row: layer(row[None])[0][0])(x), expected)
    assert torch.func.jacrev(lambda x: layer.step(x)[0])(x[:, 0]).isfinite().all()
    traced = torch.jit.trace(layer, (x,), check_trace=False)
    torch.testing.assert_close(traced(2 * x)[0], layer(2 * x)[0])
    with FakeTensorMode():
        fake = PooledForecast(1, 2, 9, members, season=2)
        assert fake(torch.rand(2, 12, 1))[0].shape == (2, 12, 2)


def test_weights_can_be_made_later() -> None:
    members = [(4, 2, True, True, (3,)), (3, 0, False, False, (2, 4))]
    layer = PooledForecast(1, 2, 9, members, season=2, device="meta")
    layer.to_empty(device="cpu").reset_parameters()
    same = PooledForecast(1, 2, 9, members, season=2)
    assert all(torch.equal(value, same.state_dict()[name]) for name, value in layer.state_dict().items())


def test_its_repr_has_what_matters() -> None:
    text = repr(PooledForecast(1, 2, 9, [(3, 4, False, True, (5, 2)), (4, 0, True)], season=4))
    assert "PooledForecast(\n  1, horizon=2, window=9, season=4" in text
    assert "(0): PooledMember(\n      lookback=3, season=4, smooth=True, hidden=(5, 2)" in text
    assert "(1): PooledMember(\n      lookback=4, log=True\n" in text
