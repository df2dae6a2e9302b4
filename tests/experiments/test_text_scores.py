"""How texts are scored, how their models start, and what a stream of text says."""

import math
from pathlib import Path

import pytest
import torch
from closeness import within
from torch import nn
from untrained import EXPERIMENTS

import plmu
from plmu.cli.stream_lines import LineStream, Options
from plmu.experiments.text_classification import TextExperiment, logits
from plmu.nn.memory import Memory
from plmu.runs import outputs
from plmu.runs.deployed import load
from plmu.text.words import FIRST, Builder

SIDES = {"imdb": 1, "qqp": 2, "snli": 2}


@pytest.fixture
def task_of(monkeypatch):
    """The task of an experiment whose source has six texts, or pairs, of 1 to 600 words in each split."""

    def made(name: str, model: str, **changes):
        experiment = EXPERIMENTS[name]
        builder = Builder(SIDES[name])
        for split in ("train", "valid", "test"):
            for number in range(6):
                words = [f"word{(number + k) % 40}" for k in range(600 if number == 5 else number + 1)]
                builder.add(split, number % (3 if name == "snli" else 2), *[words, words[::-1]][: SIDES[name]])
        data = builder.finish(1000, "all of it")
        monkeypatch.setattr(type(experiment), "load", lambda self, config: data)
        config = experiment.defaults(model)
        for field, value in changes.items():
            setattr(config.model, field, value)
        return config, experiment.task(config)

    return made


@pytest.mark.parametrize("name", SIDES)
def test_scores_are_the_share_of_right_classes(name, task_of):
    _, task = task_of(name, "plmu")
    logits = torch.tensor([[0.0], [1.0], [-1.0], [2.0], [-3.0], [-1.0]])  # class 1 where above 0: 0 1 0 1 0 0
    right, labels = 5 / 6, task.test[-1]
    exact = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], labels.float()) if name != "snli" else None
    if name == "snli":
        logits = torch.eye(3)[[0, 1, 2, 1, 1, 0]]
        right, exact = 4 / 6, nn.functional.cross_entropy(logits, labels)
    given = []

    def model(*inputs):
        given.append(inputs)
        return logits

    assert task.finish(3 * task.measure(model, task.test)) == {"accuracy": pytest.approx(right)}
    assert torch.equal(task.loss(model, task.test), exact)
    assert all(inputs == task.test[:-1] for inputs in given)
    assert (task.higher_is_better, task.metric, task.notes["data"]) == (True, "accuracy", "all of it")


@pytest.mark.parametrize("name", SIDES)
def test_long_texts_keep_their_end_and_long_questions_their_beginning(name, task_of):
    config, task = task_of(name, "plmu")
    tokens, lengths = task.test[:2]
    assert tokens.shape == (6, config.model.longest)
    assert lengths.tolist() == [1, 2, 3, 4, 5, config.model.longest]
    words = ("", "", *EXPERIMENTS[name].companions(task)["vocabulary.txt"].split("\n"))
    first = 600 - 500 if name == "imdb" else 0
    assert words[int(tokens[5, 0])] == f"word{(5 + first) % 40}"


@pytest.mark.parametrize(("name", "model"), [(name, model) for name in SIDES for model in ("plmu", "lstm", "deep")])
def test_embeddings_that_start_at_random_are_small(name, model, task_of):
    torch.manual_seed(0)
    config, task = task_of(name, model, vectors="random")
    network = EXPERIMENTS[name].build(config, task)
    (table,) = [part.weight for part in network.modules() if isinstance(part, nn.Embedding)]
    assert table.shape == (FIRST + 40, 300)
    within(abs(float(table.detach().square().mean()) / 0.01 - 1), 8 * math.sqrt(2 / table.numel()))
    assert table.requires_grad
    assert network.training, "ready to be trained"


def test_windows_of_the_deep_model():
    for name, experiment in EXPERIMENTS.items():
        if isinstance(experiment, TextExperiment):
            config = experiment.defaults("deep").model
            assert config.thetas == ((4.0, 16.0) if name == "imdb" else (3.0, 8.0))
            assert config.theta == config.longest == (500 if name == "imdb" else 25)


@pytest.mark.parametrize("name", SIDES)
def test_memories_are_those_of_the_settings(name, task_of):
    config, task = task_of(name, "deep", vectors="random")
    network = EXPERIMENTS[name].build(config, task)
    memories = [part for part in network.modules() if isinstance(part, Memory)]
    assert [memory.order for memory in memories] == [config.model.order, config.model.pool_order]


def test_a_stream_says_how_likely_a_text_is_positive(tmp_path):
    model = plmu.Sequential(nn.Embedding(FIRST + 3, 1), nn.Identity())
    with torch.no_grad():
        model.layers[0].weight.copy_(torch.tensor([[9.0], [0.0], [1.0], [1000.0], [-1000.0]]))
    plmu.save(model, tmp_path / "model.plmu")
    (tmp_path / "vocabulary.txt").write_text("good\nbest\nworst\n")
    outputs.write(tmp_path, outputs.Outputs(labels=("negative", "positive")))
    lines = ["\n", "good other\n", "best\n", " \n", "\n", "worst\n"]
    stream = LineStream(load(tmp_path), Options())
    found = [answer for line in lines for answer in stream.answers(line)]
    assert [None if one is None else one["token"] for one in found] == ["good", "other", "best", None, "worst"]
    likely = [one["probabilities"]["positive"] for one in found if one is not None]
    assert likely == pytest.approx([1 / (1 + math.exp(-1)), 0.5, 1 / (1 + math.exp(-50)), 1 / (1 + math.exp(50))])


def test_texts_that_are_all_the_same_are_scored(task_of):
    """Their features do not vary, and are divided by one."""
    config, task = task_of("imdb", "plmu", vectors="random")
    for split in ("train", "valid", "test"):
        setattr(task, split, tuple(part[[3, 3, 3, 3]] for part in getattr(task, split)))
    network = EXPERIMENTS["imdb"].build(config, task).eval()
    assert logits(network, task.test[:-1]).isfinite().all()


def test_the_papers_figure_is_not_that_of_a_text_of_ones_own():
    text8 = EXPERIMENTS["text8"]
    config = text8.defaults("plmu")
    assert text8.published("plmu", config) == 1.61
    config.data.file = Path("my.txt")
    assert text8.published("plmu", config) is None
