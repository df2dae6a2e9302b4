"""Rows that are added up to coarser steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from forecasts import table

from plmu.cli.program import main
from plmu.timeseries import read_series

polars = pytest.importorskip("polars")


@pytest.mark.parametrize(("step", "first", "sums"), [
    ("6h", "2024-03-06 12:00", 6), ("1d", "2024-03-07", 24), ("1w", "2024-03-11", 168), ("1mo", "2024-04-01", 30 * 24),
])  # fmt: skip
def test_sums_of_whole_steps(step: str, first: str, sums: int) -> None:
    """Days begin at midnight, weeks on Mondays; the first and the last step, which rows do not cover, are left out."""
    times = np.datetime64("2024-03-06T07:00", "us") + np.timedelta64(1, "h") * np.arange(24 * 70)
    frame = polars.DataFrame({"when": times, "sold": 1 + 1e-9 * np.arange(len(times)), "price": np.arange(24.0 * 70)})
    found = read_series(frame, step=step, duplicates="sum", covariates=["price"])
    (piece,) = found.pieces
    assert found.clock.times(np.array([piece.start]))[0] == first
    np.testing.assert_allclose(piece.values, sums, rtol=1e-4)
    assert any("added up" in note for note in found.notes)
    assert "left out: 2 first or last steps of series, which rows do not cover" in found.notes
    assert piece.covariates is not None
    row = int((np.datetime64(first.replace(" ", "T")) - times[0]) / np.timedelta64(1, "h"))
    assert piece.covariates[0, 0] == pytest.approx(row + (sums - 1) / 2)  # the mean
    mean = read_series(frame, step=step)
    assert float(mean.pieces[0].values[:, 0].max()) == pytest.approx(1, rel=1e-4)


def test_sums_of_events_at_any_times() -> None:
    """Which need not cover a day; rows at the step's own times keep these."""
    rng = np.random.default_rng(0)
    minutes = np.sort(rng.integers(9 * 60, 17 * 60, 400)) + 24 * 60 * np.sort(rng.integers(0, 30, 400))
    times = np.datetime64("2024-03-06T00:00", "us") + np.timedelta64(1, "m") * np.sort(minutes)
    sold = rng.integers(1, 5, 400).astype(float)
    found = read_series(polars.DataFrame({"when": times, "sold": sold}), step="1d", duplicates="sum")
    assert sum(piece.values[piece.measured].sum() for piece in found.pieces) == sold.sum()
    assert not any("cover" in note for note in found.notes)
    days = np.datetime64("2024-03-06T07:00", "us") + np.timedelta64(1, "D") * np.arange(30)
    found = read_series(polars.DataFrame({"when": days, "sold": sold[:30]}), step="1d", duplicates="sum")
    assert found.clock.times(np.array([0]))[0] == "2024-03-06 07:00"
    assert len(found.pieces[0]) == 30


def test_sums_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prediction from a file that ends within a day begins with that day."""
    monkeypatch.chdir(tmp_path)
    hours = np.datetime64("2024-03-06T07:00") + np.timedelta64(1, "h") * np.arange(24 * 90)
    values = 10 + np.sin(2 * np.pi * np.arange(len(hours)) / (24 * 7))
    lines = [f"{str(hour).replace('T', ' ')},{value:.4f}" for hour, value in zip(hours, values, strict=True)]
    Path("sales.csv").write_text("\n".join(["when,sold", *lines, ""]))
    options = ["--data.step", "1d", "--data.duplicates", "sum", "--horizon", "5"]
    main(["train", "forecast", "sales.csv", *options])
    assert "every 1 d from 2024-03-07 to 2024-06-03" in capsys.readouterr().out
    main(["predict", "runs/forecast-sales-seed0", "sales.csv", "--quiet"])
    rows = table(capsys.readouterr().out)
    assert [row["when"] for row in rows] == [f"2024-06-{day:02}" for day in range(4, 9)]
    assert all(200 < float(row["sold"]) < 280 for row in rows)
