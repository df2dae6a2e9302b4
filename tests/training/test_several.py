"""Several processes, seen from one of them: its share of the work, what it sums with the others, and how it joins."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from closeness import assert_same
from torch import nn
from worker import config, seeded_model, task

from plmu.training import processes as module
from plmu.training.batches import Shape
from plmu.training.checkpoints import Checkpoints
from plmu.training.loop import Trainer
from plmu.training.processes import Processes, processes
from plmu.training.state import restore, snapshot

CPU = torch.device("cpu")
ONE = Processes(0, 1, CPU)


@pytest.fixture
def trainer_of(monkeypatch):
    """The trainer of a rank of two. The processes are not there: what would be summed over them is noted."""
    summed = []
    monkeypatch.setattr(dist, "all_reduce", lambda value: summed.append(value.clone()))
    monkeypatch.setattr(dist, "barrier", lambda: summed.append("barrier"))
    monkeypatch.setattr(nn.parallel, "DistributedDataParallel", lambda model: nn.Sequential(model))

    def made(rank: int, checkpoints: Checkpoints | None = None) -> Trainer:
        trainer = Trainer(task(), seeded_model(), config(2), Processes(rank, 2, CPU), 3, checkpoints)
        trainer.summed = summed
        return trainer

    return made


def test_each_takes_half_of_a_batch_and_averages_gradients(trainer_of):
    whole = Trainer(task(), seeded_model(), config(2), ONE, 3)
    taken = [torch.stack([keys for _, (keys,) in one._batches()]) for one in (whole, *map(trainer_of, (0, 1)))]
    assert [one.shape for one in taken] == [(8, 8), (8, 4), (8, 4)]
    assert torch.equal(torch.cat(taken[1:], dim=1), taken[0])
    for trainer in map(trainer_of, (0, 1)):
        assert trainer.source.shapes == [Shape(4)]
        assert trainer.stepping.trained is not trainer.model, "which sums gradients"


def test_each_has_random_numbers_of_its_own(trainer_of):
    """From a seed that stays, so that a run can be repeated."""
    drawn = []
    for rank in (0, 1, 1):
        trainer_of(rank)
        assert torch.initial_seed() == 3 * 65_537 + rank
        drawn.append(float(torch.rand(())))
    assert drawn[0] != drawn[1] == drawn[2]


def test_batches_of_an_evaluation_are_dealt_out(trainer_of):
    data = task().test  # 16 examples in batches of 4
    alone = Trainer(task(), seeded_model(), config(2), ONE, 3)
    exact = alone.task.measure(alone.model.eval(), data).double()
    parts = []
    for rank in (0, 1):
        trainer = trainer_of(rank)
        trainer.evaluate(data)
        parts.append(trainer.summed.pop())
        assert trainer.summed == []
    assert [float(part[1]) for part in parts] == [8.0, 8.0]
    assert_same((parts[0] + parts[1]).float(), exact)
    few = tuple(part[:3] for part in data)
    counts = []
    for rank in (0, 1):
        trainer = trainer_of(rank)
        trainer.task.finish = lambda sums: {"examples": float(sums[1])}
        counts.append(trainer.evaluate(few)["examples"])
    assert counts == [3.0, 0.0], "there is one batch, and the second process has none"


def test_the_loss_of_an_epoch_is_the_mean_over_all(trainer_of):
    trainer = trainer_of(0)
    trainer.loss_sum.fill_(32.0)  # of 8 steps of both, as all_reduce would leave it
    trainer._end_epoch()
    assert trainer.history[0]["loss"] == 2.0


@pytest.mark.parametrize(("step", "due"), [(0, True), (1, False), (7, False)])
def test_checkpoints_come_at_the_end_of_an_epoch(step, due, trainer_of, tmp_path):
    trainer = trainer_of(0, Checkpoints(tmp_path))
    trainer.step = step
    assert trainer._due(saved=0.0) == due
    assert not trainer_of(0)._due(saved=0.0), "there is nowhere to write"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_checkpoint_has_the_generators_of_all_and_is_written_by_one(rank, trainer_of, tmp_path, monkeypatch):
    others = [[torch.full((3,), 7.0), None]] * 2

    def gather(into, own):
        into[:] = others
        into[rank] = own

    monkeypatch.setattr(dist, "all_gather_object", gather)
    trainer = trainer_of(rank, Checkpoints(tmp_path))
    own = torch.get_rng_state()
    trainer._save()
    assert len(list(tmp_path.glob("*.ckpt"))) == (rank == 0)
    assert trainer.summed[-1] == "barrier"
    found = snapshot(trainer)
    assert len(found["generators"]) == 2
    assert torch.equal(found["generators"][rank][0], own)
    torch.rand(5)
    restore(trainer, found)
    assert torch.equal(torch.get_rng_state(), own), "its own"
    found["generators"] = [[own, None]]  # of a run of one process
    restore(trainer, found)
    assert torch.equal(torch.get_rng_state(), own)


@pytest.mark.parametrize(("device", "backend"), [(CPU, "gloo"), (torch.device("cuda", 1), "nccl")])
def test_joining_the_others(device, backend, monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "4"}.items():
        monkeypatch.setenv(name, value)
    shared, joined, used, ended = dist.HashStore(), [], [], []
    monkeypatch.setattr(module, "_device", lambda name, local: device if (name, local) == ("auto", 1) else None)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.setattr(dist, "rendezvous", lambda where: iter([(shared, 1, 2)]) if where == "env://" else None)
    monkeypatch.setattr(dist, "init_process_group", lambda kind, **given: joined.append((kind, given)))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: ended.append(1))
    with processes() as group:
        assert group == Processes(1, 2, device)
        assert not group.writes
    ((kind, given),) = joined
    assert (kind, given["rank"], given["world_size"]) == (backend, 1, 2)
    given["store"].set("a", "b")
    assert shared.get("attempt 4/a") == b"b", "apart from earlier attempts"
    assert used == ([] if device == CPU else [device])
    assert ended == [1]


FREED = """
import resource, torch
from plmu.training.processes import keep_freed_memory
kept = keep_freed_memory()
for turn in range(20):
    made = [torch.ones(1 << 22) for _ in range(8)]  # of 16 MiB
    del made
    if turn == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(kept, (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() >> 20)
"""


def test_memory_that_is_freed_is_taken_again():
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True).stdout.split()
    if done[0] == "False":
        pytest.skip("not glibc")
    assert int(done[1]) < 1024  # MiB of new pages, where 19 · 128 were taken and freed


@pytest.mark.parametrize("library", [object(), None])
def test_other_allocators_are_left_alone(library, monkeypatch):
    def load(name):
        if library is None:
            raise TypeError("a name is needed")  # as on Windows
        return library

    monkeypatch.setattr(module.ctypes, "CDLL", load)
    assert not module.keep_freed_memory()
    with processes("cpu") as group:
        assert group.device == CPU
