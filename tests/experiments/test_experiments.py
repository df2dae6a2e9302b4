"""Experiments through the command line: training, resuming, scoring, and every wrong use."""

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import torch

import plmu
from plmu.cli import main
from plmu.experiments import EXPERIMENTS
from plmu.experiments import psmnist as psmnist_module
from plmu.experiments import run as run_module
from plmu.experiments.fields import RANGES
from plmu.experiments.mackey_glass import ACTIVATION_MODULES
from plmu.nn import ACTIVATIONS


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
    assert "mackey-glass-plmu-seed0 is finished: nothing was trained, its result is shown" in capsys.readouterr().out

    capsys.readouterr()
    main(["evaluate", str(folder)])
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(printed["nrmse"]) == pytest.approx(json.loads(before)["test"]["nrmse"], rel=1e-5)
    assert int(printed["best_epoch"]) == json.loads(before)["best_epoch"]

    with pytest.raises(SystemExit) as stopped:
        main(["train", "mackey-glass", "--training.epochs", "3", "--model.order", "8"])
    assert stopped.value.code == 2
    assert "training.epochs was 2, now 3" in capsys.readouterr().err


@pytest.fixture
def short(tmp_path, monkeypatch):
    """In a folder of its own, where mackey-glass is small."""
    monkeypatch.chdir(tmp_path)
    experiment = EXPERIMENTS["mackey-glass"]
    monkeypatch.setattr(experiment, "task", _short_task(experiment), raising=False)
    return ["train", "mackey-glass", "--training.epochs", "4", "--training.evaluate-every", "1", "--model.order", "8"]


def test_a_run_that_diverged_can_be_scored(short, monkeypatch, capsys):
    experiment = EXPERIMENTS["mackey-glass"]
    whole, calls = experiment.task, []

    def breaking(config):
        made = whole(config)
        loss = made.loss
        made.loss = lambda *given: loss(*given) * (float("nan") if calls.append(1) or len(calls) > 5 else 1.0)
        return made

    monkeypatch.setattr(experiment, "task", breaking)
    assert "the loss is nan in epoch 3: the best model so far is of epoch" in _refused(short, capsys)
    monkeypatch.setattr(experiment, "task", whole)
    main(["evaluate", "runs/mackey-glass-plmu-seed0"])
    lines = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert lines["best_epoch"] in ("1", "2")
    assert float(lines["nrmse"]) > 0


def test_refitting_through_the_command(short, capsys):
    """No validation score; the result and the report say so; what cannot be put together is refused."""
    main([*short, "--training.refit", "--name", "all"])
    capsys.readouterr()
    result = json.loads(Path("runs/all-seed0/result.json").read_text())
    assert (result["best_epoch"], result["valid"]) == (4, {})
    assert "were trained on too" in result["notes"]["validation"]
    main(["evaluate", "runs/all-seed0"])
    assert "best_epoch" in capsys.readouterr().out
    main(["report", "--results", "runs", "--out", "report"])
    assert "plmu, refit" in capsys.readouterr().out
    assert "plmu, refit" in Path("report/report.html").read_text()
    message = _refused(["train", "addition", "--training.refit", "--training.epochs", "1", "--name", "adding"], capsys)
    assert "training.refit needs training and validation examples of one size" in message


def test_a_run_of_a_version_with_fewer_fields_is_gone_on_with(short, capsys):
    main(short)
    known = Path("runs/mackey-glass-plmu-seed0/config.json")
    described = json.loads(known.read_text())
    del described["config"]["training"]["refit"]
    known.write_text(json.dumps(described))
    main(short)
    assert "is finished: nothing was trained" in capsys.readouterr().out
    assert "training.refit was False, now True" in _refused([*short, "--training.refit"], capsys)


def test_a_summary_is_of_one_configuration_and_of_all_its_seeds(short, capsys):
    summary = Path("runs/mackey-glass-plmu.json")
    main([*short, "--seeds", "2"])
    before = summary.read_text()
    message = _refused([*short, "--model.order", "6", "--seed", "7"], capsys)
    assert "runs/mackey-glass-plmu-seed0 holds a run of another configuration (model.order was 8, now 6)" in message
    assert "choose another --name" in message
    assert summary.read_text() == before
    assert not Path("runs/mackey-glass-plmu-seed7").exists()

    main([*short, "--seed", "1"])
    assert summary.read_text() == before
    main([*short, "--seed", "5"])
    assert [one["seed"] for one in json.loads(summary.read_text())["seeds"]] == [0, 1, 5]
    assert json.loads(summary.read_text())["config"]["seed"] == [0, 1, 5]


