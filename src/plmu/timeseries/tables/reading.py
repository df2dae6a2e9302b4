"""Reading files into tables, with polars."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmu.data.files import unreadable
from plmu.data.table_files import NUMPY, PARQUET, table_files
from plmu.errors import DataError
from plmu.timeseries.reporting import shortened
from plmu.timeseries.tables.cells import MISSING, all_numbers, as_numbers, present
from plmu.timeseries.tables.layout import Layout, find_layout
from plmu.timeseries.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

SHEETS = (".xls", ".xlsx", ".ods")
_MARKS = sorted({form for mark in MISSING for form in (mark, mark.upper(), mark.capitalize())} | {"NaN"})


def read_tables(path: Path, header: bool | None = None) -> list[Table]:
    """A table for each file of a path, which is a file or a folder."""
    return [read_table(file, header) for file in table_files(path)]


def read_table(path: Path, header: bool | None = None) -> Table:
    """The table of a CSV, Parquet or NumPy file.

    Args:
        path: the file. Parquet and NumPy files are known by their endings; all others are CSV, with any separator.
        header: whether the first line of a CSV file names the columns; detected by default.

    Raises:
        DataError: it cannot be read, or has no rows; the message names line and column of a fault.
    """
    suffix = path.suffix.lower()
    if not path.is_file():
        raise DataError(f"{path} is {'not a file' if path.exists() else 'not there'}")
    if suffix in SHEETS:
        raise DataError(f"{path} is a spreadsheet: save it as CSV")
    if suffix in NUMPY:
        table = _from_numpy(path)
    elif suffix in PARQUET:
        table = _from_parquet(path)
    else:
        table = _from_csv(path, find_layout(path, header))
    if not table.rows:
        raise DataError(f"{path} has no rows of data")
    table.notes.insert(0, f"{path.name}: {table.rows:,} row{'s' * (table.rows != 1)}, {_listed(table)}")
    return table


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name, or the array of an .npy file, named "". Nothing in the file is executed."""
    try:
        with open(path, "rb") as file:
            content = np.load(file, allow_pickle=False)
            return {"": content} if isinstance(content, np.ndarray) else {name: content[name] for name in content.files}
    except OSError as error:
        raise unreadable(error, path) from None
    except Exception as error:  # a damaged archive may raise anything
        raise DataError(f"{path} is not a NumPy file that can be read ({error})") from None


def _listed(table: Table) -> str:
    names = ", ".join(map(shortened, table.names[:8])) + (", …" if len(table.names) > 8 else "")
    return f"{len(table.names)} column{'s' * (len(table.names) != 1)} ({names})"


def _from_csv(path: Path, layout: Layout) -> Table:
    """The table of a CSV file, without empty lines and without columns that have neither a name nor a value."""
    import polars as pl

    source = _source(path, layout)
    numeric = []
    for column, name in enumerate(layout.names):
        cells = present([row[column] for row in layout.sample if column < len(row)])
        if all_numbers(cells, layout.decimal_comma):
            numeric.append(name)
    raw = _read_all(path, layout, source, numeric)
    height = raw.height
    frame = pl.DataFrame([_numbers_or_text(raw[name]) for name in layout.names])
    notes = list(layout.notes)
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
        return _line(path, layout, row if rows is None else int(rows[row]))

    def as_text(name: str) -> pl.Series:
        column = _read(path, layout, source, dict.fromkeys(layout.names, pl.String), [name])[name]
        return column if rows is None else column.gather(rows)

    return Table(path, frame, notes, line, as_text)


def _source(path: Path, layout: Layout) -> Path | bytes:
    """The input of polars: the file, or its text in UTF-8 with single spaces and line feeds."""
    if layout.encoding == "utf-8" and layout.separator != " " and not layout.returns:
        return path
    text = path.read_bytes().decode(layout.encoding, errors="replace").removeprefix("\ufeff")
    if layout.returns:
        text = text.replace("\r", "\n")
    if layout.separator == " ":
        text = "\n".join(" ".join(line.split()) for line in text.split("\n"))
    return text.encode()


def _read_all(path: Path, layout: Layout, source: Path | bytes, numeric: list[str]) -> pl.DataFrame:
    """All columns; the numeric ones as numbers, unless a cell is neither a number nor marks a missing one."""
    import polars as pl

    kinds = {name: pl.Float64 if name in set(numeric) else pl.String for name in layout.names}
    try:
        return _read(path, layout, source, kinds)
    except pl.exceptions.ComputeError:
        pass
    text = _read(path, layout, source, dict.fromkeys(layout.names, pl.String))
    try:  # slower, and most files have no marks
        numbers = _read(path, layout, source, dict.fromkeys(layout.names, pl.Float64), numeric, _MARKS)
    except pl.exceptions.ComputeError:
        return text
    return text.with_columns(numbers.get_columns())


