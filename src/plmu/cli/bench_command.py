"""The command `plmu bench`."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from plmu.cli.arguments import OneOf, Parser

KINDS = ("layers", "algorithms", "training-time", "complexity", "streaming")


def bench_parser() -> Parser:
    parser = Parser(
        prog="plmu bench",
        description="Measure speed on this machine, after checking the answers: a table, a JSON file and a figure.",
    )
    parser.add_argument("kind", type=OneOf(*KINDS), metavar="KIND", help=f"what to measure: {', '.join(KINDS)}")
    parser.add_argument("--device", help="cpu or cuda (a GPU if there is one)")
    parser.add_argument("--rounds", type=int, default=9, help="number of times that each candidate is timed (9)")
    parser.add_argument("--out", type=Path, default=Path("bench"), help="folder for the JSON file and figure (bench)")
    return parser


def bench(options: Namespace) -> None:
    if options.rounds < 1:
        bench_parser().error(f"--rounds must be at least 1, got {options.rounds}")

    import torch

    from plmu.bench.run import run

    gpu = torch.cuda.is_available()
    device = options.device or ("cuda" if gpu and options.kind != "streaming" else "cpu")
    if device != "cpu" and not gpu:
        bench_parser().error(f"--device {device}: there is no GPU here")
    run(options.kind, device, options.rounds, options.out)
