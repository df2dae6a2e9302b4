"""Reading files into tables: by their endings, and unpacked where they are packed."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from plmu.data.files import unreadable
from plmu.data.reading import opened
from plmu.data.table_files import JSON, NUMPY, PARQUET, SHEETS, plain_name, table_files
from plmu.errors import DataError
from plmu.timeseries.reporting import shortened
from plmu.timeseries.tables import limits
from plmu.timeseries.tables.csv_files import from_csv
from plmu.timeseries.tables.table import Table
from plmu.timeseries.tables.typed_files import from_json, from_parquet, from_sheet

_PACKED = (b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ")  # gzip, zip, bzip2, xz
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_OBJECT = re.compile(rb"\s*(\[\s*)?\{\s*\"")  # how JSON begins


def read_tables(path: Path, header: bool | None = None) -> list[Table]:
    """A table for each file of a path, which is a file or a folder."""
    return [read_table(file, header) for file in table_files(path)]


def read_table(path: Path, header: bool | None = None) -> Table:
    """The table of a CSV, Parquet, NumPy, JSON or Excel file.

    Args:
        path: the file. Parquet, NumPy, JSON and Excel files are known by their endings; all others are CSV, with any
            separator. CSV and JSON may be packed with gzip, bzip2, xz or zip.
        header: whether the first line of a CSV or Excel file names the columns; detected by default.

    Raises:
        DataError: it cannot be read, or has no rows; the message names line and column of a fault.
    """
    if not path.is_file():
        raise DataError(f"{path} is {'not a file' if path.exists() else 'not there'}")
    suffix = path.suffix.lower()
    if suffix in SHEETS:
        table = from_sheet(path, header)
    elif suffix in NUMPY:
        table = _from_numpy(path)
    elif suffix in PARQUET:
        table = from_parquet(path)
    else:
        start = _start(path)
        unpacked = _unpacked(path) if start.startswith(_PACKED) else None
        if Path(plain_name(path)).suffix.lower() in JSON or _OBJECT.match(unpacked[:200] if unpacked else start):
            table = from_json(path, path.read_bytes() if unpacked is None else unpacked)
        else:
            table = from_csv(path, unpacked, header)
    if not table.rows:
        raise DataError(f"{path} has no rows of data")
    table.notes.insert(0, f"{path.name}: {table.rows:,} row{'s' * (table.rows != 1)}, {_listed(table)}")
    return table


def _start(path: Path) -> bytes:
    """The first bytes of a file, by which its packing is known."""
    try:
        with open(path, "rb") as file:
            start = file.read(200)
    except OSError as error:
        raise unreadable(error, path) from None
    if start.startswith(_ZSTANDARD):
        raise DataError(f"{path} is packed with Zstandard: unpack it first, with zstd -d")
    return start


def _unpacked(path: Path) -> bytes:
    """All bytes of a packed file; of a zip archive those of its only file."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
        names = [name for name in names if not name.startswith("__MACOSX")]
        if len(names) != 1 or Path(names[0]).suffix.lower() in (*NUMPY, *PARQUET, *SHEETS):
            shown = ", ".join(map(repr, names[:3])) + (", …" if len(names) > 3 else "")
            raise DataError(f"{path} holds the files {shown}: unpack it, and give the folder or one of them")
    most, count, pieces = limits.largest(path), 0, []
    with opened(path, allowance=most) as file:
        while piece := file.read(2**20):
            count += len(piece)
            limits.check_bytes(path, count)
            pieces.append(piece)
    return b"".join(pieces)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name, or the array of an .npy file, named "". Nothing in the file is executed."""
    try:
        limits.check(path, _sizes(path))
        with open(path, "rb") as file:
            content = np.load(file, allow_pickle=False)
            return {"": content} if isinstance(content, np.ndarray) else {name: content[name] for name in content.files}
    except DataError:
        raise
    except OSError as error:
        raise unreadable(error, path) from None
    except Exception as error:  # a damaged archive may raise anything
        raise DataError(f"{path} is not a NumPy file that can be read ({error})") from None


def _sizes(path: Path) -> Iterator[tuple[int, int]]:
    """Rows and columns of each array of an .npy or .npz file, as their headers state them."""
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            file.seek(0)
            yield _size(file)
            return
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                if info.filename.endswith(".npy"):
                    with archive.open(info) as member:
                        yield _size(member)


def _size(file: IO[bytes]) -> tuple[int, int]:
    """Rows and columns of the array in an .npy file; each field and each 8 bytes of text are a column."""
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = read[np.lib.format.read_magic(file)](file)
    return (shape[0] if shape else 1), math.prod(shape[1:]) * max(len(dtype.names or ()), -(-dtype.itemsize // 8))


def _listed(table: Table) -> str:
    names = ", ".join(map(shortened, table.names[:8])) + (", …" if len(table.names) > 8 else "")
    return f"{len(table.names)} column{'s' * (len(table.names) != 1)} ({names})"


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
