"""A small training run of its own process: python worker.py FOLDER EPOCHS [PAUSE [KIND]]. Prints its losses as JSON."""

import json
import signal
import sys
import time
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
    folder.mkdir(exist_ok=True)
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


def main() -> None:
    folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
    pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    kind = sys.argv[4] if len(sys.argv) > 4 else "plain"
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
    folder.mkdir(parents=True, exist_ok=True)
    with processes("cpu") as group:
        if kind == "halves":
            found: Any = {name: halves(folder / name, epochs, name, group) for name in ("plain", *KINDS)}
        else:
            found = outcome(paused(trainer(kind, epochs, group, folder), pause))
        if group.writes:
            print(json.dumps(found))


if __name__ == "__main__":
    main()
