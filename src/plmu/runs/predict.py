"""`plmu predict`: the predictions of a run's model for a file of the user's own, as CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from plmu.errors import RunError
from plmu.modelfiles.atomic import replacing
from plmu.runs.configuration import read_config
from plmu.runs.experiment import Config, Experiment
from plmu.runs.folder import adding_path, is_finished


def predict(
    run: Path,
    file: Path,
    lookup: Callable[[str], Experiment],
    out: Path | None = None,
    quiet: bool = False,
    future: Path | None = None,
    reading: Mapping[str, Any] | None = None,
) -> None:
    """Write the predictions of the run in this folder for a file to `out`, or to standard output.

    Args:
        run: its folder.
        file: table, or folder of tables.
        lookup: returns the experiment of a name.
        out: CSV file.
        quiet: leave out the notes about the file.
        future: a file of covariates.
        reading: options for reading this file, in place of those of training.

    Raises:
        RunError: the run is not finished, is of an experiment that predicts nothing, or has no such option.
        DataError: the file is at fault.
    """
    experiment, config = read_config(run, lookup)
    if not is_finished(run):
        raise RunError(f"{run} is not finished: `plmu train` continues it")
    predictions = experiment.predict(run, _read_by(config, reading or {}, experiment.name), file, future)
    if not quiet:
        for note in predictions.notes:
            print(note, file=sys.stderr)
    rows = zip(*predictions.columns.values(), strict=True)
    if out is None:
        csv.writer(sys.stdout, lineterminator="\n").writerows([list(predictions.columns), *rows])
        return
    with adding_path(out), replacing(out) as path, open(path, "w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([list(predictions.columns), *rows])
    print(f"wrote {out}", file=sys.stderr)


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
