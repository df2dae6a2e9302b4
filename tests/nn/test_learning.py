"""`LearningForecast` against a refit to the same windows, and with itself: whole, in pieces, in steps, as a stream, as
sessions and from files; what it does with odd samples; and the coverage of its intervals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from closeness import assert_same, within
from torch import Tensor

import plmu
from plmu.exports.builder import NotExportable
from plmu.folded.learning import Learned
from plmu.folded.scoring import SLOTS
from plmu.nn import CovariateForecast, LearningForecast, LookbackForecast, PooledForecast
from plmu.nn.pooled import Member
from plmu.nn.steppable import Steppable
from plmu.runtime.state_tree import leaves

EPS = torch.finfo(torch.float64).eps
NEVER = math.inf


def look_back(channels: int = 2, horizon: int = 5, individual: bool = False, **options: Any) -> LookbackForecast:
    torch.manual_seed(3)
    model = LookbackForecast(channels, horizon, 4, 12.0, 12, individual=individual, dtype=torch.float64, **options)
    torch.nn.init.normal_(model.weight, std=0.1)
    if model.season:
        model.season_pattern.copy_(torch.randn(model.season, channels))
    return model


def pooled() -> PooledForecast:
    return PooledForecast(
        2, 4, 12, [Member(6, 0, False, False), Member(12, 3, False, False)], season=3, dtype=torch.float64
    )


def with_covariates() -> CovariateForecast:
    return CovariateForecast(2, 1, 3, 4, 12.0, 12, dtype=torch.float64)


MODELS = {
    "shared": look_back,
    "individual": lambda: look_back(individual=True),
    "season": lambda: look_back(season=6, phase=2),
    "counts": lambda: look_back(nonnegative=[1]),
    "long horizon": lambda: look_back(1, 2 * SLOTS + 3),
    "pooled": pooled,
    "covariates": with_covariates,
}


def series(time: int, channels: int = 2, seed: int = 0) -> Tensor:
    """Values with a season of 6 that changes after half of the time."""
    rng = np.random.default_rng(seed)
    steps = np.arange(time)[:, None]
    wave = np.sin(2 * np.pi * steps / 6 + np.arange(channels)) * np.where(steps < time / 2, 1.0, 2.0)
    return torch.tensor(wave + 0.3 * rng.normal(size=(time, channels)).cumsum(0) * 0.3)


def inputs(model: Any, time: int, batch: int = 2) -> Tensor:
    x = torch.stack([series(time, model.channels, seed) for seed in range(batch)])
    others = model.input_size - model.channels
    return torch.cat([x, torch.randn(batch, time, others, dtype=torch.float64)], dim=-1)


def learned(state: Any) -> Learned:
    memory = state[-1]
    assert isinstance(memory, Learned)
    return memory


@pytest.mark.parametrize("name", MODELS)
def test_whole_pieces_steps_and_folded_agree(name: str) -> None:
    layer = LearningForecast(MODELS[name](), half_life=50)
    x = inputs(layer.model, 2 * SLOTS + 100)
    whole, state = layer(x)
    first, before = layer(x[:, :31])
    second, after = layer(x[:, 31:], before)
    assert_same(torch.cat([first, second], 1), whole)
    stepped, folded = None, plmu.fold(layer)
    state_f = None
    for at in range(x.shape[1]):
        out, stepped = layer.step(x[:, at], stepped)
        out_f, state_f = folded.step(x[:, at], state_f)
        assert_same(out, whole[:, at])
        assert_same(out_f, whole[:, at])
    for parts in zip(leaves(state), leaves(after), leaves(stepped), leaves(state_f), strict=True):
        assert all(torch.equal(part, parts[0]) for part in parts)
    assert bool(learned(state).correction.any())


def test_lengths_and_resets() -> None:
    layer = LearningForecast(look_back())
    x = inputs(layer.model, 60, batch=3)
    resets = torch.zeros(3, 60, dtype=torch.bool)
    resets[1, 20] = True
    out, state = layer(x, lengths=torch.tensor([60, 60, 25]), resets=resets)
    alone, _ = layer(x[1:2, 20:])
    short, after = layer(x[2:3, :25])
    assert_same(out[1:2, 20:], alone)
    assert_same(out[2:3, :25], short)
    assert not bool(out[2, 25:].any())
    for all_rows, row in zip(leaves(state), leaves(after), strict=True):
        assert torch.equal(all_rows[2:3], row)


@pytest.mark.parametrize("name", ["shared", "individual", "season", "pooled"])
@pytest.mark.parametrize("half_life", [NEVER, 40.0])
def test_the_correction_is_a_weighted_ridge_regression_on_all_past_windows(name: str, half_life: float) -> None:
    """Against a plain refit: features and errors of each window whose horizon is known, with their weights."""
    model = MODELS[name]()
    layer = LearningForecast(model, half_life=half_life, prior=2.0, alpha=0.3, reject=NEVER)
    order, readouts = layer.gram.shape[1], len(layer.gram)
    root = torch.randn(readouts, order, order, dtype=torch.float64)
    scale = torch.tensor([0.5, 2.0], dtype=torch.float64)
    layer.start_from(root @ root.mT + torch.eye(order), scale)
    time = 80
    x = inputs(model, time, batch=1)
    _, state = layer(x)
    base, _ = model(x)
    base = base.detach().unflatten(-1, (model.horizon, 2))
    size, horizon = model.window_size, model.horizon
    solved = time // layer.learning.period * layer.learning.period  # the number of samples at the last solution
    features, errors, weights = [], [], []
    for end in range(size, solved - horizon + 1):  # samples up to the window's end
        window = x[:, end - size : end].mT
        number = torch.tensor([end - 1 + model.first_number])
        features.append(layer.features(window, number)[0] / scale[:, None])
        errors.append(((x[0, end : end + horizon] - base[0, end - 1]) / scale).mT)
        weights.append(0.5 ** ((solved - horizon - end) / half_life))
    phi, r, w = torch.stack(features, 1), torch.stack(errors, 1), torch.tensor(weights, dtype=torch.float64)
    gram, cross = (phi * w[:, None]).mT @ phi, (phi * w[:, None]).mT @ r
    if readouts == 1:
        gram, cross = gram.mean(0, keepdim=True), cross.mean(0, keepdim=True)
    prior = 2.0 * horizon
    mean = gram.diagonal(dim1=1, dim2=2).sum() / w.sum()
    total = gram + prior * layer.gram * mean / layer.gram.diagonal(dim1=1, dim2=2).sum()
    power = total.diagonal(dim1=1, dim2=2).mean(0) / (w.sum() + prior)
    expected = torch.linalg.solve(total + 0.3 * (w.sum() + prior) * torch.diag(power), cross)
    # Sums of 80 products, and a system whose condition is below 1e6 with its penalty.
    error = (learned(state).correction[0] - expected).abs().max() / expected.abs().max()
    within(float(error), 1e8 * EPS)


def test_the_forecast_is_that_of_the_model_plus_the_trusted_correction() -> None:
    model = look_back()
    layer = LearningForecast(model)
    x = inputs(model, 90)
    out, state = layer(x)
    base, _ = model(x)
    memory = learned(state)
    trust = layer.learning.scoring.trust(memory.scored)  # (batch, channels)
    window = x[:, -model.lookback :].mT
    number = torch.tensor([89, 89])
    change = (layer.features(window, number)[:, :, None] @ memory.correction).squeeze(2)
    expected = base[:, -1].unflatten(-1, (5, 2)) + trust[:, None] * change.mT
    within(float((out[:, -1].unflatten(-1, (5, 2)) - expected).detach().abs().max()), 1e3 * EPS)


@pytest.mark.full
def test_learning_follows_a_change() -> None:
    """After the season's amplitude and its phase have changed, errors are smaller than those of the model."""
    rng = np.random.default_rng(4)
    steps = np.arange(2400)
    values = np.where(steps < 800, np.sin(2 * np.pi * steps / 24), 2 * np.sin(2 * np.pi * steps / 17))
    values = values + 0.2 * rng.normal(size=2400)
    forecaster = plmu.Forecaster(horizon=6, lookback=48, pooled=False, season=0).fit(values[:800])
    layer = LearningForecast(forecaster.model.double(), prior=5.0, alpha=1e-4)
    x = torch.tensor(values)[None, :, None]
    errors = []
    for model in (layer, layer.model):
        out, _ = model(x)
        ahead = x[:, 1601:, 0].unfold(1, 6, 1)
        errors.append(float((out[:, 1600:-6].detach() - ahead).square().mean()))
    assert errors[0] < 0.7 * errors[1]


