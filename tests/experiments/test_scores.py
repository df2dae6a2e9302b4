"""Details of experiments that their scores depend on: what is measured, in which direction, on which lengths."""

import json
from pathlib import Path

import pytest
import torch
from untrained import EXPERIMENTS

from plmu.cli.program import main
from plmu.experiments import psmnist
from plmu.training.step import TrainingStep

FOLDER = Path("runs/mackey-glass-plmu-seed0")


def test_psmnist_trains_through_the_command(tmp_path, monkeypatch):
    """The score is the share of digits that are right, and higher is better."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    digits = torch.rand(40, 784), torch.arange(40) % 10
    monkeypatch.setattr(psmnist.mnist, "permuted_sequences", lambda _: (digits, digits, digits))
    small = ["--model.order", "8", "--model.hidden", "16", "--training.batch-size", "20"]
    main(["train", "psmnist", "--training.epochs", "1", *small])
    result = json.loads(Path("runs/psmnist-plmu-seed0/result.json").read_text())
    assert 40 * result["test"]["accuracy"] == pytest.approx(round(40 * result["test"]["accuracy"]))
    experiment = EXPERIMENTS["psmnist"]
    task = experiment.task(experiment.defaults("plmu"))
    assert task.higher_is_better
    assert task.finish(task.measure(lambda pixels: (pixels[:, :10, 0], None), digits)) == {
        "accuracy": float((digits[0][:, :10].argmax(1) == digits[1]).float().mean())
    }


def test_accuracies_are_shown_in_percent():
    for experiment in EXPERIMENTS.values():
        assert experiment.percent == (experiment.metric == "accuracy")


def test_the_adding_problem_is_chosen_on_longer_sequences_and_tested_on_the_trained_length():
    experiment = EXPERIMENTS["addition"]
    config = experiment.defaults("plmu")
    config.model.length, config.model.shortest = 12, 5
    task = experiment.task(config)
    assert [part[0].shape for part in (task.train, task.valid, task.test)] == [
        (10_000, 12, 2), (1_000, 24, 2), (1_000, 12, 2),
    ]  # fmt: skip
    assert not task.higher_is_better
    errors = (task.train[1] - 1) ** 2
    five_standard_errors = 5 * float(errors.std()) / len(errors) ** 0.5
    assert task.notes["always answering 1"] == pytest.approx(float(errors.mean()), abs=five_standard_errors)


def test_an_interrupted_run_has_logged_its_epochs(short, monkeypatch, capsys):
    """As they ended, and for TensorBoard too; the finished run has each once."""
    written = []

    class Writer:
        def __init__(self, folder):
            written.append(folder)

        def add_scalar(self, name, value, epoch):
            written.append((name, epoch))

        def close(self):
            written.append("closed")

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", Writer)
    step, calls = TrainingStep.eager, []

    def stopped(trainer):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        step(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingStep, "eager", stopped)
        with pytest.raises(SystemExit):
            main([*short, "--tensorboard"])
    lines = (FOLDER / "metrics.jsonl").read_text().splitlines()
    epochs = [json.loads(line)["epoch"] for line in lines]
    assert epochs == list(range(1, len(epochs) + 1)) != []
    assert written[0] == str(FOLDER / "tensorboard")
    assert {epoch for _, epoch in written[1:]} == set(epochs)
    assert {name for name, _ in written[1:]} == json.loads(lines[0]).keys() - {"epoch"}
    main([*short, "--tensorboard"])
    assert [json.loads(line)["epoch"] for line in (FOLDER / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3, 4]
    assert written[-1] == "closed"
