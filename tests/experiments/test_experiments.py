"""Experiments through the command line: training, resuming, scoring, and every wrong use."""

import dataclasses
import errno
import json
import re
import typing
from pathlib import Path

import pytest
import torch
from program import raising, refused, short_task
from untrained import EXPERIMENTS

import plmu
from plmu.cli.catalogue import CATALOGUE, lookup
from plmu.cli.program import main
from plmu.cli.report import load
from plmu.experiments import psmnist as psmnist_module
from plmu.experiments.mackey_glass import ACTIVATION_MODULES
from plmu.nn import ACTIVATIONS
from plmu.runs import configuration
from plmu.runs.fields import RANGES


def test_the_command_trains_resumes_and_evaluates(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lookup("mackey-glass"), "task", short_task(lookup("mackey-glass")), raising=False)
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


def test_a_run_that_diverged_can_be_scored(short, monkeypatch, capsys):
    experiment = lookup("mackey-glass")
    whole, calls = experiment.task, []

    def breaking(config):
        made = whole(config)
        loss = made.loss
        made.loss = lambda *given: loss(*given) * (float("nan") if calls.append(1) or len(calls) > 5 else 1.0)
        return made

    monkeypatch.setattr(experiment, "task", breaking)
    assert "the loss is nan in epoch 3: the best model so far is of epoch" in refused(short, capsys)
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
    message = refused(["train", "addition", "--training.refit", "--training.epochs", "1", "--name", "adding"], capsys)
    assert "training.refit needs training and validation examples of one size" in message


def test_a_run_of_a_version_with_fewer_fields_is_gone_on_with(short, capsys):
    main(short)
    known = Path("runs/mackey-glass-plmu-seed0/config.json")
    described = json.loads(known.read_text())
    del described["config"]["training"]["refit"]
    known.write_text(json.dumps(described))
    main(short)
    assert "is finished: nothing was trained" in capsys.readouterr().out
    assert "training.refit was False, now True" in refused([*short, "--training.refit"], capsys)


def test_a_summary_is_of_one_configuration_and_of_all_its_seeds(short, capsys):
    summary = Path("runs/mackey-glass-plmu.json")
    main([*short, "--seeds", "2"])
    before = summary.read_text()
    message = refused([*short, "--model.order", "6", "--seed", "7"], capsys)
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
    assert f"{path} is damaged" in refused([*short, "--seeds", "2"], capsys)


def test_the_command_is_what_the_program_was_given(short):
    main([*short, "--runs=a", "--data.root=b", "--data.root", "c", "--runs", "runs", "--name", "x"])
    recorded = json.loads(Path("runs/x-seed0/result.json").read_text())["command"]
    assert recorded == " ".join(["plmu", *short, "--name", "x"])


def test_a_failed_start_leaves_the_name_free(short, capsys, monkeypatch):
    experiment = lookup("mackey-glass")
    with monkeypatch.context() as patch:
        patch.setattr(experiment, "build", raising(ValueError("no such model")), raising=False)
        assert "no such model" in refused([*short, "--model.order", "6"], capsys)
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


def test_a_full_disk_at_a_checkpoint_is_one_message(short, capsys, monkeypatch):
    monkeypatch.setattr(Path, "write_bytes", raising(OSError(errno.ENOSPC, "No space left on device")))
    message = refused(short, capsys)
    assert "cannot write the checkpoint runs/mackey-glass-plmu-seed0/checkpoints/step" in message
    assert "No space left on device" in message


def test_evaluate_scores_all_tests_of_the_experiment(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    experiment = lookup("addition")
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


def test_every_number_of_a_model_has_a_range():
    models = [one.defaults(name).model for one in map(lookup, CATALOGUE) for name in one.models]
    for model in models:
        types = typing.get_type_hints(type(model))
        for field in dataclasses.fields(model):
            if (
                types[field.name] not in (bool, bool | None)
                and typing.get_origin(types[field.name]) is not typing.Literal
            ):
                assert field.name in RANGES, (type(model), field.name)
                wrong = "nonsense" if "activation" in field.name else float("nan")
                with pytest.raises(ValueError, match=rf"model\.{field.name} must be .*; got "):
                    dataclasses.replace(model, **{field.name: wrong})


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(short, monkeypatch, capsys):
    monkeypatch.setenv("PLMU_CACHE", "/dev/null/x")
    main(short)
    main(["data"])
    assert "/dev/null/x" in capsys.readouterr().out
    assert "set PLMU_CACHE to a folder" in refused(["train", "psmnist"], capsys)


def test_an_unwritable_folder_fails_before_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("a file where the folder should be")
    monkeypatch.setattr(psmnist_module.mnist, "permuted_sequences", lambda _: pytest.fail("data was loaded first"))
    with pytest.raises(SystemExit):
        main(["train", "psmnist"])
    assert "cannot write to runs" in capsys.readouterr().err


def test_the_defaults_are_what_the_committed_results_were_made_with():
    """So that the commands of the README give its table."""
    seen = set()
    for one in load(Path(__file__).parents[2] / "results"):
        experiment, model = lookup(one["experiment"]), one["model"]
        if one["name"] != f"{one['experiment']}-{model}":
            continue
        wanted = configuration.as_json(experiment, model, experiment.defaults(model))
        one["config"].pop("start", None)  # of a model that was trained before
        one["config"]["training"].pop("checkpoint_seconds")  # does not affect results
        wanted["config"]["training"].pop("checkpoint_seconds")
        assert configuration.differing(one, wanted, wanted["config"]) == [], one["name"]
        assert (one["paper"], one["percent"]) == (experiment.paper.get(model), experiment.percent)
        assert (one["metric"], wanted["seed"]) == (experiment.metric, 0)
        seen.add(one["name"])
    missing = {f"{name}-{model}" for name, one in EXPERIMENTS.items() for model in one.models} - seen
    assert _listed("have no result yet: ") == missing


def test_results_of_few_seeds_are_named_on_the_page():
    few = {one["name"] for one in load(Path(__file__).parents[2] / "results") if len(one["seeds"]) < 3}
    assert _listed("are of fewer than three seeds: ") == few


def _listed(after: str) -> set[str]:
    """The names that the results page lists after these words, up to the end of the paragraph."""
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    return set(re.findall(r"`([\w-]+)`", page.partition(after)[2].partition("\n\n")[0]))
