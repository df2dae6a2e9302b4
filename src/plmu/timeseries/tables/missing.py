"""Cells that mark a missing value, such as "NA" or "#DIV/0!"."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

_SPREADSHEET_ERRORS = ("#n/a", "#div/0!", "#value!", "#ref!", "#name?", "#num!", "#null!")
_MARKS = ("na", "n/a", "nan", "null", "none", "nil", "-", "--", "?", ".", "missing")
MISSING = frozenset(("", *_MARKS, *_SPREADSHEET_ERRORS))


def is_missing(cell: str) -> bool:
    """Whether a cell marks a missing value."""
    return cell.strip().lower() in MISSING


def without_marks(column: pl.Series) -> pl.Series:
    """Text without spaces at its ends, null for cells that mark a missing value."""
    cells = column.str.strip_chars()
    return cells.set(cells.str.to_lowercase().is_in(sorted(MISSING)).fill_null(False), None)
