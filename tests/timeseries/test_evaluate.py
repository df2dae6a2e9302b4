"""`plmu evaluate` on data of the user's own: it scores the saved model, on the data of the run or on other data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from forecasts import RUN, result, written
from program import refused

import plmu
from plmu.cli.program import main

SMALL = ["--model.projections", "8", "--model.thresholds", "4", "--quiet"]
CLASSIFY = Path("runs/classify-waves-seed0")


@pytest.fixture
def load(load_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a run of forecast and its file."""
    shutil.copytree(load_folder, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    (RUN / "paths.json").write_text(json.dumps({"data.file": str(Path("load.csv").absolute())}))
    return RUN


def waves(count: int, seed: int = 0, labels: bool = True) -> str:
    """Noisy waves of two periods, a row each."""
    rng, lines = np.random.default_rng(seed), ["label," + ",".join(f"t{step}" for step in range(40))]
    for number in range(count):
        kind = number % 2
        wave = np.sin(np.arange(40) / (1 + kind) + rng.uniform(0, 6)) + 1.2 * rng.standard_normal(40)
        lines.append(",".join([("slow" if kind else "fast") * labels, *(f"{value:.3f}" for value in wave)]))
    return "\n".join([*lines, ""])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("waves")
    (folder / "waves.csv").write_text(waves(60))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main(["train", "classify", "--data.file", "waves.csv", *SMALL])
    return folder


@pytest.fixture
def classified(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    (CLASSIFY / "paths.json").write_text(json.dumps({"data.file": str(Path("waves.csv").absolute())}))
    return CLASSIFY


def scores(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    capsys.readouterr()
    main(["evaluate", *words])
    pairs = (line.rsplit(" ", 1) for line in capsys.readouterr().out.splitlines())
    return {name: float(value) for name, value in pairs}


def test_a_forecast_is_scored_by_its_saved_model(load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = result(load)["test"]
    assert scores([str(load)], capsys) == pytest.approx({"best_epoch": 1, **before}, rel=1e-5)
    model = plmu.load(load / "model.plmu")
    assert isinstance(model, plmu.nn.LookbackForecast)
    with torch.no_grad():
        model.weight.mul_(-5)
    plmu.save(model, load / "model.plmu")
    after = scores([str(load)], capsys)
    assert after["mse"] > 1.5 * before["mse"]
    assert after["linear_mse"] == pytest.approx(before["linear_mse"], rel=1e-5)
    (load / "model.plmu").unlink()
    assert "model.plmu" in refused(["evaluate", str(load)], capsys)


def test_changed_rows_stop_the_evaluation_of_a_forecast(load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path("load.csv")
    rows = file.read_text().splitlines()
    changed = [*rows[:-60], *(row.replace(",", ",9", 1) for row in rows[-60:]), ""]  # as many rows and columns
    file.write_text("\n".join(changed))
    message = refused(["evaluate", str(load)], capsys)
    assert message.endswith(
        f"load.csv is not what {load} was trained on: give that run's --data.file, or --other-data to score its model"
        " on other data"
    )


def test_a_forecast_is_scored_on_another_file(load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("later.csv").write_text(written(500, first=360))
    found = scores([str(load), "--other-data", "--data.file", "later.csv"], capsys)
    forecaster = plmu.Forecaster(6, validation=0.1, test=0.2, pooled=False).fit("load.csv")
    expected = forecaster.evaluate("later.csv")
    for name, other in (("mse", "mse"), ("mae", "mae"), ("last_value_mse", "last value mse")):
        assert found[name] == pytest.approx(expected[other], rel=1e-4)
    assert found["seasonal_last_value_mse"] == pytest.approx(expected["seasonal last value mse"], rel=1e-4)
    assert 0.6 < found["in_80_%_interval"] < found["in_95_%_interval"] <= 1
    assert found["mse_6"] == found["mse"] > found["mse_3"]
    main(["evaluate", str(load), "--other-data", "--data.file", "later.csv"])
    assert "scored: 1" in capsys.readouterr().err


def test_a_refitted_forecast_has_no_test_rows(load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "forecast", "load.csv", "--horizon", "6", "--refit", "--name", "all", "--quiet"])
    message = refused(["evaluate", "runs/all-seed0"], capsys)
    assert "was fitted to all rows after its test (--refit): runs/all-seed0/result.json has the scores" in message
    Path("later.csv").write_text(written(500, first=360))
    assert scores(["runs/all-seed0", "--other-data", "--data.file", "later.csv"], capsys)["mse"] < 1


def test_a_classifier_is_scored_by_its_saved_model(classified: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = result(classified)["test"]
    assert scores([str(classified)], capsys) == pytest.approx({"best_epoch": 1, **before}, rel=1e-5)
    assert before["accuracy"] > 0.6
    for name in ("model.plmu", "whole.plmu"):
        if not (classified / name).is_file():
            continue
        model = plmu.load(classified / name)
        assert isinstance(model, plmu.Sequential)
        with torch.no_grad():
            for parameter in model[-1].parameters():
                parameter.neg_()  # each decision is turned round
        plmu.save(model, classified / name)
    after = scores([str(classified)], capsys)
    assert after["accuracy"] == pytest.approx(1 - before["accuracy"], abs=1e-5)


def test_changed_labels_stop_the_evaluation_of_a_classifier(
    classified: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path("waves.csv").read_text()
    Path("waves.csv").write_text(text.replace("fast", "FAST").replace("slow", "fast").replace("FAST", "slow"))
    assert f"is not what {classified} was trained on" in refused(["evaluate", str(classified)], capsys)


def test_a_classifier_is_scored_on_another_file(classified: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("others.csv").write_text(waves(40, seed=1))
    words = [str(classified), "--other-data", "--data.file"]
    found = scores([*words, "others.csv"], capsys)
    report = plmu.SequenceClassifier.from_run(classified).evaluate("others.csv")
    assert found["accuracy"] == pytest.approx(report.accuracy, abs=1e-5)
    assert found["mean_f1"] == pytest.approx(report.mean_f1, abs=1e-5)
    Path("others.csv").write_text(waves(40, seed=1).replace("fast", "quick"))
    assert scores([*words, "others.csv"], capsys)["accuracy"] < 0.5
    main(["evaluate", *words, "others.csv"])
    assert "not in training: class quick; 20 series count as wrong" in capsys.readouterr().err
    Path("others.csv").write_text(waves(40, seed=1, labels=False))
    assert "others.csv has no labels to compare with" in refused(["evaluate", *words, "others.csv"], capsys)


def test_what_other_data_needs(load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def message(*words: str) -> str:
        return refused(["evaluate", str(load), "--other-data", *words], capsys)

    assert "--other-data needs a file: give it as --data.file" in message()
    assert "leave out --data.test-file" in message("--data.file", "load.csv", "--data.test-file", "load.csv")
    Path("short.csv").write_text(written(12))
    assert "short.csv has no window of" in message("--data.file", "short.csv")
    content = json.loads((load / "intervals.json").read_text())
    del content["scale"]  # as runs of earlier versions
    (load / "intervals.json").write_text(json.dumps(content))
    assert "intervals.json lacks the unit of scores" in message("--data.file", "load.csv")
    (load / "result.json").unlink()
    assert f"{load} is not finished" in message("--data.file", "load.csv")
