"""`Forecaster.partial_fit`: fitting in pieces is one fit to all rows, for both models, against plain loops."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learned_sums import (
    LATER,
    MEMORY,
    ROWS,
    assert_close,
    course,
    member_sums,
    of_reference,
    panel,
    reference_sums,
)

import plmu
from plmu.nn import LookbackForecast, PooledForecast
from plmu.timeseries.learning_pooled import PooledSums
from plmu.timeseries.pooled_windows import Limits


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


@pytest.mark.parametrize("half_life", [None, 50.0])
@pytest.mark.parametrize("apart", [1, 5])
def test_pooled_pieces_are_the_whole(apart: int, half_life: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if apart > 1:  # as with many long series: then a row may end no window
        monkeypatch.setattr("plmu.timeseries.learning_pooled.FITTED", Limits(16, 16, 64))
    horizon = 12
    data = [course(ROWS + LATER - 30 * seed, seed=seed) for seed in range(4)]
    whole, pieces = (
        plmu.Forecaster(horizon=horizon, pooled=True, half_life=half_life).fit([rows[:-LATER] for rows in data])
        for _ in range(2)
    )
    whole.partial_fit([rows[-LATER:] for rows in data])
    for first, count in [*((row, 1) for row in range(10)), *((row, 5) for row in range(10, LATER, 5))]:
        pieces.partial_fit([rows[len(rows) - LATER + first :][:count] for rows in data])
    assert member_sums(whole)
    learned = whole._learning().sums
    assert isinstance(learned, PooledSums)
    assert {place.apart for place in learned.places.values()} == {apart}
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
