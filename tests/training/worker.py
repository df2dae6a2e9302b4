"""A small training run of its own process: python worker.py FOLDER EPOCHS [PAUSE]. Prints its losses as JSON."""

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

from plmu.training.checkpoints import Checkpoints
from plmu.training.config import TrainingConfig
from plmu.training.loop import Trainer
from plmu.training.processes import processes
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


def main() -> None:
    folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
    pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    with processes("cpu") as group:
        torch.manual_seed(1)
        trainer = Trainer(
            task(), model(0.2 if group.count == 1 else 0.0), config(epochs), group, 3, Checkpoints(folder)
        )
        eager = trainer.stepping.eager

        def slowly() -> None:
            time.sleep(pause)
            eager()

        trainer.stepping.run = slowly
        outcome = trainer.run()
        if group.writes:
            print(json.dumps({"history": outcome.history, "test": outcome.test, "best": outcome.best_epoch}))


if __name__ == "__main__":
    main()