def _read(
    path: Path,
    layout: Layout,
    source: Path | bytes,
    kinds: dict[str, Any],
    names: list[str] | None = None,
    marks: list[str] | None = None,
) -> pl.DataFrame:
    """Columns of a CSV file.

    Args:
        path: the file, for messages.
        layout: of the file.
        source: what polars reads.
        kinds: the types of all columns.
        names: the columns to read; by default all. Only then a line with too many fields is an error.
        marks: cells that mark a missing value.

    Raises:
        ComputeError: a cell is not of its type.
        DataError: the file cannot be read.
    """
    import polars as pl

    columns = None if names is None else [column for column, name in enumerate(layout.names) if name in set(names)]
    numbers = pl.Float64 in kinds.values()
    try:
        return pl.read_csv(
            source,
            has_header=False,
            skip_lines=layout.skipped,
            separator=layout.separator,
            decimal_comma=layout.decimal_comma and numbers,
            schema=kinds,
            columns=columns,
            null_values=marks,
            encoding="utf8-lossy",
            raise_if_empty=False,
        )
    except pl.exceptions.ComputeError as error:
        if numbers and "could not parse" in str(error):
            raise
        raise _csv_error(path, layout, error) from None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _csv_error(path, layout, error) from None


def _csv_error(path: Path, layout: Layout, error: Exception) -> DataError:
    """An error that names the line that polars could not read."""
    for row, (number, fields) in enumerate(_rows(path, layout)):
        if len(fields) > len(layout.names):
            others = "the first line" if row or layout.skipped else "the others"
            return DataError(
                f"{path}, line {number}: it has {len(fields)} fields, {others} {len(layout.names)}. Mend the line, or"
                " put fields that have separators in them between quotes"
            )
    return DataError(f"{path} cannot be read: {str(error).splitlines()[0]}")


def _rows(path: Path, layout: Layout) -> Iterator[tuple[int, list[str]]]:
    """The line number and the fields of each row of data."""
    default_limit = csv.field_size_limit(2**31 - 1)
    try:
        with open(path, encoding=layout.encoding, errors="replace", newline="") as file:
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


def _line(path: Path, layout: Layout, row: int) -> int:
    """The line of the file in which a row of data begins."""
    for index, (number, _) in enumerate(_rows(path, layout)):
        if index == row:
            return number
    return layout.skipped + row + 1


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


def _from_parquet(path: Path) -> Table:
    """The table of a Parquet file; truth values as 0 and 1, times in UTC. Columns of other types are left out."""
    import polars as pl

    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{path} is not a Parquet file that can be read ({str(error).splitlines()[0]})") from None
    columns, dropped, zoned = [], [], []
    for column in frame:
        kind = column.dtype
        if kind.is_numeric() or kind == pl.Boolean or kind == pl.Null:
            columns.append(column.cast(pl.Float64))
        elif kind in (pl.Date, pl.Datetime):
            zone = getattr(kind, "time_zone", None)
            times = column.cast(pl.Datetime("us", zone))
            if zone not in (None, "UTC"):
                zoned.append(column.name)
            columns.append(times.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if zone else times)
        elif kind in (pl.String, pl.Categorical, pl.Enum):
            columns.append(column.cast(pl.String))
        else:
            dropped.append(column.name)
    notes = [f"column {name!r}: time zones converted to UTC" for name in zoned]
    notes += [f"left out, neither numbers nor times nor text: {', '.join(dropped)}"] if dropped else []
    if not columns:
        raise DataError(f"{path} has no columns of numbers, times or text")
    return Table(path, pl.DataFrame(columns), notes, zoned=zoned)


def _from_numpy(path: Path) -> Table:
    """The table of an .npy or .npz file: a column for each array (rows,), field, or column of an array (rows, columns).
    Arrays without an axis are left out."""
    import polars as pl

    arrays: dict[str, NDArray[Any]] = {}  # (rows,), a column each
    for key, array in read_arrays(path).items():
        name = key or "value"
        if array.dtype.names:
            arrays |= {field: array[field] for field in array.dtype.names}
        elif array.ndim == 1:
            arrays[name] = array
        elif array.ndim == 2:
            arrays |= {f"{name} {number}": array[:, number - 1] for number in range(1, array.shape[1] + 1)}
        elif array.ndim > 2:
            raise DataError(f"{path}: {name} has the shape {array.shape}; (time,) or (time, columns) is needed")
    lengths = {name: len(array) for name, array in arrays.items()}
    if not lengths:
        raise DataError(f"{path} has no arrays with a time axis")
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length}" for name, length in list(lengths.items())[:6])
        raise DataError(f"{path} has arrays of different lengths ({shown}): columns must be equally long")
    columns = []
    for name, array in arrays.items():
        if np.issubdtype(array.dtype, np.datetime64):
            columns.append(pl.Series(name, array.astype("datetime64[us]")))
        elif (np.issubdtype(array.dtype, np.number) and not np.iscomplexobj(array)) or array.dtype == bool:
            columns.append(pl.Series(name, array.astype(np.float64)))
        elif array.dtype.kind in "US":
            columns.append(pl.Series(name, array.astype(str).tolist(), dtype=pl.String))
        else:
            raise DataError(f"{path}: {name} has the type {array.dtype}; numbers, dates or text are needed")
    return Table(path, pl.DataFrame(columns))
