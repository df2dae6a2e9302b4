"""Running an experiment: a folder for each seed, resumed if it was cut short, and one result for all seeds."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import plmu
from plmu.experiments.base import Config, Experiment
from plmu.training.checkpoints import Checkpoints
from plmu.training.errors import RunError
from plmu.training.loop import Trainer
from plmu.training.processes import Processes
from plmu.training.progress import Progress
from plmu.training.results import provenance, read_json, spread, write_json

# Of each seed alone; and where it ran and from what, which seeds share unless they were run apart.
OWN = ("seed", "best_epoch", "valid", "test", "seconds_training", "seconds_in_all")
ORIGIN = ("processes", "command", "hardware", "torch", "python", "plmu", "source")


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
    experiment: Experiment,
    model: str,
    config: Config[Any],
    options: Options,
    processes: Processes,
    words: Sequence[str],
) -> dict[str, Any]:
    """Train every seed, or take its finished result, and write one summary of all finished seeds beside the runs.

    `words` are what the user typed after `plmu`, for the result. Processes that do not write get no summary.
    """
    if options.seeds < 1:
        raise RunError(f"--seeds must be at least 1, got {options.seeds}")
    seeds = [dataclasses.replace(config, seed=config.seed + i) for i in range(options.seeds)]
    stem = options.runs / (options.name or f"{experiment.name}-{model}")
    described = _described(experiment, model, config)
    usual = _described(experiment, model, experiment.defaults(model))["config"]
    if processes.writes:
        for folder in _folders(stem):
            _check_same(folder, described, usual)
    processes.wait()
    for one in seeds:
        _run_seed(experiment, model, one, options, processes, stem.with_name(f"{stem.name}-seed{one.seed}"), words)
    if not processes.writes:
        return {}
    found = [_read_result(folder) for folder in _folders(stem) if (folder / "result.json").is_file()]
    summary = _summary(experiment, model, [one for one in found if not _differing(one, described, usual)])
    write_json(stem.with_name(f"{stem.name}.json"), summary)
    return summary


def _run_seed(
    experiment: Experiment,
    model: str,
    config: Config[Any],
    options: Options,
    processes: Processes,
    folder: Path,
    words: Sequence[str],
) -> None:
    described = _described(experiment, model, config)
    if processes.writes:
        _prepare(folder, described)
    processes.wait()
    finished = folder / "result.json"
    if finished.is_file():
        if processes.writes and not options.quiet:
            print(f"{folder} is finished: nothing was trained, its result is shown")
        return
    start = time.monotonic()
    torch.manual_seed(config.seed)
    task = experiment.task(config)
    network = experiment.build(config, task)
    if config.training.refit:
        task.notes["validation"] = "its data were trained on too, and the last epoch was taken"
    parameters = sum(p.numel() for p in network.parameters() if p.requires_grad)
    log = _Log(folder, options.tensorboard) if processes.writes else None
    if processes.writes:
        for name, content in experiment.companions(task).items():
            (folder / name).write_text(content, encoding="utf-8")
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
    test = {**outcome.test, **more_scores(experiment, config, trainer)}
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
        "command": _command(words),
        **provenance(processes.device),
    }
    if processes.writes and log is not None:
        log.finish(outcome.history)
        write_json(finished, result)
        deployable = experiment.deployable(network.cpu())
        if deployable is not None:
            plmu.save(deployable, folder / "model.plmu")
    processes.wait()


def more_scores(experiment: Experiment, config: Config[Any], trainer: Trainer) -> dict[str, float]:
    """The scores of the experiment's further test sets."""
    scores = {}
    for name, data in experiment.more_tests(config).items():
        scores[name] = trainer.evaluate(tuple(t.to(trainer.device) for t in data))[experiment.metric]
    return scores


