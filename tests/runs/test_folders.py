"""The folder of a run: nothing in it is lost or mixed up, and what is damaged is named in one sentence."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from program import raising, refused
from untrained import built

import plmu
from plmu.cli.catalogue import CATALOGUE, lookup
from plmu.cli.program import main
from plmu.errors import RunError
from plmu.runs import configuration, sources
from plmu.runs import folder as folder_files
from plmu.runs import runner as run_module
from plmu.runs.lock import locked
from plmu.training.checkpoints import pack, unpack
from plmu.training.loop import Trainer
from plmu.training.processes import Processes

FOLDER = Path("runs/mackey-glass-plmu-seed0")


def test_a_disk_that_fills_at_the_end_loses_nothing(short, capsys, monkeypatch):
    """The model is written first; a run without a result is not finished, and the same command finishes it."""
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, "No space left on device", "model.plmu")
        patch.setattr(run_module.plmu, "save", raising(full))
        assert "model.plmu: No space left on device" in refused(short, capsys)
    assert not (FOLDER / "result.json").exists()
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "write_json", raising(OSError(errno.ENOSPC, "No space left on device", "result")))
        assert "result: No space left" in refused(short, capsys)
    assert (FOLDER / "model.plmu").is_file()
    monkeypatch.setattr(Trainer, "_guarded_step", raising(AssertionError("trained again")))
    main(short)
    assert (FOLDER / "result.json").is_file()


def test_a_finished_run_without_its_model_gets_it_again(short, capsys):
    main(short)
    x = torch.randn(2, 30, 1)
    expected = plmu.load(FOLDER / "model.plmu")(x)[0]
    (FOLDER / "model.plmu").unlink()
    capsys.readouterr()
    main(short)
    shown = capsys.readouterr().out
    assert f"{FOLDER / 'model.plmu'} was missing: made it again from the checkpoint" in shown
    assert torch.equal(plmu.load(FOLDER / "model.plmu")(x)[0], expected)
    main(short)
    assert "was missing" not in capsys.readouterr().out

    (FOLDER / "model.plmu").unlink()
    for path in (FOLDER / "checkpoints").iterdir():
        path.unlink()
    main(short)
    assert "has no model.plmu and no checkpoint to make it from" in capsys.readouterr().out


def test_which_models_are_written_is_known_before_they_are_built():
    for name, experiment in [(name, lookup(name)) for name in CATALOGUE]:
        assert set(experiment.streamable) <= set(experiment.models)
        for model in experiment.models:
            network, _ = built(name, model)
            assert isinstance(network, plmu.nn.Steppable) == (model in experiment.streamable), (name, model)


def test_a_finished_run_of_a_model_that_is_not_written_needs_no_data(short, capsys, monkeypatch):
    command = [word if word != "8" else "2" for word in short[:-2]]
    main([*command, "--model", "lstm", "--model.layers", "1"])
    monkeypatch.setattr(lookup("mackey-glass"), "task", raising(AssertionError("data was read")), raising=False)
    main([*command, "--model", "lstm", "--model.layers", "1"])
    assert "is finished" in capsys.readouterr().out
    main([*command, "--model", "lstm", "--model.layers", "1", "--quiet"])
    assert "is finished" not in capsys.readouterr().out


def test_two_runs_in_one_folder(short, capsys):
    FOLDER.mkdir(parents=True)
    with locked(FOLDER / ".lock"):
        message = refused(short, capsys)
    assert f"{FOLDER} is in use by process {os.getpid()} on " in message
    assert "choose another --name" in message
    assert not (FOLDER / "config.json").exists()
    main(short)


def test_the_processes_of_one_run_are_one_holder(short):
    """Only the one that writes takes the lock."""
    first, second = (Processes(rank, 2, torch.device("cpu")) for rank in range(2))
    with run_module._locked_folder(FOLDER, first):
        with run_module._locked_folder(FOLDER, second):
            pass
        with pytest.raises(RunError, match="is in use"), run_module._locked_folder(FOLDER, first):
            pytest.fail("held twice")


def test_what_killed_runs_left_is_cleared(short):
    for name in (".config.json.1.1.tmp", "checkpoints/.step-00000001.ckpt.1.1.tmp"):
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text("half")
    (FOLDER / "notes.txt").write_text("mine")
    main(short)
    assert not list(FOLDER.rglob("*.tmp"))
    assert (FOLDER / "notes.txt").is_file()
    names = {
        "config.json",
        "data.json",
        "result.json",
        "model.plmu",
        "outputs.json",
        "metrics.jsonl",
        "checkpoints",
        ".lock",
        "notes.txt",
    }
    assert {path.name for path in FOLDER.iterdir()} == names


def test_evaluate_remembers_where_the_data_was(short, capsys, monkeypatch):
    Path("data").mkdir()
    main([*short, "--data.root", "data"])
    assert json.loads((FOLDER / "paths.json").read_text()) == {"data.root": str(Path("data").absolute())}
    for path in (FOLDER / "result.json", Path("runs/mackey-glass-plmu.json"), FOLDER / "config.json"):
        assert str(Path("data").absolute()) not in path.read_text()  # what is published names no folder
    given = []
    experiment = lookup("mackey-glass")
    usual = experiment.task
    monkeypatch.setattr(experiment, "task", lambda config: given.append(config.data.root) or usual(config))
    main(["evaluate", str(FOLDER)])
    Path("other").mkdir()
    main(["evaluate", str(FOLDER), "--data.root", "other"])
    assert given == [Path("data").absolute(), Path("other")]
    shutil.rmtree("data")
    message = refused(["evaluate", str(FOLDER)], capsys)
    assert f"was in {Path('data').absolute()}, which is not there: give --data.root, or set PLMU_DATA" in message
    monkeypatch.setenv("PLMU_DATA", "other")
    main(["evaluate", str(FOLDER)])
    assert given[2:] == [None]
    for content in ("[]", "{", "{}", '{"data.root": 3}'):
        (FOLDER / "paths.json").write_text(content)
        assert "paths.json is damaged: give --data.root" in refused(["evaluate", str(FOLDER)], capsys)


def _root(folder: Path) -> Path | None:
    _, config = configuration.read_config(folder, lookup)
    sources.locate(folder, config, {})
    return config.data.root


def test_without_a_data_folder_none_is_remembered(short, monkeypatch):
    main(short)
    assert not (FOLDER / "paths.json").exists()
    assert _root(FOLDER) is None
    Path("data").mkdir()
    monkeypatch.setenv("PLMU_DATA", "data")
    main([*short, "--name", "b"])
    monkeypatch.delenv("PLMU_DATA")
    assert _root(Path("runs/b-seed0")) == Path("data").absolute()


INTERRUPTED = """
import sys
sys.path.insert(0, {tests!r})
from program import short_task
from plmu.cli import catalogue
experiment = catalogue.lookup("mackey-glass")
experiment.task = short_task(experiment)
import os, signal
import plmu.cli.program
from plmu.training.step import TrainingStep
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
step, calls = TrainingStep.eager, []
def slowly(self):
    calls.append(1)
    if len(calls) == {steps}:
        os.kill(os.getpid(), signal.SIGINT)
    step(self)
