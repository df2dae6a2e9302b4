"""Settings of training: their ranges, and the learning rate of every step."""

import dataclasses
import math

import pytest
import torch
from worker import task

from plmu.errors import RunError
from plmu.runs.folder import read_json, write_json
from plmu.runs.results import spread
from plmu.training.config import TrainingConfig
from plmu.training.task import check_finite

LEAST = {
    "epochs": 1,
    "batch_size": 1,
    "learning_rate": 1e-30,
    "evaluate_every": 1,
    "weight_decay": 0.0,
    "checkpoint_seconds": 0.0,
    "betas": (0.0, 0.0),
    "warmup": 0.0,
    "average": 1e-9,
    "clip": 1e-9,
    "accumulate": 1,
    "batch_tokens": 1,
    "patience": 1,
    "drop": 1e-9,
}
MOST = {
    "betas": (0.999999, 0.999999),
    "warmup": 1.0,
    "average": 0.999999,
    "checkpoint_seconds": math.inf,
    "drop": 0.999999,
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0),
        ("batch_size", -1),
        ("learning_rate", 0.0),
        ("learning_rate", math.inf),
        ("learning_rate", math.nan),
        ("evaluate_every", 0),
        ("weight_decay", -0.1),
        ("weight_decay", math.inf),
        ("betas", (0.9, 1.0)),
        ("betas", (-0.1, 0.9)),
        ("warmup", 2.0),
        ("warmup", -0.1),
        ("average", 1.0),
        ("average", 0.0),
        ("clip", 0.0),
        ("checkpoint_seconds", -1.0),
        ("checkpoint_seconds", math.nan),
        ("accumulate", 0),
        ("batch_tokens", 0),
        ("patience", 0),
        ("drop", 0.0),
        ("drop", 1.0),
        ("drop", math.nan),
    ],
)
def test_impossible_settings_are_named(field, value):
    with pytest.raises(ValueError, match=rf"training\.{field} .*{value if field != 'betas' else ''}"):
        TrainingConfig(**{field: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "step"}, "training.schedule = step needs training.drops, the epochs after which the rate drops"),
        (
            {"drops": (3.0,)},
            "training.drops is for training.schedule = step, and the schedule is constant: leave it empty",
        ),
        ({"schedule": "step", "drops": (3.0, 0.0)}, r"training.drops must be epochs above 0, got 3.0, 0.0"),
        ({"schedule": "step", "drops": (math.inf,)}, r"training.drops must be epochs above 0, got inf"),
        ({"schedule": "plateau", "refit": True}, "plateau needs validation scores, and training.refit has none"),
    ],
)
def test_settings_that_do_not_go_together_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**changes)


def test_the_defaults_are_plain_adam_with_graphs_on_a_gpu():
    assert dataclasses.asdict(TrainingConfig()) == {
        "epochs": 10,
        "batch_size": 100,
        "learning_rate": 1e-3,
        "weight_decay": 0.0,
        "betas": (0.9, 0.999),
        "schedule": "constant",
        "warmup": 0.0,
        "clip": None,
        "average": None,
        "precision": "float32",
        "graph": True,
        "compile": False,
        "optimizer": "adamw",
        "drops": (),
        "drop": 0.1,
        "patience": 2,
        "batch_tokens": None,
        "accumulate": 1,
        "carry": False,
        "data": "auto",
        "evaluate_every": 1,
        "refit": False,
        "checkpoint_seconds": 30.0,
    }


@pytest.mark.parametrize("values", [LEAST, MOST])
def test_the_ends_of_ranges_are_possible(values):
    for name, value in values.items():
        assert getattr(TrainingConfig(**{name: value}), name) == value


def test_the_learning_rate_of_every_step():
    """By hand, for ten steps of which two warm up."""
    constant = TrainingConfig(learning_rate=0.4, warmup=0.2)
    assert [constant.learning_rate_at(step, 10) for step in range(10)] == pytest.approx([0.2, *[0.4] * 9])
    cosine = TrainingConfig(learning_rate=0.4, warmup=0.2, schedule="cosine")
    quarter = math.sqrt(0.5)
    falling = [1, math.cos(math.pi / 8), quarter, math.sin(math.pi / 8), 0]
    expected = [0.2, 0.4, *(0.2 * (1 + one) for one in (*falling, *(-one for one in falling[3:0:-1])))]
    assert [cosine.learning_rate_at(step, 10) for step in range(10)] == pytest.approx(expected)
    plain = TrainingConfig(learning_rate=2.0, schedule="cosine")
    assert [plain.learning_rate_at(step, 4) for step in (0, 2, 4)] == pytest.approx([2.0, 1.0, 0.0])
    assert TrainingConfig(learning_rate=2.0).learning_rate_at(0, 4) == 2.0
    all_warm = TrainingConfig(learning_rate=2.0, warmup=1.0, schedule="cosine")
    assert [all_warm.learning_rate_at(step, 4) for step in range(5)] == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["train", "valid", "test"])
def test_data_that_is_not_finite_is_named(name, value):
    made = task()
    made.check()
    getattr(made, name)[1][3, 0] = value
    getattr(made, name)[1][5:7, 0] = value
    expected = rf"the {name} data hold 3 values that are not finite: the first is {value}, in tensor 1 at index"
    with pytest.raises(RunError, match=rf"{expected} \(3, 0\)\. Fix"):
        made.check()


def test_only_numbers_with_a_point_can_be_not_finite():
    check_finite("train", (torch.tensor([3]), torch.tensor([True]), torch.zeros(0)))


def test_which_score_is_better():
    made = task()
    assert made.better(1.0, None)
    for wrong in (math.nan, math.inf, -math.inf):
        assert not made.better(wrong, None)
    assert made.better(1.0, 2.0)
    assert not made.better(2.0, 1.0)
    assert not made.better(1.0, 1.0)
    made.higher_is_better = True
    assert made.better(2.0, 1.0)
    assert not made.better(1.0, 1.0)
    assert not made.better(1.0, 2.0)


def test_mean_and_spread():
    assert spread([1.0, 2.0, 6.0]) == {"mean": 3.0, "std": pytest.approx(math.sqrt(7))}
    assert spread([4.0]) == {"mean": 4.0, "std": 0.0}


def test_json_that_is_none_is_a_value_error(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"θ": [1, None], "path": tmp_path})
    assert read_json(path) == {"θ": [1, None], "path": str(tmp_path)}
    assert "θ" in path.read_text(encoding="utf-8")
    for content in (b"{", b"\xff", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(ValueError):  # noqa: PT011
            read_json(path)
