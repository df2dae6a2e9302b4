"""The files of tables in a folder, by their endings; and their names without these."""

from __future__ import annotations

from pathlib import Path

from plmu.data.files import PACKINGS, unreadable
from plmu.errors import DataError

NUMPY, PARQUET = (".npy", ".npz"), (".parquet", ".pq")
TEXT = (".csv", ".tsv", ".txt", ".tab", ".dat", ".data")
JSON, SHEETS = (".json", ".jsonl", ".ndjson"), (".xlsx", ".xls", ".ods")
TABLE_SUFFIXES = (*NUMPY, *PARQUET, *TEXT, *JSON[1:], *SHEETS)  # in a folder a .json file describes others, as a rule


def plain_name(path: Path) -> str:
    """The name of a file without the ending of its packing.

    >>> plain_name(Path("data/a.csv.gz"))
    'a.csv'
    """
    return path.stem if path.suffix.lower() in (*PACKINGS[1:], ".zip") else path.name


def stem(path: Path) -> str:
    """The name of a file without the endings of its packing and its kind.

    >>> stem(Path("data/a.csv.gz"))
    'a'
    """
    return Path(plain_name(path)).stem


def table_files(path: Path) -> list[Path]:
    """The path itself if it is a file, or the tables of a folder, sorted by name."""
    try:
        if path.is_file():
            return [path]
        if not path.is_dir():
            raise DataError(f"{path} is not there: give a CSV, Parquet, NumPy, JSON or Excel file, or a folder of them")
    except OSError as error:
        raise unreadable(error, path) from None
    files = _tables_in(path)
    if not files:
        raise DataError(f"{path} has no tables: files that end in {', '.join(TABLE_SUFFIXES)}")
    return files


def nested_files(path: Path) -> list[Path]:
    """The tables of a folder and of its sub-folders, sorted by name."""
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    files = [file for folder in [path, *folders] for file in _tables_in(folder)]
    if not files:
        raise DataError(f"{path} and its sub-folders have no tables: files that end in {', '.join(TABLE_SUFFIXES)}")
    return files


def _tables_in(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if _is_table(entry) and entry.is_file())
    except OSError as error:
        raise unreadable(error, folder) from None


def _is_table(path: Path) -> bool:
    suffixes = TABLE_SUFFIXES if plain_name(path) == path.name else (*TEXT, *JSON[1:])
    return Path(plain_name(path)).suffix.lower() in suffixes
