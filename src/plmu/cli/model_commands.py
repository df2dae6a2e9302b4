"""Commands that run a trained model: plmu generate | translate | predict | stream | serve | export.

As in `plmu.cli.program`, each imports what it needs when it runs.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from plmu.cli.arguments import OneOf, Parser
from plmu.errors import printable
from plmu.runs.folder import WHOLE_MODEL_FILE

if TYPE_CHECKING:
    from plmu.runs.deployed import Learning


def generate_parser() -> Parser:
    parser = Parser(
        prog="plmu generate",
        description="Print the prompt and the text that a language model continues it with, as it is sampled."
        " How fast that was goes to standard error.",
    )
    parser.add_argument(
        "run", type=Path, help="folder of a finished run of a language model (text8, reviews), or its model.plmu"
    )
    parser.add_argument("--prompt", help="text to begin with (a new text: a line break, space or separator)")
    parser.add_argument("--length", type=int, default=500, help="number of tokens to sample, characters or argv (500)")
    parser.add_argument(
        "--temperature", type=float, default=1.0, help="below 1 more likely, above 1 more varied; 0 is greedy (1)"
    )
    parser.add_argument("--top-k", type=int, help="sample from the k most likely tokens alone (all)")
    parser.add_argument(
        "--top-p", type=float, help="sample from the fewest tokens that have this probability together (all)"
    )
    parser.add_argument("--seed", type=int, help="seed, which makes the text repeatable (a new text each time)")
    parser.add_argument("--stop", help="end when the sampled text contains this, which is printed too")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; a small model is fastest with one (1)")
    return parser


def generate(options: Namespace) -> None:
    sampling = vars(options)
    with _threads(sampling.pop("threads")), suppress(KeyboardInterrupt):
        from plmu.runs.generate import show

        show(sampling.pop("run"), **sampling)


def translate_parser() -> Parser:
    parser = Parser(
        prog="plmu translate",
        description="Translate sentences, one a line, and print as many lines."
        " How fast that was goes to standard error.",
    )
    parser.add_argument("run", type=Path, help="folder of a run of iwslt")
    parser.add_argument("file", type=Path, nargs="?", help="sentences, one a line in UTF-8 (standard input)")
    parser.add_argument("--beam", type=int, help="hypotheses of the beam search; 1 is greedy (that of the run)")
    parser.add_argument(
        "--length-penalty", type=float, help="scores are divided by the length to this power (that of the run)"
    )
    parser.add_argument(
        "--copy-unknown", action="store_true", help="replace <unk> by the source word with the highest attention"
    )
    parser.add_argument("--scores", action="store_true", help="print the score and a tab before each translation")
    parser.add_argument("--attention", type=Path, help="draw the attention of the first sentence into this PNG file")
    parser.add_argument("--batch", type=int, default=32, help="sentences translated together (32; 1 at a terminal)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, … (a GPU if there is one)")
    return parser


def translate(options: Namespace) -> None:
    from plmu.experiments.translation.translator import Options, show
    from plmu.training.processes import processes

    run, file, device = (vars(options).pop(name) for name in ("run", "file", "device"))
    translating = Options(**vars(options))
    with processes(device) as group, suppress(KeyboardInterrupt):
        show(run, file, translating, str(group.device))


def predict_parser() -> Parser:
    parser = Parser(
        prog="plmu predict",
        description="Print what a model predicts for the series in a file of your own, as CSV: the steps after the last"
        " row of each series with their times and intervals, or the class of each series with its probabilities."
        " Notes about the file go to standard error.",
    )
    parser.add_argument("run", type=Path, help="folder of a finished run of forecast or classify")
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        help="CSV, Parquet, NumPy, JSON or Excel file, or a folder of them, with the columns of the run's file",
    )
    parser.add_argument("--data.file", type=Path, help="the same file, as an option")
    parser.add_argument(
        "--data.future",
        type=Path,
        help="file with the covariates after the last row (rows at the end of the file without values)",
    )
    for name, choices, text in (
        ("bad", ("raise", "missing"), "text in a column of numbers: raise, or take it as missing"),
        ("missing", ("hold", "linear", "split", "raise"), "gaps: hold, linear, split or raise"),
        ("irregular", ("grid", "raise"), "times off the grid: grid or raise"),
        (
            "duplicates",
            ("mean", "sum", "first", "last", "raise"),
            "rows with the same time or step: mean, sum, first, last or raise",
        ),
    ):
        parser.add_argument(f"--data.{name}", type=OneOf(*choices), help=f"{text} (as in training)")
    parser.add_argument(
        "--data.absent", type=float, nargs="+", help="numbers that stand for a missing value (as in training)"
    )
    parser.add_argument("--data.longest-gap", type=int, help="steps; at longer gaps a series is split (as in training)")
    for name, yes, no in (
        ("day-first", "2/1/2024 is the second of January (as in training)", "2/1/2024 is the first of February"),
        ("header", "the first line of a CSV file names the columns (detected)", "the file has no header"),
    ):
        field = f"data.{name}".replace("-", "_")
        parser.add_argument(f"--data.{name}", dest=field, action="store_true", default=None, help=yes)
        parser.add_argument(f"--data.no-{name}", dest=field, action="store_false", default=None, help=no)
    parser.add_argument("--horizon", type=int, help="steps ahead, at most those of the run (all of them)")
    parser.add_argument("--out", type=Path, help="file to write: .csv, .parquet or .json (CSV on standard output)")
    parser.add_argument(
        "--plot", type=Path, help="draw the last rows, forecasts and intervals of up to 6 series: .png, .pdf or .svg"
    )
    parser.add_argument("--quiet", action="store_true", help="leave out the notes about the file")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    return parser


def predict(options: Namespace) -> None:
    fields = {name.removeprefix("data."): value for name, value in vars(options).items() if name.startswith("data.")}
    reading = {name: value for name, value in fields.items() if value is not None}
    option_file, future = reading.pop("file", None), reading.pop("future", None)
    if (options.file is None) == (option_file is None):
        problem = "a file is missing" if options.file is None else "the file is given twice"
        raise ValueError(f"{problem}: plmu predict RUN my.csv")
    with _threads(options.threads):
        from plmu.cli.catalogue import lookup
        from plmu.runs.predict import predict as run_model

        file = options.file or option_file
        run_model(options.run, file, lookup, options.out, options.quiet, future, reading, options.horizon, options.plot)


def stream_parser() -> Parser:
    missing, faults = OneOf("raise", "hold", "zero"), OneOf("skip", "stop")
    parser = Parser(
        prog="plmu stream",
        description="Read samples line by line and print a prediction after each, as soon as it is known. A line is"
        " numbers with commas between them (a line of names may come first), JSON, or text for a model of text. Printed"
        " are numbers with commas between them; or, under a line of names, the time of a sample and the forecast; or a"
        " class and its probability; or each word with the sentiment so far,"
        " from 0 (negative) to 1 (positive); or each token with the probability that a language model gave it."
        " An empty line starts another sequence. Where a column names series, each has a state of its own, lines of"
        " several may be mixed, and what is printed begins with the name.",
    )
    parser.add_argument("run", type=Path, help="folder of a finished run, or its model.plmu")
    parser.add_argument("--input", type=Path, help="file to read (standard input)")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument(
        "--missing",
        type=missing,
        help="what an empty field or NaN does: raise, hold or zero (what the model does)",
    )
    parser.add_argument(
        "--time",
        help="time of the first sample of a forecast, where lines have none (the step after the training data)",
    )
    parser.add_argument("--state", type=Path, help="file to continue from, if it is there, and to save the state to")
    _add_learning(parser)
    parser.add_argument(
        "--on-error", type=faults, default="stop", help="whether to skip a bad line or to stop there (stop)"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; a small model is fastest with one (1)")
    return parser


def stream(options: Namespace) -> None:
    with _threads(options.threads), suppress(KeyboardInterrupt):
        from plmu.cli.stream_lines import Options, show

        learning = _learning(options)
        streaming = Options(options.missing, options.state, options.on_error, options.json, options.time, learning)
        _note_other_model(options.run)
        if options.input is not None:
            with open(options.input, encoding="utf-8", errors="surrogateescape") as lines:
                show(options.run, lines, streaming)
            return
        if sys.stdin is None:
            raise ValueError("standard input is closed: --input names a file")
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
        show(options.run, sys.stdin, streaming)


def _add_learning(parser: Parser) -> None:
    parser.add_argument(
        "--learn",
        action="store_true",
        help="of a forecast: learn from each sample, whose forecasts came before it; the intervals adapt (it does not)",
    )
    parser.add_argument(
        "--half-life",
        help="with --learn: age at which what was learned counts half, in steps, or such as 7d (8,000 steps)",
    )


def _learning(options: Namespace) -> Learning | None:
    """How a forecast learns; None if it does not."""
    from plmu.runs.deployed import Learning

    if options.half_life is not None and not options.learn:
        raise ValueError(f"--half-life {options.half_life} is for --learn")
    try:
        half_life = None if options.half_life is None else float(options.half_life)
    except ValueError:  # a length of time
        half_life = options.half_life
    return Learning(half_life) if options.learn else None


def _note_other_model(run: Path) -> None:
    """Note on standard error that `plmu predict` has a better model than the streaming one."""
    if run.is_dir() and (run / WHOLE_MODEL_FILE).is_file():
        print(
            "this is the model for samples as they come: `plmu predict` has another, which normalises whole series, and"
            " may give other classes",
            file=sys.stderr,
        )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Use `count` CPU threads in torch."""
    if count < 1:
        raise ValueError(f"--threads must be at least 1, got {count}")

    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def serve_parser() -> Parser:
    parser = Parser(
        prog="plmu serve",
        description="Serve a trained model over HTTP and WebSockets until Ctrl-C. Each connection to /ws is a session"
        " with a state of its own; all sessions are stepped together. / is a live page, /openapi.json lists the"
        " addresses, /metrics is for Prometheus.",
    )
    parser.add_argument("run", type=Path, help="folder of a finished run, or its model.plmu")
    parser.add_argument("--port", type=int, default=8000, help="port; 0 for any that is free (8000)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1: this machine alone)")
    parser.add_argument("--token-file", type=Path, help="file with the secret of server and clients (PLMU_TOKEN)")
    parser.add_argument("--token", help="that secret itself, which others on this machine can see")
    parser.add_argument("--allow-host", action="append", help="name by which clients call it, as behind a proxy")
    parser.add_argument("--allow-origin", action="append", help="other site whose pages may use it; * for all")
    parser.add_argument("--root-path", default="", help="path below which a proxy has it, such as /plmu")
    parser.add_argument("--states", type=Path, help="folder in which states survive a restart, and a kill")
    parser.add_argument(
        "--fsync", action="store_true", help="flush samples to the disk before they are answered (once a second)"
    )
    parser.add_argument(
        "--recover", action="store_true", help="go on from what can be read of damaged states (they are refused)"
    )
    parser.add_argument("--sessions", type=int, default=1000, help="sessions at once, at most (1000)")
    parser.add_argument("--idle", type=float, default=300.0, help="seconds after which an idle session ends (300)")
    parser.add_argument("--rate", type=float, default=1000.0, help="samples of a session a second, at most (1000)")
    parser.add_argument("--message-bytes", type=int, default=65_536, help="bytes of a message, at most (65536)")
    parser.add_argument("--samples", type=int, default=1000, help="samples of a message, at most (1000)")
    parser.add_argument("--connections", type=int, help="connections at once, at most (2 a session and 100)")
    parser.add_argument("--address-connections", type=int, default=200, help="of these from another machine (200)")
    parser.add_argument("--missing", type=OneOf("raise", "hold", "zero"), help="what null in a sample does (an error)")
    _add_learning(parser)
    parser.add_argument("--width", type=int, help="sessions of a batch (16 to 256, by the size of the model)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; a small model is fastest with one (1)")
    return parser


