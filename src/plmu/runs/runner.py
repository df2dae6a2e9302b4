"""Running an experiment: a folder for each seed, resumed if it was cut short, and one result for all seeds."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import plmu
from plmu.runs import folders
from plmu.runs import outputs
from plmu.runs import sources
from plmu.runs.experiment import Config, Experiment
from plmu.cli.tables import rows
from plmu.training.checkpoints import Checkpoints, other_version
from plmu.errors import RunError
from plmu.runs.folder import clear, held, naming
from plmu.training.loop import Outcome, Trainer
from plmu.training.processes import Processes
from plmu.training.progress import Progress
from plmu.runs.results import provenance, read_json, spread, thinned, write_json
from plmu.training.task import Task, check_finite


@dataclass
class Options:
    """Where results go and what is printed."""

    runs: Path = Path("runs")
    """Folder that holds the run folders."""
    name: str | None = None
    """Name of the result (NAME.json) and of the run folders (NAME-seed0, …). Default: EXPERIMENT-MODEL."""
    seeds: int = 1
    """Number of seeds, counting up from the first."""
    quiet: bool = False
    """Print only the result."""
    tensorboard: bool = False
    """Also write TensorBoard files into the run folder."""
    device: str = "auto"
    """cpu, cuda, cuda:1, … Default: a GPU if there is one."""

    def __post_init__(self) -> None:
        name = self.name
        if name is not None and (not name.isprintable() or not name or name[0] == "." or set(name) & set("/\\|")):
            raise ValueError(
                f"--name must be a plain name: printable, without / \\ and |, and without a dot in front; got {name!r}"
            )


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
    experiment.check_start(model, config.start is not None)
    if config.start is not None:
        sources.checked_run(config.start, experiment.starts)
    stem = options.runs / (options.name or experiment.run_name(model, config))
    described = folders.described(experiment, model, config)
    usual = folders.described(experiment, model, experiment.defaults(model))["config"]
    if processes.writes:
        for folder in folders.of_name(stem):
            folders.check_same(folder, described, usual)
            if folders.begun(folder):
                sources.check_files(folder, config.data)
        folders.read_results(stem, experiment.metric, described, usual)  # what is damaged is said before training
    processes.wait()
    for one in seeds:
        folder = stem.with_name(f"{stem.name}-seed{one.seed}")
        with _held(folder, processes):
            if processes.writes:
                folders.check_same(folder, described, usual)
                folders.describe(folder, folders.described(experiment, model, one))
            processes.wait()
            _run_seed(experiment, model, one, options, processes, folder, words)
    if not processes.writes:
        return {}
    with held(stem.with_name(f".{stem.name}.lock"), wait=True):  # seeds may have been run side by side
        results = folders.read_results(stem, experiment.metric, described, usual)
        path = stem.with_name(f"{stem.name}.json")
        try:
            summary = _summary(experiment, experiment.published(model, config), described["config"], results)
            rows({**summary, "name": stem.name})  # to see that they can be made
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise RunError(f"{path} cannot be made of these results ({type(error).__name__}: {error})") from error
        write_json(path, summary)
    return {**summary, "name": stem.name}


@contextmanager
def _held(folder: Path, processes: Processes) -> Iterator[None]:
    """The folder of a run for this program alone, by the process that writes to it."""
    if not processes.writes:
        yield
        return
    folders.make(folder)
    with held(folder / ".lock"):
        clear(folder)
        clear(folder / "checkpoints")
        try:
            yield
        except KeyboardInterrupt:
            after = "resumes from the last checkpoint" if folders.has_checkpoint(folder) else "starts again"
            raise KeyboardInterrupt(f"stopped; the same command {after}") from None


def _run_seed(
    experiment: Experiment,
    model: str,
    config: Config[Any],
    options: Options,
    processes: Processes,
    folder: Path,
    words: Sequence[str],
) -> None:
    if (folder / "result.json").is_file():
        if processes.writes:
            if not options.quiet:
                print(f"{folder} is finished: nothing was trained, its result is shown")
            _score_later(experiment, folder)
            if model in experiment.streamable and not (folder / "model.plmu").is_file():
                _write_missing_model(experiment, model, config, folder)
        return
    start = time.monotonic()
    task, network, data = _prepared(experiment, config)
    if config.training.refit:
        task.notes["validation"] = "its data were trained on too, and the last epoch was taken"
    parameters = sum(p.numel() for p in network.parameters() if p.requires_grad)
    log = _Log(folder, options.tensorboard) if processes.writes else None
    if processes.writes:
        _say(task.messages, options.quiet)
        if folders.has_checkpoint(folder):
            sources.check_data(folder, data, config.data)
        sources.remember(folder, data, config)
        _write_texts(folder, experiment.companions(task))
    if experiment.closed_form(model):
        outcome = _scored(task, network, time.monotonic() - start)
        test = outcome.test
    else:
        with Progress(
            f"{experiment.name} {model}", config.training.epochs, options.quiet or not processes.writes
        ) as bar:
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
    if outcome.warning is not None:
        task.notes["training"] = outcome.warning
        if processes.writes:
            print(f"plmu: warning: {outcome.warning}", file=sys.stderr)
    wrong = [f"{name} is {value}" for name, value in test.items() if not math.isfinite(value)]
    if wrong:
        raise RunError(f"the best model's test scores are not finite: {', '.join(wrong)}")
    result = {
        **folders.described(experiment, model, config),
        "metric": task.metric,
        "best_epoch": outcome.best_epoch,
        "valid": outcome.valid,
        "test": test,
        "parameters": parameters,
        "seconds_training": outcome.seconds,
        "seconds_in_all": time.monotonic() - start,
        "processes": processes.count,
        "history": thinned(outcome.history, outcome.best_epoch),
        "notes": task.notes,
        "command": sources.command(words, config.data),
        **provenance(processes.device),
    }
    if processes.writes and log is not None:
        log.finish(outcome.history)
        _write_model(experiment, model, network, folder)
        _write_texts(folder, experiment.outputs(task))
        lines = experiment.write_more(folder, config, task, network)
        write_json(folder / "result.json", result)  # last: it says that the run is finished
        _say(lines, options.quiet)
    processes.wait()


def _say(lines: Sequence[str], quiet: bool) -> None:
    """Print lines. What reads them may have gone, which does not end the run."""
    with suppress(OSError):
        for line in () if quiet else lines:
            print(line, flush=True)


def _scored(task: Task, network: nn.Module, seconds: float) -> Outcome:
    """The scores of a model that is fitted already."""
    assert task.score is not None
    with torch.no_grad():
        scores = [task.score(network.eval(), split) for split in (task.valid, task.test)]
    return Outcome(best_epoch=1, valid=scores[0], test=scores[1], history=[], seconds=seconds)


def _prepared(experiment: Experiment, config: Config[Any]) -> tuple[Task, nn.Module, str]:
    """Data, the untrained model, and the fingerprint of the data."""
    torch.manual_seed(config.seed)
    task = experiment.task(config)
    task.check()
    network = experiment.build(config, task)
    frozen = [one.detach() for one in network.parameters() if not one.requires_grad]
    splits = (task.train, task.valid, task.test)
    return task, network, folders.fingerprint(experiment.companions(task), splits, frozen)


def _write_texts(folder: Path, contents: dict[str, str]) -> None:
    for name, content in contents.items():
        with naming(folder / name):
            (folder / name).write_text(content, encoding="utf-8")


def _score_later(experiment: Experiment, folder: Path) -> None:
    """Add scores to the result of a finished run that could not be computed where it ran."""
    path = folder / "result.json"
    try:
        more = experiment.scored_later(folder, read_json(path))
    except (ValueError, KeyError, TypeError, AttributeError):
        return  # a damaged result is named when results are read
    if more is not None:
        write_json(path, more)
        print(f"{path}: scores were added that could not be computed where it ran")


def _write_model(experiment: Experiment, model: str, network: nn.Module, folder: Path) -> None:
    if isinstance(network, plmu.nn.Steppable):
        outputs.write(folder, outputs.outputs_of(experiment, model))
        plmu.save(network.cpu(), folder / "model.plmu")


def _write_missing_model(experiment: Experiment, model: str, config: Config[Any], folder: Path) -> None:
    """For a finished run that has lost it, from its checkpoint."""
    found = best_model(experiment, config, folder)
    if found is None:
        print(f"{folder} has no model.plmu and no checkpoint to make it from: remove its result.json to train again")
        return
    _write_model(experiment, model, found[2], folder)
    experiment.write_more(folder, config, found[1], found[2])
    how = "fitted it again" if experiment.closed_form(model) else "made it again from the checkpoint"
    print(f"{folder / 'model.plmu'} was missing: {how}")


def best_model(experiment: Experiment, config: Config[Any], folder: Path) -> tuple[int, Task, nn.Module] | None:
    """The epoch of the best model of the run in this folder, its task, and the model; None if there is none yet."""
    best = Checkpoints(folder / "checkpoints").best()
    if best is None:
        return _closed_model(experiment, config, folder)
    task, network, data = _prepared(experiment, config)
    sources.check_data(folder, data, config.data)
    try:
        network.load_state_dict(best["model"])
    except RuntimeError as error:
        differ = " ".join(str(error).split())
        raise RunError(f"{folder}: its config.json is not of its checkpoints: {differ}{other_version(best)}") from None
    return best["epoch"], task, network


def _closed_model(experiment: Experiment, config: Config[Any], folder: Path) -> tuple[int, Task, nn.Module] | None:
    """Of a model that was fitted in closed form: it has no checkpoints."""
    content = read_json(folder / "config.json")
    if not experiment.closed_form(content["model"]) or not (folder / "result.json").is_file():
        return None
    task, network, data = _prepared(experiment, config)
    sources.check_data(folder, data, config.data)
    return 1, task, network


def more_scores(experiment: Experiment, config: Config[Any], trainer: Trainer) -> dict[str, float]:
    """The scores of the experiment's further test sets."""
    scores = {}
    for name, data in experiment.more_tests(config).items():
        check_finite(name, data)
        scores[name] = trainer.evaluate(tuple(t.to(trainer.device) for t in data))[experiment.metric]
    return scores


