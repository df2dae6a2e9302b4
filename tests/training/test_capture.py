"""A captured step leaves no trace of its capture, and the time that a run took is counted over all resumes."""

import copy
import dataclasses
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from worker import config, model, seeded_model, task

from plmu.training import loop
from plmu.training.batches import Shape
from plmu.training.checkpoints import Checkpoints
from plmu.training.loop import Trainer
from plmu.training.processes import Processes
from plmu.training.state import restore, snapshot

ONE = Processes(0, 1, torch.device("cpu"))


class Gpu:
    """Stands in for `torch.cuda` where a graph is captured: all runs here, and the GPU's generator is a number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log, self.random = list[str](), 7
        self.own, self.main = (
            SimpleNamespace(wait_stream=lambda other, name=name: self.log.append(f"{name} waits"))
            for name in ("own", "main")
        )
        for name, value in {
            "Stream": lambda: self.own,
            "current_stream": lambda: self.main,
            "stream": self.entered,
            "graph": self.entered,
            "CUDAGraph": lambda: SimpleNamespace(replay="replay"),
            "get_rng_state": lambda device: self.random,
            "set_rng_state": lambda state, device: setattr(self, "random", state),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    @contextmanager
    def entered(self, what):
        self.log.append("warm-up" if what is self.own else "capture")
        yield
        self.log.append("end")


@pytest.mark.parametrize("average", [0.9, None])
def test_capturing_a_step_leaves_no_trace(average, monkeypatch):
    gpu = Gpu(monkeypatch)
    settings = dataclasses.replace(config(2), average=average)
    torch.manual_seed(1)
    trainer = Trainer(task(), model(0.2), settings, ONE, 3)
    before, generator = copy.deepcopy(trainer.model.state_dict()), torch.get_rng_state()
    addresses = [p.data_ptr() for p in trainer.model.parameters()]
    eager = trainer.stepping.eager

    def step():
        gpu.log.append("step")
        gpu.random += 1
        eager()

    monkeypatch.setattr(trainer.stepping, "eager", step)
    trainer.model.eval()
    assert trainer.stepping._captured().replay == "replay"
    assert gpu.log == ["own waits", "warm-up", *["step"] * 3, "end", "main waits", "capture", "step", "end"]
    assert trainer.model.training, "in the mode it trains in"
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, before[name])
    assert [p.data_ptr() for p in trainer.model.parameters()] == addresses
    states = [value for state in trainer.optimizers[0].state.values() for value in state.values()]
    assert len(states) == 3 * 4
    assert not any(value.any() for value in states)
    assert float(trainer.loss_sum) == 0
    assert torch.equal(torch.get_rng_state(), generator)
    assert gpu.random == 7
    if average is None:
        assert trainer.average is None
    else:
        for mean, value in zip(trainer.average, trainer.model.parameters(), strict=True):
            assert torch.equal(mean, value)


def test_a_step_after_a_capture_is_the_first():
    """What the capture leaves in the optimiser is what a new one begins with."""
    trainers = [Trainer(task(), seeded_model(), config(2), ONE, 3) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        Gpu(patch)
        trainers[0].stepping._captured()
    for trainer in trainers:
        trainer.stepping.load(Shape(8), (torch.arange(8),))
        trainer.stepping.eager()
    for one, two in zip(*(trainer.model.parameters() for trainer in trainers), strict=True):
        assert torch.equal(one, two)


def test_the_generator_of_a_gpu_is_kept_and_used_on_a_gpu_alone(monkeypatch):
    state, used = torch.arange(4, dtype=torch.uint8), []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *given: used.append(given))
    trainer = Trainer(task(), seeded_model(), config(2), ONE, 3)
    without = snapshot(trainer)
    assert without["generators"][0][1] is None
    trainer.device = torch.device("cuda", 0)
    found = snapshot(trainer)
    assert found["generators"][0][1] is state
    restore(trainer, found)
    restore(trainer, without)
    trainer.device = torch.device("cpu")
    restore(trainer, found)
    assert used == [(state, torch.device("cuda", 0))]


class Steps:
    """A run whose steps take a second each, by a clock that starts anywhere."""

    def __init__(self, folder, monkeypatch, start: float, saves: list[tuple[int, float]]) -> None:
        self.now = start
        monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: self.now))
        settings = dataclasses.replace(config(2), checkpoint_seconds=3.0)
        checkpoints = Checkpoints(folder)
        save = checkpoints.save

        def noted(step, content):
            saves.append((step, content["seconds"]))
            return save(step, content)

        checkpoints.save = noted
        self.trainer = Trainer(task(), seeded_model(), settings, ONE, 3, checkpoints)
        eager = self.trainer.stepping.run

        def step():
            eager()
            self.now += 1.0

        self.trainer.stepping.run = step


def test_seconds_are_counted_over_all_resumes(tmp_path, monkeypatch):
    saves = []
    assert Steps(tmp_path, monkeypatch, 50.0, saves).trainer.run().seconds == 16.0
    assert saves == [(step, float(step)) for step in (3, 6, 9, 12, 15, 16)]
    (tmp_path / "step-00000016.ckpt").unlink()
    saves.clear()
    assert Steps(tmp_path, monkeypatch, 1000.0, saves).trainer.run().seconds == 16.0
    assert saves == [(16, 16.0)]


def test_an_epoch_that_ends_when_a_checkpoint_is_due_is_saved_once(tmp_path, monkeypatch):
    saves = []
    steps = Steps(tmp_path, monkeypatch, 0.0, saves)
    steps.trainer.config.checkpoint_seconds = 4.0
    steps.trainer.run()
    assert saves == [(step, float(step)) for step in (4, 8, 12, 16)]
