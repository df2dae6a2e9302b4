"""Notes on series in plain English: their clock, and what was done with gaps, duplicates and columns that end early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmu.clock import DAY, Clock
from plmu.errors import DataError
from plmu.timeseries.clock import find_clock
from plmu.timeseries.columns import Columns
from plmu.timeseries.table_rows import RawSeries, rows_of

if TYPE_CHECKING:
    from plmu.timeseries.series import SeriesConfig, SeriesData


def ended(columns: Columns, raw: list[RawSeries], config: SeriesConfig) -> list[str]:
    """Notes on columns that end long before the others, whose last values are held."""
    held: Counter[str] = Counter()
    for series in raw:
        measured = ~np.isnan(series.values[:, : len(columns.values)])
        rows = rows_of(series.values[:, : len(columns.values)])
        for name, there in zip(columns.values, measured.T, strict=True):
            last = rows - int(there[:rows][::-1].argmax()) if there.any() else rows
            if rows - last > config.longest_gap and config.missing != "split":
                held[name] = max(held[name], rows - last)
    return [
        f"column {name!r} has no values in the last {count:,} rows, where its last value is held and not scored"
        for name, count in held.items()
    ]


def note_other_rate(clock: Clock, times: Sequence[NDArray[Any]], notes: list[str]) -> None:
    """Note if rows are not as far apart as those of training, which is allowed but seldom meant."""
    several = [stamps for stamps in times if len(stamps) > 2]
    if not several or clock.kind == "rows" or (several[0].dtype.kind == "f") != (clock.kind == "numbers"):
        return
    here = find_clock(several)
    usual = {"months": 30.4 * DAY, "weekdays": float(DAY)}
    ratio = here.step * usual.get(here.kind, 1.0) / (clock.step * usual.get(clock.kind, 1.0))
    if not 0.6 < ratio < 1.6:
        notes.append(f"times: rows are {here.spacing} apart, those of the model's training {clock.spacing}")


def note_clock(data: SeriesData, times: Sequence[NDArray[Any]], config: SeriesConfig) -> None:
    """Note the first and last time and the share of times off the grid; DataError where `config` forbids these."""
    clock = data.clock
    off = float(np.mean([clock.off_grid(stamps) for stamps in times])) if times else 0.0
    if off > 0:
        if config.irregular == "raise" and off > 0.001:
            raise DataError(
                f"{config.file}: {100 * off:.1f} % of the times are not on a grid of {clock.spacing}: choose"
                f" --data.irregular grid{'' if data.other else ' or rows, or give --data.step'}"
            )
        data.notes.append(f"times: {max(100 * off, 0.1):.1f} % are off the grid and moved to the nearest step")
    if data.pieces:
        first = min(data.pieces, key=lambda piece: piece.start + piece.offset)
        last = max(data.pieces, key=lambda piece: piece.start + len(piece) + piece.offset)
        ends = clock.times(np.array([first.start, last.start + len(last) - 1]), first.offset)
        data.notes.append(f"time: column {data.columns.time!r}, every {clock.spacing} from {ends[0]} to {ends[1]}")


def counted(counts: Counter[str], rows: int, config: SeriesConfig, scored: bool) -> list[str]:
    """What was done with gaps and duplicates, in words; `scored` says that errors will be measured on these rows."""
    how = config.filling
    merged = {"mean": "averaged", "sum": "added up"}.get(config.duplicates, f"the {config.duplicates} is taken")
    hint = " (--data.id names a column that tells series apart)" if scored and config.id is None else ""
    longest = 0 if config.missing == "split" else config.longest_gap
    words = {
        "merged": "times: rows on the step of another: {}; " + merged + hint,
        "incomplete": "left out: {} first or last steps of series, which rows do not cover",
        "filled": f"gaps: {{}} of {rows:,} steps lack a value; {how}" + (", and not scored" if scored else ""),
        "covariates": f"gaps: {{}} steps lack a covariate; {how}",
        "gaps": "gaps: {} steps lack a value; the series are split there",
        "split": f"gaps: {{}} of more than {longest} steps; the series are split there",
        "before": "left out: {} rows before each column has its first value",
        "empty": "left out: {} rows of series that lack a column",
    }
    return [text.format(f"{counts[name]:,}") for name, text in words.items() if counts[name]]
