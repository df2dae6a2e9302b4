"""An experiment with data options of its own, files of the user's own, and runs that start from others."""

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import pytest
import torch
from program import refused
from torch import nn

import plmu
from plmu.cli import catalogue
from plmu.cli.completion import _words
from plmu.cli.program import main
from plmu.data.files import DataConfig
from plmu.errors import RunError
from plmu.experiments import pretrained
from plmu.runs import configuration, sources
from plmu.runs.experiment import Config, Experiment
from plmu.runs.fields import Checked
from plmu.text.symbols import Bytes, Words
from plmu.training.config import TrainingConfig
from plmu.training.task import Task

FOLDER = Path("runs/own-plmu-seed0")
Model = TypeVar("Model")


@dataclass
class OwnData(DataConfig):
    file: Path | None = None
    """A text file of your own."""
    tokens: Literal["all", "even"] = "all"
    """Which bytes to read."""


@dataclass
class OwnConfig(Config[Model]):
    data: OwnData = field(default_factory=OwnData)


@dataclass
class OwnModel(Checked):
    hidden: int = 4
    """Size."""


class Own(Experiment):
    """The next byte of a text."""

    name = "own"
    metric = "loss"
    paper: ClassVar[dict[str, float]] = {}
    models = ("plmu", "other")
    streamable = ("plmu", "other")
    starts = ("own",)

    def default_model(self, started: bool) -> str:
        return "other" if started else "plmu"

    def defaults(self, model: str) -> OwnConfig[Any]:
        self.check(model)
        return OwnConfig(OwnModel(), TrainingConfig(epochs=2, batch_size=4))

    def task(self, config: Config[Any]) -> Task:
        data = config.data
        assert isinstance(data, OwnData)
        text = data.file.read_bytes() if data.file else bytes(range(256))
        values = torch.tensor([*text][:: 2 if data.tokens == "even" else 1][:200]).reshape(-1, 10)
        return Task(
            (values,),
            (values,),
            (values,),
            loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0])[0].mT, batch[0].long()),
            measure=lambda model, batch: torch.stack(
                [nn.functional.cross_entropy(model(batch[0])[0].mT, batch[0].long()), torch.ones(())]
            ),
            finish=lambda sums: {"loss": float(sums[0] / sums[1])},
            metric="loss",
            higher_is_better=False,
            notes={"data": "own text, complete"},
        )

    def build(self, config: Config[Any], task: Task) -> nn.Module:
        hidden = config.model.hidden
        network = plmu.Sequential(nn.Embedding(256, hidden), nn.Linear(hidden, 256))
        if config.start is not None:
            begun = pretrained.read(config.start, self.starts)
            network[0].weight.data = begun.embedding.weight.data.clone()
            task.notes |= begun.notes
        return network

    def companions(self, task: Task) -> dict[str, str]:
        return Bytes().companions()


