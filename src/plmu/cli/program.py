"""The program: plmu demo | train | evaluate | data | report | bench | completion, and those of `model_commands.py`.

Each command imports what it needs when it runs, so that `plmu --version` and `--help` answer at once.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import plmu
from plmu.cli import model_commands
from plmu.cli.arguments import Command, OneOf, Parser
from plmu.cli.bench_command import bench, bench_parser
from plmu.cli.demo import demo, demo_parser
from plmu.cli.train import main as train
from plmu.errors import CheckpointError, DataError, Diverged, RunError, how_to_install, printable, suggestion

USAGE = """usage: plmu COMMAND …

  plmu demo               fit, test, plot, stream and export a forecast of data that is included
  plmu train EXPERIMENT   train a model, test it once, write a run folder and a result
  plmu evaluate RUN       score the model of a run again, or on other data
  plmu generate RUN       print sample text of a language model as it is generated
  plmu translate RUN      translate sentences from a file or standard input, one per line
  plmu predict RUN        forecast or classify the series of a file of your own, as CSV
  plmu stream RUN         read numbers or text line by line, print a prediction after each sample
  plmu serve RUN          serve a model to many sessions over HTTP and WebSockets, with a live page
  plmu export RUN         write a model for other programs: ONNX, torch.export or C
  plmu data               list data sets: which are here, which are complete, where to get them
  plmu report             show all results as a table, a page and plots
  plmu bench KIND         measure speed on this machine: layers, algorithms, training-time, complexity or
                          streaming
  plmu completion SHELL   print a completion script for bash, zsh or fish
  plmu --version

