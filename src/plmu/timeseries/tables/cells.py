"""What the text of cells means: a missing value such as "NA" or "#DIV/0!", a date, or a number, also with separators
between thousands, decimal commas or units."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from plmu.timeseries.tables.date_words import plain

if TYPE_CHECKING:
    import polars as pl

_SPREADSHEET_ERRORS = ("#n/a", "#div/0!", "#value!", "#ref!", "#name?", "#num!", "#null!")
_MARKS = ("na", "n/a", "nan", "null", "none", "nil", "-", "--", "?", ".", "missing")
MISSING = frozenset(("", *_MARKS, *_SPREADSHEET_ERRORS))
FLAGS = {"true": "1", "yes": "1", "false": "0", "no": "0"}
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)
DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+([eE][+-]?\d+)?")
DECIMAL_POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
MONTH = "(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"  # months, as `date_words.plain` writes them
_DATE = re.compile(
    r"""\s*(
    \d{4}[-/.]\d{1,2}([-/.]\d{1,2})? | \d{4}(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01]) (?=$|T|\s)
    | \d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}) | \d{1,2}/\d{4}
    | \d{1,2}[-.\s]\s?NAME[-\s,]+\d{2,4} | NAME\s+(\d{1,2},?\s+)?\d{4} | NAME-\d{1,2}-\d{4}
    | NAME[-/](\d{4}|\d{2}) | \d{4}[-\s/]?NAME
    | \d{4}[-\s]?[QqHhSsMm]\d{1,2} | [Qq][1-4][-/\s]?\d{4} | \d{4}[-\s]?[Ww]\d{1,2} | \d{4}-W\d{2}-[1-7]
    | (1[89]|20)\d{2}-[0-3]\d{2}
    )([T\s,]\s*\d{1,2}(:\d{2}){0,2}([.,]\d+)?\s*([AaPp][Mm])?\s*(Z|UTC|[+-]\d{2}(:?\d{2})?)?)?\s*""".replace(
        "NAME", MONTH
    ),
    re.VERBOSE,
)
_NUMBER_LIKE = re.compile(r"\s*\d{8}\s*|\s*\d{4}\.\d{1,2}\s*")  # also dates, but more likely numbers
# What people mean as a time, though it may not be readable: three numbers of a date, a clock, the name of a month
# beside a number, or a year with a letter and a number.
_TIME_LIKE = re.compile(
    r"""\s*(\w{2,10}[,.]?\s+)?(\d{4}([-/.\s])\d{1,2}\3\d{1,2} | \d{1,2}([-/.\s])\d{1,2}\4\d{4})\b.*
    | \s*(.*\D)?\d{1,2}:\d{2}(:\d{2})?(\D.*)? | .*\bNAME\b.*\d.* | .*\d\s*NAME\b.*
    | \s*(1[89]|20)\d{2}\s*[-/]?\s*[^\W\d]{1,2}\s*\d{1,2}\s* | \s*[^\W\d]{1,2}\s*\d{1,2}[-/\s]*(1[89]|20)\d{2}\s*
    """.replace("NAME", MONTH),
    re.VERBOSE,
)
_YEAR = re.compile(r"(?!\s*\d{4}\s*$)(?:.*\D)?((?:1[89]|20)\d{2})(?!\d)")
_HEAD = 200  # cells from which the unit is detected
_FEWEST = 3  # different cells whose years rise


def is_missing(cell: str) -> bool:
    """Whether a cell marks a missing value."""
    return cell.strip().lower() in MISSING


def present(cells: Iterable[str]) -> list[str]:
    """The cells that do not mark a missing value."""
    return [cell for cell in cells if not is_missing(cell)]


def without_marks(column: pl.Series) -> pl.Series:
    """Text without spaces at its ends, null for cells that mark a missing value."""
    cells = column.str.strip_chars()
    return cells.set(cells.str.to_lowercase().is_in(sorted(MISSING)).fill_null(False), None)


def is_number(cell: str, decimal_comma: bool = False) -> bool:
    """Whether a cell is a number, also with a decimal comma if `decimal_comma`."""
    cell = cell.strip()
    return bool(NUMBER.fullmatch(cell) or (decimal_comma and DECIMAL_COMMA.fullmatch(cell)))


def looks_like_date(cell: str) -> bool:
    """Whether a cell is a date, also with a time of day, and not more likely a number, as 20240131 and 2024.05 are."""
    if _DATE.fullmatch(cell):
        return not _NUMBER_LIKE.fullmatch(cell)
    return bool(_DATE.fullmatch(plain(cell)))


def looks_like_time(cell: str) -> bool:
    """Whether a cell is meant as a date or time, even if it cannot be read as such."""
    return bool(_TIME_LIKE.fullmatch(plain(cell)) or _DATE.fullmatch(plain(cell)))


def years_rise(cells: Sequence[str]) -> bool:
    """Whether each cell has a year beside something else, and these years rise from cell to cell, with few falls, as
    where one series begins below another."""
    years = [int(match[1]) for match in map(_YEAR.match, cells) if match]
    if len(years) < len(cells) or len(set(cells)) < _FEWEST or len(set(years)) < 2:
        return False
    falls = sum(after < before for before, after in pairwise(years))
    rises = sum(after > before for before, after in pairwise(years))
    return 10 * falls <= rises


def count_dates(cells: Iterable[str]) -> int:
    """The number of cells that are dates."""
    return sum(map(looks_like_date, cells))


def count_values(cells: Iterable[str], decimal_comma: bool = False) -> int:
    """The number of cells that are numbers or dates."""
    return sum(is_number(cell, decimal_comma) or looks_like_date(cell) for cell in cells)


def all_numbers(cells: Sequence[str], decimal_comma: bool = False) -> bool:
    """Whether there are cells, and all of them are numbers."""
    return bool(cells) and all(is_number(cell, decimal_comma) for cell in cells)


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
    if wrong.any() and _has_bookkeeping(cells):
        signed = cells.str.replace(_IN_PARENTHESES, "-${1}${2}").str.replace(r"^(.*\d)\s?-$", "-${1}")
        numbers, wrong, note = as_numbers(signed)
        sign_note = "numbers in parentheses or before a minus sign are negative"
        return numbers, wrong, f"{note}, and {sign_note}" if note else sign_note
    if wrong.any() and (unit := _unit(cells)):
        numbers, wrong, note = _numbers_without_units(_remove_unit(cells, unit))
        unit_note = f"the unit {unit} is left out"
        return numbers, wrong, f"{note}, and {unit_note}" if note else unit_note
    return numbers, wrong, note


def _has_bookkeeping(cells: pl.Series) -> bool:
    """Whether some numbers, but not all, are negative as bookkeepers write them: (1,234) or 1,234-."""
    negative = (cells.str.contains(_IN_PARENTHESES) | cells.str.contains(r"^[$€£¥\d].*\d\s?-$")).fill_null(False)
    return bool(negative.any()) and bool((~negative & cells.str.contains(r"\d").fill_null(False)).any())


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
    """As `as_numbers`, for cells without units: all are read in the one notation with the fewest wrong cells."""
    import polars as pl

    best: tuple[pl.Series, pl.Series, str] | None = None
    for note, rewritten in _NOTATIONS.items():
        numbers = rewritten(cells).cast(pl.Float64, strict=False)
        wrong = numbers.is_null() & cells.is_not_null()
        if best is None or int(wrong.sum()) < int(best[1].sum()):
            best = numbers, wrong, note
        if not wrong.any():
            break
    assert best is not None
    return best


_SPACE = r"(\d)[\s\u{a0}\u{202f}'](\d{3})"
_IN_PARENTHESES = r"^([$€£¥]?)\s*\(\s*([$€£¥]?[\d.,'\s]*\d\s*%?)\s*\)$"
_WITH_UNIT = r"^[+-]?(?P<before>[$€£¥])?\s*[+-]?[\d.,'\s\u{a0}\u{202f}]*\d\s*(?P<after>[^\d\s.,'+-][^\d]{0,11})?$"


def _without_thousands_commas(cells: pl.Series) -> pl.Series:
    """1234.5 for 1,234.5; null where commas are not between thousands."""
    fits = cells.str.contains(r"^[+-]?(\d+|\d{1,3}(,\d{3})+)(\.\d*)?$")
    return cells.set(~fits.fill_null(False), None).str.replace_all(",", "", literal=True)


# How numbers may be written, and the function that rewrites them in the plain notation.
_NOTATIONS: dict[str, Callable[[pl.Series], pl.Series]] = {
    "": lambda cells: cells,
    "commas between thousands": _without_thousands_commas,
    "decimal commas": lambda cells: cells.str.replace_all(r"\.(\d{3})", "$1").str.replace(",", ".", literal=True),
    "spaces between thousands, decimal commas": lambda cells: cells.str.replace_all(_SPACE, "$1$2").str.replace(
        r"^([+-]?\d+),(\d+)$", "$1.$2"
    ),
    "spaces between thousands": lambda cells: cells.str.replace_all(_SPACE, "$1$2"),
}