def test_a_summary_says_where_each_seed_ran(short, capsys):
    main([*short, "--seeds", "2"])
    path = Path("runs/mackey-glass-plmu-seed1/result.json")
    other = {"hardware": "NVIDIA H200", "torch": "9.9", "processes": 4}
    path.write_text(json.dumps({**json.loads(path.read_text()), **other}))
    main([*short, "--seeds", "2"])
    summary = json.loads(Path("runs/mackey-glass-plmu.json").read_text())
    first, second = summary["seeds"]
    assert summary["hardware"] == f"{first['hardware']}; NVIDIA H200"
    assert summary["processes"] == "1; 4"
    assert {key: second[key] for key in other} == other
    assert "python" not in first  # is the same for both
    assert "on " + summary["hardware"] in " ".join(capsys.readouterr().out.split())

    path.write_text("{")
    assert f"{path} is damaged" in _refused([*short, "--seeds", "2"], capsys)


def test_the_command_is_what_the_program_was_given(short):
    main([*short, "--runs=a", "--data.root=b", "--data.root", "c", "--runs", "runs", "--name", "x"])
    recorded = json.loads(Path("runs/x-seed0/result.json").read_text())["command"]
    assert recorded == " ".join(["plmu", *short, "--name", "x"])


def test_a_failed_start_leaves_the_name_free(short, capsys, monkeypatch):
    experiment = EXPERIMENTS["mackey-glass"]
    with monkeypatch.context() as patch:
        patch.setattr(experiment, "build", _raise(ValueError("no such model")), raising=False)
        assert "no such model" in _refused([*short, "--model.order", "6"], capsys)
    assert Path("runs/mackey-glass-plmu-seed0/config.json").is_file()
    main(short)
    described = json.loads(Path("runs/mackey-glass-plmu-seed0/config.json").read_text())
    assert described["config"]["model"]["order"] == 8


def test_every_activation_is_deployed_as_it_was_trained(short):
    assert ACTIVATION_MODULES.keys() == ACTIVATIONS.keys()
    x = torch.linspace(-30, 30, 1001)
    for name, function in ACTIVATIONS.items():
        assert torch.equal(ACTIVATION_MODULES[name]()(x), function(x)), name
    main([*short, "--model.activation", "softsign"])
    model = plmu.load("runs/mackey-glass-plmu-seed0/model.plmu")
    assert any(isinstance(module, torch.nn.Softsign) for module in model.modules())


def test_the_result_is_written_before_the_model_is_exported(short, capsys, monkeypatch):
    monkeypatch.setattr(run_module.plmu, "save", _raise(OSError(errno.ENOSPC, "No space left on device", "model.plmu")))
    assert "model.plmu: No space left on device" in _refused(short, capsys)
    assert Path("runs/mackey-glass-plmu-seed0/result.json").is_file()


def test_a_full_disk_at_a_checkpoint_is_one_message(short, capsys, monkeypatch):
    monkeypatch.setattr(Path, "write_bytes", _raise(OSError(errno.ENOSPC, "No space left on device")))
    message = _refused(short, capsys)
    assert "cannot write the checkpoint runs/mackey-glass-plmu-seed0/checkpoints/step" in message
    assert "No space left on device" in message


