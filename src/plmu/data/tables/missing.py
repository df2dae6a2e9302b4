"""Cells that say that a value is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

MISSING = frozenset(("", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "-", "--", "?", ".", "missing"))


def is_missing(cell: str) -> bool:
    return cell.strip().lower() in MISSING


def filled(column: pl.Series) -> pl.Series:
    """Text without spaces at the ends, and null for a cell that says that it is missing."""
    cells = column.str.strip_chars()
    return cells.set(cells.str.to_lowercase().is_in(sorted(MISSING)).fill_null(False), None)
