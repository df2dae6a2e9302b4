"""Language models through the command line: trained on a text or reviews, resumed, generating, started from."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from program import refused
from texts import amazon_file, imdb_archive, opinions

import plmu
from plmu.cli.program import main
from plmu.runs.deployed import load
from plmu.text.symbols import Characters, Words, read
from plmu.training.step import TrainingStep

SMALL = ["--model.width", "8", "--model.blocks", "1", "--model.order", "2"]
TEXT8 = ["train", "text8", *SMALL, "--model.length", "16", "--training.batch-size", "8", "--training.epochs", "2"]
OWN = [*TEXT8, "--data.file", "my.txt", "--quiet"]
FOLDER = Path("runs/text8-plmu-seed0")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of its own, with a text in it."""
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("Once upon a time, in a café: “No!”\n" * 40, encoding="utf-8")
    return tmp_path


def result(name: str) -> dict[str, Any]:
    return json.loads(Path(f"runs/{name}-seed0/result.json").read_text())


def interrupted(words: list[str], monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """The command, stopped after so many steps."""
    step, calls = TrainingStep.eager, []

    def stopped(self: TrainingStep) -> None:
        calls.append(1)
        if len(calls) > steps:
            raise KeyboardInterrupt
        step(self)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingStep, "eager", stopped)
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 130


def test_a_text_of_ones_own_is_learned_interrupted_resumed_and_continued(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*OWN, "--training.checkpoint-seconds", "0"]
    main([*words, "--name", "whole"])
    whole = result("whole")
    assert whole["history"][1]["loss"] < whole["history"][0]["loss"]
    assert whole["test"].keys() == {"bpc", "bpc_reset_180"}
    assert whole["notes"] == {
        "data": "own text my.txt: 1,400 characters, 21 different ones, split 90/5/5 % by length",
        "tokens": "21 characters",
    }
    for more in (3, 10):
        interrupted(words, monkeypatch, more)
        assert "stopped; the same command resumes from the last checkpoint" in capsys.readouterr().err
    main(words)
    resumed = result("text8-plmu")
    assert all(resumed[key] == whole[key] for key in ("history", "test", "valid", "best_epoch"))

    capsys.readouterr()
    main(["evaluate", str(FOLDER)])
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(printed["bpc"]) == pytest.approx(whole["test"]["bpc"], rel=1e-5)
    main(["generate", str(FOLDER), "--prompt", "“Once", "--length", "30", "--seed", "0"])
    text = capsys.readouterr().out
    assert text.startswith("“Once")
    symbols = read(FOLDER, 21)
    assert isinstance(symbols, Characters)
    assert set(text) <= set(symbols.alphabet)
    assert "is not in the model's alphabet" in refused(["generate", str(FOLDER), "--prompt", "Zoo"], capsys)


