"""Parquet files with more rows than are held: some series are fitted and tested, as if they were alone in the file, and
all are forecast, in blocks, as if they were held."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from forecasts import table
from program import refused

import plmu
from plmu.cli.program import main
from plmu.timeseries import large_files
from plmu.timeseries.tables import parquet_series
from plmu.timeseries.tables.parquet_series import SeriesIndex, row_count

HORIZON, SERIES, ROWS = 4, 30, 50
WORDS = ["--horizon", str(HORIZON), "--model.season", "7"]
LARGE = ["--data.most-rows", "500"]  # a third of the rows


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Series begin and end within what is read at a time, and blocks hold some series."""
    monkeypatch.setattr(parquet_series, "READ", 128)
    monkeypatch.setattr(large_files, "BLOCK", 320)
    monkeypatch.chdir(tmp_path)


def panel(series: int = SERIES, missing: bool = True) -> pl.DataFrame:
    """In the order of series, each with a week; the first lacks two rows, and the last is short."""
    rng, parts = np.random.default_rng(0), []
    for number in range(series):
        k = np.arange(3 if number == series - 1 else ROWS)
        values = (5 + number) * (1 + 0.3 * np.sin(2 * np.pi * (k + number) / 7) + 0.05 * rng.standard_normal(len(k)))
        days = np.datetime64("2024-01-01") + k
        parts.append(pl.DataFrame({"shop": number + 100, "day": pl.Series(days.astype("datetime64[us]")), "y": values}))
    whole = pl.concat(parts)
    return whole.filter((pl.col("shop") != 100) | (pl.col("day").dt.day() != 9)) if missing else whole


def in_order(order: str) -> pl.DataFrame:
    return panel() if order == "series" else panel().sort("day", maintain_order=True)


def result(name: str) -> dict[str, Any]:
    run = Path("runs") / f"forecast-{name}-seed0"
    found = {file: json.loads((run / f"{file}.json").read_text()) for file in ("result", "series", "intervals")}
    return {"scores": found["result"]["test"], "valid": found["result"]["valid"], **found}


