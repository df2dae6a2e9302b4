"""Cells that say that a value is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

_ERRORS = ("#n/a", "#div/0!", "#value!", "#ref!", "#name?", "#num!", "#null!")  # of spreadsheets
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "nil", "-", "--", "?", ".", "missing", *_ERRORS))


def is_missing(cell: str) -> bool:
    return cell.strip().lower() in MISSING


def filled(column: pl.Series) -> pl.Series:
    """Text without spaces at the ends, and null for a cell that says that it is missing."""
    cells = column.str.strip_chars()
    return cells.set(cells.str.to_lowercase().is_in(sorted(MISSING)).fill_null(False), None)
