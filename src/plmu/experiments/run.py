"""Running an experiment: a folder for each seed, resumed if it was cut short, and one result for all seeds."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import plmu
from plmu.experiments.base import Config, Experiment
from plmu.training.checkpoints import Checkpoints
from plmu.training.loop import Trainer
from plmu.training.processes import Processes
from plmu.training.progress import Progress
from plmu.training.results import provenance, read_json, spread, write_json


class RunError(RuntimeError):
    """A run that cannot be started or continued as asked."""


@dataclass
class Options:
    """Where results go, and how loudly."""

    runs: Path = Path("runs")
    """Folder in which each run has its own."""
    name: str | None = None
    """Name of the run. Default: experiment, model and seed."""
    seeds: int = 1
    """How many seeds to run, counting up from the first."""
    quiet: bool = False
    """Print the result alone."""
    tensorboard: bool = False
    """Write TensorBoard files into the run's folder too."""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; by default a GPU if there is one."""


def run(
    experiment: Experiment, model: str, config: Config[Any], options: Options, processes: Processes
) -> dict[str, Any]:
    """Train every seed, or take its finished result, and write one summary beside the runs."""
    if options.seeds < 1:
        raise RunError(f"--seeds must be at least 1, got {options.seeds}")
    results = []
    for seed in range(config.seed, config.seed + options.seeds):
        one = dataclasses.replace(config, seed=seed)
        stem = options.name or f"{experiment.name}-{model}"
        results.append(_run_seed(experiment, model, one, options, processes, options.runs / f"{stem}-seed{seed}"))
    summary = _summary(experiment, model, results)
    if processes.writes:
        write_json(options.runs / f"{options.name or f'{experiment.name}-{model}'}.json", summary)
    return summary


def _run_seed(
    experiment: Experiment, model: str, config: Config[Any], options: Options, processes: Processes, folder: Path
) -> dict[str, Any]:
    described = json.loads(json.dumps(_described(experiment, model, config), default=str))
    if processes.writes:
        _prepare(folder, described)
    processes.wait()
    finished = folder / "result.json"
    if finished.is_file():
        result: dict[str, Any] = read_json(finished)
        return result
    start = time.monotonic()
    torch.manual_seed(config.seed)
    task = experiment.task(config)
    network = experiment.build(config, task)
    parameters = sum(p.numel() for p in network.parameters() if p.requires_grad)
    log = _Log(folder, options.tensorboard) if processes.writes else None
    with Progress(f"{experiment.name} {model}", config.training.epochs, options.quiet or not processes.writes) as bar:
        trainer = Trainer(
            task,
            network,
            config.training,
            processes,
            config.seed,
            Checkpoints(folder / "checkpoints"),
            bar,
            on_epoch=None if log is None else log.add,
        )
        outcome = trainer.run()
    test = dict(outcome.test)
    for name, data in experiment.more_tests(config).items():
        moved = tuple(t.to(processes.device) for t in data)
        test[name] = trainer.evaluate(moved)[task.metric]
    result = {
        **described,
        "metric": task.metric,
        "best_epoch": outcome.best_epoch,
        "valid": outcome.valid,
        "test": test,
        "parameters": parameters,
        "seconds_training": outcome.seconds,
        "seconds_in_all": time.monotonic() - start,
        "processes": processes.count,
        "notes": task.notes,
        "command": _command(),
        **provenance(processes.device),
    }
    if processes.writes and log is not None:
        log.finish(outcome.history)
        deployable = experiment.deployable(network.cpu())
        if deployable is not None:
            plmu.save(deployable, folder / "model.plmu")
        write_json(finished, result)
    processes.wait()
    return result


def _command() -> str:
    """What was typed, without the folders of this machine."""
    words = sys.argv[1:]
    for option in ("--runs", "--data.root"):
        if option in words:
            at = words.index(option)
            words = words[:at] + words[at + 2 :]
    return shlex.join(["plmu", *words])


def _described(experiment: Experiment, model: str, config: Config[Any]) -> dict[str, Any]:
    fields = dataclasses.asdict(config)
    fields.pop("data")  # where the data lies does not change the result
    return {"experiment": experiment.name, "model": model, "seed": config.seed, "config": fields}


def _prepare(folder: Path, described: dict[str, Any]) -> None:
    """Make the folder, or see that it is this very run's. Fails now rather than after an hour."""
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror or error}") from None
    known = folder / "config.json"
    if not known.is_file():
        write_json(known, described)
        return
    try:
        before = read_json(known)
    except ValueError:
        raise RunError(f"{known} is damaged: remove {folder}, or choose another --name") from None
    if before != described:
        differing = ", ".join(_differences(before["config"], described["config"])) or "the experiment or model"
        raise RunError(
            f"{folder} holds a run of another configuration ({differing}): choose another --name, or remove it"
        )


def _differences(a: dict[str, Any], b: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key in sorted({*a, *b}):
        x, y = a.get(key), b.get(key)
        if isinstance(x, dict) and isinstance(y, dict):
            found += _differences(x, y, f"{prefix}{key}.")
        elif x != y:
            found.append(f"{prefix}{key} was {x}, now {y}")
    return found


class _Log:
    """Metrics as JSON lines, and for TensorBoard if asked."""

    def __init__(self, folder: Path, tensorboard: bool) -> None:
        self.path = folder / "metrics.jsonl"
        self.writer: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(folder / "tensorboard"))

    def add(self, entry: dict[str, float]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        if self.writer is not None:
            for name, value in entry.items():
                if name != "epoch":
                    self.writer.add_scalar(name, value, int(entry["epoch"]))

    def finish(self, history: list[dict[str, float]]) -> None:
        """Each epoch once, also those that a killed run had logged after its last checkpoint."""
        with open(self.path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in history)
        if self.writer is not None:
            self.writer.close()


def _summary(experiment: Experiment, model: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    """One result for all seeds: what they share once, what differs for each, mean and spread of each test score."""
    own = ("seed", "best_epoch", "valid", "test", "seconds_training", "seconds_in_all")
    shared = {key: value for key, value in results[0].items() if key not in own}
    scores = {name: spread([one["test"][name] for one in results]) for name in results[0]["test"]}
    return {
        **shared,
        "command": _command(),
        "config": {**shared["config"], "seed": [one["seed"] for one in results]},
        "paper": experiment.paper.get(model),
        "percent": experiment.percent,
        "test": scores,
        "seeds": [{key: one[key] for key in own} for one in results],
    }