@pytest.mark.full
def test_it_does_not_lose_to_the_model_by_learning_noise() -> None:
    """Of a random walk the last value is the best forecast: with hardly any prior the correction is noise, and is not
    trusted."""
    torch.manual_seed(0)
    x = torch.randn(4, 1500, 1, dtype=torch.float64).cumsum(1)
    model = look_back(1)
    model.reset_parameters()
    layer = LearningForecast(model, prior=0.01, alpha=1e-6, half_life=30.0)
    out, state = layer(x)
    base, _ = layer.model(x)
    ahead = x[:, 101:, 0].unfold(1, 5, 1)
    mine, of_model = (float((part[:, 100:-5].detach() - ahead).square().mean()) for part in (out, base))
    assert mine < 1.05 * of_model
    assert bool((layer.learning.scoring.trust(learned(state).scored) < 0.2).all())


def test_missing_samples_are_held_and_not_learned() -> None:
    model = look_back()
    layer = LearningForecast(model)
    x = inputs(model, 70, batch=1)
    x[:, 50, 0] = torch.nan
    held = x.clone()
    held[:, 50, 0] = x[:, 49, 0]
    for time in range(48, 68):  # the window and the horizon are the last 17 rows
        out, state = layer(x[:, :time])
        expected, other = layer(held[:, :time])
        assert bool(learned(state).odd.any()) == (time > 50)
        if time <= 50:
            assert_same(out, expected)
    clean = learned(layer(x[:, :50])[1])
    assert torch.equal(learned(state).gram, clean.gram)
    assert not torch.equal(learned(other).gram, clean.gram)
    assert bool(torch.isfinite(out).all())
    told, _ = LearningForecast(model, reject=NEVER)(x)
    assert_same(told, LearningForecast(model, reject=NEVER)(held)[0])


