"""Reading numbers with separators between thousands, decimal commas or units."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from plmu.timeseries.tables.missing import without_marks

if TYPE_CHECKING:
    import polars as pl

_HEAD = 200  # cells from which the unit is detected


def as_numbers(column: pl.Series) -> tuple[pl.Series, pl.Series, str]:
    """The numbers in a column of text.

    Args:
        column: cells of text.

    Returns:
        The numbers, null where a cell is missing or not a number; which cells are neither a number nor missing; and a
        note on how the numbers are written, "" for plain numbers.
    """
    cells = without_marks(column).str.replace("^\u2212", "-")  # a minus sign instead of a hyphen
    numbers, wrong, note = _numbers_without_units(cells)
    if wrong.any() and (unit := _unit(cells)):
        numbers, wrong, note = _numbers_without_units(_remove_unit(cells, unit))
        unit_note = f"the unit {unit} is left out"
        return numbers, wrong, f"{note}, and {unit_note}" if note else unit_note
    return numbers, wrong, note


def _unit(cells: pl.Series) -> str | None:
    """The unit after most of the numbers, or the currency before them; None if there is none."""
    head = cells.drop_nulls().head(_HEAD)
    parts = head.str.extract_groups(_WITH_UNIT).struct.unnest()
    units = (parts["before"].fill_null("") + parts["after"].fill_null("")).drop_nulls()
    counts = units.filter(units != "").value_counts(sort=True)
    if not len(counts) or 2 * int(counts["count"][0]) <= len(head):
        return None
    unit = str(counts.to_series(0)[0])
    # 1a, 2a, 3a are names: letters are a unit only after a space, or after decimals.
    is_unit = not unit[0].isalpha() or bool(head.str.contains(r"\d\s+[^\d\s]|\d[.,]\d").any())
    return unit if is_unit else None


def _remove_unit(cells: pl.Series, unit: str) -> pl.Series:
    cells = cells.str.strip_prefix(unit).str.strip_suffix(unit).str.replace(f"^([+-]){re.escape(unit)}", "$1")
    return cells.str.strip_chars()


def _numbers_without_units(cells: pl.Series) -> tuple[pl.Series, pl.Series, str]:
    """As `as_numbers`: read in the notation with the fewest wrong cells."""
    import polars as pl

    best: tuple[pl.Series, pl.Series, str] | None = None
    for note, plain in _NOTATIONS.items():
        numbers = plain(cells).cast(pl.Float64, strict=False)
        wrong = numbers.is_null() & cells.is_not_null()
        if best is None or int(wrong.sum()) < int(best[1].sum()):
            best = numbers, wrong, note
        if not wrong.any():
            break
    assert best is not None
    return best


_WITH_UNIT = r"^[+-]?(?P<before>[$€£¥])?\s*[+-]?[\d.,'\s\u{a0}\u{202f}]*\d\s*(?P<after>[^\d\s.,'+-][^\d]{0,11})?$"


def _without_thousands_commas(cells: pl.Series) -> pl.Series:
    fits = cells.str.contains(r"^[+-]?(\d+|\d{1,3}(,\d{3})+)(\.\d*)?$")
    return cells.set(~fits.fill_null(False), None).str.replace_all(",", "", literal=True)


# How numbers may be written, and the function that rewrites them in the plain notation.
_NOTATIONS: dict[str, Callable[[pl.Series], pl.Series]] = {
    "": lambda cells: cells,
    "commas between thousands": _without_thousands_commas,
    "decimal commas": lambda cells: cells.str.replace_all(r"\.(\d{3})", "$1").str.replace(",", ".", literal=True),
    "spaces between thousands": lambda cells: cells.str.replace_all(r"(\d)[\s\u{a0}\u{202f}'](\d{3})", "$1$2"),
}
