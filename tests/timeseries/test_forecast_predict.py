"""`plmu predict` of runs of forecast, as a user types it."""

from __future__ import annotations

import errno
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from forecasts import COUNT, HORIZON, copied_run, result, table, values, written
from program import refused

from plmu.cli.program import main
from plmu.runs import predict
from plmu.timeseries import forecast_experiment, forecast_plots


def test_predict_goes_beyond_the_last_row(load_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["predict", str(load_run), "--data.file", "load.csv"])
    shown = capsys.readouterr()
    rows = table(shown.out)
    assert [row["time"] for row in rows][:2] == ["2024-01-31 00:00", "2024-01-31 02:00"]
    assert len(rows) == HORIZON
    truth = values(COUNT + HORIZON)[COUNT:]
    for row, (load, temp) in zip(rows, truth, strict=True):
        assert float(row["load low 95"]) <= float(row["load low 80"]) < float(row["load high 80"])
        assert abs(float(row["load"]) - load) < 4
        assert abs(float(row["temp"]) - temp) < 4
    assert "every 2 h from" in shown.err
    main(["predict", str(load_run), "--data.file", "load.csv", "--out", str(tmp_path / "out.csv"), "--quiet"])
    assert (tmp_path / "out.csv").read_text() == shown.out
    numbers = [{name: cell if name == "time" else float(cell) for name, cell in row.items()} for row in rows]
    for name, read in (("out.json", lambda path: json.loads(path.read_text())), ("out.PARQUET", parquet_rows)):
        main(["predict", str(load_run), "load.csv", "--out", str(tmp_path / name), "--quiet"])
        assert read(tmp_path / name) == numbers


def parquet_rows(path: Path) -> list[dict[str, object]]:
    return pl.read_parquet(path).to_dicts()


