"""IMDB from a language model: fine-tuning, embeddings alone, from scratch; and streams of what comes out."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from program import refused
from test_text import data  # noqa: F401  # a fixture
from torch import nn
from untrained import EXPERIMENTS, built

import plmu
from plmu.cli.program import main
from plmu.errors import RunError
from plmu.experiments import language, pretrained
from plmu.experiments.imdb_pretrained import PretrainedModel, ScratchModel, adversarial_loss, begin_reviews, groups
from plmu.experiments.reviews import WordModel
from plmu.experiments.text_classification import RANDOM, classification_loss, logits
from plmu.runs import sources
from plmu.runs.deployed import load
from plmu.text.symbols import SEPARATOR, Characters, Words
from plmu.text.words import UNKNOWN
from plmu.training.config import TrainingConfig
from plmu.training.optimizers import optimizers
from plmu.training.task import Task

IMDB = EXPERIMENTS["imdb"]
WORDS = ("the", "film", "was", "a", "it", "story", "n't", "?", "is", "great", "lovely", "superb", "awful", "boring")
RUN = Path("lm/reviews-plmu-seed0")
FAST = ["--training.epochs", "2", "--training.warmup", "0", "--quiet"]
TOKENS = ["--training.batch-tokens", "120"]


def language_run(folder: Path = RUN, width: int = 8, words: tuple[str, ...] = WORDS, **changes: Any) -> Path:
    """A finished run of a language model with random weights, as `plmu train reviews` writes it."""
    torch.manual_seed(1)
    folder.mkdir(parents=True)
    model = language.build(WordModel(width=width, blocks=2, order=2), Words(words).size)
    plmu.save(model, folder / "model.plmu")
    for name, content in Words(words).companions().items():
        (folder / name).write_text(content)
    (folder / "config.json").write_text("{}")
    result = {
        "experiment": "reviews",
        "model": "plmu",
        "seed": 0,
        "test": {"perplexity": 70.123},
        "notes": {"data": "Amazon, partial: 3 of 4"},
        **changes,
    }
    (folder / "result.json").write_text(json.dumps(result))
    return folder


@pytest.fixture
def run(data) -> Path:  # noqa: F811
    return language_run()


def result(name: str) -> dict[str, Any]:
    return json.loads(Path(f"runs/{name}-seed0/result.json").read_text())


def config_of(model: str, **changes: Any) -> Any:
    config = IMDB.defaults(model)
    config.model = dataclasses.replace(config.model, **changes)
    config.start = RUN if model != "scratch" else None
    return config


@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize("units", [0, 5])
def test_the_classifier_has_the_parts_of_the_language_model(deep, units, run):
    config = config_of("pretrained", deep=deep, units=units)
    task = IMDB.task(config)
    network = IMDB.build(config, task)
    begun = pretrained.read(run)
    assert torch.equal(network[0].weight, begun.embedding.weight)
    stack = network[2]
    assert isinstance(stack, plmu.WeightedStack) == deep
    blocks = stack.layers[1:] if deep else network.layers[2:4]
    for block, known in zip(blocks, begun.model.layers[2:4], strict=True):
        for (name, value), expected in zip(block.state_dict().items(), known.state_dict().values(), strict=True):
            assert torch.equal(value, expected), name
    pool = next(layer for layer in network if isinstance(layer, plmu.DelayLayer))
    assert "width=8, order=2, theta=800" in repr(pool)
    assert not pool.returns_sequences
    assert network.layers[-1].out_features == 1
    assert sum(isinstance(layer, nn.Linear) for layer in network) == (2 if units else 1)
    table = network[0].weight.numel()
    assert task.notes["parameters besides embeddings"] == sum(p.numel() for p in network.parameters()) - table
    standard = next(layer for layer in network if isinstance(layer, plmu.Standardize))
    states = network[: list(network).index(standard) + 1].eval()(*task.train[:1], lengths=task.train[1])[0]
    torch.testing.assert_close(states.mean(0), torch.zeros(states.shape[1]), atol=1e-4, rtol=0)


def test_reviews_begin_with_a_separator_in_the_vocabulary_of_the_language_model(run):
    config = config_of("pretrained", longest=500)
    task = IMDB.task(config)
    assert task.words == WORDS
    for tokens, lengths, labels in (task.train, task.valid, task.test):
        assert tokens.shape[1] == 501
        assert (tokens[:, 0] == SEPARATOR).all()
        assert (tokens[:, 1] != SEPARATOR).all()
        assert tokens.shape[0] == len(lengths) == len(labels)
        for row, length in zip(tokens, lengths, strict=True):
            assert (row[1:length] >= UNKNOWN).all()
            assert not row[length:].any()
    plain = IMDB.task(config_of("plmu"))
    assert torch.equal(plain.train[0], task.train[0][:, 1:])
    assert torch.equal(plain.train[1] + 1, task.train[1])
    long = begin_reviews((torch.ones(2, 3, dtype=torch.int32), torch.tensor([3, 0]), torch.zeros(2)))
    assert long[0].tolist() == [[0, 1, 1, 1], [0, 1, 1, 1]]
    assert long[1].tolist() == [4, 1]


@pytest.mark.parametrize("deep", [True, False])
def test_deeper_blocks_learn_less_and_later(deep, run):
    config = config_of("pretrained", layer_rate=0.5, unfreezing=0.25, deep=deep)
    network = IMDB.build(config, IMDB.task(config))
    found = groups(config.model)(network)
    everything = [id(p) for group in found for p in group.parameters]
    assert sorted(everything) == sorted(id(p) for p in network.parameters())
    rates = {id(p): (group.rate, group.begins, group.decay) for group in found for p in group.parameters}
    head = network.layers[-1]
    assert rates[id(head.weight)] == (1.0, 0.0, True)
    assert rates[id(head.bias)] == (1.0, 0.0, False)
    lower, upper = network[2].layers[1:] if deep else network.layers[2:4]
    assert {rates[id(p)] for p in upper.parameters()} == {(0.5, 0.25, True), (0.5, 0.25, False)}
    assert {rates[id(p)] for p in lower.parameters()} == {(0.25, 0.5, True), (0.25, 0.5, False)}
    assert rates[id(network[0].weight)] == (0.125, 0.75, False)
    if deep:
        assert rates[id(network[2].mix.weights)] == (1.0, 0.0, False)
    paper = IMDB.defaults("pretrained-paper")
    assert {(group.rate, group.begins) for group in groups(paper.model)(network)} == {(1.0, 0.0)}
    usual = TrainingConfig()
    assert (paper.training.learning_rate, paper.training.betas) == (usual.learning_rate, usual.betas)
    assert (paper.training.weight_decay, paper.training.schedule) == (0.0, "constant")
    assert {group.rate for group in groups(ScratchModel())(network)} == {1.0}
    task = Task((), (), (), None, None, None, "", True, groups=groups(config.model))  # type: ignore[arg-type]
    assert optimizers(network, task, config.training, graphed=False)


@pytest.mark.parametrize("model", ["pretrained", "pretrained-paper", "scratch"])
def test_from_raw_files_to_a_result_and_a_stream(model, run, capsys, monkeypatch):
    words = ["train", "imdb", "--model", model, *FAST]
    words += ["--model.width", "8", "--model.blocks", "2"] if model == "scratch" else ["--from", str(run)]
    words += ["--training.batch-size", "6"] if model == "pretrained-paper" else TOKENS
    main(words)
    folder = Path(f"runs/imdb-{model}-seed0")
    found = result(f"imdb-{model}")
    assert found["command"].startswith(f"plmu train imdb --model {model} ")
    assert (" --from reviews-plmu-seed0 " in found["command"]) == (model != "scratch")
    assert [entry["epoch"] for entry in found["history"]] == [1, 2]
    capsys.readouterr()
    main(["evaluate", str(folder)])
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(printed["accuracy"]) == pytest.approx(found["test"]["accuracy"], rel=1e-5)

    monkeypatch.setattr("sys.stdin", io.StringIO("The film was superb!\n\nThe story\nwas awful\n"))
    main(["stream", str(folder)])
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[1] if line else "" for line in shown] == [
        *("the", "film", "was", "superb", "!"),
        "",
        *("the", "story", "was", "awful"),
    ]
    network, deployed = plmu.load(folder / "model.plmu"), load(folder)
    for text, values in ((["the", "film", "was", "superb", "!"], shown[:5]), (["the", "story"], shown[6:8])):
        tokens = torch.tensor([[number for number, _ in deployed.tokens(" ".join(text), first=True)]])
        assert tokens[0, 0] == SEPARATOR
        for end, line in enumerate(values, 2):
            expected = logits(network.eval(), (tokens[:, :end], torch.tensor([end]))).sigmoid().item()
            assert float(line.split()[0]) == pytest.approx(expected, abs=1.1e-3)  # it has three decimals


def test_the_result_says_what_it_started_from(run, capsys):
    main(["train", "imdb", "--from", str(run), *FAST, *TOKENS])
    found = result("imdb-pretrained")  # the model where --from is given
    assert found["notes"]["started from"] == "reviews plmu, seed 0; test: perplexity 70.12"
    assert found["notes"]["pre-training data"] == "Amazon, partial: 3 of 4"
    assert found["config"]["start"] == sources.digest(run)
    main(["train", "imdb", "--model", "scratch", *FAST, *TOKENS, "--model.width", "8", "--model.blocks", "2"])
    assert "started from" not in result("imdb-scratch")["notes"]
    main(["report", "--results", "runs", "--out", "report"])
    assert Path("report/curves.png").is_file()


@pytest.mark.parametrize("model", ["plmu", "frozen", "lstm", "deep"])
def test_other_models_start_from_the_embeddings(model, run, capsys):
    config = config_of(model, vectors="zero") if model != "frozen" else config_of(model)
    task = IMDB.task(config)
    network = IMDB.build(config, task)
    table = next(one for one in network.modules() if isinstance(one, nn.Embedding)).weight
    known = pretrained.read(run).embedding.weight
    torch.testing.assert_close(table, known * (RANDOM / known.std()))
    assert table.std().item() == pytest.approx(RANDOM)
    assert table.requires_grad == (model != "frozen")
    if model in ("plmu", "frozen"):
        assert task.notes["parameters besides embeddings"] == 8 + 1
    assert task.notes["vectors"] == "of reviews-plmu-seed0, 8 numbers each"
    main(["train", "imdb", "--model", model, "--from", str(run), *FAST, "--training.batch-size", "10"])
    main(["evaluate", f"runs/imdb-{model}-seed0"])


def test_pretraining_is_asked_for_or_not(run, capsys):
    for model in ("pretrained", "pretrained-paper"):
        message = refused(["train", "imdb", "--model", model], capsys)
        assert f"{model} needs --from RUN, a run of reviews: without pre-training, take --model scratch" in message
    message = refused(["train", "imdb", "--model", "scratch", "--from", str(run)], capsys)
    assert "scratch is the model without pre-training: leave out --from, or take --model pretrained" in message
    assert not Path("runs").exists()
    with pytest.raises(SystemExit) as stopped:
        main(["train", "imdb", "--model", "pretrained", "--help"])
    assert stopped.value.code == 0
    assert "(default: plmu, with --from pretrained). The options below" in " ".join(capsys.readouterr().out.split())


def test_runs_of_other_kinds_are_refused(run, capsys):
    language_run(Path("lm/other"), experiment="text8")
    start = ["train", "imdb", *FAST, *TOKENS, "--from"]
    assert "--from lm/other is a run of text8: it must be one of reviews" in refused([*start, "lm/other"], capsys)
    folder = language_run(Path("lm/letters"), words=("a", "b"))
    (folder / "vocabulary.txt").unlink()
    (folder / "symbols.json").write_text(Characters("abcd").companions()["symbols.json"])
    assert "--from letters is a model of characters: it must be one of words" in refused([*start, str(folder)], capsys)
    folder = language_run(Path("lm/parts"))
    embedding = nn.Embedding(len(WORDS) + 2, 4)
    plmu.save(
        plmu.Sequential(embedding, nn.LayerNorm(4), plmu.LMUBlock(4, 2, 3.0), nn.Linear(4, 2)), folder / "model.plmu"
    )
    assert "--from: its model is not embeddings, blocks, a norm" in refused([*start, str(folder)], capsys)


def test_a_stream_of_a_damaged_run_is_named(run):
    (run / "config.json").write_text("[]")
    with pytest.raises(RunError, match=r"config\.json is damaged: it says what the model is of"):
        load(run)
    (run / "config.json").unlink()
    assert load(run / "model.plmu").outputs.start == ()


def test_fine_tuning_learns_the_small_reviews(run):
    options = ["--training.learning-rate", "2e-2", "--training.epochs", "20", "--model.word-dropout", "0", "--quiet"]
    main(["train", "imdb", "--from", str(run), *TOKENS, *options])
    losses = [entry["loss"] for entry in result("imdb-pretrained")["history"]]
    assert losses[-1] < 0.25 * losses[0]


def test_models_of_the_published_size():
    """At most 34 million parameters with the vocabulary of 30,000 words, as the paper's."""
    network, task = built("imdb", "scratch")
    assert 30_002 * network[0].embedding_dim + task.notes["parameters besides embeddings"] <= 34_000_000
    assert task.notes == built("imdb", "pretrained")[1].notes
    assert PretrainedModel().longest == ScratchModel().longest == 800