def serve(options: Namespace) -> None:
    with _threads(options.threads):
        from plmu.serve import Options
        from plmu.serve import serve as run_server
        from plmu.serve.limits import Limits

        limits = Limits(
            options.sessions,
            options.message_bytes,
            options.samples,
            options.rate,
            options.idle,
            options.connections,
            options.address_connections,
        )
        serving = Options(
            options.host,
            options.port,
            _token(options),
            options.states,
            options.missing,
            options.width,
            limits=limits,
            fsync=options.fsync,
            recover=options.recover,
            hosts=options.allow_host or (),
            origins=options.allow_origin or (),
            root=options.root_path,
            learning=_learning(options),
        )
        _note_other_model(options.run)
        run_server(options.run, serving, lambda address: print(f"plmu serves {options.run} at {address}", flush=True))


def _token(options: Namespace) -> str | None:
    """The token of a server: of a file, of the command line, or of the environment."""
    if options.token_file is not None and options.token is not None:
        raise ValueError("give --token-file or --token, not both")
    if options.token is not None:
        where = "in the list of processes"
        print(f"plmu: others on this machine can see --token {where}: use --token-file or PLMU_TOKEN", file=sys.stderr)
    if options.token_file is None:
        return options.token or os.environ.get("PLMU_TOKEN") or None
    try:
        token: str = options.token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--token-file {options.token_file} cannot be read: {error}") from None
    if not token:
        raise ValueError(f"--token-file {options.token_file} is empty")
    return token


