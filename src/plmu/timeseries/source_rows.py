"""The rows of all series of files or of a frame, before they are put on a clock. Several processes read a part of the
files each, and then hold the rows of all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plmu.clock import Clock
from plmu.data.table_files import table_files
from plmu.errors import DataError
from plmu.timeseries.columns import Columns, find_columns
from plmu.timeseries.large_files import LargeFiles
from plmu.timeseries.long_frames import LongFrame
from plmu.timeseries.table_rows import Numbers, RawSeries, raw_series, read_future, with_future
from plmu.timeseries.tables import Table, read_table, read_tables
from plmu.training.processes import ALONE, Processes

if TYPE_CHECKING:
    from plmu.timeseries.series import SeriesConfig

_NOTES = 20  # largest number of notes on files after the first
_Notes = list[tuple[str, list[str]]]  # of each table its name and what was found


@dataclass
class SourceRows:
    """What was read."""

    columns: Columns
    series: list[RawSeries]
    notes: list[str]
    zone: int | None  # the time zone of all times, in minutes east of Greenwich
    day_first: bool | None  # whether dates are written like 31/1/2024
    config: SeriesConfig
    frame: LongFrame | None = None  # with the first row of each series


class _Packed(NamedTuple):
    """Rows of series in few arrays, for other processes."""

    names: list[str]
    counts: list[int]
    times: NDArray[Any] | None
    values: Numbers

    @classmethod
    def of(cls, series: Sequence[RawSeries]) -> _Packed | None:
        if not series:
            return None
        times = [rows.times for rows in series if rows.times is not None]
        values = np.concatenate([rows.values for rows in series])
        names, counts = [rows.name for rows in series], [len(rows.values) for rows in series]
        return cls(names, counts, np.concatenate(times) if times else None, values)

    def series(self) -> list[RawSeries]:
        ends = np.cumsum(self.counts)
        return [
            RawSeries(name, None if self.times is None else self.times[begin:end], self.values[begin:end])
            for name, begin, end in zip(self.names, ends - self.counts, ends, strict=True)
        ]


def read_rows(
    config: SeriesConfig,
    like: tuple[Columns, Clock] | None = None,
    future: Path | LongFrame | None = None,
    frame: LongFrame | None = None,
    processes: Processes = ALONE,
    block: Table | None = None,
) -> SourceRows:
    """The rows of all series; of Parquet files with more rows than `config.most_rows`, those of some series.

    Args:
        config: the file and how to read it.
        like: columns and clock of the data that a model was trained on, to read other data alike.
        future: a file or frame with the covariates of the steps after the last values.
        frame: read instead of the file, whose name stands for it in messages.
        processes: which read a part of the files each, where there are as many.
        block: read instead of the file: rows of some of its series.

    Raises:
        DataError: there is no file, or something in it is at fault.
    """
    if config.file is None:
        raise DataError("give your data as --data.file: a CSV, Parquet, NumPy, JSON or Excel file, or a folder of them")
    path = config.file
    files = table_files(path) if frame is None else []
    heads: list[Table]  # tables by which columns are found
    large = None
    if frame is not None:
        processes, heads = ALONE, [_table(frame, str(config.file), like is None or like[1].zone is None)]
    elif block is not None:
        processes, heads = ALONE, [block]
    else:
        processes = processes if len(files) >= processes.count else ALONE
        to_read = files[processes.share(len(files))]
        large = LargeFiles.of(to_read, config.most_rows, processes)
        heads = processes.agreed(lambda: _heads(to_read, config, large))
    columns = _columns(heads, config, processes) if like is None else like[0]
    if large is not None and columns.id is None and len(files) == 1:  # a single long series
        large, heads = None, read_tables(config.file, config.header)
        columns = _columns(heads, config, processes) if like is None else like[0]
    for table in heads:
        table.join_again(columns.time, columns.id)
    if like is not None:
        if columns.id is not None and not any(columns.id in table.names for table in heads):
            note = f"series: one, since there is no {columns.id!r}"
            columns = replace(columns, id=None, notes=(*columns.notes, note))
            for table in heads:
                _check_alone(table, columns.time, like[0].id, config)
        if config.day_first is None:
            config = replace(config, day_first=like[1].day_first)  # a short file may not tell
    zone = _zone(heads, columns.time, processes) if like is None else like[1].zone
    tables: Iterable[Table] = heads
    if large is not None:
        processes.agreed(lambda: large.find(heads[0], columns))
        tables = large.tables(processes)
    series, notes = processes.agreed(lambda: _series(tables, columns, config, len(files) > 1, zone))
    if processes.count > 1:
        packed = processes.gathered(_Packed.of(series))
        series = [rows for part in packed if part is not None for rows in part.series()]
        notes = [entry for part in processes.gathered(notes) for entry in part]
    if future is not None:
        ahead = read_plans(future, columns, config, zone)
        series = [with_future(rows, ahead) for rows in series]
    shown = _shown(notes, len(files), columns) if large is None else large.notes(path, heads[0], notes)
    day_first = config.day_first
    if like is None and columns.time is not None and day_first is None:
        day_first = processes.gathered(heads[0].day_first(columns.time))[0]
    frame = None if frame is None else frame.with_rows(heads[0], columns.id)
    return SourceRows(columns, series, shown, zone, day_first, config, frame)


def read_plans(
    future: Path | LongFrame, columns: Columns, config: SeriesConfig, zone: int | None
) -> dict[str, RawSeries]:
    """The rows of a file or frame with covariates of the steps ahead, as `read_future` returns them."""
    if isinstance(future, LongFrame):
        tables = [_table(future, "future", zone is None)]
    else:
        tables = read_tables(future, config.header)
    return read_future(tables, columns, config, zone)


def _heads(files: list[Path], config: SeriesConfig, large: LargeFiles | None) -> list[Table]:
    """The tables of files, or the first rows of a file that is not held."""
    return [large.head()] if large is not None else [read_table(file, config.header) for file in files]


def _columns(tables: list[Table], config: SeriesConfig, processes: Processes) -> Columns:
    """The columns of the first table of all processes."""
    of_first = processes.agreed(lambda: find_columns(tables, config) if processes.writes else None)
    columns = processes.gathered(of_first)[0]
    assert columns is not None
    return columns


def _series(
    tables: Iterable[Table], columns: Columns, config: SeriesConfig, several: bool, zone: int | None
) -> tuple[list[RawSeries], _Notes]:
    """The series of all tables, and what was found."""
    series, notes = [], []
    for table in tables:
        table.join_again(columns.time, columns.id)
        series += raw_series(table, columns, config, several, zone)
        notes.append((table.path.name, table.notes))
    return series, notes


def _shown(notes: _Notes, files: int, columns: Columns) -> list[str]:
    """Notes on tables that were read whole."""
    shown = list(dict.fromkeys(notes[0][1]))
    if files > 1:
        shown.append(f"{files} files, each a series named by its file")
    return shown + [f"{name}: {note}" for name, texts in notes[1:] for note in dict.fromkeys(texts[1:])][:_NOTES]


def _table(frame: LongFrame, name: str, days: bool) -> Table:
    """A frame as a table; `name` and `days` are as in `LongFrame.table`."""
    table = frame.table(name, days)
    if not table.rows:
        raise DataError(f"{name} has no rows of data")
    return table


def _check_alone(table: Table, time: str | None, id: str | None, config: SeriesConfig) -> None:
    """Raise for repeated times: a file without the column that names series must have a single series."""
    times = None if time is None else np.sort(table.times(time, config.day_first, config.bad))
    if times is not None and (times[1:] == times[:-1]).any():
        raise DataError(f"{table.path} has no column {id!r}, which tells series apart, and times that repeat")


def _zone(tables: Sequence[Table], time: str | None, processes: Processes) -> int | None:
    """The time zone that all files have, in minutes east of Greenwich; 0 for UTC where they differ."""
    local = {None if time is None else table.zone(time) for table in tables}
    zones = set().union(*processes.gathered(local)) - {None}
    return zones.pop() if len(zones) == 1 else 0 if zones else None
