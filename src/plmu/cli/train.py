"""The command `plmu train`: splits its arguments into experiment, file, --model and the options for `cli.options`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from plmu.cli.catalogue import CATALOGUE, OWN_DATA, PAPER, lookup
from plmu.errors import RunError, printable, suggestion

if TYPE_CHECKING:
    from plmu.runs.experiment import Experiment

RENAMED_OPTIONS = {"--model.strength": "--model.alpha"}


def main(argv: list[str]) -> None:
    """Train an experiment, or print the list of experiments. `argv` is what follows `plmu train`."""
    if not argv or argv[0] in ("-h", "--help"):
        print(listing())
        return
    name, *rest = argv
    if name not in CATALOGUE:
        names = ", ".join(CATALOGUE)
        raise RunError(f"there is no experiment {name!r}: the experiments are {names}{suggestion(name, CATALOGUE)}")
    if name in OWN_DATA and not rest:
        raise RunError(without_file(name))
    rest = with_option(name, [_renamed(word) for word in rest])
    experiment = lookup(name)
    model, options = chosen_model(experiment, rest)

    from plmu.cli.options import parse

    config, run_options = parse(experiment, model, options)
    if name in OWN_DATA and getattr(config.data, "file", None) is None:
        raise RunError(without_file(name))

    from plmu.cli.report import own_data_table, summary_table
    from plmu.cli.tables import rows
    from plmu.runs.runner import run
    from plmu.training.processes import processes

    with processes(run_options.device) as group:
        finished = run(experiment, model, config, run_options, group, ["train", name, *rest], rows)
        if group.writes:
            if not experiment.own_data:
                summary_table([finished.summary])
            elif run_options.quiet or finished.trained != 1 or len(finished.summary["seeds"]) > 1:
                own_data_table(finished.summary)
            if finished.next_step:
                print(printable(finished.next_step))


def listing() -> str:
    """All experiments with a sentence on each, own data first."""
    return "\n".join(
        [
            "usage: plmu train EXPERIMENT [--model NAME] [options]",
            "       plmu train forecast my.csv",
            "",
            "data of your own:",
            *(f"  {name:<14}{entry.about}" for name, entry in OWN_DATA.items()),
            "",
            "the paper's experiments:",
            *(f"  {name:<14}{entry.about}" for name, entry in PAPER.items()),
            "",
            "`plmu train EXPERIMENT --help` lists its models and options. The same command",
            "resumes an interrupted run. `plmu demo` forecasts data that is included.",
        ]
    )


def without_file(name: str) -> str:
    """The message for a missing file: what the file must be and how to give it."""
    return (
        f"{name} needs a file of your own: {OWN_DATA[name].file}. Give it as\n\n    plmu train {name} my.csv\n\n"
        f"`plmu train {name} --help` lists the options; `plmu demo` shows a forecast of data that is included."
    )


def with_option(name: str, argv: list[str]) -> list[str]:
    """The arguments after the experiment, with a file that comes first turned into the option --data.file.

    Raises:
        RunError: the experiment takes no file, the file is not there, or it is given twice.
    """
    if not argv or argv[0].startswith("-"):
        return argv
    file, *rest = argv
    if name not in (*OWN_DATA, "text8"):
        raise RunError(f"{name} takes no file, got {file!r}: `plmu train {name} --help` lists its options")
    if not Path(file).exists():
        raise RunError(f"there is no file or folder {file!r}: plmu train {name} FILE trains on a file of your own")
    if any(word.partition("=")[0] == "--data.file" for word in rest):
        raise RunError(f"the file is given twice, as {file} and --data.file: leave one of them out")
    return ["--data.file", file, *rest]


def _renamed(word: str) -> str:
    """An argument, with an option of version 0.1 replaced by its new name after a warning."""
    option, equals, value = word.partition("=")
    if option not in RENAMED_OPTIONS:
        return word
    new = RENAMED_OPTIONS[option]
    print(f"plmu: warning: {option} is now called {new}; the old name goes with the next version", file=sys.stderr)
    return new + equals + value


def chosen_model(experiment: Experiment, argv: list[str]) -> tuple[str, list[str]]:
    """Split the arguments into the value of `--model`, or the default, and the rest, whose options depend on the model.

    Raises:
        RunError: --model has no value.
        ValueError: there is no such model, or it cannot start with, or without, --from.
    """
    options = [word.partition("=")[0] for word in argv]
    started = "--from" in options
    model, rest = experiment.default_model(started), argv
    if "--model" in options:
        i = options.index("--model")
        after = argv[i + 1 : i + 2] if argv[i] == "--model" else [argv[i].removeprefix("--model=")]
        if not after:
            raise RunError(f"--model needs a name: {', '.join(experiment.models)}")
        model, rest = experiment.check(after[0]), argv[:i] + argv[i + (2 if argv[i] == "--model" else 1) :]
    if not {"-h", "--help"} & set(argv):
        experiment.check_start(model, started)
    return model, rest