def test_evaluate_scores_all_tests_of_the_experiment(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    experiment = EXPERIMENTS["addition"]
    whole = experiment.task

    def small(config):
        made = whole(config)
        made.train = tuple(part[:50] for part in made.train)
        return made

    longer = {name: tuple(part[:20] for part in data) for name, data in experiment.more_tests(None).items()}
    monkeypatch.setattr(experiment, "task", small, raising=False)
    monkeypatch.setattr(experiment, "more_tests", lambda _: longer, raising=False)
    main(["train", "addition", "--training.epochs", "1", "--model.length", "20", "--model.shortest", "10"])
    capsys.readouterr()
    main(["evaluate", "runs/addition-plmu-seed0"])
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    trained = json.loads(Path("runs/addition-plmu-seed0/result.json").read_text())["test"]
    assert trained.keys() == {"mse", "mse_at_2000", "mse_at_5000"}
    for name, value in trained.items():
        assert float(printed[name]) == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize("content", ["{}", "[]", "not JSON", '{"experiment": "mackey-glass", "model": "plmu"}'])
def test_a_damaged_config_is_named(content, tmp_path, capsys):
    (tmp_path / "config.json").write_text(content)
    assert f"{tmp_path / 'config.json'} is damaged" in _refused(["evaluate", str(tmp_path)], capsys)


def test_a_config_that_is_not_of_the_checkpoints_is_named(short, capsys):
    main(short)
    path = Path("runs/mackey-glass-plmu-seed0/config.json")
    path.write_text(path.read_text().replace('"hidden": 140', '"hidden": 14'))
    assert "its config.json is not of its checkpoints" in _refused(["evaluate", str(path.parent)], capsys)


def test_every_number_of_a_model_has_a_range():
    models = [one.defaults(name).model for one in EXPERIMENTS.values() for name in one.models]
    for model in models:
        types = typing.get_type_hints(type(model))
        for field in dataclasses.fields(model):
            if types[field.name] is not bool and typing.get_origin(types[field.name]) is not typing.Literal:
                assert field.name in RANGES, (type(model), field.name)
                wrong = "nonsense" if "activation" in field.name else float("nan")
                with pytest.raises(ValueError, match=rf"model\.{field.name} must be .*; got "):
                    dataclasses.replace(model, **{field.name: wrong})


@pytest.mark.parametrize("missing", ["numpy", "rich", "tyro", "matplotlib"])
def test_without_the_extras_the_way_out_is_named(missing, tmp_path):
    shutil.copytree(Path(__file__).parents[2] / "results", tmp_path / "results")
    commands = {
        "numpy": [["train", "psmnist"], ["data"], ["evaluate", "x"]],
        "rich": [["data"], ["report"], ["evaluate", "x"], ["train", "psmnist"]],
        "tyro": [["train", "psmnist"]],
        "matplotlib": [["report"]],
    }[missing]
    script = f"""
import sys
sys.modules[{missing!r}] = None
from plmu.cli import main
for words in {commands!r}:
    try:
        main(words)
    except SystemExit as stopped:
        assert stopped.code == 2
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    line = f"plmu: the program needs more than the library, {missing} is missing: pip install 'plmu[train]'"
    assert done.stderr.splitlines() == [line] * len(commands)
    assert done.returncode == 0


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(short, monkeypatch, capsys):
    monkeypatch.setenv("PLMU_CACHE", "/dev/null/x")
    main(short)
    main(["data"])
    assert "/dev/null/x" in capsys.readouterr().out
    assert "set PLMU_CACHE to a folder" in _refused(["train", "psmnist"], capsys)


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
        (["report"], "no results in results"),
        (["train", "mackey-glass", "--model", "lmu", "--model.layers", "0"], "model.layers must be at least 1; got 0"),
        (["train", "mackey-glass", "--model.order", "0"], "model.order must be at least 1; got 0"),
        (["train", "mackey-glass", "--model.activation", "swish"], "model.activation must be one of relu, tanh"),
        (
            ["train", "psmnist", "--model.label-smoothing", "2"],
            "model.label_smoothing must be a share, between 0 and 1",
        ),
        (["train", "psmnist", "--model.dropout", "1"], "model.dropout must be a share, at least 0 and below 1; got 1"),
        (["train", "addition", "--model.length", "50"], "model.shortest must be at most model.length = 50; got 100"),
        (["train", "psmnist", "--seed", "-1"], "seed must be at least 0"),
    ],
)
def test_wrong_use_is_one_message_and_status_2(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in _refused(words, capsys)


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


def _refused(words, capsys) -> str:
    """What the program says on the error stream, without tyro's frame, when it stops with status 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    return " ".join(word for word in capsys.readouterr().err.split() if word != "│")


def _raise(error):
    def function(*_, **__):
        raise error

    return function


def _short_task(experiment):
    whole = type(experiment).task

    def task(config):
        made = whole(experiment, config)
        for name in ("train", "valid", "test"):
            setattr(made, name, tuple(part[:4, :200] for part in getattr(made, name)))
        return made

    return task
