"""`plmu bench training-time`: which steps are timed, on what data, and when the answer is refused."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from untrained import EXPERIMENTS

import plmu
from plmu.bench import training_time
from plmu.bench.training_time import MODELS
from plmu.training.loop import Trainer
from plmu.training.processes import Processes

CPU = Processes(0, 1, torch.device("cpu"))


def test_shorter_sequences_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def step_times(experiment: str, model: str, algorithm: str | None, *given: Any) -> dict[str, float]:
        asked.append((experiment, model, algorithm, *given))
        return {"eager": {None: 6.0, "recurrent": 3.0, "auto": 0.5}[algorithm]}

    monkeypatch.setattr(training_time, "step_times", step_times)
    kept: list[int] = []
    found = training_time.run("cpu", 5, lambda tables: kept.append(len(tables["training step"])))
    assert kept == [3, 7], "after each task"
    steps = [(row["task"], row["steps"], row["batch"], row["model"]) for row in found["training step"]]
    assert steps == [
        ("psMNIST", 196, 100, "original LMU"),
        ("psMNIST", 196, 100, "ours, LTI"),
        ("psMNIST", 196, 100, "ours, parallel"),
        ("Mackey-Glass", 250, 32, "original LMU"),
        ("Mackey-Glass", 250, 32, "original LMU, four layers"),
        ("Mackey-Glass", 250, 32, "ours, LTI"),
        ("Mackey-Glass", 250, 32, "ours, parallel"),
    ]
    assert [row["times faster than the original"] for row in found["training step"]] == [
        {"eager": ratio} for ratio in (1.0, 2.0, 12.0, 1.0, 1.0, 2.0, 12.0)
    ]
    assert found["over the length"] == [
        {"steps": steps, "milliseconds, LTI": 3000.0, "milliseconds, parallel": 500.0}
        for steps in (256, 512, 1024, 2048)
    ]
    assert asked[:3] == [
        ("psmnist", "lmu", None, 196, 100, "cpu", 5),
        ("psmnist", "plmu", "recurrent", 196, 100, "cpu", 5),
        ("psmnist", "plmu", "auto", 196, 100, "cpu", 5),
    ]
    assert asked[-1] == ("mackey-glass", "plmu", "auto", 2048, 8, "cpu", 5)


@pytest.mark.parametrize(("name", "model"), [(name, model) for name in MODELS for model in MODELS[name]])
def test_models_and_their_training_are_those_of_the_experiments(name: str, model: str) -> None:
    experiment, task = EXPERIMENTS[name], training_time.random_task(name, 130, 4)
    config = experiment.defaults(model)
    torch.manual_seed(0)
    expected = experiment.build(config, task)
    torch.manual_seed(0)
    network = training_time.build(name, model, task, "auto" if model == "plmu" else None)
    assert repr(network) == repr(expected)
    torch.testing.assert_close(network.state_dict(), expected.state_dict(), rtol=0, atol=0)
    assert MODELS[name][model][1] == config.training


@pytest.mark.parametrize(("device", "kinds"), [("cpu", ["eager"]), ("cuda", ["eager", "graph"])])
@pytest.mark.parametrize(("rounds", "taken"), [(1, 3), (9, 3), (12, 4)])
def test_a_step_is_timed_in_training_mode_eager_and_as_a_graph(
    device: str, kinds: list[str], rounds: int, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def trainer(task: Any, network: nn.Module, training: Any, group: Any, seed: int) -> Any:
        made.append(
            SimpleNamespace(task=task, model=network.eval(), training=training, stepping=SimpleNamespace(run=object()))
        )
        return made[-1]

    @contextmanager
    def processes(asked: str) -> Any:
        yield SimpleNamespace(device=torch.device(asked))

    def medians(candidates: dict[str, object], *, device: str, rounds: int) -> dict[str, float]:
        made[-1].timed = candidates, device, rounds
        return {"step": float(len(made))}

    monkeypatch.setattr(training_time, "Trainer", trainer)
    monkeypatch.setattr(training_time, "processes", processes)
    monkeypatch.setattr(training_time, "medians", medians)
    found = training_time.step_times("mackey-glass", "plmu", "auto", 130, 3, device, rounds)
    assert found == {kind: 1.0 + number for number, kind in enumerate(kinds)}
    for one, kind in zip(made, kinds, strict=True):
        assert one.timed == ({"step": one.stepping.run}, device, taken)
        assert one.model.training
        assert (one.training.graph, one.training.batch_size) == (kind == "graph", 3)
        assert one.task.train[0].shape == (3, 130, 1)


def test_random_data_has_the_shapes_of_the_experiments() -> None:
    pixels, labels = training_time.random_task("psmnist", 7, 500).train
    assert pixels.shape == (500, 7)
    assert (pixels.min() >= 0, pixels.max() <= 1) == (True, True)
    assert labels.unique().tolist() == list(range(10))
    x, y = training_time.random_task("mackey-glass", 7, 500).train
    assert (x.shape, y.shape) == ((500, 7, 1), (500, 7, 1))
    assert not torch.equal(x, y)


@pytest.mark.parametrize(("experiment", "loss"), [("psmnist", "cross_entropy"), ("mackey-glass", "mse_loss")])
def test_a_random_task_can_be_trained_and_scored(experiment: str, loss: str) -> None:
    task = training_time.random_task(experiment, 130, 5)
    model = training_time.build(experiment, "plmu", task, "auto").eval()
    with torch.no_grad():
        x, expected = task.train
        out = model(x[:, :, None] if experiment == "psmnist" else x)[0]
        exact = getattr(nn.functional, loss)(out, expected)
        assert torch.equal(task.loss(model, task.train), exact)
    scores = Trainer(task, model, training_time.MODELS[experiment]["plmu"][1], CPU, 0).evaluate(task.test)
    assert scores == {"loss": float(exact)}
    assert (task.metric in scores, task.evaluation_batch) == (True, 5)
    assert task.better(1.0, 2.0), "a smaller loss"


@pytest.mark.parametrize("experiment", ["psmnist", "mackey-glass"])
@pytest.mark.parametrize("algorithm", ["recurrent", "auto"])
def test_lti_runs_step_by_step(experiment: str, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step_by_step, calls = plmu.ops.ALGORITHMS["recurrent"], []
    run = step_by_step.states
    monkeypatch.setattr(step_by_step, "states", lambda *given: calls.append(1) or run(*given))
    task = training_time.random_task(experiment, 130, 2)
    model = training_time.build(experiment, "plmu", task, algorithm)
    task.loss(model, task.train)
    assert bool(calls) == (algorithm == "recurrent")


@pytest.mark.parametrize(("losses", "right"), [((2.0, 2.0001), True), ((2.0, 2.001), False), ((2.001, 2.0), False)])
def test_losses_that_differ_are_refused(
    losses: tuple[float, float], right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter(losses)
    task = SimpleNamespace(loss=lambda network, batch: torch.tensor(next(found)), train=())
    monkeypatch.setattr(training_time, "random_task", lambda *given: task)
    monkeypatch.setattr(training_time, "build", lambda *given: nn.Identity())
    if right:
        training_time.check("psmnist", "plmu", "recurrent")
    else:
        with pytest.raises(
            RuntimeError, match=rf"step by step the loss is {losses[0]:.3g}.*, in parallel {losses[1]:.3g}"
        ):
            training_time.check("psmnist", "plmu", "recurrent")
    assert next(found, None) is None
    training_time.check("psmnist", "plmu", "auto")  # nothing to compare
