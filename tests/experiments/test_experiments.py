"""Experiments: parameter counts of the paper, models that deploy as they were trained, and the command line."""

import json
import os
import subprocess
import sys

import pytest
import torch

import plmu
from plmu.cli import main
from plmu.experiments import EXPERIMENTS
from plmu.experiments import psmnist as psmnist_module
from plmu.experiments.base import Config
from plmu.training.task import Task

COUNTS = {
    ("mackey-glass", "plmu"): 17_243,
    ("mackey-glass", "lmu"): 18_050,
    ("psmnist", "plmu"): 166_092,
    ("psmnist", "lmu"): 102_027,
    ("psmnist", "lstm"): 164_410,
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("PLMU_DATA", raising=False)


def _tiny_task(experiment: str) -> Task:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(6, 784, generator=generator)
    if experiment == "mackey-glass":
        x = torch.randn(6, 120, 1, generator=generator)
    split = (x, torch.zeros(6))
    return Task(split, split, split, None, None, None, "", True)  # type: ignore[arg-type]


@pytest.mark.parametrize(("experiment", "model"), COUNTS)
def test_parameter_counts(experiment, model):
    one = EXPERIMENTS[experiment]
    network = one.build(one.defaults(model), _tiny_task(experiment))
    assert sum(p.numel() for p in network.parameters()) == COUNTS[experiment, model]


def test_all_models_build_and_run():
    for name, experiment in EXPERIMENTS.items():
        for model in experiment.models:
            config = experiment.defaults(model)
            network = experiment.build(config, _tiny_task(name))
            x = torch.rand(2, 30) if name == "psmnist" else torch.rand(2, 30, 2 if name == "addition" else 1)
            out = network(x, torch.tensor([30, 20])) if name == "addition" else network(x)
            out = out[0] if isinstance(out, tuple) else out
            assert out.isfinite().all()
        with pytest.raises(ValueError, match="there is no 'nonsense'"):
            experiment.defaults("nonsense")


@pytest.mark.parametrize("experiment", ["mackey-glass", "psmnist"])
def test_what_is_deployed_is_what_was_trained(experiment):
    """Standardisation is folded into ordinary layers, which save, load and stream."""
    torch.manual_seed(0)
    one = EXPERIMENTS[experiment]
    config: Config = one.defaults("plmu")
    config.model.order, config.model.hidden = 12, 9
    task = _tiny_task(experiment)
    network = one.build(config, task).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    plain = one.deployable(network)
    assert plain is not None
    x = task.test[0]
    expected = network(x)
    expected = expected[0] if isinstance(expected, tuple) else expected
    given = x if x.dim() == 3 else x[:, :, None]
    torch.testing.assert_close(plain.eval()(given)[0], expected, rtol=1e-4, atol=1e-4)
    stream = plmu.Stream(plain)
    for t in range(given.shape[1]):
        y = stream.push(given[:, t])
    torch.testing.assert_close(y, expected if experiment == "psmnist" else expected[:, -1], rtol=1e-3, atol=1e-3)


def test_the_command_trains_resumes_and_evaluates(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(EXPERIMENTS["mackey-glass"], "task", _short_task(EXPERIMENTS["mackey-glass"]), raising=False)
    command = ["train", "mackey-glass", "--training.epochs", "2", "--model.order", "8", "--seeds", "2"]
    main(command)
    shown = capsys.readouterr().out
    assert "0.044" in shown
    summary = json.loads((tmp_path / "runs" / "mackey-glass-plmu.json").read_text())
    assert [one["seed"] for one in summary["seeds"]] == [0, 1]
    assert summary["config"]["model"]["order"] == 8
    assert summary["config"]["training"]["epochs"] == 2
    assert {"command", "hardware", "source", "parameters", "notes", "paper"} <= summary.keys()
    folder = tmp_path / "runs" / "mackey-glass-plmu-seed0"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert isinstance(plmu.load(folder / "model.plmu"), plmu.Sequential)

    before = (folder / "result.json").read_text()
    main(command)  # the same command again: nothing is trained twice
    assert (folder / "result.json").read_text() == before

    capsys.readouterr()
    main(["evaluate", str(folder)])
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(printed["nrmse"]) == pytest.approx(json.loads(before)["test"]["nrmse"], rel=1e-5)

    with pytest.raises(SystemExit) as stopped:
        main(["train", "mackey-glass", "--training.epochs", "3", "--model.order", "8"])
    assert stopped.value.code == 2
    assert "training.epochs was 2, now 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "there is no command 'trian': the commands are train"),
        (["train", "mnist"], "there is no experiment 'mnist': the experiments are mackey-glass, psmnist"),
        (["train", "psmnist", "--model", "gru"], "psmnist has the models plmu, lstm, lmu"),
        (["train", "psmnist", "--model"], "--model needs a name"),
        (["train", "psmnist", "--data.root", "/nowhere"], "the data folder /nowhere does not exist"),
        (["train", "psmnist", "--training.epochs", "0"], "training.epochs must be above 0"),
        (["train", "mackey-glass", "--device", "cuda:77"], "device 'cuda:77' is not there"),
        (["evaluate", "nowhere"], "nowhere is not a run"),
        (["report", "--results", "nowhere"], "no results in nowhere"),
    ],
)
def test_wrong_use_is_one_message_and_status_2(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert message in " ".join((captured.err + captured.out).split())


def test_a_misspelt_option_is_answered_with_the_right_one(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "plmu", "train", "psmnist", "--traning.epochs", "3"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert done.returncode == 2
    assert "--training.epochs" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_an_unwritable_folder_fails_before_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("a file where the folder should be")
    monkeypatch.setattr(psmnist_module.mnist, "permuted_sequences", lambda _: pytest.fail("data was loaded first"))
    with pytest.raises(SystemExit):
        main(["train", "psmnist"])
    assert "cannot write to runs" in capsys.readouterr().err


def _short_task(experiment):
    whole = type(experiment).task

    def task(config):
        made = whole(experiment, config)
        for name in ("train", "valid", "test"):
            setattr(made, name, tuple(part[:4, :200] for part in getattr(made, name)))
        return made

    return task