@pytest.mark.parametrize("name", ["plot.png", "out.tsv", "out.csv.gz"])
def test_predict_writes_no_other_kinds_of_files(
    name: str, load_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    message = refused(["predict", str(load_run), "load.csv", "--out", str(tmp_path / name)], capsys)
    assert f"{name} ends in {Path(name).suffix}: predictions are written as .csv, .parquet, .json" in message
    assert not (tmp_path / name).exists()


def test_the_files_that_are_copied_suffice(
    load_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["predict", str(load_run), "load.csv", "--quiet"])
    predicted = capsys.readouterr().out
    copied_run(load_run, tmp_path / "predict", "predict")
    copied_run(load_run, tmp_path / "stream", "stream")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.csv").write_text(written())
    main(["predict", "predict", "new.csv", "--quiet"])
    assert capsys.readouterr().out == predicted
    monkeypatch.setattr("sys.stdin", io.StringIO(written()))
    main(["stream", "stream", "--json"])
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["forecast"]["load"][0] == pytest.approx(float(table(predicted)[0]["load"]), rel=1e-5)


def test_predict_that_fails_leaves_the_file_that_was_there(
    load_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def full(stream: io.TextIOBase, **_: Any) -> None:
        stream.write("half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "out.csv").write_text("old")
    monkeypatch.setattr(predict.csv, "writer", full)
    given = ["predict", str(load_run), "--data.file", "load.csv", "--out", str(tmp_path / "out.csv")]
    assert "No space left on device" in refused(given, capsys)
    assert (tmp_path / "out.csv").read_text() == "old"


def test_predict_reads_another_file_with_its_own_faults(
    load_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Semicolons, decimal commas, another order of columns, rows to come without values."""
    lines = written().splitlines()[1:]
    rows = [";".join([b, "x", t, a]).replace(".", ",") for t, a, b in (line.split(",") for line in lines)]
    (tmp_path / "new.csv").write_text("\n".join(["temp;more;time;load", *rows, ";y;2024-01-31 00:00;", ""]))
    outputs = []
    for name in ("load.csv", str(tmp_path / "new.csv")):
        main(["predict", str(load_run), "--data.file", name, "--quiet"])
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    (tmp_path / "new.csv").write_text("time,load\n2024-01-01,5\n")
    assert "has no column 'temp'" in refused(
        ["predict", str(load_run), "--data.file", str(tmp_path / "new.csv")], capsys
    )


def test_predict_takes_options_for_the_faults_of_another_file(
    load_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What an error tells to give can be given."""
    lines = written().splitlines()
    lines[-1] = lines[-1].rpartition(",")[0] + ",off"
    lines.insert(-1, lines[-2].replace("2024-01-30 20:00", "2024-01-30 20:00:00"))
    (tmp_path / "new.csv").write_text("\n".join([*lines, ""]))
    words = ["predict", str(load_run), "--data.file", str(tmp_path / "new.csv")]
    fault = refused(words, capsys)
    assert "line 362, column 'temp': 'off' is not a number" in fault
    assert "give --data.bad missing" in fault
    words += ["--data.bad", "missing"]
    again = refused([*words, "--data.duplicates", "raise"], capsys)
    assert "choose --data.duplicates mean, sum, first or last" in again
    assert "choose --data.missing hold, linear or split" in refused([*words, "--data.missing", "raise"], capsys)
    main([*words, "--data.duplicates", "last"])
    shown = capsys.readouterr()
    assert table(shown.out)[0]["time"] == "2024-01-31 00:00"
    assert "rows on the step of another: 1; the last is taken" in shown.err
    assert "gaps: 1 of 360 steps lack a value; filled with the last value\n" in shown.err
    assert "--data.longest-gap must be at least 0, got -1" in refused([*words, "--data.longest-gap", "-1"], capsys)
    (tmp_path / "far.csv").write_text("time,load,temp\n" + "".join(f"{1900 + i}-01-01,1,2\n" for i in range(100)))
    words[3] = str(tmp_path / "far.csv")
    fault = refused(words, capsys)
    assert fault.endswith("are more than 48 such steps apart: give --data.longest-gap")
    Path(words[3]).write_text(written().replace(lines[9].split(",")[1], "-999").replace(lines[8].split(",")[1], "-999"))
    main(words)
    assert "give --data.absent -999" in capsys.readouterr().err
    main([*words, "--data.absent", "-999"])
    assert "2 values taken as missing: -999" in capsys.readouterr().err
    Path(words[3]).write_text("time,load,temp\n" + "".join(f"{3600 * i},1,2\n" for i in range(9)))
    assert "column 'time' of" in (fault := refused(words, capsys))
    assert fault.endswith("has numbers, and the model was trained on dates")
    Path(words[3]).write_text(written(20).partition("\n")[2])
    assert "has no column 'load': it has 'column 1', 'column 2', 'column 3'; its first line names no columns" in (
        refused(words, capsys)
    )


def test_predict_needs_a_finished_run_that_predicts(
    load_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(load_run, tmp_path / "a-seed0")
    (tmp_path / "a-seed0" / "result.json").unlink()
    assert "is not finished" in refused(["predict", str(tmp_path / "a-seed0"), "--data.file", "load.csv"], capsys)
    shutil.copytree(load_run, tmp_path / "b-seed0")
    (tmp_path / "b-seed0" / "intervals.json").write_text("{")
    assert "intervals.json is missing or damaged" in refused(
        ["predict", str(tmp_path / "b-seed0"), "--data.file", "load.csv"], capsys
    )


def test_series_that_were_not_trained_on_are_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    waves = values(200)[:, 0]

    def sales(shops: dict[str, int], count: int) -> str:
        rows = [f"{np.datetime64('2023-01-01') + i},{shop},{size * waves[i]:.3f}"
                for shop, size in shops.items() for i in range(count)]  # fmt: skip
        return "\n".join(["day,shop,sales", *rows, ""])

    Path("shops.csv").write_text(sales({"a": 1, "b": 10}, 180))
    main(["train", "forecast", "--data.file", "shops.csv", "--horizon", "4", "--refit"])
    shown = capsys.readouterr().out
    assert "series: named by column 'shop'" in shown
    assert "fitted to all rows" in shown
    Path("new.csv").write_text(sales({"c": 100, "b": 10}, 190))
    main(["predict", "runs/forecast-shops-seed0", "--data.file", "new.csv", "--quiet"])
    rows = table(capsys.readouterr().out)
    assert [row["shop"] for row in rows] == ["c"] * 4 + ["b"] * 4
    wide = [float(row["sales high 80"]) - float(row["sales low 80"]) for row in rows]
    assert wide[0] == pytest.approx(10 * wide[4], rel=1e-3)  # intervals are relative to the size of each series
    truth = 100 * waves[190:194]
    assert all(abs(float(row["sales"]) - one) < 400 for row, one in zip(rows, truth, strict=False))


def test_rows_without_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The place in the season is seen from the values."""
    monkeypatch.chdir(tmp_path)
    np.save("waves.npy", values(240))
    words = ["train", "forecast", "--data.file", "waves.npy", "--horizon", "4", "--intervals", "0.9", "--lstm"]
    monkeypatch.setattr(forecast_experiment, "LSTM_TRAINING", replace(forecast_experiment.LSTM_TRAINING, epochs=1))
    main([*words, "--quiet"])
    assert result(Path("runs/forecast-waves-seed0"))["test"]["LSTM_mse"] > 0
    np.save("later.npy", values()[5:345])
    capsys.readouterr()
    main(["predict", "runs/forecast-waves-seed0", "--data.file", "later.npy"])
    rows = table(capsys.readouterr().out)
    assert [row["row"] for row in rows] == ["341", "342", "343", "344"]
    assert all(abs(float(row["value 1"]) - load) < 4 for row, load in zip(rows, values()[345:, 0], strict=False))


def test_large_values_with_small_changes_keep_their_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as readings of a meter. No intervals are asked for."""
    monkeypatch.chdir(tmp_path)
    readings = 123_456_789 + np.cumsum(1 + 0.5 * np.sin(np.arange(300) * 2 * np.pi / 12))
    Path("meter.csv").write_text("\n".join(["t,kWh", *(f"{i},{one:.3f}" for i, one in enumerate(readings[:280])), ""]))
    main(["train", "forecast", "--data.file", "meter.csv", "--horizon", "5", "--intervals", "--quiet"])
    capsys.readouterr()
    main(["predict", "runs/forecast-meter-seed0", "--data.file", "meter.csv", "--quiet"])
    rows = table(capsys.readouterr().out)
    assert list(rows[0]) == ["t", "kWh"]
    np.testing.assert_allclose(
        [float(row["kWh"]) - 123_456_789 for row in rows], readings[280:285] - 123_456_789, atol=0.6
    )


def test_irregular_rows_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("load.csv").write_text(written(150))
    main(["train", "forecast", "--data.file", "load.csv", "--horizon", "3", "--data.irregular", "rows", "--quiet"])
    capsys.readouterr()
    main(["predict", "runs/forecast-load-seed0", "--data.file", "load.csv", "--quiet"])
    assert [row["row"] for row in table(capsys.readouterr().out)] == ["151", "152", "153"]


def test_fewer_steps_ahead(load_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["predict", str(load_run), "load.csv", "--quiet"])
    whole = table(capsys.readouterr().out)
    main(["predict", str(load_run), "load.csv", "--quiet", "--horizon", "2"])
    part = table(capsys.readouterr().out)
    assert len(part) == 2
    for row, same in zip(part, whole, strict=False):
        assert row.pop("time") == same["time"]
        np.testing.assert_allclose([float(row[name]) for name in row], [float(same[name]) for name in row], rtol=1e-8)
    for wrong in ("0", "7"):
        message = refused(["predict", str(load_run), "load.csv", "--horizon", wrong], capsys)
        assert f"--horizon must be an integer from 1 to 6, which was fitted, got {wrong}" in message


def test_a_picture_of_forecasts(load_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, start in (("a.png", b"\x89PNG"), ("b.svg", b"<?xml")):
        main(["predict", str(load_run), "load.csv", "--quiet", "--plot", str(tmp_path / name)])
        shown = capsys.readouterr()
        assert len(table(shown.out)) == HORIZON
        assert shown.err == f"wrote {tmp_path / name}\n"
        assert (tmp_path / name).read_bytes().startswith(start)
    message = refused(["predict", str(load_run), "load.csv", "--plot", str(tmp_path / "c.csv")], capsys)
    assert "c.csv does not end in .png, .pdf, .svg: a picture is written as one of these" in message


def test_a_picture_says_how_many_series_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    waves = values(120)[:, 0]
    rows = [f"{np.datetime64('2023-01-01') + i},{shop},{waves[i]:.3f}" for shop in "abcdefgh" for i in range(120)]
    Path("shops.csv").write_text("\n".join(["day,shop,sales", *rows, ""]))
    main(["train", "forecast", "shops.csv", "--horizon", "4", "--model.lookback", "24", "--quiet"])
    titles: list[str] = []
    monkeypatch.setattr(forecast_plots, "write_plot", lambda figure, path: titles.append(figure.get_suptitle()))
    capsys.readouterr()
    main(["predict", "runs/forecast-shops-seed0", "shops.csv", "--quiet", "--plot", "p.png", "--horizon", "3"])
    assert titles == ["Forecasts of 3 steps, 6 of 8 series (2 left out)"]
    assert "p.png shows 6 of 8 series; 2 are left out\n" in capsys.readouterr().err