@pytest.mark.parametrize(
    "options",
    [
        ["--training.carry", "--training.accumulate", "2", "--training.data", "host", "--training.average", "0.9"],
        ["--training.schedule", "plateau", "--training.patience", "1", "--training.optimizer", "adamw"],
        ["--training.schedule", "step", "--training.drops", "1", "--training.refit", "--model.attention", "2"],
        ["--model", "lstm", "--model.hidden", "6", "--model.embedding", "4", "--training.carry"],
        ["--model", "modern", "--model.thetas", "2", "8", "--model.hidden", "6", "--training.precision", "bfloat16"],
    ],
)
def test_options_of_training(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = [*OWN, *options, "--training.epochs", "1"]
    if "lstm" in options:
        words = [*words[:2], *words[2 + len(SMALL) :]]
    main(words)
    found = json.loads(next(Path("runs").glob("*-seed0/result.json")).read_text())
    assert 0 < found["test"]["bpc"] < 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--training.batch-size", "200"],
            "training.batch_size = 200 windows of 16 tokens need 3,217 training tokens, got 1,260: choose a smaller"
            " training.batch_size or model.length",
        ),
        (["--training.batch-size", "9", "--training.accumulate", "2"], "must be divisible by training.accumulate = 2"),
        (
            ["--training.batch-tokens", "100"],
            "training.batch_tokens is for examples of different lengths: use",
        ),
        (["--training.accumulate", "0"], "training.accumulate must be above 0 and finite, got 0"),
        (["--training.drop", "2"], "training.drop must lie between 0 and 1, got 2.0"),
        (["--training.drops", "1"], "training.drops is for training.schedule = step, and the schedule is cosine"),
        (["--training.schedule", "step"], "training.schedule = step needs training.drops"),
        (["--training.patience", "0"], "training.patience must be above 0 and finite, got 0"),
        (["--training.schedule", "linear"], "linear"),
        (["--model.length", "1"], "model.length must be at least 2"),
        (["--data.file", "other.txt"], "other.txt is not there: --data.file takes a text file"),
        (["--data.file", "."], ". is not a file: --data.file takes a text file"),
        (["--data.file", "latin.txt"], "latin.txt, line 1, byte 4: it is not UTF-8"),
        (["--data.file", "short.txt"], "short.txt has a text of 5 characters: at least 1,000 are needed"),
        (["--from", "runs/x"], "text8 cannot start from another run: leave out --from"),
    ],
)
def test_wrong_ways(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("latin.txt").write_bytes("caf\xe9\n".encode("latin-1") * 1000)
    Path("short.txt").write_text("short")
    assert message in refused([*OWN, *options], capsys)


def test_after_a_wrong_batch_the_right_one_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert "need 3,217 training tokens" in refused([*OWN, "--training.batch-size", "200"], capsys)
    main(OWN)
    assert FOLDER.joinpath("model.plmu").is_file()


@pytest.fixture
def data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small files of reviews."""
    amazon_file(folder / "data" / "amazon" / "a.json", opinions())
    imdb_archive(folder / "data" / "aclImdb" / "aclImdb_v1.tar.xz", unlabelled=opinions(300, "film"))
    monkeypatch.setenv("PLMU_DATA", str(folder / "data"))
    return folder / "data"


REVIEWS = [
    *("train", "reviews", *SMALL, "--model.length", "8", "--model.vocabulary", "20", "--training.batch-size", "8"),
    *("--training.epochs", "1", "--quiet"),
]


def test_reviews_then_more_reviews_then_films(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted([*REVIEWS, "--training.checkpoint-seconds", "0"], monkeypatch, 20)
    main([*REVIEWS, "--training.checkpoint-seconds", "0"])
    first = Path("runs/reviews-plmu-seed0")
    assert result("reviews-plmu")["test"]["perplexity"] < 22
    more = [*REVIEWS, "--data.corpus", "imdb", "--from", str(first), "--model.dropout", "0.25", "--name", "films"]
    main(more)
    films = result("films")
    assert films["notes"]["started from"].startswith("reviews plmu, seed 0; test: perplexity")
    assert "IMDB" in films["notes"]["data"]
    assert films["config"]["model"]["dropout"] == 0.25
    vocabulary = Path("runs/films-seed0/vocabulary.txt").read_text()
    assert vocabulary == (first / "vocabulary.txt").read_text()
    assert len(Words(vocabulary.split("\n")[:-1]).words) <= 20

    main(["train", "imdb", "--from", "runs/films-seed0", "--training.epochs", "1", "--training.batch-tokens", "120",
          "--quiet"])  # fmt: skip
    found = result("imdb-pretrained")
    assert found["notes"]["started from"].startswith("reviews plmu, seed 0; test: perplexity")
    classifier = plmu.load("runs/imdb-pretrained-seed0/model.plmu")
    assert classifier.layers[0].embedding_dim == 8
    words = load(Path("runs/imdb-pretrained-seed0")).symbols
    assert isinstance(words, Words)
    assert list(words.words) == vocabulary.split("\n")[:-1]
    capsys.readouterr()
    main(["generate", "runs/films-seed0", "--length", "5", "--seed", "0"])
    assert capsys.readouterr().out

    # What does not fit the run is refused.
    start = ["--from", str(first)]
    lstm = ["train", "reviews", "--model", "lstm", *start]
    assert "lstm cannot start from another run: leave out --from, or take --model plmu" in refused(lstm, capsys)
    wide = [*REVIEWS, *start, "--name", "wide", "--model.width", "16", "--model.theta", "5", "--model.no-tied"]
    message = refused(wide, capsys)
    assert "--from reviews-plmu-seed0 has a model of other options: set model.width = 8, model.theta = 6.0, " in message
    shutil.copytree(first, "bare")
    content = json.loads(Path("bare/result.json").read_text())
    del content["config"]
    Path("bare/result.json").write_text(json.dumps(content))
    assert "--from bare has another model:" in refused([*wide, "--from", "bare"], capsys)


def test_what_continues_starts_with_the_weights_of_the_run(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main(REVIEWS)
    first = Path("runs/reviews-plmu-seed0")
    begun: list[dict[str, torch.Tensor]] = []
    begin = TrainingStep.begin

    def noted(self: TrainingStep, anew: bool) -> None:
        begun.append({name: value.clone() for name, value in self.model.state_dict().items()})
        begin(self, anew)

    monkeypatch.setattr(TrainingStep, "begin", noted)
    main([*REVIEWS, "--from", str(first), "--name", "again"])
    expected = plmu.load(first / "model.plmu").state_dict()
    assert begun[0].keys() == expected.keys()
    assert all(torch.equal(begun[0][name], expected[name]) for name in expected)
