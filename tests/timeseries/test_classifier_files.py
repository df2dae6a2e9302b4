"""`SequenceClassifier` on files, as `plmu train classify` and `plmu predict` do it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plmu
from plmu.cli.program import main
from plmu.timeseries import read_labelled

PERIODS = {"circle": 7, "swipe": 11, "tap": 17}
SMALL = {"projections": 8, "thresholds": 4}


def write_table(path: Path, count: int, seed: int, labels: bool = True) -> list[str]:
    """Write noisy waves of two channels and unequal lengths; return their labels."""
    rng = np.random.default_rng(seed)
    lines, names = ["series,time,x,y" + ",gesture" * labels], []
    for number in range(count):
        name = list(PERIODS)[number % 3]
        names.append(name)
        t = np.arange(rng.integers(40, 60))[:, None] + rng.uniform(0, 9)
        wave = np.sin(2 * np.pi * t / PERIODS[name]) + 0.6 * rng.standard_normal((len(t), 2))
        for step, (x, y) in enumerate((wave * rng.uniform(0.5, 2) + rng.uniform(-3, 3)).round(4).tolist()):
            lines.append(f"s{number},{step / 50:.2f},{x},{y}" + f",{name}" * labels)
    path.write_text("\n".join([*lines, ""]))
    return names


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables of gestures and a run of classify, which no test changes."""
    path = tmp_path_factory.mktemp("gestures")
    write_table(path / "gestures.csv", 48, seed=0)
    write_table(path / "test.csv", 15, seed=3)
    write_table(path / "new.csv", 15, seed=3, labels=False)
    words = ["train", "classify", "--data.file", str(path / "gestures.csv"), "--runs", str(path / "runs"), "--quiet"]
    main([*words, "--model.projections", "8", "--model.thresholds", "4"])
    return path


def test_a_file_is_read_split_fitted_and_evaluated_like_a_run(folder: Path, tmp_path: Path) -> None:
    run = folder / "runs" / "classify-gestures-seed0"
    train, test = read_labelled(folder / "gestures.csv").split(test=0.25, seed=0)
    assert (len(train), len(test), train.classes, train.channels) == (36, 12, tuple(sorted(PERIODS)), 2)
    assert set(train.names) | set(test.names) == {f"s{number}" for number in range(48)}
    classifier = plmu.SequenceClassifier(**SMALL).fit(train)
    report = classifier.evaluate(test)
    scores = json.loads((run / "result.json").read_text())["test"]
    assert scores == {
        "accuracy": report.accuracy,
        "mean_f1": report.mean_f1,
        "commonest_class_accuracy": report.baseline.accuracy,
    }
    assert json.loads((run / "classify.json").read_text())["confusion"]["counts"] == report.confusion.tolist()
    saved = plmu.load(run / "whole.plmu").state_dict()
    assert all((saved[name] == value).all() for name, value in classifier.model.state_dict().items())
    lines = str(report).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines] == ["class", *train.classes, "test:", "model", "most"]
    report.plot(tmp_path / "confusion.png")
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")


def test_paths_stand_for_what_is_read_from_them(folder: Path) -> None:
    classifier = plmu.SequenceClassifier(**SMALL).fit(folder / "gestures.csv")
    assert classifier.class_count_.tolist() == [16, 16, 16]
    test = classifier.read(folder / "test.csv")
    assert classifier.score(folder / "test.csv") == classifier.score(test) == classifier.score(test.series, test.labels)
    assert classifier.evaluate(str(folder / "test.csv")).accuracy == classifier.score(test)
    new = classifier.read(folder / "new.csv")
    assert new.labels == [None] * 15
    predicted = classifier.predict(folder / "new.csv")
    assert (predicted == classifier.predict(test.series)).all()
    assert (predicted == classifier.classes_[classifier.predict_proba(new).argmax(axis=1)]).all()
    assert [series.shape for series in classifier.prepare(new)] == [series.shape for series in test.series]


def test_a_run_is_loaded_as_a_classifier(folder: Path, tmp_path: Path, capsys: Any) -> None:
    run = folder / "runs" / "classify-gestures-seed0"
    classifier = plmu.SequenceClassifier.from_run(run)
    main(["predict", str(run), "--data.file", str(folder / "new.csv")])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["class"] for row in rows] == classifier.predict(folder / "new.csv").tolist()
    assert classifier.evaluate(folder / "test.csv").baseline.accuracy == pytest.approx(1 / 3)
    for file in ("series.json", "whole.plmu", "model.plmu"):
        (tmp_path / file).write_bytes((run / file).read_bytes())
    with pytest.raises(plmu.errors.RunError, match=r"normalization\.json is missing or damaged"):
        plmu.SequenceClassifier.from_run(tmp_path)
    (tmp_path / "normalization.json").write_text('{"normalize": true}')  # as older versions wrote it
    report = plmu.SequenceClassifier.from_run(tmp_path).evaluate(folder / "test.csv")
    assert report.accuracy == classifier.score(folder / "test.csv")
    assert "most frequent" not in str(report)
    with pytest.raises(ValueError, match="most frequent class of the training series is unknown"):
        _ = report.baseline


def test_what_does_not_fit_is_named(folder: Path) -> None:
    data = read_labelled(folder / "gestures.csv")
    with pytest.raises(ValueError, match="y must be None where X has labels of its own"):
        plmu.SequenceClassifier().fit(data, data.labels)
    with pytest.raises(ValueError, match="at least two classes"):
        plmu.SequenceClassifier().fit(data.take([0, 3]))
    classifier = plmu.SequenceClassifier(**SMALL).fit(data)
    with pytest.raises(ValueError, match="label 'wave' is none of them"):
        classifier.evaluate(data.series[:2], ["wave", "wave"])
    with pytest.raises(ValueError, match="label None is none of them"):
        classifier.evaluate(folder / "new.csv")
    with pytest.raises(TypeError, match="read_labelled has no option 'labell'; did you mean 'label'"):
        read_labelled(folder / "gestures.csv", labell="gesture")
    with pytest.raises(ValueError, match="missing must be one of 'linear', 'hold', 'raise'"):
        read_labelled(folder / "gestures.csv", missing="guess")
    with pytest.raises(plmu.errors.DataError, match="is not there"):
        classifier.predict(folder / "absent.csv")


def test_the_run_ends_with_a_table_of_scores_and_the_next_command(folder: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["train", "classify", "--data.file", str(folder / "gestures.csv"), "--runs", str(tmp_path), "--name", "run"]
    main([*words, "--model.projections", "8", "--model.thresholds", "4"])
    lines = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("  test: 12 series"))
    assert lines[start].split()[-3:] == ["accuracy", "mean", "F1"]
    assert [line[2:].partition("  ")[0] for line in lines[start + 1 : start + 4]] == [
        "closed",
        "streaming",
        "most frequent class",
    ]
    assert lines[start + 3].split()[-4:] == ["33.33", "%", "16.67", "%"]
    assert max(map(len, lines[start : start + 5])) <= 80
    assert any(line.startswith("next: plmu predict ") for line in lines[start + 4 :])
    scores = json.loads((tmp_path / "run-seed0" / "classify.json").read_text())["scores"]
    assert list(scores) == ["closed", "streaming", "most frequent class"]
