"""The training loop: deterministic, resumable at any step, on one device or several; knows no experiment.

The data lives on the device. An epoch's order depends on the seed and the epoch alone, the random numbers of dropout
and noise on the generator states in the checkpoint, so a run that was killed and resumed gives the same numbers as one
that was not.

Several processes share each batch and sum their gradients, which is the same training within rounding as long as
nothing in the model is random. Dropout and noise draw from a generator of each process's own: with them, another number
of processes gives other random numbers, and so another run, not a rounding of the same one.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

import plmu
from plmu.training.checkpoints import Checkpoints, other_version
from plmu.training.config import TrainingConfig
from plmu.training.errors import CheckpointError, Diverged, RunError
from plmu.training.processes import Processes
from plmu.training.progress import Progress
from plmu.training.state import restore, snapshot
from plmu.training.task import Batch, Task

History = list[dict[str, float]]
FAR = 10  # times the untrained model's loss: training that ends above it has diverged


@dataclass
class Outcome:
    """What training gave: the scores of the best epoch by validation, on test once."""

    best_epoch: int
    valid: dict[str, float]
    test: dict[str, float]
    history: History
    seconds: float  # in the loop, over all resumes
    warning: str | None = None  # where the best model fits the training data worse than the untrained one


def _together(train: Batch, valid: Batch) -> Batch:
    """Both as one split."""
    shapes = [[tuple(part.shape[1:]) for part in split] for split in (train, valid)]
    if shapes[0] != shapes[1]:
        raise RunError(
            "training.refit needs training and validation examples of one size; they are"
            f" {shapes[0][0]} and {shapes[1][0]}"
        )
    return tuple(torch.cat(parts) for parts in zip(train, valid, strict=True))


class Trainer:
    """Trains `model` on `task`; `run()` goes on from the newest checkpoint if there is one."""

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
        self.task = task.to(self.device)
        self.model = model.to(self.device)
        self.examples = self.task.train[0].shape[0]
        self.batch = min(config.batch_size, self.examples)
        if self.batch % processes.count:
            raise ValueError(
                f"training.batch_size = {self.batch} must divide by the {processes.count} processes: each takes a share"
            )
        self.steps_per_epoch = self.examples // self.batch  # an incomplete last batch is left out, another each epoch
        self.total_steps = self.steps_per_epoch * config.epochs
        graphed = config.graph and self.device.type == "cuda" and processes.count == 1
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=torch.tensor(config.learning_rate, device=self.device) if graphed else config.learning_rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
            capturable=graphed,
            fused=self.device.type == "cuda",
        )
        self.average = [p.detach().clone() for p in self.model.parameters()] if config.average else None
        self.trained: nn.Module = torch.compile(self.model) if config.compile else self.model  # type: ignore[assignment]
        if processes.count > 1:
            self.trained = nn.parallel.DistributedDataParallel(self.trained)
        self.loss_sum = torch.zeros((), device=self.device, dtype=torch.float64)
        self.index = torch.zeros(self.batch // processes.count, dtype=torch.int64, device=self.device)
        self.epoch = self.step = 0  # where the next step is
        self.history: History = []
        self.best: dict[str, Any] | None = None
        self.seconds = 0.0
        torch.manual_seed(seed * 65_537 + processes.rank)
        self._step = self._captured() if graphed else self._eager

    def one_step(self) -> None:
        """One training step on the examples of `index`: loss, gradients, optimizer. Benchmarks time it."""
        self._step()

    def run(self) -> Outcome:
        """Train to the last epoch, then score the best model on test."""
        at_start = self._sample_loss()
        if not math.isfinite(at_start):
            raise RunError(f"the loss of the untrained model is {at_start}: change the model's settings")
        self._resume()
        start = saved = time.monotonic()
        before = self.seconds
        while self.epoch < self.config.epochs:
            order = self._order()
            self.trained.train()
            while self.step < self.steps_per_epoch:
                self.index.copy_(order[self.step])
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
        """The scores of the model as it is, over all processes."""
        self.model.eval()
        count, size = data[0].shape[0], self.task.evaluation_batch
        total: Tensor | None = None
        with torch.no_grad(), self._autocast():
            for number, start in enumerate(range(0, count, size)):
                if number % self.processes.count == self.processes.rank:
                    part = self.task.measure(self.model, tuple(t[start : start + size] for t in data)).double()
                    total = part if total is None else total + part
        if self.processes.count > 1:
            like = self.task.measure(self.model, tuple(t[:1] for t in data)).double()
            total = self.processes.total(torch.zeros_like(like) if total is None else total)
        assert total is not None
        return self.task.finish(total.cpu())

    def _sample_loss(self) -> float:
        """The loss of the model as it is on the first training examples, without dropout and noise."""
        self.model.eval()
        batch = tuple(t[: self.task.evaluation_batch] for t in self.task.train)
        with torch.no_grad(), self._autocast():
            return float(self.task.loss(self.model, batch))

    def _order(self) -> Tensor:
        """Which examples each step of this epoch takes, this process's share: (steps, share)."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.examples, generator=generator)[: self.steps_per_epoch * self.batch]
        share = self.processes.share(self.batch)
        return order.reshape(self.steps_per_epoch, self.batch)[:, share].to(self.device)

    def _guarded_step(self) -> None:
        try:
            self._step()
        except RuntimeError as error:  # the optimiser computes its step size in Python and hands it over as a float32
            if "overflow" not in str(error):
                raise
            raise self._diverged(f"the optimiser's step is too large for float32 in epoch {self.epoch + 1}") from error

    def _eager(self) -> None:
        """One step on the examples in `self.index`."""
        batch = tuple(t[self.index] for t in self.task.train)
        with self._autocast():
            loss = self.task.loss(self.trained, batch)
        loss.backward()
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss_sum += loss.detach()
        if self.average is not None:
            assert self.config.average is not None
            blend = get_ema_multi_avg_fn(self.config.average)
            blend(self.average, [p.detach() for p in self.model.parameters()], 0)

    def _captured(self) -> Callable[[], None]:
        """The same step as a CUDA graph: one launch instead of a hundred."""
        snapshot = copy.deepcopy(self.model.state_dict())
        generators = torch.get_rng_state(), torch.cuda.get_rng_state(self.device)
        self.trained.train()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with plmu.for_graphs():
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self._eager()
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(graph):
                self._eager()
        self.model.load_state_dict(snapshot)  # in place, as all below: the graph has the addresses
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()
        if self.average is not None:
            for mean, value in zip(self.average, self.model.parameters(), strict=True):
                mean.copy_(value.detach())
        self.loss_sum.zero_()
        torch.set_rng_state(generators[0])
        torch.cuda.set_rng_state(generators[1], self.device)
        return graph.replay

    def _set_learning_rate(self) -> None:
        done = self.epoch * self.steps_per_epoch + self.step
        rate = self.config.learning_rate_at(done, self.total_steps)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

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
        """The model as it is now is the best so far."""
        weights = {name: value.detach().clone() for name, value in self._averaged().items()}
        self.best = {"epoch": self.epoch, "scores": scores, "model": weights}

    def _diverged(self, what: str) -> Diverged:
        """The error to raise, after the best model was written: checkpoints come now and then, and no more will."""
        kept = "there is no good model yet"
        if self.best is not None:
            kept = f"the best model so far is of epoch {self.best['epoch']}"
            if self.checkpoints is not None:
                kept += f" and is in {self.checkpoints.best_path}; `plmu evaluate` scores it"
                try:
                    if self.processes.writes:
                        self.checkpoints.keep_best({**self.best, "plmu": plmu.__version__})
                except CheckpointError as error:
                    kept = f"the best model so far is of epoch {self.best['epoch']} and is lost: {error}"
                self.processes.wait()
        return Diverged(f"{what}: {kept}. Try a lower training.learning_rate")

    def _check_finite(self) -> None:
        """Before a checkpoint, from which the run would otherwise diverge for ever."""
        values = [self.loss_sum, *self.model.state_dict().values(), *(self.average or [])]
        broken = torch.stack([~value.isfinite().all() for value in values]).sum()
        if int(self.processes.total(broken)):
            loss = float(self.loss_sum)
            what = "the weights are not finite" if math.isfinite(loss) else f"the loss is {loss}"
            raise self._diverged(f"{what} in epoch {self.epoch + (self.step > 0)}")

    def _averaged(self) -> dict[str, Tensor]:
        """The model's state with the averaged weights where there are such."""
        state = self.model.state_dict()
        if self.average is not None:
            names = [name for name, _ in self.model.named_parameters()]
            state.update(dict(zip(names, self.average, strict=True)))
        return state

    def _evaluate_average(self, data: Batch) -> dict[str, float]:
        if self.average is None:
            return self.evaluate(data)
        own = [p.detach().clone() for p in self.model.parameters()]
        self._fill(self.average)
        try:
            return self.evaluate(data)
        finally:
            self._fill(own)

    def _fill(self, values: list[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.model.parameters(), values, strict=True):
                parameter.copy_(value)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16")

    def _due(self, saved: float) -> bool:
        """Whether it is time for a checkpoint. Several processes agree by asking at the end of an epoch alone."""
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
        found = None if self.checkpoints is None else self.checkpoints.newest()
        if found is None:
            return
        try:
            restore(self, found)
        except torch.OutOfMemoryError as error:
            raise RunError(f"{self.device} has too little memory to resume: {str(error).splitlines()[0]}") from error
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            assert self.checkpoints is not None
            raise RunError(
                f"the newest checkpoint in {self.checkpoints.folder} is not of this run"
                f" ({' '.join(str(error).split())}): remove it, or choose another --name{other_version(found)}"
            ) from error
        if self.progress is not None:
            self.progress.at(self.epoch + self.step / self.steps_per_epoch)
