"""Parquet files with more rows than are held: series that are evenly spread over them, to fit and to test on; and all
of their series in blocks, to forecast."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from plmu.data.table_files import PARQUET, table_files
from plmu.errors import in_one_line
from plmu.timeseries.columns import Columns
from plmu.timeseries.tables import Table
from plmu.timeseries.tables.parquet_series import SeriesIndex, first_rows, row_count
from plmu.timeseries.tables.table import SEPARATOR
from plmu.training.processes import ALONE, Processes

BLOCK = 2**20  # rows of series that are held at a time, beside what is kept of them
_HEAD = 2**17  # rows by which columns are found
_NOTES = 20  # largest number of notes on the rows that were read


@dataclass
class LargeFiles:
    """Files that are not held; of several processes each has some of them."""

    files: list[Path]
    rows: int  # of the files of all processes
    most_rows: int  # that are held
    indices: list[SeriesIndex] = field(default_factory=list)  # of the files of this process, once they are known
    columns: list[str] | None = None  # that are read; None for all
    series: int = 0  # of the files of all processes
    chosen: int = 0  # of these, those that are held

    @classmethod
    def of(cls, files: list[Path], most_rows: int, processes: Processes = ALONE) -> LargeFiles | None:
        """Those of all processes, if they are Parquet files and have more than so many rows; else None. 0 is no limit.

        Raises:
            DataError: one is not a Parquet file.
        """
        parquet = all(file.suffix.lower() in PARQUET for file in files)
        if not most_rows or not all(processes.gathered(parquet)):
            return None
        rows = sum(processes.gathered(processes.agreed(lambda: sum(map(row_count, files)))))
        return cls(files, rows, most_rows) if rows > most_rows else None

    def head(self) -> Table:
        """The first rows of the first file."""
        return first_rows(self.files[0], _HEAD)

    def find(self, head: Table, columns: Columns) -> None:
        """Find the series of the files of this process.

        Args:
            head: what `head` returned.
            columns: found in it.

        Raises:
            DataError: a column is not there, or a file cannot be read.
        """
        for name in columns.read:
            head.kind(name)  # raises unless there is such a column
        names = [] if columns.id is None else [columns.id]
        if columns.id is not None and columns.id not in head.stored:
            names = columns.id.split(SEPARATOR)
        if columns.time is None or columns.time in head.stored:
            read = (*names, *(() if columns.time is None else (columns.time,)), *columns.read)
            self.columns = list(dict.fromkeys(read))
        self.indices = [SeriesIndex.of(file, names) for file in self.files]

    def tables(self, processes: Processes = ALONE) -> Iterator[Table]:
        """Rows of series that are evenly spread over the files of all processes; those of this process."""
        counts = processes.gathered(sum(map(len, self.indices)))
        self.series, share = sum(counts), self.most_rows / self.rows
        self.chosen = int(self.series * share)
        return self._tables(sum(counts[: processes.rank]), share)

    def _tables(self, first: int, share: float) -> Iterator[Table]:
        for index in self.indices:
            numbers = np.arange(first, first + len(index))
            chosen = np.floor((numbers + 1) * share) > np.floor(numbers * share)
            yield from index.tables(chosen.nonzero()[0], BLOCK, self.columns)
            first += len(index)

    def blocks(self) -> Iterator[Table]:
        """All rows, in tables of whole series."""
        for index in self.indices:
            yield from index.tables(np.arange(len(index)), BLOCK, self.columns)

    def notes(self, path: Path, head: Table, table_notes: list[tuple[str, list[str]]]) -> list[str]:
        """What was read, and notes on it.

        Args:
            path: of the file or folder.
            head: what `head` returned.
            table_notes: notes on tables of rows, each with the name of its file.
        """
        files = f"{len(table_files(path)):,} files" if path.is_dir() else path.name
        notes = [
            f"{files}: {self.rows:,} rows of {self.series:,} series",
            f"large files: {self.chosen:,} series, evenly spread, are fitted and tested; all can be forecast"
            " (--data.most-rows changes it)",
        ]
        rest = [f"{name}: {note}" if path.is_dir() else note for name, texts in table_notes for note in texts]
        return [*notes, *map(in_one_line, head.notes), *[*dict.fromkeys(rest)][:_NOTES]]
