"""CSV files, also packed ones, and the text of spreadsheets, as tables: polars reads them in the detected layout."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from plmu.data.reading import opened
from plmu.errors import DataError
from plmu.timeseries.tables.cells import MISSING, all_numbers, as_numbers, count_values, present
from plmu.timeseries.tables.layout import Layout, find_layout
from plmu.timeseries.tables.limits import CELL, check, largest
from plmu.timeseries.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

_MARKS = sorted({form for mark in MISSING for form in (mark, mark.upper(), mark.capitalize())} | {"NaN"})
_FOOTER = re.compile(
    r"(grand |sub)?totals?|sum|average|mean|summe|gesamt|mittelwert|somme|moyenne|source:.*|notes?:.*", re.IGNORECASE
)
_FOOTERS = 10  # lines at the end, at most
_HEAD = 200  # cells by which the kind of a column is known
Opener = Callable[[], AbstractContextManager[IO[bytes]]]


def from_csv(path: Path, unpacked: bytes | None, header: bool | None) -> Table:
    """The table of a CSV file, without empty lines and without columns that have neither a name nor a value.

    Args:
        path: the file.
        unpacked: its bytes, where the file is packed or a spreadsheet.
        header: whether its first line names the columns.
    """
    import polars as pl

    open_file: Opener = partial(opened, path) if unpacked is None else partial(io.BytesIO, unpacked)
    layout = find_layout(path, open_file, header)
    source = _source(path, unpacked, layout)
    _check_size(path, layout, open_file)
    numeric = []
    for column, name in enumerate(layout.names):
        cells = present([row[column] for row in layout.sample if column < len(row)])
        if all_numbers(cells, layout.decimal_comma):
            numeric.append(name)
    reader = _Reader(path, layout, source, open_file)
    raw = reader.all(numeric)
    footer = _footer(raw)
    height = raw.height - footer
    raw = raw.head(height)
    frame = pl.DataFrame([_numbers_or_text(raw[name]) for name in layout.names])
    notes = list(layout.notes)
    if footer:
        notes.append(f"{footer} line{'s' * (footer > 1)} at the end left out, from line {reader.line(height)} on")
    empty = [name for name in frame.columns if frame[name].null_count() == height]
    if height and empty:
        unnamed = [name for name in empty if re.fullmatch(r"column \d+", name)]
        frame = frame.drop(unnamed if len(unnamed) < len(frame.columns) else [])
        named = [name for name in empty if name not in unnamed]
        if named:
            notes.append(f"without any value: {', '.join(map(repr, named[:5]))}{', …' * (len(named) > 5)}")
    rows = None  # of the file that are in the frame, where it lacks some
    if height:
        blank = frame.select(pl.all_horizontal(pl.all().is_null())).to_series()
        if frame.width == 1:  # in the middle of a single column an empty line is a missing value
            filled = (~blank).arg_true()
            last = -1 if not len(filled) else int(filled[-1])
            blank = pl.Series(np.arange(height) > last)
        if blank.any():
            rows = (~blank).arg_true().to_numpy()
            frame = frame.filter(~blank)
            notes.append(f"{int(blank.sum()):,} empty line{'s' * (int(blank.sum()) > 1)} left out")

    def line(row: int) -> int:
        return reader.line(row if rows is None else int(rows[row]))

    def as_text(name: str) -> pl.Series:
        column = reader.read(dict.fromkeys(layout.names, pl.String), [name])[name].head(height)
        return column if rows is None else column.gather(rows)

    return Table(path, frame, notes, line, as_text)


def _footer(frame: pl.DataFrame) -> int:
    """The number of rows at the end that are no data, such as totals: one of their cells says so, in a column whose
    other cells are numbers or dates."""
    import polars as pl

    count = 0
    for column in frame:
        if column.dtype != pl.String:
            continue
        tail = column.tail(_FOOTERS).to_list()
        first = next((row for row, cell in enumerate(tail) if cell and _FOOTER.fullmatch(cell.strip())), None)
        if first is None:
            continue
        above = present(column.head(len(column) - len(tail) + first).drop_nulls().head(_HEAD).to_list())
        below = present([cell for cell in tail[first:] if cell])
        if above and count_values(above) > len(above) / 2 and not count_values(below):
            count = max(count, len(tail) - first)
    return count


def _check_size(path: Path, layout: Layout, open_file: Opener) -> None:
    """Raise DataError for a file with so many empty cells that its table would fill the memory."""
    columns = len(layout.names)
    check(path, [(0, columns)])
    if columns * CELL * path.stat().st_size > largest(path):  # a row has at least a byte
        with open_file() as file:
            rows = sum(chunk.count(b"\n") for chunk in iter(partial(file.read, 2**20), b""))
        check(path, [(rows, columns)])


def _source(path: Path, unpacked: bytes | None, layout: Layout) -> Path | bytes:
    """The input of polars: the file, or its text in UTF-8 with single spaces and line feeds."""
    plain = layout.encoding == "utf-8" and layout.separator != " " and not layout.returns
    if plain:
        return path if unpacked is None else unpacked
    text = (path.read_bytes() if unpacked is None else unpacked).decode(layout.encoding, errors="replace")
    text = text.removeprefix("\ufeff")
    if layout.returns:
        text = text.replace("\r", "\n")
    if layout.separator == " ":
        text = "\n".join(" ".join(line.split()) for line in text.split("\n"))
    return text.encode()


@dataclass(frozen=True)
class _Reader:
    """Reads columns of a CSV file."""

    path: Path  # for messages
    layout: Layout
    source: Path | bytes  # what polars reads
    open_file: Opener

    def all(self, numeric: list[str]) -> pl.DataFrame:
        """All columns; the numeric ones as numbers, unless a cell is neither a number nor marks a missing one."""
        import polars as pl

        names = self.layout.names
        kinds = {name: pl.Float64 if name in set(numeric) else pl.String for name in names}
        try:
            return self.read(kinds)
        except pl.exceptions.ComputeError:
            pass
        text = self.read(dict.fromkeys(names, pl.String))
        try:  # slower, and most files have no marks
            numbers = self.read(dict.fromkeys(names, pl.Float64), numeric, _MARKS)
        except pl.exceptions.ComputeError:
            return text
        return text.with_columns(numbers.get_columns())

    def read(
        self, kinds: dict[str, Any], names: list[str] | None = None, marks: list[str] | None = None
    ) -> pl.DataFrame:
        """Columns of the file.

        Args:
            kinds: the types of all columns.
            names: the columns to read; by default all. Only then a line with too many fields is an error.
            marks: cells that mark a missing value.

        Raises:
            ComputeError: a cell is not of its type.
            DataError: the file cannot be read.
        """
        import polars as pl

        layout = self.layout
        columns = None if names is None else [column for column, name in enumerate(layout.names) if name in set(names)]
        numbers = pl.Float64 in kinds.values()
        try:
            return pl.read_csv(
                self.source,
                has_header=False,
                skip_lines=layout.skipped,
                separator=layout.separator,
                decimal_comma=layout.decimal_comma and numbers,
                schema=kinds,
                columns=columns,
                null_values=marks,
                encoding="utf8-lossy",
                raise_if_empty=False,
                glob=False,  # a file may be called a[1].csv
            )
        except pl.exceptions.ComputeError as error:
            if numbers and "could not parse" in str(error):
                raise
            raise self._error(error) from None
        except (pl.exceptions.PolarsError, OSError) as error:
            raise self._error(error) from None

    def line(self, row: int) -> int:
        """The line of the file in which a row of data begins."""
        for index, (number, _) in enumerate(self._rows()):
            if index == row:
                return number
        return self.layout.skipped + row + 1

    def _error(self, error: Exception) -> DataError:
        """An error that names the line that polars could not read."""
        layout = self.layout
        for row, (number, fields) in enumerate(self._rows()):
            if len(fields) > len(layout.names):
                others = "the first line" if row or layout.skipped else "the others"
                return DataError(
                    f"{self.path}, line {number}: it has {len(fields)} fields, {others} {len(layout.names)}. Mend the"
                    " line, or put fields that have separators in them between quotes"
                )
        return DataError(
            f"{self.path} cannot be read as a table: write a line of names, and below it a line for each row, with the"
            f" same separators in each ({str(error).splitlines()[0][:200]})"
        )

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """The line number and the fields of each row of data."""
        layout = self.layout
        default_limit = csv.field_size_limit(2**31 - 1)
        try:
            with (
                self.open_file() as raw,
                io.TextIOWrapper(raw, encoding=layout.encoding, errors="replace", newline="") as file,
            ):
                for _ in range(layout.skipped):
                    file.readline()
                if layout.separator == " ":
                    yield from ((layout.skipped + row + 1, line.split()) for row, line in enumerate(file))
                    return
                reader, before = csv.reader(file, delimiter=layout.separator), 0
                for fields in reader:
                    yield layout.skipped + before + 1, fields
                    before = reader.line_num
        except csv.Error:
            return
        finally:
            csv.field_size_limit(default_limit)


def _numbers_or_text(column: pl.Series) -> pl.Series:
    """Float64 if every cell is missing or a plain number, without unit or separators between thousands; else text."""
    import polars as pl

    if column.dtype != pl.String or column.null_count() == len(column):
        return column.cast(pl.Float64)
    head = column.drop_nulls().head(1000)
    if as_numbers(head)[1].any():
        return column
    numbers, wrong, note = as_numbers(column)
    return column if wrong.any() or note else numbers
