"""The training loop: deterministic, resumable at any step, on one device or several; knows no experiment.

An epoch's order depends on the seed and the epoch alone, the random numbers of dropout and noise on the generator
states in the checkpoint, so a run that was killed and resumed ends with the same results as an uninterrupted run.

Several processes share each batch and sum their gradients, which is the same training within rounding as long as
nothing in the model is random. Dropout and noise draw from a generator of each process: with them, another number
of processes gives other random numbers, and so another run.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import plmu
from plmu.errors import CheckpointError, Diverged, RunError
from plmu.training.batches import Prefetcher, Shape, Step, fits, source_of
from plmu.training.checkpoints import Checkpoints, other_version
from plmu.training.config import TrainingConfig
from plmu.training.optimizers import optimizers
from plmu.training.processes import Processes
from plmu.training.progress import Progress
from plmu.training.state import restore, snapshot
from plmu.training.step import TrainingStep
from plmu.training.task import Batch, Task

History = list[dict[str, float]]
FAR = 10  # times the untrained model's loss: training that ends above it has diverged


@dataclass
class Outcome:
    """The result of training: the scores of the best epoch by validation, and its test scores."""

    best_epoch: int
    valid: dict[str, float]
    test: dict[str, float]
    history: History
    seconds: float  # in the loop, over all resumes
    warning: str | None = None  # where the best model fits the training data worse than the untrained one


def _together(train: Batch, valid: Batch) -> Batch:
    """Training and validation data as one split."""
    shapes = [[tuple(part.shape[1:]) for part in split] for split in (train, valid)]
    if shapes[0] != shapes[1]:
        raise RunError(
            "training.refit needs training and validation examples of one size; they are"
            f" {shapes[0][0]} and {shapes[1][0]}"
        )
    return tuple(torch.cat(parts) for parts in zip(train, valid, strict=True))


class Trainer:
    """Trains `model` on `task`; `run()` resumes from the newest checkpoint if there is one."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        config: TrainingConfig,
        processes: Processes,
        seed: int,
        checkpoints: Checkpoints | None = None,
        progress: Progress | None = None,
        on_epoch: Callable[[dict[str, float]], None] | None = None,
    ) -> None:
        task.check()
        self.config, self.processes, self.seed = config, processes, seed
        self.checkpoints, self.progress, self.on_epoch = checkpoints, progress, on_epoch
        self.device = processes.device
        if config.refit:
            task = dataclasses.replace(task, train=_together(task.train, task.valid))
        self.model = model.to(self.device)
        on_device = config.data == "device" or (config.data == "auto" and fits(task.train, self.device))
        self.task = task.to(self.device, ("train", "valid", "test") if on_device else ())
        self.source = source_of(self.task, config, processes)
        self.steps_per_epoch = self.source.steps
        self.total_steps = self.steps_per_epoch * config.epochs
        self.epoch = self.step = 0  # where the next step is
        self.history: History = []
        self.best: dict[str, Any] | None = None
        self.seconds = 0.0
        torch.manual_seed(seed * 65_537 + processes.rank)
        graphed = config.graph and self.device.type == "cuda" and processes.count == 1
        self.optimizers = optimizers(self.model, task, config, graphed)
        self.stepping = TrainingStep(
            self.model, self.task, config, processes, self.source, self.optimizers, on_device, graphed
        )
        self.average, self.loss_sum = self.stepping.average, self.stepping.loss_sum  # changed in place
        self.prefetcher = None if on_device else Prefetcher(self.source, self.device)

    def run(self) -> Outcome:
        """Train to the last epoch, then score the best model on test."""
        at_start = self._sample_loss()
        if not math.isfinite(at_start):
            raise RunError(f"the loss of the untrained model is {at_start}: change the model's settings")
        self._resume()
        start = saved = time.monotonic()
        before = self.seconds
        while self.epoch < self.config.epochs:
            self.stepping.begin(anew=self.step == 0)
            with closing(self._batches()) as coming:  # a thread may gather them
                for batch in coming:
                    self.stepping.load(*batch)
                    self._set_learning_rate()
                    self._guarded_step()
                    self.step += 1
                    if self._due(saved) and self.step < self.steps_per_epoch:
                        self.seconds = before + time.monotonic() - start
                        self._save()
                        saved = time.monotonic()
                    if self.progress is not None and self.step % 16 == 0:
                        self.progress.at(self.epoch + self.step / self.steps_per_epoch)
            self._end_epoch()
            self.seconds = before + time.monotonic() - start
            if self._due(saved) or self.epoch == self.config.epochs:
                self._save()
                saved = time.monotonic()
            if self.progress is not None:
                self.progress.at(self.epoch, self.history[-1])
        assert self.best is not None
        self.model.load_state_dict(self.best["model"])
        at_best = self._sample_loss()
        losses = f"on training examples its loss is {at_best:.3g}, at the start it was {at_start:.3g}"
        if not at_best <= FAR * at_start:
            raise self._diverged(f"the best model is far worse than the untrained one: {losses}")
        warning = f"the best model's loss is above the untrained one's: {losses}" if at_best > at_start else None
        if self.checkpoints is not None and self.processes.writes:
            self.checkpoints.drop_best()
        test = self.evaluate(self.task.test)
        return Outcome(self.best["epoch"], self.best["scores"], test, self.history, self.seconds, warning)

    def evaluate(self, data: Batch) -> dict[str, float]:
        """The scores of the current model, over all processes."""
        self.model.eval()
        if self.task.score is not None:  # each process scores it all
            with torch.no_grad(), self.config.autocast(self.device):
                return self.task.score(self.model, data)
        measure, finish = self.task.measure, self.task.finish
        assert measure is not None
        assert finish is not None
        count, size = data[0].shape[0], self.task.evaluation_batch
        total: Tensor | None = None

        def batch(start: int, end: int) -> Batch:
            return tuple(t[start:end].to(self.device) for t in data)

        with torch.no_grad(), self.config.autocast(self.device):
            for number, start in enumerate(range(0, count, size)):
                if number % self.processes.count == self.processes.rank:
                    part = measure(self.model, batch(start, start + size)).double()
                    total = part if total is None else total + part
        if self.processes.count > 1:
            like = measure(self.model, batch(0, 1)).double()
            total = self.processes.total(torch.zeros_like(like) if total is None else total)
        assert total is not None
        return finish(total.cpu())

    def _sample_loss(self) -> float:
        """The loss of the current model on the first training examples, without dropout and noise."""
        self.model.eval()
        batch = tuple(t.to(self.device) for t in self.source.first(self.task.evaluation_batch))
        with torch.no_grad(), self.config.autocast(self.device):
            return float(self.task.loss(self.model, batch))

    def _order(self) -> list[Step]:
        """The steps of this epoch, with the keys of all processes."""
        return self.source.order(torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch))

    def _batches(self) -> Generator[tuple[Shape, Batch]]:
        """Shape and content of this process's share of each batch, from the next step to the end of the epoch: the keys
        of examples that lie on the device, else the examples."""
        steps = self._order()[self.step :]
        share = [(step.keys[self.processes.share(len(step.keys))], step.shape) for step in steps]
        if self.prefetcher is not None:
            with closing(self.prefetcher.batches(share)) as gathered:  # ends its thread at once
                for (_, shape), batch in zip(share, gathered, strict=True):
                    yield shape, batch
            return
        together = torch.cat([keys for keys, _ in share]).to(self.device)  # one copy for all
        for keys, (_, shape) in zip(together.split([len(keys) for keys, _ in share]), share, strict=True):
            yield shape, (keys,)

    def _guarded_step(self) -> None:
        try:
            self.stepping.run()
        except RuntimeError as error:  # the optimiser computes its step size in Python and hands it over as a float32
            if "overflow" not in str(error):
                raise
            raise self._diverged(f"the optimiser's step is too large for float32 in epoch {self.epoch + 1}") from error

    def _set_learning_rate(self) -> None:
        done = self.epoch * self.steps_per_epoch + self.step
        rate = self.config.learning_rate_at(done, self.total_steps) * self._plateau()
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            learns = done >= group["begins"] * self.steps_per_epoch
            value = rate * group["scale"] if learns else 0.0
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(value)
            else:
                group["lr"] = value

    def _plateau(self) -> float:
        if self.config.schedule != "plateau":
            return 1.0
        name = f"valid_{self.task.metric}"
        return self.config.plateau_factor(
            [entry[name] for entry in self.history if name in entry], self.task.higher_is_better
        )

    def _end_epoch(self) -> None:
        loss = float(self.processes.total(self.loss_sum)) / (self.steps_per_epoch * self.processes.count)
        self.loss_sum.zero_()
        self.epoch, self.step = self.epoch + 1, 0
        if not math.isfinite(loss):
            raise self._diverged(f"the loss is {loss} in epoch {self.epoch}")
        entry: dict[str, float] = {"epoch": self.epoch, "loss": loss}
        last = self.epoch == self.config.epochs
        if self.config.refit:
            if last:
                self._keep({})
        elif self.epoch % self.config.evaluate_every == 0 or last:
            scores = self._evaluate_average(self.task.valid)
            entry.update({f"valid_{name}": value for name, value in scores.items()})
            than = None if self.best is None else self.best["scores"][self.task.metric]
            if self.task.better(scores[self.task.metric], than):
                self._keep(scores)
        self.history.append(entry)
        if self.processes.writes and self.on_epoch is not None:
            self.on_epoch(entry)
        if self.best is None and last:
            raise self._diverged("no validation score was a number")

    def _keep(self, scores: dict[str, float]) -> None:
        """Keep the current model as the best so far."""
        weights = {name: value.detach().clone() for name, value in self._averaged().items()}
        self.best = {"epoch": self.epoch, "scores": scores, "model": weights}

    def _diverged(self, problem: str) -> Diverged:
        """The error to raise. Writes the best model first, which the newest checkpoint may not have."""
        outcome = "there is no good model yet"
        if self.best is not None:
            outcome = f"the best model so far is of epoch {self.best['epoch']}"
            if self.checkpoints is not None:
                outcome += f" and is in {self.checkpoints.best_path}; `plmu evaluate` scores it"
                try:
                    if self.processes.writes:
                        self.checkpoints.keep_best({**self.best, "plmu": plmu.__version__})
                except CheckpointError as error:
                    outcome = f"the best model so far is of epoch {self.best['epoch']} and is lost: {error}"
                self.processes.wait()
        return Diverged(f"{problem}: {outcome}. Try a lower training.learning_rate")

    def _check_finite(self) -> None:
        """Raise Diverged before a checkpoint is written from which the run could never recover."""
        values = [self.loss_sum, *self.model.state_dict().values(), *(self.average or [])]
        broken = torch.stack([~value.isfinite().all() for value in values]).sum()
        if int(self.processes.total(broken)):
            loss = float(self.loss_sum)
            problem = "the weights are not finite" if math.isfinite(loss) else f"the loss is {loss}"
            raise self._diverged(f"{problem} in epoch {self.epoch + (self.step > 0)}")

    def _averaged(self) -> dict[str, Tensor]:
        """The model's state, with averaged weights if weights are averaged."""
        state = self.model.state_dict()
        if self.average is not None:
            names = [name for name, _ in self.model.named_parameters()]
            state.update(dict(zip(names, self.average, strict=True)))
        return state

    def _evaluate_average(self, data: Batch) -> dict[str, float]:
        if self.average is None:
            return self.evaluate(data)
        current = [p.detach().clone() for p in self.model.parameters()]
        self._fill(self.average)
        try:
            return self.evaluate(data)
        finally:
            self._fill(current)

    def _fill(self, values: list[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.model.parameters(), values, strict=True):
                parameter.copy_(value)

    def _due(self, saved: float) -> bool:
        """Whether it is time for a checkpoint: with several processes, only at the end of an epoch."""
        if self.checkpoints is None:
            return False
        if self.processes.count == 1:
            return time.monotonic() - saved >= self.config.checkpoint_seconds
        return self.step == 0

    def _save(self) -> None:
        if self.checkpoints is None:
            return
        self._check_finite()
        content = snapshot(self)
        if self.processes.writes:
            self.checkpoints.save(self.epoch * self.steps_per_epoch + self.step, content)
        self.processes.wait()

    def _resume(self) -> None:
        checkpoint = None if self.checkpoints is None else self.checkpoints.newest()
        if checkpoint is None:
            return
        try:
            restore(self, checkpoint)
        except torch.OutOfMemoryError as error:
            raise RunError(f"{self.device} has too little memory to resume: {str(error).splitlines()[0]}") from error
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            assert self.checkpoints is not None
            raise RunError(
                f"the newest checkpoint in {self.checkpoints.folder} is not of this run"
                f" ({' '.join(str(error).split())}): remove it, or choose another --name{other_version(checkpoint)}"
            ) from error
        if self.progress is not None:
            self.progress.at(self.epoch + self.step / self.steps_per_epoch)
