"""`plmu predict`: what the model of a run says of a file of the user's own, as CSV."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from plmu.atomic import replacing
from plmu.experiments import EXPERIMENTS, folders
from plmu.training.errors import RunError
from plmu.training.folder import naming


def predict(run: Path, file: Path, out: Path | None = None, quiet: bool = False, future: Path | None = None) -> None:
    """Write the predictions of the run in this folder for a file to `out`, or to standard output. `future` is a file
    of covariates.

    Raises:
        RunError: the run is not finished, or is of an experiment that predicts nothing.
        DataError: the file is at fault.
    """
    experiment, config = folders.read_config(run, EXPERIMENTS)
    if not (run / "result.json").is_file():
        raise RunError(f"{run} is not finished: `plmu train` continues it")
    found = experiment.predict(run, config, file, future)
    if not quiet:
        for note in found.notes:
            print(note, file=sys.stderr)
    rows = zip(*found.columns.values(), strict=True)
    if out is None:
        csv.writer(sys.stdout, lineterminator="\n").writerows([list(found.columns), *rows])
        return
    with naming(out), replacing(out) as path, open(path, "w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([list(found.columns), *rows])
    print(f"wrote {out}", file=sys.stderr)
