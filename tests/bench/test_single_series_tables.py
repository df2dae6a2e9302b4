"""The table of single series, and the halves that they are divided into."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.single_series_data import SERIES, STEPS, Series, _longest_part, names
from benchmarks.single_series_tables import series


def row(name: str, half: str, mse: dict[str, float]) -> dict[str, object]:
    methods = {method: {"mse": value, "mae": value / 2} for method, value in mse.items()}
    return {"series": name, "half": half, "step": "day", "rows": 1000, "horizon": 28, "methods": methods}


def test_every_loss_is_listed() -> None:
    rows = [
        row("one", "development", {"plmu": 0.5, "linear": 0.4, "seasonal naive": 0.6}),
        row("two", "held-out", {"plmu": 0.2, "linear": 0.4, "seasonal naive": 0.3}),
    ]
    text = series({"rows": rows})
    assert (
        "Development half, MSE: plmu is better than the best of the others on 0 of 1 series, and worse than 1.1" in text
    )
    assert "Held-out half, MAE: plmu is better than the best of the others on 1 of 1 series" in text
    assert "| one | development | MSE | 1.25 | linear |" in text
    assert "| two | held-out | MSE" not in text
    assert "**0.200** / **0.100**" in text


def test_the_halves_are_of_all_steps() -> None:
    halves = [names(half) for half in ("development", "held-out")]
    assert sorted(halves[0] + halves[1]) == sorted(names()) == sorted(SERIES)
    for step in STEPS:
        counts = [sum(SERIES[name][0] == step for name in half) for half in halves]
        assert 0 <= counts[0] - counts[1] <= 1


def test_origins_lie_in_the_last_fifth() -> None:
    values = Series("one", "day", np.arange(500.0))
    origins = values.origins(7)
    assert (origins[0], origins[-1], len(origins)) == (400, 472, 7)
    assert values.origins(1000) == list(range(400, 473))


def test_long_gaps_cut_a_series() -> None:
    values = np.arange(200.0)
    values[60:64] = np.nan
    values[100:130] = np.nan
    assert _longest_part(values).tolist() == pytest.approx(list(range(100)))
