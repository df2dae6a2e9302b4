"""Files whose columns have types, or cells without text, as tables: Parquet, JSON, and sheets of Excel and others."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmu.errors import DataError, how_to_install
from plmu.timeseries.tables.csv_files import from_csv
from plmu.timeseries.tables.limits import check, check_bytes
from plmu.timeseries.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

_EXACT = 2.0**53  # integers below it are exact in float64


def from_parquet(path: Path) -> Table:
    """The table of a Parquet file; truth values as 0 and 1, times in UTC. Columns of other types are left out."""
    import polars as pl

    try:
        lazy = pl.scan_parquet(path, glob=False)
        check(path, [(lazy.select(pl.len()).collect().item(), len(lazy.collect_schema()))])
        frame = pl.read_parquet(path, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise not_parquet(path, error) from None
    return table_of(path, frame)


def not_parquet(path: Path, error: Exception) -> DataError:
    """The error to raise where a Parquet file cannot be read."""
    return DataError(f"{path} is not a Parquet file that can be read ({str(error).splitlines()[0]})")


def table_of(path: Path, frame: pl.DataFrame, line: Callable[[int], int] | None = None) -> Table:
    """The table of rows of a Parquet file; `line` is as in `Table`."""
    columns, dropped, zoned = typed(frame)
    zoned = [name for name in zoned if getattr(frame[name].dtype, "time_zone", None) != "UTC"]
    notes = [f"column {name!r}: time zones converted to UTC" for name in zoned]
    return _table(path, columns, dropped, notes, zoned, line)


def typed(frame: pl.DataFrame) -> tuple[list[pl.Series], list[str], list[str]]:
    """The columns of a table: truth values as 0 and 1, times in UTC, integers that float64 has not exactly as text; the
    names of columns of other types, which are left out; and the names of columns whose times have a time zone."""
    import polars as pl

    columns, dropped, zoned = [], [], []
    for column in frame:
        kind = column.dtype
        if kind.is_integer() and (column.is_not_null() & (column.cast(pl.Float64).abs() >= _EXACT)).any():
            columns.append(column.cast(pl.String))
        elif kind.is_numeric() or kind == pl.Boolean or kind == pl.Null:
            columns.append(column.cast(pl.Float64))
        elif kind in (pl.Date, pl.Datetime):
            zone = getattr(kind, "time_zone", None)
            times = column.cast(pl.Datetime("us", zone))
            if zone is not None:
                zoned.append(column.name)
            columns.append(times.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if zone else times)
        elif kind in (pl.String, pl.Categorical, pl.Enum):
            columns.append(column.cast(pl.String))
        else:
            dropped.append(column.name)
    return columns, dropped, zoned


def from_frame(frame: pl.DataFrame, path: Path) -> Table:
    """The table of a data frame in memory; `path` is what to call it in messages."""
    columns, dropped, zoned = typed(frame)
    return _table(path, columns, dropped, [], zoned)


def _table(
    path: Path,
    columns: list[pl.Series],
    dropped: list[str],
    notes: list[str],
    zoned: list[str],
    line: Callable[[int], int] | None = None,
) -> Table:
    import polars as pl

    notes += [f"left out, neither numbers nor times nor text: {', '.join(dropped)}"] if dropped else []
    if not columns:
        raise DataError(f"{path} has no columns of numbers, times or text")
    return Table(path, pl.DataFrame(columns), notes, line, zoned=zoned)


def from_json(path: Path, content: bytes) -> Table:
    """The table of a JSON file; truth values as 0 and 1. Columns of lists or objects are left out.

    Args:
        path: the file.
        content: its bytes, unpacked: an array of objects with a row each, such an object a line, an object with a list
            for each column, or what pandas' `to_json` writes.
    """
    import polars as pl

    records = _records(path, content)
    names = list(dict.fromkeys(name for record in records for name in record))
    check(path, [(len(records), len(names))])
    columns, dropped = [], []
    for name in names:
        cells = [record.get(name) for record in records]
        if any(isinstance(cell, dict | list) for cell in cells):
            dropped.append(name)
        elif all(cell is None or isinstance(cell, int | float) for cell in cells):
            numbers = [None if cell is None else float(cell) for cell in cells]
            columns.append(pl.Series(name, numbers, dtype=pl.Float64))
        else:
            text = [cell if cell is None or isinstance(cell, str) else json.dumps(cell) for cell in cells]
            columns.append(pl.Series(name, text, dtype=pl.String))
    notes = [f"left out, neither numbers nor times nor text: {', '.join(dropped)}"] if dropped else []
    if not columns:
        raise DataError(f"{path} has no columns of numbers, times or text")
    return Table(path, pl.DataFrame(columns), notes)


def _records(path: Path, content: bytes) -> Sequence[dict[str, Any]]:
    """The rows of a JSON file, cells by name."""
    try:
        text = content.decode("utf-8-sig")
        try:
            whole = json.loads(text)
        except ValueError:
            lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
            if len(lines) < 2:
                raise
            whole = [_parsed(path, number, line) for number, line in lines]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({error.reason} at byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error})") from None
    if isinstance(whole, dict) and {"columns", "data"} <= whole.keys():  # pandas, orient="split"
        whole = [dict(zip(map(str, whole["columns"]), row, strict=False)) for row in whole["data"]]
    elif isinstance(whole, dict) and whole and all(isinstance(cells, list) for cells in whole.values()):
        if len(whole) == 1 and all(isinstance(row, dict) for row in next(iter(whole.values()))):
            whole = next(iter(whole.values()))  # {"data": [{…}, …]}
        else:
            counts = {name: len(cells) for name, cells in whole.items()}
            if len(set(counts.values())) > 1:
                shown = ", ".join(f"{name!r} {count}" for name, count in list(counts.items())[:6])
                raise DataError(f"{path} has lists of different lengths ({shown}): columns must be equally long")
            whole = [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]
    elif isinstance(whole, dict) and whole and all(isinstance(cells, dict) for cells in whole.values()):
        rows = dict.fromkeys(row for cells in whole.values() for row in cells)  # pandas, by default
        check(path, [(len(rows), len(whole))])
        whole = [{name: cells.get(row) for name, cells in whole.items()} for row in rows]
    if not isinstance(whole, list) or not all(isinstance(row, dict) for row in whole):
        raise DataError(
            f'{path} holds no table: write an array of objects, [{{"time": …, "load": …}}, …], such an object a'
            " line, or CSV"
        )
    return whole


def _parsed(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {number}: it is not JSON ({error})") from None


def from_sheet(path: Path, header: bool | None) -> Table:
    """The table of the first sheet of a file of Excel, LibreOffice and others, whose cells are read as text."""
    try:
        import fastexcel
    except ImportError:
        raise DataError(
            f"{path} is a spreadsheet: save it as CSV, or {how_to_install('fastexcel')}, by which it is read"
        ) from None
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                check_bytes(path, sum(info.file_size for info in archive.infolist()))
        book = fastexcel.read_excel(path)
        sheet = book.load_sheet(0, header_row=None, skip_rows=0, dtypes="string").to_polars()
    except DataError:
        raise
    except Exception as error:  # a damaged file may raise anything
        raise DataError(f"{path} is not a spreadsheet that can be read ({error})") from None
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(sheet.iter_rows())
    if not sheet.height:
        raise DataError(f"{path} has no rows of data: its first sheet, {book.sheet_names[0]!r}, is empty")
    table = from_csv(path, text.getvalue().encode(), header)
    if len(book.sheet_names) > 1:
        table.notes.insert(0, f"sheet {book.sheet_names[0]!r}, the first of {len(book.sheet_names)}")
    return table
