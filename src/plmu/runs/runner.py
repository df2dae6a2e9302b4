"""Running an experiment: a folder for each seed, resumed if it was cut short, and one result for all seeds."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import plmu
from plmu.errors import RunError, printable
from plmu.runs import outputs, sources
from plmu.runs.configuration import as_json, check_same, write_config
from plmu.runs.experiment import Config, Experiment, outputs_of
from plmu.runs.folder import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    LOCK_FILE,
    METRICS_FILE,
    MODEL_FILE,
    RESULT_FILE,
    adding_path,
    clear,
    has_checkpoint,
    is_finished,
    is_started,
    make,
    read_json,
    runs_of,
    write_json,
    write_text,
)
from plmu.runs.lock import locked
from plmu.runs.provenance import provenance
from plmu.runs.results import read_results, summarised, thinned
from plmu.training.checkpoints import Checkpoints, other_version
from plmu.training.loop import Outcome, Trainer
from plmu.training.processes import ALONE, Processes
from plmu.training.progress import Progress, stages_shown
from plmu.training.task import Task, check_finite

NEXT = "next: "  # how a line on what to do next begins


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
    """cpu, cuda, cuda:1, …; auto takes a GPU if there is one."""

    def __post_init__(self) -> None:
        name = self.name
        if name is not None and (not name.isprintable() or not name or name[0] == "." or set(name) & set("/\\|")):
            raise ValueError(
                f"--name must be a plain name: printable, without / \\ and |, and without a dot in front; got {name!r}"
            )


@dataclass
class Finished:
    """What `run` did."""

    summary: dict[str, Any]  # of all finished seeds, with the name of the result; empty in processes that do not write
    trained: int = 0  # number of seeds that were trained now
    next_step: str = ""  # a line on what to do next, to be printed last


def run(
    experiment: Experiment,
    model: str,
    config: Config[Any],
    options: Options,
    processes: Processes,
    words: Sequence[str],
    check_summary: Callable[[dict[str, Any]], object] = lambda summary: None,
) -> Finished:
    """Train every seed, or take its finished result, and write one summary of all finished seeds beside the runs.

    Args:
        experiment: what is trained and tested.
        model: which of its models.
        config: the configuration, with the first seed.
        options: where results go and what is printed.
        processes: this process and the others.
        words: what the user typed after `plmu`, for the result.
        check_summary: called with the summary before it is written; an error in it is one of the results.

    Raises:
        RunError: the run cannot be started, or what is in its folder does not fit.
    """
    if options.seeds < 1:
        raise RunError(f"--seeds must be at least 1, got {options.seeds}")
    seeds = [dataclasses.replace(config, seed=config.seed + i) for i in range(options.seeds)]
    experiment.check_start(model, config.start is not None)
    if config.start is not None:
        sources.checked_run(config.start, experiment.starts)
    stem = options.runs / (options.name or experiment.run_name(model, config))
    wanted = as_json(experiment, model, config)
    defaults = as_json(experiment, model, experiment.defaults(model))["config"]
    if processes.writes:
        for folder in runs_of(stem):
            check_same(folder, wanted, defaults)
            if is_started(folder):
                sources.check_files(folder, config.data)
        read_results(stem, experiment.metric, wanted, defaults)  # damage is reported before training
    processes.wait()
    finished = Finished({})
    for seeded in seeds:
        folder = stem.with_name(f"{stem.name}-seed{seeded.seed}")
        with _locked_folder(folder, processes):
            if processes.writes:
                check_same(folder, wanted, defaults)
                write_config(folder, as_json(experiment, model, seeded))
            processes.wait()
            if is_finished(folder):
                if processes.writes:
                    _show_finished(experiment, model, seeded, options, folder)
                continue
            lines = _run_seed(experiment, model, seeded, options, processes, folder, words)
            finished.trained += 1
            finished.next_step = next((line for line in lines if line.startswith(NEXT)), "")
    if not processes.writes:
        return finished
    with locked(stem.with_name(f".{stem.name}.lock"), wait=True):  # seeds may have been run side by side
        results = read_results(stem, experiment.metric, wanted, defaults)
        path = stem.with_name(f"{stem.name}.json")
        try:
            summary = summarised(experiment, experiment.published(model, config), wanted["config"], results)
            check_summary({**summary, "name": stem.name})
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise RunError(f"{path} cannot be made of these results ({type(error).__name__}: {error})") from error
        write_json(path, summary)
    finished.summary = {**summary, "name": stem.name}
    return finished


@contextmanager
def _locked_folder(folder: Path, processes: Processes) -> Iterator[None]:
    """The folder of a run for this program alone, locked by the process that writes to it."""
    if not processes.writes:
        yield
        return
    make(folder)
    with locked(folder / LOCK_FILE):
        clear(folder)
        clear(folder / CHECKPOINTS_FOLDER)
        try:
            yield
        except KeyboardInterrupt:
            after = "resumes from the last checkpoint" if has_checkpoint(folder) else "starts again"
            raise KeyboardInterrupt(f"stopped; the same command {after}") from None


def _run_seed(
    experiment: Experiment,
    model: str,
    config: Config[Any],
    options: Options,
    processes: Processes,
    folder: Path,
    words: Sequence[str],
) -> list[str]:
    """Train and test, and write the folder.

    Returns:
        Lines on what was written. All are printed, but for `next: …`.
    """
    start = time.monotonic()
    hashes = sources.own_hashes(config.data)
    quiet = options.quiet or not processes.writes
    with stages_shown(f"{experiment.name} {model}", quiet):
        task, network, fingerprint = _prepared(experiment, model, config, processes)
    if config.training.refit:
        task.notes["validation"] = "its data were trained on too, and the last epoch was taken"
    fitted = experiment.closed_form(model)  # of which some need no gradients
    parameters = sum(p.numel() for p in network.parameters() if p.requires_grad or fitted)
    log = _Log(folder, options.tensorboard) if processes.writes else None
    if processes.writes:
        _print(task.messages, options.quiet)
        if has_checkpoint(folder):
            sources.check_data(folder, fingerprint, config.data)
        sources.remember(folder, fingerprint, config, hashes)
        _write_texts(folder, experiment.companions(task))
    if experiment.closed_form(model):
        outcome = _scored(task, network, time.monotonic() - start)
        test = outcome.test
    else:
        with Progress(f"{experiment.name} {model}", config.training.epochs, quiet) as bar:
            trainer = Trainer(
                task,
                network,
                config.training,
                processes,
                config.seed,
                Checkpoints(folder / CHECKPOINTS_FOLDER),
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
        **as_json(experiment, model, config),
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
    lines: list[str] = []
    experiment.complete(config, task)
    if processes.writes and log is not None:
        log.finish(outcome.history)
        _write_model(experiment, model, network, folder)
        _write_texts(folder, experiment.outputs(task))
        with stages_shown(f"{experiment.name} {model}", quiet):
            lines = experiment.write_more(folder, config, task, network)
        write_json(folder / RESULT_FILE, result)  # last: it says that the run is finished
        _print([line for line in lines if not line.startswith(NEXT)], options.quiet)
    processes.wait()
    return [] if options.quiet else lines


def _show_finished(experiment: Experiment, model: str, config: Config[Any], options: Options, folder: Path) -> None:
    """Complete the folder of a finished run, if something is missing from it."""
    if not options.quiet:
        print(printable(f"{folder} is finished: nothing was trained, its result is shown"))
    _score_later(experiment, folder)
    if model in experiment.streamable and not (folder / MODEL_FILE).is_file():
        _write_missing_model(experiment, model, config, folder)


def _print(lines: Sequence[str], quiet: bool) -> None:
    """Print lines. A reader of the output that has gone does not end the run."""
    with suppress(OSError):
        for line in () if quiet else lines:
            print(printable(line), flush=True)


def _scored(task: Task, network: nn.Module, seconds: float) -> Outcome:
    """The scores of a model that is fitted already."""
    assert task.score is not None
    with torch.no_grad():
        valid, test = (task.score(network.eval(), split) for split in (task.valid, task.test))
    return Outcome(best_epoch=1, valid=valid, test=test, history=[], seconds=seconds)


def _prepared(
    experiment: Experiment, model: str, config: Config[Any], processes: Processes = ALONE
) -> tuple[Task, nn.Module, str]:
    """Data, the model, which is untrained unless it has a closed form, and the fingerprint of the data."""
    torch.manual_seed(config.seed)
    task = experiment.shared_task(config, processes)
    task.check()
    network = experiment.build(config, task)
    fitted = experiment.closed_form(model)  # whose weights are no data, and may differ by rounding
    frozen = [value.detach() for value in network.parameters() if not (value.requires_grad or fitted)]
    splits = (task.train, task.valid, task.test)
    return task, network, sources.fingerprint(experiment.companions(task), splits, frozen)


def _write_texts(folder: Path, contents: dict[str, str]) -> None:
    for name, content in contents.items():
        write_text(folder / name, content)


def _score_later(experiment: Experiment, folder: Path) -> None:
    """Add scores to the result of a finished run that could not be computed where it ran."""
    path = folder / RESULT_FILE
    try:
        result = experiment.scored_later(folder, read_json(path))
    except (ValueError, KeyError, TypeError, AttributeError):
        return  # a damaged result is named when results are read
    if result is not None:
        write_json(path, result)
        print(printable(f"{path}: scores were added that could not be computed where it ran"))


def _write_model(experiment: Experiment, model: str, network: nn.Module, folder: Path) -> None:
    """Write a steppable model. Experiments on people's own data write theirs in `write_more`."""
    if isinstance(network, plmu.nn.Steppable) and not experiment.own_data:
        outputs.write(folder, outputs_of(experiment, model))
        plmu.save(network.cpu(), folder / MODEL_FILE)


