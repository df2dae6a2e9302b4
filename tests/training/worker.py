"""Small training runs in processes of their own, `python worker.py FOLDER killed` or `torchrun worker.py FOLDER two`.
They print their losses as JSON."""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from kinds import KINDS, trainer_of
from torch import nn

from plmu.training.checkpoints import Checkpoints
from plmu.training.config import TrainingConfig
from plmu.training.loop import Trainer
from plmu.training.processes import Processes, processes
from plmu.training.task import Task

ENDED = os.WEXITED | os.WNOWAIT | os.WNOHANG


def task() -> Task:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, 8, generator=generator)
    y = x[:, :1].tanh() + 0.1 * torch.randn(96, 1, generator=generator)
    return Task(
        (x[:64], y[:64]),
        (x[64:80], y[64:80]),
        (x[80:], y[80:]),
        loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        measure=lambda model, batch: torch.stack(
            [(model(batch[0]) - batch[1]).square().sum(), torch.tensor(float(len(batch[0])))]
        ),
        finish=lambda sums: {"mse": float(sums[0] / sums[1])},
        metric="mse",
        higher_is_better=False,
        evaluation_batch=4,
    )


def model(dropout: float = 0.2) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 1))


def seeded_model() -> nn.Module:
    torch.manual_seed(1)
    return model(0.0)


def config(epochs: int) -> TrainingConfig:
    return TrainingConfig(
        epochs=epochs, batch_size=8, schedule="cosine", warmup=0.1, average=0.9, clip=1.0, checkpoint_seconds=0.0
    )


def outcome(trainer: Trainer) -> dict[str, Any]:
    found = trainer.run()
    return {"history": found.history, "test": found.test, "best": found.best_epoch}


def trainer(kind: str, epochs: int, group: Processes, folder: Path | None = None) -> Trainer:
    """With dropout, unless several processes are compared with one."""
    dropout = 0.2 if group.count == 1 else 0.0
    checkpoints = None if folder is None else Checkpoints(folder)
    if kind != "plain":
        return trainer_of(kind, epochs, checkpoints, dropout=dropout, processes=group)
    torch.manual_seed(1)
    return Trainer(task(), model(dropout), config(epochs), group, 3, checkpoints)


def paused(made: Trainer, pause: float) -> Trainer:
    """Pauses before each step."""
    eager = made.stepping.eager

    def slowly() -> None:
        time.sleep(pause)
        eager()

    made.stepping.run = slowly
    return made


def halves(folder: Path, epochs: int, kind: str, group: Processes) -> list[dict[str, Any]]:
    """A whole run, and one that ends in the middle and is resumed."""
    folder.mkdir(parents=True, exist_ok=True)
    first = trainer(kind, epochs, group, folder)
    save = first._save

    def stop() -> None:
        save()
        if first.epoch == epochs // 2:
            raise InterruptedError

    first._save = stop
    with suppress(InterruptedError):
        first.run()
    return [outcome(trainer(kind, epochs, group)), outcome(trainer(kind, epochs, group, folder))]


def killed(
    folder: Path, kind: str, pause: float, signals: list[int], latest: float, group: Processes
) -> dict[str, Any]:
    """A run in children of this process, each of which a signal ends at a random moment after it has begun, and then in
    this process; and one that is whole. Forked, a child imports nothing."""
    folder.mkdir()
    moments, ended = random.Random(0), []
    for number in signals:
        before = newest(folder)
        child = os.fork()
        if not child:
            paused(trainer(kind, 6, group, folder), pause).run()
            sys.exit()
        wait_for_checkpoints(folder, lambda child=child: os.waitid(os.P_PID, child, ENDED) is None, before)
        time.sleep(moments.uniform(0.0, latest))
        os.kill(child, number)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    resumed, whole = (outcome(trainer(kind, 6, group, place)) for place in (folder, None))
    return {"ended": ended, "resumed": resumed, "whole": whole}


def two(folder: Path, group: Processes) -> list[Any]:
    """Of several processes: a slow run, which is killed from outside; the same, whole; and the halves of each kind."""
    (folder / f"started-{os.getpid()}").touch()
    (folder / "killed").mkdir(exist_ok=True)
    slow = outcome(paused(trainer("plain", 4, group, folder / "killed"), 0.1))
    whole = outcome(trainer("plain", 4, group))
    return [slow, whole, {name: halves(folder / name, 2, name, group) for name in ("plain", *KINDS)}]


def wait_for_checkpoints(folder: Path, runs: Callable[[], bool], before: str = "") -> None:
    """Until training has begun, or begun again, or has ended."""
    for _ in range(6000):
        if not runs() or newest(folder) != before:
            return
        time.sleep(0.02)
    raise AssertionError("no checkpoint within two minutes")


def newest(folder: Path) -> str:
    return max((path.name for path in folder.glob("step-*.ckpt")), default="")


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
    with processes("cpu") as group:
        if sys.argv[2] == "killed":
            found: Any = {
                "plain": killed(folder / "plain", "plain", 0.02, [signal.SIGKILL] * 4, 0.25, group),
                "streams": killed(folder / "streams", "streams", 0.5, [signal.SIGINT, signal.SIGKILL], 0.0, group),
            }
        else:
            found = two(folder, group)
        if group.writes:
            print(json.dumps(found))


if __name__ == "__main__":
    main()