def export_parser() -> Parser:
    parser = Parser(
        prog="plmu export",
        description="Write the model of a run as files that run without plmu: the model of one step, with its states as"
        " explicit inputs and outputs. Prints sizes, multiply-adds per step and the measured time of a step.",
    )
    parser.add_argument("run", type=Path, help="folder of a finished run, or its model.plmu")
    parser.add_argument("--to", type=OneOf("onnx", "torch", "c"), default="onnx", help="onnx, torch or c (onnx)")
    parser.add_argument("--out", type=Path, default=Path("export"), help="folder to write to (export)")
    parser.add_argument("--name", default="model", help="name of the files, and of the functions in C (model)")
    parser.add_argument("--whole", action="store_true", help="also a model of whole sequences; torch has it anyway")
    parser.add_argument("--int8", action="store_true", help="round weights to int8, for onnx and c; prints the error")
    parser.add_argument("--fixed-point", action="store_true", help="C with --int8: sum integers; prints the error")
    parser.add_argument("--units", help="units of the samples, for the metadata")
    parser.add_argument("--dt", type=float, help="time between samples, for the metadata")
    return parser


def export(options: Namespace) -> None:
    from plmu.exports import AccuracyWarning
    from plmu.runs.export_run import export_run

    exporting = vars(options)
    run, out, to = (exporting.pop(name) for name in ("run", "out", "to"))
    metadata = {name: value for name in ("units", "dt") if (value := exporting.pop(name)) is not None}
    _note_other_model(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)  # the report has it
        print(printable(str(export_run(run, out, to, metadata, measure=True, **exporting))))