def test_odd_samples_are_not_learned_unless_they_stay() -> None:
    model = look_back(1)
    layer = LearningForecast(model)
    x = series(120, 1)[None].clone()
    spike = x.clone()
    spike[:, 60] += 1e6
    marked = [bool(learned(layer(spike[:, :time])[1]).odd.any()) for time in (60, 61, 77, 78)]
    assert marked == [False, True, True, False]  # until it leaves the window and the horizon of 17 rows
    before = learned(layer(spike[:, :60])[1])
    assert torch.equal(learned(layer(spike[:, :77])[1]).gram, before.gram)
    assert not torch.equal(learned(layer(spike[:, :90])[1]).gram, before.gram)
    shift = x.clone()
    shift[:, 60:] += 1e6
    assert learned(layer(shift[:, :64])[1]).odd.sum() == 8
    assert learned(layer(shift[:, :65])[1]).odd.sum() == 0  # the fifth in a row: this is how things are now
    assert learned(layer(shift[:, :66])[1]).odd.sum() == 0
    two = x.clone()
    two[:, 60:] += 5.0  # large, but not absurd
    assert learned(layer(two[:, :64])[1]).odd.sum() == 0


def test_streams_and_sessions_agree_and_go_on_from_files_bit_for_bit(tmp_path: Path) -> None:
    layer = LearningForecast(look_back())
    values = [series(110, 2, seed).clone() for seed in (1, 2, 3)]
    values[1][55, 0] = torch.nan
    sessions = plmu.Sessions(layer, width=4, missing="hold")
    rows = [sessions.add() for _ in values]
    streams = [plmu.Stream(layer, missing="hold") for _ in values]
    for at in range(100):
        outputs = sessions.push({row: x[at] for row, x in zip(rows, values, strict=True)})
        for row, stream, x in zip(rows, streams, values, strict=True):
            assert_same(outputs[row], stream.push(x[at]))
    streams[1].save(tmp_path / "state")
    sessions.save(rows[1], tmp_path / "session")
    stream = plmu.Stream.restore(layer, tmp_path / "state")
    again = plmu.Sessions(layer, width=4, missing="hold")
    row = again.restore(tmp_path / "session")
    for at in range(100, 110):
        assert torch.equal(stream.push(values[1][at]), streams[1].push(values[1][at]))
        assert torch.equal(again.push({row: values[1][at]})[row], sessions.push({rows[1]: values[1][at]})[rows[1]])


