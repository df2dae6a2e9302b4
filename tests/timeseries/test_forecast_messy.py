"""Tables as people have them: `plmu train forecast` reads them and says what it did, or names line and column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from forecasts import table, written
from program import refused

from plmu.cli.program import main

# Shops that open when another closes: all are split at the same times.
SHOPS = "\n".join(
    ["day,shop,sold"]
    + [f"{np.datetime64('2023-01-01') + i},a,{i % 7}" for i in range(50)]
    + [f"{np.datetime64('2023-01-01') + i},{shop},{i % 5}" for shop in "bc" for i in range(20, 120)]
)


def test_a_messy_file_is_forecast_and_says_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Byte-order mark, semicolons, decimal commas, two formats of dates, a gap, a duplicate, a constant column, text in
    a column of numbers, an empty line."""
    monkeypatch.chdir(tmp_path)
    lines = []
    for i, line in enumerate(written(200).splitlines()[1:]):
        stamp, load, temp = line.split(",")
        if i % 5 == 0:
            stamp = f"{stamp[8:10]}.{stamp[5:7]}.{stamp[:4]} {stamp[11:]}"
        if i == 50:
            load = "defekt"
        if i not in (70, 71, 72):
            lines.append(f"{stamp};{load.replace('.', ',')};{temp.replace('.', ',')};1;Halle 3")
        if i == 90:
            lines += [lines[-1], ""]
    content = "\n".join(["Zeit;Last;Temp;Status;Ort", *lines, ""])
    Path("messy.csv").write_bytes(b"\xef\xbb\xbf" + content.encode())
    words = ["train", "forecast", "--data.file", "messy.csv", "--horizon", "4"]
    assert "messy.csv, line 52, column 'Last': 'defekt' is not a number" in refused(words, capsys)
    main([*words, "--data.bad", "missing"])
    shown = capsys.readouterr().out
    for note in (
        "byte-order mark left out",
        "semicolons between fields",
        "decimal commas",
        "1 empty line left out",
        "column 'Zeit': dates in 2 formats",
        "column 'Last': 1 cell of text taken as missing, the first 'defekt' in line 52",
        "left out, no numbers: Ort",
        "left out, constant: Status",
        "values: Last, Temp",
        "every 2 h from 2024-01-01 00:00 to 2024-01-17 14:00",
        "times: rows on the step of another: 1; averaged",
        "gaps: 4 of 200 steps lack a value; filled with the last value, and not scored",
    ):
        assert note in shown
    main(["predict", "runs/forecast-messy-seed0", "--data.file", "messy.csv", "--quiet"])
    assert table(capsys.readouterr().out)[0]["Zeit"] == "2024-01-17 16:00"


@pytest.mark.parametrize(
    ("content", "options", "fault"),
    [
        ("", [], "is empty: it has no rows"),
        ("time,load\n", [], "has no rows of data"),
        (
            "time,load\n2024-01-01,1\n",
            [],
            "too few to forecast 1 step ahead and to test it: give at least 7",
        ),
        ("time,load\n2024-01-01,1\n2024-01-02,x\n2024-01-03,3\n", [], "line 3, column 'load': 'x' is not a number"),
        ("time,load\n2024-01-01,1\n2024-13-02,2\n", [], "line 3, column 'time': '2024-13-02' is not a date"),
        (written(100), ["--data.values", "laod"], "no column 'laod'"),
        (written(100), ["--horizon", "0"], "horizon must be at least 1"),
        (
            written(100),
            ["--horizon", "90"],
            "too few to forecast 90 steps ahead and to test it: give at least 184 or a",
        ),
        (written(100), ["--horizon", "90", "--model.pooled", "False"], "too few to forecast 90 steps ahead: give at"),
        (SHOPS, ["--horizon", "60"], "has 100 consecutive rows, too few to forecast 60 steps ahead and to test it"),
        (
            SHOPS,
            ["--horizon", "60", "--model.pooled", "False"],
            "give more, of which 64 come before the validation rows (now 63), or a smaller",
        ),
        (written(100), ["--horizon", "15", "--model.pooled", "False"], "the valid rows, 10 % of 100, hold no window"),
        (written(100), ["--model.lookback", "99"], "--model.lookback must be at most"),
        (written(100), ["--intervals", "80"], "intervals must lie between 0 and 1"),
        (written(100), ["--data.test", "0.9"], "data.test must be a share"),
    ],
)
def test_wrong_use_is_one_message(
    content: str, options: list[str], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("my.csv").write_text(content)
    assert fault in refused(["train", "forecast", "--data.file", "my.csv", *options], capsys)


def test_a_file_must_be_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "forecast needs a file of your own" in (fault := refused(["train", "forecast"], capsys))
    assert "plmu train forecast my.csv" in fault
    assert "no.csv is not there" in refused(["train", "forecast", "--data.file", "no.csv"], capsys)
