"""`plmu train classify` and what is done with its runs, as a user types it."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forecasts import copied_run
from program import refused

import plmu
from plmu.cli.program import main
from plmu.cli.stream_lines import Options, show
from plmu.runs import deployed
from plmu.serve import Options as ServeOptions
from plmu.serve import make_server
from plmu.timeseries.classification_report import ClassificationReport
from plmu.timeseries.labelled import stratified

RUN = Path("runs/classify-gestures-seed0")
SMALL = ["--model.projections", "8", "--model.thresholds", "4", "--quiet"]
PERIODS = {"circle": 7, "swipe": 11, "tap": 17}


def series(count: int, seed: int = 0) -> list[tuple[str, Any]]:
    """Noisy waves of two channels and unequal lengths, whose offsets and scales say nothing."""
    rng = np.random.default_rng(seed)
    found = []
    for place in range(count):
        label = list(PERIODS)[place % 3]
        t = np.arange(rng.integers(40, 60))[:, None] + rng.uniform(0, 9)
        wave = np.sin(2 * np.pi * t / PERIODS[label]) + 0.3 * rng.standard_normal((len(t), 2))
        found.append((label, (wave * rng.uniform(0.5, 2) + rng.uniform(-3, 3)).round(4)))
    return found


def written(found: list[tuple[str, Any]], labels: bool = True) -> str:
    lines = ["series,time,x,y" + ",gesture" * labels]
    for place, (label, values) in enumerate(found):
        for step, (x, y) in enumerate(values.tolist()):
            lines.append(f"s{place},{step / 50:.2f},{x},{y}" + f",{label}" * labels)
    return "\n".join([*lines, ""])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with gestures.csv and its run, which no test changes."""
    folder = tmp_path_factory.mktemp("classify")
    (folder / "gestures.csv").write_text(written(series(48)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main(["train", "classify", "--data.file", "gestures.csv", *SMALL])
    return folder


@pytest.fixture
def run(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return RUN


def result(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "result.json").read_text())
    return found


def test_a_run_has_scores_figures_of_classes_and_a_picture(run: Path) -> None:
    test = result(run)["test"]
    assert test["accuracy"] > 0.8
    assert test["commonest_class_accuracy"] == pytest.approx(1 / 3)
    told = json.loads((run / "classify.json").read_text())
    assert list(told["classes"]) == sorted(PERIODS)
    counts = torch.tensor(told["confusion"]["counts"])
    assert counts.sum() == 12
    assert float(counts.diagonal().sum() / counts.sum()) == pytest.approx(test["accuracy"])
    assert (run / "confusion.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_command_trains_nothing_and_the_result_is_reported(run: Path, capsys: Any) -> None:
    before = (run / "result.json").stat().st_mtime_ns
    main(["train", "classify", "--data.file", "gestures.csv", *SMALL[:-1]])
    assert "is finished" in capsys.readouterr().out
    assert (run / "result.json").stat().st_mtime_ns == before
    main(["report", "--results", "runs"])
    assert "classify-gestures" in capsys.readouterr().out
    main(["evaluate", str(run)])
    assert f"accuracy {result(run)['test']['accuracy']:.6g}" in capsys.readouterr().out


def test_another_file_is_another_run(run: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "gestures.csv").write_text(written(series(48, seed=5)))
    words = ["train", "classify", "--data.file", str(tmp_path / "gestures.csv"), *SMALL]
    assert "choose another --name" in refused(words, capsys)
    assert result(run)["command"] == f"plmu train classify --data.file gestures.csv {' '.join(SMALL)}"
    assert str(run.absolute()) not in (run / "result.json").read_text()


def test_predict_gives_classes_and_probabilities(run: Path, tmp_path: Path, capsys: Any) -> None:
    others = series(18, seed=1)
    (tmp_path / "new.csv").write_text(written(others, labels=False))
    main(["predict", str(run), "--data.file", str(tmp_path / "new.csv")])
    out = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(out.out)))
    assert [row["series"] for row in rows] == [f"s{place}" for place in range(18)]
    assert np.mean([row["class"] == label for row, (label, _) in zip(rows, others, strict=True)]) > 0.8
    for row in rows:
        shares = {name: float(row[f"probability of {name}"]) for name in PERIODS}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-3)
        assert max(shares, key=shares.__getitem__) == row["class"]
    assert "18 of 40 to 59 steps" in out.err or "series: 18" in out.err
    (tmp_path / "labelled.csv").write_text(written(others))
    main(["predict", str(run), "--data.file", str(tmp_path / "labelled.csv")])
    assert "of 18 are as predicted" in capsys.readouterr().err
    (tmp_path / "one.csv").write_text("series,time,x\na,0,1\na,1,2\n")
    assert "no column 'y'" in refused(["predict", str(run), "--data.file", str(tmp_path / "one.csv")], capsys)