`plmu COMMAND --help` says more; `plmu train EXPERIMENT --help` lists every option of an experiment.
--traceback also prints the Python traceback of an error."""
OWN_OPTIONS = ("--help", "--version", "--traceback")
OWN_FILES = {  # options --data.NAME of `plmu evaluate` that are files of the user's own
    "file": "file",
    "test-file": "test file",
    "labels": "table of labels",
    "source": "training sentences",
    "target": "training translations",
    "valid-source": "validation sentences",
    "valid-target": "validation translations",
    "test-source": "test sentences",
    "test-target": "test translations",
}
PIPE_CLOSED = 141  # as a shell reports a program that SIGPIPE has ended


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: run the command that `arguments` name, by default sys.argv.

    Errors that a user can fix are printed as one message, with exit status 2.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not have θ; that must not be an error
    shows_traceback = "--traceback" in argv
    argv = [word for word in argv if word != "--traceback"]
    done = False
    try:
        try:
            _run(argv)
            done = True
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a closed pipe can be caught
    except BrokenPipeError:  # what reads the output has gone, for example `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        writes_files = argv[:1] in (["train"], ["bench"]) and not {"-h", "--help"} & set(argv) and len(argv) > 1
        if writes_files and not done:  # a command that only prints has nothing else to do
            raise SystemExit(PIPE_CLOSED) from None
    except ModuleNotFoundError as error:
        missing = (error.name or "plmu").split(".")[0]
        if missing == "plmu":
            raise
        _fail(f"{missing} is missing, which the program needs: {how_to_install(missing)}", shows_traceback)
    except KeyboardInterrupt as error:
        _fail(str(error) or "stopped", shows_traceback, status=130)
    except (ValueError, DataError, RunError, Diverged, CheckpointError) as error:
        _fail(str(error), shows_traceback)
    except OSError as error:
        _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part), shows_traceback)


def _fail(message: str, shows_traceback: bool = False, status: int = 2) -> NoReturn:
    """Print a message on standard error, after the present traceback if asked, and exit."""
    if shows_traceback:
        traceback.print_exc()
    print(f"plmu: {printable(message)}", file=sys.stderr)
    raise SystemExit(status)


def _run(argv: list[str]) -> None:
    """Run the command of the first argument with the other arguments, or print help or the version."""
    if argv and argv[0] in ("--version", "version"):
        print(f"plmu {plmu.__version__}")
    elif not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE)
    elif argv[0] not in COMMANDS:
        commands = ", ".join(COMMANDS)
        hint = suggestion(argv[0], [*COMMANDS, *OWN_OPTIONS])
        _fail(f"there is no command {argv[0]!r}: the commands are {commands}{hint}")
    else:
        COMMANDS[argv[0]](argv[1:])


def _evaluate_parser() -> Parser:
    parser = Parser(
        prog="plmu evaluate",
        description="Score the model that a run saved on its test data, which must be unchanged; or, for runs of"
        " forecast and classify, on other data.",
    )
    parser.add_argument("run", type=Path, help="folder of the run, such as runs/mackey-glass-plmu-seed0")
    parser.add_argument("--data.root", type=Path, help="folder with the data sets (where the run had its data)")
    for name, what in OWN_FILES.items():
        parser.add_argument(f"--data.{name}", type=Path, help=f"your own {what} (that of the run)")
    parser.add_argument(
        "--other-data",
        action="store_true",
        help="score the model on all of --data.file, which it was not trained on (forecast and classify)",
    )
    parser.add_argument("--from", type=Path, help="folder of the run that this one started from")
    parser.add_argument("--device", default="auto", help="cpu, cuda, … (a GPU if there is one)")
    return parser


def _evaluate(options: Namespace) -> None:
    from plmu.cli.catalogue import lookup
    from plmu.runs.evaluate import evaluate
    from plmu.training.processes import processes

    paths = {name.replace("-", "_"): path for name, path in vars(options).items() if path is not None}
    run, device, other_data = (paths.pop(name) for name in ("run", "device", "other_data"))
    with processes(device) as group:
        result = evaluate(run, paths, group, lookup, other_data)
        if group.writes:
            for note in result.notes:
                print(printable(note), file=sys.stderr)
            if result.epoch is not None:
                print(f"best_epoch {result.epoch}")
            for name, value in result.scores.items():
                print(f"{printable(name)} {value:.6g}")


def _data_parser() -> Parser:
    parser = Parser(prog="plmu data", description="List data sets: which are here, and where to get them.")
    parser.add_argument("--data.root", dest="root", type=Path, help="folder with the data sets (PLMU_DATA)")
    return parser


def _data(options: Namespace) -> None:
    from plmu.data.files import DataConfig
    from plmu.experiments.data.overview import overview

    overview(DataConfig(options.root))


def _report_parser() -> Parser:
    parser = Parser(prog="plmu report", description="All results as a table and plots.")
    parser.add_argument(
        "--results",
        type=Path,
        action="append",
        help="folder of result JSON files; may be given several times. On duplicate names the first folder wins."
        " (results, then runs, those that are there)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("report"), help="folder for report.html and the plots (report)"
    )
    return parser


def _report(options: Namespace) -> None:
    from plmu.cli.report import report

    usual = [Path("results"), Path("runs")]
    folders = options.results or [folder for folder in usual if folder.is_dir()] or usual[:1]
    report(folders, options.out)


def _completion_parser() -> Parser:
    parser = Parser(
        prog="plmu completion",
        description="Print a script that completes plmu's commands, experiments and options. Save it, and source it"
        " in ~/.bashrc, or in ~/.zshrc after compinit; for fish, save it as ~/.config/fish/completions/plmu.fish.",
    )
    parser.add_argument("shell", type=OneOf("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")
    return parser


def _completion(options: Namespace) -> None:
    from plmu.cli.completion import script

    parsers = {name: command.parser() if isinstance(command, Command) else None for name, command in COMMANDS.items()}
    print(script(options.shell, parsers, OWN_OPTIONS), end="")


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "demo": Command(demo_parser, demo),
    "train": train,
    "evaluate": Command(_evaluate_parser, _evaluate),
    "generate": Command(model_commands.generate_parser, model_commands.generate),
    "translate": Command(model_commands.translate_parser, model_commands.translate),
    "predict": Command(model_commands.predict_parser, model_commands.predict),
    "stream": Command(model_commands.stream_parser, model_commands.stream),
    "serve": Command(model_commands.serve_parser, model_commands.serve),
    "export": Command(model_commands.export_parser, model_commands.export),
    "data": Command(_data_parser, _data),
    "report": Command(_report_parser, _report),
    "bench": Command(bench_parser, bench),
    "completion": Command(_completion_parser, _completion),
}

if __name__ == "__main__":
    main()
