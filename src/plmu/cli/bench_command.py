"""The command `plmu bench`."""

from __future__ import annotations

from pathlib import Path

from plmu.cli.arguments import OneOf, Parser

KINDS = ("layers", "algorithms", "training-time", "complexity", "streaming")


def parser() -> Parser:
    made = Parser(
        prog="plmu bench",
        description="Measure speed on this machine, after checking the answers: a table, a JSON file and a figure.",
    )
    made.add_argument("kind", type=OneOf(*KINDS), metavar="KIND", help=f"what to measure: {', '.join(KINDS)}")
    made.add_argument("--device", default=None, help="cpu or cuda (a GPU if there is one)")
    made.add_argument("--rounds", type=int, default=9, help="number of times that each candidate is timed (9)")
    made.add_argument("--out", type=Path, default=Path("bench"), help="folder for the JSON file and the figure (bench)")
    return made


def main(words: list[str]) -> None:
    options = parser().parse_args(words)
    if options.rounds < 1:
        parser().error(f"--rounds must be at least 1, got {options.rounds}")

    import torch

    from plmu.bench.run import run

    gpu = torch.cuda.is_available()
    device = options.device or ("cuda" if gpu and options.kind != "streaming" else "cpu")
    if device != "cpu" and not gpu:
        parser().error(f"--device {device}: there is no GPU here")
    run(options.kind, device, options.rounds, options.out)
