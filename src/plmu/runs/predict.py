"""`plmu predict`: the predictions of a run's model for a file of the user's own, as CSV, Parquet or JSON."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
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
    if not quiet:
        for note in predictions.notes:
            print(printable(note), file=sys.stderr)
    if plot is not None and predictions.draw is not None:
        for note in (*predictions.draw(plot), f"wrote {plot}"):
            print(printable(note), file=sys.stderr)
    if out is None:
        _write_csv(predictions, sys.stdout, printable)
        return
    with adding_path(out), replacing(out) as path:
        if out.suffix.lower() == ".parquet":
            import polars as pl

            pl.DataFrame(_with_numbers(predictions)).write_parquet(path)
        else:
            with open(path, "w", encoding="utf-8", newline="") as stream:
                (_write_json if out.suffix.lower() == ".json" else _write_csv)(predictions, stream)
    print(printable(f"wrote {out}"), file=sys.stderr)


def _write_csv(predictions: Predictions, stream: IO[str], shown: Callable[[str], str] = str) -> None:
    """Write CSV whose cells of text go through `shown`, and hold nothing that a spreadsheet would compute."""
    columns = [
        column if name in predictions.numbers else [shown(without_formula(str(cell))) for cell in column]
        for name, column in predictions.columns.items()
    ]
    names = [shown(without_formula(name)) for name in predictions.columns]
    csv.writer(stream, lineterminator="\n").writerows([names, *zip(*columns, strict=True)])


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
    columns = _with_numbers(predictions)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    stream.write(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def _with_numbers(predictions: Predictions) -> dict[str, list[Any]]:
    """The columns, with numbers instead of their text."""
    return {
        name: [float(str(cell)) for cell in column] if name in predictions.numbers else list(column)
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
