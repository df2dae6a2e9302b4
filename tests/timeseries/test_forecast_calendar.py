"""Runs of forecast on days: a course over the week and the year."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from forecasts import result, table

from plmu.cli.program import main
from plmu.cli.stream_lines import Options, show

ROWS, KNOWN = 1600, 1580


def written(first: int = 0, end: int = KNOWN) -> str:
    """Days from 2020 on, with a year that a window of 40 days does not show."""
    k, rng = np.arange(ROWS), np.random.default_rng(0)
    sold = 50 + 9 * np.sin(2 * np.pi * k / 365.2425) + 4 * (k % 7 > 4) + rng.standard_normal(ROWS)
    days = np.datetime64("2020-03-01") + k
    return "\n".join(["day,sold", *(f"{days[i]},{sold[i]:.3f}" for i in range(first, end)), ""])


def test_a_run_predicts_and_streams_with_the_course(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sold.csv").write_text(written())
    words = ["train", "forecast", "--data.file", "sold.csv", "--horizon", "28", "--model.lookback", "40"]
    main(words)
    shown = capsys.readouterr().out
    assert "; a profile of the week and the year is tried" in shown
    assert "season: the profile of the calendar is used" in shown
    main([*words, "--model.no-calendar", "--name", "plain"])
    shown = capsys.readouterr().out
    assert "profile" not in shown
    errors = [result(Path("runs") / name)["test"]["mse"] for name in ("forecast-sold-seed0", "plain-seed0")]
    assert errors[0] < 0.8 * errors[1]
    Path("late.csv").write_text(written(first=900, end=1200))
    main(["predict", "runs/forecast-sold-seed0", "--data.file", "late.csv", "--quiet"])
    rows = table(capsys.readouterr().out)
    assert rows[0]["day"] == "2023-06-14"
    out = io.StringIO()
    show(
        Path("runs/forecast-sold-seed0"),
        written(first=900, end=1200).splitlines(keepends=True),
        Options(json=True),
        out,
    )
    ahead = json.loads(out.getvalue().splitlines()[-1])["forecast"]["sold"]
    np.testing.assert_allclose(ahead, [float(row["sold"]) for row in rows], rtol=1e-4)
