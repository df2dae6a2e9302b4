"""What experiments measure, on which data, and where the ranges of their settings end; through their public parts."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from program import raising
from torch import nn
from untrained import EXPERIMENTS, built

from plmu.errors import RunError
from plmu.experiments import psmnist
from plmu.runs import folder as folder_files
from plmu.runs.experiment import Config
from plmu.runs.fields import RANGES
from plmu.training.config import TrainingConfig

RESULTS = Path(__file__).parents[2] / "results"
SMALLEST = math.ulp(0.0)
# For each range: the ends that are in it, and what lies just outside.
ENDS = {
    **{name: ((1, 10**9), (0, -1)) for name, (_, wanted) in RANGES.items() if wanted == "at least 1"},
    **dict.fromkeys(("dropout", "memory_dropout", "word_dropout"), ((0.0, 1 - 2**-53), (1.0, -SMALLEST, math.nan))),
    **dict.fromkeys(("length", "shortest", "window"), ((2, 3), (1, 0))),
    **dict.fromkeys(("attention", "highways", "heads", "kernel", "units"), ((0, 1), (-1,))),
    "pieces": ((300, 2**16 - 1), (299, 2**16)),
    **dict.fromkeys(
        ("noise", "unfreezing", "length_penalty", "adversarial"), ((0.0, 1e300), (-SMALLEST, math.inf, math.nan))
    ),
    "layer_rate": ((SMALLEST, 1.0), (0.0, 1 + 2**-52, math.nan)),
    "theta": ((SMALLEST, 1e300), (0.0, -1.0, math.inf, math.nan)),
    **dict.fromkeys(
        ("thetas", "windows"), (((SMALLEST,), (1.0, 1e300)), ((), (0.0,), (1.0, 0.0), (math.inf,), [1.0], 3.0))
    ),
    "season": ((0, 7), (-1, math.nan)),
    "alpha": ((SMALLEST, 1e300), (0.0, -1.0, math.inf, math.nan)),
    "half_life": ((1, 1.0, 1e300), (0.5, 0, math.inf, math.nan)),
    "level": ((SMALLEST, 1 - 2**-53), (0.0, 1.0, math.nan)),
    "individual": ((True, False), (2, "yes")),
    "vectors": (("auto", "x"), ("", None)),
    "label_smoothing": ((0.0, 1.0), (-SMALLEST, 1 + 2**-52, math.nan)),
    "forget_bias": ((0.0, -3.0, 1e300), (math.inf, -math.inf, math.nan)),
    "activation": (("relu", "tanh"), ("nonsense", None)),
    "input_activation": (("relu", None), ("nonsense", "")),
}


@pytest.mark.parametrize("name", RANGES)
def test_where_ranges_end(name):
    holds, wanted = RANGES[name]
    inside, outside = ENDS[name]
    assert [value for value in inside if not holds(value)] == [], wanted
    assert [value for value in outside if holds(value)] == [], wanted


@pytest.mark.parametrize(("seed", "right"), [(0, True), (2**31 - 1, True), (-1, False), (2**31, False)])
def test_seeds_are_numbers_of_31_bits(seed, right):
    if right:
        assert Config(None, TrainingConfig(), seed=seed).seed == seed
    else:
        with pytest.raises(ValueError, match=rf"seed must be at least 0 and below 2\^31, got {seed}"):
            Config(None, TrainingConfig(), seed=seed)


def written(experiment: str, model: str) -> dict:
    return json.loads((RESULTS / f"{experiment}-{model}.json").read_text(encoding="utf-8"))


MEASURED = [
    (name, model)
    for name, one in EXPERIMENTS.items()
    for model in one.models
    if (RESULTS / f"{name}-{model}.json").is_file()
]


@pytest.mark.parametrize(("name", "model"), MEASURED)
def test_models_have_the_parameters_of_their_committed_results(name, model):
    network, task = built(name, model)
    result = written(name, model)
    besides = "parameters besides embeddings"
    if besides in result["notes"]:
        assert task.notes[besides] == result["notes"][besides]
        assert task.notes.get("embeddings") == result["notes"].get("embeddings")
        assert task.notes.get("vectors") in ("random", None)
    else:
        assert sum(p.numel() for p in network.parameters() if p.requires_grad) == result["parameters"]


def test_the_error_of_a_series_is_over_its_size_whole_and_after_a_hundred_steps():
    experiment = EXPERIMENTS["mackey-glass"]
    task = experiment.task(experiment.defaults("plmu"))
    assert [tuple(part[0].shape) for part in (task.train, task.valid, task.test)] == [
        (32, 5000, 1), (32, 5000, 1), (64, 5000, 1),
    ]  # fmt: skip
    y = torch.ones(2, 400, 1)
    wrong = y.clone()
    wrong[:, 50:99] = 3.0  # before
    wrong[:, 100] = 5.0
    batch = (wrong, y)

    def model(x):
        return x, None

    scores = task.finish(sum(task.measure(model, tuple(part[k : k + 1] for part in batch)) for k in range(2)))
    assert scores["nrmse"] == pytest.approx(math.sqrt((49 * 4 + 16) / 400))
    assert scores["nrmse_after_100"] == pytest.approx(math.sqrt(16 / 300))
    assert float(task.loss(model, batch)) == pytest.approx((49 * 4 + 16) / 400)
    assert (task.metric, task.higher_is_better) == ("nrmse", False)


def test_the_sum_of_two_marked_numbers_is_scored_by_its_squared_error():
    experiment = EXPERIMENTS["addition"]
    config = experiment.defaults("plmu")
    config.model.length, config.model.shortest = 12, 5
    task = experiment.task(config)
    splits = (task.train, task.valid, task.test)
    assert [(int(part[2].min()), int(part[2].max())) for part in splits] == [(5, 12), (24, 24), (12, 12)]
    assert not torch.equal(task.train[0][:1000, :5], task.test[0][:, :5]), "other numbers"
    batch = tuple(part[:6] for part in task.test)
    given = []

    def model(x, lengths):
        given.append(lengths)
        return batch[1] + torch.tensor([[0.0], [1.0], [2.0], [0.0], [0.0], [0.0]]), None

    assert task.finish(2 * task.measure(model, batch)) == {"mse": pytest.approx(5 / 6)}
    assert float(task.loss(model, batch)) == pytest.approx(5 / 6)
    assert all(one is batch[2] for one in given)
    further = experiment.more_tests(config)
    assert {name: tuple(part[0].shape) for name, part in further.items()} == {
        "mse_at_2000": (1000, 2000, 2), "mse_at_5000": (1000, 5000, 2),
    }  # fmt: skip
    assert not torch.equal(further["mse_at_2000"][0][:, :24], task.valid[0]), "other numbers"


@pytest.mark.parametrize(("shortest", "length", "right"), [(12, 12, True), (13, 12, False)])
@pytest.mark.parametrize("model", ["plmu", "lstm"])
def test_the_shortest_sequences_are_no_longer_than_the_longest(model, shortest, length, right):
    kind = type(EXPERIMENTS["addition"].defaults(model).model)
    if right:
        assert kind(length=length, shortest=shortest).shortest == 12
    else:
        with pytest.raises(ValueError, match=r"model\.shortest must be at most model\.length = 12; got 13"):
            kind(length=length, shortest=shortest)


@pytest.mark.parametrize("model", EXPERIMENTS["addition"].models)
def test_sequences_are_answered_at_their_own_end(model):
    network, _ = built("addition", model)
    x = torch.rand(3, 9, 2)
    lengths = torch.tensor([9, 5, 1])
    with torch.no_grad():
        out = network(x, lengths=lengths)[0]
        for row, length in enumerate(lengths.tolist()):
            alone = network(x[row : row + 1, :length], lengths=lengths[row : row + 1])[0]
            torch.testing.assert_close(out[row : row + 1], alone)


def test_outputs_of_a_long_memory_start_at_order_one():
    """θ divides what enters the memory, and W_m makes up for it."""
    torch.manual_seed(0)
    network, _ = built("addition", "plain")
    x = torch.ones(1, 1000, 2)
    with torch.no_grad():
        one, half = (network(x[:, :n], lengths=torch.tensor([n]))[0] for n in (1000, 500))
    assert float((one - half).abs()) > 1


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("model", EXPERIMENTS["psmnist"].models)
def test_labels_of_digits_are_smoothed_as_asked(model, smoothing, monkeypatch):
    digits = torch.rand(10, 784), torch.arange(10)
    monkeypatch.setattr(psmnist.mnist, "permuted_sequences", lambda _: (digits, digits, digits))
    experiment = EXPERIMENTS["psmnist"]
    config = experiment.defaults(model)
    config.model.label_smoothing = smoothing
    task = experiment.task(config)
    logits = torch.randn(10, 10)
    exact = nn.functional.cross_entropy(logits, digits[1], label_smoothing=smoothing)
    assert torch.equal(task.loss(lambda pixels: (logits, None), digits), exact)


def test_noise_and_dropout_act_in_training_alone():
    torch.manual_seed(0)
    network, task = built("psmnist", "plmu")
    pixels = task.train[0][:, :, None]
    with torch.no_grad():
        network.eval()
        assert torch.equal(network(pixels)[0], network(pixels)[0])
        network.train()
        assert not torch.equal(network(pixels)[0], network(pixels)[0])


@pytest.mark.parametrize(
    ("error", "reason"), [(OSError(28, "No space left on device"), "No space left on device"), (OSError("no"), "no")]
)
def test_a_folder_that_cannot_be_made_is_named_with_the_reason(error, reason, tmp_path, monkeypatch):
    folder_files.make(tmp_path / "runs" / "a")
    folder_files.make(tmp_path / "runs" / "a")
    monkeypatch.setattr(Path, "mkdir", raising(error))
    with pytest.raises(RunError, match=rf"cannot write to {re.escape(str(tmp_path))}: {reason}$"):
        folder_files.make(tmp_path)