@pytest.mark.parametrize("order", ["series", "times"])
def test_series_that_are_held_are_fitted_as_if_they_were_alone(order: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A third of them, evenly spread."""
    whole = in_order(order)
    whole.write_parquet("whole.parquet")
    places = np.arange(1, SERIES + 1) * 500 / len(whole)  # a third of the series and a bit more
    held = 100 + np.flatnonzero(np.diff(np.floor(places), prepend=0))
    whole.filter(pl.col("shop").is_in(held)).write_parquet("some.parquet")
    main(["train", "forecast", "whole.parquet", *WORDS, *LARGE])
    shown = capsys.readouterr().out
    assert f"whole.parquet: {len(whole):,} rows of 30 series" in shown
    assert "large files: 10 series, evenly spread, are fitted and tested; all can be forecast" in shown
    assert "series: 10, by column 'shop'" in shown
    main(["train", "forecast", "some.parquet", *WORDS])
    large, alone = result("whole"), result("some")
    for kind in ("scores", "valid", "series", "intervals"):
        assert large[kind] == alone[kind]


@pytest.mark.parametrize("order", ["series", "times"])
def test_all_series_are_forecast_in_blocks(order: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As they are where all are held, in any form."""
    in_order(order).write_parquet("whole.parquet")
    main(["train", "forecast", "whole.parquet", *WORDS, *LARGE])
    run = "runs/forecast-whole-seed0"
    expected = plmu.Forecaster.from_run(run).predict("whole.parquet", level=[80, 95])
    capsys.readouterr()
    main(["predict", run, "whole.parquet"])
    printed = capsys.readouterr()
    assert f"rows of {SERIES} series, forecast in blocks" in printed.err
    assert "gaps: 2 of 1,453 steps lack a value" in printed.err
    assert "1 series shorter than 10 steps: less certain" in printed.err
    weights = plmu.load(f"{run}/model.plmu").parameters()
    assert sum(weight.numel() for weight in weights) == result("whole")["result"]["parameters"] > 0
    lines = table(printed.out)
    assert [line["shop"] for line in lines] == expected["shop"].to_list()
    assert len(lines) == SERIES * HORIZON
    for ending in ("csv", "parquet", "json"):
        main(["predict", run, "whole.parquet", "--out", f"out.{ending}", "--quiet"])
    written = [table(Path("out.csv").read_text()), pl.read_parquet("out.parquet").to_dicts()]
    for rows in (lines, *written, json.loads(Path("out.json").read_text())):
        assert [row["shop"] for row in rows] == expected["shop"].to_list()
        assert [row["day"] for row in rows] == [str(day)[:10] for day in expected["day"].to_list()]
        for ours, theirs in (("y", "y"), ("y-lo-80", "y low 80"), ("y-hi-95", "y high 95")):
            np.testing.assert_allclose([float(row[theirs]) for row in rows], expected[ours].to_numpy(), rtol=1e-7)
    assert not list(Path().glob(".*")), "nothing is left behind"


def test_a_folder_of_files(capsys: pytest.CaptureFixture[str]) -> None:
    """Whose series are named by file and id, in the order of files."""
    Path("many").mkdir()
    whole = panel(missing=False)
    for file in range(3):
        part = whole.filter((pl.col("shop") - 100) // 10 == file).sort("day", maintain_order=True)
        part.write_parquet(f"many/part-{file}.parquet")
    main(["train", "forecast", "many", *WORDS, *LARGE])
    shown = capsys.readouterr().out
    assert "3 files: 1,453 rows of 30 series" in shown
    assert "series: 10, by column 'shop'" in shown
    main(["predict", "runs/forecast-many-seed0", "many"])
    printed = table(capsys.readouterr().out)[::HORIZON]
    assert [row["shop"] for row in printed] == [f"part-{n // 10}/{n + 100}" for n in range(SERIES)]
    main(["evaluate", "runs/forecast-many-seed0"])  # on the same series
    assert f"{result('many')['scores']['mase']:.4g}"[:5] in capsys.readouterr().out


def test_a_folder_with_a_file_for_each_series(capsys: pytest.CaptureFixture[str]) -> None:
    Path("each").mkdir()
    for (number,), rows in panel(12, missing=False).partition_by("shop", as_dict=True).items():
        rows.drop("shop").write_parquet(f"each/{number}.parquet")
    main(["train", "forecast", "each", *WORDS, "--data.most-rows", "300"])
    assert "12 files: 553 rows of 12 series" in capsys.readouterr().out
    main(["predict", "runs/forecast-each-seed0", "each"])
    printed = table(capsys.readouterr().out)[::HORIZON]
    assert [row["series"] for row in printed] == [str(100 + number) for number in range(12)]


def test_a_single_series_is_held_whole(capsys: pytest.CaptureFixture[str]) -> None:
    panel(2, missing=False).filter(pl.col("shop") == 100).drop("shop").write_parquet("one.parquet")
    main(["train", "forecast", "one.parquet", *WORDS, "--data.most-rows", "20"])
    assert "large files" not in capsys.readouterr().out
    main(["predict", "runs/forecast-one-seed0", "one.parquet"])
    assert len(table(capsys.readouterr().out)) == HORIZON


def test_where_series_are_in_a_file() -> None:
    """Also by two columns, and where some rows have no name."""
    whole = pl.DataFrame({"a": [1, 1, 2, None, 1, 2], "b": ["x", "y", "x", "x", "x", "x"], "y": range(6)})
    whole.write_parquet("some.parquet")
    index = SeriesIndex.of(Path("some.parquet"), ("a", "b"))
    assert row_count(Path("some.parquet")) == 6
    assert index.series.rows() == [(1, "x", 0, 4, 2), (1, "y", 1, 1, 1), (2, "x", 2, 5, 2)]
    tables = list(index.tables(np.array([0, 2]), 3))
    assert [list(one.numbers("y")) for one in tables] == [[0, 4], [2, 5]]
    assert tables[1].place(1, "y") == "some.parquet, line 6, column 'y'"


def test_faults_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    panel().write_parquet("whole.parquet")
    train = ["train", "forecast", "whole.parquet", *WORDS]
    assert "data.most_rows must be at least 0" in refused([*train, "--data.most-rows", "-1"], capsys)
    number = pl.int_range(pl.len())
    wrong = panel().with_columns(y=pl.when(number == 1005).then(1e300).otherwise("y"))
    wrong.write_parquet("whole.parquet")
    assert "whole.parquet, line 1006, column 'y': 1e+300 is too large" in refused([*train, *LARGE], capsys)
    Path("other").mkdir()
    for number in range(2):
        panel().write_parquet(f"other/{number}.parquet")
    Path("other/2.parquet").write_bytes(b"PAR1")
    assert "2.parquet is not a Parquet file" in refused(["train", "forecast", "other", *WORDS, *LARGE], capsys)
