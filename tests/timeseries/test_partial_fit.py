"""`Forecaster.partial_fit`: fitting in pieces is one fit to all rows, for both models, against plain loops."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import plmu
from plmu.errors import DataError
from plmu.nn import LookbackForecast, PooledForecast
from plmu.timeseries.learning import ReadoutSums
from plmu.timeseries.learning_pooled import PooledSums

ROWS, LATER = 200, 60
MEMORY: dict[str, Any] = {"horizon": 5, "lookback": 16, "order": 4, "season": 12}
EXACT = 1e-9  # of sums in float64, relative to products of features


def course(rows: int = ROWS + LATER, channels: int = 1, seed: int = 0) -> np.ndarray:
    """A season of 12 steps that jumps, a slow wave, and noise, at a level of 10."""
    rng, t = np.random.default_rng(seed), np.arange(rows)[:, None]
    shape = np.random.default_rng(5).standard_normal(12)
    wave = shape[(t + 3 * np.arange(channels)) % 12] + np.sin(t / 40)
    values: np.ndarray = (10 + 2 * wave + 0.3 * rng.standard_normal((rows, channels))) * (1 + np.arange(channels))
    return values


def reference_sums(
    model: LookbackForecast, series: list[tuple[int, np.ndarray, np.ndarray]], half_life: float = math.inf
) -> tuple[np.ndarray, np.ndarray, float]:
    """Sums over all windows of series (first step, rows, unit), one window after the other: of each channel."""
    size, horizon = model.lookback, model.horizon
    response = plmu.DelayNetwork(model.order, model.config["theta"]).discretize().impulse_response(size).numpy()
    taps, latest = response[:, ::-1].T, max(start + len(rows) for start, rows, _ in series)
    gram = np.zeros((model.channels, model.order, model.order))
    cross, count = np.zeros((model.channels, model.order, horizon)), 0.0
    for start, rows, unit in series:
        for first in range(len(rows) - size - horizon + 1):
            age = latest - (start + first + size + horizon)
            weight = 2.0 ** (-age / half_life)
            count += weight
            for channel in range(model.channels):
                window, ahead = rows[first : first + size, channel], rows[first + size :][:horizon, channel]
                change, target = window - window[-1], ahead - window[-1]
                if model.season:
                    steps = (start + first + np.arange(size + horizon)) % model.season
                    shape = model.season_pattern[steps, channel].double().numpy()
                    shape = shape - shape[size - 1]
                    centred, prior = shape[:size] - shape[:size].mean(), float(model.prior[channel])
                    amplitude = np.clip((change @ centred + prior) / (centred @ centred + prior), 0, 2)
                    change, target = change - amplitude * shape[:size], target - amplitude * shape[size:]
                x, y = change @ taps / unit[channel], target / unit[channel]
                gram[channel] += weight * np.outer(x, x)
                cross[channel] += weight * np.outer(x, y)
    return gram, cross, count


def assert_close(sums: ReadoutSums, other: ReadoutSums) -> None:
    """Relative to the powers of the two factors of each product."""
    power = sums.gram.diagonal(dim1=1, dim2=2).sqrt()
    near = sums.gram - other.gram
    assert float((near.abs() / (power[:, :, None] * power[:, None]).clamp(min=1e-30)).max()) < EXACT
    cross = (sums.cross - other.cross).abs().amax(2) / (power * sums.cross.abs().max() + 1e-30)
    assert float(cross.max()) < EXACT
    assert sums.count == pytest.approx(other.count, rel=EXACT)


def of_reference(sums: ReadoutSums, gram: np.ndarray, cross: np.ndarray, count: float) -> ReadoutSums:
    if len(sums.gram) == 1:
        gram, cross = gram.mean(0, keepdims=True), cross.mean(0, keepdims=True)
    return ReadoutSums(torch.from_numpy(gram), torch.from_numpy(cross), count, sums.alpha, sums.pull, sums.unit)


@pytest.mark.parametrize("half_life", [None, 37.0])
@pytest.mark.parametrize("individual", [False, True])
def test_sums_are_those_of_a_loop_over_all_windows(individual: bool, half_life: float | None) -> None:
    data = course(channels=2)
    forecaster = plmu.Forecaster(**MEMORY, individual=individual, half_life=half_life).fit(data[:ROWS])
    for first in range(ROWS, len(data), 7):
        forecaster.partial_fit(data[first : first + 7])
    sums, model = forecaster.sums_, forecaster.model
    assert isinstance(model, LookbackForecast)
    assert model.season == 12
    gram, cross, count = reference_sums(model, [(0, data, forecaster.scale_)], half_life or math.inf)
    assert_close(sums, of_reference(sums, gram, cross, count))
    # The readout is the ridge regression of these sums.
    scale = np.sqrt(np.einsum("cii->i", gram) / len(gram) / count)
    scaled, target = gram / count / scale / scale[:, None], cross / count / scale[:, None]
    weight = np.linalg.solve(scaled.mean(0) + sums.alpha * np.eye(model.order), target.mean(0))[None]
    if individual and math.isfinite(sums.pull):
        rest = target - scaled @ weight
        weight = weight + np.linalg.solve(scaled + sums.pull * np.eye(model.order), rest)
    expected = weight / scale[:, None]
    eps = float(torch.finfo(torch.float32).eps)
    np.testing.assert_allclose(model.weight.detach().mT.numpy(), expected, rtol=eps, atol=eps * np.abs(expected).max())


@settings(max_examples=8)
@given(cuts=st.lists(st.integers(ROWS + 1, ROWS + LATER - 1), max_size=6, unique=True))
@pytest.mark.parametrize("options", [{}, {"half_life": 11.5}, {"covariates": [1], "lags": 4, "season": 0}])
def test_pieces_are_the_whole(options: dict[str, Any], cuts: list[int]) -> None:
    data = course(channels=2)
    data[:, 1] = np.arange(len(data)) // 3 % 2
    data[:, 0] += 5 * data[:, 1]
    whole, pieces = (plmu.Forecaster(**{**MEMORY, **options}).fit(data[:ROWS]) for _ in range(2))
    whole.partial_fit(data[ROWS:])
    ends = [ROWS, *sorted(cuts), len(data)]
    for first, end in pairwise(ends):
        pieces.partial_fit(data[first:end])
    assert_close(pieces.sums_, whole.sums_)
    steps = len(data) - MEMORY["lookback"] - MEMORY["horizon"] + 1
    if not options.get("half_life"):
        assert whole.sums_.count == steps
    if options.get("covariates"):
        assert whole.validation_["covariates"]
    future = {"future": np.zeros(5)} if options.get("covariates") else {}
    np.testing.assert_allclose(pieces.predict(**future), whole.predict(**future), rtol=1e-5)
    np.testing.assert_allclose(whole.predict(**future), whole.predict(data, start=0, **future), rtol=1e-5)


def panel(rows: int, names: str = "abc", first: int = 0) -> pd.DataFrame:
    times = pd.date_range("2020-01-01", periods=400, freq="D")[first : first + rows]
    parts = [
        pd.DataFrame({"unique_id": name, "ds": times, "y": course(400, seed=seed)[first : first + rows, 0] * 5**seed})
        for seed, name in enumerate(names)
    ]
    return pd.concat(parts, ignore_index=True)


def test_series_go_on_by_name_and_new_ones_come() -> None:
    first, second = panel(ROWS), pd.concat([panel(9, "bc", ROWS), panel(2, "d", ROWS)])
    third = panel(40, "abcd", ROWS + 9)
    third.loc[third["unique_id"] == "a", "ds"] += pd.Timedelta(days=200)  # a long gap
    third.loc[third["unique_id"] == "d", "ds"] -= pd.Timedelta(days=7)  # goes on without one
    forecaster = plmu.Forecaster(**MEMORY).fit(first)
    for frame in (second, third):
        forecaster.partial_fit(frame)
    model = forecaster.model
    assert isinstance(model, LookbackForecast)
    by_name = {name: np.concatenate([f.loc[f["unique_id"] == name, "y"] for f in (first, second, third)])[:, None]
               for name in "abcd"}  # fmt: skip
    size = {name: rows[: ROWS - round(0.2 * ROWS)].std(axis=0) for name, rows in by_name.items()}
    size["d"] = by_name["d"][: MEMORY["lookback"] + MEMORY["horizon"]].std(axis=0)  # in its first window
    series = [(0, by_name["b"], size["b"]), (0, by_name["c"], size["c"]), (ROWS, by_name["d"], size["d"]),
              (0, by_name["a"][:ROWS], size["a"]), (ROWS + 209, by_name["a"][ROWS:], size["a"])]  # fmt: skip
    sums = forecaster.sums_
    assert_close(sums, of_reference(sums, *reference_sums(model, series)))
    ahead = forecaster.predict(level=80)
    assert ahead.groupby("unique_id").size().to_dict() == dict.fromkeys("abcd", 5)
    following = pd.Timestamp("2020-01-01") + pd.Timedelta(days=ROWS + 49)
    assert ahead.loc[ahead["unique_id"] == "b", "ds"].iloc[0] == following


def test_the_unit_of_a_new_series_is_that_of_its_first_window_that_varies() -> None:
    rows = np.concatenate([np.zeros(50), course(60, seed=7)[:, 0] * 1e4])
    forecasters = [plmu.Forecaster(**MEMORY).fit([course(), course(seed=1)]) for _ in range(2)]
    others = [course(ROWS, seed=seed) for seed in (2, 3)]
    for forecaster, step in zip(forecasters, (110, 1), strict=True):
        for first in range(0, 110, step):
            forecaster.partial_fit([*(other[first : first + 1] for other in others), rows[first : first + step]])
        forecaster.partial_fit([*(other[110 // step :] for other in others), course(1)])
    reach = MEMORY["lookback"] + MEMORY["horizon"]
    sizes = forecasters[1]._learning().sums.sizes
    assert float(sizes["2"][0]) == pytest.approx(rows[51 - reach : 51].std(), rel=1e-12)
    assert forecasters[0].sums_.count == forecasters[1].sums_.count
    assert_close(*(forecaster.sums_ for forecaster in forecasters))


def member_sums(forecaster: plmu.Forecaster) -> dict[int, ReadoutSums]:
    sums = forecaster._learning().sums
    assert isinstance(sums, PooledSums)
    return {number: part.sums for number, part in [*sums.members.items(), *sums.maps.items()]}


@pytest.mark.parametrize("half_life", [None, 50.0])
def test_pooled_pieces_are_the_whole(half_life: float | None) -> None:
    data = [course(ROWS + LATER - 30 * seed, seed=seed) for seed in range(4)]
    whole, pieces = (
        plmu.Forecaster(horizon=6, pooled=True, half_life=half_life).fit([rows[:-LATER] for rows in data])
        for _ in range(2)
    )
    whole.partial_fit([rows[-LATER:] for rows in data])
    for first in range(0, LATER, 5):
        pieces.partial_fit([rows[len(rows) - LATER + first :][:5] for rows in data])
    assert member_sums(whole)
    for number, sums in member_sums(whole).items():
        assert_close(member_sums(pieces)[number], sums)
    for a, b in zip(pieces.predict(), whole.predict(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("channels", [1, 2])
def test_linear_maps_among_the_members_of_a_single_series(channels: int) -> None:
    data = course(channels=channels)
    whole, pieces = (plmu.Forecaster(horizon=6, pooled=True).fit(data[:ROWS]) for _ in range(2))
    whole.partial_fit(data[ROWS:])
    for first in range(ROWS, len(data), 7):
        pieces.partial_fit(data[first : first + 7])
    learned = whole._learning().sums
    assert isinstance(learned, PooledSums)
    number, part = next(iter(learned.maps.items()))
    size, unit = part.reader.lookback, whole.scale_
    windows = np.lib.stride_tricks.sliding_window_view(data, size + 6, axis=0) / unit[:, None]
    last = windows[..., size - 1 : size]
    x, y = (windows[..., :size] - last).reshape(-1, size), (windows[..., size:] - last).reshape(-1, 6)
    gram, cross, count = x.T @ x / channels, x.T @ y / channels, float(len(windows))
    assert_close(part.sums, of_reference(part.sums, gram[None], cross[None], count))
    for place, sums in member_sums(whole).items():
        assert_close(member_sums(pieces)[place], sums)
    scale = np.where(gram.diagonal() > 0, np.sqrt(gram.diagonal() / count), 1.0)
    scaled = gram / count / scale / scale[:, None] + part.sums.alpha * np.eye(size)
    weight = np.linalg.solve(scaled, cross / count / scale[:, None]) / scale[:, None]
    model = whole.model
    assert isinstance(model, PooledForecast)
    readout = model.readouts[number].weight.detach().numpy()
    np.testing.assert_allclose(readout[1:size], weight[:-1], rtol=1e-5, atol=1e-6)


def test_pooled_sums_are_those_of_a_loop() -> None:
    data = [course(ROWS + LATER - 30 * seed, seed=seed) for seed in range(4)]
    forecaster = plmu.Forecaster(horizon=6, pooled=True).fit([rows[:-LATER] for rows in data])
    fitted = forecaster.model
    assert isinstance(fitted, PooledForecast)
    layer = PooledForecast(**fitted.config, dtype=torch.float64).requires_grad_(False)
    layer.load_state_dict(fitted.state_dict())
    forecaster.partial_fit([rows[-LATER:] for rows in data])
    learned = forecaster._learning().sums
    assert isinstance(learned, PooledSums)
    number, part = next(iter(learned.members.items()))
    member, season = layer.readouts[number], max(kind.season for kind in [m.kind for m in layer.readouts])
    gram, total, windows = torch.zeros_like(part.sums.gram[0]), 0.0, 0
    for source, rows in enumerate(data):
        place = learned.places[str(source), source]
        fit = rows[:-LATER, 0]
        unit = np.abs(fit[season:] - fit[:-season]).mean() if season > 1 else np.abs(np.diff(fit)).mean()
        ends = range(place.following + 1 - place.apart, 3, -place.apart)  # of so few rows the fit takes all windows
        for end in ends:
            window = torch.zeros(layer.window, dtype=torch.float64)
            steps = min(end, layer.window)
            window[-steps:] = torch.from_numpy(rows[end - steps : end, 0].copy())
            if steps < member.kind.lookback:
                continue
            level = window.abs().sum() / steps
            adjusted = layer.adjusted(window[None] / level, torch.tensor([steps]), member.kind.season)
            features = member.features(adjusted.windows[:, -member.kind.lookback :], adjusted.ahead)
            x = features.features
            future = torch.from_numpy(rows[end : end + 6, 0].copy())[None] / level / adjusted.ahead / features.level
            change = (future.clamp(min=0.01).log() if member.kind.log else future) - features.last - features.base
            own = (torch.tensor([[unit]]) / level / features.level).clamp(0.01, 1)
            wrong = (change.clamp(-3, 3) - x @ member.weight).abs().mean()
            weight = (1 + 0.05 / own) / (wrong + 0.3 * own)
            gram += weight * x.mT @ x
            total += float(weight)
            windows += 1
    assert windows > 100
    power = gram.diagonal().sqrt()
    near = (part.sums.gram[0] - gram).abs() / (power[:, None] * power).clamp(min=1e-30)
    assert float(near.max()) < 1e-6  # units of series are those of the fit, in float32
    assert part.sums.count == pytest.approx(total, rel=1e-6)


def test_new_rows_are_forecast_before_they_are_learned() -> None:
    data = course()
    forecaster = plmu.Forecaster(**MEMORY).fit(data[:ROWS])
    before = len(forecaster.fitted_.errors[1].errors)
    model = forecaster.model
    forecaster.partial_fit(data[ROWS : ROWS + 8])
    calibration = forecaster._learning().calibration
    errors = calibration.errors[before:, 0]
    assert errors.shape == (8, 5)
    assert not calibration.unit.relative  # errors are in the units of the data
    window = torch.from_numpy(data.T.copy())
    for row in range(8):
        for step in range(5):
            end = ROWS + row - step
            with torch.no_grad():
                ahead = model.read(window[:, end - 16 : end], torch.tensor(end - 1))
            error = data[ROWS + row, 0] - float(ahead[0, step])
            assert float(errors[row, step]) == pytest.approx(error, abs=2e-5)


def test_intervals_follow_the_errors_of_new_rows() -> None:
    rng = np.random.default_rng(1)
    calm, loud = course(400)[:, 0], course(1000, seed=2)[400:, 0] + 3 * rng.standard_normal(600)
    forecaster = plmu.Forecaster(**MEMORY, half_life=100.0).fit(calm)

    def width() -> float:
        ahead = forecaster.predict(level=80)
        return float((ahead.upper - ahead.lower).mean())

    first = width()
    forecaster.partial_fit(loud[:500])
    assert width() > 3 * first
    inside = []
    for row in range(500, 595):
        ahead = forecaster.predict(level=80)
        inside.append((ahead.lower[0, 0] <= loud[row]) & (loud[row] <= ahead.upper[0, 0]))
        forecaster.partial_fit(loud[row : row + 1])
    assert 0.66 < np.mean(inside) < 0.92  # 80 % of 95: three standard deviations are 12 points


def test_half_life_is_a_regression_with_weights() -> None:
    """The readout follows a process whose coefficient changes, one without a half-life does not."""
    rng = np.random.default_rng(0)
    values = np.zeros(3000)
    for t in range(1, 3000):
        values[t] = (0.9 if t < 2000 else -0.5) * values[t - 1] + rng.standard_normal()
    options: dict[str, Any] = {"horizon": 1, "lookback": 4, "order": 3, "season": 0}
    errors = []
    for half_life in (None, 150):
        forecaster = plmu.Forecaster(**options, half_life=half_life).fit(values[:1500])
        forecaster.partial_fit(values[1500:2800])
        errors.append(forecaster.evaluate(values[2796:], start=2796)["mse"])
    assert errors[1] < 0.7 * errors[0]


@pytest.mark.parametrize(
    ("half_life", "steps"), [("7d", 7.0), ("12h", 0.5), ("2w", 14.0), (30, 30.0), ("1mo", 365.2425 / 12)]
)
def test_half_life_as_a_time(half_life: Any, steps: float) -> None:
    frame = pd.DataFrame({"ds": pd.date_range("2024-01-01", periods=120, freq="D"), "y": course(120)[:, 0]})
    forecaster = plmu.Forecaster(**MEMORY, half_life=half_life).fit(frame)
    assert forecaster._learning().forgetting.half_life == pytest.approx(steps)


@pytest.mark.parametrize("half_life", [0, -1.0, math.nan, "7", "days", True, "0d"])
def test_a_half_life_that_is_none(half_life: Any) -> None:
    with pytest.raises(ValueError, match="half_life must be a positive number of rows or a length of time such as"):
        plmu.Forecaster(half_life=half_life).fit(course()[:, 0])


def test_half_life_as_a_time_needs_times() -> None:
    forecaster = plmu.Forecaster(half_life="7d")
    with pytest.raises(ValueError, match="half_life='7d' needs dates"):
        forecaster.fit(course()[:, 0])
    assert not hasattr(forecaster, "model_")


def decayed_sums(updates: int, half_life: float) -> tuple[Tensor, Tensor]:
    """Sums after so many updates by one row of 3 features, of a stream that repeats; and those of a closed form."""
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((1000, 3)))
    products = rows[:, :, None] * rows[:, None]
    factor = 2.0 ** (-1 / half_life) if math.isfinite(half_life) else 1.0
    sums = ReadoutSums.zeros(3, 1, 1.0, math.inf, torch.ones(1))
    gram, cross = [product[None] for product in products], sums.cross
    for update in range(updates):
        sums = sums.decayed(factor).added(gram[update % 1000], cross, 1.0)
    cycles = updates // 1000
    within = (products * factor ** torch.arange(999, -1, -1, dtype=torch.float64)[:, None, None]).sum(0)
    whole = within * cycles if factor == 1.0 else within * (1 - factor ** (1000 * cycles)) / (1 - factor**1000)
    return sums.gram[0], whole


@pytest.mark.parametrize("half_life", [math.inf, 1000.0])
@pytest.mark.parametrize("updates", [20_000, pytest.param(10_000_000, marks=pytest.mark.full)])
def test_sums_stay_sound(updates: int, half_life: float) -> None:
    """Each update rounds twice, by at most eps / 2 of the sum, and with a half-life these errors decay, too. So the
    error is below eps times the number of updates that count, relative to the powers of the features."""
    sums, expected = decayed_sums(updates, half_life)
    counting = min(updates, half_life / math.log(2))
    power = expected.diagonal().sqrt()
    bound = 2 * (counting + 1000) * torch.finfo(torch.float64).eps
    assert float(((sums - expected).abs() / (power[:, None] * power)).max()) < bound


def test_rows_must_follow() -> None:
    times = pd.date_range("2024-01-01", periods=260, freq="h")
    frame = pd.DataFrame({"ds": times, "y": course()[:, 0]})
    forecaster = plmu.Forecaster(**MEMORY).fit(frame[:ROWS])
    expected = forecaster.predict()["y"]
    with pytest.raises(ValueError, match=r"X has a row at 2024-01-09 07:00, and rows up to 2024-01-09 07:00 were"):
        forecaster.partial_fit(frame[ROWS - 1 :])
    long = plmu.Forecaster(**MEMORY).fit(panel(ROWS))
    with pytest.raises(DataError, match=r"series 'b' has a row at 2020-07-09, and rows up to 2020-07-18 were learned"):
        long.partial_fit(panel(30, "ab", ROWS - 10)[30:])
    for X, fault in ((course(9, 2), "X has 2 features, but Forecaster is expecting 1"), (np.full(3, np.nan), "NaN")):
        with pytest.raises(ValueError, match=fault):
            forecaster.partial_fit(X)
    several = plmu.Forecaster(**MEMORY).fit([course(), course(seed=1)])
    with pytest.raises(ValueError, match="X must have the 2 series that were learned, in their order, got 1"):
        several.partial_fit([course(3)])
    with pytest.raises(ValueError, match="id='a' is for the first rows"):
        long.partial_fit(panel(3, first=ROWS), id="a")
    np.testing.assert_array_equal(forecaster.predict()["y"], expected)  # an error changes nothing


@pytest.mark.parametrize("missing", ["hold", "split"])
def test_gaps_are_treated_as_in_one_file(missing: str, tmp_path: Path) -> None:
    values = course()[:, 0]
    times = np.datetime64("2024-01-01T00:00") + 60 * np.arange(260)
    drop = {195, 200, 201, 230, *range(240, 243)}
    rows = enumerate(zip(times, values, strict=True))
    lines = [f"{str(t).replace('T', ' ')},{v}" for k, (t, v) in rows if k not in drop]
    cut = sum(k not in drop for k in range(203))
    for name, rows in (("all", lines), ("first", lines[:cut]), ("then", lines[cut:])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["time,load", *rows, ""]))
    whole, first = (plmu.timeseries.read_series(tmp_path / f"{name}.csv", missing=missing) for name in ("all", "first"))
    pieces = plmu.Forecaster(**MEMORY).fit(first).partial_fit(tmp_path / "then.csv")
    expected = whole.pieces
    held = pieces.fitted_.series("test").data.pieces
    assert [(piece.start, len(piece)) for piece in held] == [(piece.start, len(piece)) for piece in expected]
    for piece, other in zip(held, expected, strict=True):
        np.testing.assert_array_equal(piece.values, other.values)
        np.testing.assert_array_equal(piece.measured, other.measured)
    reach = MEMORY["lookback"] + MEMORY["horizon"] - 1
    assert pieces.sums_.count == sum(max(0, len(piece) - reach) for piece in expected)


def test_the_first_rows_are_fitted_and_test_rows_are_learned() -> None:
    data = course()[:, 0]
    forecaster = plmu.Forecaster(**MEMORY, test=0.2).partial_fit(data[:ROWS])
    np.testing.assert_array_equal(forecaster.predict(), plmu.Forecaster(**MEMORY, test=0.2).fit(data[:ROWS]).predict())
    assert forecaster.evaluate()["windows"] == 36
    forecaster.partial_fit(data[ROWS:])
    assert forecaster.sums_.count == len(data) - 20
    with pytest.raises(ValueError, match="there are no test rows"):
        forecaster.evaluate()


def test_a_fit_with_half_life_does_not_learn_test_rows(path: Path) -> None:
    data = course()[:, 0]
    forecaster = plmu.Forecaster(**MEMORY, test=0.3, half_life=40.0).fit(data[:ROWS])
    assert isinstance(forecaster.model, LookbackForecast)
    for rows in (140, ROWS, len(data)):
        if rows == len(data):
            forecaster.partial_fit(data[ROWS:])
        elif rows == ROWS:
            forecaster.save(path, updatable=True)
            assert plmu.Forecaster.load(path).sums_.count > forecaster.sums_.count
            continue
        series = [(0, data[:rows, None], forecaster.scale_)]
        gram, cross, count = reference_sums(forecaster.model, series, 40.0)
        assert_close(forecaster.sums_, of_reference(forecaster.sums_, gram, cross, count))
    loaded = plmu.Forecaster.load(path).partial_fit(data[ROWS:])
    np.testing.assert_array_equal(loaded.predict(level=80).upper, forecaster.predict(level=80).upper)


def test_choose_and_the_other_methods_after_it(tmp_path: Path) -> None:
    data = course()[:, 0]
    forecaster = plmu.Forecaster(horizon=5, lookback=16).fit(data[:ROWS]).partial_fit(data[ROWS:])
    assert len(forecaster.cross_validation(windows=2)) == 10
    forecaster.plot(tmp_path / "forecast.png")
    assert forecaster.backtest(folds=2)[-1]["rows"] <= len(data)
    assert len(forecaster.stream().push(data[-1:])) == 5
    forecaster.choose()
    other = plmu.Forecaster(horizon=5, lookback=16).fit(data)
    assert forecaster.validation_ == other.validation_
    np.testing.assert_array_equal(forecaster.predict(level=80).upper, other.predict(level=80).upper)
    forecaster.partial_fit(course(270)[len(data) :, 0])


@pytest.mark.parametrize("pooled", [False, True])
def test_a_channel_is_no_longer_bounded_once_it_is_below_0(pooled: bool) -> None:
    data = np.abs(course()[:, 0] - 10)
    options: dict[str, Any] = {"horizon": 5, "pooled": True} if pooled else MEMORY
    free, fixed = (plmu.Forecaster(**options, nonnegative=bound).fit(data[:ROWS]) for bound in (None, True))
    assert free.model.nonnegative == fixed.model.nonnegative == (0,)
    for forecaster in (free, fixed):
        forecaster.partial_fit(data[ROWS : ROWS + 20])
        assert forecaster.model.nonnegative == (0,)
        forecaster.partial_fit(data[ROWS + 20 :] - 20)
    assert free.model.nonnegative == ()
    assert free.predict(level=95).lower.min() < 0 <= fixed.predict(level=95).lower.min()


def test_the_latest_rows_are_held_and_all_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    data = course()[:, 0]
    whole, forecaster = (plmu.Forecaster(**MEMORY).fit(data[:ROWS]) for _ in range(2))
    whole.partial_fit(data[ROWS:])
    monkeypatch.setattr("plmu.timeseries.partial.HELD_ROWS", 150)
    for first in range(ROWS, len(data), 20):
        forecaster.partial_fit(data[first : first + 20])
    assert_close(forecaster.sums_, whole.sums_)
    np.testing.assert_array_equal(forecaster.predict(), whole.predict())
    assert len(forecaster.cross_validation(windows=2)) == 10
    forecaster.choose()
    np.testing.assert_allclose(forecaster.predict(), plmu.Forecaster(**MEMORY).fit(data[-150:]).predict(), rtol=1e-5)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_in_long_format_of_a_single_series(library: str) -> None:
    times = pd.date_range("2020-01-01", periods=260, freq="D").astype("datetime64[ms]")
    columns = {"when": times, "sales": course()[:, 0]}
    whole: Any = pl.DataFrame({**columns, "when": times.to_numpy()}) if library == "polars" else pd.DataFrame(columns)
    forecaster = plmu.Forecaster(**MEMORY).fit(whole[:ROWS], time="when", values=["sales"])
    before = forecaster.predict()
    ahead = forecaster.partial_fit(whole[ROWS:]).predict()
    assert type(ahead) is type(before)
    assert [str(kind) for kind in ahead.dtypes] == [str(kind) for kind in before.dtypes]
    assert str(ahead["when"].to_list()[0])[:10] == "2020-09-17"


def test_what_read_series_returns_with_holidays(tmp_path: Path) -> None:
    pytest.importorskip("holidays")
    days = np.datetime64("2022-01-01") + np.arange(500)
    values = course(500)[:, 0]
    for name, rows in (("first", slice(0, 400)), ("then", slice(400, 500))):
        lines = [f"{day},{value}" for day, value in zip(days[rows], values[rows], strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["day,load", *lines, ""]))
    first, then = (plmu.timeseries.read_series(tmp_path / f"{name}.csv") for name in ("first", "then"))
    options: dict[str, Any] = {"horizon": 5, "lookback": 16, "season": 7, "holidays": "DE"}
    forecaster = plmu.Forecaster(**options).fit(first).partial_fit(then)
    assert forecaster.sums_.count == 500 - 20
    assert str(forecaster.predict()["day"][0])[:10] == str(days[-1] + 1)
    forecaster.save(tmp_path / "f.plmu", updatable=True)
    loaded = plmu.Forecaster.load(tmp_path / "f.plmu")
    np.testing.assert_array_equal(loaded.predict()["load"], forecaster.predict()["load"])


def test_zoned_frames_with_covariates_ahead() -> None:
    times = pd.date_range("2024-03-29", periods=260, freq="h", tz="Europe/Berlin")
    known = (np.arange(260) // 3 % 2).astype(float)
    frame = pd.DataFrame({"load": course()[:, 0] + 4 * known, "open": known}, index=times)
    forecaster = plmu.Forecaster(horizon=5, lookback=16, covariates=["open"], season=0).fit(frame[:ROWS])
    forecaster.partial_fit(frame[ROWS:240])
    ahead = forecaster.predict(future=frame[["open"]][240:], level=80)
    assert ahead.index[0] == times[240]
    direct = forecaster.predict(frame[:240], future=frame[["open"]][240:], level=80)
    np.testing.assert_allclose(ahead["load"], direct["load"], rtol=1e-5)