def test_adversarial_training_moves_embeddings_where_the_loss_rises_most(run):
    config = config_of("pretrained", dropout=0.0, word_dropout=0.0)
    task = IMDB.task(config)
    network = IMDB.build(config, task).double()
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    batch = tuple(part[:5] for part in task.train)
    plain = task.loss(network.train(), batch)
    vectors = network[0](batch[0]).detach().requires_grad_()
    rest = plmu.Sequential(*list(network)[1:])
    (slope,) = torch.autograd.grad(
        classification_loss(rest(vectors, lengths=batch[1])[0], batch[2]), vectors
    )  # of the mean loss, so that each review has its own
    unit = slope / slope.flatten(1).norm(dim=1)[:, None, None]
    size = 0.5
    moved = vectors.detach() + size * network[0].weight.std() * unit
    worse = classification_loss(rest(moved, lengths=batch[1])[0], batch[2])
    found = adversarial_loss(network, batch, size)
    assert found.item() == pytest.approx((plain + worse).item() / 2, rel=1e-5)
    assert worse.item() > plain.item()
    assert adversarial_loss(network, batch, 1e-9).item() == pytest.approx(plain.item(), rel=1e-5)
    assert adversarial_loss(network.eval(), batch, size).item() == pytest.approx(plain.item(), rel=1e-5)
    found.backward()
    assert all(p.grad is not None for p in network.parameters())
    with pytest.raises(ValueError, match=r"model\.adversarial is for one process"):
        adversarial_loss(nn.Sequential(network), batch, size)


def test_adversarial_training_runs_and_is_part_of_the_result(run, capsys):
    main(["train", "imdb", "--from", str(run), "--model.adversarial", "2", *FAST, *TOKENS])
    assert result("imdb-pretrained")["config"]["model"]["adversarial"] == 2


def test_processes_share_a_classifier_of_texts(run):
    """A data-parallel wrapper is called as the model in it is."""
    config = config_of("pretrained")
    task = IMDB.task(config)
    network = IMDB.build(config, task).eval()
    batch = tuple(part[:4] for part in task.train)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(network)
        assert torch.equal(task.loss(wrapped, batch), task.loss(network, batch))
    finally:
        torch.distributed.destroy_process_group()