def test_a_session_does_not_depend_on_those_beside_it() -> None:
    """Bit for bit, also where their turns to be solved differ."""
    layer = LearningForecast(look_back())
    alone, beside = plmu.Sessions(layer, width=4), plmu.Sessions(layer, width=4)
    first, row = alone.add(), beside.add()
    others = [beside.add() for _ in range(3)]
    x, y = series(100), series(100, seed=9)
    for at in range(100):
        samples = {row: x[at]} | dict.fromkeys(others[: at % 4], y[at])
        assert torch.equal(alone.push({first: x[at]})[first], beside.push(samples)[row])


def test_it_is_saved_with_its_options_and_sums(tmp_path: Path) -> None:
    for name, half_life in (("individual", 30.0), ("pooled", NEVER), ("season", 90.0)):
        layer = LearningForecast(MODELS[name](), half_life=half_life, levels=(0.5,))
        layer.start_from(torch.eye(len(layer.gram[0])).expand_as(layer.gram), torch.tensor([2.0, 3.0]))
        layer.set_intervals(-torch.ones_like(layer.low), torch.ones_like(layer.low))
        plmu.save(layer, tmp_path / "model.plmu")
        loaded = plmu.load(tmp_path / "model.plmu")
        assert isinstance(loaded, Steppable)
        x = inputs(layer.model, 60)
        assert torch.equal(layer(x)[0], loaded(x)[0])
        assert plmu.FrozenModel(layer).fingerprint == plmu.FrozenModel(loaded).fingerprint
        other = LearningForecast(layer.model, half_life=half_life + 1, levels=(0.5,))
        assert plmu.FrozenModel(layer).fingerprint != plmu.FrozenModel(other).fingerprint


def test_without_intervals() -> None:
    model = look_back()
    x = inputs(model, 60)
    out, state = LearningForecast(model, levels=())(x)
    assert_same(out, LearningForecast(model)(x)[0])
    assert LearningForecast(model, levels=()).report(out[:, -1], state).lower.shape == (0, 2, 2, 5)


