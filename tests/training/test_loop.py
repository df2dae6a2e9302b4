"""The loop: the same numbers however often it is killed, on one process or two; nothing is lost when it breaks."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kinds import KINDS, trainer_of
from worker import config, seeded_model, task, wait_for_checkpoints

from plmu.training.checkpoints import Checkpoints
from plmu.training.loop import Diverged, Trainer
from plmu.training.processes import Processes

WORKER = [sys.executable, str(Path(__file__).parent / "worker.py")]
ONE = Processes(0, 1, torch.device("cpu"))


def test_a_run_killed_at_random_moments_gives_the_same_numbers(tmp_path):
    """Also one with everything on, whose batches are prefetched by a thread, which must not keep it from ending. See
    kinds.py."""
    no_gpu = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # with which a forked process could not take gradients
    done = subprocess.run([*WORKER, str(tmp_path), "killed"], capture_output=True, check=True, timeout=120, env=no_gpu)
    runs = json.loads(done.stdout)
    assert runs["plain"]["ended"].count(-signal.SIGKILL) >= 2  # the run takes about a second, so that most kills hit it
    assert runs["streams"]["ended"][0] != 0
    assert runs["streams"]["ended"][1:] == [-signal.SIGKILL]
    assert done.stderr.decode().splitlines()[-1] == "KeyboardInterrupt"
    for run in runs.values():
        assert run["resumed"] == run["whole"]  # every loss and score, to the last bit


def test_two_processes_train_as_one_and_a_killed_one_is_restarted(tmp_path):
    """Without dropout: the same losses and scores within rounding, also with parts of batches, a carried state, token
    budgets and weights; and they resume bit for bit. See kinds.py."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.Popen(
        [*launch, "--max-restarts", "2", *WORKER[1:], str(tmp_path), "two"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    wait_for_checkpoints(tmp_path / "killed", lambda: process.poll() is None)
    workers = _children(process.pid)
    assert len(workers) == 2
    os.kill(workers[-1], signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert len(list(tmp_path.glob("started-*"))) == 4
    restarted, uninterrupted, double = json.loads(output.splitlines()[-1])
    assert restarted == uninterrupted
    assert double.keys() == {"plain", *KINDS}
    for kind, (whole, resumed) in double.items():
        assert whole == resumed
        plain = Trainer(task(), seeded_model(), config(2), ONE, 3)
        alone = (plain if kind == "plain" else trainer_of(kind, 2, accumulate=1)).run()
        for one, two in zip(alone.history, whole["history"], strict=True):
            assert one == pytest.approx(two, rel=1e-5)
        assert alone.test == pytest.approx(whole["test"], rel=1e-5)


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path):
    whole = Trainer(task(), seeded_model(), config(4), ONE, 3).run()
    Trainer(task(), seeded_model(), config(3), ONE, 3, Checkpoints(tmp_path))
    short = Trainer(task(), seeded_model(), config(4), ONE, 3, Checkpoints(tmp_path))
    short.config.epochs = 3  # the schedule is that of four epochs
    short.run()
    newest = sorted(tmp_path.glob("step-*.ckpt"))
    assert len(newest) == 2
    newest[-1].write_bytes(newest[-1].read_bytes()[:-100])
    resumed = Trainer(task(), seeded_model(), config(4), ONE, 3, Checkpoints(tmp_path))
    with pytest.warns(UserWarning, match="checksum does not match"):
        outcome = resumed.run()
    assert outcome.history == whole.history
    assert outcome.test == whole.test


@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_a_loss_that_is_not_a_number_stops_with_what_was_good_on_disk(tmp_path, seconds):
    broken = task()
    good = broken.loss
    calls = []

    def loss(network, batch):
        calls.append(1)
        return good(network, batch) * (float("nan") if len(calls) > 20 else 1.0)

    broken.loss = loss
    checkpoints = Checkpoints(tmp_path)
    settings = dataclasses.replace(config(5), checkpoint_seconds=seconds)
    trainer = Trainer(broken, seeded_model(), settings, ONE, 3, checkpoints)
    with pytest.raises(Diverged, match=r"loss is nan in epoch 3: the best model so far is of epoch 2 .*best\.ckpt"):
        trainer.run()
    assert (len(list(tmp_path.glob("step-*"))) > 0) == (seconds == 0)
    best = checkpoints.best()
    assert best["epoch"] == 2
    assert all(value.isfinite().all() for value in best["model"].values())

    mended = Trainer(task(), seeded_model(), settings, ONE, 3, checkpoints).run()  # goes on from what is good
    assert mended == dataclasses.replace(
        Trainer(task(), seeded_model(), settings, ONE, 3).run(), seconds=mended.seconds
    )
    assert not (tmp_path / "best.ckpt").exists()


def test_weights_that_are_not_finite_are_never_written(tmp_path):
    """The loss of a step is of the weights before it, so it may be finite when they no longer are."""
    trainer = Trainer(task(), seeded_model(), config(5), ONE, 3, Checkpoints(tmp_path))
    eager, steps = trainer.stepping.eager, []

    def step() -> None:
        eager()
        steps.append(1)
        if len(steps) == 11:
            trainer.model[0].weight.data[0, 0] = float("inf")

    trainer.stepping.run = step
    with pytest.raises(Diverged, match="the weights are not finite in epoch 2: the best model so far is of epoch 1"):
        trainer.run()
    kept = Checkpoints(tmp_path).newest()
    assert (kept["epoch"], kept["step"]) == (1, 2)
    assert all(value.isfinite().all() for value in kept["model"].values())


def test_a_best_model_that_cannot_be_written_is_said_to_be_lost(tmp_path):
    trainer = Trainer(task(), seeded_model(), config(5), ONE, 3, Checkpoints(tmp_path / "nowhere"))
    trainer.best = {"epoch": 7, "model": {}}
    assert "of epoch 7 and is lost: cannot write the checkpoint" in str(trainer._diverged("the loss is nan"))


def test_the_best_epoch_by_validation_is_what_is_tested():
    trainer = Trainer(task(), seeded_model(), config(6), ONE, 3)
    outcome = trainer.run()
    scores = [entry["valid_mse"] for entry in outcome.history]
    assert outcome.valid["mse"] == min(scores)
    assert outcome.best_epoch == 1 + scores.index(min(scores))
    assert outcome.test == trainer.evaluate(task().test)


def test_refitting_trains_on_validation_data_too_and_takes_the_last_epoch(tmp_path):
    settings = dataclasses.replace(config(3), refit=True)
    trainer = Trainer(task(), seeded_model(), settings, ONE, 3, Checkpoints(tmp_path))
    assert sorted(torch.cat([step.keys for step in trainer._order()]).tolist()) == list(range(80))
    assert torch.equal(trainer.task.train[0], torch.cat([task().train[0], task().valid[0]]))
    outcome = trainer.run()
    assert (outcome.best_epoch, outcome.valid) == (3, {})
    assert not any("valid_mse" in entry for entry in outcome.history)
    assert outcome.test == trainer.evaluate(task().test)
    best = Checkpoints(tmp_path).best()
    assert best is not None
    assert best["epoch"] == 3


def test_every_example_is_seen_once_an_epoch_in_an_order_of_its_own():
    trainer = Trainer(task(), seeded_model(), config(2), ONE, 3)
    first = _keys(trainer)
    trainer.epoch = 1
    second = _keys(trainer)
    assert sorted(first.flatten().tolist()) == list(range(64)) == sorted(second.flatten().tolist())
    assert not torch.equal(first, second)


def _keys(trainer):
    return torch.stack([step.keys for step in trainer._order()])


def test_a_batch_must_divide_by_the_processes():
    with pytest.raises(ValueError, match="must be divisible by the 3 processes"):
        Trainer(task(), seeded_model(), config(1), Processes(0, 3, torch.device("cpu")), 3)


def _children(parent: int) -> list[int]:
    """The workers that torchrun has started, by their command; it has helpers of its own."""
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(word) for word in listed if b"worker.py" in Path(f"/proc/{word}/cmdline").read_bytes()]
