"""`plmu predict`: the predictions of a run's model for a file of the user's own, as CSV, Parquet or JSON."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Literal, get_args, get_origin, get_type_hints

from plmu.errors import RunError, printable
from plmu.modelfiles.atomic import replacing
from plmu.runs.configuration import read_config
from plmu.runs.experiment import Config, Experiment, Predictions
from plmu.runs.folder import adding_path, is_finished

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how text begins that spreadsheets compute
ENDINGS = (".csv", ".parquet", ".json")
PICTURES = (".png", ".pdf", ".svg")


def predict(
    run: Path,
    file: Path,
    lookup: Callable[[str], Experiment],
    out: Path | None = None,
    quiet: bool = False,
    future: Path | None = None,
    reading: Mapping[str, Any] | None = None,
    horizon: int | None = None,
    plot: Path | None = None,
) -> None:
    """Write the predictions of the run in this folder for a file to `out`, or to standard output.

    Args:
        run: its folder.
        file: table, or folder of tables.
        lookup: returns the experiment of a name.
        out: CSV, Parquet or JSON file, by its ending; CSV without one.
        quiet: leave out the notes about the file.
        future: a file of covariates.
        reading: options for reading this file, in place of those of training.
        horizon: steps ahead of a forecast, at most those that the model forecasts, which is the default.
        plot: PNG, PDF or SVG file with a picture of the forecasts.

    Raises:
        RunError: the run is not finished, is of an experiment that predicts nothing, or has no such option; or `out`
            or `plot` has another ending.
        DataError: the file is at fault.
    """
    if out is not None and out.suffix.lower() not in ("", *ENDINGS):
        raise RunError(f"--out {out} ends in {out.suffix}: predictions are written as {', '.join(ENDINGS)}")
    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise RunError(f"--plot {plot} does not end in {', '.join(PICTURES)}: a picture is written as one of these")
    experiment, config = read_config(run, lookup)
    if not is_finished(run):
        raise RunError(f"{run} is not finished: `plmu train` continues it")
    steps = {} if horizon is None else {"horizon": horizon}
    predictions = experiment.predict(run, _read_by(config, reading or {}, experiment.name), file, future, **steps)
    if plot is not None and predictions.draw is None:
        raise RunError(f"--plot is for forecasts, and {run} is a run of {experiment.name}")
    printed = 0 if quiet else _tell(predictions.notes)
    if plot is not None and predictions.draw is not None:
        _tell((*predictions.draw(plot), f"wrote {plot}"))
    if out is None:
        _write_csv(predictions, sys.stdout, printable)
    else:
        with adding_path(out), replacing(out) as path:
            if out.suffix.lower() == ".parquet":
                _write_parquet(predictions, path)
            else:
                with open(path, "w", encoding="utf-8", newline="") as stream:
                    (_write_json if out.suffix.lower() == ".json" else _write_csv)(predictions, stream)
    if not quiet:
        _tell(predictions.notes[printed:])
    if out is not None:
        _tell([f"wrote {out}"])


def _tell(notes: Sequence[str]) -> int:
    """Print notes on the error stream.

    Returns:
        Their number.
    """
    for note in notes:
        print(printable(note), file=sys.stderr)
    return len(notes)


def _parts(predictions: Predictions) -> Iterator[Predictions]:
    """The rows in parts, each of which is held alone."""
    following = predictions.following
    yield predictions
    for columns in following:
        yield replace(predictions, columns=dict(columns), following=())


def _write_csv(predictions: Predictions, stream: IO[str], shown: Callable[[str], str] = str) -> None:
    """Write CSV whose cells of text go through `shown`, and hold nothing that a spreadsheet would compute."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([shown(without_formula(name)) for name in predictions.columns])
    for part in _parts(predictions):
        columns = [
            column if name in part.numbers else [shown(without_formula(str(cell))) for cell in column]
            for name, column in part.columns.items()
        ]
        writer.writerows(zip(*columns, strict=True))


def without_formula(cell: str) -> str:
    """Text of a cell, with ' before it if a spreadsheet would take it for a formula. Numbers stay as they are."""
    if not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _write_json(predictions: Predictions, stream: IO[str]) -> None:
    """A list with an object for each row."""
    before = "["
    for part in _parts(predictions):
        columns = _with_numbers(part)
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        text = json.dumps(rows, indent=1, ensure_ascii=False)
        stream.write(before + text.removeprefix("[").removesuffix("]").removesuffix("\n"))
        before = ","
    stream.write("\n]\n")


def _write_parquet(predictions: Predictions, path: Path) -> None:
    """Parts go to files of their own, which are joined in the end."""
    import polars as pl

    with TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent) as folder:
        files: list[Path] = []
        for part in _parts(predictions):
            files.append(Path(folder) / f"{len(files)}.parquet")
            pl.DataFrame(_with_numbers(part)).write_parquet(files[-1])
        pl.scan_parquet(files, glob=False).sink_parquet(path)


def _with_numbers(predictions: Predictions) -> dict[str, list[Any]]:
    """The columns, with numbers instead of their text."""
    return {
        name: [None if cell is None else float(str(cell)) for cell in column]
        if name in predictions.numbers
        else list(column)
        for name, column in predictions.columns.items()
    }


def _read_by(config: Config[Any], reading: Mapping[str, Any], experiment: str) -> Config[Any]:
    """The configuration of a run with other options for reading its data."""
    kinds = get_type_hints(type(config.data))
    for name, value in reading.items():
        option = f"--data.{name.replace('_', '-')}"
        if name not in kinds:
            raise RunError(f"{option} is not for runs of {experiment}")
        if get_origin(kinds[name]) is Literal and value not in get_args(kinds[name]):
            raise RunError(
                f"{option} must be one of {', '.join(get_args(kinds[name]))} for {experiment}, got {value!r}"
            )
    try:
        return replace(config, data=replace(config.data, **reading))
    except ValueError as error:
        raise RunError(f"--{str(error).replace('_', '-')}") from None