def test_the_start_of_a_clock() -> None:
    model = look_back(season=6)
    layer = LearningForecast(model)
    x = inputs(model, 40, batch=1)
    out, _ = layer(x, layer.state_at(4, torch.float64))
    expected, _ = LearningForecast(look_back(season=6, phase=4))(x)
    assert_same(out, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"half_life": 0}, "half_life must be a positive number, got 0"),
        ({"half_life": True}, "half_life must be a positive number, got True"),
        ({"prior": -1.0}, "prior must be a positive number, got -1.0"),
        ({"alpha": NEVER}, "prior and alpha must be finite"),
        ({"reject": float("nan")}, "reject must be a positive number"),
        ({"levels": (0.9, 0.5)}, "levels must be ascending fractions between 0 and 1"),
        ({"levels": (1.0,)}, "levels must be ascending fractions between 0 and 1"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LearningForecast(look_back(), **options)


def test_wrong_models_and_sums() -> None:
    with pytest.raises(TypeError, match="model must be a forecast such as a LookbackForecast, got Linear"):
        LearningForecast(torch.nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="model must return sequences"):
        LearningForecast(look_back(return_sequences=False))
    layer = LearningForecast(look_back())
    with pytest.raises(ValueError, match=r"gram must be \(1, 4, 4\) finite numbers, got \(4, 4\)"):
        layer.start_from(torch.eye(4), torch.ones(2))
    with pytest.raises(ValueError, match="scale must be positive"):
        layer.start_from(torch.eye(4)[None], torch.zeros(2))
    with pytest.raises(ValueError, match=r"low must be \(2, 2, 5\) finite numbers"):
        layer.set_intervals(torch.zeros(1), torch.zeros(1))


def scenario(kind: str, steps: int, rng: np.random.Generator) -> np.ndarray:
    """A daily season and noise; then level shifts of 5 σ, changes of the trend or of the variance."""
    noise = rng.normal(size=steps)
    for at in range(1, steps):
        noise[at] = 0.5 * noise[at - 1] + math.sqrt(0.75) * noise[at]
    values = 2 * np.sin(2 * np.pi * np.arange(steps) / 24)
    for begin in range(800, steps, 600):
        if kind in ("level", "all"):
            values[begin:] += rng.choice([-5.0, 5.0])
        if kind in ("trend", "all"):
            values[begin:] += rng.normal() * 0.01 * np.arange(steps - begin)
        if kind in ("variance", "all"):
            noise[begin:] *= rng.choice([0.5, 2.0])
    return values + noise


@pytest.mark.parametrize("horizon", [pytest.param(1, marks=pytest.mark.full), 8])
def test_intervals_cover_what_they_say_through_changes(horizon: int) -> None:
    """Within a point of 80 and 95 %, over streams with level shifts, changes of trend and of variance."""
    rng, steps, batch, kinds = np.random.default_rng(7), 4000, 4, ("none", "level", "trend", "variance", "all")
    model = plmu.Forecaster(horizon=horizon, lookback=48, season=24, pooled=False).fit(scenario("none", 700, rng)).model
    layer = LearningForecast(model.double())
    x = torch.tensor(np.stack([scenario(kind, steps, rng) for kind in kinds for _ in range(batch)]))[..., None]
    folded, state, bounds = plmu.fold(layer), None, []
    scoring = layer.learning.scoring
    for at in range(steps):
        out, state = folded.step(x[:, at], state)
        ends = scoring.ends(learned(state).scored)
        bounds.append(torch.stack([out.view(-1, horizon, 1) + end[:, :, 0] for end in ends], dim=1))
    lower, upper = torch.stack(bounds, dim=1)[:, 100:-horizon].unbind(2)  # (streams, steps, horizon, levels)
    ahead = x[:, 101:, 0].unfold(1, horizon, 1)[..., None]
    covered = ((ahead >= lower) & (ahead <= upper)).double().view(len(kinds), -1, 2).mean(1)
    assert bool(((covered - torch.tensor([0.8, 0.95])).abs() < 0.01).all()), covered


def test_a_long_horizon_scores_forecasts_at_intervals() -> None:
    layer = LearningForecast(look_back(1, 2 * SLOTS + 3))
    scoring = layer.learning.scoring
    assert (scoring.spacing, scoring.slots) == (3, 23)
    x = inputs(layer.model, 200, batch=1)
    _, state = layer(x)
    scored = learned(state).scored
    assert scored.ring.shape[1:3] == (23, 67)
    ages = scoring.ages(torch.tensor([201]))[0].tolist()
    out, _ = layer(x)
    for place, age in enumerate(ages[:3]):
        issued = out[0, 201 - age - 1]
        assert_same(scored.ring[0, place, :, 0, 2], issued)
    count = scored.steps[0, :, 0, 0]
    assert bool((count >= (200 - 67) // 3).all())
    assert bool((count <= 200 // 3 + 1).all())


def test_sums_that_forget_stay_exact() -> None:
    """After many more steps than the half-life they are what a sum over all windows with their weights gives."""
    model, half_life, time = look_back(1), 20.0, 1200
    layer = LearningForecast(model, half_life=half_life, reject=NEVER)
    x = torch.randn(1, time, 1, dtype=torch.float64)
    x[:, :200] *= 1e6  # of which nothing may be left
    _, state = layer(x)
    ends = torch.arange(model.lookback - 1, time - model.horizon)
    windows = x[:, :, 0].unfold(1, model.lookback, 1)[:, : len(ends)]  # (1, windows, lookback)
    weights = 0.5 ** ((ends[-1] - ends).double() / half_life)
    features = layer.features(windows.transpose(0, 1), ends)[:, 0]
    expected = (features * weights[:, None]).mT @ features
    error = (learned(state).gram[0, 0] - expected).abs().max() / expected.abs().max()
    within(float(error), 1e4 * EPS)  # sums of 1,000 products, and as many products with the decay
    # What the first windows leave is 0.5^50 of 10^12 times the others.
    within(float((learned(state).weight[0, 0] - weights.sum()).abs() / weights.sum()), 1e4 * EPS)


@pytest.mark.parametrize("to", ["onnx", "c"])
def test_an_export_says_that_it_cannot_learn(to: str, tmp_path: Path) -> None:
    with pytest.raises(NotExportable, match="files of other programs do not learn: export its model"):
        plmu.export(LearningForecast(look_back()), tmp_path, to=to)
