"""The result of a run: what is damaged or of another run is named before training, and what is noted is kept."""

import json
import math
import re
from pathlib import Path

from program import refused

from plmu.cli.program import main
from plmu.runs import results
from plmu.runs import runner as run_module
from plmu.training.loop import Trainer

FOLDER = Path("runs/mackey-glass-plmu-seed0")


def test_a_damaged_result_is_named(short, capsys):
    main(short)
    path = FOLDER / "result.json"
    whole = json.loads(path.read_text())
    for content in ("{", "[]", "3", "null", "[" * 100_000, b"\xff".decode("latin-1")):
        path.write_text(content, encoding="latin-1")
        assert re.search(rf"{path} (is damaged|has a missing or wrong \w+)", refused(short, capsys)), content[:10]
    for name in (*results.TYPES, *results.OF_SEED, *results.ORIGIN, "experiment", "model", "metric"):
        for wrong in ({**whole, name: ["x"]}, {key: value for key, value in whole.items() if key != name}):
            path.write_text(json.dumps(wrong))
            assert f"{path} has a missing or wrong {name}: remove it, and the same command" in refused(short, capsys)
    for name in ("valid", "test"):
        path.write_text(json.dumps({**whole, name: {"nrmse": "x"}}))
        assert f"has a missing or wrong {name}" in refused(short, capsys)
    for name, value in (("test", {}), ("valid", {}), ("metric", "x"), ("seed", 1), ("seconds_training", math.nan)):
        path.write_text(json.dumps({**whole, name: value}))
        assert f"has a missing or wrong {name}: remove" in refused(short, capsys), name
    for name in ("valid", "test"):
        for value in (math.nan, math.inf, 10**400, True, None):
            path.write_text(json.dumps({**whole, name: {"nrmse": value}}))
            assert f"has a missing or wrong {name}: remove" in refused(short, capsys), value
    path.unlink()
    main(short)
    again = json.loads(path.read_text())
    assert {**again, "seconds_in_all": 0} == {**whole, "seconds_in_all": 0}


def test_a_result_that_is_not_of_its_run_is_named(short, capsys):
    """Before anything is trained; and the summary that is there stays."""
    main([*short, "--seeds", "2"])
    summary = Path("runs/mackey-glass-plmu.json")
    before = summary.read_text()
    path = Path("runs/mackey-glass-plmu-seed1/result.json")
    whole = json.loads(path.read_text())
    more = [*short, "--seed", "7"]
    for config in ({}, {**whole["config"], "training": {"epochs": 3}}, {"training": 3}):
        path.write_text(json.dumps({**whole, "config": config}))
        assert f"{path} is of another configuration (" in refused(more, capsys)
    for changed in ({"test": {**whole["test"], "more": 1.0}}, {"valid": {**whole["valid"], "more": 1.0}}):
        path.write_text(json.dumps({**whole, **changed}))
        assert f"{path} has other scores than seed 0: remove it" in refused(more, capsys)
    assert not Path("runs/mackey-glass-plmu-seed7").exists()
    path.write_text(json.dumps({**whole, "test": {**whole["test"], "nrmse": 1e200}}))
    assert "cannot be made of these results (OverflowError" in refused([*short, "--seeds", "2"], capsys)
    assert summary.read_text() == before


def test_test_scores_that_are_not_finite_are_no_result(short, capsys, monkeypatch):
    monkeypatch.setattr(run_module, "more_scores", lambda *_: {"far": math.inf})
    assert "the best model's test scores are not finite: far is inf" in refused(short, capsys)
    assert not (FOLDER / "result.json").exists()


def test_a_run_that_ends_a_little_worse_is_finished_with_a_note(short, capsys, monkeypatch):
    main(short)
    losses = iter([1.0, 1.5])
    monkeypatch.setattr(Trainer, "_sample_loss", lambda _: next(losses))
    capsys.readouterr()
    main([*short, "--seed", "1"])
    losses_said = "on training examples its loss is 1.5, at the start it was 1"
    said = f"the best model's loss is above the untrained one's: {losses_said}"
    assert capsys.readouterr().err == f"plmu: warning: {said}\n"
    assert json.loads(Path("runs/mackey-glass-plmu-seed1/result.json").read_text())["notes"]["training"] == said
    notes = json.loads(Path("runs/mackey-glass-plmu.json").read_text())["notes"]
    assert notes["training"] == f"seed 1: {said}"
    assert notes.items() >= json.loads((FOLDER / "result.json").read_text())["notes"].items()


def test_results_and_summaries_have_learning_curves(short, capsys):
    """The entries of metrics.jsonl. A result of a version that did not keep them stays valid."""
    main([*short, "--seeds", "2"])
    lines = [json.loads(line) for line in (FOLDER / "metrics.jsonl").read_text().splitlines()]
    path = FOLDER / "result.json"
    whole = json.loads(path.read_text())
    summary = Path("runs/mackey-glass-plmu.json")
    assert whole["history"] == lines
    assert {"epoch", "loss", "valid_nrmse"} <= lines[0].keys()
    first, second = json.loads(summary.read_text())["seeds"]
    assert first["history"] == lines != second["history"]
    assert "history" not in json.loads(summary.read_text())
    for wrong in (3, [3], [{"loss": 1.0}], [{"epoch": 1, "loss": "x"}]):
        path.write_text(json.dumps({**whole, "history": wrong}))
        assert f"{path} has a missing or wrong history: remove" in refused(short, capsys)
    del whole["history"]
    path.write_text(json.dumps(whole))
    main(short)
    assert ["history" in one for one in json.loads(summary.read_text())["seeds"]] == [False, True]