def test_it_streams_and_exports_with_names_of_classes(run: Path, tmp_path: Path, capsys: Any) -> None:
    found = deployed.load(run)
    assert (found.kind, found.outputs.labels) == ("classes", tuple(sorted(PERIODS)))
    _, values = series(3, seed=2)[1]
    lines = ["time,x,y", *(f"{step / 50:.2f},{x},{y}" for step, (x, y) in enumerate(values.tolist()))]
    out = io.StringIO()
    show(run, [f"{line}\n" for line in lines], Options(), out)
    answers = out.getvalue().split("\n")[:-1]
    assert len(answers) == len(values)
    model = plmu.load(run / "model.plmu")
    expected = model(torch.tensor(values, dtype=torch.float32)[None])[0][0].softmax(0)
    name, share = answers[-1].split()
    assert name == found.outputs.labels[int(expected.argmax())]
    assert float(share) == pytest.approx(float(expected.max()), abs=0.02)  # beside a threshold it may round otherwise
    main(["export", str(run), "--to", "onnx", "--out", str(tmp_path / "onnx")])
    capsys.readouterr()
    import onnx

    metadata = {one.key: one.value for one in onnx.load(next((tmp_path / "onnx").glob("*.onnx"))).metadata_props}
    assert all(name in str(metadata) for name in PERIODS)


def test_in_a_stream_of_several_series_each_is_as_alone(run: Path, capsys: Any) -> None:
    lines = written(series(2, seed=2), labels=False).splitlines(keepends=True)
    apart = []
    for name in ("s0", "s1"):
        out = io.StringIO()
        show(run, [lines[0], *(line for line in lines if line.startswith(f"{name},"))], Options(), out)
        apart.append(out.getvalue())
    out = io.StringIO()
    show(run, lines, Options(), out)
    assert out.getvalue() == "".join(apart)
    assert {line.split()[0] for line in out.getvalue().splitlines()} == {"s0", "s1"}
    first, second = ([line for line in lines if line.startswith(name)] for name in ("s0", "s1"))
    mixed = io.StringIO()
    show(run, [lines[0], *(line for pair in zip(first, second, strict=False) for line in pair)], Options(), mixed)
    answers = zip(*(text.splitlines() for text in apart), strict=False)
    assert mixed.getvalue().splitlines() == [answer for pair in answers for answer in pair]
    Path("stream.csv").write_text("".join(lines[:4]))
    main(["stream", str(run), "--input", "stream.csv"])
    assert "`plmu predict` has another" in capsys.readouterr().err


def test_it_is_served_with_names_of_classes(run: Path) -> None:
    client_of = pytest.importorskip("starlette.testclient").TestClient
    server = make_server(deployed.load(run), ServeOptions())
    client = client_of(server.app(), base_url="http://127.0.0.1")
    with client, client.websocket_connect("ws://127.0.0.1/ws") as socket:
        socket.receive_json()
        socket.send_json({"samples": [[1.0, 2.0], [0.5, 1.0]]})
        answer = socket.receive_json()
        socket.send_json({"close": True})
        assert socket.receive_json()["closed"]
    assert len(answer["outputs"]) == 2
    assert all(name in json.dumps(answer) for name in PERIODS)


def test_a_normalised_model_is_kept_beside_the_one_that_streams(run: Path, tmp_path: Path, capsys: Any) -> None:
    kind = json.loads((run / "normalization.json").read_text())["normalize"]
    assert kind is True  # offsets and scales are noise
    assert (run / "whole.plmu").is_file()
    words = ["train", "classify", "--data.file", "gestures.csv", "--model.normalize", "none", "--name", "plain", *SMALL]
    main([*words, "--runs", str(tmp_path)])
    capsys.readouterr()
    assert not (tmp_path / "plain-seed0" / "whole.plmu").exists()
    main(["predict", str(tmp_path / "plain-seed0"), "--data.file", "gestures.csv"])
    assert "of 48 are as predicted" in capsys.readouterr().err


