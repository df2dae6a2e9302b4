"""Text experiments: parameter counts, padding, fixed states, and the commands from raw files to a result."""

import dataclasses
import io
import json
import lzma
import shutil
from pathlib import Path

import pytest
import torch
from program import refused
from texts import imdb_archive, keras_file, qqp_official, qqp_partition, snli_folder, vector_file
from torch import nn
from untrained import EXPERIMENTS

import plmu
from plmu.cli.program import main
from plmu.data.files import DataConfig
from plmu.errors import RunError
from plmu.experiments.text_classification import DeepModel, LSTMModel, PlmuModel, classifier, logits
from plmu.runs.deployed import load
from plmu.text.words import FIRST

TEXTS = ("imdb", "qqp", "snli")
SIDES = {"imdb": 1, "qqp": 2, "snli": 2}
OUTPUTS = {"imdb": 1, "qqp": 1, "snli": 3}


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    """Small files of all sources, in the folder that PLMU_DATA names; runs go to tmp_path/runs."""
    folder = tmp_path / "data"
    imdb_archive(folder / "aclImdb" / "aclImdb_v1.tar.xz")
    snli_folder(folder)
    qqp_partition(folder)
    vector_file(folder / "glove" / "small.txt.xz")
    monkeypatch.setenv("PLMU_DATA", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def _besides(name: str, model: str) -> int:
    config = EXPERIMENTS[name].defaults(model).model
    network = classifier(config, nn.Embedding(10, 300), SIDES[name], OUTPUTS[name])
    return sum(p.numel() for p in network.parameters()) - 10 * 300


def test_parameters_besides_embeddings_are_the_papers():
    for model in ("plmu", "frozen"):
        assert [_besides(name, model) for name in TEXTS] == [301, 1_201, 3_603]
    assert [_besides(name, "lstm") for name in TEXTS] == [50_210, 218_441, 219_459]
    for name in TEXTS:
        assert _besides(name, "deep") <= _besides(name, "lstm")


def test_lengths_and_windows_are_the_papers():
    for name, longest in zip(TEXTS, (500, 25, 25), strict=True):
        config = EXPERIMENTS[name].defaults("plmu").model
        assert (config.longest, config.theta, config.order, config.vocabulary) == (longest, longest, 1, 20_000)


SMALL = {
    "plmu": PlmuModel(longest=40, embedding=6, theta=30.0),
    "order 3": PlmuModel(longest=40, embedding=6, theta=30.0, order=3),
    "deep": DeepModel(longest=40, embedding=6, theta=30.0, memory=4, hidden=5, dense=7),
    "lstm": LSTMModel(longest=40, embedding=6, hidden=5),
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("sides", [1, 2])
def test_padding_changes_nothing(name, sides):
    torch.manual_seed(0)
    network = classifier(SMALL[name], nn.Embedding(30, 6), sides, 3).eval()
    lengths = torch.tensor([40, 1, 0, 13, 39])
    tokens = torch.randint(0, 30, (5, 40), dtype=torch.int32)
    other = torch.where(torch.arange(40) < lengths[:, None], tokens, torch.randint(0, 30, (5, 40), dtype=torch.int32))
    plain = logits(network, (tokens, lengths) * sides)
    assert torch.equal(logits(network, (other, lengths) * sides), plain)
    for row in (1, 3, 4):  # without any padding at all
        length = lengths[row : row + 1]
        alone = logits(network, (tokens[row : row + 1, : int(length)], length) * sides)
        torch.testing.assert_close(alone[0], plain[row], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["plmu", "order 3", "deep"])
def test_what_is_deployed_is_what_was_trained(name, tmp_path):
    torch.manual_seed(0)
    network = classifier(SMALL[name], nn.Embedding(30, 6), 1, 1)
    tokens, lengths = torch.randint(0, 30, (9, 40), dtype=torch.int32), torch.arange(32, 41)
    plmu.standardize(network, [(tokens, lengths)], logits)
    expected = logits(network.eval(), (tokens, lengths))
    plmu.save(network, tmp_path / "model.plmu")
    loaded = plmu.load(tmp_path / "model.plmu").eval()
    assert torch.equal(logits(loaded, (tokens, lengths)), expected)
    stream = plmu.Stream(loaded)
    for t in range(40):
        y = stream.push(tokens[-1, t])
    torch.testing.assert_close(y, expected[-1], rtol=1e-4, atol=1e-4)


def test_frozen_embeddings_stay_as_they_come(data):
    experiment = EXPERIMENTS["qqp"]
    config = experiment.defaults("frozen")
    task = experiment.task(config)
    network = experiment.build(config, task)
    before = network.encoder.embedding.weight.clone()
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1, weight_decay=0.1)
    task.loss(network, task.train).backward()
    optimizer.step()
    assert torch.equal(network.encoder.embedding.weight, before)
    assert sum(p.numel() for p in network.parameters() if p.requires_grad) == 1_201
    assert task.notes["embeddings"] == "frozen"
    assert str(task.notes["vectors"]).startswith("small.txt.xz (not GloVe 840B), ")
    trained = dataclasses.replace(config, model=dataclasses.replace(config.model, trained=True, vectors="random"))
    experiment.build(trained, task)
    assert task.notes["vectors"] == "random"
    assert task.notes["parameters besides embeddings"] == 1_201


def test_embeddings_may_start_at_zero_with_states_of_the_usual_scale(data):
    experiment = EXPERIMENTS["imdb"]
    networks = {}
    for start in ("random", "zero"):
        config = experiment.defaults("plmu")
        config.model.vectors = start
        torch.manual_seed(0)
        task = experiment.task(config)
        networks[start] = experiment.build(config, task).eval()
        assert task.notes["vectors"] == start
    zero, random = networks["zero"], networks["random"]
    assert torch.equal(zero.layers[1].std, random.layers[1].std)
    table = zero.layers[0].embedding.weight
    assert not table.any()
    torch.testing.assert_close(logits(zero, task.test[:-1]), zero.layers[-1].bias.expand(len(task.test[0]), 1))
    task.loss(zero, task.train).backward()
    assert table.grad.abs().max() > 0
    with pytest.raises(ValueError, match=r"model\.vectors = zero needs model\.trained"):
        dataclasses.replace(experiment.defaults("frozen").model, vectors="zero")


def test_words_are_dropped_in_training_alone():
    torch.manual_seed(0)
    for name in ("plmu", "deep"):
        network = classifier(dataclasses.replace(SMALL[name], word_dropout=0.5), nn.Embedding(30, 6), 1, 1)
        given = torch.randint(0, 30, (4, 40), dtype=torch.int32), torch.full((4,), 40)
        assert not torch.equal(logits(network, given), logits(network, given))
        network.eval()
        assert torch.equal(logits(network, given), logits(network, given))


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("model", ["plmu", "frozen", "lstm", "deep"])
def test_the_commands_from_raw_files_to_a_result(name, model, data, capsys):
    usual = ["--training.epochs", "1", "--training.batch-size", "10", "--model.vectors", "auto", "--quiet"]
    main(["train", name, "--model", model, *usual])
    folder = Path(f"runs/{name}-{model}-seed0")
    result = json.loads((folder / "result.json").read_text())
    assert 0 <= result["test"]["accuracy"] <= 1
    assert "partial" in result["notes"]["data"]
    assert "small.txt.xz" in result["notes"]["vectors"]
    assert (folder / "vocabulary.txt").read_text().count("\n") > 10
    assert (folder / "model.plmu").is_file() == (name == "imdb" and model != "lstm")
    capsys.readouterr()
    main(["evaluate", str(folder)])
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(printed["accuracy"]) == pytest.approx(result["test"]["accuracy"], rel=1e-5)


def test_other_data_than_the_runs_is_refused(data, tmp_path, capsys):
    """Another review; and other vectors where they stay as given. The words are the same."""
    usual = ["train", "imdb", "--model", "frozen", "--training.epochs", "1", "--model.vectors", "auto", "--quiet"]
    main(usual)
    folder = Path("runs/imdb-frozen-seed0")
    known = (folder / "paths.json").read_text()
    review, vectors = tmp_path / "review", tmp_path / "vectors"
    imdb_archive(review / "aclImdb" / "aclImdb_v1.tar.xz", changed={"aclImdb/test/pos/3_9.txt": b"the film was bad"})
    vector_file(review / "glove" / "small.txt.xz")
    imdb_archive(vectors / "aclImdb" / "aclImdb_v1.tar.xz")
    vector_file(vectors / "glove" / "small.txt.xz")
    plain = lzma.decompress((vectors / "glove" / "small.txt.xz").read_bytes())
    (vectors / "glove" / "small.txt.xz").write_bytes(lzma.compress(plain.replace(b" 0.", b" 0.1")))
    copy = shutil.copytree(data, tmp_path / "copy")
    main(["evaluate", str(folder), "--data.root", str(copy)])
    for other in (review, vectors):
        said = f"the data in {other} is not what {folder} was trained on"
        assert said in refused(["evaluate", str(folder), "--data.root", str(other)], capsys)
        main([*usual, "--data.root", str(other)])  # it is finished
        result = (folder / "result.json").rename(tmp_path / "result.json")
        assert said in refused([*usual, "--data.root", str(other)], capsys)
        result.rename(folder / "result.json")
        assert (folder / "paths.json").read_text() == known
    (folder / "result.json").unlink()
    main([*usual, "--data.root", str(copy)])  # the same data in another place
    assert json.loads((folder / "paths.json").read_text()) == {"data.root": str(copy)}
    (folder / "data.json").write_text("{}")
    assert "data.json is damaged" in refused(["evaluate", str(folder)], capsys)
    (folder / "data.json").unlink()
    main(["evaluate", str(folder)])


def test_the_other_formats_train_too(data):
    (data / "aclImdb" / "aclImdb_v1.tar.xz").unlink()
    keras_file(data / "aclImdb" / "imdb.npz")
    qqp_official(data)
    usual = ["--training.epochs", "1", "--training.batch-size", "10", "--model.vectors", "random", "--quiet"]
    main(["train", "imdb", *usual])
    main(["train", "qqp", "--model.split", "280k", *usual])
    assert "from imdb.npz" in json.loads(Path("runs/imdb-plmu.json").read_text())["notes"]["data"]
    assert "split 280k" in json.loads(Path("runs/qqp-plmu.json").read_text())["notes"]["data"]


def test_ours_learns_the_small_reviews_and_streams_them(data, monkeypatch, capsys):
    options = ["--training.epochs", "20", "--training.batch-size", "6", "--training.learning-rate", "1e-3"]
    main(["train", "imdb", *options, "--quiet"])
    result = json.loads(Path("runs/imdb-plmu.json").read_text())
    assert result["test"]["accuracy"]["mean"] > 0.9
    text = "The film was superb, lovely!\n\nThe plot was dreadful.\nAwful\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    capsys.readouterr()
    main(["stream", "runs/imdb-plmu-seed0"])
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[1] if line else "" for line in shown] == [
        *("the", "film", "was", "superb", "lovely", "!"),
        "",
        *("the", "plot", "was", "dreadful", "awful"),
    ]
    values = [float(line.split()[0]) if line else None for line in shown]
    assert values[4] > values[2]
    assert values[11] < values[9]
    assert values[4] > values[11]

    file = Path("runs/imdb-plmu-seed0/model.plmu")  # the file alone, which names no classes, and all at once
    for beside in ("outputs.json", "config.json"):
        (file.parent / beside).unlink()
    text = "great film nonsenseword awful"
    tokens = torch.tensor([[number for number, _ in load(file).tokens(text, first=True)]])
    assert tokens[0, 2] == 1
    model = plmu.load(file).eval()
    expected = [model(tokens[:, : i + 1])[0].item() for i in range(4)]
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    main(["stream", str(file), "--json"])
    logits = [json.loads(line)["output"][0] for line in capsys.readouterr().out.splitlines()]
    assert logits == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_stream_names_what_is_missing(tmp_path):
    path = tmp_path / "model.plmu"
    plmu.save(plmu.Sequential(nn.Embedding(FIRST + 3, 2), plmu.DelayLayer(2, order=1, theta=3.0)), path)
    with pytest.raises(RunError, match=r"has no symbols\.json or vocabulary\.txt"):
        load(tmp_path)
    (tmp_path / "vocabulary.txt").write_text("a\nb\n")
    with pytest.raises(RunError, match=r"is for 4 token numbers and the model has 5 embeddings: they are of different"):
        load(path)


def test_errors_of_the_data_are_one_message(data, capsys):
    (data / "glove" / "small.txt.xz").unlink()
    vector_file(data / "glove" / "small.txt", dimension=50)
    for words, message in (
        (["train", "imdb", "--model", "frozen"], "small.txt, line 1: 50 numbers instead of 300"),
        (["train", "snli", "--data.root", str(data / "glove")], "has no snli_1.0_train.jsonl"),
        (["train", "imdb", "--model.thetas", "3"], ""),
        (["train", "imdb", "--model", "deep", "--model.thetas", "0", "2"], "model.thetas must be one or more"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 2
        assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert isinstance(EXPERIMENTS["imdb"].defaults("deep").data, DataConfig)
