"""A folder of many series, forecast by two processes as by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from plmu.cli.program import main
from plmu.errors import DataError
from plmu.timeseries.series import SeriesConfig, SeriesData, load
from plmu.training.processes import Processes

HORIZON = 6
WORKER = str(Path(__file__).parent / "forecast_worker.py")
TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def written(folder: Path, files: int = 3, series: int = 8) -> None:
    """A folder of Parquet files in long format, with series of unequal lengths; the first file is not in order."""
    polars = pytest.importorskip("polars")
    rng = np.random.default_rng(0)
    folder.mkdir()
    for file in range(files):
        rows = []
        for number in range(series):
            k = np.arange(84 - 5 * (number % 3))
            level = 10.0 * (1 + number + file)
            values = level * (1 + 0.2 * np.sin(2 * np.pi * k / 12) + 0.05 * rng.standard_normal(len(k)))
            months = np.datetime64("2010-01") + k
            rows.append(polars.DataFrame({"shop": f"s{number}", "month": months.astype("datetime64[us]"), "y": values}))
        table = polars.concat(rows)
        table = table.sort("month", "y") if file == 0 else table
        table.write_parquet(folder / f"part-{file}.parquet")


def trained(words: list[str], launch: list[str], runs: Path) -> dict[str, Any]:
    """What a run wrote, and what it printed."""
    command = [sys.executable, *launch, WORKER, "train", "forecast", *words, "--runs", str(runs)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=env)
    folder = runs / "forecast-panel-seed0"
    read = {
        name: json.loads((folder / f"{name}.json").read_text())
        for name in ("result", "series", "intervals", "forecast")
    }
    return {**read, "weights": load_file(folder / "model.plmu"), "shown": done.stdout, "folder": folder}


def flat(content: Any) -> list[float]:
    """All numbers of JSON, in order."""
    if isinstance(content, dict):
        content = list(content.values())
    return [x for part in content for x in flat(part)] if isinstance(content, list) else [content]


def test_two_processes_forecast_as_one(tmp_path: Path) -> None:
    """The same members, and weights, scores and intervals within the rounding of sums: each process reads some of the
    files; one of them has fewer."""
    written(tmp_path / "panel")
    words = [str(tmp_path / "panel"), "--horizon", str(HORIZON), "--model.season", "12", "--refit", "--backtest", "2"]
    one, two = (trained(words, launch, tmp_path / name) for name, launch in (("one", []), ("two", TWO)))
    assert (one["result"]["processes"], two["result"]["processes"]) == (1, 2)
    assert two["series"] == one["series"]
    lines = {line for line in one["shown"].splitlines() if not line.startswith(("wrote", "next"))}
    assert lines - {*two["shown"].splitlines()} == set()
    assert "series: 24, by column 'shop'" in lines
    assert "members: " in one["shown"]
    assert two["weights"].keys() == one["weights"].keys()
    # Gram matrices of some 40 blocks of float32; the smallest penalty, 1e-3 of a feature's power, bounds the condition.
    rounding = 40 * np.finfo(np.float32).eps / 1e-3
    for name, weights in one["weights"].items():
        np.testing.assert_allclose(two["weights"][name], weights, rtol=1e-3, atol=rounding * np.abs(weights).max())
    for name in ("valid", "test"):
        assert two["result"][name] == pytest.approx(one["result"][name], rel=1e-5)
    for name in ("intervals", "forecast"):
        assert flat(two[name]) == pytest.approx(flat(one[name]), rel=1e-4, abs=1e-6)


def test_what_two_processes_fitted_is_scored_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its weights are not those of a fit by one, and it is of the same data."""
    written(tmp_path / "panel", files=2, series=4)
    words = [str(tmp_path / "panel"), "--horizon", str(HORIZON), "--model.season", "12"]
    run = trained(words, TWO, tmp_path / "runs")
    main(["evaluate", str(run["folder"])])
    assert f"{run['result']['test']['mase']:.4g}"[:5] in capsys.readouterr().out


class Threads(Processes):
    """Processes that are threads."""

    values: dict[int, Any]
    barrier: Barrier

    def gathered(self, value: Any) -> list[Any]:
        self.values[self.rank] = value
        self.barrier.wait(60)
        values = [self.values[rank] for rank in range(self.count)]
        self.barrier.wait(60)
        return values


def read(config: SeriesConfig, count: int) -> list[SeriesData | DataError]:
    """What each of several processes reads, or the error that it raises."""
    values: dict[int, Any] = {}
    barrier = Barrier(count)

    def one(rank: int) -> SeriesData | DataError:
        processes = Threads(rank, count, torch.device("cpu"))
        object.__setattr__(processes, "values", values)
        object.__setattr__(processes, "barrier", barrier)
        try:
            return load(config, processes=processes)
        except DataError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.mark.parametrize("most_rows", [0, 900])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_processes_hold_what_one_reads(count: int, most_rows: int, tmp_path: Path) -> None:
    """Each reads some of the files; where there are fewer files than processes, each reads all."""
    written(tmp_path / "panel")
    config = SeriesConfig(file=tmp_path / "panel", most_rows=most_rows)
    expected = load(config)
    assert len(expected.pieces) == (24 if not most_rows else 11)
    for data in read(config, count):
        assert isinstance(data, SeriesData)
        assert (data.columns, data.clock, data.notes) == (expected.columns, expected.clock, expected.notes)
        for piece, other in zip(data.pieces, expected.pieces, strict=True):
            assert (piece.name, piece.start) == (other.name, other.start)
            assert np.array_equal(piece.values, other.values)


def test_an_error_in_one_file_is_that_of_all_processes(tmp_path: Path) -> None:
    written(tmp_path / "panel")
    (tmp_path / "panel/part-2.parquet").write_bytes(b"PAR1")
    for most_rows in (0, 900):
        for error in read(SeriesConfig(file=tmp_path / "panel", most_rows=most_rows), 2):
            assert "part-2.parquet is not a Parquet file" in str(error)