def _command(words: Sequence[str]) -> str:
    """What was typed, without the folders of this machine."""
    kept: list[str] = []
    given = iter(words)
    for word in given:
        if word in ("--runs", "--data.root"):
            next(given, None)
        elif not word.startswith(("--runs=", "--data.root=")):
            kept.append(word)
    return shlex.join(["plmu", *kept])


def _described(experiment: Experiment, model: str, config: Config[Any]) -> dict[str, Any]:
    """What determines the result, as JSON gives it back."""
    fields = dataclasses.asdict(config)
    fields.pop("data")  # where the data lies does not change the result
    described = {"experiment": experiment.name, "model": model, "seed": config.seed, "config": fields}
    read_back: dict[str, Any] = json.loads(json.dumps(described, default=str))
    return read_back


def _folders(stem: Path) -> list[Path]:
    """The run folders of this name, by seed."""
    if not stem.parent.is_dir():
        return []
    named = ((re.fullmatch(rf"{re.escape(stem.name)}-seed(\d+)", one.name), one) for one in stem.parent.iterdir())
    return [path for _, path in sorted((int(match[1]), path) for match, path in named if match)]


def _begun(folder: Path) -> bool:
    """Whether there is anything in it that another configuration must not be mixed with."""
    return (folder / "result.json").is_file() or any((folder / "checkpoints").glob("*.ckpt"))


def _prepare(folder: Path, described: dict[str, Any]) -> None:
    """Make the folder, or see that it is this very run's. Fails now rather than after an hour."""
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror or error}") from None
    if not _begun(folder):
        (folder / "metrics.jsonl").unlink(missing_ok=True)
        write_json(folder / "config.json", described)


def _check_same(folder: Path, described: dict[str, Any], usual: dict[str, Any]) -> None:
    """See that the run in this folder, of whichever seed, is of this configuration."""
    if not _begun(folder):
        return
    known = folder / "config.json"
    try:
        differing = _differing(read_json(known), described, usual)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise RunError(f"{known} is missing or damaged: remove {folder}, or choose another --name") from None
    if differing:
        raise RunError(
            f"{folder} holds a run of another configuration ({', '.join(differing)}): choose another --name, or"
            " remove it"
        )


def _read_result(folder: Path) -> dict[str, Any]:
    path = folder / "result.json"
    try:
        result: dict[str, Any] = read_json(path)
        missing = [key for key in ("experiment", "model", "config", "metric", *OWN, *ORIGIN) if key not in result]
    except (ValueError, TypeError):
        raise RunError(f"{path} is damaged: remove it, and the same command makes it again") from None
    if missing:
        raise RunError(f"{path} has no {', '.join(missing)}: remove it, and the same command makes it again")
    return result


def _differing(a: dict[str, Any], b: dict[str, Any], usual: dict[str, Any]) -> list[str]:
    """What differs between a run that is there and one that is asked for, seeds aside. The former may be of a version
    that did not have all fields yet: these had what is usual now."""
    for key in ("experiment", "model"):
        if a[key] != b[key]:
            return [f"{key} was {a[key]}, now {b[key]}"]
    return _differences({**_filled(a["config"], usual), "seed": None}, {**b["config"], "seed": None})


def _filled(values: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    """With the usual values of fields that are missing."""
    nested = {key: _filled(values[key], usual[key]) for key in usual if isinstance(values.get(key), dict)}
    return {**usual, **values, **nested}


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
    shared = {key: value for key, value in results[0].items() if key not in OWN}
    own = list(OWN)
    for key in ORIGIN:
        values = list(dict.fromkeys(one[key] for one in results))
        if len(values) > 1:
            own.append(key)
            shared[key] = "; ".join(str(value) for value in values)
    scores = {name: spread([one["test"][name] for one in results]) for name in results[0]["test"]}
    return {
        **shared,
        "config": {**shared["config"], "seed": [one["seed"] for one in results]},
        "paper": experiment.paper.get(model),
        "percent": experiment.percent,
        "test": scores,
        "seeds": [{key: one[key] for key in own} for one in results],
    }