def _write_missing_model(experiment: Experiment, model: str, config: Config[Any], folder: Path) -> None:
    """Write the model of a finished run that has lost it, from its checkpoint."""
    best = best_model(experiment, config, folder)
    if best is None:
        advice = f"remove its {RESULT_FILE} to train again"
        print(printable(f"{folder} has no {MODEL_FILE} and no checkpoint to make it from: {advice}"))
        return
    _, task, network = best
    _write_model(experiment, model, network, folder)
    experiment.write_more(folder, config, task, network)
    how = "fitted it again" if experiment.closed_form(model) else "made it again from the checkpoint"
    print(printable(f"{folder / MODEL_FILE} was missing: {how}"))


def best_model(experiment: Experiment, config: Config[Any], folder: Path) -> tuple[int, Task, nn.Module] | None:
    """The epoch of the best model of the run in this folder, its task, and the model; None if there is none yet."""
    best = Checkpoints(folder / CHECKPOINTS_FOLDER).best()
    model = read_json(folder / CONFIG_FILE)["model"]
    if best is None and not (experiment.closed_form(model) and is_finished(folder)):  # which have no checkpoints
        return None
    task, network, fingerprint = _prepared(experiment, model, config)
    sources.check_data(folder, fingerprint, config.data)
    if best is None:
        return 1, task, network
    try:
        network.load_state_dict(best["model"])
    except RuntimeError as error:
        differ = " ".join(str(error).split())
        raise RunError(
            f"{folder}: its {CONFIG_FILE} is not of its checkpoints: {differ}{other_version(best)}"
        ) from None
    return best["epoch"], task, network


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
        self.path = folder / METRICS_FILE
        self.writer: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(folder / "tensorboard"))

    def add(self, entry: dict[str, float]) -> None:
        with adding_path(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        if self.writer is not None:
            for name, value in entry.items():
                if name != "epoch":
                    self.writer.add_scalar(name, value, int(entry["epoch"]))

    def finish(self, history: list[dict[str, float]]) -> None:
        """Write each epoch once, also those that a killed run had logged after its last checkpoint."""
        write_text(self.path, "".join(json.dumps(entry) + "\n" for entry in history))
        if self.writer is not None:
            self.writer.close()
