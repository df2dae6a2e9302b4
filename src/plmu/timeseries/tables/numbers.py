"""Numbers in the forms in which people write them: with separators between thousands, decimal commas and units."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from plmu.timeseries.tables.missing import filled

if TYPE_CHECKING:
    import polars as pl

_HEAD = 200  # cells that tell the unit


def as_numbers(column: pl.Series) -> tuple[pl.Series, pl.Series, str]:
    """Numbers of a column of text, which cells are neither numbers nor missing, and how the numbers are written."""
    cells = filled(column).str.replace("^\u2212", "-")  # a minus sign that is no hyphen
    made, wrong, note = _plain_numbers(cells)
    if wrong.any() and (unit := _unit(cells)):
        without = _without(cells, unit)
        made, left, note = _plain_numbers(without)
        told = f"the unit {unit} is left out"
        return made, left, f"{note}, and {told}" if note else told
    return made, wrong, note


def _unit(cells: pl.Series) -> str | None:
    """What stands behind most numbers, or a currency before them; None where there is no such thing."""
    head = cells.drop_nulls().head(_HEAD)
    parts = head.str.extract_groups(_WITH_UNIT).struct.unnest()
    found = (parts["before"].fill_null("") + parts["after"].fill_null("")).drop_nulls()
    counts = found.filter(found != "").value_counts(sort=True)
    if not len(counts) or 2 * int(counts["count"][0]) <= len(head):
        return None
    unit = str(counts.to_series(0)[0])
    # 1a, 2a, 3a are names: letters are a unit behind a space, or behind decimals.
    plain = not unit[0].isalpha() or bool(head.str.contains(r"\d\s+[^\d\s]|\d[.,]\d").any())
    return unit if plain else None


def _without(cells: pl.Series, unit: str) -> pl.Series:
    """Cells without this unit; null where nothing is left."""
    found = cells.str.strip_prefix(unit).str.strip_suffix(unit).str.replace(f"^([+-]){re.escape(unit)}", "$1")
    return found.str.strip_chars()


def _plain_numbers(cells: pl.Series) -> tuple[pl.Series, pl.Series, str]:
    """The same of cells without units."""
    import polars as pl

    best: tuple[pl.Series, pl.Series, str] | None = None
    for note, change in _WAYS.items():
        changed = change(cells).cast(pl.Float64, strict=False)
        wrong = changed.is_null() & cells.is_not_null()
        if best is None or int(wrong.sum()) < int(best[1].sum()):
            best = changed, wrong, note
        if not wrong.any():
            break
    assert best is not None
    return best


_WITH_UNIT = r"^[+-]?(?P<before>[$€£¥])?\s*[+-]?[\d.,'\s\u{a0}\u{202f}]*\d\s*(?P<after>[^\d\s.,'+-][^\d]{0,11})?$"


def _thousands(cells: pl.Series) -> pl.Series:
    fits = cells.str.contains(r"^[+-]?(\d+|\d{1,3}(,\d{3})+)(\.\d*)?$")
    return cells.set(~fits.fill_null(False), None).str.replace_all(",", "", literal=True)


# How numbers are written, and how to write them plainly.
_WAYS: dict[str, Callable[[pl.Series], pl.Series]] = {
    "": lambda cells: cells,
    "commas between thousands": _thousands,
    "decimal commas": lambda cells: cells.str.replace_all(r"\.(\d{3})", "$1").str.replace(",", ".", literal=True),
    "spaces between thousands": lambda cells: cells.str.replace_all(r"(\d)[\s\u{a0}\u{202f}'](\d{3})", "$1$2"),
}