def test_the_files_that_are_copied_suffice(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    main(["predict", str(run), "gestures.csv", "--quiet", "--out", str(tmp_path / "out.json")])
    rows = json.loads((tmp_path / "out.json").read_text())
    assert [row["series"] for row in rows] == [f"s{place}" for place in range(48)]
    assert sum(rows[0][f"probability of {name}"] for name in PERIODS) == pytest.approx(1, abs=3e-4)
    capsys.readouterr()
    main(["predict", str(run), "gestures.csv", "--quiet"])
    predicted = capsys.readouterr().out
    copied_run(run, tmp_path / "copy", "predict")
    shutil.copy("gestures.csv", tmp_path / "new.csv")
    monkeypatch.chdir(tmp_path)
    main(["predict", "copy", "new.csv", "--quiet"])
    assert capsys.readouterr().out == predicted


def test_a_lost_model_is_made_again(run: Path, tmp_path: Path, capsys: Any) -> None:
    copy = tmp_path / "runs" / RUN.name
    shutil.copytree(run, copy)
    lost = {name: (copy / name).read_bytes() for name in ("model.plmu", "whole.plmu", "outputs.json")}
    for name in lost:
        (copy / name).unlink()
    main(["train", "classify", "--data.file", "gestures.csv", "--runs", str(tmp_path / "runs"), *SMALL])
    capsys.readouterr()
    assert {name: (copy / name).read_bytes() for name in lost} == lost


def test_a_test_file_and_gradient_training(run: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "test.csv").write_text(written([*series(12, seed=3), ("unknown", np.zeros((5, 2)))]))
    words = ["train", "classify", "--model", "gradient", "--data.file", "gestures.csv", "--training.epochs", "3"]
    main([*words, "--data.test-file", str(tmp_path / "test.csv"), "--runs", str(tmp_path), *SMALL[:-1]])
    out = capsys.readouterr().out
    assert "test.csv: not in training: class unknown; 1 series counts as wrong" in out
    found = result(tmp_path / "classify-gestures-gradient-seed0")
    assert found["test"]["accuracy"] > 0.7
    assert "--data.test-file test.csv" in found["command"]
    run = tmp_path / "classify-gestures-gradient-seed0"
    report = json.loads((run / "classify.json").read_text())
    assert report["classes"]["unknown"]["series"] == 1
    assert found["test"]["accuracy"] == sum(row[i] for i, row in enumerate(report["confusion"]["counts"])) / 13
    capsys.readouterr()
    main(["predict", str(run), "--data.file", str(tmp_path / "test.csv")])
    assert "not in training: class unknown; 1 series counts as wrong" in capsys.readouterr().err
    (tmp_path / "test.csv").rename(tmp_path / "moved.csv")
    assert "give --data.test-file" in refused(["evaluate", str(run)], capsys)
    main(["evaluate", str(run), "--data.test-file", str(tmp_path / "moved.csv")])
    assert f"accuracy {found['test']['accuracy']:.6g}" in capsys.readouterr().out


def test_a_column_of_ids_named_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("odd.csv").write_text(written(series(12)).replace("series,", "class,", 1))
    main(["train", "classify", "--data.file", "odd.csv", "--data.id", "class", "--data.label", "gesture", *SMALL])
    capsys.readouterr()
    main(["predict", "runs/classify-odd-seed0", "--data.file", "odd.csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows[0]["class"] == "s0"
    assert {row["predicted class"] for row in rows} <= set(PERIODS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (written([("a", np.ones((3, 2))), ("a", np.zeros((4, 2)))]), "only one class"),
        (written([("a", np.ones((3, 2))), ("b", np.zeros((4, 2)))]), "no class has two series"),
        ("series,time,x,gesture\na,0,oops,up\na,1,2,up\nb,0,3,up\nb,1,3,up\n", "line 2, column 'x': 'oops'"),
        ("", "empty"),
        ("series,time,x\na,0,1\na,1,2\nb,0,3\nb,1,3\n", "no labels"),
    ],
)
def test_what_cannot_be_trained_on_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, content: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.csv").write_text(content)
    assert message in refused(["train", "classify", "--data.file", "bad.csv"], capsys)


def test_single_series_single_steps_and_gaps_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    found = [*series(12), ("rare", np.ones((1, 2))), ("pair", np.ones((40, 2))), ("pair", np.zeros((40, 2)))]
    text = written(found).replace("s0,0.02,", "s0,0.02,nan,1,circle\ns0,0.03,", 1)
    Path("odd.csv").write_text(text)
    main(["train", "classify", "--data.file", "odd.csv", *SMALL[:-1]])
    out = capsys.readouterr().out
    assert "classes with a single series, which is trained on and not tested: rare\n" in out
    assert "gaps: 1 missing values joined linearly" in out
    assert "15 of 1 to" in out


def test_the_split_keeps_a_series_of_each_class() -> None:
    labels = [*"aaaaaaaa", *"bb", "c"]
    found = stratified(labels, 0.25, np.random.default_rng(0))
    assert sorted(labels[i] for i in found) == ["a", "a", "b"]


def test_scores_of_classes() -> None:
    truth, predicted = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 2])
    report = ClassificationReport.of("abc", truth, predicted, 0)
    assert report.confusion.tolist() == [[2, 1, 0], [0, 1, 1], [0, 0, 0]]
    scores = report.by_class()
    assert (scores[0]["precision"], scores[0]["recall"]) == (1, pytest.approx(2 / 3))
    assert scores[1] == {"series": 2, "precision": 0.5, "recall": 0.5, "f1": 0.5}
    assert scores[2]["f1"] == 0
    assert (report.accuracy, report.mean_f1) == (0.6, pytest.approx(0.65))
    assert report.baseline.confusion.tolist() == [[3, 0, 0], [2, 0, 0], [0, 0, 0]]
    assert (report.baseline.accuracy, report.baseline.mean_f1) == (0.6, pytest.approx(0.375))
