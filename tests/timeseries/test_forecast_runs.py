"""`plmu train forecast` and its runs, as a user types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from forecasts import HORIZON, RUN, result, written
from program import refused

from plmu.cli.program import main

MEMORY = ["--model.pooled", "False"]  # of the run in `load_run`


def test_a_run_has_scores_baselines_intervals_and_plots(load_run: Path) -> None:
    test = result(load_run)["test"]
    assert test["mse"] < 0.3 * test["last_value_mse"]
    assert test["mse"] < test["seasonal_last_value_mse"]
    assert test["linear_mse"] > 0
    assert 0.7 < test["in_80_%_interval"] <= test["in_95_%_interval"] <= 1
    assert {"mse_3", "mse_6"} <= test.keys()
    assert test["mse_6"] == test["mse"]
    for name in ("forecast.png", "errors.png"):
        assert (load_run / name).read_bytes().startswith(b"\x89PNG")
    told = json.loads((load_run / "forecast.json").read_text())
    assert len(told["mse by step ahead"]["model"]) == HORIZON
    assert len(told["backtest"]) == 2
    assert told["mae in own units"]["model"]["load"] < 3
    assert json.loads((load_run / "series.json").read_text())["season"] == 12


def test_a_run_that_lost_its_model_gets_it_again(
    load_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(load_folder, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    before = {name: (RUN / name).read_bytes() for name in ("model.plmu", "outputs.json", "intervals.json")}
    for name in before:
        (RUN / name).unlink()
    main(["train", "forecast", "--data.file", "load.csv", "--horizon", "3", "6", "--backtest", "2", *MEMORY])
    assert "model.plmu was missing: fitted it again" in capsys.readouterr().out
    assert {name: (RUN / name).read_bytes() for name in before} == before


def test_what_is_published_has_no_path(load_run: Path, load_folder: Path) -> None:
    found = result(load_run)
    command = "plmu train forecast --data.file load.csv --horizon 3 6 --backtest 2 --quiet --model.pooled False"
    assert found["command"] == command
    assert str(load_folder) not in json.dumps(found)
    assert "file" in json.loads((load_run / "data.json").read_text())["files"]


def test_the_same_command_shows_the_result_and_another_file_is_another_run(
    load_run: Path, load_folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["train", "forecast", "--data.file", "load.csv", "--horizon", "3", "6", *MEMORY, "--backtest", "2"]
    main(words)
    assert "is finished: nothing was trained" in capsys.readouterr().out
    (tmp_path / "load.csv").write_text(written(300))
    words[3] = str(tmp_path / "load.csv")
    assert "is not what runs/forecast-load-seed0 was trained on" in refused(words, capsys)
    assert "another configuration (backtest was 2, now 0)" in refused(words[:-2], capsys)


def test_evaluate_gives_the_scores_again(load_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(load_run)])
    printed = dict(line.rsplit(" ", 1) for line in capsys.readouterr().out.splitlines())
    for name, value in result(load_run)["test"].items():
        assert float(printed[name]) == pytest.approx(value, rel=1e-4)


def test_report_shows_it(load_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", "--results", "runs", "--out", str(tmp_path)])
    assert "forecast-load" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("model", ["gradient", "lstm"])
def test_models_that_are_trained(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("load.csv").write_text(written(150))
    words = [
        "train",
        "forecast",
        "--model",
        model,
        "--data.file",
        "load.csv",
        "--horizon",
        "3",
        "--training.epochs",
        "2",
    ]
    main([*words, "--quiet"])
    run = Path(f"runs/forecast-load-{model}-seed0")
    found = result(run)["test"]
    assert found["mse"] > 0
    assert (run / "model.plmu").is_file() == (model == "gradient")
    if model == "lstm":
        told = refused(["predict", str(run), "--data.file", "load.csv"], capsys)
        assert "is a baseline, whose model is not saved: train --model closed or gradient" in told
    if model == "gradient":  # it starts from the closed form
        main(["train", "forecast", *words[4:8], "--quiet"])
        assert found["mse"] == pytest.approx(result(RUN)["test"]["mse"], rel=0.2)