TrainingStep.eager = slowly
plmu.cli.program.main(sys.argv[1:])
"""


@pytest.mark.parametrize(("steps", "said"), [(1, "starts again"), (6, "resumes from the last checkpoint")])
def test_an_interrupted_run_says_what_comes_next(steps, said, short, tmp_path):
    """By a real signal: the first checkpoint comes after the first step."""
    script = INTERRUPTED.format(tests=str(Path(__file__).parents[1]), steps=steps)
    words = [*short, "--training.checkpoint-seconds", "0"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr == f"plmu: stopped; the same command {said}\n"


def test_the_name_is_what_help_says(short, capsys):
    main([*short, "--name", "ps1"])
    assert {path.name for path in Path("runs").iterdir() if path.name[0] != "."} == {"ps1-seed0", "ps1.json"}
    with pytest.raises(SystemExit):
        main(["train", "mackey-glass", "--help"])
    shown = " ".join(word for word in capsys.readouterr().out.split() if word != "│")
    assert "Name of the result (NAME.json) and of the run folders (NAME-seed0, …)." in shown


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[]",
        "not JSON",
        "[" * 100_000,
        '{"experiment": "mackey-glass", "model": "plmu"}',
        '{"experiment": [], "model": "plmu"}',
        '{"experiment": "mackey-glass", "model": 3, "config": {}}',
        *(
            json.dumps({"experiment": "mackey-glass", "model": "plmu", "config": config})
            for config in (
                [],
                {"model": 3},
                {"model": {"order": "abc"}},
                {"model": {"order": None}},
                {"model": {"order": 8.5}},
                {"model": {"order": True}},
                {"model": {"order": 0}},
                {"model": {"standardise": 1}},
                {"model": {"activation": "swish"}},
                {"model": {"nothing": 1}},
                {"training": {"schedule": "linear"}},
                {"training": {"betas": [0.9]}},
                {"training": {"betas": 0.9}},
                {"training": {"betas": ["a", "b"]}},
                {"training": {"clip": "x"}},
                {"training": {"epochs": 0}},
                {"seed": -1},
                {"seed": {}},
                {"data": {"root": 3}},
            )
        ),
    ],
)
def test_a_damaged_config_is_named(content, short, tmp_path, capsys):
    (tmp_path / "config.json").write_text(content)
    assert f"{tmp_path / 'config.json'} is damaged" in refused(["evaluate", str(tmp_path)], capsys)


def test_a_whole_config_comes_back(tmp_path):
    experiment = lookup("imdb")
    config = experiment.defaults("deep")
    config.model.thetas, config.training.clip, config.training.betas, config.seed = (3.0, 5), None, (0.5, 0.6), 7
    (tmp_path / "config.json").write_text(json.dumps(configuration.as_json(experiment, "deep", config)))
    found, read = configuration.read_config(tmp_path, lookup)
    assert (found, read) == (experiment, config)


def test_a_config_that_is_not_of_the_checkpoints_is_named(short, capsys):
    main(short)
    path = FOLDER / "config.json"
    path.write_text(path.read_text().replace('"hidden": 140', '"hidden": 14'))
    assert "its config.json is not of its checkpoints" in refused(["evaluate", str(path.parent)], capsys)
    path.write_text("{")
    assert f"{path} is missing or damaged: remove {FOLDER}, or choose another --name" in refused(short, capsys)
    path.unlink()
    assert f"{path} is missing or damaged" in refused(short, capsys)


def test_a_damaged_checkpoint_through_the_command(short, capsys):
    """With the right checksum, and another model in it."""
    main([*short, "--name", "a"])
    main([*short, "--name", "b", "--model.hidden", "5"])
    (newest,) = sorted(Path("runs/b-seed0/checkpoints").iterdir())[-1:]
    shutil.copy(newest, Path("runs/a-seed0/checkpoints") / "step-00000099.ckpt")
    Path("runs/a-seed0/result.json").unlink()
    message = refused([*short, "--name", "a"], capsys)
    assert "the newest checkpoint in runs/a-seed0/checkpoints is not of this run (Error(s) in loading" in message
    assert "its config.json is not of its checkpoints" in refused(["evaluate", "runs/a-seed0"], capsys)
    assert "this is" not in message


def test_a_checkpoint_of_another_version_says_so(short, capsys):
    """One of 0.1.0 has no version in it, and other names for the weights of some models."""
    main(short)
    (FOLDER / "result.json").unlink()
    for path in (FOLDER / "checkpoints").iterdir():
        content = unpack(path.read_bytes())
        del content["plmu"]
        for model in (content["model"], content["best"]["model"]):
            model["lmu.memory_weight"] = model.pop("layers.0.memory_weight")
        path.write_bytes(pack(content))
    wanted = f"It was written by plmu 0.1.0 and this is {plmu.__version__}, whose models may differ: use that version"
    assert wanted in refused(short, capsys)
    assert wanted in refused(["evaluate", str(FOLDER)], capsys)


def test_a_run_that_diverges_is_not_finished(short, capsys):
    for rate, said in (
        ("1e3", "the best model is far worse than the untrained one: on training examples its loss is"),
        ("1e38", "the optimiser's step is too large for float32 in epoch 1: there is no good model yet"),
    ):
        words = [*short, "--training.learning-rate", rate, "--name", rate]
        message = refused(words, capsys)
        assert said in message
        assert message.endswith("Try a lower training.learning_rate")
        assert not Path(f"runs/{rate}.json").exists()
        assert not Path(f"runs/{rate}-seed0/result.json").exists()
        assert said in refused(words, capsys)  # as often as it is asked
    main(["evaluate", "runs/1e3-seed0"])  # what it came to can be looked at
    assert float(dict(line.split() for line in capsys.readouterr().out.splitlines())["nrmse"]) > 1


def test_data_that_is_not_finite_is_not_put_down_to_the_learning_rate(short, capsys, monkeypatch):
    experiment = lookup("mackey-glass")
    usual = experiment.task

    def broken(config):
        made = usual(config)
        made.train[0][2, 17, 0] = float("nan")
        return made

    monkeypatch.setattr(experiment, "task", broken)
    message = refused(short, capsys)
    assert (
        "the train data hold 1 values that are not finite: the first is nan, in tensor 0 at index (2, 17, 0)" in message
    )
    assert "learning_rate" not in message


def test_further_tests_that_are_not_finite_are_named(short, capsys, monkeypatch):
    experiment = lookup("mackey-glass")
    wrong = (torch.full((1, 3, 1), float("inf")), torch.zeros(1, 3, 1))
    monkeypatch.setattr(experiment, "more_tests", lambda _: {"far": wrong}, raising=False)
    assert "the far data hold 3 values that are not finite: the first is inf" in refused(short, capsys)


def test_what_differs_is_named_and_new_fields_are_filled_in():
    def run(**config) -> dict:
        return {"experiment": "a", "model": "b", "seed": 3, "config": config}

    usual = {"model": {"order": 1, "theta": 2.0}, "seed": 0}
    wanted = run(model={"order": 1, "theta": 2.0}, seed=1)
    assert configuration.differing(run(model={"order": 1}), wanted, usual) == []
    assert configuration.differing(run(model={"order": 5, "theta": 3.0}), wanted, usual) == [
        "model.order was 5, now 1",
        "model.theta was 3.0, now 2.0",
    ]
    assert configuration.differing(run(model=3), wanted, usual) == ["model was 3, now {'order': 1, 'theta': 2.0}"]
    assert configuration.differing(run(more=1), wanted, usual) == ["more was 1, now None"]
    assert configuration.differing({**wanted, "experiment": "x", "model": "y"}, wanted, usual) == [
        "experiment was x, now a"
    ]
    assert configuration.differing({**wanted, "model": "y"}, wanted, usual) == ["model was y, now b"]


def test_the_folders_of_a_name_come_by_seed(tmp_path):
    for name in ("a-seed10", "a-seed2", "a-seedx", "b-seed1", "aa-seed1", "a-seed1x"):
        (tmp_path / name).mkdir()
    assert [path.name for path in folder_files.runs_of(tmp_path / "a")] == ["a-seed2", "a-seed10"]
    assert folder_files.runs_of(tmp_path / "nowhere" / "a") == []


def test_two_processes_may_make_a_folder_at_once(tmp_path, monkeypatch):
    """As if the other one had removed every file first."""
    monkeypatch.setattr(Path, "unlink", raising(FileNotFoundError(errno.ENOENT, "No such file or directory")))
    folder_files.make(tmp_path / "a")
    assert {path.name for path in (tmp_path / "a").iterdir()} == {".lock", "checkpoints"}


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".a", "a\\b", "a|b", "a\nb", "a\x1b[31m", "a\udcff"])
def test_a_name_is_plain(name, short, capsys):
    assert "--name must be a plain name" in refused([*short, "--name", name], capsys)
    assert not Path("runs").exists()


def test_a_run_is_begun_when_there_is_anything_to_lose(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    assert not folder_files.is_started(tmp_path)
    (tmp_path / "checkpoints" / "best.ckpt").write_text("")
    assert folder_files.is_started(tmp_path)
    assert folder_files.has_checkpoint(tmp_path)
    (tmp_path / "checkpoints" / "best.ckpt").unlink()
    (tmp_path / "result.json").write_text("")
    assert folder_files.is_started(tmp_path)
    assert not folder_files.has_checkpoint(tmp_path)