class _Log:
    """Metrics as JSON lines, and for TensorBoard if asked."""

    def __init__(self, folder: Path, tensorboard: bool) -> None:
        self.path = folder / "metrics.jsonl"
        self.writer: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(folder / "tensorboard"))

    def add(self, entry: dict[str, float]) -> None:
        with naming(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        if self.writer is not None:
            for name, value in entry.items():
                if name != "epoch":
                    self.writer.add_scalar(name, value, int(entry["epoch"]))

    def finish(self, history: list[dict[str, float]]) -> None:
        """Each epoch once, also those that a killed run had logged after its last checkpoint."""
        with naming(self.path), open(self.path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in history)
        if self.writer is not None:
            self.writer.close()


def _summary(
    experiment: Experiment, paper: float | None, config: dict[str, Any], results: list[dict[str, Any]]
) -> dict[str, Any]:
    """One result for all seeds: what they share once, what differs for each, mean and spread of each test score."""
    shared = {key: value for key, value in results[0].items() if key not in (*folders.OWN, "history")}
    own = list(folders.OWN)
    for key in folders.ORIGIN:
        values = list(dict.fromkeys(one[key] for one in results))
        if len(values) > 1:
            own.append(key)
            shared[key] = "; ".join(str(value) for value in values)
    shared["notes"] = _shared_notes(results)
    scores = {name: spread([one["test"][name] for one in results]) for name in results[0]["test"]}
    return {
        **shared,
        "config": {**config, "seed": [one["seed"] for one in results]},
        "paper": paper,
        "percent": experiment.percent,
        "test": scores,
        "seeds": [{key: one[key] for key in (*own, "history") if key in one} for one in results],
    }


def _shared_notes(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The notes of all seeds; one that is not the same for all says of which seeds it is."""
    notes: dict[str, Any] = {}
    for key in dict.fromkeys(key for one in results for key in one["notes"]):
        held = [(one["seed"], one["notes"][key]) for one in results if key in one["notes"]]
        same = len(held) == len(results) and all(value == held[0][1] for _, value in held)
        notes[key] = held[0][1] if same else "; ".join(f"seed {seed}: {value}" for seed, value in held)
    return notes