@pytest.fixture
def own(tmp_path, monkeypatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(catalogue.CATALOGUE, "own", catalogue.Entry("a text", f"{__name__}:Own"))
    for name in ("a", "b"):
        Path(name).mkdir()
    Path("a/my text.txt").write_text("abcdefghij" * 40)
    Path("b/other.txt").write_text("klmnopqrst" * 40)
    return ["train", "own", "--quiet", "--data.file", "a/my text.txt"]


def read(path: str | Path) -> dict[str, Any]:
    return json.loads(Path(path).read_text())


def test_options_of_an_experiments_own_data(own, capsys):
    with pytest.raises(SystemExit):
        main(["train", "own", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for said in ("--data.file", "A text file of your own.", "--data.tokens {all,even}", "--data.root", "--from"):
        assert said in shown
    assert "Folder of a finished run of own to start from." in shown.replace(" │ │ ", " ")
    words, values = _words({}, [])
    assert {"--data.file", "--data.tokens", "--from"} <= set(words["train own"])
    assert values["train own --data.tokens"] == ["all", "even"]
    assert "--start" not in words["train own"]
    assert "--from" not in words["train psmnist"]


def test_paths_are_not_published_and_other_options_are(own, tmp_path):
    main([*own, "--data.tokens", "even"])
    config, result = read(FOLDER / "config.json"), read(FOLDER / "result.json")
    assert config["config"]["data"] == result["config"]["data"] == {"tokens": "even"}
    assert "start" not in config["config"]
    assert result["command"] == "plmu train own --quiet --data.file 'my text.txt' --data.tokens even"
    for name in ("config.json", "result.json", "data.json"):
        assert str(tmp_path) not in (FOLDER / name).read_text()
    assert str(tmp_path) not in Path("runs/own-plmu.json").read_text()
    assert read(FOLDER / "paths.json") == {"data.file": str(tmp_path / "a" / "my text.txt")}
    main(["train", "own", "--data.file=a/my text.txt", "--data.root=a", "--quiet", "--name", "x"])
    assert read("runs/x-seed0/result.json")["command"] == "plmu train own --data.file 'my text.txt' --quiet --name x"


def test_a_plain_data_configuration_is_described_as_before():
    for experiment in map(catalogue.lookup, catalogue.CATALOGUE):
        usual = experiment.defaults(experiment.models[0])
        if type(usual.data) is DataConfig:
            described = configuration.as_json(experiment, experiment.models[0], usual)
            assert described["config"].keys() == {"model", "training", "seed"}


def test_another_option_of_the_data_is_another_run(own, capsys):
    main(own)
    assert "data.tokens was all, now even" in refused([*own, "--data.tokens", "even"], capsys)
    known = read(FOLDER / "config.json")
    del known["config"]["data"]  # of a version without the option
    (FOLDER / "config.json").write_text(json.dumps(known))
    main(own)


def test_another_file_is_another_run(own, capsys):
    """Finished or not, also for other seeds; the same content elsewhere is the same file."""
    main(own)
    other = [word.replace("a/my text.txt", "b/other.txt") for word in own]
    said = (
        f"the data in b/other.txt is not what {FOLDER} was trained on: give that run's --data.file, or choose another"
        " --name"
    )
    assert said in refused(other, capsys)
    assert said in refused([*other, "--seed", "3"], capsys)
    assert not Path("runs/own-plmu-seed3").exists()
    assert f"{FOLDER} was trained on a file of your own: give it as --data.file" in refused(own[:3], capsys)
    result = (FOLDER / "result.json").rename("kept.json")
    assert said in refused(other, capsys)
    result.rename(FOLDER / "result.json")
    shutil.copy("a/my text.txt", "b/copy.txt")
    main([word.replace("a/my text.txt", "b/copy.txt") for word in own])
    assert "nowhere.txt: No such file" in refused([*own[:3], "--data.file", "b/nowhere.txt"], capsys)
    main(["train", "own", "--quiet", "--name", "plain"])
    assert "the data in b/other.txt is not what runs/plain-seed0" in refused([*other, "--name", "plain"], capsys)


def test_a_file_of_equal_size_and_time_is_another_file(own, capsys):
    main(own)
    file = Path("a/my text.txt")
    status = file.stat()
    file.write_text("abcdefghij" * 39 + "jihgfedcba")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert f"is not what {FOLDER} was trained on" in refused(own, capsys)


def test_a_file_that_changes_while_it_is_read_has_no_run(own, capsys, monkeypatch):
    read_task = Own.task

    def reading(self, config):
        task = read_task(self, config)
        config.data.file.write_text("later")
        return task

    monkeypatch.setattr(Own, "task", reading)
    assert "my text.txt changed while it was read: start again" in refused(own, capsys)
    assert not (FOLDER / "data.json").exists()


def test_evaluate_finds_the_file_again(own, capsys):
    main(own)
    main(["evaluate", str(FOLDER)])
    assert f"loss {read(FOLDER / 'result.json')['test']['loss']:.6g}" in capsys.readouterr().out
    message = refused(["evaluate", str(FOLDER), "--data.file", "b/other.txt"], capsys)
    assert message.endswith(f"the data in b/other.txt is not what {FOLDER} was trained on: give that run's --data.file")
    Path("a/my text.txt").rename("b/moved.txt")
    lost = Path("a/my text.txt").absolute()
    said = f"{FOLDER} was trained on {lost}, which is not there: give --data.file"
    assert said in refused(["evaluate", str(FOLDER)], capsys)
    main(["evaluate", str(FOLDER), "--data.file", "b/moved.txt"])
    for content in ("[]", "{}", "{", '{"data.file": 3}'):
        (FOLDER / "paths.json").write_text(content)
        message = refused(["evaluate", str(FOLDER)], capsys)
        assert "paths.json is damaged: give --data.file and --data.root, or remove it" in message


def test_evaluate_scores_the_saved_model(own, capsys):
    main(own)
    model = plmu.load(FOLDER / "model.plmu")
    with torch.no_grad():
        for parameter in model[-1].parameters():
            parameter.zero_()
    plmu.save(model, FOLDER / "model.plmu")
    main(["evaluate", str(FOLDER)])
    assert f"loss {torch.tensor(256.0).log().item():.6g}" in capsys.readouterr().out  # all bytes are as likely


def test_other_data_is_for_runs_on_own_data(own, capsys):
    main(own)
    words = ["evaluate", str(FOLDER), "--other-data", "--data.file", "b/other.txt"]
    assert f"--other-data is for runs of forecast and classify, and {FOLDER} is a run of own" in refused(words, capsys)


def test_a_data_folder_that_has_gone_does_not_matter_beside_a_file(own):
    Path("root").mkdir()
    main([*own, "--data.root", "root"])
    shutil.rmtree("root")
    main(["evaluate", str(FOLDER)])


def test_evaluate_names_options_that_the_run_does_not_take(short, capsys):
    main(short)
    folder = "runs/mackey-glass-plmu-seed0"
    for option in ("--data.file", "--from"):
        assert f"{folder} takes no {option}" in refused(["evaluate", folder, option, "x"], capsys)


START = ["train", "own", "--quiet", "--from"]
STARTED = Path("runs/own-other-seed0")


def test_a_run_starts_from_another(own, tmp_path, capsys):
    main(own)
    main([*START, str(FOLDER.absolute())])
    result, config = read(STARTED / "result.json"), read(STARTED / "config.json")
    assert config["config"]["start"] == result["config"]["start"] == sources.digest(FOLDER)
    assert result["command"] == "plmu train own --quiet --from own-plmu-seed0"
    score = read(FOLDER / "result.json")["test"]["loss"]
    assert result["notes"]["started from"] == f"own plmu, seed 0; test: loss {score:.4g}"
    assert result["notes"]["pre-training data"] == "own text, complete"
    for path in (STARTED / "result.json", STARTED / "config.json", Path("runs/own-other.json")):
        assert str(tmp_path) not in path.read_text()
    assert read(STARTED / "paths.json") == {"from": str(FOLDER.absolute())}
    main([*START, str(STARTED.absolute()), "--name", "third"])  # of which both sets of data are named
    assert (
        read(Path("runs/third-seed0/result.json"))["notes"]["pre-training data"]
        == "own text, complete; then own text, complete"
    )
    capsys.readouterr()
    main(["evaluate", str(STARTED)])
    assert f"loss {result['test']['loss']:.6g}" in capsys.readouterr().out
    main([*START, str(FOLDER)])  # nothing is trained twice
    main(["report", "--results", "runs", "--out", "report"])


def test_another_model_to_start_from_is_another_run(own, capsys):
    main([*own, "--seeds", "2"])
    main([*START, str(FOLDER)])
    second = Path("runs/own-plmu-seed1")
    message = refused([*START, str(second)], capsys)
    assert f"start was {sources.digest(FOLDER)}, now {sources.digest(second)}" in message
    assert "choose another --name" in message
    assert "start was" in refused(["train", "own", "--model", "other", "--quiet"], capsys)
    message = refused(["evaluate", str(STARTED), "--from", str(second)], capsys)
    assert f"{STARTED} started from another model than {second / 'model.plmu'}: give that run as --from" in message
    moved = FOLDER.rename("elsewhere-seed0")
    assert "which is not there: give --from" in refused(["evaluate", str(STARTED)], capsys)
    main(["evaluate", str(STARTED), "--from", str(moved)])
    (STARTED / "paths.json").unlink()
    message = refused(["evaluate", str(STARTED)], capsys)
    assert f"{STARTED} started from another run: give that run's folder as --from" in message


def test_what_cannot_be_started_from_is_named(own, capsys, monkeypatch):
    main(own)
    for words in (["train", "psmnist", "--from", "x"], ["train", "psmnist", "--model", "lstm", "--from=x"]):
        assert "psmnist cannot start from another run: leave out --from" in refused(words, capsys)
    assert "--from nowhere is not a run: it has no config.json" in refused([*START, "nowhere"], capsys)
    result = FOLDER / "result.json"
    whole = result.read_text()
    for content in ("{", "[]", "{}", "3", '{"experiment": "own", "model": "plmu", "test": {}, "notes": {}}'):
        result.write_text(content)
        assert f"{result} is damaged" in refused([*START, str(FOLDER)], capsys)
    result.unlink()
    assert f"--from {FOLDER} is not finished: `plmu train` continues it" in refused([*START, str(FOLDER)], capsys)
    result.write_text(whole.replace('"experiment": "own"', '"experiment": "psmnist"'))
    assert f"--from {FOLDER} is a run of psmnist: it must be one of own" in refused([*START, str(FOLDER)], capsys)
    result.write_text(whole)
    symbols = (FOLDER / "symbols.json").rename("symbols.json")
    assert f"{FOLDER} has no symbols.json or vocabulary.txt" in refused([*START, str(FOLDER)], capsys)
    symbols.rename(FOLDER / "symbols.json")
    model = FOLDER / "model.plmu"
    plmu.save(nn.Linear(2, 2), model)
    assert "model.plmu is not a model of text" in refused([*START, str(FOLDER)], capsys)
    model.write_bytes(b"nothing")
    assert f"--from {FOLDER}: {model} is truncated or not a safetensors file" in refused([*START, str(FOLDER)], capsys)
    model.unlink()
    assert f"--from {FOLDER} has no model.plmu" in refused([*START, str(FOLDER)], capsys)
    assert not STARTED.exists() or not (STARTED / "result.json").exists()


def test_a_pretrained_model_comes_with_its_symbols(own):
    main(own)
    begun = pretrained.read(FOLDER)
    assert (begun.symbols.kind, begun.name, begun.sha256) == ("bytes", "own-plmu-seed0", sources.digest(FOLDER))
    assert begun.embedding.weight.shape == (256, 4)
    (FOLDER / "symbols.json").unlink()
    (FOLDER / "vocabulary.txt").write_text(Words(("a", "b")).companions()["vocabulary.txt"])
    with pytest.raises(RunError, match=r"vocabulary\.txt is for 4 token numbers and the model has 256 embeddings"):
        pretrained.read(FOLDER)
